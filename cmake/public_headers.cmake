# Run by an install: writes the public headers as they are installed into ${MC_STAGE}, modelcenter.h and
# the folder modelcenter/, and nothing else is put into the include path. In the sources they include
# one another from the root of the repository.
file(REMOVE_RECURSE ${MC_STAGE})
file(GLOB_RECURSE headers RELATIVE ${MC_SOURCE} ${MC_SOURCE}/core/*.h ${MC_SOURCE}/models/*.h
     ${MC_SOURCE}/tokenizers/*.h ${MC_SOURCE}/datasets/*.h)
list(FILTER headers EXCLUDE REGEX "_internal\\.h$|/(cpu|cuda|lm)/")
foreach(header ${headers})
    file(READ ${MC_SOURCE}/${header} text)
    string(REGEX REPLACE "#include \"((core|models|tokenizers|datasets)/[^\"]*)\""
           "#include <modelcenter/\\1>" text "${text}")
    if(header STREQUAL core/modelcenter.h)
        file(WRITE ${MC_STAGE}/modelcenter.h "${text}")
    else()
        file(WRITE ${MC_STAGE}/modelcenter/${header} "${text}")
    endif()
endforeach()
