#include "core/base/context_internal.h"

#include <stdarg.h>
#include <stdlib.h>
#include "core/base/version.h"
#include "core/device/device_internal.h"
#include "core/dist/world_internal.h"

const char *mc_version(void) { return MC_VERSION; }

static void set_options(mc_context *ctx, const mc_init_options *o)
{
    ctx->seed = o->seed;
    ctx->log = o->log;
    ctx->log_user = o->log_user;
    ctx->download = o->download;
    ctx->download_user = o->download_user;
    ctx->zero_level = o->zero_level ? (int)o->zero_level - MC_ZERO_0 : 3;
    ctx->grad_dtype = o->grad_dtype;
    ctx->threads = o->threads;
    ctx->reduce_bytes = (size_t)64 << 20;
}

static void check_options(mc_context *ctx, const mc_init_options *o)
{
    if (o->zero_level < MC_ZERO_DEFAULT || o->zero_level > MC_ZERO_3)
        mc_fail(ctx, MC_ERR_ARGUMENT, "zero_level is %d, expected a mc_zero_level",
                (int)o->zero_level);
    if (o->grad_dtype < MC_GRAD_DEFAULT || o->grad_dtype > MC_GRAD_PARAMETER)
        mc_fail(ctx, MC_ERR_ARGUMENT, "grad_dtype is %d, expected a mc_grad_dtype",
                (int)o->grad_dtype);
    if (o->threads < MC_THREADS_SHARED || o->threads > MC_THREADS_MAX)
        mc_fail(ctx, MC_ERR_ARGUMENT, "threads is %d, expected 0 to %d, or MC_THREADS_SHARED",
                o->threads, MC_THREADS_MAX);
}

static mc_context *open_context(int api_version, const mc_init_options *options, bool single)
{
    mc_context *ctx = mc_calloc(1, sizeof *ctx);
    if (!ctx) return NULL;
    mc_init_options none = {0};
    ctx->owned.previous = ctx->owned.next = &ctx->owned;
    mc_mesh_place(&ctx->mesh, &(mc_mesh_sizes){0}, 0);
    if (api_version != MC_API_VERSION) {
        mc_fail(ctx, MC_ERR_UNSUPPORTED,
                "compiled with MC_API_VERSION %d, but the library (modelcenter %s) has %d: compile "
                "the program with the headers of this library",
                api_version, MC_VERSION, MC_API_VERSION);
        return ctx;
    }
    if (!options) options = &none;
    set_options(ctx, options);
    if (single)
        ctx->local_rank = mc_world_local_rank();
    else
        mc_world_read(ctx);
    check_options(ctx, options);
    ctx->device = mc_device_open(ctx, options->device ? options->device : "cpu");
    mc_world_join(ctx, options->comm_timeout);
    mc_world_set_threads(ctx);
    return ctx;
}

mc_context *mc_context_new_as(int api_version, const mc_init_options *options)
{
    return open_context(api_version, options, true);
}

mc_context *mc_init_distributed_as(int api_version, const mc_init_options *options)
{
    return open_context(api_version, options, false);
}

mc_context *mc_context_new_like(const mc_context *like, mc_device *device)
{
    mc_context *ctx = mc_calloc(1, sizeof *ctx);
    if (!ctx) {
        mc_device_close(device);
        return NULL;
    }
    ctx->owned.previous = ctx->owned.next = &ctx->owned;
    ctx->seed = like->seed;
    mc_mesh_place(&ctx->mesh, &(mc_mesh_sizes){0}, 0);
    ctx->grad_dtype = like->grad_dtype;
    ctx->reduce_bytes = like->reduce_bytes;
    ctx->device = device;
    return ctx;
}

void mc_context_free(mc_context *ctx)
{
    if (!ctx) return;
    while (ctx->owned.next != &ctx->owned) {
        mc_owned *newest = ctx->owned.next;
        mc_disown(newest);
        newest->free(newest->object);
    }
    mc_device_close(ctx->device);
    mc_world_leave(ctx);
    mc_error_clear(&ctx->error);
    mc_free(ctx);
}

int mc_rank(const mc_context *ctx) { return ctx ? ctx->mesh.world.rank : 0; }
int mc_world_size(const mc_context *ctx) { return ctx ? ctx->mesh.world.size : 1; }
int mc_data_rank(const mc_context *ctx) { return ctx ? ctx->mesh.data.rank : 0; }
int mc_data_size(const mc_context *ctx) { return ctx ? ctx->mesh.data.size : 1; }
uint64_t mc_seed(const mc_context *ctx) { return ctx ? ctx->seed : 0; }

