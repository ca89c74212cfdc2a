/* Virtual tokens: their parameter, and batches of ids with them. */
#include "models/adapters/adapter.h"

#include <string.h>
#include "core/base/memory_internal.h"
#include "core/ops/ops_internal.h"
#include "models/adapters/adapter_internal.h"

static const char kind[] = "soft prompt";

/* ---- the parameter --------------------------------------------------------------------------- */

static bool check(const mc_model *m, const mc_soft_prompt_options *o)
{
    mc_context *ctx = m->module.ctx;
    const mc_family *f = m->family;
    bool two = f->kind == MC_MODEL_ENCODER_DECODER;
    int64_t positions = m->shape.positions, most = positions ? positions - 1 : 1 << 16;
    if (f->own_form)
        mc_fail(ctx, MC_ERR_UNSUPPORTED,
                "%s: %s, which `transformers` does not have, takes no virtual tokens", kind,
                f->title);
    else if (f->has.pixels)
        mc_fail(ctx, MC_ERR_UNSUPPORTED, "%s: %s, which reads images, takes no virtual tokens",
                kind, f->title);
    else if (m->words_dim)
        mc_fail(ctx, MC_ERR_UNSUPPORTED,
                "%s: words of %lld columns, which %s projects to %lld, take no virtual tokens",
                kind, (long long)m->words_dim, f->title, (long long)m->shape.dim);
    else if (two && m->heads.labels)
        mc_fail(ctx, MC_ERR_UNSUPPORTED,
                "%s: a classifier of %s takes no virtual tokens, expected a model without", kind,
                f->title);
    else if (o->tokens < 1 || o->tokens > most)
        mc_fail(ctx, MC_ERR_ARGUMENT, "%s: %d virtual tokens, expected 1 to %lld", kind, o->tokens,
                (long long)most);
    else if (o->stacks < 1 || o->stacks > 1 + two)
        mc_fail(ctx, MC_ERR_UNSUPPORTED, "%s: vectors for %d stacks of %s, expected %s", kind,
                o->stacks, f->title, two ? "1 or 2" : "1");
    return !mc_failed(ctx);
}

mc_status mc_soft_prompt_add(mc_model *m, const mc_soft_prompt_options *options)
{
    if (!m) return MC_ERR_ARGUMENT;
    mc_context *ctx = m->module.ctx;
    mc_soft_prompt_options o = options ? *options : (mc_soft_prompt_options){0};
    if (!o.stacks) o.stacks = 1;
    if (mc_failed(ctx) || !check(m, &o)) return mc_error_status(ctx);
    mc_model_adapter *a = mc_adapter_begin(m, kind, o.modules_to_save, o.base);
    if (!a) return mc_error_status(ctx);
    a->vectors = mc_parameter_new(&m->module, "prompt_embeddings",
                                  MC_SHAPE((int64_t)o.tokens * o.stacks, m->shape.dim),
                                  mc_init_normal(0, 1));
    if (!a->vectors) return mc_error_status(ctx);
    a->vectors->is_factor = a->vectors->in_adapter = true;
    o.modules_to_save = a->modules;
    o.base = a->base;
    a->prompt = o;
    m->adapter = a;
    if (m->shape.positions) m->shape.positions -= o.tokens;
    return MC_OK;
}

/* Copies words' rows of `from` to the vectors. */
static void copy_words(mc_model *m, mc_parameter *from, float *words, const int32_t *ids, int count)
{
    mc_parameter *to = m->adapter->vectors;
    size_t width = (size_t)m->shape.dim;
    float *values = mc_malloc((size_t)mc_shape_count(to->shape) * sizeof *values);
    if (!values)
        mc_fail_nomem(m->module.ctx, "virtual tokens");
    else if (!mc_parameter_read(from, words)) {
        for (int64_t i = 0; i < to->shape.dim[0]; i++)
            memcpy(values + (size_t)i * width, words + (size_t)ids[i % count] * width,
                   width * sizeof *values);
        mc_parameter_write(to, values);
    }
    mc_free(values);
}

mc_status mc_soft_prompt_set_words(mc_model *m, const int32_t *ids, int count)
{
    if (!m) return MC_ERR_ARGUMENT;
    mc_context *ctx = m->module.ctx;
    if (mc_failed(ctx) || !mc_given(ctx, ids)) return mc_error_status(ctx);
    if (!mc_virtual_tokens(m) || count < 1)
        return mc_fail(ctx, MC_ERR_ARGUMENT, "%s: %s", kind,
                       count < 1 ? "no words to begin with" : "the model has no virtual tokens");
    for (int i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= m->shape.vocab_size)
            return mc_fail(ctx, MC_ERR_ARGUMENT, "%s: id %d of word %d, expected 0 to %lld", kind,
                           ids[i], i, (long long)m->shape.vocab_size - 1);
    mc_parameter *words = mc_module_find_parameter(&m->module, "input_embedding.weight");
    float *values = words ? mc_malloc((size_t)mc_shape_count(words->shape) * sizeof *values) : NULL;
    if (values)
        copy_words(m, words, values, ids, count);
    else
        mc_fail_nomem(ctx, "the words of a soft prompt");
    mc_free(values);
    return mc_error_status(ctx);
}

const mc_soft_prompt_options *mc_model_soft_prompt(const mc_model *m)
{
    return mc_virtual_tokens(m) ? &m->adapter->prompt : NULL;
}

