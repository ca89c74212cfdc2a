/* From logits to tokens: the arguments of the kernel choose_tokens, and its steps on the host.
 * Rules and order are those of Hugging Face's generate(): repetition penalty, temperature, top-k,
 * top-p. */
#ifndef MC_DEVICE_CHOOSE_INTERNAL_H
#define MC_DEVICE_CHOOSE_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "core/device/step_internal.h"

/* How a token is chosen. */
typedef struct mc_sampling {
    bool sample;              /* draw; else the most probable token, the first of equal ones */
    float temperature, top_p; /* above 0; top_p 1: all. Without effect unless `sample` */
    int32_t top_k;            /* 0: all. Without effect unless `sample` */
    float repetition_penalty; /* 1: none */
    uint64_t seed;
} mc_sampling;

/* How the tokens of one answer are chosen, and when it ends. */
typedef struct mc_answer_rules {
    mc_sampling how;
    int64_t place;           /* of its prompt: draws depend only on seed, place and step */
    int32_t eos_count, most; /* most: steps after which it ends */
} mc_answer_rules;

/* One choice, and its log-probability under the filtered distribution. */
typedef struct mc_chosen {
    int32_t token; /* or one of those below */
    float log_probability;
} mc_chosen;
enum {
    MC_CHOSEN_NOTHING = -1,   /* the answer has ended already */
    MC_CHOSEN_NOT_FINITE = -2 /* the logits are not finite; the answer ends here */
};

/* The state of each row of a running batch: i32 (MC_ROW_FIELDS, rows). A step of the model reads
 * the fields before MC_ROW_ANSWER, which choose_tokens writes for the next step. A row whose answer
 * has ended attends to no tokens: running it again is harmless, although others use its part of the
 * cache. Only its MC_ROW_TICK still changes. */
enum {
    MC_ROW_TOKEN,    /* the token to run next */
    MC_ROW_POSITION, /* its position in the sequence */
    MC_ROW_LENGTH,   /* tokens of the sequence in the cache, including it */
    MC_ROW_FIRST,    /* start of the sequence: mc_cached_attention's `first` */
    MC_ROW_MEMORY,   /* the same in an encoder's memory, and its number of rows */
    MC_ROW_MEMORY_LENGTH,
    MC_ROW_PLACE,  /* the token's other position, which is constant: for GLM that of the mask */
    MC_ROW_ANSWER, /* the number of the answer */
    MC_ROW_STEP,   /* tokens of the answer so far */
    MC_ROW_TICK,   /* steps of the batch so far */
    MC_ROW_ENDED,  /* not 0: the answer has ended */
    MC_ROW_FIELDS
};

typedef struct mc_choose_call {
    int64_t rows, vocab;
    int32_t *state; /* (MC_ROW_FIELDS, stride): see above; changed */
    int64_t stride; /* rows or more */
    /* (answers, mc_seen_words(vocab)): the set of tokens in each answer and its prompt, as bits;
     * updated. Read for answers with a penalty; NULL if none has one. */
    uint32_t *seen;
    const mc_answer_rules *rules; /* (answers) */
    const int32_t *eos; /* the end tokens of answer a: rules[a].eos_count from a * eos_stride on */
    int64_t eos_stride; /* 0: all answers have the same */
    /* (kept, answers): the choice of answer a in tick i is at [i % kept][a]. */
    mc_chosen *chosen;
    int64_t kept, answers;
} mc_choose_call;

/* The candidates of beam searches: the `count` most probable tokens of each row, best first, among
 * equal ones the first token. If the logits are not finite, the first is MC_CHOSEN_NOT_FINITE and
 * the others are undefined. */
typedef struct mc_best_call {
    int64_t rows, vocab;
    int32_t count; /* a smaller vocabulary is followed by MC_CHOSEN_NOTHING */
    /* (rows), applied to log-probabilities as the repetition penalty is to logits; 0: the row is
     * skipped and nothing is written. NULL: 1, no penalty, in all rows. */
    const float *penalty;
    const uint32_t *seen; /* (rows, mc_seen_words(vocab)): the penalised tokens, if any */
    mc_chosen *best;      /* (rows, count) */
} mc_best_call;

