/* The state of an OptimManager as a list of named numbers and arrays. */
#include <string.h>
#include "core/nn/fp8_internal.h"
#include "core/optim/lr_scheduler_internal.h"

/* The state of a visit: the caller's function, the current optimizer, and the name being built. */
typedef struct mc_visit {
    mc_context *ctx;
    mc_state_fn fn;
    mc_stepped_fn stepped;
    void *user;
    size_t index;            /* of the optimizer */
    mc_optimizer *optimizer; /* NULL while it visits numbers of the manager */
    char *name;
    size_t name_capacity;
} mc_visit;

/* Builds "<room>.<index>.<what>[.<parameter>]" in visit->name; false if memory is out. */
static bool name_item(mc_visit *v, const char *room, const char *what, const char *parameter)
{
    size_t need = strlen(room) + strlen(what) + (parameter ? strlen(parameter) : 0) + 32;
    if (need > v->name_capacity) {
        char *grown = mc_realloc(v->name, need * 2);
        if (!grown) {
            mc_fail_nomem(v->ctx, "the name of optimizer state");
            return false;
        }
        v->name = grown;
        v->name_capacity = need * 2;
    }
    snprintf(v->name, v->name_capacity, "%s.%zu.%s%s%s", room, v->index, what, parameter ? "." : "",
             parameter ? parameter : "");
    return true;
}

static mc_status visit_number(mc_visit *v, const char *name, const char *dtype, void *data,
                              bool positive)
{
    mc_state_item item = {.name = name,
                          .dtype = dtype,
                          .shape = {.ndim = 0},
                          .data = data,
                          .count = 1,
                          .own_count = v->ctx->mesh.world.rank == 0,
                          .size = 8,
                          .number = true,
                          .positive = positive};
    return v->fn(v->user, &item);
}

/* Whether a parameter has state to visit: it is trainable, or has been stepped here or in the file
 * to be restored. False also if memory is out. */
static bool has_state(mc_visit *v, const mc_parameter *p)
{
    if (p->stored->trainable || p->optimizer_steps > 0) return true;
    return v->stepped && name_item(v, "optimizer", "step", p->name) && v->stepped(v->user, v->name);
}

static mc_status visit_steps(void *user, mc_module_root *root, mc_parameter *p)
{
    (void)root;
    mc_visit *v = user;
    if (!has_state(v, p)) return mc_error_status(v->ctx);
    if (!name_item(v, "optimizer", "step", p->name)) return MC_ERR_NOMEM;
    return visit_number(v, v->name, "I64", &p->optimizer_steps, false);
}

/* Of state that all ranks have, each rank writes the share that it would have if it were sharded.
 * `begin`: the parameter's first element in the bucket. */
static void own_part(const mc_bucket *b, int64_t begin, mc_state_item *item)
{
    int64_t first = b->first - begin, last = first + b->share, end = item->first + item->count;
    item->own_first = item->first > first ? item->first : first;
    item->own_count = (end < last ? end : last) - item->own_first;
    if (item->own_count < 0) item->own_count = 0;
}

/* Visits a slot's 8-bit codes, as an item of the f32 slot's name, and then their scales. */
static mc_status visit_codes(mc_visit *v, const mc_parameter *p, int slot, const char *what,
                             mc_state_item *item)
{
    enum { BLOCK = MC_STATE_BLOCK };
    char scales[32];
    mc_state8 state = {NULL, NULL};
    int64_t begin = p->stored->span->offset + p->first;
    if (item->count) state = mc_bucket_state8_at(p->stored->bucket, slot, begin + item->first);
    item->data = state.code;
    item->dtype = "U8";
    item->size = 1;
    mc_status status = v->fn(v->user, item);
    snprintf(scales, sizeof scales, "%s_scale", what);
    if (status || !name_item(v, "optimizer", scales, p->name)) return mc_error_status(v->ctx);
    int64_t end = item->first + item->count, own_end = item->own_first + item->own_count;
    mc_state_item scale = {
        .name = v->name,
        .dtype = "F32",
        .shape = MC_SHAPE((mc_shape_count(p->shape) + BLOCK - 1) / BLOCK),
        .data = state.scale,
        .first = item->first / BLOCK,
        .count = item->count ? (end + BLOCK - 1) / BLOCK - item->first / BLOCK : 0,
        .own_first = item->own_first / BLOCK,
        .own_count = item->own_count ? (own_end + BLOCK - 1) / BLOCK - item->own_first / BLOCK : 0,
        .size = sizeof(float),
        .on_device = item->on_device};
    return v->fn(v->user, &scale);
}

static mc_status visit_slot(mc_visit *v, mc_module_root *root, mc_parameter *p, int slot,
                            const char *what)
{
    mc_bucket *b = p->stored->bucket;
    if (!mc_bucket_state(&root->zero, b, slot)) return mc_error_status(v->ctx);
    if (!name_item(v, "optimizer", what, p->name)) return MC_ERR_NOMEM;
    mc_state_item item = {
        .name = v->name, .dtype = "F32", .shape = p->shape, .size = 4, .on_device = !b->host};
    int64_t element, begin = p->stored->span->offset + p->first;
    mc_parameter_held(p, &element, &item.count);
    if (item.count) {
        item.first = element - begin;
        item.data = mc_bucket_state_at(b, slot, element);
        own_part(b, begin, &item);
    }
    if (slot != MC_STATE_MASTER && p->stored->span->form == MC_STATE_8BIT)
        return visit_codes(v, p, slot, what, &item);
    return v->fn(v->user, &item);
}