int mc_virtual_tokens(const mc_model *m) { return m && m->adapter ? m->adapter->prompt.tokens : 0; }

mc_tensor *mc_virtual_tokens_table(mc_tape *t, mc_model *m)
{
    const mc_soft_prompt_options *o = &m->adapter->prompt;
    mc_tensor *all = mc_parameter_tensor(t, m->adapter->vectors);
    return all && o->stacks > 1 ? mc_slice(t, all, 0, 0, o->tokens) : all;
}

/* ---- batches --------------------------------------------------------------------------------- */

/* What a capacity was rounded to, as far as kernels care; 1: it was not. */
static int64_t rounding_of(const mc_lengths *l)
{
    for (int64_t step = 64; step > 1 && l->capacity != l->total; step /= 2)
        if (l->capacity % step == 0) return step;
    return 1;
}

static const mc_lengths *longer(mc_tape *t, const mc_model *m, const mc_lengths *l)
{
    int32_t n = mc_virtual_tokens(m);
    if (l->fixed) {
        mc_fail(mc_tape_context(t), MC_ERR_UNSUPPORTED,
                "%s: virtual tokens before sequences whose lengths a recorded step refills: "
                "expected lengths of the tape",
                m->family->title);
        return NULL;
    }
    int32_t *length = mc_tape_alloc(t, ((size_t)l->count + 1) * sizeof *length);
    for (int i = 0; length && i < l->count; i++) length[i] = l->length[i] + n;
    return length ? mc_tape_lengths(t, length, l->count, rounding_of(l)) : NULL;
}

/* Row k < n of a sequence is virtual token k, and the others are those of the packed text, n
 * further on: rows of a table of both. Behind the last sequence the first one serves. */
static mc_tensor *make_rows(mc_tape *t, const mc_lengths *text, const mc_lengths *all, int32_t n)
{
    int32_t *row = mc_tape_alloc(t, ((size_t)all->capacity + 1) * sizeof *row);
    for (int i = 0; row && i < all->count; i++)
        for (int32_t k = 0; k < all->length[i]; k++)
            row[all->offset[i] + k] = k < n ? k : text->offset[i] + k;
    mc_tensor *rows = row ? mc_tape_input(t, MC_I32, MC_SHAPE(all->capacity), row, false) : NULL;
    if (rows) rows->lengths = all;
    return rows;
}

/* Integers of each token, with `value` for those that are virtual. */
static mc_tensor *spread(mc_tape *t, const mc_stack_input *in, const mc_lengths *all, mc_tensor *x,
                         int32_t value, mc_dtype dtype)
{
    const mc_lengths *text = in->lengths;
    const void *data = mc_op_host(t, kind, x);
    int32_t *wide = mc_tape_alloc(t, ((size_t)all->capacity + 1) * sizeof *wide);
    uint8_t *narrow = mc_tape_alloc(t, (size_t)all->capacity + 1);
    if (!data || !wide || !narrow) return NULL;
    for (int i = 0; i < all->count; i++)
        for (int32_t k = 0; k < all->length[i]; k++) {
            int32_t n = all->length[i] - text->length[i], at = all->offset[i] + k;
            wide[at] =
                k < n ? value : (int32_t)mc_integer_at(x->dtype, data, text->offset[i] + k - n);
            narrow[at] = (uint8_t)wide[at];
        }
    bool bytes = dtype == MC_U8;
    mc_shape shape = MC_SHAPE(bytes ? all->total : all->capacity);
    mc_tensor *out = mc_tape_input(t, dtype, shape, bytes ? (void *)narrow : wide, false);
    if (out && !bytes) out->lengths = all;
    return out;
}

bool mc_virtual_tokens_prepend(mc_tape *t, mc_model *m, mc_stack_input *in)
{
    int n = mc_virtual_tokens(m);
    if (!n || mc_failed(mc_tape_context(t))) return !mc_failed(mc_tape_context(t));
    const mc_lengths *all = longer(t, m, in->lengths);
    if (!all || !(in->rows = make_rows(t, in->lengths, all, n))) return false;
    if (in->types) in->types = spread(t, in, all, in->types, 0, MC_I32);
    if (in->call.key_mask) in->call.key_mask = spread(t, in, all, in->call.key_mask, 1, MC_U8);
    bool by_position = in->call.globals == in->positions; /* the first tokens */
    in->positions = in->call.positions = mc_pack_positions(t, all, NULL);
    if (in->call.globals)
        in->call.globals =
            by_position ? in->positions : spread(t, in, all, in->call.globals, 1, MC_I32);
    in->lengths = all;
    in->longest += n;
    return !mc_failed(mc_tape_context(t));
}

mc_tensor *mc_virtual_tokens_drop(mc_tape *t, mc_tensor *hidden, const mc_stack_input *in)
{
    if (!hidden || !in->rows) return hidden;
    const mc_lengths *text = in->ids->lengths, *all = in->lengths;
    int32_t *row = mc_tape_alloc(t, ((size_t)text->capacity + 1) * sizeof *row);
    for (int i = 0; row && i < text->count; i++)
        for (int32_t k = 0; k < text->length[i]; k++)
            row[text->offset[i] + k] = all->offset[i + 1] - text->length[i] + k;
    mc_tensor *x = row ? mc_gather_rows(t, hidden, row, text->capacity) : NULL;
    return x ? mc_with_lengths(t, x, text) : NULL;
}
