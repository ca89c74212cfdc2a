/* What the model is trained to do: its family's objective with the run's options, and the batches
 * that come of token files. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include "tools/train/pretrain.h"

/* ---- options --------------------------------------------------------------------------------- */

static const char *const document_places[] = {"begin", "end", NULL};

void pretrain_add_objective_rows(args_table *table, pretrain *p)
{
    pretrain_options *o = &p->o;
    mc_objective_options *objective = &p->objective;
    ARGS_ADD(table, {ARGS_HEADING("Objective")},
             {ARGS_REAL("mask-probability", &objective->mask_probability, 0, 1,
                        "BERT and RoBERTa: share of the tokens to predict"),
              .above_low = true, .default_text = "0.15", .known_as = "mlm-probability"},
             {ARGS_FLAG("whole-word-mask", &o->whole_words, "BERT and RoBERTa: choose whole words"),
              .known_as = "wwm"},
             {ARGS_FLAG("no-nsp", &o->no_nsp, "BERT: masked tokens only, no pairs of texts")},
             {ARGS_REAL("noise-density", &objective->noise_density, 0, 0.9,
                        "T5 and CPM-2: share of the tokens in spans"),
              .above_low = true, .default_text = "0.15"},
             {ARGS_REAL("mean-span-length", &objective->mean_span_length, 1, 1 << 24,
                        "T5 and CPM-2: mean length of a span, in tokens"),
              .default_text = "3", .known_as = "mean-noise-span-length"},
             {ARGS_INT("target-length", &o->target_length, 0, 1 << 24,
                       "T5 and CPM-2: longest target, in tokens"),
              .default_text = "as many as the spans need"},
             {ARGS_FLAG("separate-documents", &o->separate_documents,
                        "GPT-2, GPT-J, LLaMA, OPT: documents are separate sequences"),
              .known_as = "reset-attention-mask,reset-position-ids"},
             {ARGS_INT("document-token", &o->document_token, 0, INT32_MAX,
                       "id of the token that documents begin with, in files without an index"),
              .default_text = "the tokenizer's or the model's end of text"},
             {ARGS_CHOICE("document-token-at", &o->document_at, document_places,
                          "whether it is the first or the last token of its document")});
}

static const mc_objective_style *style_of(const pretrain *p)
{
    return mc_family_objective(p->run.o.from.family);
}

bool pretrain_fits_objective(const pretrain *p, char *message, size_t room)
{
    const pretrain_options *o = &p->o;
    const char *family = p->run.o.from.family;
    const mc_objective_style *style = style_of(p);
    bool masked = style->kind == MC_OBJECTIVE_MASKED, spans = style->kind == MC_OBJECTIVE_SPANS;
    const struct {
        const char *name;
        bool given, fits;
    } options[] = {
        {"mask-probability", p->objective.mask_probability > 0, masked},
        {"whole-word-mask", o->whole_words, masked},
        {"no-nsp", o->no_nsp, style->next_sentence},
        {"noise-density", p->objective.noise_density > 0, spans},
        {"mean-span-length", p->objective.mean_span_length > 0, spans},
        {"target-length", o->target_length > 0, spans},
        {"separate-documents", o->separate_documents, style->kind == MC_OBJECTIVE_NEXT_TOKEN},
        {"sample-every", o->sample_every > 0, mc_family_kind(family) == MC_MODEL_DECODER}};
    if (!style->kind) {
        snprintf(message, room, "%s is not pretrained here: expected finetune, or another family",
                 family);
        return false;
    }
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (options[i].given && !options[i].fits) {
            snprintf(message, room, "--%s: %s is not pretrained in a way that has a use for it",
                     options[i].name, family);
            return false;
        }
    return true;
}

mc_model_heads pretrain_heads(const pretrain *p)
{
    mc_objective_style style = *style_of(p);
    style.next_sentence = style.next_sentence && !p->o.no_nsp;
    return mc_objective_heads(&style);
}

