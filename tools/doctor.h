/* What `modelcenter doctor` has found, and how it is printed. */
#ifndef MC_TOOLS_DOCTOR_H
#define MC_TOOLS_DOCTOR_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "core/about/about.h"
#include "core/hub/hub.h"

enum { DOCTOR_PARTS = 16, DOCTOR_GPUS = 16 };

/* A folder that holds files from one run to the next. */
typedef struct doctor_folder {
    char path[4096]; /* "": there is no such place */
    bool exists;
    bool writable;  /* it is, or it can be made */
    uint64_t bytes; /* of the files in it */
    uint64_t left;  /* free on its file system; 0: unknown */
    int models;     /* folders named models--... in it */
} doctor_folder;

/* A part that this build lacks, or that lacks its library. */
typedef struct doctor_missing {
    const mc_part *part;
    const char *packages; /* Debian's */
} doctor_missing;

typedef struct doctor_report {
    const char *version, *commit, *date;
    mc_part parts[DOCTOR_PARTS];
    int part_count;
    mc_machine machine;
    mc_gpu gpus[DOCTOR_GPUS];
    int gpu_count; /* may be more than are described */
    mc_hub_state hub;
    doctor_folder models, tuning;
    doctor_missing missing[DOCTOR_PARTS];
    int missing_count;
    bool rebuild;        /* some of it takes a new build, too */
    bool asked, reached; /* the hub was asked; it answered */
    char answer[512];    /* why it did not */
    bool usable;
} doctor_report;

/* Describes a folder, without making it. */
void doctor_look_into(doctor_folder *folder, const char *path);
/* Lists what is missing: parts that this machine has a use for and that do not work. */
void doctor_find_missing(doctor_report *report);
/* Prints it: for people; as one JSON object. */
void doctor_print(FILE *out, const doctor_report *report);
void doctor_print_json(FILE *out, const doctor_report *report);

#endif
