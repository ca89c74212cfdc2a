# Run by an install: installs the public headers, modelcenter.h and the folder modelcenter/, and nothing else
# into the include path. In the sources they include one another from the root of the repository.
string(RANDOM LENGTH 12 stage) # of this install alone, which may be another user's than the last
set(stage ${MC_BINARY}/include-${stage})
file(GLOB_RECURSE headers RELATIVE ${MC_SOURCE} ${MC_SOURCE}/core/*.h ${MC_SOURCE}/models/*.h
     ${MC_SOURCE}/tokenizers/*.h ${MC_SOURCE}/datasets/*.h)
list(FILTER headers EXCLUDE REGEX "_internal\\.h$|/(cpu|cuda|hopper|lm)/")
include(${CMAKE_CURRENT_LIST_DIR}/header_paths.cmake)
foreach(header ${headers})
    file(READ ${MC_SOURCE}/${header} text)
    string(REGEX MATCHALL "#include \"(core|models|tokenizers|datasets)/[^\"]*\"" includes "${text}")
    foreach(include ${includes})
        string(REGEX REPLACE ".*\"(.*)\"" "\\1" path "${include}")
        installed_header(path ${path})
        string(REPLACE "${include}" "#include <${path}>" text "${text}")
    endforeach()
    installed_header(path ${header})
    file(WRITE ${stage}/${path} "${text}")
endforeach()
cmake_path(ABSOLUTE_PATH MC_INCLUDEDIR BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}" OUTPUT_VARIABLE include_folder)
file(INSTALL DESTINATION "${include_folder}" TYPE DIRECTORY FILES ${stage}/)
file(REMOVE_RECURSE ${stage})
