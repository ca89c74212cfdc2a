#include "tools/options/lora_options.h"

#include <stdio.h>
#include <string.h>
#include "tools/files/text.h"
#include "tools/options/weights_option.h"

void lora_add_rows(args_table *table, lora_options *o)
{
    ARGS_ADD(
        table,
        {ARGS_HEADING("LoRA: factors beside frozen weights are trained and saved, as PEFT's")},
        {ARGS_INT("lora-rank", &o->rank, 0, 1 << 16, "rank of the factors; 0: no LoRA"),
         .known_as = "lora-r"},
        {ARGS_REAL("lora-alpha", &o->alpha, -1e6, 1e6,
                   "scale of the factors' product: alpha / rank"),
         .given = &o->alpha_given},
        {ARGS_REAL("lora-dropout", &o->dropout, 0, 1, "dropout of the factors' input"),
         .below_high = true, .given = &o->dropout_given},
        {ARGS_TEXT("lora-targets", &o->targets,
                   "names of linear layers, separated by commas, or all-linear"),
         .default_text = "PEFT's for the family", .known_as = "target-modules"},
        {ARGS_TEXT("lora-save", &o->save, "modules that are trained and saved whole"),
         .default_text = "the classification head", .known_as = "modules-to-save"},
        {ARGS_CHOICE("base-weights", &o->weights, weights_names,
                     "of the frozen linear layers beside an adapter: of the model's dtype, or in "
                     "8 bits, which products dequantize; with --fp8 products of fp8 are in 8 bits "
                     "too")},
        {ARGS_FLAG("lora-rslora", &o->rslora, "scale by alpha / sqrt(rank) instead"),
         .given = &o->rslora_given, .known_as = "use-rslora"},
        {ARGS_HEADING("Soft prompts: vectors before each text are trained and saved, as PEFT's")},
        {ARGS_INT("virtual-tokens", &o->virtual_tokens, 0, 1 << 16,
                  "number of vectors before each text; 0: none"),
         .known_as = "num-virtual-tokens"},
        {ARGS_TEXT("virtual-tokens-text", &o->virtual_text,
                   "words whose vectors they start from, repeated or cut"),
         .default_text = "random values", .known_as = "prompt-tuning-init-text"});
}

/* "q,v" as {"q", "v", NULL} in `names`, whose texts are in `copy`. False: an empty name, or too
 * many of them. */
static bool split(const char *list, char copy[LORA_TEXT], const char *names[LORA_NAMES + 1])
{
    int count = 0;
    if ((size_t)snprintf(copy, LORA_TEXT, "%s", list) >= LORA_TEXT) return false;
    for (char *name = copy; name; count++) {
        char *comma = strchr(name, ',');
        if (comma) *comma = '\0';
        if (!*name || count == LORA_NAMES) return false;
        names[count] = name;
        name = comma ? comma + 1 : NULL;
    }
    names[count] = NULL;
    return true;
}

/* Takes an option's list apart. NULL, or what is wrong. */
static const char *take_names(lora_options *o, const char *option, const char *example,
                              const char *list, char copy[LORA_TEXT],
                              const char *names[LORA_NAMES + 1])
{
    size_t length = 0;
    const char *twice = list ? text_named_twice(list, &length) : NULL;
    if (!list) return NULL;
    if (!split(list, copy, names))
        snprintf(o->wrong, sizeof o->wrong, "--%s: expected names with commas between, as %s",
                 option, example);
    else if (twice)
        snprintf(o->wrong, sizeof o->wrong, "--%s: \"%.*s\" is named twice", option,
                 (int)(length < 100 ? length : 100), twice);
    else
        return NULL;
    return o->wrong;
}

