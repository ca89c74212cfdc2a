#include "datasets/loader.h"
#include "core/base/signals_internal.h"

#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include "core/device/device_internal.h"
#include "core/tensor/tensor_internal.h"
#include "datasets/order_internal.h"
#include "datasets/pack_internal.h"

enum { DEFAULT_PREFETCH = 2, MAX_PREFETCH = 64, SIDES = 2, SAMPLED_BATCHES = 1000 };

/* A batch in the caller's hands: its buffers, swapped with a slot of the ring, and its tensors. */
typedef struct side {
    mc_batch batch;
    mc_packed packed;
    /* tensors are not in the context's list: the loader frees them */
    struct {
        mc_tensor *lane[MC_LANES];
        mc_lengths *lengths; /* with sizes */
        int64_t room;        /* tokens that the lanes hold */
    } stack[MC_STACKS];
    mc_tensor *labels, *answer_rows, *values, *pixels;
    bool made; /* those that are needed are there */
} side;

struct mc_dataloader {
    mc_owned owned;
    mc_context *ctx;
    mc_dataset *dataset;
    int batch_size, world, rank, prefetch;
    int64_t batch_rows; /* of a full batch over all ranks */
    int64_t batches;    /* of an epoch */
    int most_sizes;     /* 0: batches are not rounded up to sizes */
    mc_pack_limits limits;

    /* the caller's: where it stands, and the two batches it may hold */
    int64_t epoch, step;
    side sides[SIDES];
    int side;
    bool running; /* the thread exists and has to be joined */
    pthread_t thread;

    /* the worker's while it runs */
    mc_order order;
    mc_row_weights *weights; /* the dataset's; NULL for one rank that needs none: no order by
                                length, no sizes */
    mc_sizes sizes[MC_STACKS];
    int32_t *rows; /* the order of epoch `rows_epoch` */
    int64_t rows_epoch, work_epoch, work_step;
    mc_example example;
    mc_error error;

    /* shared, under the lock: slots [head, head + count) of the ring are full */
    pthread_mutex_t lock;
    pthread_cond_t filled, emptied;
    bool lock_made, filled_made, emptied_made;
    mc_packed *ring; /* (prefetch) */
    int head, count;
    bool stop, failed;
};

/* ---- the worker ---- */

static bool told_to_stop(mc_dataloader *l)
{
    pthread_mutex_lock(&l->lock);
    bool stop = l->stop;
    pthread_mutex_unlock(&l->lock);
    return stop;
}

/* Counts the tokens of a row, unless that was done. False on an error. The weights are locked. */
static bool weigh_row(mc_dataloader *l, int64_t row)
{
    size_t tokens[MC_STACKS] = {0};
    mc_row_weights *w = l->weights;
    if (w->weight[row]) return true;
    if (l->dataset->images) tokens[MC_READER] = (size_t)l->dataset->options.image.tokens;
    for (int choice = 0; !l->dataset->images && choice < l->dataset->choices; choice++) {
        if (mc_example_make(&l->error, &l->example, l->dataset, row, choice)) return false;
        for (int i = 0; i < MC_STACKS; i++) tokens[i] += l->example.stack[i].count;
    }
    w->weight[row] = (uint32_t)(tokens[MC_READER] + tokens[MC_WRITER]);
    if (w->written) w->written[row] = (uint32_t)tokens[MC_WRITER];
    return true;
}

/* Counts the tokens of every row, once in the life of a dataset whose loaders order by length or
 * have sizes: one of them does, the others wait. False on an error, or if the loader was stopped
 * meanwhile; the next one then goes on. */
static bool weigh_rows(mc_dataloader *l)
{
    bool good = true;
    int64_t *row = &l->weights->weighed;
    pthread_mutex_lock(&l->weights->lock);
    for (; good && *row < l->order.rows; *row += good)
        good = !(*row % 64 == 0 && told_to_stop(l)) && weigh_row(l, *row);
    pthread_mutex_unlock(&l->weights->lock);
    return good;
}

