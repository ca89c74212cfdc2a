/* Batches of windows: which ones are a batch's, and where a loader stands. */
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include "datasets/lm.h"
#include "datasets/lm/blend_internal.h"
#include "datasets/lm/loader_internal.h"
#include "datasets/order_internal.h"
#include "datasets/token_files.h"

struct mc_lm_loader {
    mc_owned owned;
    mc_context *ctx;
    mc_lm_windows *sources; /* (source_count) */
    int source_count;
    mc_lm_blend blend; /* of them */
    int batch_size, seq_length, world, rank;
    bool shuffle, repeat, keep_last, separate;
    mc_lm_border border;
    uint64_t seed, fingerprint;
    int64_t limit;         /* ids are below it */
    int64_t tokens;        /* of all files */
    int64_t windows;       /* of an epoch, */
    int64_t end;           /* and those of them that are delivered */
    int64_t batch_windows; /* of a batch over all ranks */
    int64_t epoch, window; /* position: windows of the epoch that were delivered, on all ranks */
    mc_lm_batch batch;
    int32_t *ids, *labels; /* (batch_size * seq_length) */
    int32_t *lengths;      /* the same, with `separate` */
    int32_t *others;       /* (3 * seq_length): ids, labels and lengths of other ranks' windows */
};

/* ---- making and freeing ---- */

static void free_loader(void *object)
{
    mc_lm_loader *l = object;
    for (int i = 0; i < l->source_count; i++) mc_lm_windows_release(&l->sources[i]);
    mc_lm_blend_release(&l->blend);
    mc_free(l->sources);
    mc_free(l->ids);
    mc_free(l->labels);
    mc_free(l->lengths);
    mc_free(l->others);
    mc_free(l);
}

void mc_lm_loader_free(mc_lm_loader *l)
{
    if (!l) return;
    mc_disown(&l->owned);
    free_loader(l);
}

static const char *path_of(const mc_lm_loader *l) { return l->sources[0].file->shards[0].path; }

static bool in_range(mc_context *ctx, const char *option, int64_t value, int64_t low, int64_t high)
{
    if (value >= low && value <= high) return true;
    mc_fail(ctx, MC_ERR_ARGUMENT,
            "loader of tokens: %s is %" PRId64 ", expected %" PRId64 " to %" PRId64, option, value,
            low, high);
    return false;
}

/* Windows of all epochs up to this one have numbers. */
static int64_t most_epochs(const mc_lm_loader *l) { return INT64_MAX / 4 / l->windows; }

static bool check_options(mc_context *ctx, const mc_lm_loader_options *o)
{
    if (o->batch_size == 0 || o->seq_length == 0) {
        mc_fail(ctx, MC_ERR_ARGUMENT, "loader of tokens: option %s is required",
                o->batch_size == 0 ? "batch_size" : "seq_length");
        return false;
    }
    return in_range(ctx, "batch_size", o->batch_size, 1, INT_MAX) &&
           in_range(ctx, "seq_length", o->seq_length, 1, INT_MAX) &&
           in_range(ctx, "batch_size * seq_length", (int64_t)o->batch_size * o->seq_length, 1,
                    INT_MAX) &&
           in_range(ctx, "vocabulary", o->vocabulary, 0, (int64_t)INT32_MAX + 1) &&
           in_range(ctx, "epoch_start", o->epoch_start, 0, INT64_MAX / 2) &&
           in_range(ctx, "world", o->world, 0, 1 << 24) &&
           in_range(ctx, "rank", o->rank, 0, o->world ? o->world - 1 : 0) &&
           in_range(ctx, "document_token", o->document_token,
                    o->document_token == MC_INT_ZERO ? MC_INT_ZERO : 0, INT32_MAX);
}

static void take_options(mc_lm_loader *l, const mc_lm_loader_options *o)
{
    l->batch_size = o->batch_size;
    l->seq_length = o->seq_length;
    l->world = o->world ? o->world : mc_data_size(l->ctx);
    l->rank = o->world ? o->rank : mc_data_rank(l->ctx);
    l->shuffle = o->shuffle;
    l->repeat = o->repeat;
    l->keep_last = o->keep_last;
    l->seed = (uint64_t)mc_option_int((int64_t)o->seed, (int64_t)mc_seed(l->ctx));
    l->separate = o->separate_documents;
    l->border = (mc_lm_border){.token = (int32_t)mc_option_int(o->document_token, -1),
                               .ends = o->document_token_ends};
    l->limit = o->vocabulary ? o->vocabulary : (int64_t)INT32_MAX + 1;
    l->epoch = o->epoch_start;
    l->batch_windows = (int64_t)l->batch_size * l->world;
}

