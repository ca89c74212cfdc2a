/* What stands on the stacks: logits, losses, labels, classifiers. */
#include "core/nn/quantized_internal.h"
#include "core/ops/losses.h"
#include "models/model_internal.h"
#include "core/nn/stored.h"
#include "core/ops/fused.h"

static bool has_lm(mc_tape *t, const mc_model *m)
{
    if (!m || mc_failed(mc_tape_context(t))) return false;
    if (m->heads.lm) return true;
    mc_fail(mc_tape_context(t), MC_ERR_STATE, "%s: the model has no language model head",
            m->family->title);
    return false;
}

/* A head of tokens that is no product with the vocabulary. */
static bool is_replaced_head(const mc_model *m) { return m && m->heads.replaced; }

/* What the language model's product takes: hidden states, or what its head makes of them. */
static mc_tensor *lm_input(mc_tape *t, mc_model *m, mc_tensor *hidden)
{
    return m->family->head ? m->family->head(t, m, hidden) : hidden;
}

/* The matrix of the language model's product. */
static mc_parameter *head_of(const mc_model *m)
{
    return m->head_weight ? m->head_weight : mc_embedding_weight(m->words);
}

mc_tensor *mc_model_logits(mc_tape *t, mc_model *m, mc_tensor *hidden)
{
    mc_context *ctx = mc_tape_context(t);
    if (!mc_given_as(ctx, m, "model") || !mc_op_ready(t, "logits", hidden)) return NULL;
    if (m->token_head) return mc_linear_forward(t, m->token_head, hidden);
    if (is_replaced_head(m)) return m->family->replaced(t, m, hidden);
    mc_tensor *x = has_lm(t, m) ? lm_input(t, m, hidden) : NULL;
    if (!x) return NULL;
    mc_parameter *head = head_of(m);
    mc_tensor *bias = m->head_bias ? mc_parameter_tensor(t, m->head_bias) : NULL;
    if (mc_stored_has_quantized(head->stored))
        return mc_stored_product(t, x, head->stored, m->shape.vocab_size, bias, MC_ACTIVATION_NONE,
                                 m->head_scale);
    mc_tensor *weight = mc_parameter_tensor(t, head);
    return mc_scaled_linear(t, x, weight, bias, MC_ACTIVATION_NONE, m->head_scale);
}

static mc_tensor *lm_loss(mc_tape *t, mc_model *m, mc_tensor *x, mc_tensor *labels)
{
    mc_parameter *head = head_of(m);
    mc_tensor *weight = mc_stored_has_quantized(head->stored)
                            ? mc_stored_dequantized(t, head->stored)
                            : mc_parameter_whole(t, head);
    mc_tensor *bias = m->head_bias ? mc_parameter_whole(t, m->head_bias) : NULL;
    return mc_linear_cross_entropy(t, x, weight, bias, m->shape.vocab_size, labels,
                                   &(mc_cross_entropy_options){.logit_scale = m->head_scale});
}

/* Labels other than -100: which rows they are of, and how many. */
typedef struct counting {
    int32_t *row, *label;
    int64_t count;
} counting;

static bool find_counting(mc_tape *t, const char *op, mc_tensor *labels, int64_t rows,
                          int64_t classes, counting *c)
{
    mc_tensor *checked = mc_op_indices(t, op, "label", labels, rows, classes, -100);
    *c = (counting){.row = mc_tape_alloc(t, ((size_t)rows + 1) * sizeof *c->row),
                    .label = mc_tape_alloc(t, ((size_t)rows + 1) * sizeof *c->label)};
    const int32_t *label = checked && c->row && c->label ? mc_op_host(t, op, checked) : NULL;
    for (int64_t i = 0; label && i < rows; i++) {
        if (label[i] == -100) continue;
        c->row[c->count] = (int32_t)i;
        c->label[c->count++] = label[i];
    }
    return label;
}

