#include "core/nn/module_internal.h"
#include "core/nn/stored.h"

#include <fnmatch.h>
#include <string.h>

/* ---- the tree -------------------------------------------------------------------------------- */

static void free_root(void *object)
{
    mc_module_root *root = object;
    mc_tape_unhook(root->ctx, root, "a module whose parameters the tape used has been freed");
    mc_fp8_free(root);
    mc_zero_free(&root->zero, root->zero.buckets, root->zero.bucket_count);
    if (root->zero.home) root->zero.home->close(&root->zero);
    for (size_t i = 0; i < root->stored_count; i++) mc_stored_free_quantized(root->stored[i]);
    for (size_t i = 0; i < root->piece_count; i++) mc_free(root->pieces[i]);
    mc_free(root->pieces);
    mc_free(root->parameters);
    mc_name_index_release(&root->by_name);
    mc_free(root->stored);
    mc_free(root);
}

void *mc_module_alloc(mc_module_root *root, size_t bytes)
{
    bool room =
        mc_grow(&root->pieces, &root->piece_capacity, root->piece_count, sizeof *root->pieces);
    void *piece = room ? mc_calloc(1, bytes) : NULL;
    if (piece)
        root->pieces[root->piece_count++] = piece;
    else
        mc_fail_nomem(root->ctx, "a module");
    return piece;
}

char *mc_module_strdup(mc_module_root *root, const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = mc_module_alloc(root, size);
    return copy ? memcpy(copy, text, size) : NULL;
}

/* Whether `size` is enough for the mc_module at the start. */
static bool has_room(mc_context *ctx, const char *name, size_t size)
{
    if (size >= sizeof(mc_module)) return true;
    return !mc_fail(ctx, MC_ERR_ARGUMENT, "%s of %zu bytes, expected %zu at least",
                    MC_NAMED("module", name), size, sizeof(mc_module));
}

void *mc_module_new(mc_context *ctx, const char *name, size_t size,
                    const mc_module_options *options)
{
    mc_dtype dtype = options && options->dtype ? options->dtype : MC_F32;
    int level = options ? (int)options->zero_level : MC_ZERO_DEFAULT;
    if (!name) mc_fail(ctx, MC_ERR_ARGUMENT, "a module's name is NULL");
    if (mc_failed(ctx) || !has_room(ctx, name, size)) return NULL;
    if (!mc_dtype_is_float(dtype))
        mc_fail(ctx, MC_ERR_DTYPE, "%s: dtype %s (%d), expected f32, f16 or bf16",
                MC_NAMED("module", name), mc_dtype_name(dtype), (int)dtype);
    if (level < MC_ZERO_DEFAULT || level > MC_ZERO_3)
        mc_fail(ctx, MC_ERR_ARGUMENT, "%s: zero_level is %d, expected a mc_zero_level",
                MC_NAMED("module", name), level);
    mc_module_root *root = mc_new_owned(ctx, sizeof *root, "a module", free_root);
    if (!root) return NULL;
    root->ctx = ctx;
    root->dtype = dtype;
    root->values_epoch = 1;
    mc_module *module = mc_module_alloc(root, size);
    char *copy = module ? mc_module_strdup(root, name) : NULL;
    if (!copy) return NULL;
    *module = (mc_module){.ctx = ctx, .name = copy, .root = root, .zero_level = level};
    root->module = module;
    root->zero = (mc_zero){.ctx = ctx, .group = &ctx->mesh.shard, .name = copy};
    return module;
}

static bool good_name(const char *name)
{
    if (!name) return false;
    size_t length = strlen(name);
    return length && name[0] != '.' && name[length - 1] != '.';
}

void *mc_module_add(mc_module *parent, const char *name, size_t size)
{
    if (!parent || mc_failed(parent->ctx)) return NULL;
    if (!good_name(name)) {
        mc_fail(parent->ctx, MC_ERR_ARGUMENT, "module name \"%s\": empty or with '.' at an end",
                name ? name : "(NULL)");
        return NULL;
    }
    if (!has_room(parent->ctx, name, size)) return NULL;
    for (mc_module *m = parent->first_child; m; m = m->next)
        if (strcmp(m->name, name) == 0) {
            mc_fail(parent->ctx, MC_ERR_ARGUMENT, "module \"%s\" has a child \"%s\" already",
                    parent->name, name);
            return NULL;
        }
    mc_module *module = mc_module_alloc(parent->root, size);
    char *copy = module ? mc_module_strdup(parent->root, name) : NULL;
    if (!copy) return NULL;
    *module = (mc_module){.ctx = parent->ctx, .name = copy, .parent = parent, .root = parent->root};
    if (parent->last_child)
        parent->last_child->next = module;
    else
        parent->first_child = module;
    parent->last_child = module;
    return module;
}

