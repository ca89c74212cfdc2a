# The SentencePiece library (C++), for models of its other types than Unigram and for training
# tokenizers: AUTO where it is found, ON (an error where not), or OFF.
set(MC_ENABLE_SENTENCEPIECE AUTO CACHE STRING "the SentencePiece library: AUTO (where found), ON, OFF")
set_property(CACHE MC_ENABLE_SENTENCEPIECE PROPERTY STRINGS AUTO ON OFF)

set(MC_HAVE_SENTENCEPIECE OFF)
if(MC_ENABLE_SENTENCEPIECE AND NOT MC_FUZZ) # fuzz targets are about readers of our own
    include(CheckLanguage)
    check_language(CXX)
    find_path(SENTENCEPIECE_INCLUDE_DIR sentencepiece_trainer.h)
    find_library(SENTENCEPIECE_LIBRARY sentencepiece)
    find_library(SENTENCEPIECE_TRAIN_LIBRARY sentencepiece_train)
    if(CMAKE_CXX_COMPILER AND SENTENCEPIECE_INCLUDE_DIR AND SENTENCEPIECE_LIBRARY
       AND SENTENCEPIECE_TRAIN_LIBRARY)
        set(MC_HAVE_SENTENCEPIECE ON)
    elseif(NOT MC_ENABLE_SENTENCEPIECE STREQUAL "AUTO")
        message(FATAL_ERROR "MC_ENABLE_SENTENCEPIECE=${MC_ENABLE_SENTENCEPIECE}: there is no C++ "
                            "compiler, or no SentencePiece (libsentencepiece-dev)")
    endif()
endif()

if(MC_HAVE_SENTENCEPIECE)
    enable_language(CXX)
    set(CMAKE_CXX_STANDARD 17)
    set(CMAKE_CXX_STANDARD_REQUIRED ON)
    target_compile_definitions(mc_dependencies INTERFACE MC_HAVE_SENTENCEPIECE)
    # programs that link a static library are linked as C, so its C++ runtime has to be named
    target_link_libraries(mc_dependencies INTERFACE ${SENTENCEPIECE_LIBRARY}
                          ${SENTENCEPIECE_TRAIN_LIBRARY} stdc++)
    list(APPEND mc_link_names ${SENTENCEPIECE_LIBRARY} ${SENTENCEPIECE_TRAIN_LIBRARY} stdc++)
    message(STATUS "SentencePiece: ${SENTENCEPIECE_LIBRARY}")
else()
    message(STATUS "SentencePiece: not built")
endif()
