/* The secret of a job: a process that knows it can be a rank (control_proof.c).
 *
 * Where a job has it from, in this order:
 *
 *   MC_JOB_SECRET_FILE  a file that its owner alone may read: the text in it
 *   MC_JOB_SECRET       the text itself
 *   one host            random bytes that rank 0 writes to a file, where the other ranks look
 *   MPI                 random bytes that rank 0 broadcasts (world.c)
 *
 * The file of one host lies in XDG_RUNTIME_DIR where that is a private folder: it belongs to this
 * user, and no other has rights in it. Else it lies in TMPDIR or /tmp, in a folder modelcenter-UID,
 * which is made where it is missing and has to be private. Its name follows from the job's number
 * and the control port. Rank 0 writes it once it listens on that port, which no other job of the
 * host has then, and replaces whatever has the name: the file of a job that was killed, or a link.
 * It removes the file when all ranks have come, or when it gives up.
 *
 * Texts of errors name variables, files and modes, never a byte of the secret. */
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

/* Reads the two variables; no secret where neither is set. False with the error set: both are set,
 * the text has too few or too many bytes, or others than its owner may read the file. */
bool mc_job_secret_given(mc_error *error, mc_job_secret *secret);
/* Sets the error of a job on several hosts that has no secret: how to make one. */
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
/* False where it is not there, or is not what rank 0 of this user writes: `why`. */
bool mc_secret_file_read(const mc_secret_file *file, mc_job_secret *secret, char *why, size_t room);
void mc_secret_file_remove(const mc_secret_file *file);

#endif
