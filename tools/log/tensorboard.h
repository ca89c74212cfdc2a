/* TensorBoard event files: scalars over steps, in the form that TensorBoard reads.
 *
 * An event file is a row of records, each `u64 length | u32 masked crc32c of it | data | u32 masked
 * crc32c of the data`, little-endian; the data is an Event message of protocol buffers. The first
 * event carries the file version, "brain.Event:2", the second is a session's start: a reader drops
 * the steps that a later file's start covers, but only if it has seen a start before it. Every
 * record is written whole or not at all. */
#ifndef MC_TOOLS_TENSORBOARD_H
#define MC_TOOLS_TENSORBOARD_H

#include <stddef.h>
#include <stdint.h>
#include "tools/files/append_file.h"

typedef struct tensorboard {
    append_file file; /* its status and message are the event file's */
} tensorboard;

typedef struct tensorboard_scalar {
    const char *tag; /* "train/loss"; at most 255 bytes */
    double value;    /* stored as f32; may be NaN or infinite */
} tensorboard_scalar;

/* Starts `<folder>/events.out.tfevents.<time>.<host>.<pid>`, making the folder. With
 * `resume_step` > 0 the run goes on after that step: TensorBoard drops what older files of the
 * folder hold of later steps. A run that starts anew (0) takes the place of all that they hold.
 * MC_ERR_IO, MC_ERR_ARGUMENT (a path too long). */
mc_status tensorboard_init(tensorboard *board, const char *folder, int64_t resume_step);

/* One event with `count` scalars (at most 32) of a step, stamped with the present time. */
mc_status tensorboard_write(tensorboard *board, int64_t step, const tensorboard_scalar *scalars,
                            size_t count);
mc_status tensorboard_release(tensorboard *board);

/* CRC-32C (Castagnoli) of a byte string, and the form in which event files store it. */
uint32_t tensorboard_crc32c(const void *data, size_t size);
uint32_t tensorboard_masked_crc32c(const void *data, size_t size);

#endif