/* ---- the tokenizer --------------------------------------------------------------------------- */

/* Where a tokenizer lies that was not given: NULL where there is no such place. */
static const char *source_of(const pretrain *p, char folder[MODEL_FOLDER])
{
    const char *weights = train_run_source(&p->run);
    return weights ? weights : model_config_folder(&p->run.o.from, folder);
}

/* Whether a tokenizer opens on this rank, found with a context of its own. Else `why` is its error,
 * "" where the folder has none. */
static bool opens(const char *from, const mc_tokenizer_options *options, char why[512])
{
    mc_context *probe = mc_context_new(NULL);
    bool good = mc_tokenizer_open(probe, from, options);
    bool none = mc_error_status(probe) == MC_ERR_NOT_FOUND;
    snprintf(why, 512, "%s", good || none ? "" : mc_error_message(probe));
    mc_context_free(probe);
    return good;
}

/* Ids of tokens that --config does not name are the tokenizer's, not a class's. */
static bool take_tokens(pretrain *p, const mc_tokenizer *tok)
{
    if (p->run.resumed || !p->run.o.from.config) return true;
    if (mc_model_take_tokens(p->run.work.model, tok, p->run.o.from.config)) return false;
    mc_model_shape now = mc_model_get_shape(p->run.work.model);
    p->shape.bos_token = now.bos_token;
    p->shape.eos_token = now.eos_token;
    p->shape.pad_token = now.pad_token;
    return true;
}

/* The one that was given, or else, where the objective takes tokens from it, the model's own. */
static bool open_tokenizer(pretrain *p, const mc_objective_style *style)
{
    bool needed = style->kind == MC_OBJECTIVE_MASKED || style->kind == MC_OBJECTIVE_SPANS;
    char folder[MODEL_FOLDER] = "", why[512];
    const char *from = p->run.o.tokenizer;
    if (!from && needed) from = source_of(p, folder);
    if (from == folder && !(ranks_least(p->run.ctx, opens(from, NULL, why)) > 0)) from = NULL;
    if (!from && needed)
        return train_run_refuse(&p->run,
                                "--tokenizer is required: pretraining %s puts in tokens of its "
                                "own",
                                mc_model_family(p->run.work.model));
    if (!from) return true;
    bool own = !p->run.o.tokenizer;
    mc_tokenizer_options options = {.revision = own ? p->run.o.from.revision : NULL,
                                    .base = own ? train_run_base(&p->run) : NULL};
    p->tokenizer = mc_tokenizer_open(p->run.ctx, from, &options);
    if (mc_failed(p->run.ctx)) return false;
    int count = mc_tokenizer_vocab_size(p->tokenizer);
    if (count > p->shape.vocab_size)
        return train_run_refuse(&p->run, "--tokenizer %s has %d tokens, the model only %" PRId64,
                                from, count, p->shape.vocab_size);
    return take_tokens(p, p->tokenizer);
}

void pretrain_keep_tokenizer(pretrain *p)
{
    train_run *run = &p->run;
    char why[512] = "", folder[MODEL_FOLDER];
    const char *from = source_of(p, folder);
    mc_tokenizer_options options = {.revision = run->resumed ? NULL : run->o.from.revision,
                                    .base = train_run_base(run)};
    run->tokenizer = p->tokenizer;
    if (p->tokenizer || !run->o.output || mc_failed(run->ctx)) return;
    if (ranks_least(run->ctx, from && opens(from, &options, why)) > 0)
        run->tokenizer = mc_tokenizer_open(run->ctx, from, &options);
    int count = mc_tokenizer_vocab_size(run->tokenizer);
    if (from == folder && count > p->shape.vocab_size) { /* another model's */
        snprintf(why, sizeof why, "that of %.200s has %d tokens, the model %" PRId64, from, count,
                 p->shape.vocab_size);
        run->tokenizer = NULL;
    }
    if (run->tokenizer) take_tokens(p, run->tokenizer);
    if (!run->tokenizer && !mc_failed(run->ctx))
        run_log_line(&run->log,
                     "no tokenizer is saved with the model, which `generate` needs: give "
                     "--tokenizer here, or to `generate`%s%s",
                     *why ? "; " : "", why);
}

