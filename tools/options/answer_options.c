#include "tools/options/answer_options.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>

void answer_options_init(answer_options *o, int argc)
{
    *o = (answer_options){.how = {.temperature = 1,
                                  .top_p = 1,
                                  .repetition_penalty = 1,
                                  .num_beams = 1,
                                  .length_penalty = 1}};
    o->stop = args_list_new(argc);
}

void answer_options_release(answer_options *o) { free(o->stop.items); }

void answer_add_rows(args_table *table, answer_options *o)
{
    mc_generate_options *how = &o->how;
    ARGS_ADD(
        table,
        {ARGS_FLAG("sample", &how->sample,
                   "draw tokens; --temperature, --top-k and --top-p switch it on too"),
         .given = &o->given.sample, .known_as = "do-sample"},
        {ARGS_REAL("temperature", &how->temperature, 0, INFINITY,
                   "divide logits by this; 0: take the most probable token"),
         .given = &o->given.temperature},
        {ARGS_INT("top-k", &how->top_k, 0, INT_MAX, "draw from the k most probable; 0: all"),
         .given = &o->given.top_k, .default_text = "50, as transformers"},
        {ARGS_REAL("top-p", &how->top_p, 0, 1,
                   "draw from the most probable that have this probability together"),
         .above_low = true, .given = &o->given.top_p},
        {ARGS_REAL("repetition-penalty", &how->repetition_penalty, 0, INFINITY,
                   "above 1: tokens that occurred already become less probable"),
         .above_low = true, .given = &o->given.repetition_penalty},
        {ARGS_INT("seed", &how->seed, 0, INT64_MAX, "seed of drawing"), .given = &o->given.seed},
        {ARGS_INT("num-beams", &how->num_beams, 1, 1024, "number of beams; 1: no beam search"),
         .known_as = "beams", .given = &o->given.num_beams},
        {ARGS_REAL("length-penalty", &how->length_penalty, -1000, 1000,
                   "beam search: log-probabilities are divided by the length to this power"),
         .given = &o->given.length_penalty},
        {ARGS_FLAG("early-stopping", &o->early_stopping,
                   "beam search: stop as soon as num-beams answers have ended"),
         .given = &o->given.early_stopping},
        {ARGS_TEXTS("stop", &o->stop, "an answer ends before this text; may be repeated"),
         .given = &o->given.stop, .known_as = "stop-strings,stop-string"},
        {ARGS_FLAG("ignore-eos", &how->ignore_eos, "no token ends an answer"),
         .given = &o->given.ignore_eos},
        {ARGS_FLAG("ignore-generation-config", &o->ignore_file,
                   "do not take defaults from the model's generation_config.json"),
         .given = &o->given.ignore_file});
}

const char *answer_option_given(const answer_options *o)
{
    const struct {
        bool given;
        const char *name;
    } all[] = {{o->given.sample, "--sample"},
               {o->given.temperature, "--temperature"},
               {o->given.top_k, "--top-k"},
               {o->given.top_p, "--top-p"},
               {o->given.repetition_penalty, "--repetition-penalty"},
               {o->given.seed, "--seed"},
               {o->given.num_beams, "--num-beams"},
               {o->given.length_penalty, "--length-penalty"},
               {o->given.early_stopping, "--early-stopping"},
               {o->given.stop, "--stop"},
               {o->given.ignore_eos, "--ignore-eos"},
               {o->given.ignore_file, "--ignore-generation-config"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].given) return all[i].name;
    return NULL;
}

/* Whether the command line wants tokens drawn. */
static bool samples(const answer_options *o)
{
    bool any = o->how.sample || o->given.temperature || o->given.top_k || o->given.top_p;
    return any && o->how.temperature > 0;
}

int answer_options_check(const args_spec *spec, const answer_options *o)
{
    for (int i = 0; i < o->stop.count; i++)
        if (!*o->stop.items[i])
            return args_error(spec, "--stop \"\": expected a text that is not empty");
    if (!samples(o) || o->how.num_beams <= 1) return EXIT_OK;
    return args_error(spec,
                      "--num-beams %d: beam search does not sample: expected neither --sample nor "
                      "--temperature, --top-k, --top-p with it",
                      o->how.num_beams);
}

bool answer_options_resolve(const answer_options *o, mc_model *model, mc_generate_options *how)
{
    const mc_generate_options *line = &o->how;
    *how = (mc_generate_options){0};
    if (!o->ignore_file && mc_model_generate_options(model, how)) return false;
    if (o->given.top_k) how->top_k = line->top_k;
    if (o->given.top_p) how->top_p = line->top_p;
    if (o->given.temperature) how->temperature = line->temperature; /* 0 is not read: below */
    if (o->given.repetition_penalty) how->repetition_penalty = line->repetition_penalty;
    if (o->given.num_beams) how->num_beams = line->num_beams;
    if (o->given.length_penalty)
        how->length_penalty = line->length_penalty != 0 ? line->length_penalty : MC_TRUE_ZERO;
    if (o->early_stopping) how->early_stopping = MC_EARLY_STOPPING_AT_ONCE;
    if (line->ignore_eos) how->ignore_eos = true;
    how->seed = line->seed;
    if (o->stop.count) {
        how->stop_texts = o->stop.items;
        how->stop_text_count = o->stop.count;
    }
    /* what was asked for on the command line replaces the other kind of search in the file */
    if (samples(o)) {
        if (!how->sample && !o->given.top_k && !how->top_k) how->top_k = MC_TOP_K_USUAL;
        how->sample = true;
        how->num_beams = 1;
    } else if (line->num_beams > 1 || line->temperature == 0) {
        how->sample = false;
    }
    return true;
}

bool answer_add_stop(mc_generate_options *how, const char *end, const char ***list)
{
    int count = how->stop_text_count;
    const char **all = calloc((size_t)count + 1, sizeof *all);
    if (!all) return false;
    for (int i = 0; i < count; i++) all[i] = how->stop_texts[i];
    all[count] = end;
    how->stop_texts = *list = all;
    how->stop_text_count = count + 1;
    return true;
}

mc_stop answer_stop(const mc_generate_options *how, const mc_tokenizer *tok, const int32_t *tokens)
{
    return (mc_stop){.tokenizer = tok,
                     .texts = how->stop_texts,
                     .text_count = how->stop_text_count,
                     .tokens = tokens};
}
