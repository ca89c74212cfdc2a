/* Batches of token ids as models take them: packed, without padding. */
#ifndef MC_MODELS_PACKING_INTERNAL_H
#define MC_MODELS_PACKING_INTERNAL_H

#include "core/autograd/tape_internal.h"

typedef struct mc_packed {
    mc_tensor *ids;       /* (capacity) i32 or i64, with lengths */
    mc_tensor *positions; /* (capacity) i32, from 0 in every sequence */
    mc_tensor *key_mask;  /* (total) u8, NULL where there was no mask */
    const mc_lengths *lengths;
} mc_packed;

/* Packs ids that are (batch, longest) or packed already, with lengths given, carried by the ids, or
 * none (whole rows), and a mask or NULL. What can be used as it is is not copied. `model` names the
 * model in errors: shapes that don't fit, a sequence longer than `limit`. */
bool mc_pack_batch(mc_tape *t, const char *model, mc_tensor *ids, const mc_lengths *lengths,
                   mc_tensor *mask, int64_t limit, mc_packed *out);
/* One more integer tensor of the ids' shape. */
mc_tensor *mc_pack_tokens(mc_tape *t, const char *model, const char *what, mc_tensor *x,
                          const mc_lengths *lengths);
/* Positions that begin at first[i] in sequence i; first NULL: at 0. */
mc_tensor *mc_pack_positions(mc_tape *t, const mc_lengths *lengths, const int32_t *first);
/* Positions of the tokens that key_mask (u8) shows, from `first` on in every sequence; first - 1
 * for hidden ones. */
mc_tensor *mc_pack_seen(mc_tape *t, const mc_lengths *lengths, mc_tensor *key_mask, int32_t first);
/* Element i of integers on the host. */
int64_t mc_integer_at(mc_dtype dtype, const void *data, int64_t i);
/* Whether x is a (batch, longest) or packed tensor of indices with these lengths, or one that has
 * room for more where lengths are refilled; an error if not. */
bool mc_pack_check(mc_tape *t, const char *model, const char *what, const mc_tensor *x,
                   const mc_lengths *lengths);

#endif
