/* Between persistent_plan.c, which plans where steps find their inputs, and persistent.cu, which
 * runs them. */
#ifndef MC_DEVICE_HOPPER_PERSISTENT_PLAN_INTERNAL_H
#define MC_DEVICE_HOPPER_PERSISTENT_PLAN_INTERNAL_H

#include "core/device/hopper/decode/persistent_internal.h"
#ifdef __cplusplus
extern "C" {
#endif

enum {
    MC_PERSISTENT_THREADS = 320,  /* of a block that compute */
    MC_PERSISTENT_SEGMENT = 1600, /* terms of a tile's segment at most */
    MC_PERSISTENT_KEYS = 2,       /* that a thread loads at the same time */
    MC_PERSISTENT_PARTS = 4,      /* of the keys of a (sequence, head) at most */
    MC_PERSISTENT_SLOT_WORDS = MC_PERSISTENT_ROWS * MC_PERSISTENT_WIDEST,
};

/* Words of a part of attention, in the slot after the others: head_dim numbers, the largest score
 * and the sum of weights, two words each. */
MC_ANYWHERE int mc_persistent_part_words(int head_dim) { return 2 * head_dim + 4; }

/* Plans the list's steps for so many blocks. `together`: one launch runs all of them; otherwise a
 * step that waits for others begins a new launch. */
void mc_persistent_plan(mc_persistent_list *list, int blocks, bool together);

/* Divides weights among so many blocks and into tiles of 8 segments (16 of 8-bit weights), each of
 * at most so many terms. A segment is a row, or a half or quarter of one (2^split in a row), or the
 * same of one of the `chunks` of a longer row. A weight's first rows are those of the block at
 * `turn` eighths of all, so that the remaining rows are not always the same blocks'. Returns the
 * bytes of the largest tile. */
int mc_persistent_divide(mc_persistent_list *list, int blocks, int terms);

/* The end of the launch that begins with step `first`. */
int mc_persistent_range(const mc_persistent_list *list, int first, bool together);

/* persistent.cu: launches a list that was planned. */
mc_status mc_persistent_launch(mc_device *d, const mc_persistent_list *list, bool together);

#ifdef __cplusplus
}
#endif
#endif