/* The loss of an encoder, of which few rows count: the head is run on those alone. */
static mc_tensor *masked_loss(mc_tape *t, mc_model *m, mc_tensor *hidden, mc_tensor *labels)
{
    int64_t rows = mc_tensor_rows(hidden);
    counting c;
    if (!find_counting(t, "masked language model", labels, rows, m->shape.vocab_size, &c))
        return NULL;
    mc_tensor *targets = mc_tape_input(t, MC_I32, MC_SHAPE(c.count), c.label, false);
    /* ranks mask unequal numbers of tokens: the rows of all labels are nominal */
    if (targets) targets->nominal_rows = labels->nominal_rows ? labels->nominal_rows : rows;
    mc_tensor *x = mc_gather_rows(t, hidden, c.row, c.count);
    x = x ? lm_input(t, m, x) : NULL;
    return x && targets ? lm_loss(t, m, x, targets) : NULL;
}

/* The binary cross-entropy of the rows that count. */
static mc_tensor *replaced_loss(mc_tape *t, mc_model *m, mc_tensor *hidden, mc_tensor *labels)
{
    counting c;
    if (!find_counting(t, "replaced tokens", labels, mc_tensor_rows(hidden), 2, &c)) return NULL;
    float *target = mc_tape_alloc(t, ((size_t)c.count + 1) * sizeof *target);
    for (int64_t i = 0; target && i < c.count; i++) target[i] = (float)c.label[i];
    mc_tensor *targets =
        target ? mc_tape_input(t, MC_F32, MC_SHAPE(c.count, 1), target, false) : NULL;
    mc_tensor *x = mc_gather_rows(t, hidden, c.row, c.count);
    x = x ? m->family->replaced(t, m, x) : NULL;
    return x && targets ? mc_bce_loss(t, x, targets, NULL) : NULL;
}

mc_tensor *mc_model_loss(mc_tape *t, mc_model *m, mc_tensor *hidden, mc_tensor *labels)
{
    if (!mc_given_as(mc_tape_context(t), m, "model") || !mc_op_ready(t, "language model", hidden) ||
        !mc_op_ready(t, "language model", labels))
        return NULL;
    int64_t rows = mc_tensor_rows(hidden);
    bool room = hidden->lengths && hidden->lengths->fixed && mc_tensor_count(labels) > rows;
    if (room) labels = mc_tape_view(t, labels, MC_SHAPE(rows), 0);
    if (!labels) return NULL;
    if (m->token_head) return mc_cross_entropy(t, mc_model_logits(t, m, hidden), labels, NULL);
    if (is_replaced_head(m)) return replaced_loss(t, m, hidden, labels);
    if (!has_lm(t, m)) return NULL;
    return m->family->head ? masked_loss(t, m, hidden, labels) : lm_loss(t, m, hidden, labels);
}

mc_tensor *mc_model_loss_of_rows(mc_tape *t, mc_model *m, mc_tensor *hidden, mc_tensor *rows,
                                 mc_tensor *labels)
{
    if (!mc_given_as(mc_tape_context(t), m, "model") || !mc_op_ready(t, "language model", hidden) ||
        !has_lm(t, m))
        return NULL;
    mc_tensor *x = mc_embed(t, 1, &hidden, &rows);
    x = x ? lm_input(t, m, x) : NULL;
    return x ? lm_loss(t, m, x, labels) : NULL;
}

/* ---- labels ---------------------------------------------------------------------------------- */

/* An id that no i32 can hold must not become another one. */
static int32_t narrow(int64_t value)
{
    return value < INT32_MIN || value > INT32_MAX ? -1 : (int32_t)value;
}

