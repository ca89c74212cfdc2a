/* Files of a tokenizer's folder that lie in memory, since one other file has them inside: they are
 * read by paths below that file's own, "model.gguf/tokenizer.json". */
#ifndef MC_TOKENIZERS_INSIDE_INTERNAL_H
#define MC_TOKENIZERS_INSIDE_INTERNAL_H

#include <cjson/cJSON.h>
#include "core/base/bytes_internal.h"
#include "core/base/file_internal.h"

enum { MC_INSIDE_FILES = 4 };

typedef struct mc_inside {
    struct mc_inside_file {
        const char *name; /* a constant */
        mc_bytes bytes;
    } files[MC_INSIDE_FILES];
    int count;
} mc_inside;

/* Adds a copy of the bytes. False when memory is out. */
bool mc_inside_add(mc_inside *inside, const char *name, const void *bytes, size_t size);
void mc_inside_release(mc_inside *inside);

/* mc_path_is_file, mc_file_read and mc_json_read_object; `inside` NULL: of files on disk. */
bool mc_inside_is_file(const mc_inside *inside, const char *path);
char *mc_inside_read(const mc_inside *inside, mc_error *err, const char *path, size_t limit,
                     size_t *size);
cJSON *mc_inside_read_object(const mc_inside *inside, mc_error *err, const char *path,
                             size_t limit);

#endif