/* ---- the objective --------------------------------------------------------------------------- */

static bool has_heads(pretrain *p, const mc_objective_style *style)
{
    mc_model_heads heads = mc_model_get_heads(p->run.work.model);
    const char *from = train_run_source(&p->run);
    if (!heads.lm)
        return train_run_refuse(&p->run, "%s: the model has no language model head", from);
    return !style->next_sentence || heads.nsp ||
           train_run_refuse(
               &p->run, "%s: the model has no next sentence head: pretrain it with --no-nsp", from);
}

static bool choose_length(pretrain *p)
{
    pretrain_options *o = &p->o;
    int64_t positions = p->shape.positions, usual = 1024;
    if (p->shape.kind != MC_MODEL_DECODER) usual = 512;
    if (!o->seq_length) o->seq_length = positions < usual ? positions : usual;
    if (o->seq_length <= positions) return true;
    return train_run_refuse(&p->run,
                            "--seq-length is %" PRId64 ", the model has %" PRId64 " positions",
                            o->seq_length, positions);
}

/* How long a target is follows from the input: a limit can be kept, or not. */
static bool targets_fit(pretrain *p)
{
    int64_t width = mc_objective_width(&p->objective, MC_FIELD_TARGETS), most = p->o.target_length;
    return !most || width <= most ||
           train_run_refuse(&p->run,
                            "--target-length is %" PRId64 ": the spans of inputs of %" PRId64
                            " tokens make targets of %" PRId64
                            ": expected a shorter --seq-length or a smaller --noise-density",
                            most, p->o.seq_length, width);
}

bool pretrain_find_objective(pretrain *p)
{
    mc_objective_options *objective = &p->objective;
    objective->style = *style_of(p);
    mc_objective_style *style = &objective->style;
    style->next_sentence = style->next_sentence && !p->o.no_nsp;
    if (!has_heads(p, style) || !choose_length(p) || !open_tokenizer(p, style)) return false;
    if (p->run.o.lora.virtual_text && !p->tokenizer)
        return train_run_refuse(&p->run,
                                "--virtual-tokens-text needs --tokenizer, to read it with");
    if (!p->run.resumed)
        lora_begin_prompt(p->run.ctx, &p->run.o.lora, p->run.work.model, p->tokenizer);
    lora_quantize(p->run.ctx, &p->run.o.lora, p->run.work.model);
    if (mc_objective_find_tokens(p->run.ctx, style, p->tokenizer, &objective->tokens)) return false;
    mc_model_objective_tokens(p->run.work.model, &objective->tokens);
    objective->seq_length = (int)p->o.seq_length;
    objective->vocabulary = mc_tokenizer_vocab_size(p->tokenizer);
    objective->whole_words = p->o.whole_words ? p->tokenizer : NULL;
    p->window = mc_objective_window(p->run.ctx, objective);
    return p->window && targets_fit(p);
}

void pretrain_describe_objective(pretrain *p)
{
    const mc_objective_options *o = &p->objective;
    int targets = mc_objective_width(o, MC_FIELD_TARGETS);
    if (o->style.kind == MC_OBJECTIVE_MASKED)
        run_log_line(&p->run.log, "objective: %d of %d tokens masked%s%s", targets, p->window,
                     o->whole_words ? ", whole words" : "",
                     o->style.next_sentence ? ", and whether the second part follows the first"
                                            : "");
    if (o->style.kind == MC_OBJECTIVE_SPANS)
        run_log_line(&p->run.log,
                     "objective: spans of %d tokens, as inputs of %d and targets of %d", p->window,
                     o->seq_length, targets);
    if (o->style.kind == MC_OBJECTIVE_CONTEXT)
        run_log_line(&p->run.log,
                     "objective: the middle of each document, with what lies around it "
                     "as context");
}