/* Adds up the tokens of a step's rows on all ranks. */
static bool weigh_step(mc_dataloader *l, const int32_t *rows, int64_t count, int64_t *tokens)
{
    bool good = true;
    *tokens = 0;
    pthread_mutex_lock(&l->weights->lock);
    for (int64_t i = 0; good && i < count; i++) {
        good = weigh_row(l, rows[i]);
        *tokens += l->weights->weight[rows[i]];
    }
    pthread_mutex_unlock(&l->weights->lock);
    return good;
}

/* Tokens of a row on a stack. */
static int32_t row_tokens(const mc_dataloader *l, int stack, int32_t row)
{
    uint32_t written = l->weights->written ? l->weights->written[row] : 0;
    return (int32_t)(stack == MC_WRITER ? written : l->weights->weight[row] - written);
}

/* What the batches of all ranks need on a stack that are made of a step's rows. A row's sequences
 * may be up to as long as it is altogether. */
static mc_size need_of(const mc_dataloader *l, int stack, const int32_t *rows, int64_t count)
{
    mc_size need = {0};
    int32_t limit = mc_example_limit(l->dataset, stack);
    for (int rank = 0; rank < l->world; rank++) {
        int64_t tokens = 0;
        for (int64_t i = rank; i < count; i += l->world) {
            int32_t weight = row_tokens(l, stack, rows[i]);
            int32_t longest = weight < limit ? weight : limit;
            tokens += weight;
            if (longest > need.longest) need.longest = longest;
        }
        if (tokens > need.tokens) need.tokens = tokens;
    }
    return need;
}

/* Rows of all ranks in a step, which begin at row `first` of an epoch. */
static int64_t step_rows(const mc_dataloader *l, int64_t first)
{
    return l->order.rows - first < l->batch_rows ? l->order.rows - first : l->batch_rows;
}

/* How many sizes a stack may have: of two, each has the root of what both may have together. */
static int stack_sizes(const mc_dataloader *l)
{
    int n = l->most_sizes;
    while (l->weights->written && n * n > l->most_sizes) n--;
    return n;
}

/* What any batch of a stack fits into. */
static mc_size largest_need(const mc_dataloader *l, int stack)
{
    mc_size largest = {0};
    for (int64_t i = 0; i < l->order.rows; i++) {
        mc_size row = need_of(l, stack, &(int32_t){(int32_t)i}, 1);
        if (row.tokens > largest.tokens) largest.tokens = row.tokens;
        if (row.longest > largest.longest) largest.longest = row.longest;
    }
    largest.tokens *= l->limits.rows;
    return largest;
}

/* Chooses the sizes by the batches of an epoch, or some epochs if those are short, in an order that
 * no seed changes. */
static void choose_sizes(mc_dataloader *l)
{
    mc_order order = l->order;
    mc_size largest[MC_STACKS];
    int stacks = l->weights->written ? MC_STACKS : 1;
    for (int stack = 0; stack < stacks; stack++) {
        largest[stack] = largest_need(l, stack);
        mc_sizes_init(&l->sizes[stack], largest[stack], l->limits.round_to);
    }
    order.seed = 0;
    int64_t epochs = order.shuffle ? (SAMPLED_BATCHES + l->batches - 1) / l->batches : 1;
    for (int64_t i = 0; i < epochs * l->batches; i++) {
        int64_t epoch = i / l->batches, first = i % l->batches * l->batch_rows;
        if (first == 0) mc_order_build(&order, epoch, l->rows);
        for (int stack = 0; stack < stacks; stack++)
            mc_sizes_note(&l->sizes[stack],
                          need_of(l, stack, l->rows + first, step_rows(l, first)));
    }
    for (int stack = 0; stack < stacks; stack++)
        mc_sizes_choose(&l->sizes[stack], stack_sizes(l), largest[stack]);
}

/* Sees to it that `rows` is the order of the worker's epoch. */
static bool order_rows(mc_dataloader *l)
{
    if (l->rows_epoch == l->work_epoch) return true;
    if ((l->order.by_length || l->most_sizes) && !weigh_rows(l)) return false;
    if (l->most_sizes && !l->sizes[MC_READER].count) choose_sizes(l);
    mc_order_build(&l->order, l->work_epoch, l->rows);
    l->rows_epoch = l->work_epoch;
    return true;
}

