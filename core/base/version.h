/* The version of the headers; mc_version() returns the library's. CMake reads it from here.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_BASE_VERSION_H
#define MC_BASE_VERSION_H

#define MC_VERSION "0.1.0"
#define MC_VERSION_MAJOR 0
#define MC_VERSION_MINOR 1
#define MC_VERSION_PATCH 0

/* The binary interface of the headers. It grows with each release that requires programs to be
 * compiled again. Creating a context compares it with the library's. */
#define MC_API_VERSION 1

#endif
