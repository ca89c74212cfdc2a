/* The build of the library, and what it finds on the machine it runs on: for `modelcenter
 * --version`, `modelcenter doctor` and bug reports.
 *
 *     printf("%s, commit %s of %s\n", mc_version(), mc_build_commit(), mc_build_date());
 *
 * A missing part is never an error here, but part of the report. No function uses the network;
 * mc_hub_reach (core/hub/hub.h) does. Arrays in the structs are owned by the caller; `const char *`
 * members are constants of the library.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_ABOUT_ABOUT_H
#define MC_ABOUT_ABOUT_H

#include <stdbool.h>
#include <stdint.h>
#include "core/base/status.h"

enum { MC_ABOUT_TEXT = 128, MC_ABOUT_PATH = 1024 };

/* The commit that the library was built from, 12 hexadecimal digits, followed by "+" if files of
 * the repository had been changed; and the commit's date, YYYY-MM-DD. "unknown" if it was built
 * without git or without git's history. */
MC_API const char *mc_build_commit(void);
MC_API const char *mc_build_date(void);

/* An optional part of the library, and the external library that it uses. */
typedef struct mc_part {
    const char *name;     /* "oneDNN" */
    const char *use;      /* what it is for: "faster matrix products on x86" */
    const char *to_build; /* Debian packages that building the part needs, if it is not built in */
    const char *to_run;   /* Debian packages of the library, if the part is built in and the library
                             not found */
    bool built;           /* this build has the part */
    bool found;           /* its library is or can be loaded: the part works */
    bool needs_gpu;       /* useful only with an NVIDIA GPU, */
    bool several_gpus;    /* or with several */
    char version[MC_ABOUT_TEXT]; /* of the library that was found; "": unknown */
    char path[MC_ABOUT_PATH];    /* of that library's file; "": unknown */
} mc_part;

/* Lists at most `room` parts, the most important first, and whether they are built in. Returns the
 * number of all parts. Does not search for libraries: found, version and path stay unset. */
MC_API int mc_parts(mc_part *parts, int room);
/* Searches for the part's library, as the part itself would, and sets found, version and path. */
MC_API void mc_part_look(mc_part *part);

/* The machine, as this process may use it. */
typedef struct mc_machine {
    char processor[MC_ABOUT_TEXT]; /* its name; "": unknown */
    char kernels[MC_ABOUT_TEXT];   /* the CPU's kernels: "avx512"; "" after a problem */
    char products[MC_ABOUT_TEXT];  /* what multiplies matrices: "onednn", "cblas" */
    char problem[512];             /* why the CPU device cannot be opened; "": it can */
    int cores;                     /* cores that the process may run on */
    int threads;                   /* of the CPU's kernels */
    uint64_t memory;               /* bytes in all; 0: unknown */
    uint64_t memory_left;          /* that the process could still have, limits included */
    char driver[MC_ABOUT_TEXT];    /* NVIDIA's: "550.54.15 (CUDA 12.4)"; "": none */
} mc_machine;

/* Fills *machine (NULL: does nothing); unknown fields are 0 or "". */
MC_API void mc_machine_read(mc_machine *machine);

/* One GPU of the machine, in CUDA's order. */
typedef struct mc_gpu {
    char name[MC_ABOUT_TEXT];
    uint64_t memory;  /* bytes in all */
    int major, minor; /* compute capability */
} mc_gpu;

/* Describes at most `room` of the NVIDIA GPUs that the driver shows, even in a build without the
 * CUDA device. Returns the number of all GPUs; 0 without a driver. */
MC_API int mc_gpus(mc_gpu *gpus, int room);

/* The folder in which tuning results and plans are kept (MC_CACHE_DIR, else
 * $XDG_CACHE_HOME/modelcenter, else ~/.cache/modelcenter), which need not exist. If none of these
 * is set, returns false and sets path to "". `size` is the size of path. */
MC_API bool mc_cache_folder(char *path, int size);

#endif