static int64_t batch_tokens(const mc_dataloader *l, const mc_packed *p)
{
    if (l->dataset->images) return (int64_t)p->rows * l->dataset->options.image.tokens;
    return p->stack[MC_READER].lengths.total + p->stack[MC_WRITER].lengths.total;
}

/* The capacity of targets on the rank that needs the most. The rows are weighed. */
static int64_t most_targets(const mc_dataloader *l, const mc_packed *p, const int32_t *rows)
{
    int stack = p->stack[MC_WRITER].lanes ? MC_WRITER : MC_READER;
    int64_t unit = l->limits.round_to, fixed = p->stack[stack].size.tokens;
    if (fixed) return fixed;
    return (need_of(l, stack, rows, p->all_rows).tokens + unit - 1) / unit * unit;
}

/* Makes the worker's next batch in `slot`. */
static bool produce(mc_dataloader *l, mc_packed *slot)
{
    if (!order_rows(l)) return false;
    int64_t first = l->work_step * l->batch_rows, all = step_rows(l, first);
    int64_t mine = all > l->rank ? (all - l->rank + l->world - 1) / l->world : 0;
    slot->epoch = l->work_epoch;
    slot->step = l->work_step;
    const int32_t *row = mine ? l->rows + first + l->rank : NULL;
    for (int i = 0; i < MC_STACKS; i++)
        if (l->most_sizes && slot->stack[i].lanes)
            slot->stack[i].size = mc_sizes_fit(&l->sizes[i], need_of(l, i, l->rows + first, all));
    if (mc_pack(&l->error, slot, &l->limits, l->dataset, row, l->world, (int)mine, &l->example))
        return false;
    slot->all_rows = all;
    slot->all_tokens = batch_tokens(l, slot);
    if (l->world > 1 && !weigh_step(l, l->rows + first, all, &slot->all_tokens)) return false;
    slot->most_targets = l->world > 1 ? most_targets(l, slot, l->rows + first) : 0;
    if (++l->work_step == l->batches) {
        l->work_step = 0;
        l->work_epoch++;
    }
    return true;
}

/* Waits for an empty slot; NULL if the loader was stopped. */
static mc_packed *wait_for_slot(mc_dataloader *l)
{
    pthread_mutex_lock(&l->lock);
    while (!l->stop && l->count == l->prefetch) pthread_cond_wait(&l->emptied, &l->lock);
    mc_packed *slot = l->stop ? NULL : &l->ring[(l->head + l->count) % l->prefetch];
    pthread_mutex_unlock(&l->lock);
    return slot;
}

static void *work(void *argument)
{
    mc_dataloader *l = argument;
    bool made = true;
    for (mc_packed *slot; made && (slot = wait_for_slot(l));) {
        made = produce(l, slot);
        pthread_mutex_lock(&l->lock);
        l->count += made;
        l->failed = !made;
        pthread_cond_signal(&l->filled);
        pthread_mutex_unlock(&l->lock);
    }
    return NULL;
}

/* Starts the worker at the caller's position. Signals stay with the program's own threads. */
static bool start_worker(mc_dataloader *l)
{
    if (l->running) return true;
    l->work_epoch = l->epoch;
    l->work_step = l->step;
    l->head = l->count = 0;
    l->stop = l->failed = false;
    sigset_t before;
    mc_signals_block(&before);
    int failure = pthread_create(&l->thread, NULL, work, l);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failure)
        mc_fail(l->ctx, MC_ERR_NOMEM, "cannot start the data loader's thread: %s",
                strerror(failure));
    l->running = !failure;
    return l->running;
}

static void stop_worker(mc_dataloader *l)
{
    if (!l->running) return;
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_signal(&l->emptied);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    l->running = false;
}

/* ---- making and freeing ---- */

