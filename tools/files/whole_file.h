/* A small file that is written whole, or not at all. */
#ifndef MC_TOOLS_WHOLE_FILE_H
#define MC_TOOLS_WHOLE_FILE_H

#include "core/modelcenter.h"
#include <modelcenter/more.h>

/* Writes a text, with a line break after it, in place of what the path names (core/base/aside.h).
 */
mc_status whole_file_write(mc_context *ctx, const char *path, const char *text);

#endif