static bool make_buffers(mc_lm_loader *l)
{
    size_t tokens = (size_t)l->batch_size * (size_t)l->seq_length;
    bool others = l->separate && l->world > 1;
    l->ids = mc_malloc(tokens * sizeof *l->ids);
    l->labels = mc_malloc(tokens * sizeof *l->labels);
    if (l->separate) l->lengths = mc_malloc(tokens * sizeof *l->lengths);
    if (others) l->others = mc_malloc(3 * (size_t)l->seq_length * sizeof *l->others);
    if (l->ids && l->labels && (l->lengths || !l->separate) && (l->others || !others)) return true;
    mc_fail_nomem(l->ctx, "a loader of tokens");
    return false;
}

/* With documents apart, every file has to say where they begin. */
static bool check_documents(const mc_lm_loader *l, const mc_token_file *file)
{
    if (!l->separate || l->border.token >= 0) return true;
    for (size_t s = 0; s < file->shard_count; s++)
        if (file->shards[s].documents < 0) {
            mc_fail(l->ctx, MC_ERR_ARGUMENT,
                    "%s: it does not say where documents begin: separate_documents needs "
                    "document_token, the token that begins each",
                    file->shards[s].path);
            return false;
        }
    return true;
}

static bool take_source(mc_lm_loader *l, mc_token_file *file)
{
    mc_lm_windows *w = &l->sources[l->source_count++];
    if (!mc_lm_windows_init(w, file, l->seq_length) || !check_documents(l, file)) return false;
    l->windows += w->count;
    l->tokens += file->count;
    return true;
}

static bool take_sources(mc_lm_loader *l, const mc_lm_source *sources, int count)
{
    double *weights = mc_malloc((size_t)count * sizeof *weights);
    l->sources = mc_calloc((size_t)count, sizeof *l->sources);
    bool room = weights && l->sources;
    for (int i = 0; room && i < count; i++) weights[i] = sources[i].weight;
    room = room && mc_lm_blend_init(&l->blend, weights, count);
    mc_free(weights);
    if (!room) {
        mc_fail_nomem(l->ctx, "a loader of tokens");
        return false;
    }
    for (int i = 0; i < count; i++)
        if (!take_source(l, sources[i].file)) return false;
    return true;
}

/* The file's number, and of a blend those of all, with their shares. */
static uint64_t fingerprint_of(const mc_lm_loader *l)
{
    uint64_t hash = mc_token_file_fingerprint(l->sources[0].file);
    if (l->source_count == 1) return hash;
    for (int i = 0; i < l->source_count; i++) {
        if (i) hash = mc_order_mix(hash + mc_token_file_fingerprint(l->sources[i].file));
        hash = mc_order_mix(hash + (uint64_t)l->blend.part[i]);
    }
    return hash;
}

/* Shuffled windows lie anywhere. */
static void advise(const mc_lm_loader *l)
{
    for (int i = 0; i < l->source_count; i++)
        for (size_t s = 0; s < l->sources[i].file->shard_count; s++)
            mc_token_shard_advise(&l->sources[i].file->shards[s], true);
}

static bool too_few(const mc_lm_loader *l, const mc_lm_windows *w)
{
    const char *where = w->file->shard_count > 1 ? " in all shards" : "";
    mc_fail(l->ctx, MC_ERR_ARGUMENT,
            "%s: %" PRId64 " tokens%s are too few for a sequence of %d and a label",
            w->file->shards[0].path, w->file->count, where, l->seq_length);
    return false;
}

static bool check_windows(const mc_lm_loader *l)
{
    for (int i = 0; i < l->source_count; i++)
        if (!l->sources[i].count && (l->keep_last || l->source_count > 1))
            return too_few(l, &l->sources[i]);
    if (l->windows < (l->keep_last ? 1 : l->batch_windows)) {
        const char *where = l->sources[0].file->shard_count > 1 ? " in all shards" : "";
        mc_fail(l->ctx, MC_ERR_ARGUMENT,
                "%s: %" PRId64 " tokens%s are too few for one batch: they make %" PRId64
                " sequences of %d and a label, a batch has %d on each of %d ranks",
                path_of(l), l->tokens, l->source_count > 1 ? " in all sources" : where, l->windows,
                l->seq_length, l->batch_size, l->world);
        return false;
    }
    return in_range(l->ctx, "epoch_start", l->epoch, 0, most_epochs(l));
}

static bool check_sources(mc_context *ctx, const mc_lm_source *sources, int count)
{
    for (int i = 0; i < count; i++) {
        if (!sources[i].file) return false; /* its context has the error */
        if (sources[i].file->ctx != ctx)
            return !mc_fail(ctx, MC_ERR_ARGUMENT, "loader of tokens: sources of two contexts");
        if (sources[i].weight > 0 && isfinite(sources[i].weight)) continue;
        mc_fail(ctx, MC_ERR_ARGUMENT, "%s: a weight of %g, expected a positive number",
                sources[i].file->shards[0].path, sources[i].weight);
        return false;
    }
    return true;
}