void mc_module_free(mc_module *module)
{
    if (!module) return;
    mc_module_root *root = module->root;
    if (module != root->module) {
        mc_fail(root->ctx, MC_ERR_ARGUMENT, "module \"%s\" is no root: it is freed with %s",
                module->name, MC_NAMED("module", root->module->name));
        return;
    }
    mc_disown(&root->owned);
    free_root(root);
}

/* ---- declaring parameters -------------------------------------------------------------------- */

/* "root.child.name" in memory of the root. A part that begins with '/' is the path from the
 * root. */
static char *full_name(mc_module *module, const char *name)
{
    size_t last = strlen(name) + 1, length = last;
    for (mc_module *m = module; m; m = m->parent) length += strlen(m->name) + 1;
    char *text = mc_module_alloc(module->root, length);
    if (!text) return NULL;
    char *end = text + length - last;
    memcpy(end, name, last);
    if (*end == '/') return end + 1;
    for (mc_module *m = module; m; m = m->parent) {
        size_t part = strlen(m->name);
        if (!part) continue;
        *--end = '.';
        end -= part;
        memcpy(end, m->name, part);
        if (*end == '/') return end + 1;
    }
    return end;
}

/* Makes room for one more parameter, and adds its name to the index. */
static bool reserve_parameter(mc_module_root *root, const char *name)
{
    return mc_grow(&root->parameters, &root->parameter_capacity, root->parameter_count,
                   sizeof *root->parameters) &&
           mc_name_index_add(&root->by_name, name, root->parameter_count);
}

/* Removes the parameters from number `count` on. */
static void drop_parameters(mc_module_root *root, size_t count)
{
    if (count == root->parameter_count) return;
    root->parameter_count = count;
    mc_name_index_clear(&root->by_name);
    for (size_t i = 0; i < count; i++) /* reuses the index's memory */
        mc_name_index_add(&root->by_name, root->parameters[i]->name, i);
}

mc_status mc_module_drop_parameters(mc_module_root *root, size_t first)
{
    size_t kept = 0;
    mc_status status = mc_zero_await(&root->zero);
    if (status || (status = mc_zero_rest(&root->zero))) return status;
    for (size_t i = first; i < root->parameter_count; i++)
        root->parameters[i]->stored->parts[0] = NULL; /* marks it as removed */
    for (size_t i = 0; i < root->stored_count; i++) {
        mc_stored *stored = root->stored[i];
        if (stored->parts[0])
            root->stored[kept++] = stored;
        else
            root->stored_elements -= stored->count;
    }
    root->stored_count = kept;
    drop_parameters(root, first);
    root->layout_valid = false;
    return MC_OK;
}

static mc_module *owner_of(mc_module *module)
{
    while (module->parent && !module->parent->holds_blocks) module = module->parent;
    return module;
}

static mc_parameter *add_parameter(mc_module *module, const char *name, mc_shape shape,
                                   mc_initializer init)
{
    mc_module_root *root = module->root;
    mc_context *ctx = module->ctx;
    if (!good_name(name)) {
        mc_fail(ctx, MC_ERR_ARGUMENT, "parameter name \"%s\": empty or with '.' at an end",
                name ? name : "(NULL)");
        return NULL;
    }
    mc_parameter *p = mc_module_alloc(root, sizeof *p);
    char *path = p ? full_name(module, name) : NULL;
    if (!path) return NULL;
    size_t bytes;
    bool good = mc_shape_bytes(shape, MC_F32, &bytes) && bytes > 0;
    bool known = init.kind >= MC_INIT_ZEROS && init.kind <= MC_INIT_CUSTOM;
    if (!known || (init.kind == MC_INIT_CUSTOM && !init.fn))
        mc_fail(ctx, MC_ERR_ARGUMENT, "parameter \"%s\": its initialiser %s", path,
                known ? "has no function (NULL)" : "is of no known kind");
    else if (!good)
        mc_fail(ctx, MC_ERR_SHAPE, "parameter \"%s\": bad shape %s", path, MC_SHAPE_TEXT(shape));
    else if (mc_module_find_parameter(module, path))
        mc_fail(ctx, MC_ERR_ARGUMENT, "parameter \"%s\" is declared twice", path);
    else if (!reserve_parameter(root, path))
        mc_fail_nomem(ctx, "a parameter");
    if (mc_failed(ctx)) return NULL;
    *p = (mc_parameter){.module = module, .name = path, .shape = shape, .init = init};
    root->parameters[root->parameter_count++] = p;
    return p;
}