static void free_tensors(side *s)
{
    for (int i = 0; i < MC_STACKS; i++) {
        for (int lane = 0; lane < MC_LANES; lane++) {
            mc_tensor_free(s->stack[i].lane[lane]);
            s->stack[i].lane[lane] = NULL;
        }
        mc_lengths_free(s->stack[i].lengths);
        s->stack[i].lengths = NULL;
    }
    mc_tensor_free(s->labels);
    mc_tensor_free(s->answer_rows);
    mc_tensor_free(s->values);
    mc_tensor_free(s->pixels);
    s->labels = s->answer_rows = s->values = s->pixels = NULL;
    s->made = false;
}

static void free_loader(void *object)
{
    mc_dataloader *l = object;
    stop_worker(l);
    for (int i = 0; i < SIDES; i++) {
        free_tensors(&l->sides[i]);
        mc_packed_release(&l->sides[i].packed);
    }
    for (int i = 0; l->ring && i < l->prefetch; i++) mc_packed_release(&l->ring[i]);
    mc_free(l->ring);
    mc_free(l->rows);
    mc_free(l->order.scratch);
    mc_example_release(&l->example);
    mc_error_clear(&l->error);
    if (l->emptied_made) pthread_cond_destroy(&l->emptied);
    if (l->filled_made) pthread_cond_destroy(&l->filled);
    if (l->lock_made) pthread_mutex_destroy(&l->lock);
    mc_dataset_unref(l->dataset);
    mc_free(l);
}

void mc_dataloader_free(mc_dataloader *l)
{
    if (!l) return;
    mc_disown(&l->owned);
    free_loader(l);
}

/* Fails naming the option, unless low <= value <= high. */
static bool in_range(mc_context *ctx, const char *option, int64_t value, int64_t low, int64_t high)
{
    if (value >= low && value <= high) return true;
    mc_fail(ctx, MC_ERR_ARGUMENT, "data loader: %s is %lld, expected %lld to %lld", option,
            (long long)value, (long long)low, (long long)high);
    return false;
}

static bool check_options(mc_context *ctx, const mc_dataloader_options *o)
{
    if (o->batch_size == 0) {
        mc_fail(ctx, MC_ERR_ARGUMENT, "data loader: option batch_size is required");
        return false;
    }
    return in_range(ctx, "batch_size", o->batch_size, 1, INT_MAX) &&
           in_range(ctx, "epoch_start", o->epoch_start, 0, INT64_MAX / 2) &&
           in_range(ctx, "batching", (int64_t)o->batching, MC_BATCHING_DEFAULT,
                    MC_BATCHING_IN_ORDER) &&
           in_range(ctx, "round_to", o->round_to, 0, 1 << 24) &&
           in_range(ctx, "sizes", o->sizes, 0, MC_MOST_SIZES) &&
           in_range(ctx, "prefetch", o->prefetch, 0, MAX_PREFETCH) &&
           in_range(ctx, "world", o->world, 0, 1 << 24) &&
           in_range(ctx, "rank", o->rank, 0, o->world ? o->world - 1 : 0);
}

