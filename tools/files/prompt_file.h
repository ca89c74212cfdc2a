/* Prompts of a file: a text a line, or a key of JSON Lines; and whether text is UTF-8. */
#ifndef MC_TOOLS_PROMPT_FILE_H
#define MC_TOOLS_PROMPT_FILE_H

#include "core/modelcenter.h"
#include <modelcenter/more.h>

/* UTF-8 that may hold NUL characters, and is followed by one more. */
typedef struct prompt_text {
    char *data;
    size_t size;
} prompt_text;

typedef struct prompt_file {
    prompt_text *texts; /* (count) */
    size_t count, room;
} prompt_file;

/* Whether the file's name says that it holds JSON: an object a line, or a list of objects. */
bool prompt_file_is_json(const char *path);
/* Reads all of it; "-" is stdin: JSON where the first line is an object with the key, or the whole
 * is a list whose first object has it; else a prompt a line. `key` is where an object has its
 * prompt, "a.b" for key "b" of the object at "a". False after an error, which is on stderr or on
 * the context. */
bool prompt_file_read(prompt_file *f, mc_context *ctx, const char *path, const char *key);
void prompt_file_release(prompt_file *f);

#endif