mc_lm_loader *mc_lm_loader_new_blend(const mc_lm_source *sources, int count,
                                     const mc_lm_loader_options *options)
{
    static const mc_lm_loader_options none = {0};
    if (!sources || !sources[0].file || mc_failed(sources[0].file->ctx)) return NULL;
    if (!options) options = &none;
    mc_context *ctx = sources[0].file->ctx;
    if (!in_range(ctx, "number of sources", count, 1, 1 << 16) ||
        !check_sources(ctx, sources, count) || !check_options(ctx, options))
        return NULL;
    mc_lm_loader *l = mc_new_owned(ctx, sizeof *l, "a loader of tokens", free_loader);
    if (!l) return NULL;
    l->ctx = ctx;
    take_options(l, options);
    bool good = make_buffers(l) && take_sources(l, sources, count) && check_windows(l);
    if (good) l->fingerprint = fingerprint_of(l);
    l->end = l->keep_last ? l->windows : l->windows - l->windows % l->batch_windows;
    if (good && l->shuffle) advise(l);
    if (good && !mc_failed(ctx)) return l;
    mc_lm_loader_free(l);
    return NULL;
}

mc_lm_loader *mc_lm_loader_new(mc_token_file *file, const mc_lm_loader_options *options)
{
    return mc_lm_loader_new_blend(&(mc_lm_source){file, 1}, 1, options);
}

/* ---- batches ---- */

/* Reads the next window of the blend to ids and labels (seq_length). With documents apart the
 * lengths of its pieces follow the *count that are in `lengths`. */
static bool read_window(mc_lm_loader *l, int32_t *ids, int32_t *labels, int32_t *lengths,
                        int *count)
{
    int64_t sample, first;
    int source = mc_lm_blend_next(&l->blend, &sample);
    const mc_lm_windows *w = &l->sources[source];
    int64_t epoch = sample / w->count, window = sample % w->count;
    if (l->shuffle)
        window = mc_lm_permute(mc_order_key(l->seed, epoch, (uint64_t)source), w->count, window);
    const mc_token_shard *shard = mc_lm_windows_find(w, window, &first);
    mc_error *err = &l->ctx->error;
    int length = l->seq_length;
    size_t width = mc_token_width(shard->type);
    if (l->shuffle && shard->data)
        mc_token_need(shard->data + (size_t)first * width, ((size_t)length + 1) * width);
    return mc_token_shard_read(err, shard, first, length, l->limit, ids) == MC_OK &&
           mc_token_shard_read(err, shard, first + 1, length, l->limit, labels) == MC_OK &&
           (!l->separate || mc_lm_divide(err, shard, l->border, first, length, ids, labels, lengths,
                                         count) == MC_OK);
}

/* The stretch of rank `rank` of a batch of `all` windows begins here. */
static int64_t stretch_of(const mc_lm_loader *l, int64_t all, int rank)
{
    return all * rank / l->world;
}

/* This rank's windows, to which the blend has come. */
static bool read_own(mc_lm_loader *l, int64_t rows, int *pieces)
{
    int64_t length = l->seq_length;
    for (int64_t row = 0; row < rows; row++)
        if (!read_window(l, l->ids + row * length, l->labels + row * length, l->lengths, pieces))
            return false;
    return true;
}

/* Reads a batch of `all` windows from window n of the blend on: this rank's, and with documents
 * apart those of the others too, for the number of their pieces. */
static bool read_batch(mc_lm_loader *l, int64_t n, int64_t all, int *pieces, int *most)
{
    for (int rank = 0; rank < l->world; rank++) {
        int64_t first = stretch_of(l, all, rank), end = stretch_of(l, all, rank + 1);
        int count = 0;
        if (rank != l->rank && !l->others) continue;
        mc_lm_blend_seek(&l->blend, n + first);
        if (rank == l->rank) {
            if (!read_own(l, end - first, &count)) return false;
            *pieces = count;
        }
        for (int64_t row = first; rank != l->rank && row < end; row++) {
            int32_t *ids = l->others, *labels = ids + l->seq_length;
            int some = 0;
            if (!read_window(l, ids, labels, labels + l->seq_length, &some)) return false;
            count += some;
        }
        if (count > *most) *most = count;
    }
    return true;
}

/* Windows of the next batch over all ranks; 0 at the end of an epoch. */
static int64_t next_windows(const mc_lm_loader *l)
{
    int64_t left = l->end - l->window;
    if (left >= l->batch_windows) return l->batch_windows;
    return l->keep_last ? left : 0;
}