bool mc_failed(const mc_context *ctx) { return !ctx || mc_error_is_set(&ctx->error); }

mc_status mc_error_status(const mc_context *ctx) { return ctx ? ctx->error.status : MC_ERR_NOMEM; }

const char *mc_error_message(const mc_context *ctx)
{
    if (!ctx) return "out of memory for the context";
    return mc_error_is_set(&ctx->error) ? ctx->error.message : "";
}

/* The control character that a text begins with, of C0, C1 (two bytes of UTF-8) or DEL; 0: none. */
static int control_at(const char *text)
{
    const unsigned char *p = (const unsigned char *)text;
    if (p[0] == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0) return p[1];
    bool shown = p[0] >= ' ' || p[0] == '\n' || p[0] == '\t';
    return !shown || p[0] == 0x7f ? p[0] : 0;
}

void mc_print_text(FILE *stream, const char *text)
{
    while (stream && text && *text) {
        size_t plain = 0;
        while (text[plain] && !control_at(text + plain)) plain++;
        fwrite(text, 1, plain, stream);
        text += plain;
        int control = control_at(text);
        if (!control) continue;
        fprintf(stream, "\\x%02x", (unsigned)control);
        text += control < 0x80 ? 1 : 2;
    }
}

int mc_print_error(const mc_context *ctx, FILE *stream)
{
    if (!mc_failed(ctx)) return 0;
    if (!stream) return 1;
    fputs("error: ", stream);
    mc_print_text(stream, mc_error_message(ctx));
    fprintf(stream, " (%s", mc_status_text(mc_error_status(ctx)));
    if (ctx) {
        mc_print_text(stream, ctx->error.trace);
        fprintf(stream, "; raised at %s:%d", ctx->error.file, ctx->error.line);
    }
    fputs(")\n", stream);
    return 1;
}

mc_status mc_set_error_at(mc_context *ctx, mc_status status, const char *file, int line,
                          const char *format, ...)
{
    if (!ctx) return MC_ERR_NOMEM;
    va_list args;
    va_start(args, format);
    mc_error_vset_at(&ctx->error, status, file, line, format ? format : "no message", args);
    va_end(args);
    return status;
}

void mc_clear_error(mc_context *ctx)
{
    if (ctx) mc_error_clear(&ctx->error);
}

void mc_print_rank(mc_context *ctx, int rank, const char *format, ...)
{
    if (mc_failed(ctx) || !mc_given(ctx, format) || ctx->mesh.world.rank != rank) return;
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    fflush(stdout);
}

bool mc_given_at(mc_context *ctx, bool given, const char *function, const char *argument,
                 const char *file, int line)
{
    if (!given) mc_fail_at(ctx, MC_ERR_ARGUMENT, file, line, "%s: %s is NULL", function, argument);
    return given;
}

mc_status mc_fail_at(mc_context *ctx, mc_status status, const char *file, int line,
                     const char *format, ...)
{
    if (!ctx) return status;
    va_list args;
    va_start(args, format);
    mc_error_vset_at(&ctx->error, status, file, line, format, args);
    va_end(args);
    return status;
}

void mc_log(mc_context *ctx, mc_log_level level, const char *format, ...)
{
    if (!ctx || !ctx->log) return;
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    char line[512], *text = line;
    int length = vsnprintf(line, sizeof line, format, args);
    if (length >= (int)sizeof line && (text = mc_malloc((size_t)length + 1)))
        vsnprintf(text, (size_t)length + 1, format, again);
    ctx->log(ctx->log_user, level, text ? text : line);
    if (text != line) mc_free(text);
    va_end(again);
    va_end(args);
}

void mc_own(mc_context *ctx, mc_owned *link, void *object, void (*free_object)(void *))
{
    link->object = object;
    link->free = free_object;
    link->previous = &ctx->owned;
    link->next = ctx->owned.next;
    link->next->previous = link;
    ctx->owned.next = link;
}

void mc_disown(mc_owned *link)
{
    if (!link->next) return;
    link->previous->next = link->next;
    link->next->previous = link->previous;
    link->next = link->previous = NULL;
}

void *mc_new_owned(mc_context *ctx, size_t size, const char *what, void (*free_object)(void *))
{
    if (mc_failed(ctx)) return NULL;
    mc_owned *object = mc_calloc(1, size);
    if (!object) {
        mc_fail_nomem(ctx, what);
        return NULL;
    }
    mc_own(ctx, object, object, free_object);
    return object;
}
