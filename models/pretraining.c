/* Objectives of families: losses, and what they cost. */
#include "models/pretraining.h"

#include "core/nn/block_list.h"
#include "models/model_internal.h"

const mc_objective_style *mc_family_objective(const char *name)
{
    const mc_family *family = mc_family_find(name);
    return family ? &family->objective : NULL;
}

void mc_model_objective_tokens(const mc_model *m, mc_objective_tokens *tokens)
{
    if (!m) return;
    if (tokens->start < 0) tokens->start = (int32_t)m->shape.start_token;
    if (tokens->end_of_text < 0) tokens->end_of_text = (int32_t)m->shape.eos_token;
}

mc_model_heads mc_objective_heads(const mc_objective_style *style)
{
    return (mc_model_heads){
        .lm = true, .pooler = style->next_sentence, .nsp = style->next_sentence};
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

/* Parameters that each row of a stack is multiplied with. */
static double block_parameters(mc_block_list *blocks)
{
    double sum = 0;
    for (int i = 0; i < mc_block_list_count(blocks); i++)
        sum += (double)mc_module_parameter_count(mc_block_list_at(blocks, i));
    return sum;
}

double mc_model_sequence_flops(mc_model *m, const mc_sequence_work *work)
{
    if (!m) return 0;
    const mc_model_shape *s = &m->shape;
    double n = (double)work->length, targets = (double)work->target_length;
    if (s->kind == MC_MODEL_DECODER) return n * mc_model_flops(m, work->length);
    bool two = s->kind == MC_MODEL_ENCODER_DECODER;
    double rows = work->targets ? (double)work->targets : two ? targets : n;
    double width = (double)(s->heads * s->head_dim), dim = (double)s->dim;
    double products = block_parameters(m->encoder) * n + (double)s->vocab_size * dim * rows;
    double pairs = (double)s->layers * n * n;
    if (two) {
        double between = (double)s->decoder_layers * 2 * dim * width; /* keys and values */
        products += (block_parameters(m->decoder) - between) * targets + between * n;
        pairs += (double)s->decoder_layers * targets * (targets + n);
    }
    return 6 * products + 12 * width * pairs;
}
