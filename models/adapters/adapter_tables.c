/* Adapters and the tables of the base: of words, and of the head that may be the same table.
 *
 *   the adapter's file holds a table       it takes the base's place, with as many rows as it has;
 *                                          of a tied decoder in both places
 *   modules_to_save names one of the two   that place alone has a table of its own: a tied model is
 *                                          no longer tied, and the other place keeps the base's;
 *                                          so does a masked language model's head that is new
 *
 * as PEFT has it, which loads what the file holds into the base, tied or not, and wraps a module to
 * save in a copy of it. */
#include <string.h>
#include "models/adapters/adapter_internal.h"

/* What a module's name in modules_to_save is compared with: the name in `transformers`. */
static bool is_named(const mc_model *m, const char *weight, const char *const *modules)
{
    char name[MC_NAME_MAX];
    int layers = (int)m->shape.layers;
    if (!mc_weight_name(m->family->map, layers, weight, mc_model_is_prefixed(m), name))
        return false;
    char *end = strrchr(name, '.');
    if (end) *end = '\0';
    for (; modules && *modules; modules++)
        if (mc_adapter_is_within(name, *modules)) return true;
    return false;
}

bool mc_adapter_untie(mc_model *m, const mc_load_options *o, const mc_model_file *f)
{
    const char *const *modules = o->lora          ? o->lora->modules_to_save
                                 : o->soft_prompt ? o->soft_prompt->modules_to_save
                                                  : NULL;
    bool adapts = o->lora || o->soft_prompt, encoder = m->shape.kind == MC_MODEL_ENCODER;
    bool *tied = mc_config_member(m->family, m->config, "tie_word_embeddings");
    if (!adapts || !tied || !*tied || !m->heads.lm || m->shape.kind == MC_MODEL_ENCODER_DECODER)
        return false;
    bool is_new =
        encoder && f && !mc_weight_find(f->map, f->layers, f->file, mc_family_lm_has(m->family));
    if (!is_new && !is_named(m, MC_HEAD_WEIGHT(m->family), modules) &&
        (encoder || !is_named(m, MC_WORDS_WEIGHT, modules)))
        return false;
    *tied = false;
    return m->untied = true;
}

bool mc_adapter_can_train(const mc_model *m, const char *kind, const mc_parameter *p)
{
    mc_context *ctx = m->module.ctx;
    const mc_family *family = m->family;
    if (!m->words || p != mc_embedding_weight(m->words) || family->own_form) return true;
    if (family->kind == MC_MODEL_ENCODER_DECODER)
        mc_fail(ctx, MC_ERR_UNSUPPORTED,
                "%s: the words of %s as a module to save: PEFT's copy of them is read by neither "
                "stack, so that it would read another model",
                kind, family->title);
    else if (m->heads.lm && !m->head_weight)
        mc_fail(
            ctx, MC_ERR_UNSUPPORTED,
            "%s: the words of %s as a module to save: they are the head's table too, which keeps "
            "the base's in PEFT%s",
            kind, family->title,
            family->kind == MC_MODEL_DECODER
                ? ": give the adapter when the model is loaded (mc_load_options)"
                : "");
    return !mc_failed(ctx);
}

/* ---- tables in an adapter's file ------------------------------------------------------------- */

bool mc_adapter_tables_find(const mc_adapter_file *f, const mc_family *family, void *config,
                            mc_adapter_tables *out)
{
    int64_t *rows = mc_config_member(family, config, "vocab_size");
    bool *tied = mc_config_member(family, config, "tie_word_embeddings");
    const mc_tensor_entry *words = mc_adapter_file_find(f, family, MC_WORDS_WEIGHT);
    const mc_tensor_entry *head = mc_adapter_file_find(f, family, MC_HEAD_WEIGHT(family));
    const mc_tensor_entry *any = words ? words : head;
    *out = (mc_adapter_tables){.words = words, .head = head};
    if (any && rows && any->ndim == 2) *rows = any->shape[0];
    if (head && tied && family->kind == MC_MODEL_ENCODER) *tied = false;
    return !mc_failed(f->ctx);
}

void mc_adapter_tables_take(mc_adapter_tables *t, mc_model *m)
{
    mc_parameter *words = mc_embedding_weight(m->words);
    if (t->head && m->heads.lm && !m->head_weight) t->words = true; /* the same table */
    if (t->words) words->in_adapter = true;
    if (t->head && m->head_weight) m->head_weight->in_adapter = true;
    if (t->head && m->head_bias) m->head_bias->in_adapter = true;
}