/* Takes over the options and works out the sizes. */
static bool set_up(mc_dataloader *l, const mc_dataloader_options *o)
{
    int64_t rows = mc_dataset_rows(l->dataset);
    l->batch_size = o->batch_size;
    l->world = o->world ? o->world : mc_data_size(l->ctx);
    l->rank = o->world ? o->rank : mc_data_rank(l->ctx);
    l->prefetch = o->prefetch ? o->prefetch : DEFAULT_PREFETCH;
    l->epoch = o->epoch_start;
    l->batch_rows = (int64_t)l->batch_size * l->world;
    l->batches = rows / l->batch_rows + (!o->drop_last && rows % l->batch_rows != 0);
    l->rows_epoch = -1;
    l->order = (mc_order){
        .rows = rows,
        .batch = l->batch_rows,
        .seed = (uint64_t)mc_option_int((int64_t)o->seed, (int64_t)mc_seed(l->ctx)),
        .shuffle = o->shuffle,
        .by_length = o->batching ? o->batching == MC_BATCHING_BY_LENGTH : o->shuffle,
    };
    int64_t largest = (rows < l->batch_rows ? rows + l->world - 1 : l->batch_rows) / l->world;
    int64_t sequences = largest * l->dataset->choices;
    int32_t pad_id = l->dataset->tok ? mc_tokenizer_pad_id(l->dataset->tok) : -1;
    l->limits = (mc_pack_limits){
        .rows = (int)largest,
        .round_to = o->round_to ? o->round_to : 1,
        .pad_id = pad_id >= 0 ? pad_id : 0, /* which a model looks up, too */
    };
    l->most_sizes = o->sizes;
    for (int i = 0; i < MC_STACKS; i++) {
        int64_t most = sequences * mc_example_limit(l->dataset, i);
        int64_t rounding = o->sizes ? mc_sizes_rounding(most, l->limits.round_to) : 0;
        l->limits.tokens[i] = most + (rounding ? rounding : l->limits.round_to);
    }
    if (!l->batches)
        mc_fail(l->ctx, MC_ERR_ARGUMENT,
                "data loader: %lld rows are less than one batch of %lld, and drop_last leaves it "
                "out",
                (long long)rows, (long long)l->batch_rows);
    return l->batches && in_range(l->ctx, "sequences of a batch", sequences, 0, INT_MAX - 1);
}

static bool make_buffers(mc_dataloader *l)
{
    l->rows = mc_malloc((size_t)l->order.rows * sizeof *l->rows);
    l->ring = mc_calloc((size_t)l->prefetch, sizeof *l->ring);
    bool ok = l->rows && l->ring;
    if (ok && (l->order.by_length || l->world > 1 || l->most_sizes)) {
        bool writes = mc_example_lanes(l->dataset, MC_WRITER) != 0;
        ok = mc_dataset_need_weights(l->dataset, writes);
        l->weights = l->dataset->weights;
    }
    if (ok && l->order.by_length) {
        size_t scratch = mc_order_scratch(l->order.rows, l->batch_rows);
        l->order.scratch = mc_malloc(scratch * sizeof *l->order.scratch);
        l->order.weight = l->weights->weight;
        ok = l->order.scratch;
    }
    if (!ok) mc_fail_nomem(l->ctx, "a data loader");
    mc_error *err = &l->ctx->error;
    for (int i = 0; ok && i < l->prefetch; i++)
        ok = mc_packed_init(err, &l->ring[i], &l->limits, l->dataset) == MC_OK;
    for (int i = 0; ok && i < SIDES; i++)
        ok = mc_packed_init(err, &l->sides[i].packed, &l->limits, l->dataset) == MC_OK;
    return ok;
}

static bool make_lock(mc_dataloader *l)
{
    l->lock_made = pthread_mutex_init(&l->lock, NULL) == 0;
    l->filled_made = pthread_cond_init(&l->filled, NULL) == 0;
    l->emptied_made = pthread_cond_init(&l->emptied, NULL) == 0;
    if (l->lock_made && l->filled_made && l->emptied_made) return true;
    mc_fail_nomem(l->ctx, "the data loader's lock");
    return false;
}

mc_dataloader *mc_dataloader_new(mc_dataset *dataset, const mc_dataloader_options *options)
{
    if (!dataset || mc_failed(dataset->ctx)) return NULL;
    mc_dataloader_options none = {0};
    if (!options) options = &none;
    mc_context *ctx = dataset->ctx;
    if (!check_options(ctx, options)) return NULL;
    if (dataset->images && dataset->options.image.size < 1) {
        mc_fail(ctx, MC_ERR_ARGUMENT,
                "%s: rows are images, expected options.image, a model's form of images",
                dataset->path);
        return NULL;
    }
    mc_dataloader *l = mc_new_owned(ctx, sizeof *l, "a data loader", free_loader);
    if (!l) return NULL;
    l->ctx = ctx;
    l->dataset = dataset;
    mc_dataset_ref(dataset);
    if (set_up(l, options) && make_lock(l) && make_buffers(l)) return l;
    mc_dataloader_free(l);
    return NULL;
}

/* ---- handing out batches ---- */