const char *lora_options_check(lora_options *o, bool may_be_adapter)
{
    bool all = o->targets && strcmp(o->targets, "all-linear") == 0;
    bool others = o->alpha_given || o->dropout_given || o->rslora_given || o->targets || o->save;
    o->prompt.tokens = o->virtual_tokens;
    if (o->virtual_text && !o->virtual_tokens)
        return "--virtual-tokens-text without --virtual-tokens";
    if (o->weights && !o->virtual_tokens && !o->rank && !may_be_adapter)
        return "--base-weights: expected --lora-rank or --virtual-tokens, whose base it is of";
    if (o->virtual_tokens && o->rank) return "expected one of --lora-rank and --virtual-tokens";
    if (!o->rank) return others ? "options of LoRA without --lora-rank" : NULL;
    if (o->alpha == 0) return "--lora-alpha 0: the factors would do nothing";
    const char *targets = all ? NULL : o->targets;
    const char *wrong =
        take_names(o, "lora-targets", "q_proj,v_proj", targets, o->text[0], o->target_names);
    if (!wrong) wrong = take_names(o, "lora-save", "score", o->save, o->text[1], o->save_names);
    if (wrong) return wrong;
    o->read = (mc_lora_options){.rank = o->rank,
                                .alpha = (float)o->alpha,
                                .dropout = (float)o->dropout,
                                .rslora = o->rslora,
                                .targets = o->targets && !all ? o->target_names : NULL,
                                .target_pattern = all ? o->targets : NULL,
                                .modules_to_save = o->save ? o->save_names : NULL};
    return NULL;
}

const char *lora_check_fp8(const lora_options *o, int fp8)
{
    if (!fp8 || o->weights != MC_WEIGHTS_INT8) return NULL;
    return "--fp8 with --base-weights int8: expected --base-weights fp8, or float";
}

bool lora_options_given(const lora_options *o) { return o->rank || o->virtual_tokens; }

void lora_options_load(const lora_options *o, mc_load_options *load)
{
    if (o->rank) load->lora = &o->read;
    if (o->virtual_tokens) load->soft_prompt = &o->prompt;
}

void lora_begin_prompt(mc_context *ctx, const lora_options *o, mc_model *model,
                       const mc_tokenizer *tokenizer)
{
    const char *begin = o->virtual_text;
    mc_encoding words = {.ids = NULL};
    if (!begin || mc_failed(ctx)) return;
    if (mc_tokenizer_encode(tokenizer, begin, strlen(begin), NULL, 0, 0, &words) || !words.count)
        mc_set_error(ctx, MC_ERR_ARGUMENT, "--virtual-tokens-text: no token in \"%.200s\"", begin);
    else
        mc_soft_prompt_set_words(model, words.ids, (int)words.count);
    mc_encoding_release(&words);
}

void lora_quantize(mc_context *ctx, const lora_options *o, mc_model *model)
{
    if (!model || !o->weights || mc_failed(ctx)) return;
    if (mc_model_lora(model) || mc_model_soft_prompt(model))
        mc_model_quantize_base(model, (mc_weight_format)o->weights);
    else
        mc_set_error(ctx, MC_ERR_ARGUMENT,
                     "--base-weights: --model is no adapter: expected --lora-rank or "
                     "--virtual-tokens, whose base it is of");
}

void lora_tell(run_log *log, mc_model *model)
{
    const mc_lora_options *lora = mc_model_lora(model);
    const mc_soft_prompt_options *prompt = mc_model_soft_prompt(model);
    char what[64];
    if (!lora && !prompt) return;
    if (lora)
        snprintf(what, sizeof what, "LoRA of rank %d", lora->rank);
    else
        snprintf(what, sizeof what, "%d virtual tokens", prompt->tokens);
    double all = (double)mc_module_parameter_count(mc_model_module(model));
    double trained = (double)mc_model_trainable_count(model);
    run_log_line(log, "%s: %.3f M parameters are trained, %.3f %% of all", what, 1e-6 * trained,
                 100 * trained / all);
}

void lora_add_settings(settings *list, const lora_options *o)
{
    char number[16] = "";
    if (o->rank) snprintf(number, sizeof number, "%d", o->rank);
    settings_add(list, "lora-rank", number);
    number[0] = '\0';
    if (o->virtual_tokens) snprintf(number, sizeof number, "%d", o->virtual_tokens);
    settings_add(list, "virtual-tokens", number);
    settings_add(list, "virtual-tokens-text", o->virtual_text ? o->virtual_text : "");
    settings_add(list, "base-weights", o->weights ? weights_names[o->weights] : "");
    if (!o->rank) return;
    settings_add_real(list, "lora-alpha", o->alpha);
    settings_add_real(list, "lora-dropout", o->dropout);
    settings_add_flag(list, "lora-rslora", o->rslora);
    settings_add(list, "lora-targets", o->targets ? o->targets : "");
    settings_add(list, "lora-save", o->save ? o->save : "");
}
