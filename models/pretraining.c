/* Objectives of families: losses, and what they cost. */
#include "models/pretraining.h"

#include <string.h>
#include "core/nn/block_list.h"
#include "models/adapters/adapter_internal.h"
#include "core/ops/fused.h"

const mc_objective_style *mc_family_objective(const char *name)
{
    const mc_family *family = mc_family_find(name);
    return family ? &family->objective : NULL;
}

void mc_model_objective_tokens(const mc_model *m, mc_objective_tokens *tokens)
{
    if (!m || !tokens) return;
    if (tokens->start < 0) tokens->start = (int32_t)m->shape.start_token;
    if (tokens->end_of_text < 0) tokens->end_of_text = (int32_t)m->shape.eos_token;
}

mc_model_heads mc_objective_heads(const mc_objective_style *style)
{
    bool next = style && style->next_sentence;
    return (mc_model_heads){.lm = true, .pooler = next, .nsp = next};
}

/* ---- the loss -------------------------------------------------------------------------------- */

/* Of rows that are picked from the hidden states, or of all. */
static mc_tensor *targets_loss(mc_tape *t, mc_model *m, mc_tensor *hidden,
                               mc_tensor *const field[MC_FIELDS])
{
    mc_tensor *rows = field[MC_FIELD_TARGET_ROWS], *targets = field[MC_FIELD_TARGETS];
    return rows ? mc_model_loss_of_rows(t, m, hidden, rows, targets)
                : mc_model_loss(t, m, hidden, targets);
}

mc_tensor *mc_model_pretraining_loss(mc_tape *t, mc_model *m, mc_tensor *const field[MC_FIELDS])
{
    if (!mc_tape_given(t, "mc_model_pretraining_loss", m ? m->module.ctx : NULL) ||
        mc_failed(mc_tape_context(t)) || !mc_given(mc_tape_context(t), field))
        return NULL;
    mc_model_output out =
        mc_model_forward(t, m,
                         &(mc_model_input){.ids = field[MC_FIELD_IDS],
                                           .type_ids = field[MC_FIELD_TYPE_IDS],
                                           .marks = field[MC_FIELD_MARKS],
                                           .decoder_ids = field[MC_FIELD_DECODER_IDS]});
    mc_tensor *loss = targets_loss(t, m, out.last_hidden, field);
    if (!loss || !field[MC_FIELD_LABELS]) return loss;
    mc_tensor *logits = mc_model_nsp_logits(t, m, out.pooled);
    mc_tensor *next = mc_cross_entropy(t, logits, field[MC_FIELD_LABELS], NULL);
    return mc_loss_add(t, loss, next, 1);
}

/* ---- work ------------------------------------------------------------------------------------ */

/* FLOP of a parameter and a row: forward, and the gradients of the row and of the parameter. */
static double flops_each(bool trainable) { return trainable ? 6 : 4; }

/* Keys and values of attention to an encoder's rows, and their adapters' factors. */
static bool is_of_memory(const mc_parameter *p)
{
    return strstr(p->name, "cross_att.") &&
           (strstr(p->name, ".project_k.") || strstr(p->name, ".project_v."));
}

/* Of `rows` that go through all blocks of a stack, and `memory` rows of an encoder beside them. */
static double block_flops(mc_block_list *blocks, double rows, double memory)
{
    double sum = 0;
    for (int i = 0; i < mc_block_list_count(blocks); i++) {
        mc_parameter_iterator it = {0};
        for (mc_parameter *p; (p = mc_module_next_parameter(mc_block_list_at(blocks, i), &it));)
            sum += flops_each(mc_parameter_trainable(p)) * (double)mc_shape_count(p->shape) *
                   (is_of_memory(p) ? memory : rows);
    }
    return sum;
}

/* Of most of the model's parameters: with LoRA those beside its factors are frozen. */
static double flops_of_most(mc_model *m)
{
    return flops_each(2 * mc_model_trainable_count(m) > mc_module_parameter_count(&m->module));
}

double mc_model_sequence_flops(mc_model *m, const mc_sequence_work *work)
{
    if (!m || !mc_given(m->module.ctx, work)) return 0;
    const mc_model_shape *s = &m->shape;
    int64_t length = work->length + mc_virtual_tokens(m);
    double n = (double)length, targets = (double)work->target_length;
    if (s->kind == MC_MODEL_DECODER) return n * mc_model_flops(m, length);
    bool two = s->kind == MC_MODEL_ENCODER_DECODER;
    double rows = work->targets ? (double)work->targets : two ? targets : (double)work->length;
    double width = (double)(s->heads * s->head_dim);
    double head = flops_of_most(m) * (double)s->vocab_size * (double)s->dim * rows;
    double products = block_flops(m->encoder, n, 0) + block_flops(m->decoder, targets, n) + head;
    double pairs = (double)s->layers * n * n + (double)s->decoder_layers * targets * (targets + n);
    return products + 12 * width * pairs;
}
