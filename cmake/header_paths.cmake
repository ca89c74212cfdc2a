# Where public headers are installed below modelcenter/: what modelcenter.h includes, directly or not, is
# the promised interface and stands there under its path; all others stand in more/.
cmake_minimum_required(VERSION 3.25) # a script has no policies of its own
set(promised_headers "")
set(todo core/modelcenter.h)
while(todo)
    list(POP_FRONT todo header)
    file(STRINGS ${MC_SOURCE}/${header} lines REGEX "^#include \"")
    foreach(line ${lines})
        string(REGEX REPLACE ".*\"(.*)\".*" "\\1" included "${line}")
        if(NOT included IN_LIST promised_headers)
            list(APPEND promised_headers ${included})
            list(APPEND todo ${included})
        endif()
    endforeach()
endwhile()

# Sets `result` to where the public header `header`, a path from the root of the sources, is installed.
function(installed_header result header)
    if(header MATCHES "^core/(modelcenter.*)$")
        set(path ${CMAKE_MATCH_1})
    elseif(header IN_LIST promised_headers)
        set(path modelcenter/${header})
    else()
        set(path modelcenter/more/${header})
    endif()
    set(${result} ${path} PARENT_SCOPE)
endfunction()
