#include "core/inspect/inspect_internal.h"

#include <fnmatch.h>
#include <math.h>
#include <string.h>
#include "core/base/hash_internal.h"
#include "core/dist/ranks_internal.h"

struct mc_inspection {
    mc_owned owned;
    mc_inspect_row *rows;
    int count;
    char *names; /* of all rows, one after the other */
};

/* ---- moments --------------------------------------------------------------------------------- */

mc_moments mc_moments_of(const mc_tensor_stats *s)
{
    double n = (double)s->count;
    if (!s->count) return (mc_moments){0};
    double squares = s->squares - s->sum * s->sum / n;
    return (mc_moments){.count = s->count,
                        .mean = s->shift + s->sum / n,
                        .squares = squares < 0 ? 0 : squares, /* rounding */
                        .largest = (double)s->largest,
                        .smallest = (double)s->smallest};
}

void mc_moments_add(mc_moments *all, const mc_moments *part)
{
    if (!part->count) return;
    if (!all->count) {
        *all = *part;
        return;
    }
    double a = (double)all->count, b = (double)part->count, apart = part->mean - all->mean;
    all->count += part->count;
    /* the difference of infinite means is meaningless */
    all->mean += isfinite(apart) ? apart * (b / (a + b)) : part->mean;
    all->squares += part->squares + apart * apart * (a / (a + b) * b);
    if (part->largest > all->largest || isnan(part->largest)) all->largest = part->largest;
    if (part->smallest < all->smallest || isnan(part->smallest)) all->smallest = part->smallest;
}

static double deviation(const mc_moments *m)
{
    return m->count > 1 ? sqrt(m->squares / (double)(m->count - 1)) : NAN;
}

/* ---- over ranks ------------------------------------------------------------------------------ */

/* A fingerprint of a rank's rows in two numbers. */
typedef struct row_mark {
    uint64_t count, hash;
} row_mark;

/* Fails on every rank if their rows differ. */
static mc_status check_rows(mc_context *ctx, int count, const char *const *names)
{
    row_mark mine = {(uint64_t)count, MC_HASH_START};
    for (int i = 0; i < count; i++) mine.hash = mc_hash(mine.hash, names[i], strlen(names[i]) + 1);
    const mc_rank_group *shard = &ctx->mesh.shard;
    row_mark *all = mc_calloc((size_t)shard->size, sizeof *all);
    if (!all) return mc_fail_nomem(ctx, "a table of statistics");
    mc_status status = mc_ranks_gather(ctx, shard, &mine, sizeof mine, all);
    for (int r = 0; !status && r < shard->size; r++)
        if (memcmp(&all[r], &all[0], sizeof mine) != 0)
            status = mc_fail(ctx, MC_ERR_STATE,
                             "inspection: rank %d has %llu rows and rank 0 has %llu, or their "
                             "names differ: every rank has to ask for the same",
                             r, (unsigned long long)all[r].count, (unsigned long long)all[0].count);
    mc_free(all);
    return status;
}

static mc_status add_over_ranks(mc_context *ctx, int count, const char *const *names,
                                mc_row_parts *parts)
{
    size_t n = (size_t)count;
    const mc_rank_group *shard = &ctx->mesh.shard;
    if (!shard->comm || mc_failed(ctx)) return mc_error_status(ctx);
    if (check_rows(ctx, count, names)) return mc_error_status(ctx);
    mc_row_parts *all = mc_calloc(n * (size_t)shard->size + 1, sizeof *all);
    if (!all) return mc_fail_nomem(ctx, "a table of statistics");
    mc_status status = mc_ranks_gather(ctx, shard, parts, n * sizeof *all, all);
    if (!status) memcpy(parts, all, n * sizeof *all);
    for (size_t r = 1; !status && r < (size_t)shard->size; r++)
        for (size_t i = 0; i < n; i++) {
            const mc_row_parts *part = &all[r * n + i];
            mc_moments_add(&parts[i].value, &part->value);
            mc_moments_add(&parts[i].gradient, &part->gradient);
            parts[i].first_size += part->first_size;
            parts[i].has_gradient |= part->has_gradient;
        }
    mc_free(all);
    return status;
}

/* ---- tables ---------------------------------------------------------------------------------- */

static void free_inspection(void *object)
{
    mc_inspection *table = object;
    mc_free(table->rows);
    mc_free(table->names);
    mc_free(table);
}

void mc_inspection_free(mc_inspection *table)
{
    if (!table) return;
    mc_disown(&table->owned);
    free_inspection(table);
}

int mc_inspection_count(const mc_inspection *table) { return table ? table->count : 0; }

const mc_inspect_row *mc_inspection_row(const mc_inspection *table, int i)
{
    return table && i >= 0 && i < table->count ? &table->rows[i] : NULL;
}