/* A tensor that the loader owns itself: the context frees its newest objects first, so a tensor in
 * its list would be gone before the loader. */
static mc_tensor *new_tensor(mc_context *ctx, mc_dtype dtype, int64_t n)
{
    mc_tensor *tensor = mc_tensor_new(ctx, dtype, MC_SHAPE(n));
    if (tensor) mc_disown(&tensor->owned);
    return tensor;
}

static mc_lengths *new_lengths(mc_dataloader *l, int stack)
{
    int count = l->limits.rows * l->dataset->choices;
    mc_lengths *lengths = mc_lengths_new(l->ctx, count, l->limits.tokens[stack]);
    if (lengths) mc_lengths_disown(lengths);
    return lengths;
}

/* Makes tensors that hold what a stack's batch has; with sizes, what any batch has. */
static bool reserve_stack(mc_dataloader *l, side *s, int stack, int64_t capacity, unsigned lanes)
{
    int64_t most = l->limits.tokens[stack], least = mc_pack_start(most);
    int64_t room = s->stack[stack].room;
    room = room ? mc_pack_grow(most, room, capacity) : capacity > least ? capacity : least;
    if (l->most_sizes) room = most;
    s->stack[stack].room = room;
    bool ok = true;
    for (int lane = 0; lane < MC_LANES; lane++) {
        if (!(lanes & 1u << lane)) continue;
        s->stack[stack].lane[lane] = new_tensor(l->ctx, MC_I32, room);
        ok = ok && s->stack[stack].lane[lane];
    }
    if (!l->most_sizes) return ok;
    s->stack[stack].lengths = new_lengths(l, stack);
    return ok && s->stack[stack].lengths;
}

/* Those of rows. */
static bool reserve_rows(mc_dataloader *l, side *s)
{
    const mc_dataset *d = l->dataset;
    bool answers = d->kind == MC_TASK_ANSWER;
    if (d->labels && d->kind != MC_TASK_MULTI_LABEL &&
        !(s->labels = new_tensor(l->ctx, MC_I32, l->limits.rows)))
        return false;
    if (answers &&
        !(s->answer_rows = new_tensor(l->ctx, MC_I32, (int64_t)l->limits.rows * d->choices)))
        return false;
    if (d->values) s->values = new_tensor(l->ctx, MC_F32, (int64_t)l->limits.rows * d->values);
    if (d->images)
        s->pixels = new_tensor(l->ctx, MC_F32, (int64_t)l->limits.rows * (int64_t)mc_pixels_of(d));
    return (s->values || !d->values) && (s->pixels || !d->images);
}

static bool reserve_tensors(mc_dataloader *l, side *s, const mc_packed *p)
{
    bool fits = s->made, ok = true;
    for (int i = 0; i < MC_STACKS; i++)
        fits = fits && (!p->stack[i].lanes || p->stack[i].lengths.capacity <= s->stack[i].room);
    if (fits) return true;
    free_tensors(s);
    for (int i = 0; i < MC_STACKS && ok; i++)
        if (p->stack[i].lanes)
            ok = reserve_stack(l, s, i, p->stack[i].lengths.capacity, p->stack[i].lanes);
    s->made = ok && reserve_rows(l, s);
    if (!s->made) free_tensors(s);
    return s->made;
}

/* Sets a tensor to n elements, at most what it was made for, copied from the host. */
static mc_tensor *refill(mc_tensor *tensor, mc_shape shape, const void *data,
                         const mc_lengths *lengths)
{
    if (!tensor) return NULL;
    tensor->shape = shape;
    tensor->lengths = lengths;
    mc_tensor_write(tensor, data, (size_t)mc_shape_count(shape) * mc_dtype_size(tensor->dtype));
    return tensor;
}

