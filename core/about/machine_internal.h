/* Functions of machine.c for tests. */
#ifndef MC_ABOUT_MACHINE_INTERNAL_H
#define MC_ABOUT_MACHINE_INTERNAL_H

#include "core/about/about.h"

/* Copies the driver's version from the first line of /proc/driver/nvidia/version: the first word
 * that is a number with points; "" if there is none. */
void mc_driver_number(const char *line, char number[MC_ABOUT_TEXT]);

#endif
