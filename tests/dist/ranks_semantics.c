/* What programs do with a tape, a model and an OptimManager beside plain steps, over several ranks:
 * run by mpirun, each rank also does it alone with all rows, and both have to come to the same
 * losses, norms and weights.
 *
 *     mpirun -np 3 ranks_semantics [NAME]     at every level; only what is called so
 *
 * Prints a line for each case that differs; exits with 0 if there is none. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "core/optim/optimizer_internal.h"
#include "tests/dist/ranks_test.h"

enum { STEPS = 5, ROWS = 7 /* of a set, of all ranks */, DIM = 16, CLASSES = 5, MOST = 1 << 14 };

/* ---- the model ------------------------------------------------------------------------------- */

typedef struct block {
    mc_module module;
    mc_layernorm *norm;
    mc_linear *up, *down;
    mc_block_list *inner; /* NULL: none */
    float dropout;
    mc_linear *more; /* NULL: none */
} block;

typedef struct model {
    mc_module module;
    mc_parameter *gate, *mix; /* mix stands at both ends */
    mc_block_list *first, *second, *none;
    mc_linear *head;
    mc_parameter *more; /* NULL: none */
} model;

typedef struct setting {
    int level;
    int levels[3]; /* of the root and the two lists; 0: as `level` */
    mc_recompute recompute;
    mc_dtype dtype;
    bool rounded; /* gradients are of that dtype too: MC_GRAD_PARAMETER */
    bool nested;  /* a list in each block of the first list */
    float dropout;
    bool offload;
    double loss_scale;
} setting;

typedef struct run {
    mc_context *ctx, *all;
    int rank, ranks;
    const setting *s;
    model *m;
    mc_linear *other; /* another model, of f32 */
    mc_optimizer *sgd;
    mc_optim_manager *optim;
    mc_tape *kept; /* of a step before */
    int step;
    double loss[STEPS], norm[STEPS], extra[STEPS];
    double terms[STEPS]; /* of extra's sums: the sum of their magnitudes */
    float weights[MOST];
} run;

static void *new_inner(mc_module *list, const char *name, int index, void *config)
{
    block *b = mc_module_add(list, name, sizeof *b);
    (void)index, (void)config;
    if (b)
        b->up = mc_linear_add(&b->module, "up", DIM, DIM, &(mc_linear_options){.init_std = 0.2f});
    return b;
}

static mc_tensor *inner_forward(mc_tape *t, void *user, mc_tensor *x, const mc_call *call)
{
    block *b = user;
    (void)call;
    return mc_add(t, x, mc_tanh(t, mc_linear_forward(t, b->up, x)));
}

static void *new_block(mc_module *list, const char *name, int index, void *config)
{
    const setting *s = config;
    block *b = mc_module_add(list, name, sizeof *b);
    mc_linear_options options = {.init_std = 0.2f};
    if (!b) return NULL;
    b->dropout = s->dropout;
    b->norm = mc_layernorm_add(&b->module, "norm", DIM, 0);
    b->up = mc_linear_add(&b->module, "up", DIM, 2 * DIM, &options);
    if (s->nested)
        b->inner = mc_block_list_new(&b->module, "inner", 2, new_inner, inner_forward,
                                     &(mc_block_options){.recompute = index ? s->recompute : 0});
    b->down = mc_linear_add(&b->module, "down", 2 * DIM, DIM, &options);
    return b->down ? b : NULL;
}

static mc_tensor *block_forward(mc_tape *t, void *user, mc_tensor *x, const mc_call *call)
{
    block *b = user;
    mc_tensor *h = mc_layernorm_forward(t, b->norm, x);
    if (b->inner) h = mc_block_list_forward(t, b->inner, h, NULL);
    h = mc_dropout(t, mc_gelu(t, mc_linear_forward(t, b->up, h)), b->dropout);
    h = mc_linear_forward(t, b->down, h);
    if (b->more) h = mc_add(t, h, mc_tanh(t, mc_linear_forward(t, b->more, x)));
    return mc_add(t, x, call->extra[0] ? mc_mul(t, call->extra[0], h) : h);
}

static mc_block_list *add_list(model *m, const char *name, int count, const setting *s, int level)
{
    mc_block_options o = {.zero_level = level ? (mc_zero_level)level : MC_ZERO_DEFAULT,
                          .recompute = s->recompute,
                          .config = (void *)(uintptr_t)s};
    return mc_block_list_new(&m->module, name, count, new_block, block_forward, &o);
}

static model *model_new(mc_context *ctx, const setting *s)
{
    mc_module_options o = {.dtype = s->dtype, .zero_level = (mc_zero_level)s->levels[0]};
    model *m = mc_module_new(ctx, "", sizeof *m, &o);
    if (!m) return NULL;
    m->gate = mc_parameter_new(&m->module, "gate", MC_SHAPE(DIM), mc_init_normal(1, 0.1f));
    m->mix = mc_parameter_new(&m->module, "mix", MC_SHAPE(DIM, DIM), mc_init_normal(0, 0.3f));
    m->first = add_list(m, "first", 3, s, s->levels[1]);
    m->second = add_list(m, "second", 1, s, s->levels[2]);
    m->none = add_list(m, "none", 0, s, 0);
    m->head =
        mc_linear_add(&m->module, "head", DIM, CLASSES, &(mc_linear_options){.init_std = 0.2f});
    return m;
}

