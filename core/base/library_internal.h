/* Libraries that are opened while a program runs. */
#ifndef MC_BASE_LIBRARY_INTERNAL_H
#define MC_BASE_LIBRARY_INTERNAL_H

/* Opens the first of the names, which end with NULL, that is there. It stays loaded. NULL: none. */
void *mc_library_open(const char *const *names);

#endif
