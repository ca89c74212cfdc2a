# Run by cpack between installing and packing: what Debian's packages have otherwise than an installation.
set(root ${CPACK_TEMPORARY_INSTALL_DIRECTORY})
set(usr ${root}/usr)

function(must)
    execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# All libraries are where the system looks for them.
file(GLOB programs ${usr}/bin/* ${usr}/lib/libmodelcenter.so.*.*.* ${usr}/lib/*/libmodelcenter.so.*.*.*)
foreach(program ${programs})
    file(RPATH_REMOVE FILE ${program})
endforeach()

# Where OpenBLAS is linked (cmake/dependencies.cmake), any flavour of it will do, of which the package
# libopenblas0 brings one more. dpkg-shlibdeps reads this, and cpack removes it.
file(WRITE ${root}/debian/shlibs.local
     "libopenblas 0 libopenblas0-openmp | libopenblas0-pthread | libopenblas0-serial | libopenblas0\n")

file(GLOB pages ${usr}/share/man/man1/*.1)
must(gzip -9n ${pages})
file(RENAME ${usr}/share/zsh/site-functions ${usr}/share/zsh/vendor-completions)

set(doc ${usr}/share/doc/modelcenter)
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC) # of SOURCE_DATE_EPOCH where that is set
file(WRITE ${doc}/changelog "modelcenter (${CPACK_PACKAGE_VERSION}) unstable; urgency=medium

  * What has changed is in CHANGELOG.md beside this file.

 -- ${CPACK_PACKAGE_CONTACT}  ${date}
")
must(gzip -9n ${doc}/changelog)
set(copyright "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: modelcenter.c

Files: *
Copyright: the authors of modelcenter.c
License: Apache-2.0
 On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.
")
if(EXISTS ${usr}/share/modelcenter/jieba.copyright)
    file(READ ${usr}/share/modelcenter/jieba.copyright jieba)
    string(REGEX REPLACE "\n\n" "\n.\n" jieba "${jieba}")
    string(REGEX REPLACE "\n([^\n])" "\n \\1" jieba "${jieba}")
    string(APPEND copyright "
Files: usr/share/modelcenter/jieba.bin
Copyright: 2012-2017 Sun Junyi
License: Expat
 ${jieba}")
endif()
file(WRITE ${doc}/copyright "${copyright}")