/* Whether the model's size in bytes still fits an integer with a tensor of this shape. */
static bool can_count(mc_module_root *root, mc_shape shape)
{
    const int64_t most = INT64_MAX / 64;
    size_t bytes;
    if (mc_shape_bytes(shape, MC_F32, &bytes) &&
        mc_shape_count(shape) <= most - root->stored_elements)
        return true;
    return !mc_fail(root->ctx, MC_ERR_SHAPE,
                    "a parameter of shape %s: more than %lld elements in %s", MC_SHAPE_TEXT(shape),
                    (long long)most, MC_NAMED("model", root->module->name));
}

/* Creates the stored tensor of declared parameters, which are consecutive in `parts`. */
static mc_stored *add_stored(mc_module *module, mc_parameter **parts, int count, mc_shape shape)
{
    mc_module_root *root = module->root;
    if (!can_count(root, shape)) return NULL;
    mc_stored *stored = mc_module_alloc(root, sizeof *stored);
    mc_parameter **copy = stored ? mc_module_alloc(root, (size_t)count * sizeof *copy) : NULL;
    if (!copy) return NULL;
    if (!mc_grow(&root->stored, &root->stored_capacity, root->stored_count, sizeof *root->stored)) {
        mc_fail_nomem(root->ctx, "a parameter");
        return NULL;
    }
    memcpy(copy, parts, (size_t)count * sizeof *copy);
    *stored = (mc_stored){.owner = owner_of(module),
                          .shape = shape,
                          .count = mc_shape_count(shape),
                          .parts = copy,
                          .part_count = count,
                          .trainable = true};
    root->stored[root->stored_count++] = stored;
    root->stored_elements += stored->count;
    root->layout_valid = false;
    int64_t first = 0;
    for (int i = 0; i < count; i++) {
        parts[i]->stored = stored;
        parts[i]->first = first;
        first += mc_shape_count(parts[i]->shape);
    }
    return stored;
}

/* Declares a parameter that is stored alone, in a tensor of shape `stored`. */
static mc_parameter *new_alone(mc_module *module, const char *name, mc_shape shape, mc_shape stored,
                               mc_initializer init)
{
    mc_module_root *root = module->root;
    size_t before = root->parameter_count;
    mc_parameter *p = add_parameter(module, name, shape, init);
    if (p && add_stored(module, &p, 1, stored)) return p;
    drop_parameters(root, before);
    return NULL;
}

mc_parameter *mc_parameter_new(mc_module *module, const char *name, mc_shape shape,
                               mc_initializer init)
{
    if (!module || mc_failed(module->ctx)) return NULL;
    return new_alone(module, name, shape, shape, init);
}

mc_parameter *mc_parameter_new_padded(mc_module *module, const char *name, mc_shape shape,
                                      int64_t stored_rows, mc_initializer init)
{
    if (!module || mc_failed(module->ctx)) return NULL;
    mc_shape stored = shape;
    stored.dim[0] = stored_rows;
    size_t bytes;
    if (shape.ndim < 1 || stored_rows < shape.dim[0] || !mc_shape_bytes(stored, MC_F32, &bytes)) {
        mc_fail(module->ctx, MC_ERR_ARGUMENT,
                "parameter \"%s\" of shape %s: %lld stored rows, expected at least its own", name,
                MC_SHAPE_TEXT(shape), (long long)stored_rows);
        return NULL;
    }
    return new_alone(module, name, shape, stored, init);
}

mc_parameter *mc_parameter_new_stacked(mc_module *module, const mc_parameter_part *parts, int count,
                                       mc_shape row_shape, mc_parameter **parts_out)
{
    enum { MOST = 8 };
    mc_parameter *made[MOST];
    if (!module || mc_failed(module->ctx)) return NULL;
    if (!parts || count < 1 || count > MOST || row_shape.ndim < 0 ||
        row_shape.ndim >= MC_MAX_DIMS) {
        mc_fail(
            module->ctx, MC_ERR_ARGUMENT,
            "stacked parameter of %d parts%s with rows of %d dimensions, expected 1 to %d parts "
            "and up to %d dimensions",
            count, parts ? "" : " (NULL)", row_shape.ndim, MOST, MC_MAX_DIMS - 1);
        return NULL;
    }
    mc_shape shape = {.ndim = row_shape.ndim + 1};
    memcpy(shape.dim + 1, row_shape.dim, (size_t)row_shape.ndim * sizeof *shape.dim);
    int64_t rows = 0;
    size_t before = module->root->parameter_count;
    bool good = true;
    for (int i = 0; good && i < count; i++) {
        shape.dim[0] = parts[i].rows;
        if (__builtin_add_overflow(rows, parts[i].rows, &rows)) rows = INT64_MAX;
        good = (made[i] = add_parameter(module, parts[i].name, shape, parts[i].init));
    }
    shape.dim[0] = rows;
    if (!good || !add_stored(module, made, count, shape)) {
        drop_parameters(module->root, before); /* all parts or none */
        return NULL;
    }
    if (parts_out) memcpy(parts_out, made, (size_t)count * sizeof *made);
    return made[0];
}

