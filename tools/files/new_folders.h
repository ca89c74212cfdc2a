/* Folders that a command makes for its output, and removes if nothing comes of it. */
#ifndef MC_TOOLS_NEW_FOLDERS_H
#define MC_TOOLS_NEW_FOLDERS_H

#include <stddef.h>

enum { NEW_FOLDERS_PATH = 4096 };

/* mkdir -p. 0, or an errno after removing what was made. *made is the length of the first folder of
 * `path` that was missing, 0 if none was. */
int new_folders_make(const char *path, size_t *made);
/* Removes these folders, the innermost first, as far as they are empty. */
void new_folders_remove(const char *path, size_t made);

#endif