/* Fills the lanes of a stack; gives its lengths, NULL where there is no such stack. */
static const mc_lengths *fill_stack(side *s, int stack)
{
    mc_packed_stack *p = &s->packed.stack[stack];
    mc_lengths *fixed = s->stack[stack].lengths;
    int64_t capacity = p->lengths.capacity;
    if (!p->lanes) return NULL;
    if (fixed) mc_lengths_write(fixed, p->length, p->lengths.count, capacity, p->size.longest);
    const mc_lengths *lengths = fixed ? fixed : &p->lengths;
    for (int lane = 0; lane < MC_LANES; lane++)
        refill(s->stack[stack].lane[lane], MC_SHAPE(capacity), p->lane[lane],
               lane == MC_LANE_TARGETS ? NULL : lengths);
    return lengths;
}

/* Stands for the shape of a batch with sizes. */
static uint64_t key_of(const mc_packed *p)
{
    uint64_t key = p->pixels != NULL; /* images are all of one size */
    for (int i = 0; i < MC_STACKS; i++) {
        const mc_packed_stack *s = &p->stack[i];
        if (!s->lanes) break;
        uint64_t shape = (uint64_t)s->lengths.capacity << 32 | (uint64_t)s->size.longest;
        key = i ? mc_order_mix(key) ^ shape : shape;
    }
    return key;
}

static mc_batch *fill_side(mc_dataloader *l, side *s)
{
    mc_packed *p = &s->packed;
    const mc_dataset *d = l->dataset;
    const mc_lengths *lengths = fill_stack(s, MC_READER);
    const mc_lengths *written = fill_stack(s, MC_WRITER);
    int64_t rows = l->most_sizes ? l->limits.rows : p->rows;
    int64_t size = d->options.image.size;
    mc_shape values = d->values > 1 || d->kind == MC_TASK_MULTI_LABEL ? MC_SHAPE(rows, d->values)
                                                                      : MC_SHAPE(rows);
    s->batch = (mc_batch){
        .ids = s->stack[MC_READER].lane[MC_LANE_IDS],
        .type_ids = s->stack[MC_READER].lane[MC_LANE_TYPES],
        .lengths = lengths,
        .marks = s->stack[MC_READER].lane[MC_LANE_MARKS],
        .decoder_ids = s->stack[MC_WRITER].lane[MC_LANE_IDS],
        .decoder_lengths = written,
        .targets = s->stack[written ? MC_WRITER : MC_READER].lane[MC_LANE_TARGETS],
        .answer_rows = refill(s->answer_rows, MC_SHAPE(rows * d->choices), p->answer_rows, NULL),
        .labels = refill(s->labels, MC_SHAPE(rows), p->labels, NULL),
        .values = refill(s->values, values, p->values, NULL),
        .pixels = refill(s->pixels, MC_SHAPE(rows, MC_IMAGE_CHANNELS, size, size), p->pixels, NULL),
        .key = l->most_sizes ? key_of(p) : 0,
        .rows = p->rows,
        .choices = d->choices,
        .row_index = p->row_index,
        .tokens = batch_tokens(l, p),
        .nominal_rows = l->batch_rows,
        .all_rows = p->all_rows,
        .all_tokens = p->all_tokens,
        .epoch = p->epoch,
        .step = p->step,
    };
    if (s->batch.targets) s->batch.targets->nominal_rows = p->most_targets;
    if (s->labels) s->labels->nominal_rows = l->limits.rows;
    if (s->values) s->values->nominal_rows = (int64_t)l->limits.rows * d->values;
    return &s->batch;
}

/* The oldest full slot of the ring; NULL when the worker failed before it could make one. */
static mc_packed *wait_for_batch(mc_dataloader *l)
{
    pthread_mutex_lock(&l->lock);
    while (!l->count && !l->failed) pthread_cond_wait(&l->filled, &l->lock);
    mc_packed *slot = l->count ? &l->ring[l->head] : NULL;
    pthread_mutex_unlock(&l->lock);
    if (slot) return slot;
    stop_worker(l);
    mc_error_move(&l->ctx->error, &l->error);
    return NULL;
}

static void take_slot(mc_dataloader *l, side *s, mc_packed *slot)
{
    mc_packed emptied = s->packed;
    s->packed = *slot;
    *slot = emptied;
    pthread_mutex_lock(&l->lock);
    l->head = (l->head + 1) % l->prefetch;
    l->count--;
    pthread_cond_signal(&l->emptied);
    pthread_mutex_unlock(&l->lock);
}

