/* What generation needs of a model, and what its files share. */
#ifndef MC_MODELS_GENERATE_INTERNAL_H
#define MC_MODELS_GENERATE_INTERNAL_H

#include "core/base/context_internal.h"
#include "core/device/device_internal.h"
#include "core/tensor/tensor_internal.h"
#include "models/generate/generate.h"

/* What chooses tokens on the device, and keeps what the next step needs there. */
typedef struct mc_chooser {
    mc_choose_call call; /* its pointers are to device memory */
    mc_tensor *rows;     /* i32 (MC_ROW_FIELDS, stride): call.state */
    void *seen, *rules, *eos, *chosen;
    size_t seen_bytes, rules_bytes, eos_bytes, chosen_bytes;
    /* Of a beam search: the candidates of each row in place of its choice. Prompt i becomes
     * sequence i * spread, and `table` is mc_kv_cache.table. Zeros else. */
    mc_best_call best;
    mc_tensor *table;
    int spread;
} mc_chooser;

/* A model that answers prompts, with its cache. The functions return false after an error on the
 * context. */
typedef struct mc_decoder {
    mc_context *ctx;
    const char *model; /* in errors: "GPT-2" */
    int64_t vocab, positions;
    int32_t before;     /* tokens of the model's own in the cache before every sequence's */
    const int32_t *eos; /* the model's own */
    int eos_count;
    void *state;
    /* Makes room for `sequences` sequences of up to `capacity` tokens; none is in use. */
    bool (*begin)(void *state, int sequences, int64_t capacity);
    /* Runs the prompts: lengths[i] tokens, packed in `ids`, for sequence i < count. Chooses what
     * follows each. Does not wait. */
    bool (*choose)(void *state, const int32_t *ids, const int32_t *lengths, int count,
                   mc_chooser *chooser);
    /* Runs the chooser's rows, one token each, and chooses again. Does not wait. */
    bool (*choose_next)(void *state, mc_chooser *chooser);
    /* Writes where a sequence lies to its row: MC_ROW_FIRST, _MEMORY and _MEMORY_LENGTH. */
    void (*place)(void *state, int sequence, int32_t *row, int64_t stride);
    /* Frees all, the state too. Accepts a NULL state. */
    void (*end)(void *state);
} mc_decoder;

/* Fills defaults in; an error for options that make no sense. */
bool mc_generate_read_options(const mc_decoder *decoder, const mc_generate_options *given,
                              mc_generate_options *options);
mc_sampling mc_sampling_of(const mc_generate_options *options);
/* New tokens of an answer at most. */
int mc_most_new(const mc_generate_options *options, int prompt_length);
/* Whether prompts are there and hold ids of the vocabulary; an error if not. */
bool mc_check_prompts(const mc_decoder *decoder, const int32_t *const *prompts, const int *lengths,
                      int count);
/* That their answers have room, too. */
bool mc_check_lengths(const mc_decoder *decoder, const mc_generate_options *options,
                      const int *lengths, int count);
/* Takes the decoder over, also on failure (NULL). Checks prompts and options. */
mc_generator *mc_generator_new(const mc_decoder *decoder, const int32_t *const *prompts,
                               const int *lengths, int count, const mc_generate_options *options);
mc_generation *mc_generate(const mc_decoder *decoder, const int32_t *const *prompts,
                           const int *lengths, int count, const mc_generate_options *options);

/* ---- answers in the making ------------------------------------------------------------------- */

typedef struct mc_answer {
    int32_t *ids; /* prompt and answer */
    int prompt, length;
    int most;         /* new tokens at most */
    float *log_probs; /* (most) of the new tokens */
    double score;
    bool done;
} mc_answer;

/* Steps that were launched together, whose tokens come to the host together. */
typedef struct mc_step_group {
    int first, end; /* steps */
    uint64_t ticket;
} mc_step_group;

enum {
    MC_GROUP_STEPS = 8, /* of a group on a GPU; where the host computes it is 1 */
    MC_GROUPS = 2       /* on their way at once */
};

struct mc_generator {
    mc_owned owned;
    mc_context *ctx;
    mc_decoder decoder;
    /* With defaults filled in; max_new_tokens is the most of all answers. */
    mc_generate_options options;
    int count;          /* of answers; while beams are searched of prompts */
    mc_answer *answers; /* (count) */
    mc_answer *found;   /* (count * num_return_sequences) of a beam search; else NULL */
    int rows;           /* of the decoder in use; room for count * num_beams */
    int steps;          /* made so far, or launched */
    /* tokens chosen on the device: run.c */
    mc_chooser chooser;
    mc_chosen *chosen;              /* (kept, count): the chooser's, pinned memory */
    int32_t *row_state;             /* (MC_ROW_FIELDS, count): what rows are set to */
    mc_step_group group[MC_GROUPS]; /* the oldest first */
    int groups;
    int read, given;      /* steps that have come to the host, and to the caller */
    int32_t *row_lengths; /* (count) of the prompts */
    /* answers that join and leave: generator.c; NULL else */
    struct mc_batch *batch;
};
void mc_batch_free(struct mc_batch *batch); /* NULL allowed */

/* The prompt that answer `number` is to. */
int mc_prompt_of(const mc_generator *g, int number);
/* Whether answer `number` ends with its new token ids[count - 1]. */
bool mc_answer_ends(const mc_generator *g, int number, const int32_t *ids, int count);
/* The prompts, packed; for mc_free. Fills g->row_lengths. NULL after an error. */
int32_t *mc_pack_prompts(mc_generator *g);
/* Searches with num_beams; leaves the best answers in g->found. */
bool mc_beam_search(mc_generator *g);

/* ---- tokens chosen on the device ------------------------------------------------------------- */

bool mc_run_init(mc_generator *g);
void mc_run_release(mc_generator *g);
/* Takes in the tokens of further steps, so that g->read grows, and keeps the device busy. False
 * when all answers have ended, and after an error. */
bool mc_run_more(mc_generator *g);

#endif