static mc_inspect_row row_of(const char *name, mc_shape shape, const mc_row_parts *parts)
{
    const mc_moments *value = &parts->value, *gradient = &parts->gradient;
    bool any = value->count, any_gradient = gradient->count;
    mc_inspect_row row = {.name = name,
                          .shape = shape,
                          .count = value->count,
                          .max = any ? value->largest : NAN,
                          .min = any ? value->smallest : NAN,
                          .std = deviation(value),
                          .mean = any ? value->mean : NAN,
                          .has_gradient = parts->has_gradient};
    if (!row.has_gradient) return row;
    row.grad_std = deviation(gradient);
    row.grad_mean = any_gradient ? gradient->mean : NAN;
    return row;
}

/* An empty table with room for rows and their names. */
static mc_inspection *make_table(mc_context *ctx, int count, const char *const *names)
{
    size_t bytes = 1;
    for (int i = 0; i < count; i++) bytes += strlen(names[i]) + 1;
    mc_inspection *table =
        mc_new_owned(ctx, sizeof *table, "a table of statistics", free_inspection);
    if (!table) return NULL;
    table->rows = mc_calloc((size_t)count + 1, sizeof *table->rows);
    table->names = mc_malloc(bytes);
    if (table->rows && table->names) return table;
    mc_inspection_free(table);
    mc_fail_nomem(ctx, "a table of statistics");
    return NULL;
}

mc_inspection *mc_inspection_new(mc_context *ctx, int count, const char *const *names,
                                 const mc_shape *shapes, mc_row_parts *parts, bool add_sizes)
{
    if (add_over_ranks(ctx, count, names, parts)) return NULL;
    mc_inspection *table = make_table(ctx, count, names);
    if (!table) return NULL;
    char *name = table->names;
    for (int i = 0; i < count; i++) {
        mc_shape shape = shapes[i];
        size_t size = strlen(names[i]) + 1;
        if (add_sizes && shape.ndim) shape.dim[0] = parts[i].first_size;
        memcpy(name, names[i], size);
        table->rows[table->count++] = row_of(name, shape, &parts[i]);
        name += size;
    }
    return table;
}

/* ---- parameters ------------------------------------------------------------------------------ */

/* The selected parameters, in parallel arrays. */
typedef struct chosen {
    int count;
    mc_parameter **parameters;
    const char **names;
    mc_shape *shapes;
    mc_row_parts *parts;
    mc_tensor_stats *host;
} chosen;

static void release_chosen(chosen *c)
{
    mc_free(c->parameters);
    mc_free(c->names);
    mc_free(c->shapes);
    mc_free(c->parts);
    mc_free(c->host);
}

static bool matches(const mc_parameter *p, const char *pattern)
{
    return !pattern || fnmatch(pattern, p->name, 0) == 0;
}

static mc_status choose(mc_module *module, const char *pattern, chosen *c)
{
    size_t n = 0;
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(module, &it));) n += matches(p, pattern);
    if (!n)
        return mc_fail(module->ctx, MC_ERR_NOT_FOUND,
                       "inspect: pattern \"%s\" matches no parameter", pattern ? pattern : "*");
    c->parameters = mc_calloc(n, sizeof *c->parameters);
    c->names = mc_calloc(n, sizeof *c->names);
    c->shapes = mc_calloc(n, sizeof *c->shapes);
    c->parts = mc_calloc(n, sizeof *c->parts);
    c->host = mc_calloc(2 * n, sizeof *c->host);
    if (!c->parameters || !c->names || !c->shapes || !c->parts || !c->host)
        return mc_fail_nomem(module->ctx, "a table of statistics");
    it = (mc_parameter_iterator){0};
    for (mc_parameter *p; (p = mc_module_next_parameter(module, &it));) {
        if (!matches(p, pattern)) continue;
        if (p->stored->leaves)
            return mc_fail(module->ctx, MC_ERR_UNSUPPORTED,
                           "inspect: parameter \"%s\" is in 8 bits", p->name);
        c->parameters[c->count] = p;
        c->names[c->count] = p->name;
        c->shapes[c->count++] = p->shape;
    }
    return MC_OK;
}

/* The elements of a parameter's bucket that this rank's statistics cover, equal at every level. */
static void own_elements(const mc_parameter *p, int64_t *first, int64_t *count)
{
    const mc_bucket *b = p->stored->bucket;
    bool alone = !p->module->ctx->mesh.shard.comm;
    int64_t begin = p->stored->span->offset + p->first, end = begin + mc_shape_count(p->shape);
    int64_t from = alone ? 0 : b->first, to = alone ? b->count : b->first + b->share;
    *first = begin > from ? begin : from;
    *count = (end < to ? end : to) - *first;
    if (*count < 0) *count = 0;
}

/* Launches the statistics of a parameter: stats[0] of its values, stats[1] of its gradient. */
static mc_status launch(const mc_parameter *p, mc_tensor_stats *stats, mc_row_parts *parts)
{
    mc_bucket *b = p->stored->bucket;
    mc_device *device = p->module->ctx->device;
    int64_t first, count;
    own_elements(p, &first, &count);
    parts->has_gradient = b->trainable && b->gradient.needed;
    if (!count) return MC_OK;
    mc_matrix values = {mc_bucket_value_at(b, first), b->dtype, count};
    mc_status status = device->kernels->tensor_stats(device, count, values, &stats[0]);
    if (status || !parts->has_gradient) return status;
    return mc_sum_stats(&p->module->root->zero, b, first, count, &stats[1]);
}

