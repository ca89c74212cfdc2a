/* The secret of a job: a process that knows it can be a rank (control_proof.c).
 *
 * The sources of a job's secret, in this order:
 *
 *   MC_JOB_SECRET_FILE  a file that its owner alone may read: the text in it
 *   MC_JOB_SECRET       the text itself
 *   one host            random bytes that rank 0 writes to a file, where the other ranks look
 *   MPI                 random bytes that rank 0 broadcasts (world.c)
 *
 * The file of one host is in XDG_RUNTIME_DIR if that is a private folder: it belongs to this user,
 * and no other user has access. Otherwise it is in the folder modelcenter-UID of TMPDIR or /tmp,
 * which is created if missing and must be private. Its name contains the job's number and the
 * control port. Rank 0 writes it once it listens on that port, which no other job of the host can
 * use then. It replaces an existing file of a killed job, or a link. It removes the file when all
 * ranks have come, or when it gives up.
 *
 * Error messages name variables, files and modes, never a byte of the secret. */
#ifndef MC_DIST_JOB_SECRET_INTERNAL_H
#define MC_DIST_JOB_SECRET_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "core/base/error_internal.h"
#include "core/base/file_internal.h"

enum { MC_SECRET_MIN = 32, MC_SECRET_MAX = 256 }; /* bytes */

typedef struct mc_job_secret {
    uint8_t bytes[MC_SECRET_MAX];
    size_t size; /* 0: no secret */
} mc_job_secret;

/* Reads the two variables; no secret if neither is set. False with the error set: both are set, the
 * text has too few or too many bytes, or other users may read the file. */
bool mc_job_secret_given(mc_error *error, mc_job_secret *secret);
/* Sets the error for a job on several hosts without a secret: it explains how to create one. */
void mc_job_secret_missing(mc_error *error);
/* MC_SECRET_MIN random bytes. */
bool mc_job_secret_random(mc_error *error, mc_job_secret *secret);
void mc_job_secret_wipe(mc_job_secret *secret);

/* The file of one host. */
typedef struct mc_secret_file {
    char folder[MC_PATH_MAX], name[64];
} mc_secret_file;

/* Finds the folder. False with the error set where it is not private. */
bool mc_secret_file_init(mc_error *error, mc_secret_file *file, uint64_t job, int port);
bool mc_secret_file_write(mc_error *error, const mc_secret_file *file, const mc_job_secret *secret);
/* Reads the file. False, with `why`, if it is missing or not as rank 0 of this user writes it. */
bool mc_secret_file_read(const mc_secret_file *file, mc_job_secret *secret, char *why, size_t room);
void mc_secret_file_remove(const mc_secret_file *file);

#endif