/* ---- data ------------------------------------------------------------------------------------ */

static uint32_t hash(uint32_t x)
{
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

/* A set of rows, of which each rank has every ranks-th. */
typedef struct rows {
    mc_tensor *x, *labels;
    int count;
} rows;

/* `total` rows; labels of those below `ignored` do not count. */
static rows take_rows(run *r, mc_tape *t, int set, int total, int ignored, bool requires_grad)
{
    float x[ROWS * DIM];
    int32_t labels[ROWS];
    rows out = {.count = 0};
    for (int i = r->rank; i < total; i += r->ranks) {
        uint32_t seed = (uint32_t)(1000 * set + i);
        for (int k = 0; k < DIM; k++)
            x[out.count * DIM + k] = (float)(int32_t)hash(seed * 64 + (uint32_t)k) / 2147483648.0f;
        labels[out.count++] = i < ignored ? -100 : (int32_t)(hash(seed) % CLASSES);
    }
    out.x = mc_tape_input(t, MC_F32, MC_SHAPE(out.count, DIM), x, requires_grad);
    out.labels = mc_tape_input(t, MC_I32, MC_SHAPE(out.count), labels, false);
    return out;
}

static mc_tensor *begin_model(run *r, mc_tape *t, mc_tensor *x)
{
    model *m = r->m;
    x = mc_mul(t, mc_cast(t, x, r->s->dtype ? r->s->dtype : MC_F32),
               mc_parameter_tensor(t, m->gate));
    return mc_fused_linear(t, x, mc_parameter_tensor(t, m->mix), NULL, MC_ACTIVATION_NONE);
}

static mc_tensor *end_model(run *r, mc_tape *t, mc_tensor *x)
{
    mc_tensor *bias = r->m->more ? mc_parameter_tensor(t, r->m->more) : NULL;
    return mc_fused_linear(t, x, mc_parameter_tensor(t, r->m->mix), bias, MC_ACTIVATION_TANH);
}

static mc_tensor *hidden(run *r, mc_tape *t, mc_tensor *x)
{
    x = begin_model(r, t, x);
    x = mc_block_list_forward(t, r->m->first, x, NULL);
    x = mc_block_list_forward(t, r->m->second, x, NULL);
    return end_model(r, t, mc_block_list_forward(t, r->m->none, x, NULL));
}

static mc_tensor *loss_of(run *r, mc_tape *t, mc_tensor *h, const rows *in)
{
    return mc_cross_entropy(t, mc_linear_forward(t, r->m->head, h), in->labels, NULL);
}

static mc_tensor *fused_loss(run *r, mc_tape *t, mc_tensor *h, const rows *in)
{
    mc_parameter *w = mc_module_find_parameter(&r->m->module, "head.weight");
    return mc_linear_cross_entropy(t, h, mc_parameter_whole(t, w), NULL, CLASSES, in->labels, NULL);
}

static mc_tensor *plain_loss(run *r, mc_tape *t, int set)
{
    rows in = take_rows(r, t, set, ROWS, 1, false);
    return loss_of(r, t, hidden(r, t, in.x), &in);
}

static void plain_backward(run *r, int set)
{
    mc_tape *t = mc_tape_begin(r->ctx);
    mc_optim_manager_backward(r->optim, t, plain_loss(r, t, set));
    mc_tape_end(t);
}

/* The mean loss of a set, in evaluation. */
static double evaluate(run *r, int set)
{
    mc_tape *t = mc_tape_begin_eval(r->ctx);
    double loss = mc_global_mean_loss(r->ctx, plain_loss(r, t, set));
    mc_tape_end(t);
    return loss;
}

static void end_step(run *r)
{
    mc_optim_manager_clip_grad_norm(r->optim, 1.0f);
    mc_optim_manager_step(r->optim);
}

/* Ranks have unequal rows. */
static void zero_grad(run *r)
{
    mc_optim_manager_zero_grad_plan(r->optim, &(mc_step_plan){.nominal_rows = ROWS});
}

/* ---- what programs do ------------------------------------------------------------------------ */

static void plain(run *r)
{
    zero_grad(r);
    plain_backward(r, r->step);
    end_step(r);
}

/* The lists run on two inputs on one tape, the second time the other way round. */
static void list_twice(run *r)
{
    zero_grad(r);
    mc_tape *t = mc_tape_begin(r->ctx);
    rows a = take_rows(r, t, r->step, ROWS, 1, false),
         b = take_rows(r, t, r->step + 50, 4, 0, false);
    mc_tensor *x = hidden(r, t, a.x), *y = begin_model(r, t, b.x);
    y = mc_block_list_forward(t, r->m->second, y, NULL);
    y = end_model(r, t, mc_block_list_forward(t, r->m->first, y, NULL));
    mc_tensor *loss = mc_loss_add(t, loss_of(r, t, x, &a), loss_of(r, t, x, &a), 0.5f);
    mc_optim_manager_backward(r->optim, t, loss);
    mc_optim_manager_backward(r->optim, t, loss_of(r, t, y, &b));
    mc_tape_end(t);
    end_step(r);
}

/* Two tapes alive at once; backward of the older or the newer first. */
static void two_tapes(run *r)
{
    zero_grad(r);
    mc_tape *t = mc_tape_begin(r->ctx), *u = mc_tape_begin(r->ctx);
    mc_tensor *a = plain_loss(r, t, r->step), *b = plain_loss(r, u, r->step + 50);
    if (r->step % 2) {
        mc_optim_manager_backward(r->optim, u, b);
        mc_tape_end(u);
        mc_optim_manager_backward(r->optim, t, a);
        mc_tape_end(t);
    } else {
        mc_optim_manager_backward(r->optim, t, a);
        mc_optim_manager_backward(r->optim, u, b);
        mc_tape_end(u);
        mc_tape_end(t);
    }
    end_step(r);
}

/* The same without blocks and cross-entropy in one with the head, whose gradients come forward. */
static void two_tapes_fused(run *r)
{
    zero_grad(r);
    mc_tape *t = mc_tape_begin(r->ctx), *u = mc_tape_begin(r->ctx);
    rows a = take_rows(r, t, r->step, ROWS, 1, false),
         b = take_rows(r, u, r->step + 50, 4, 0, false);
    mc_tensor *x = hidden(r, t, a.x), *y = hidden(r, u, b.x);
    mc_optim_manager_backward(r->optim, t, fused_loss(r, t, x, &a));
    mc_optim_manager_backward(r->optim, u, fused_loss(r, u, y, &b));
    mc_tape_end(u);
    mc_tape_end(t);
    end_step(r);
}

/* Evaluation between forward and backward, between micro-steps and between steps. */
static void evaluations(run *r)
{
    double sum = evaluate(r, 90);
    zero_grad(r);
    mc_tape *t = mc_tape_begin(r->ctx);
    mc_tensor *loss = plain_loss(r, t, r->step);
    sum += evaluate(r, 91);
    mc_optim_manager_backward(r->optim, t, loss);
    sum += evaluate(r, 92);
    mc_tape_end(t);
    plain_backward(r, r->step + 50);
    sum += evaluate(r, 93);
    end_step(r);
    r->extra[r->step] = sum;
}

static double sum_of(run *r, mc_parameter *p)
{
    float values[4 * DIM * DIM];
    double sum = 0;
    mc_parameter_read(p, values);
    for (int64_t i = 0; i < mc_shape_count(mc_parameter_shape(p)); i++)
        sum += (double)values[i] * (double)(1 + i % 7);
    return mc_failed(r->ctx) ? NAN : sum;
}

static double gradient_sum_of(run *r, mc_parameter *p)
{
    float values[4 * DIM * DIM];
    /* what backward divides by differs where the rows do not divide by the ranks */
    double sum = 0, scale = r->optim->open.nominal > 0 ? r->optim->open.nominal : 1;
    mc_parameter_read_gradient(p, values);
    for (int64_t i = 0; i < mc_shape_count(mc_parameter_shape(p)); i++) {
        double term = scale * (double)values[i] * (double)(1 + i % 7);
        sum += term;
        r->terms[r->step] += fabs(term);
    }
    return mc_failed(r->ctx) ? NAN : sum;
}

/* A tape stays open over the step, and another sees the new parameters all the same; so does who
 * reads them. */
static void open_over_step(run *r)
{
    zero_grad(r);
    mc_tape *t = mc_tape_begin(r->ctx);
    mc_optim_manager_backward(r->optim, t, plain_loss(r, t, r->step));
    end_step(r);
    double sum = sum_of(r, r->m->mix) + sum_of(r, mc_module_find_parameter(&r->m->module, "gate"));
    sum += evaluate(r, 90);
    mc_tape_end(r->kept);
    r->kept = t; /* for another step */
    r->extra[r->step] = sum;
}

/* Backward sees the parameters of a step that was taken since forward. */
static void step_between(run *r)
{
    zero_grad(r);
    mc_tape *t = mc_tape_begin(r->ctx);
    mc_tensor *loss = plain_loss(r, t, r->step);
    plain_backward(r, r->step + 50);
    end_step(r);
    zero_grad(r);
    mc_optim_manager_backward(r->optim, t, loss);
    mc_tape_end(t);
    end_step(r);
}

/* Losses of graphs that share nothing but parameters, backward in turn on one tape. */
static void in_turn(run *r)
{
    zero_grad(r);
    mc_tape *t = mc_tape_begin(r->ctx);
    mc_tensor *a = plain_loss(r, t, r->step), *b = plain_loss(r, t, r->step + 50);
    mc_optim_manager_backward(r->optim, t, a);
    mc_optim_manager_backward(r->optim, t, b);
    mc_optim_manager_backward(r->optim, t, plain_loss(r, t, r->step + 60));
    mc_tape_end(t);
    end_step(r);
}

/* Gradients of one's own, looked at in between; gradients of inputs. */
static void own_gradients(run *r)
{
    zero_grad(r);
    double sum = 0;
    mc_tape *u = mc_tape_begin(r->ctx);
    rows late = take_rows(r, u, r->step + 70, ROWS, 0, false);
    mc_tensor *kept = hidden(r, u, late.x);
    for (int i = 0; i < 2; i++) {
        mc_tape *t = mc_tape_begin(r->ctx);
        rows in = take_rows(r, t, r->step + 50 * i, ROWS, 0, true);
        mc_tensor *y = hidden(r, t, in.x);
        float g[ROWS * DIM], dx[ROWS * DIM];
        for (int k = 0; k < in.count * DIM; k++) g[k] = 0.002f * (float)(k % DIM);
        mc_tensor *dy = mc_tape_input(t, MC_F32, MC_SHAPE(in.count, DIM), g, false);
        mc_tape_backward(t, y, mc_cast(t, dy, mc_tensor_dtype(y)));
        mc_tensor *gradient = mc_tensor_gradient(in.x);
        double mine = 0, all[64] = {0};
        if (gradient) mc_tensor_read_f32(r->ctx, gradient, dx, (size_t)in.count * DIM);
        for (int k = 0; k < in.count * DIM; k++) mine += (double)dx[k] * (1 + k % DIM);
        mc_gather_numbers(r->ctx, &mine, 1, all);
        for (int k = 0; k < r->ranks; k++) sum += all[k];
        mc_tape_end(t);
        sum += gradient_sum_of(r, r->m->mix);
    }
    float g[ROWS * DIM];
    for (int k = 0; k < late.count * DIM; k++) g[k] = 0.002f * (float)(k % DIM);
    mc_tensor *dy = mc_tape_input(u, MC_F32, MC_SHAPE(late.count, DIM), g, false);
    mc_tape_backward(u, kept, mc_cast(u, dy, mc_tensor_dtype(kept)));
    mc_tape_end(u);
    sum += gradient_sum_of(r, r->m->gate);
    end_step(r);
    r->extra[r->step] = sum;
}

/* A list takes no part in some steps, and in some micro-steps. */
static void skipped(run *r)
{
    zero_grad(r);
    for (int micro = 0; micro < 2; micro++) {
        mc_tape *t = mc_tape_begin(r->ctx);
        rows in = take_rows(r, t, r->step + 50 * micro, ROWS, 2, false);
        mc_tensor *x = begin_model(r, t, in.x);
        if (r->step % 2) x = mc_block_list_forward(t, r->m->first, x, NULL);
        if (micro) x = mc_block_list_forward(t, r->m->second, x, NULL);
        mc_optim_manager_backward(r->optim, t, loss_of(r, t, end_model(r, t, x), &in));
        mc_tape_end(t);
    }
    end_step(r);
}

/* A parameter of a block is used outside of it too, before, after and between. */
static void outside(run *r)
{
    zero_grad(r);
    mc_tape *t = mc_tape_begin(r->ctx);
    rows in = take_rows(r, t, r->step, ROWS, 1, false);
    block *b = mc_block_list_at(r->m->first, 1), *c = mc_block_list_at(r->m->second, 0);
    mc_tensor *x = begin_model(r, t, in.x);
    x = mc_layernorm_forward(t, c->norm, x);
    x = mc_block_list_forward(t, r->m->first, x, NULL);
    x = mc_linear_forward(t, b->down, mc_linear_forward(t, b->up, x));
    x = mc_block_list_forward(t, r->m->second, x, NULL);
    x = mc_layernorm_forward(t, b->norm, x);
    mc_optim_manager_backward(r->optim, t, loss_of(r, t, end_model(r, t, x), &in));
    mc_tape_end(t);
    end_step(r);
}

/* Forward for training that no backward follows; gradients that it left are dropped. */
static void dropped_forward(run *r)
{
    for (int i = 0; i < 2; i++) {
        zero_grad(r);
        mc_tape *t = mc_tape_begin(r->ctx);
        rows in = take_rows(r, t, r->step + 50 * i, ROWS, 1, false);
        mc_tensor *loss = fused_loss(r, t, hidden(r, t, in.x), &in);
        if (i) mc_optim_manager_backward(r->optim, t, loss);
        mc_tape_end(t);
    }
    end_step(r);
}

/* Fewer rows than ranks; labels that do not count on a rank, or on any; no rows at all. */
static void few_rows(run *r)
{
    const int total[STEPS] = {1, ROWS, 0, 3, 2}, ignored[STEPS] = {0, 6, 0, 3, 1};
    zero_grad(r);
    for (int micro = 0; micro < 2; micro++) {
        mc_tape *t = mc_tape_begin(r->ctx);
        bool last = micro && r->step == STEPS - 1;
        rows in = take_rows(r, t, r->step + 50 * micro, last ? 0 : total[r->step], ignored[r->step],
                            false);
        mc_tensor *x = hidden(r, t, in.x);
        mc_tensor *loss = r->step % 2 ? fused_loss(r, t, x, &in) : loss_of(r, t, x, &in);
        mc_optim_manager_backward(r->optim, t, loss);
        r->extra[r->step] += mc_global_mean_loss(r->ctx, loss);
        mc_tape_end(t);
    }
    end_step(r);
}

/* Two models, of which one is f32 always. */
static void two_models(run *r)
{
    zero_grad(r);
    for (int micro = 0; micro < 2; micro++) {
        mc_tape *t = mc_tape_begin(r->ctx);
        rows in = take_rows(r, t, r->step + 50 * micro, ROWS, 2, false);
        mc_tensor *logits = mc_linear_forward(t, r->other, hidden(r, t, in.x));
        mc_optim_manager_backward(r->optim, t, mc_cross_entropy(t, logits, in.labels, NULL));
        mc_tape_end(t);
    }
    end_step(r);
}

/* Values are read and written between forward passes, the rate changes, models come and go. */
static void meddling(run *r)
{
    mc_context *ctx = r->ctx;
    float values[DIM * DIM];
    zero_grad(r);
    plain_backward(r, r->step);
    mc_parameter_read(r->m->mix, values);
    values[3] += 0.25f;
    mc_parameter_write(r->m->mix, values);
    block *b = mc_block_list_at(r->m->first, 1);
    mc_parameter *down = mc_module_find_parameter(&r->m->module, "first.1.down.bias");
    (void)b;
    mc_parameter_read(down, values);
    values[DIM - 1] -= 0.125f;
    mc_parameter_write(down, values);
    r->extra[r->step] = evaluate(r, 90) + gradient_sum_of(r, down);
    mc_optimizer_set_lr(r->sgd, (r->s->offload ? 0.004 : 0.05) * (1 + r->step));
    model *brief = model_new(ctx, r->s);
    mc_tape *t = mc_tape_begin(ctx);
    model *kept = r->m;
    r->m = brief;
    mc_tensor *loss = plain_loss(r, t, r->step + 60);
    if (r->step % 2) mc_tape_backward(t, loss, NULL);
    r->m = kept;
    if (r->step < 3) {
        mc_module_free(&brief->module); /* its tape goes later */
        mc_tape_end(t);
    } else {
        mc_tape_end(t);
        mc_module_free(&brief->module);
    }
    plain_backward(r, r->step + 50);
    end_step(r);
}

/* Parameters are frozen and thawed between micro-steps. */
static void freezing(run *r)
{
    zero_grad(r);
    plain_backward(r, r->step);
    const char *what[] = {"first.1.*", "gate", "*.bias", "second.*", "mix"};
    mc_module_set_trainable(&r->m->module, what[r->step], false);
    plain_backward(r, r->step + 50);
    mc_module_set_trainable(&r->m->module, what[r->step], true);
    plain_backward(r, r->step + 60);
    end_step(r);
}

/* The same when the step's last gradients are still on their way. */
static void freezing_late(run *r)
{
    zero_grad(r);
    plain_backward(r, r->step);
    const char *what[] = {"first.0.*", "gate", "first.*", "second.*", "*.bias"};
    mc_module_set_trainable(&r->m->module, what[r->step], false);
    if (r->step % 2) r->extra[r->step] = evaluate(r, 90);
    end_step(r);
    mc_module_set_trainable(&r->m->module, what[r->step], true);
}

/* Only blocks are trained, so that nothing after the last of them waits for its gradients. */
static void train_blocks_alone(run *r)
{
    const char *rest[] = {"gate", "mix", "head.*"};
    for (int i = 0; i < 3 && r->step == 0; i++)
        mc_module_set_trainable(&r->m->module, rest[i], false);
}

static void blocks_alone(run *r)
{
    train_blocks_alone(r);
    zero_grad(r);
    plain_backward(r, r->step);
    if (r->step == 2) mc_optimizer_add_group(r->sgd, &r->m->module, "second.*", NULL);
    plain_backward(r, r->step + 50);
    const char *what = r->step % 2 ? "first.0.*" : "first.1.*";
    mc_module_set_trainable(&r->m->module, what, false);
    r->extra[r->step] = evaluate(r, 90);
    end_step(r);
    mc_module_set_trainable(&r->m->module, what, true);
}

/* Another model's gradients are read while those of a block are on their way between ranks. */
static void reading_beside(run *r)
{
    train_blocks_alone(r);
    zero_grad(r);
    plain_backward(r, r->step);
    mc_parameter *other = mc_module_find_parameter(mc_linear_module(r->other), "other.weight");
    r->extra[r->step] = gradient_sum_of(r, other);
    end_step(r);
}

/* Gradients go on being added up after a step; norms of other kinds; a step of nothing. */
static void going_on(run *r)
{
    if (r->step % 2 == 0) zero_grad(r);
    if (r->step != 3) plain_backward(r, r->step);
    if (r->step == 2) mc_module_zero_grad(&r->m->module);
    r->extra[r->step] =
        mc_optim_manager_clip_grad_norm_p(r->optim, 0.5f, r->step % 2 ? INFINITY : 1);
    mc_optim_manager_step(r->optim);
}

/* State is saved while a tape is open, and comes back in the middle of a step. */
static void restoring(run *r)
{
    static float values[DIM * DIM];
    char path[64];
    snprintf(path, sizeof path, "ranks_semantics-%d-%d.safetensors", (int)getppid(),
             r->ranks > 1 ? -1 : mc_rank(r->all));
    mc_tape *t = mc_tape_begin(r->ctx);
    plain_loss(r, t, 60);
    if (r->step == 1) {
        mc_optim_manager_save(r->optim, path);
        mc_parameter_read(r->m->mix, values);
    }
    zero_grad(r);
    mc_optim_manager_backward(r->optim, t, plain_loss(r, t, 61));
    mc_tape_end(t);
    if (r->step == 3) {
        mc_parameter_write(r->m->mix, values);
        mc_optim_manager_load(r->optim, path);
        mc_synchronize(r->ctx);
        if (r->rank == 0) remove(path);
    }
    plain(r);
}

/* Optimizers are freed, and others take their parameters over, in the middle of a step. */
static void taking_over(run *r)
{
    zero_grad(r);
    plain_backward(r, r->step);
    if (r->step % 2) {
        mc_optimizer_free(r->sgd);
        r->sgd = mc_sgd_new(r->ctx, &(mc_sgd_options){.lr = 0.1f, .momentum = 0.5f});
        mc_optimizer_add_group(r->sgd, &r->m->module, "*weight*",
                               &(mc_param_group){.weight_decay = 0.1f, .lr_factor = 0.7f});
        mc_optimizer_add_group(r->sgd, &r->m->module, "*mix", &(mc_param_group){.lr_factor = 0.5f});
        mc_optim_manager_add(r->optim, r->sgd, NULL);
    }
    plain_backward(r, r->step + 50);
    end_step(r);
}

/* Parameters are added to the model, of the root and of a block, in the middle of a step. */
static void growing(run *r)
{
    zero_grad(r);
    plain_backward(r, r->step);
    block *b = mc_block_list_at(r->m->first, 1);
    if (r->step == 1) {
        r->m->more =
            mc_parameter_new(&r->m->module, "more", MC_SHAPE(DIM), mc_init_normal(0, 0.1f));
        b->more = mc_linear_add(&b->module, "more", DIM, DIM, NULL);
        mc_optimizer_add(r->sgd, &r->m->module);
    }
    plain_backward(r, r->step + 50);
    end_step(r);
}

/* Activations are recorded, of one rank too that has no rows. */
static void recording(run *r)
{
    zero_grad(r);
    mc_record_begin(r->ctx);
    mc_tape *t = mc_tape_begin(r->ctx);
    rows in = take_rows(r, t, r->step, r->step % 2 ? 2 : ROWS, 0, false);
    mc_tensor *h = mc_record(t, hidden(r, t, in.x), "hidden");
    mc_optim_manager_backward(r->optim, t, loss_of(r, t, h, &in));
    mc_inspection *table = mc_record_end(r->ctx);
    for (int i = 0; i < mc_inspection_count(table); i++) {
        const mc_inspect_row *row = mc_inspection_row(table, i);
        r->extra[r->step] += row->mean + row->max + row->std + (double)row->shape.dim[0];
        if (row->has_gradient) r->extra[r->step] += r->optim->open.nominal * row->grad_std;
    }
    mc_inspection_free(table);
    mc_tape_end(t);
    end_step(r);
}

/* Tables of parameters in the middle of a step. */
static void inspecting(run *r)
{
    zero_grad(r);
    for (int micro = 0; micro < 2; micro++) {
        mc_tape *t = mc_tape_begin(r->ctx);
        mc_tensor *loss = plain_loss(r, t, r->step + 50 * micro);
        mc_inspection *before = mc_inspect(&r->m->module, NULL);
        mc_optim_manager_backward(r->optim, t, loss);
        mc_inspection *after = mc_inspect(&r->m->module, NULL);
        for (int i = 0; i < mc_inspection_count(after); i++) {
            const mc_inspect_row *x = mc_inspection_row(before, i),
                                 *y = mc_inspection_row(after, i);
            double scale = r->optim->open.nominal;
            r->extra[r->step] += x->mean + x->max + scale * (y->grad_mean + y->grad_std);
            if (micro) r->extra[r->step] += scale * x->grad_mean * 3;
        }
        mc_inspection_free(before);
        mc_inspection_free(after);
        mc_tape_end(t);
    }
    end_step(r);
}

/* An optimizer alone, without a manager: the gradients of all ranks' means are summed. */
static void alone(run *r)
{
    mc_optimizer_zero_grad(r->sgd);
    for (int micro = 0; micro < 2; micro++) {
        mc_tape *t = mc_tape_begin(r->ctx);
        rows in = take_rows(r, t, r->step + 50 * micro, ROWS, 0, false);
        mc_tensor *y = hidden(r, t, in.x);
        float g[ROWS * DIM];
        for (int k = 0; k < in.count * DIM; k++) g[k] = 0.002f * (float)(k % DIM);
        mc_tensor *dy = mc_tape_input(t, MC_F32, MC_SHAPE(in.count, DIM), g, false);
        mc_tape_backward(t, y, mc_cast(t, dy, mc_tensor_dtype(y)));
        mc_tape_end(t);
    }
    mc_optimizer_step(r->sgd);
    r->extra[r->step] = evaluate(r, 90);
}

typedef struct scenario {
    const char *name;
    void (*step)(run *r);
    int micro; /* told of */
} scenario;

static const scenario scenarios[] = {
    {"plain", plain, 1},
    {"list-twice", list_twice, 2},
    {"list-twice-told-one", list_twice, 1},
    {"two-tapes", two_tapes, 2},
    {"two-tapes-told-one", two_tapes, 1},
    {"two-tapes-fused", two_tapes_fused, 2},
    {"evaluations", evaluations, 2},
    {"open-over-step", open_over_step, 1},
    {"step-between", step_between, 1},
    {"in-turn", in_turn, 3},
    {"in-turn-told-one", in_turn, 1},
    {"own-gradients", own_gradients, 1},
    {"skipped", skipped, 2},
    {"outside", outside, 1},
    {"dropped-forward", dropped_forward, 1},
    {"few-rows", few_rows, 2},
    {"two-models", two_models, 2},
    {"meddling", meddling, 2},
    {"freezing", freezing, 3},
    {"freezing-late", freezing_late, 1},
    {"blocks-alone", blocks_alone, 2},
    {"reading-beside", reading_beside, 1},
    {"going-on", going_on, 1},
    {"restoring", restoring, 1},
    {"taking-over", taking_over, 2},
    {"growing", growing, 2},
    {"recording", recording, 1},
    {"inspecting", inspecting, 2},
    {"alone", alone, 1},
};

/* ---- the comparison -------------------------------------------------------------------------- */

static void read_weights(run *r)
{
    mc_parameter_iterator it = {0};
    float *at = r->weights;
    for (mc_parameter *p; (p = mc_module_next_parameter(&r->m->module, &it));) {
        mc_parameter_read(p, at);
        at += mc_shape_count(mc_parameter_shape(p));
    }
}

static void train(run *r, const scenario *s)
{
    mc_context *ctx = r->ctx;
    r->m = model_new(ctx, r->s);
    r->other =
        mc_linear_new(ctx, DIM, CLASSES, &(mc_linear_options){.name = "other", .init_std = 0.2f});
    r->sgd = r->s->offload ? mc_adam_offload_new(ctx, &(mc_adam_options){.lr = 0.02f, .eps = 0.01f})
                           : mc_sgd_new(ctx, &(mc_sgd_options){.lr = 0.2f, .momentum = 0.9f});
    r->optim = mc_optim_manager_new(
        ctx, &(mc_optim_manager_options){.micro_steps = s->micro, .loss_scale = r->s->loss_scale});
    mc_optimizer_add(r->sgd, r->m ? &r->m->module : NULL);
    mc_optimizer_add(r->sgd, mc_linear_module(r->other));
    if (s->step != alone) mc_optim_manager_add(r->optim, r->sgd, NULL);
    for (r->step = 0; r->step < STEPS && !mc_failed(ctx); r->step++) {
        s->step(r);
        r->loss[r->step] = mc_optim_manager_mean_loss(r->optim);
        r->norm[r->step] = mc_optim_manager_grad_norm(r->optim);
    }
    mc_tape_end(r->kept);
    if (!mc_failed(ctx)) read_weights(r);
    mc_optim_manager_free(r->optim);
    mc_optimizer_free(r->sgd);
    if (r->m) mc_module_free(&r->m->module);
    if (r->other) mc_module_free(mc_linear_module(r->other));
}

/* The largest error, relative to the numbers or, where those are sums that may cancel, to the
 * magnitude of their terms (NULL: none are). */
static double worst_of(const double *a, const double *b, const double *terms)
{
    double worst = 0;
    for (int i = 0; i < STEPS; i++) {
        if (isnan(a[i]) && isnan(b[i])) continue;
        double unit = fmax(fabs(b[i]), terms ? terms[i] : 0);
        double error = fabs(a[i] - b[i]) / fmax(unit, 1e-3);
        if (!(error <= worst)) worst = error;
    }
    return worst;
}

/* Whether two trainings came to the same. */
static bool compare(const run *a, const run *b, const char *name)
{
    const setting *s = a->s;
    double loss = worst_of(a->loss, b->loss, NULL), norm = worst_of(a->norm, b->norm, NULL);
    double extra = worst_of(a->extra, b->extra, b->terms), weights = 0;
    for (int i = 0; i < MOST; i++) {
        double x = (double)a->weights[i], y = (double)b->weights[i];
        double d = fabs(x - y) / (1 + fabs(y));
        if (!(d <= weights)) weights = d;
    }
    bool exact = s->dtype == MC_DTYPE_DEFAULT || s->dtype == MC_F32;
    /* f32: the order of additions; bf16: that of roundings, which gradients and tables show most */
    double limit = exact ? 1e-5 : 5e-2, most = exact ? 5e-5 : INFINITY;
    bool good = loss <= limit && norm <= 2 * limit && extra <= most && weights <= 2 * limit;
    good = good && !mc_failed(a->ctx) && !mc_failed(b->ctx);
    if (good) return true;
    mc_print_error(a->ctx, stdout);
    mc_print_error(b->ctx, stdout);
    printf("FAILED rank %d: %s level %d (%d %d %d) recompute %d%s%s%s: "
           "loss %.1e norm %.1e extra %.1e weights %.1e\n",
           a->rank, name, s->level, s->levels[0], s->levels[1], s->levels[2], (int)s->recompute,
           s->nested ? " nested" : "", s->offload ? " offload" : "",
           exact        ? ""
           : s->rounded ? " bf16, rounded"
                        : " bf16",
           loss, norm, extra, weights);
    return false;
}

static run together, single;

static bool run_case(mc_context *ctx, mc_context *alone_ctx, const setting *s, const scenario *c)
{
    if (mc_failed(ctx) || mc_failed(alone_ctx)) return false;
    ctx->zero_level = s->level;
    ctx->grad_dtype = alone_ctx->grad_dtype = s->rounded ? MC_GRAD_PARAMETER : MC_GRAD_F32;
    together =
        (run){.ctx = ctx, .all = ctx, .rank = mc_rank(ctx), .ranks = mc_world_size(ctx), .s = s};
    single = (run){.ctx = alone_ctx, .all = ctx, .rank = 0, .ranks = 1, .s = s};
    train(&single, c);
    train(&together, c);
    return compare(&together, &single, c->name);
}

static bool drop(mc_context *ctx, const setting *s, run *r)
{
    *r = (run){.ctx = ctx, .all = ctx, .rank = mc_rank(ctx), .ranks = mc_world_size(ctx), .s = s};
    ctx->zero_level = s->level;
    ctx->rng_offset = 0;
    train(r, &scenarios[0]);
    return s->level == 0 && s->recompute == MC_RECOMPUTE_NONE ? true
                                                              : compare(r, &single, "dropout");
}

/* Every level and recompute drops the same elements. */
static bool run_dropout(mc_context *ctx)
{
    bool good = true;
    for (int k = 0; k < 2 * 4 * 3 && !mc_failed(ctx); k++) {
        setting s = {.level = k / 3 % 4, .dropout = 0.3f, .nested = k >= 4 * 3};
        s.recompute = (mc_recompute)(MC_RECOMPUTE_NONE + k % 3);
        good &= drop(ctx, &s, k % (4 * 3) ? &together : &single);
    }
    return good;
}

/* One kind of setting after the other at a level; false after the last. */
static bool choose(int level, int kind, setting *s)
{
    *s = (setting){.level = level, .recompute = MC_RECOMPUTE_NONE};
    if (kind < 3) s->recompute = (mc_recompute)(MC_RECOMPUTE_NONE + kind);
    if (kind == 3 || kind == 6) s->recompute = MC_RECOMPUTE_FULL;
    s->nested = kind >= 3 && kind <= 5;
    for (int k = 0; k < 3 && (kind == 4 || kind == 5); k++)
        s->levels[k] = MC_ZERO_0 + (level + k + 1) % 4;
    if (kind >= 5) s->dtype = kind == 7 ? MC_F32 : MC_BF16;
    s->offload = kind == 6 || kind == 7;
    s->rounded = kind == 8;
    if (s->rounded) s->dtype = MC_BF16;
    return kind < 9;
}

/* Two ranks have all combinations of scenario, level and kind. Other numbers have a third of them,
 * another one each, since one rank exchanges nothing and three differ from two by their shares
 * alone. So do two under sanitizers, which look for wrong accesses. */
static bool is_spared(const mc_context *ctx, int which, int level, int kind)
{
#ifdef MC_TEST_SANITIZED
    const bool all = false;
#else
    const bool all = mc_world_size(ctx) == 2;
#endif
    return !all && (which + level + kind + mc_world_size(ctx)) % 3;
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    mc_context *ctx = mc_init_distributed(
        &(mc_init_options){.seed = 5, .device = ranks_device(), .comm_timeout = 100});
    mc_context *alone_ctx = mc_context_new(&(mc_init_options){.seed = 5, .device = ranks_device()});
    if (mc_print_error(ctx, stderr) || mc_print_error(alone_ctx, stderr)) return 2;
    bool good = argc > 1 || run_dropout(ctx);
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
        for (int level = 0; level <= 3; level++) {
            setting s;
            if (argc > 1 && strcmp(argv[1], scenarios[i].name) != 0) continue;
            if (argc > 2 && atoi(argv[2]) != level) continue;
            for (int kind = 0; choose(level, kind, &s); kind++) {
                if (argc < 2 && is_spared(ctx, (int)i, level, kind)) continue;
                setenv("MC_OFFLOAD", s.offload ? "always" : "", 1);
                good &= run_case(ctx, alone_ctx, &s, &scenarios[i]);
            }
        }
    mc_context_free(ctx);
    mc_context_free(alone_ctx);
    printf(good ? "" : "some cases FAILED\n");
    return !good;
}
