/* Prompts of a file: a text a line, or a key of JSON Lines; and whether text is UTF-8. */
#ifndef MC_TOOLS_PROMPT_FILE_H
#define MC_TOOLS_PROMPT_FILE_H

#include "core/modelcenter.h"

typedef struct prompt_file {
    char **texts; /* (count) */
    size_t count, room;
} prompt_file;

/* Whether the file's name says that it holds JSON Lines. */
bool prompt_file_is_json(const char *path);
/* Reads all of it; "-" is stdin: JSON Lines where the first line is an object with the key, else a
 * prompt a line. `key` is where an object of JSON Lines has its
 * prompt, "a.b" for key "b" of the object at "a". False after an error, which is on stderr or on
 * the context. */
bool prompt_file_read(prompt_file *f, mc_context *ctx, const char *path, const char *key);
void prompt_file_release(prompt_file *f);

bool is_utf8(const char *string);

#endif