mc_tensor *mc_model_shift_labels(mc_tape *t, mc_tensor *hidden, mc_tensor *labels)
{
    static const char op[] = "labels";
    if (!mc_op_ready(t, op, hidden) || !mc_op_ready(t, op, labels)) return NULL;
    const mc_lengths *l = hidden->lengths;
    if (!l)
        mc_fail(mc_tape_context(t), MC_ERR_ARGUMENT, "%s: hidden states %s carry no lengths", op,
                MC_SHAPE_TEXT(hidden->shape));
    if (!l || !mc_pack_check(t, op, "labels", labels, l) || !mc_op_host_lengths(t, op, l))
        return NULL;
    const void *data = mc_op_host(t, op, labels);
    int32_t *next = mc_tape_alloc(t, ((size_t)l->capacity + 1) * sizeof *next);
    if (!data || !next) return NULL;
    for (int64_t i = 0; i < l->capacity; i++) next[i] = -100;
    for (int i = 0; i < l->count; i++)
        for (int32_t k = 0; k + 1 < l->length[i]; k++) {
            int64_t first = labels->shape.ndim == 2 ? i * labels->shape.dim[1] : l->offset[i];
            next[l->offset[i] + k] = narrow(mc_integer_at(labels->dtype, data, first + k + 1));
        }
    return mc_tape_input(t, MC_I32, MC_SHAPE(l->capacity), next, false);
}

mc_tensor *mc_model_shift_right(mc_tape *t, mc_model *m, mc_tensor *labels, const mc_lengths *l)
{
    static const char op[] = "shift right";
    if (!mc_given_as(mc_tape_context(t), m, "model") || !mc_op_ready(t, op, labels)) return NULL;
    bool padded = labels->shape.ndim == 2;
    if (m->shape.start_token < 0 || (!padded && !l)) {
        mc_fail(mc_tape_context(t), MC_ERR_ARGUMENT, "%s: %s", op,
                m->shape.start_token < 0 ? "the model has no decoder start token"
                                         : "labels are not (batch, length), and lengths are NULL");
        return NULL;
    }
    if (!padded && (!mc_pack_check(t, op, "labels", labels, l) || !mc_op_host_lengths(t, op, l)))
        return NULL;
    int64_t count = mc_tensor_count(labels), rows = padded ? labels->shape.dim[0] : l->count;
    const void *data = mc_op_host(t, op, labels);
    int32_t *ids = mc_tape_alloc(t, ((size_t)count + 1) * sizeof *ids);
    if (!data || !ids) return NULL;
    for (int64_t i = 0; i < rows; i++) {
        int64_t width = padded ? labels->shape.dim[1] : l->length[i];
        int64_t first = padded ? i * width : l->offset[i];
        for (int64_t k = 0; k < width; k++) {
            int64_t before =
                k ? mc_integer_at(labels->dtype, data, first + k - 1) : m->shape.start_token;
            ids[first + k] = before == -100
                                 ? (m->shape.pad_token < 0 ? 0 : (int32_t)m->shape.pad_token)
                                 : narrow(before);
        }
    }
    return mc_tape_input(t, MC_I32, labels->shape, ids, false);
}

/* ---- classifiers ----------------------------------------------------------------------------- */

mc_tensor *mc_model_classify(mc_tape *t, mc_model *m, const mc_model_output *out)
{
    mc_context *ctx = mc_tape_context(t);
    if (!mc_model_ready(t, m, __func__) || !mc_given_as(ctx, out, "output")) return NULL;
    if (m->heads.labels)
        return mc_given_as(ctx, out->last_hidden, "output->last_hidden")
                   ? m->family->classify(t, m, out)
                   : NULL;
    mc_fail(ctx, MC_ERR_STATE, "%s: the model has no classification head", m->family->title);
    return NULL;
}

mc_tensor *mc_model_nsp_logits(mc_tape *t, mc_model *m, mc_tensor *pooled)
{
    if (!mc_model_ready(t, m, __func__)) return NULL;
    if (m->heads.nsp) return m->family->nsp(t, m, pooled);
    mc_fail(mc_tape_context(t), MC_ERR_STATE, "%s: the model has no next sentence head",
            m->family->title);
    return NULL;
}
