#include <string.h>
#include "core/ops/ops_internal.h"
#include "models/bert/bert_internal.h"
#include "models/common/packing_internal.h"

/* ---- input ----------------------------------------------------------------------------------- */

/* The batch as the encoder takes it. */
typedef struct packed {
    mc_packed tokens;
    mc_tensor *types;
} packed;

static bool prepare(mc_tape *t, mc_bert *bert, const mc_bert_input *in, packed *p)
{
    mc_packed *tokens = &p->tokens;
    if (!mc_pack_batch(t, "BERT", in->ids, in->lengths, in->mask, bert->config.positions, tokens))
        return false;
    p->types = in->type_ids
                   ? mc_pack_tokens(t, "BERT", "type ids", in->type_ids, tokens->lengths)
                   : mc_tape_input(t, MC_I32, MC_SHAPE(tokens->lengths->capacity), NULL, false);
    return p->types;
}

/* ---- forward --------------------------------------------------------------------------------- */

static mc_tensor *embed(mc_tape *t, mc_bert *bert, const packed *p)
{
    mc_tensor *tables[] = {mc_embedding_table(t, bert->words),
                           mc_embedding_table(t, bert->positions),
                           mc_embedding_table(t, bert->types)};
    mc_tensor *indices[] = {p->tokens.ids, p->tokens.positions, p->types};
    mc_scope scope = mc_scope_begin(t, false);
    mc_tensor *sum = mc_embed(t, 3, tables, indices);
    mc_tensor *x = sum ? mc_layernorm_forward(t, bert->embedding_norm, sum) : NULL;
    x = x ? mc_dropout(t, x, bert->config.dropout) : NULL;
    mc_scope_end(t, scope, x);
    return x;
}

mc_bert_output mc_bert_forward(mc_tape *t, mc_bert *bert, const mc_bert_input *input)
{
    mc_bert_output out = {0};
    packed p = {0};
    if (!bert || !input || !prepare(t, bert, input, &p)) return out;
    mc_tensor *x = embed(t, bert, &p);
    if (!x) return out;
    mc_tensor *hidden = mc_block_list_forward(t, bert->blocks, x, &p.tokens.key_mask);
    if (hidden && hidden != x) mc_tape_release(t, x);
    mc_tensor *pooled = NULL;
    if (hidden && bert->pooler) {
        mc_tensor *first = mc_first_tokens(t, hidden);
        pooled =
            first ? mc_linear_forward_activated(t, bert->pooler, first, MC_ACTIVATION_TANH) : NULL;
    }
    if (mc_failed(mc_tape_context(t))) return out;
    return (mc_bert_output){.last_hidden = hidden, .pooled = pooled};
}

/* ---- heads ----------------------------------------------------------------------------------- */

static bool has_head(mc_tape *t, const mc_bert *bert, const void *head, const char *name)
{
    if (!bert || mc_failed(mc_tape_context(t))) return false;
    if (!head) mc_fail(mc_tape_context(t), MC_ERR_STATE, "BERT: the model has no %s", name);
    return head;
}

mc_tensor *mc_bert_classify(mc_tape *t, mc_bert *bert, mc_tensor *pooled)
{
    if (!bert || !has_head(t, bert, bert->classifier, "classification head")) return NULL;
    mc_tensor *x = mc_dropout(t, pooled, bert->config.classifier_dropout);
    return mc_linear_forward(t, bert->classifier, x);
}

mc_tensor *mc_bert_nsp_logits(mc_tape *t, mc_bert *bert, mc_tensor *pooled)
{
    if (!bert || !has_head(t, bert, bert->nsp, "next sentence head")) return NULL;
    return mc_linear_forward(t, bert->nsp, pooled);
}

/* dense, activation, layer norm: what comes before the tied decoder. */
static mc_tensor *mlm_transform(mc_tape *t, mc_bert *bert, mc_tensor *hidden)
{
    mc_tensor *h = mc_linear_forward_activated(t, bert->mlm_dense, hidden, bert->config.activation);
    return h ? mc_layernorm_forward(t, bert->mlm_norm, h) : NULL;
}

mc_tensor *mc_bert_mlm_logits(mc_tape *t, mc_bert *bert, mc_tensor *hidden)
{
    if (!bert || !has_head(t, bert, bert->mlm_dense, "masked language model head")) return NULL;
    mc_tensor *h = mlm_transform(t, bert, hidden);
    return h ? mc_fused_linear(t, h, mc_embedding_table(t, bert->words),
                               mc_parameter_tensor(t, bert->mlm_bias), MC_ACTIVATION_NONE)
             : NULL;
}

mc_tensor *mc_bert_mlm_loss(mc_tape *t, mc_bert *bert, mc_tensor *hidden, mc_tensor *labels)
{
    if (!bert || !has_head(t, bert, bert->mlm_dense, "masked language model head")) return NULL;
    if (!mc_op_ready(t, "BERT MLM", hidden) || !mc_op_ready(t, "BERT MLM", labels)) return NULL;
    int64_t rows = mc_tensor_rows(hidden), counting = 0;
    mc_tensor *checked =
        mc_op_indices(t, "BERT MLM", "label", labels, rows, bert->config.vocab_size, -100);
    int32_t *index = mc_tape_alloc(t, ((size_t)rows + 1) * sizeof *index);
    int32_t *kept = mc_tape_alloc(t, ((size_t)rows + 1) * sizeof *kept);
    if (!checked || !index || !kept) return NULL;
    const int32_t *label = mc_op_host(t, "BERT MLM", checked);
    for (int64_t i = 0; label && i < rows; i++) {
        if (label[i] == -100) continue;
        index[counting] = (int32_t)i;
        kept[counting++] = label[i];
    }
    mc_tensor *targets = mc_tape_input(t, MC_I32, MC_SHAPE(counting), kept, false);
    mc_tensor *x = mc_gather_rows(t, hidden, index, counting);
    mc_tensor *h = x ? mlm_transform(t, bert, x) : NULL;
    if (!h || !targets) return NULL;
    return mc_linear_cross_entropy(t, h, mc_embedding_table(t, bert->words),
                                   mc_parameter_tensor(t, bert->mlm_bias), 0, targets, NULL);
}