mc_batch *mc_dataloader_next(mc_dataloader *l)
{
    if (!l || mc_failed(l->ctx)) return NULL;
    if (l->step == l->batches) {
        l->step = 0;
        l->epoch++;
        return NULL;
    }
    mc_packed *slot = start_worker(l) ? wait_for_batch(l) : NULL;
    if (!slot) return NULL;
    side *s = &l->sides[l->side];
    if (!reserve_tensors(l, s, slot)) return NULL;
    take_slot(l, s, slot);
    if (!l->most_sizes) l->side = (l->side + 1) % SIDES;
    l->step++;
    return fill_side(l, s);
}

/* ---- position ---- */

int64_t mc_dataloader_batches(const mc_dataloader *l) { return l ? l->batches : 0; }
mc_dataset *mc_dataloader_dataset(const mc_dataloader *l) { return l ? l->dataset : NULL; }

static int64_t rows_until(const mc_dataloader *l, int64_t step)
{
    int64_t rows = step * l->batch_rows;
    return rows < l->order.rows ? rows : l->order.rows;
}

mc_data_position mc_dataloader_position(const mc_dataloader *l)
{
    if (!l) return (mc_data_position){0};
    return (mc_data_position){
        .seed = l->order.seed,
        .epoch = l->epoch,
        .step = l->step,
        .rows = rows_until(l, l->step),
        .batch_rows = l->batch_rows,
        .dataset_rows = l->order.rows,
        .shuffle = l->order.shuffle,
        .by_length = l->order.by_length,
    };
}

/* "shuffled, by length" and so on. */
static const char *order_name(bool shuffle, bool by_length)
{
    if (shuffle) return by_length ? "shuffled by length" : "shuffled in order";
    return by_length ? "the file's by length" : "the file's in order";
}

static mc_status check_position(const mc_dataloader *l, const mc_data_position *p)
{
    if (p->dataset_rows != l->order.rows)
        return mc_fail(l->ctx, MC_ERR_ARGUMENT, "data position: made on %lld rows, %s has %lld",
                       (long long)p->dataset_rows, l->dataset->path, (long long)l->order.rows);
    if (p->batch_rows != l->batch_rows)
        return mc_fail(l->ctx, MC_ERR_ARGUMENT,
                       "data position: made with %lld rows a step over all ranks, the loader has "
                       "%lld (batch_size %d on %d ranks)",
                       (long long)p->batch_rows, (long long)l->batch_rows, l->batch_size, l->world);
    if (p->shuffle != l->order.shuffle || p->by_length != l->order.by_length)
        return mc_fail(l->ctx, MC_ERR_ARGUMENT,
                       "data position: the order of rows was \"%s\", the loader's is \"%s\"",
                       order_name(p->shuffle, p->by_length),
                       order_name(l->order.shuffle, l->order.by_length));
    if (p->epoch < 0 || p->epoch > INT64_MAX / 2 || p->step < 0 || p->step > l->batches ||
        p->rows != rows_until(l, p->step))
        return mc_fail(l->ctx, MC_ERR_ARGUMENT,
                       "data position: epoch %lld, step %lld, rows %lld is no place in epochs of "
                       "%lld batches and %lld rows",
                       (long long)p->epoch, (long long)p->step, (long long)p->rows,
                       (long long)l->batches, (long long)l->order.rows);
    return MC_OK;
}

mc_status mc_dataloader_seek(mc_dataloader *l, const mc_data_position *position)
{
    if (!l) return MC_ERR_ARGUMENT;
    if (mc_failed(l->ctx)) return mc_error_status(l->ctx);
    if (!position) return mc_fail(l->ctx, MC_ERR_ARGUMENT, "data position: none given");
    mc_status status = check_position(l, position);
    if (status) return status;
    stop_worker(l);
    mc_error_clear(&l->error);
    l->order.seed = position->seed;
    l->rows_epoch = -1;
    l->epoch = position->epoch;
    l->step = position->step;
    return MC_OK;
}