static mc_status visit_arrays(void *user, mc_module_root *root, mc_parameter *p)
{
    mc_visit *v = user;
    const mc_optimizer_kind *kind = v->optimizer->kind;
    mc_status status = MC_OK;
    if (!has_state(v, p)) return mc_error_status(v->ctx);
    if (p->optimizer_matrix) status = visit_slot(v, root, p, MC_STATE_M, "momentum_buffer");
    for (int slot = 0; !status && slot < kind->state_count && !p->optimizer_matrix; slot++)
        status = visit_slot(v, root, p, slot, kind->state_name[slot]);
    if (!status && p->stored->bucket->dtype != MC_F32)
        status = visit_slot(v, root, p, MC_STATE_MASTER, "master");
    return status;
}

/* Visits scales and histories of layers in 8 bits, which are equal on all ranks. */
static mc_status visit_fp8(mc_visit *v, const mc_module_root *root)
{
    const mc_fp8_state *f = root->fp8;
    const int64_t numbers = (int64_t)(sizeof *f->scales / sizeof(float));
    mc_status status = MC_OK;
    if (!f || f->recipe.scaling == MC_FP8_STATIC) return MC_OK;
    for (int i = 0; i < f->count && !status; i++) {
        if (!name_item(v, "optimizer", "fp8", f->weights[i]->parts[0]->name)) return MC_ERR_NOMEM;
        int64_t count = MC_FP8_ROLES * numbers;
        mc_state_item item = {.name = v->name,
                              .dtype = "F32",
                              .shape = MC_SHAPE(MC_FP8_ROLES, numbers),
                              .data = f->scales + (ptrdiff_t)i * MC_FP8_ROLES,
                              .count = count,
                              .own_count = v->ctx->mesh.world.rank ? 0 : count,
                              .size = sizeof(float),
                              .on_device = true};
        status = v->fn(v->user, &item);
    }
    return status;
}

static mc_status visit_optimizer_fp8(mc_visit *v)
{
    mc_status status = MC_OK;
    for (size_t i = 0; i < mc_optimizer_roots(v->optimizer) && !status; i++)
        status = visit_fp8(v, v->optimizer->roots[i]);
    return status;
}

static mc_status visit_optimizer_numbers(mc_visit *v, const mc_managed *managed)
{
    mc_optimizer *o = v->optimizer;
    if (!name_item(v, "optimizer", "step", NULL)) return MC_ERR_NOMEM;
    mc_status status = visit_number(v, v->name, "I64", &o->steps, false);
    if (!status && !name_item(v, "optimizer", "lr", NULL)) return MC_ERR_NOMEM;
    if (!status) status = visit_number(v, v->name, "F64", &o->lr, false);
    if (!status && managed->scheduler) {
        if (!name_item(v, "scheduler", "num_iter", NULL)) return MC_ERR_NOMEM;
        status = visit_number(v, v->name, "I64", &managed->scheduler->count, false);
    }
    return status ? status : mc_optimizer_each_parameter(o, visit_steps, v);
}

static mc_status visit_manager_numbers(mc_visit *v, mc_optim_manager *m)
{
    mc_status status = visit_number(v, "manager.steps", "I64", &m->steps, false);
    if (!status) status = visit_number(v, "manager.skipped_steps", "I64", &m->skipped, false);
    if (status || !m->scaling) return status;
    status = visit_number(v, "scaler.loss_scale", "F64", &m->loss_scale, true);
    if (!status)
        status = visit_number(v, "scaler.growth_counter", "I64", &m->growth_counter, false);
    return status;
}

static mc_status visit_all(mc_visit *v, mc_optim_manager *m)
{
    mc_status status = visit_manager_numbers(v, m);
    for (v->index = 0; !status && v->index < m->managed_count; v->index++) {
        v->optimizer = m->managed[v->index].optimizer;
        if (v->optimizer) status = visit_optimizer_numbers(v, &m->managed[v->index]);
    }
    for (v->index = 0; !status && v->index < m->managed_count; v->index++) {
        v->optimizer = m->managed[v->index].optimizer;
        if (v->optimizer) status = mc_optimizer_each_parameter(v->optimizer, visit_arrays, v);
        if (v->optimizer && !status) status = visit_optimizer_fp8(v);
    }
    return status;
}

mc_status mc_optim_manager_each_state(mc_optim_manager *m, mc_state_fn fn, mc_stepped_fn stepped,
                                      void *user)
{
    mc_visit v = {.ctx = m->ctx, .fn = fn, .stepped = stepped, .user = user};
    mc_status status = mc_optim_manager_settle(m);
    if (!status) status = mc_offload_finish(mc_offload_of(m->ctx->home));
    if (!status) status = visit_all(&v, m);
    mc_free(v.name);
    return status;
}
