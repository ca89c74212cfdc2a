#include "core/base/library_internal.h"

#include <dlfcn.h>
#include <stddef.h>

void *mc_library_open(const char *const *names)
{
    void *library = NULL;
    for (; *names && !library; names++)
        library = dlopen(*names, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    return library;
}
