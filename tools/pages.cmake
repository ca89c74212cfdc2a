# Run by the build: writes the manual pages of the command TOOL, and the completion of bash and zsh, into
# FOLDER, where they lie as in an installed share/. COMPLETION is what that of bash ends in.
function(print file)
    execute_process(COMMAND ${TOOL} ${ARGN} OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
    file(WRITE "${FOLDER}/${file}" "${text}")
endfunction()

set(bash bash-completion/completions/modelcenter)
print(${bash} --help=bash)
file(READ "${FOLDER}/${bash}" text)
string(REGEX MATCH "_modelcenter_commands='([^']*)'" line "${text}")
string(REPLACE " " ";" commands "${CMAKE_MATCH_1}")
file(READ "${COMPLETION}" end)
file(APPEND "${FOLDER}/${bash}" "${end}")
print(zsh/site-functions/_modelcenter --help=zsh)

file(REMOVE_RECURSE "${FOLDER}/man")
print(man/man1/modelcenter.1 --help=man)
foreach(command ${commands})
    print(man/man1/modelcenter-${command}.1 ${command} --help=man)
endforeach()
file(TOUCH "${FOLDER}/pages")