/* ---- looking at parameters ------------------------------------------------------------------- */

static bool is_below(const mc_module *module, const mc_module *ancestor)
{
    while (module && module != ancestor) module = module->parent;
    return module;
}

mc_parameter *mc_module_next_parameter(mc_module *module, mc_parameter_iterator *it)
{
    if (!module || !it) return NULL;
    mc_module_root *root = module->root;
    while (it->next < root->parameter_count) {
        mc_parameter *p = root->parameters[it->next++];
        if (p->stored && is_below(p->module, module)) return p;
    }
    return NULL;
}

mc_parameter *mc_module_find_parameter(mc_module *module, const char *name)
{
    if (!module || !name) return NULL;
    size_t found = mc_name_index_find(&module->root->by_name, name);
    return found != SIZE_MAX ? module->root->parameters[found] : NULL;
}

int64_t mc_module_parameter_count(mc_module *module)
{
    int64_t count = 0;
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(module, &it));)
        count += mc_shape_count(p->shape);
    return count;
}

const char *mc_parameter_name(const mc_parameter *p) { return p ? p->name : ""; }
mc_shape mc_parameter_shape(const mc_parameter *p) { return p ? p->shape : (mc_shape){0}; }
mc_dtype mc_parameter_dtype(const mc_parameter *p)
{
    return p ? p->module->root->dtype : MC_DTYPE_DEFAULT;
}
bool mc_parameter_trainable(const mc_parameter *p) { return p && p->stored->trainable; }

/* The number of a stored tensor's parts that are below the module and match the pattern. */
static int matching_parts(const mc_stored *stored, const mc_module *module, const char *pattern)
{
    int matching = 0;
    for (int k = 0; k < stored->part_count; k++)
        matching += is_below(stored->parts[k]->module, module) &&
                    (!pattern || fnmatch(pattern, stored->parts[k]->name, 0) == 0);
    return matching;
}

mc_status mc_module_set_trainable(mc_module *module, const char *pattern, bool trainable)
{
    if (!module) return MC_ERR_ARGUMENT;
    mc_module_root *root = module->root;
    if (mc_failed(root->ctx)) return mc_error_status(root->ctx);
    int found = 0;
    for (size_t i = 0; i < root->stored_count; i++) { /* check all before any change */
        const mc_stored *stored = root->stored[i];
        int matching = matching_parts(stored, module, pattern);
        found += matching;
        if (matching && matching < stored->part_count && stored->trainable != trainable)
            return mc_fail(
                root->ctx, MC_ERR_ARGUMENT,
                "\"%s\" matches a part of the stored tensor of \"%s\" only: its %d parts are "
                "frozen or trained together",
                pattern ? pattern : "*", stored->parts[0]->name, stored->part_count);
    }
    for (size_t i = 0; i < root->stored_count && trainable; i++)
        if (root->stored[i]->quantized.data && matching_parts(root->stored[i], module, pattern))
            return mc_fail(root->ctx, MC_ERR_UNSUPPORTED,
                           "parameter \"%s\" is in 8 bits, and is not trained",
                           root->stored[i]->parts[0]->name);
    if (pattern && !found)
        return mc_fail(root->ctx, MC_ERR_NOT_FOUND, "pattern \"%s\" matches no parameter", pattern);
    bool changes = false;
    for (size_t i = 0; i < root->stored_count; i++) {
        mc_stored *stored = root->stored[i];
        if (stored->trainable == trainable || !matching_parts(stored, module, pattern)) continue;
        stored->trainable = trainable;
        root->layout_valid = false;
        changes = true;
    }
    return changes ? mc_fp8_restart_scales(root) : MC_OK;
}

mc_initializer mc_init_zeros(void) { return (mc_initializer){.kind = MC_INIT_ZEROS}; }
mc_initializer mc_init_constant(float value)
{
    return (mc_initializer){.kind = MC_INIT_CONSTANT, .a = value};
}
mc_initializer mc_init_normal(float mean, float std)
{
    return (mc_initializer){.kind = MC_INIT_NORMAL, .a = mean, .b = std};
}
mc_initializer mc_init_uniform(float low, float high)
{
    return (mc_initializer){.kind = MC_INIT_UNIFORM, .a = low, .b = high};
}
mc_initializer mc_init_custom(mc_init_fn fn, void *user)
{
    return (mc_initializer){.kind = MC_INIT_CUSTOM, .fn = fn, .user = user};
}