static mc_status fail_device(mc_context *ctx, mc_status status)
{
    const char *why = ctx->device->failure;
    if (!status || mc_failed(ctx)) return status;
    if (status == MC_ERR_NOMEM) return mc_fail_nomem(ctx, "statistics of parameters");
    return mc_fail(ctx, status, "statistics of parameters%s%s", *why ? ": " : "", why);
}

static mc_status take_statistics(mc_context *ctx, chosen *c)
{
    mc_device *device = ctx->device;
    size_t bytes = 2 * (size_t)c->count * sizeof(mc_tensor_stats);
    mc_tensor_stats *stats = device->alloc(device, bytes);
    if (!stats) return mc_fail_nomem(ctx, "statistics of parameters");
    mc_status status = device->kernels->zero(device, stats, bytes);
    for (int i = 0; !status && i < c->count; i++)
        status = mc_zero_await(&c->parameters[i]->module->root->zero);
    for (int i = 0; !status && i < c->count; i++)
        status = launch(c->parameters[i], &stats[(size_t)i * 2], &c->parts[i]);
    if (!status && !device->copy_out(device, c->host, stats, bytes)) status = MC_ERR_DEVICE;
    device->free(device, stats, bytes);
    for (int i = 0; !status && i < c->count; i++) {
        c->parts[i].value = mc_moments_of(&c->host[(size_t)i * 2]);
        c->parts[i].gradient = mc_moments_of(&c->host[(size_t)i * 2 + 1]);
    }
    return fail_device(ctx, status);
}

mc_inspection *mc_inspect(mc_module *module, const char *pattern)
{
    if (!module || mc_failed(module->ctx)) return NULL;
    mc_context *ctx = module->ctx;
    chosen c = {0};
    mc_status status = mc_module_layout(module->root);
    if (!status) status = mc_zero_sum(&module->root->zero);
    if (!status) status = choose(module, pattern, &c);
    if (!status) status = take_statistics(ctx, &c);
    mc_inspection *table =
        status ? NULL : mc_inspection_new(ctx, c.count, c.names, c.shapes, c.parts, false);
    release_chosen(&c);
    return table;
}

/* ---- as text --------------------------------------------------------------------------------- */

enum { SHAPE_WIDTH = 20, NUMBER_WIDTH = 10 };

static void print_cell(FILE *stream, const char *text, int width)
{
    fprintf(stream, " %-*.*s", width - 1, width - 1, text);
}

static void print_number(FILE *stream, double value)
{
    char text[400]; /* the largest double has 309 digits before the point */
    snprintf(text, sizeof text, "%.4f", value);
    print_cell(stream, isnan(value) ? "nan" : text, NUMBER_WIDTH);
}

/* "(768, 512)", "(768,)", "()" */
static void print_shape(FILE *stream, mc_shape shape)
{
    char text[32 * MC_MAX_DIMS];
    size_t used = 0;
    text[used++] = '(';
    for (int i = 0; i < shape.ndim; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, i ? ", %lld" : "%lld",
                                 (long long)shape.dim[i]);
    snprintf(text + used, sizeof text - used, shape.ndim == 1 ? ",)" : ")");
    print_cell(stream, text, SHAPE_WIDTH);
}

static void print_row(FILE *stream, const mc_inspect_row *row, int name_width)
{
    print_cell(stream, row->name, name_width);
    print_shape(stream, row->shape);
    const double numbers[] = {row->max, row->min, row->std, row->mean};
    const double gradients[] = {row->grad_std, row->grad_mean};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) print_number(stream, numbers[i]);
    for (size_t i = 0; i < sizeof gradients / sizeof *gradients; i++)
        if (row->has_gradient)
            print_number(stream, gradients[i]);
        else
            print_cell(stream, "-", NUMBER_WIDTH);
    fputc('\n', stream);
}

mc_status mc_print_inspect(mc_context *ctx, const mc_inspection *table, FILE *stream)
{
    static const char *const titles[] = {"max", "min", "std", "mean", "grad_std", "grad_mean"};
    if (mc_failed(ctx) || !table || ctx->mesh.world.rank != 0) return mc_error_status(ctx);
    if (!stream) return mc_fail(ctx, MC_ERR_ARGUMENT, "a table of statistics: the stream is NULL");
    size_t longest = strlen("name");
    for (int i = 0; i < table->count; i++) {
        size_t length = strlen(table->rows[i].name);
        if (length > longest) longest = length;
    }
    int name_width = (int)longest + 4;
    print_cell(stream, "name", name_width);
    print_cell(stream, "shape", SHAPE_WIDTH);
    for (size_t i = 0; i < sizeof titles / sizeof *titles; i++)
        print_cell(stream, titles[i], NUMBER_WIDTH);
    fputc('\n', stream);
    for (int i = 0; i < table->count; i++) print_row(stream, &table->rows[i], name_width);
    if (fflush(stream) == 0 && !ferror(stream)) return MC_OK;
    return mc_fail(ctx, MC_ERR_IO, "a table of statistics cannot be written");
}
