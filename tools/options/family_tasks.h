/* Which families of models have which benchmarks, as help texts list it. */
#ifndef MC_TOOLS_FAMILY_TASKS_H
#define MC_TOOLS_FAMILY_TASKS_H

#include "tools/files/text.h"

/* Adds a line a benchmark: its name, and the families that have a form of it. */
void family_tasks_add(text *out);
/* The same after other details of a command, as one text that is kept for the process. */
const char *family_tasks_after(const char *details);

#endif