static int round_pieces(const mc_lm_loader *l, int pieces)
{
    int64_t room = l->batch_size, most = room * l->seq_length;
    while (room < pieces) room *= 2;
    return (int)(room < most ? room : most);
}

const mc_lm_batch *mc_lm_loader_next(mc_lm_loader *l)
{
    if (!l || mc_failed(l->ctx)) return NULL;
    if (!next_windows(l)) {
        l->window = 0;
        l->epoch++;
        if (!l->repeat) return NULL;
    }
    int pieces = 0, most = 0;
    int64_t all = next_windows(l);
    int64_t first = stretch_of(l, all, l->rank), rows = stretch_of(l, all, l->rank + 1) - first;
    if (!read_batch(l, l->epoch * l->windows + l->window, all, &pieces, &most)) return NULL;
    l->batch = (mc_lm_batch){
        .ids = l->ids,
        .labels = l->labels,
        .batch_size = (int)rows,
        .seq_length = l->seq_length,
        .lengths = l->lengths,
        .pieces = pieces,
        .most_pieces = l->separate ? round_pieces(l, most) : 0,
        .tokens = rows * l->seq_length,
        .all_tokens = all * l->seq_length,
        .epoch = l->epoch,
        .step = l->window / l->batch_windows,
        .first = l->window + first,
    };
    l->window += all;
    return &l->batch;
}

int64_t mc_lm_loader_batches(const mc_lm_loader *l)
{
    if (!l) return 0;
    return l->end / l->batch_windows + (l->keep_last && l->end % l->batch_windows != 0);
}

int64_t mc_lm_loader_epoch(const mc_lm_loader *l)
{
    return l ? l->epoch + (l->repeat && !next_windows(l)) : 0;
}

int64_t mc_lm_loader_windows(const mc_lm_loader *l) { return l ? l->windows : 0; }
int64_t mc_lm_loader_tokens(const mc_lm_loader *l) { return l ? l->tokens : 0; }

mc_token_file *mc_lm_loader_file(const mc_lm_loader *l) { return l ? l->sources[0].file : NULL; }

mc_context *mc_lm_loader_context(const mc_lm_loader *l) { return l->ctx; }
int mc_lm_loader_batch_size(const mc_lm_loader *l) { return l->batch_size; }

/* ---- position ---- */

mc_lm_position mc_lm_loader_position(const mc_lm_loader *l)
{
    if (!l) return (mc_lm_position){0};
    return (mc_lm_position){
        .seed = l->seed,
        .epoch = l->epoch,
        .window = l->window,
        .tokens = l->tokens,
        .windows = l->windows,
        .seq_length = l->seq_length,
        .shuffle = l->shuffle,
        .fingerprint = l->fingerprint,
        .epoch_windows = l->end,
    };
}

static mc_status refuse(mc_lm_loader *l, const char *what, int64_t theirs, int64_t ours)
{
    return mc_fail(l->ctx, MC_ERR_ARGUMENT,
                   "%s: the position to resume from is of other data or options: its %s is %" PRId64
                   ", here it is %" PRId64,
                   path_of(l), what, theirs, ours);
}

mc_status mc_lm_loader_seek(mc_lm_loader *l, const mc_lm_position *p)
{
    if (!l) return MC_ERR_ARGUMENT;
    if (mc_failed(l->ctx)) return mc_error_status(l->ctx);
    if (!p) return mc_fail(l->ctx, MC_ERR_ARGUMENT, "loader of tokens: no position to seek");
    if (p->tokens != l->tokens) return refuse(l, "count of tokens", p->tokens, l->tokens);
    if (p->fingerprint != l->fingerprint)
        return mc_fail(l->ctx, MC_ERR_ARGUMENT,
                       "%s: the position to resume from is of other data: as many tokens, but not "
                       "the same",
                       path_of(l));
    if (p->seq_length != l->seq_length)
        return refuse(l, "seq_length", p->seq_length, l->seq_length);
    if (p->windows != l->windows) return refuse(l, "count of sequences", p->windows, l->windows);
    if (p->shuffle != l->shuffle) return refuse(l, "shuffle", p->shuffle, l->shuffle);
    int64_t end = p->epoch_windows ? p->epoch_windows : p->windows;
    if (p->epoch < 0 || p->epoch > most_epochs(l) || end < 0 || end > p->windows || p->window < 0 ||
        p->window > end)
        return mc_fail(l->ctx, MC_ERR_ARGUMENT,
                       "loader of tokens: window %" PRId64 " of epoch %" PRId64
                       " is no position: an epoch has %" PRId64 " windows",
                       p->window, p->epoch, end);
    l->seed = p->seed;
    l->epoch = p->epoch;
    l->window = p->window;
    if (p->epoch_windows && (l->keep_last || end >= l->batch_windows)) l->end = end;
    return MC_OK;
}
