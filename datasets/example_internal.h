/* One input of a row as a model reads it, token by token. */
#ifndef MC_DATASETS_EXAMPLE_INTERNAL_H
#define MC_DATASETS_EXAMPLE_INTERNAL_H

#include "datasets/dataset_internal.h"

/* What is said of each token. */
typedef enum mc_token_lane {
    MC_LANE_IDS,
    MC_LANE_TYPES,   /* 0 in the first text, 1 in the pair */
    MC_LANE_MARKS,   /* CPM-1: 2 * span + context */
    MC_LANE_TARGETS, /* the token that its row has to give; MC_NO_LABEL: none */
} mc_token_lane;
enum { MC_LANES = MC_LANE_TARGETS + 1 };

/* The stacks of a model that tokens go to. A decoder that is the only stack reads as the first. */
enum { MC_READER, MC_WRITER, MC_STACKS };

/* Which lanes of which stack a dataset's inputs have: bit 1 << lane. 0: no such stack. */
unsigned mc_example_lanes(const mc_dataset *dataset, int stack);
/* Most tokens of an input on a stack. */
int mc_example_limit(const mc_dataset *dataset, int stack);

typedef struct mc_tokens {
    int32_t *lane[MC_LANES]; /* (count) of those that there are */
    size_t count, capacity;
} mc_tokens;

/* Starts as { 0 }; its arrays grow and stay. */
typedef struct mc_example {
    mc_tokens stack[MC_STACKS];
    int32_t answer_row; /* of ANSWER: the token, of the last stack, at which the answer is read */
    mc_encoding text, second;
} mc_example;

/* Makes the input `choice` of a row. Errors name its line. */
mc_status mc_example_make(mc_error *err, mc_example *example, const mc_dataset *dataset,
                          int64_t row, int choice);
void mc_example_release(mc_example *example);

#endif
