#include <string.h>
#include "core/ops/ops_internal.h"
#include "models/bert/bert_internal.h"

/* ---- input ----------------------------------------------------------------------------------- */

/* The batch as the encoder takes it: packed ids, positions and types with lengths. */
typedef struct packed {
    mc_tensor *ids, *positions, *types, *key_mask;
    const mc_lengths *lengths;
} packed;

static int64_t integer_at(mc_dtype dtype, const void *data, int64_t i)
{
    switch (dtype) {
    case MC_I64: return ((const int64_t *)data)[i];
    case MC_I32: return ((const int32_t *)data)[i];
    default: return ((const uint8_t *)data)[i];
    }
}

static bool fail_input(mc_tape *t, const char *what, const mc_tensor *x, const char *expected)
{
    mc_fail(mc_tape_context(t), MC_ERR_SHAPE, "BERT: %s %s %s, expected %s", what,
            mc_dtype_name(x->dtype), MC_SHAPE_TEXT(x->shape), expected);
    return false;
}

/* The lengths a call means: given, carried by the ids, or whole rows of (batch, longest). */
static const mc_lengths *choose_lengths(mc_tape *t, const mc_bert_input *in)
{
    if (in->lengths) return in->lengths;
    if (in->ids->lengths) return in->ids->lengths;
    if (in->ids->shape.ndim != 2) {
        fail_input(t, "ids", in->ids, "(batch, longest), or packed ids with lengths");
        return NULL;
    }
    int count = (int)in->ids->shape.dim[0];
    int32_t *lengths = mc_tape_alloc(t, ((size_t)count + 1) * sizeof *lengths);
    for (int i = 0; lengths && i < count; i++) lengths[i] = (int32_t)in->ids->shape.dim[1];
    return lengths ? mc_tape_lengths(t, lengths, count, 1) : NULL;
}

/* Takes the tokens that count out of a padded (batch, longest) tensor, or passes a packed one on.
 * The result is i32 (capacity); tail rows are 0. */
static mc_tensor *pack(mc_tape *t, const char *what, mc_tensor *x, const mc_lengths *lengths)
{
    if (!mc_op_ready(t, "BERT", x)) return NULL;
    if (!mc_dtype_is_index(x->dtype)) {
        fail_input(t, what, x, "i32 or i64");
        return NULL;
    }
    bool padded = x->shape.ndim == 2;
    int64_t width = padded ? x->shape.dim[1] : 0;
    bool fits = padded ? x->shape.dim[0] == lengths->count && width >= lengths->longest
                       : x->shape.ndim == 1 && x->shape.dim[0] == lengths->capacity;
    if (!fits) {
        fail_input(t, what, x, "the shape that the lengths give");
        return NULL;
    }
    mc_tensor *out = NULL;
    if (!padded && x->dtype == MC_I32 && lengths->total == lengths->capacity) {
        if ((out = mc_tape_view(t, x, x->shape, 0))) out->lengths = lengths;
        return out;
    }
    const void *data = mc_op_host(t, "BERT", x);
    int32_t *to = mc_tape_alloc(t, ((size_t)lengths->capacity + 1) * sizeof *to);
    if (!data || !to) return NULL;
    for (int i = 0; i < lengths->count; i++)
        for (int32_t k = 0; k < lengths->length[i]; k++) {
            int64_t from = padded ? i * width + k : lengths->offset[i] + k;
            int64_t value = integer_at(x->dtype, data, from);
            /* ids beyond 32 bits stay out of range of every table */
            to[lengths->offset[i] + k] = value < 0 || value > INT32_MAX ? -1 : (int32_t)value;
        }
    if ((out = mc_tape_input(t, MC_I32, MC_SHAPE(lengths->capacity), to, false)))
        out->lengths = lengths;
    return out;
}

static mc_tensor *make_positions(mc_tape *t, const mc_lengths *lengths)
{
    int32_t *position = mc_tape_alloc(t, ((size_t)lengths->capacity + 1) * sizeof *position);
    if (!position) return NULL;
    for (int i = 0; i < lengths->count; i++)
        for (int32_t k = 0; k < lengths->length[i]; k++) position[lengths->offset[i] + k] = k;
    return mc_tape_input(t, MC_I32, MC_SHAPE(lengths->capacity), position, false);
}

static mc_tensor *make_key_mask(mc_tape *t, const mc_bert_input *in, const mc_lengths *lengths)
{
    mc_tensor *mask = in->mask;
    if (in->lengths || in->ids->lengths || !mc_shape_equal(mask->shape, in->ids->shape) ||
        mc_dtype_is_float(mask->dtype)) {
        fail_input(t, "mask", mask, "integers of the ids' shape (batch, longest), without lengths");
        return NULL;
    }
    const void *data = mc_op_host(t, "BERT", mask);
    uint8_t *bytes = mc_tape_alloc(t, (size_t)lengths->total + 1);
    if (!data || !bytes) return NULL;
    for (int64_t i = 0; i < lengths->total; i++) bytes[i] = integer_at(mask->dtype, data, i) != 0;
    return mc_tape_input(t, MC_U8, MC_SHAPE(lengths->total), bytes, false);
}

static bool prepare(mc_tape *t, mc_bert *bert, const mc_bert_input *in, packed *p)
{
    if (!mc_op_ready(t, "BERT", in->ids) || !(p->lengths = choose_lengths(t, in))) return false;
    if (p->lengths->longest > bert->config.positions) {
        mc_fail(mc_tape_context(t), MC_ERR_ARGUMENT,
                "BERT: a sequence of %d tokens, the model has %lld positions", p->lengths->longest,
                (long long)bert->config.positions);
        return false;
    }
    p->ids = pack(t, "ids", in->ids, p->lengths);
    p->positions = p->ids ? make_positions(t, p->lengths) : NULL;
    if (p->positions && in->type_ids)
        p->types = pack(t, "type ids", in->type_ids, p->lengths);
    else if (p->positions)
        p->types = mc_tape_input(t, MC_I32, MC_SHAPE(p->lengths->capacity), NULL, false);
    if (p->types && in->mask) p->key_mask = make_key_mask(t, in, p->lengths);
    return !mc_failed(mc_tape_context(t));
}

/* ---- forward --------------------------------------------------------------------------------- */

static mc_tensor *embed(mc_tape *t, mc_bert *bert, const packed *p)
{
    mc_tensor *tables[] = {mc_embedding_table(t, bert->words),
                           mc_embedding_table(t, bert->positions),
                           mc_embedding_table(t, bert->types)};
    mc_tensor *indices[] = {p->ids, p->positions, p->types};
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
    mc_tensor *hidden = mc_block_list_forward(t, bert->blocks, x, &p.key_mask);
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
