/* The beam search of one prompt, by the rules, and to the tie with the results, of Hugging Face's
 * generate(). Who runs the model offers the most probable continuations of each running beam; the
 * search decides which of them go on.
 *
 *     mc_search_begin(s);
 *     for (b = 0; b < s->running_count; b++) mc_search_offer(s, b, best, count);
 *     mc_search_advance(s);                              beam b goes on with beam s->parents[b]
 */
#ifndef MC_MODELS_BEAM_INTERNAL_H
#define MC_MODELS_BEAM_INTERNAL_H

#include "models/generate/generate_internal.h"

/* A hypothesis: new tokens and a score. */
typedef struct mc_beam {
    int32_t *ids;     /* (most) */
    float *log_probs; /* the same */
    int length;
    float score;
} mc_beam;

typedef struct mc_search {
    const mc_generate_options *options;
    int prompt, most;                     /* number of the prompt; new tokens at most */
    mc_beam *running, *next, *finished;   /* (num_beams), of the finished the best first */
    int running_count, finished_count;    /* at first one runs: all would begin alike */
    struct mc_beam_candidate *candidates; /* (looked), the best first */
    int candidate_count, looked;
    int *parents; /* (num_beams) what each running beam was a step ago */
    bool over;
} mc_search;

/* Continuations that a search looks at in a step: as many of each beam suffice. */
int mc_search_looks(const mc_generate_options *options, int64_t vocab);
/* `options`, with defaults filled in, must outlive it. NULL when memory is out. */
mc_search *mc_search_new(const mc_generate_options *options, int64_t vocab, int prompt, int most);
void mc_search_free(mc_search *search); /* NULL allowed */
void mc_search_begin(mc_search *search);
/* Offers a beam's continuations, as best_tokens finds them; false where logits are not finite. */
bool mc_search_offer(mc_search *search, int beam, const mc_chosen *best, int32_t count);
/* Goes one token further. */
void mc_search_advance(mc_search *search);

#endif
