/* The families of models on the command line, from the library's list. */
#ifndef MC_TOOLS_FAMILIES_H
#define MC_TOOLS_FAMILIES_H

#include "tools/args.h"

/* What a command does with a model. */
typedef enum family_use {
    FAMILY_GENERATES, /* generate */
} family_use;

/* Their names, NULL after the last, for ARGS_CHOICE. */
const char *const *family_names(void);
/* For .offers: whether family number `family` can be used so. */
bool family_generates(int family);
/* Whether family number `family` can be used so; else prints an error that lists those that can. */
bool family_can(const args_spec *spec, int family, family_use use);

#endif