/* The ids that are put in, as one text. */
static void add_tokens(settings *list, const mc_objective_tokens *t, bool spans)
{
    char text[160];
    if (spans)
        snprintf(text, sizeof text, "start %d ends %d %d sentinels %d from %d to %d", t->start,
                 t->input_end, t->target_end, t->sentinel_count, t->sentinel[0],
                 t->sentinel[t->sentinel_count - 1]);
    else
        snprintf(text, sizeof text, "mask %d begin %d separator %d", t->mask, t->begin,
                 t->separator);
    settings_add(list, "tokenizer", text);
}

/* Nothing where documents are not kept apart, as runs of versions that could not. */
static void add_documents(settings *list, const pretrain_options *o)
{
    char value[32] = "";
    if (o->separate_documents)
        snprintf(value, sizeof value, "%s %d", document_places[o->document_at], o->document_token);
    settings_add(list, "separate-documents", value);
}

void pretrain_add_objective_settings(settings *list, const pretrain *p)
{
    const mc_objective_options *o = &p->objective;
    const pretrain_options *given = &p->o;
    bool spans = o->style.kind == MC_OBJECTIVE_SPANS;
    if (o->style.kind == MC_OBJECTIVE_MASKED) {
        settings_add_real(list, "mask-probability",
                          o->mask_probability > 0 ? o->mask_probability : 0.15);
        settings_add_flag(list, "whole-word-mask", given->whole_words);
        settings_add_flag(list, "no-nsp", given->no_nsp);
    }
    if (spans) {
        settings_add_real(list, "noise-density", o->noise_density > 0 ? o->noise_density : 0.15);
        settings_add_real(list, "mean-span-length",
                          o->mean_span_length > 0 ? o->mean_span_length : 3);
    }
    if (spans || o->style.kind == MC_OBJECTIVE_MASKED) add_tokens(list, &o->tokens, spans);
    add_documents(list, given);
}

/* ---- batches --------------------------------------------------------------------------------- */

/* Another seed for the windows that pairs take from elsewhere. */
static mc_lm_loader *open_elsewhere(const pretrain *p, mc_lm_loader *loader, const token_data *data,
                                    mc_lm_loader_options options)
{
    if (!p->objective.style.next_sentence || !loader) return NULL;
    options.seed = mc_lm_loader_position(loader).seed + 1;
    if (!options.seed) options.seed = (uint64_t)MC_INT_ZERO;
    options.shuffle = true;
    return mc_lm_loader_new_blend(data->sources, data->count, &options);
}

bool pretrain_find_documents(pretrain *p)
{
    pretrain_options *o = &p->o;
    if (!o->separate_documents) return true;
    if (o->document_token < 0) o->document_token = p->objective.tokens.end_of_text;
    const char *without = token_data_without_documents(&p->data);
    if (!without) without = token_data_without_documents(&p->val_data);
    return !without || o->document_token >= 0 ||
           train_run_refuse(&p->run,
                            "--separate-documents: %s does not say where documents begin, and "
                            "neither a tokenizer nor the model names an end of text: give "
                            "--document-token",
                            without);
}

mc_objective *pretrain_open_batches(const pretrain *p, const token_data *data,
                                    const mc_lm_loader_options *options)
{
    mc_lm_loader *loader = mc_lm_loader_new_blend(data->sources, data->count, options);
    return mc_objective_new(loader, open_elsewhere(p, loader, data, *options), &p->objective);
}

mc_sequence_work pretrain_sequence_work(const pretrain *p)
{
    const mc_objective_options *o = &p->objective;
    bool some = mc_objective_width(o, MC_FIELD_TARGET_ROWS);
    return (mc_sequence_work){.length = p->o.seq_length,
                              .target_length = mc_objective_width(o, MC_FIELD_DECODER_IDS),
                              .targets = some ? mc_objective_width(o, MC_FIELD_TARGETS) : 0};
}
