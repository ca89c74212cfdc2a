/* What the kinds of objectives share: their table, and numbers drawn for a sequence. */
#ifndef MC_DATASETS_LM_OBJECTIVE_INTERNAL_H
#define MC_DATASETS_LM_OBJECTIVE_INTERNAL_H

#include "core/base/context_internal.h"
#include "core/base/memory_internal.h"
#include "datasets/objective.h"

/* Numbers that depend on a key and how many were drawn alone. */
typedef struct mc_draw {
    uint64_t key, count;
} mc_draw;

/* For the sequence at a place of an epoch. */
mc_draw mc_draw_of(uint64_t seed, int64_t epoch, int64_t place);
/* From 0 to n - 1, n > 0. */
int64_t mc_draw_below(mc_draw *draw, int64_t n);
/* Whether something of this probability happens. */
bool mc_draw_happens(mc_draw *draw, double probability);

/* Where a sequence is made: its window, its numbers, and its part of each field (or NULL). */
typedef struct mc_objective_row {
    const int32_t *window, *next; /* (window) tokens, and those that follow each */
    const int32_t *elsewhere;     /* (window) of another place; NULL: none */
    mc_draw draw;
    int32_t first_row; /* of its hidden states in the batch */
    int32_t *field[MC_FIELDS];
} mc_objective_row;

typedef struct mc_objective_kind_table {
    /* Checks what the kind takes of the options; 0 after an error. */
    int (*window)(mc_context *ctx, const mc_objective_options *o);
    int (*width)(const mc_objective_options *o, mc_objective_field field);
    /* Fills a row. `scratch` is i32 (2 * window). */
    void (*make)(const mc_objective *objective, const mc_objective_row *row, int32_t *scratch);
} mc_objective_kind_table;

extern const mc_objective_kind_table mc_objective_next_token, mc_objective_masked,
    mc_objective_spans, mc_objective_context;

struct mc_objective {
    mc_owned owned;
    mc_context *ctx;
    mc_lm_loader *loader, *elsewhere;
    mc_objective_options o; /* with defaults filled in */
    const mc_objective_kind_table *kind;
    int window, batch_size;
    int width[MC_FIELDS];
    int32_t *buffer[MC_FIELDS]; /* (batch_size, width) */
    int32_t *scratch;           /* (2 * window) */
    uint8_t *continues;         /* (words_end) whether a token continues a word; NULL: not asked */
    int32_t words_end;
    uint64_t elsewhere_seed;
    int64_t empty; /* sequences in a row of which nothing counted */
    mc_objective_batch batch;
};

/* Options with their defaults in place of zeros. */
mc_objective_options mc_objective_defaults(const mc_objective_options *given);
/* Sets `objective: ...` as an error and returns 0. */
int mc_objective_refuse(mc_context *ctx, const char *format, ...) MC_PRINTF(2, 3);
/* Whether the token has an id; otherwise the error. */
bool mc_objective_has(mc_context *ctx, int32_t id, const char *what);

#endif
