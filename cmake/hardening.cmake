# What makes a flaw in memory harder to use, for all of our own code: canaries, checked copies, stacks
# that cannot jump over their guard page, CET, and tables of symbols that are read-only once a program
# runs. Each where the compiler has it. Sanitizers have checks of their own.
include(CheckCCompilerFlag)
include(CheckLinkerFlag)
set(MC_HARDENING "") # what is on, for the test of the built files
if(NOT MC_SANITIZE AND NOT MC_SANITIZE_THREADS AND NOT MC_FUZZ)
    foreach(flag -fstack-protector-strong -fstack-clash-protection -fcf-protection)
        string(MAKE_C_IDENTIFIER "MC_HAVE${flag}" known)
        check_c_compiler_flag(${flag} ${known})
        if(${known})
            add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:${flag}>")
            list(APPEND MC_HARDENING ${flag})
        endif()
    endforeach()
    # without optimisation it is a warning, and does nothing
    add_compile_options("$<$<AND:$<COMPILE_LANGUAGE:C,CXX>,$<CONFIG:Release,RelWithDebInfo,MinSizeRel>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=2>")
    if(CMAKE_BUILD_TYPE MATCHES "Rel")
        list(APPEND MC_HARDENING -D_FORTIFY_SOURCE=2)
    endif()
endif()
check_linker_flag(C "-Wl,-z,relro,-z,now" MC_HAVE_RELRO)
if(MC_HAVE_RELRO)
    add_link_options(-Wl,-z,relro,-z,now)
    list(APPEND MC_HARDENING -z,relro,-z,now)
endif()
