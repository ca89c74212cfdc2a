/* What this build of the library is, and what it finds on the machine that it runs on: for
 * `modelcenter --version`, `modelcenter doctor`, and reports of faults.
 *
 *     printf("%s, commit %s of %s\n", mc_version(), mc_build_commit(), mc_build_date());
 *
 * Nothing here fails because something is missing: that is what is reported. No function asks a
 * network; mc_hub_reach (core/hub/hub.h) does. Strings in the structs are the caller's copies, the
 * `const char *` among them constants of the library.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_ABOUT_ABOUT_H
#define MC_ABOUT_ABOUT_H

#include <stdbool.h>
#include <stdint.h>
#include "core/base/status.h"

enum { MC_ABOUT_TEXT = 128, MC_ABOUT_PATH = 1024 };

/* The commit that the library was built from, 12 hexadecimal digits, with "+" after them where
 * files of the repository had been changed; and the commit's date, YYYY-MM-DD. "unknown" where
 * sources without git's history, or without git, were built. */
MC_API const char *mc_build_commit(void);
MC_API const char *mc_build_date(void);

/* A part that a build of the library may have or not, and the foreign library it stands on. */
typedef struct mc_part {
    const char *name;     /* "oneDNN" */
    const char *use;      /* what it is for: "faster matrix products on x86" */
    const char *to_build; /* packages of Debian that the build lacked, where it is not built in */
    const char *to_run;   /* that hold the library, where it is built in and not found */
    bool built;           /* this build has the part */
    bool found;           /* its library is loaded or can be: the part works */
    bool needs_gpu;       /* it is of use with an NVIDIA GPU only, */
    bool several_gpus;    /* or with several */
    char version[MC_ABOUT_TEXT]; /* of the library that was found; "": unknown */
    char path[MC_ABOUT_PATH];    /* of that library's file; "": unknown */
} mc_part;

/* Lists the parts, the most important first, `room` of them at most, with what was built. Returns
 * how many there are. Nothing is looked for: found, version and path are left unset. */
MC_API int mc_parts(mc_part *parts, int room);
/* Looks for the part's library, as the part itself would, and sets found, version and path. */
MC_API void mc_part_look(mc_part *part);

/* The machine, as this process may use it. */
typedef struct mc_machine {
    char processor[MC_ABOUT_TEXT]; /* its name; "": unknown */
    char kernels[MC_ABOUT_TEXT];   /* the CPU's kernels: "avx512"; "" after a problem */
    char products[MC_ABOUT_TEXT];  /* what multiplies matrices: "onednn", "cblas" */
    char problem[512];             /* why the CPU device does not open; "": it does */
    int cores;                     /* that the process may run on */
    int threads;                   /* of the CPU's kernels */
    uint64_t memory;               /* bytes in all; 0: unknown */
    uint64_t memory_left;          /* that the process could still have, limits included */
    char driver[MC_ABOUT_TEXT];    /* NVIDIA's: "550.54.15 (CUDA 12.4)"; "": none */
} mc_machine;

/* Fills *machine (NULL: does nothing); what cannot be found out is left 0 or "". */
MC_API void mc_machine_read(mc_machine *machine);

/* One GPU of the machine, in CUDA's order. */
typedef struct mc_gpu {
    char name[MC_ABOUT_TEXT];
    uint64_t memory;  /* bytes in all */
    int major, minor; /* compute capability */
} mc_gpu;

/* Describes the NVIDIA GPUs that the driver shows, `room` of them at most, whether or not this
 * build has the CUDA device. Returns how many there are; 0 without a driver. */
MC_API int mc_gpus(mc_gpu *gpus, int room);

/* The folder in which tuning results and plans are kept (MC_CACHE_DIR, else
 * $XDG_CACHE_HOME/modelcenter, else ~/.cache/modelcenter), which need not exist. Returns false, and
 * *path is "", where there is no such place. `size` is path's room. */
MC_API bool mc_cache_folder(char *path, int size);

#endif
