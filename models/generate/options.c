/* Options of generation with their defaults, and whether prompts suit the model. */
#include <math.h>
#include "models/generate/generate_internal.h"
#include "models/model_internal.h"

enum { MOST_BEAMS = 1024 };

static bool bad_option(const mc_decoder *d, const char *name, double value, const char *expected)
{
    mc_fail(d->ctx, MC_ERR_ARGUMENT, "generation with %s: %s %g, expected %s", d->model, name,
            value, expected);
    return false;
}

/* How many answers a prompt may have. */
static bool check_returned(const mc_decoder *d, mc_generate_options *o)
{
    int count = o->num_return_sequences;
    if (count < 1 || count > MC_MOST_RETURNED)
        return bad_option(d, "num_return_sequences", count, "1 to 65536");
    if (o->sample) o->first_prompt *= count; /* from here on a number of answers */
    if (count == 1 || o->sample || count <= o->num_beams) return true;
    return !mc_fail(d->ctx, MC_ERR_ARGUMENT,
                    "generation with %s: num_return_sequences %d, expected %s", d->model, count,
                    o->num_beams > 1 ? "at most num_beams"
                                     : "1: without `sample` or beams all answers are the same");
}

/* Fills defaults in. */
bool mc_generate_read_options(const mc_decoder *d, const mc_generate_options *given,
                              mc_generate_options *o)
{
    *o = given ? *given : (mc_generate_options){0};
    if (!o->max_new_tokens && !o->max_length) o->max_new_tokens = 20;
    if (o->num_return_sequences == 0) o->num_return_sequences = 1;
    if (o->temperature == 0) o->temperature = 1;
    if (o->top_p == 0) o->top_p = 1;
    if (o->repetition_penalty == 0) o->repetition_penalty = 1;
    if (o->num_beams == 0) o->num_beams = 1;
    o->length_penalty = mc_option(o->length_penalty, 1);
    if (!o->eos) {
        o->eos = d->eos;
        o->eos_count = d->eos_count;
    }
    if (o->ignore_eos) o->eos_count = 0;
    if (o->max_new_tokens < 0)
        return bad_option(d, "max_new_tokens", o->max_new_tokens, "at least 1");
    if (o->max_length < 0) return bad_option(d, "max_length", o->max_length, "at least 2");
    if (!(o->temperature > 0 && o->temperature < INFINITY))
        return bad_option(d, "temperature", (double)o->temperature, "above 0");
    if (o->top_k < 0) return bad_option(d, "top_k", o->top_k, "at least 1, or 0 for all");
    if (!(o->top_p > 0 && o->top_p <= 1))
        return bad_option(d, "top_p", (double)o->top_p, "above 0, at most 1");
    if (!(o->repetition_penalty > 0 && o->repetition_penalty < INFINITY))
        return bad_option(d, "repetition_penalty", (double)o->repetition_penalty, "above 0");
    if (o->num_beams < 1 || o->num_beams > MOST_BEAMS)
        return bad_option(d, "num_beams", o->num_beams, "1 to 1024");
    if (!isfinite(o->length_penalty))
        return bad_option(d, "length_penalty", (double)o->length_penalty, "a number");
    if (o->early_stopping < MC_EARLY_STOPPING_LIKELY || o->early_stopping > MC_EARLY_STOPPING_NEVER)
        return bad_option(d, "early_stopping", o->early_stopping, "an mc_early_stopping");
    if (o->eos_count < 0) return bad_option(d, "eos_count", o->eos_count, "at least 0");
    if (o->num_beams > 1 && o->sample)
        return !mc_fail(d->ctx, MC_ERR_UNSUPPORTED,
                        "generation with %s: beam search does not sample", d->model);
    return check_returned(d, o);
}

bool mc_check_stop_texts(const mc_decoder *d, const mc_generate_options *o)
{
    if (o->stop || o->stop_text_count <= 0) return true;
    return !mc_fail(
        d->ctx, MC_ERR_UNSUPPORTED,
        "generation with %s: stop_texts (stop_strings of generation_config.json) \"%.80s\": "
        "expected `stop` as well, since texts are looked for with a tokenizer "
        "(mc_stop_reached)",
        d->model, o->stop_texts[0]);
}

bool mc_check_prompts(const mc_decoder *d, const int32_t *const *prompts, const int *lengths,
                      int count)
{
    if (count < 0 || (count && (!prompts || !lengths)))
        return !mc_fail(d->ctx, MC_ERR_ARGUMENT, "generation with %s: %d prompts%s", d->model,
                        count, count < 0 ? "" : ": NULL");
    for (int i = 0; i < count; i++) {
        if (lengths[i] < 1 || !prompts[i])
            return !mc_fail(d->ctx, MC_ERR_ARGUMENT, "generation with %s: prompt %d is empty",
                            d->model, i);
        for (int k = 0; k < lengths[i]; k++)
            if (prompts[i][k] < 0 || prompts[i][k] >= d->vocab)
                return !mc_fail(d->ctx, MC_ERR_ARGUMENT,
                                "generation with %s: token %d of prompt %d is %d, expected 0 to "
                                "%lld",
                                d->model, k, i, prompts[i][k], (long long)d->vocab - 1);
        int32_t position, block;
        bool (*places)(const mc_model *, const int32_t *, int, int32_t *, int32_t *) =
            d->of->family->places;
        if (places && !places(d->of, prompts[i], lengths[i], &position, &block)) return false;
    }
    return true;
}

const int32_t *mc_decoder_begins(const mc_decoder *d, const int32_t *ids, int *count)
{
    if (d->start < 0) return ids;
    *count = 1;
    return &d->start;
}

int mc_most_new(const mc_decoder *d, const mc_generate_options *o, int length)
{
    mc_decoder_begins(d, NULL, &length);
    return o->max_new_tokens ? o->max_new_tokens : o->max_length - length;
}

mc_sampling mc_sampling_of(const mc_generate_options *o)
{
    return (mc_sampling){.sample = o->sample,
                         .temperature = o->temperature,
                         .top_p = o->top_p,
                         .top_k = o->top_k,
                         .repetition_penalty = o->repetition_penalty,
                         .seed = o->seed};
}

bool mc_check_lengths(const mc_decoder *d, const mc_generate_options *o, const int *lengths,
                      int count)
{
    for (int i = 0; i < count; i++) {
        int most = mc_most_new(d, o, lengths[i]), begun = lengths[i];
        mc_decoder_begins(d, NULL, &begun);
        if (most < 1)
            return !mc_fail(d->ctx, MC_ERR_ARGUMENT,
                            "generation with %s: prompt %d of %d tokens, max_length is %d: "
                            "expected a shorter prompt, or max_new_tokens",
                            d->model, i, begun, o->max_length);
        if (begun + (int64_t)most - 1 > d->positions) /* the last new token is not run */
            return !mc_fail(d->ctx, MC_ERR_ARGUMENT,
                            "generation with %s: prompt %d of %d tokens and %d new ones, the model "
                            "has %lld positions",
                            d->model, i, begun, most, (long long)d->positions);
    }
    return true;
}
