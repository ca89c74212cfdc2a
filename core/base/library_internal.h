/* Shared libraries that are loaded at run time. */
#ifndef MC_BASE_LIBRARY_INTERNAL_H
#define MC_BASE_LIBRARY_INTERNAL_H

/* Loads the first that opens of a NULL-terminated list of names. It stays loaded. NULL: none. */
void *mc_library_open(const char *const *names);

#endif
