/* What tests look at of machine.c. */
#ifndef MC_ABOUT_MACHINE_INTERNAL_H
#define MC_ABOUT_MACHINE_INTERNAL_H

#include "core/about/about.h"

/* Copies the driver's version out of the first line of /proc/driver/nvidia/version, which is the
 * first word that is a number with points; "" if it has no such word. */
void mc_driver_number(const char *line, char number[MC_ABOUT_TEXT]);

#endif