/* Words of a set of tokens, one bit each. */
MC_ANYWHERE int64_t mc_seen_words(int64_t vocab) { return (vocab + 31) / 32; }
MC_ANYWHERE void mc_see(uint32_t *seen, int32_t token) { seen[token / 32] |= 1u << token % 32; }

/* splitmix64's finaliser (Steele et al. 2014). */
MC_ANYWHERE uint64_t mc_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* A uniform number in [0, 1) that depends only on the arguments. */
MC_ANYWHERE double mc_uniform(uint64_t seed, uint64_t sequence, uint64_t step)
{
    const uint64_t golden = 0x9e3779b97f4a7c15u;
    uint64_t z =
        mc_mix(mc_mix(mc_mix(seed + golden) + golden * (sequence + 1)) + golden * (step + 1));
    return (double)(z >> 11) * 0x1p-53;
}

/* Records the choice for a row, and prepares its next step. */
MC_ANYWHERE void mc_choose_note(const mc_choose_call *c, int64_t row, mc_chosen chosen)
{
    int32_t *at = c->state + row, answer = at[MC_ROW_ANSWER * c->stride];
    uint32_t tick = (uint32_t)at[MC_ROW_TICK * c->stride]; /* wraps around: `kept` divides 2^32 */
    at[MC_ROW_TICK * c->stride] = (int32_t)(tick + 1);
    c->chosen[tick % c->kept * c->answers + answer] = chosen;
    if (chosen.token == MC_CHOSEN_NOTHING) return;
    const mc_answer_rules *rules = &c->rules[answer];
    const int32_t *eos = c->eos + answer * c->eos_stride;
    int32_t step = at[MC_ROW_STEP * c->stride]++;
    bool ends = chosen.token < 0 || step + 1 == rules->most;
    for (int32_t i = 0; i < rules->eos_count; i++) ends = ends || chosen.token == eos[i];
    if (chosen.token >= 0 && rules->how.repetition_penalty != 1)
        mc_see(c->seen + answer * mc_seen_words(c->vocab), chosen.token);
    at[MC_ROW_ENDED * c->stride] = ends;
    if (ends) at[MC_ROW_LENGTH * c->stride] = at[MC_ROW_MEMORY_LENGTH * c->stride] = 0;
    if (ends) return;
    at[MC_ROW_TOKEN * c->stride] = chosen.token;
    at[MC_ROW_POSITION * c->stride]++;
    at[MC_ROW_LENGTH * c->stride]++;
}

/* ---- on the host ----------------------------------------------------------------------------- */

/* The repetition penalty over a set of tokens (mc_seen_words(vocab)). */
void mc_penalise(float *logits, int64_t vocab, const uint32_t *seen, float penalty);
/* Temperature, top-k, top-p, in this order: filtered tokens become -INFINITY. `order` is scratch
 * (vocab). */
void mc_filter(float *logits, int64_t vocab, const mc_sampling *how, int32_t *order);
/* log sum exp of the logits; NaN if one is NaN or +INFINITY. */
double mc_log_sum_exp(const float *logits, int64_t vocab);
/* The most probable token, the first of equal ones. */
int32_t mc_most_probable(const float *logits, int64_t vocab);
/* The token where the cumulative probability passes u in [0, 1). */
int32_t mc_draw(const float *logits, int64_t vocab, double log_sum, double u);
/* The candidates of a row; modifies the logits. */
void mc_find_best(const mc_best_call *call, int64_t row, float *logits);
/* All steps for a row whose answer has not ended; modifies the logits. */
mc_chosen mc_choose(const mc_choose_call *call, int64_t row, float *logits, int32_t *order);

#endif
