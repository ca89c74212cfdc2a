/* modelcenter(1), and the scripts by which shells complete the command's words. Each command prints
 * its own page, and its part of a script, from its table (--help=man, --help=bash, --help=zsh);
 * here is what surrounds them. The build writes them into files: tools/CMakeLists.txt,
 * tools/pages.cmake. That of bash ends in tools/completion.bash. */
#ifndef MC_TOOLS_MANUAL_H
#define MC_TOOLS_MANUAL_H

#include "tools/options/args.h"
#include "tools/commands.h"

/* Prints it on stdout. Returns an exit code. */
int manual_print(args_form form, const command *commands, int count);

#endif
