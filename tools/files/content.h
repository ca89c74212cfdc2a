/* What a folder or file of a model holds, as one number: the same wherever a copy of it lies. */
#ifndef MC_TOOLS_CONTENT_H
#define MC_TOOLS_CONTENT_H

#include "core/modelcenter.h"
#include <modelcenter/more.h>

/* 16 hexadecimal digits and a NUL; "": not known. */
typedef struct content {
    char text[17];
} content;

/* Of a file, or of a folder's model and tokenizer files (those that end in .json, .safetensors,
 * .bin, .pt, .txt or .model): names, sizes and bytes, of which a large file's are taken from 64
 * places. An identifier is looked up in the hub's cache, where nothing is downloaded. "" where
 * there is no such thing, and for NULL. */
content content_of(mc_context *ctx, const char *identifier, const char *revision);

#endif
