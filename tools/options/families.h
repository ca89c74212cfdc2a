/* The families of models on the command line, from the library's list. */
#ifndef MC_TOOLS_FAMILIES_H
#define MC_TOOLS_FAMILIES_H

#include "tools/options/args.h"

/* Whether a family's models generate text; else prints an error that lists those that do. NULL, a
 * family that is not known yet, is not an error. */
bool family_can_generate(const args_spec *spec, const char *family);
/* "gpt2, t5, ...": the families that generate text. */
const char *families_that_generate(void);

#endif
