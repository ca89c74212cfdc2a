/* The data loader: what batches hold, their order at any number of ranks, and resuming. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/tensor/tensor_internal.h"
#include "datasets/loader.h"
#include "tests/datasets/fixture.h"

enum { MAX_ROWS = 512 };

/* BoolQ rows whose passage is `length(i)` words of a letter: a row has length(i) + 5 tokens. */
static mc_dataset *make_rows(fixture *f, int rows, int (*length)(int))
{
    char *lines = malloc((size_t)rows * 2048), *at = lines;
    assert_non_null(lines);
    for (int i = 0; i < rows; i++) {
        int n = length(i);
        assert_true(n < 900);
        at += sprintf(at, "{\"label\": %s, \"question\": \"q %c\", \"passage\": \"",
                      i % 3 ? "true" : "false", 'a' + i % 26);
        for (int k = 0; k < n; k++) at += sprintf(at, "%c ", 'a' + (i + k) % 7);
        at += sprintf(at, "\"}\n");
    }
    mc_dataset *d = parse(f, "BoolQ", "train", lines);
    free(lines);
    expect_ok(f->ctx);
    assert_int_equal(mc_dataset_rows(d), rows);
    return d;
}

static int length_mixed(int i) { return 1 + i * 37 % 200; }
static int length_long(int i) { return 400 + i % 100; }
static int length_short(int i) { return 1 + i % 5; }

/* A batch's contents in plain numbers, for comparing. */
typedef struct copy {
    int rows, sequences;
    int64_t tokens, capacity, epoch, step;
    uint64_t hash;
    int64_t row[MAX_ROWS];
} copy;

static uint64_t hash_ints(uint64_t hash, const int32_t *data, int64_t n)
{
    for (int64_t i = 0; i < n; i++) hash = (hash ^ (uint32_t)data[i]) * 0x100000001B3u;
    return hash;
}

static copy copy_batch(const mc_batch *b)
{
    copy c = {.rows = b->rows,
              .sequences = b->lengths->count,
              .tokens = b->tokens,
              .capacity = b->lengths->capacity,
              .epoch = b->epoch,
              .step = b->step};
    assert_true(b->rows <= MAX_ROWS);
    if (b->rows) memcpy(c.row, b->row_index, (size_t)b->rows * sizeof *c.row);
    c.hash = hash_ints(c.hash, mc_tensor_data(b->ids), c.capacity);
    c.hash = hash_ints(c.hash, mc_tensor_data(b->type_ids), c.capacity);
    c.hash = hash_ints(c.hash, mc_tensor_data(b->labels), b->rows);
    c.hash = hash_ints(c.hash, b->lengths->length, c.sequences);
    return c;
}

static void same_batch(const copy *a, const copy *b)
{
    assert_int_equal(a->step, b->step);
    assert_int_equal(a->epoch, b->epoch);
    assert_int_equal(a->rows, b->rows);
    assert_memory_equal(a->row, b->row, (size_t)a->rows * sizeof *a->row);
    assert_int_equal(a->capacity, b->capacity);
    assert_int_equal(a->hash, b->hash);
}

/* Every promise about one batch: shapes, packing, and tokens equal to those of its rows' texts. */
static void check_batch(fixture *f, mc_dataset *d, const mc_batch *b)
{
    const mc_lengths *lengths = b->lengths;
    assert_ptr_equal(mc_tensor_lengths(b->ids), lengths);
    assert_ptr_equal(mc_tensor_lengths(b->type_ids), lengths);
    assert_null(mc_tensor_lengths(b->labels));
    assert_int_equal(mc_tensor_dtype(b->ids), MC_I32);
    assert_true(mc_shape_equal(mc_tensor_shape(b->ids), MC_SHAPE(lengths->capacity)));
    assert_true(mc_shape_equal(mc_tensor_shape(b->type_ids), MC_SHAPE(lengths->capacity)));
    assert_true(mc_shape_equal(mc_tensor_shape(b->labels), MC_SHAPE(b->rows)));
    assert_int_equal(b->choices, mc_dataset_choices(d));
    assert_int_equal(lengths->count, b->rows * b->choices);
    assert_int_equal(lengths->total, b->tokens);
    assert_int_equal(lengths->offset[lengths->count], b->tokens);
    const int32_t *ids = mc_tensor_data(b->ids), *types = mc_tensor_data(b->type_ids);
    const int32_t *labels = mc_tensor_data(b->labels);
    mc_encoding e = {0};
    int longest = 0;
    for (int s = 0; s < lengths->count; s++) {
        int64_t row = b->row_index[s / b->choices];
        const char *text = mc_dataset_text(d, row, s % b->choices);
        const char *pair = mc_dataset_pair(d, row, s % b->choices);
        assert_int_equal(mc_tokenizer_encode(f->tok, text, strlen(text), pair,
                                             pair ? strlen(pair) : 0,
                                             (size_t)mc_dataset_max_length(d), &e),
                         MC_OK);
        assert_int_equal(lengths->length[s], e.count);
        assert_int_equal(lengths->offset[s + 1] - lengths->offset[s], e.count);
        assert_memory_equal(ids + lengths->offset[s], e.ids, e.count * sizeof *ids);
        for (size_t i = 0; i < e.count; i++)
            assert_int_equal(types[lengths->offset[s] + (int64_t)i], e.type_ids[i]);
        assert_int_equal(labels[s / b->choices], mc_dataset_label(d, row));
        if ((int)e.count > longest) longest = (int)e.count;
    }
    assert_int_equal(lengths->longest, longest);
    for (int64_t i = b->tokens; i < lengths->capacity; i++) {
        assert_int_equal(ids[i], mc_tokenizer_pad_id(f->tok));
        assert_int_equal(types[i], 0);
    }
    mc_encoding_release(&e);
}

static void test_file_order(void **state)
{
    fixture *f = *state;
    mc_dataset *d = make_rows(f, 23, length_mixed);
    mc_dataloader *l = mc_dataloader_new(d, &(mc_dataloader_options){.batch_size = 5});
    assert_int_equal(mc_dataloader_batches(l), 5);
    assert_ptr_equal(mc_dataloader_dataset(l), d);
    for (int epoch = 0; epoch < 3; epoch++) {
        int next = 0, step = 0;
        for (mc_batch *b; (b = mc_dataloader_next(l)); step++) {
            check_batch(f, d, b);
            assert_int_equal(b->epoch, epoch);
            assert_int_equal(b->step, step);
            assert_int_equal(b->nominal_rows, 5);
            assert_int_equal(b->rows, step < 4 ? 5 : 3);
            for (int i = 0; i < b->rows; i++) assert_int_equal(b->row_index[i], next++);
        }
        assert_int_equal(next, 23);
    }
    expect_ok(f->ctx);
}

/* Runs one epoch at `world` ranks of `batch_size` rows; the rows of each step, of all ranks one
 * after the other, go to steps[step]; returns the number of steps. Every row must come exactly
 * once. */
static int run_epoch(fixture *f, mc_dataset *d, mc_dataloader_options options, int world,
                     int64_t epoch, copy *steps)
{
    int count = 0;
    bool seen[MAX_ROWS] = {false};
    int64_t rows[MAX_ROWS] = {0}, tokens[MAX_ROWS] = {0}; /* said less there, by step */
    for (int rank = 0; rank < world; rank++) {
        options.world = world;
        options.rank = rank;
        options.epoch_start = epoch;
        mc_dataloader *l = mc_dataloader_new(d, &options);
        int step = 0;
        for (mc_batch *b; (b = mc_dataloader_next(l)); step++) {
            copy *c = &steps[step];
            if (rank == 0) c->rows = 0;
            check_batch(f, d, b);
            assert_int_equal(b->nominal_rows, options.batch_size * world);
            int64_t all =
                mc_dataset_rows(d) < b->nominal_rows ? mc_dataset_rows(d) : b->nominal_rows;
            assert_int_equal(b->labels->nominal_rows, (all + world - 1) / world); /* a loss's */
            assert_true(b->rows <= options.batch_size);
            rows[step] += b->all_rows - b->rows * world;
            tokens[step] += b->all_tokens - b->tokens * world;
            for (int i = 0; i < b->rows; i++) {
                int64_t row = b->row_index[i];
                assert_true(row >= 0 && row < mc_dataset_rows(d) && !seen[row]);
                seen[row] = true;
                c->row[c->rows++] = row;
            }
        }
        expect_ok(f->ctx);
        assert_int_equal(step, mc_dataloader_batches(l));
        if (rank == 0) count = step;
        assert_int_equal(step, count); /* every rank has the same number of batches */
        mc_dataloader_free(l);
    }
    for (int i = 0; i < mc_dataset_rows(d); i++) assert_true(seen[i]);
    for (int step = 0; step < count; step++) assert_true(rows[step] == 0 && tokens[step] == 0);
    return count;
}

static int compare_rows(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The steps of one rank and of several with the same global batch hold the same rows. */
static void test_worlds(void **state)
{
    fixture *f = *state;
    static copy one[MAX_ROWS], many[MAX_ROWS];
    static const int sizes[] = {1, 4, 61, 100, 240};
    for (int s = 0; s < 5; s++) {
        mc_dataset *d = make_rows(f, sizes[s], length_mixed);
        for (int world = 1; world <= 5; world++) {
            for (int kind = 0; kind < 5; kind++) {
                mc_dataloader_options options = {
                    .batch_size = 3, .shuffle = kind >= 2, .batching = (mc_batching)(kind % 3)};
                mc_dataloader_options whole = options;
                whole.batch_size *= world;
                int steps = run_epoch(f, d, whole, 1, 2, one);
                assert_int_equal(run_epoch(f, d, options, world, 2, many), steps);
                for (int i = 0; i < steps; i++) {
                    assert_int_equal(one[i].rows, many[i].rows);
                    size_t rows = (size_t)one[i].rows;
                    qsort(one[i].row, rows, sizeof *one[i].row, compare_rows);
                    qsort(many[i].row, rows, sizeof *many[i].row, compare_rows);
                    assert_memory_equal(one[i].row, many[i].row, rows * sizeof *one[i].row);
                }
            }
        }
        mc_dataset_free(d);
    }
}

/* Four rows, batches of 3 on 3 ranks: the ranks get 2, 1 and 1; on 5 ranks the last one none. */
static void test_zero_rows(void **state)
{
    fixture *f = *state;
    mc_dataset *d = make_rows(f, 4, length_short);
    for (int rank = 0; rank < 5; rank++) {
        mc_dataloader *l = mc_dataloader_new(
            d, &(mc_dataloader_options){
                   .batch_size = 3, .world = 5, .rank = rank, .round_to = 64, .shuffle = true});
        mc_batch *b = mc_dataloader_next(l);
        assert_non_null(b);
        assert_int_equal(b->rows, rank < 4);
        check_batch(f, d, b);
        if (rank == 4) {
            assert_int_equal(b->lengths->capacity, 0);
            assert_int_equal(b->lengths->count, 0);
            assert_int_equal(mc_tensor_count(b->ids), 0);
            assert_int_equal(b->lengths->offset[0], 0);
            assert_int_equal(b->nominal_rows, 15);
        }
        assert_null(mc_dataloader_next(l));
    }
    expect_ok(f->ctx);
}

/* Rows in the order of the first epochs, all batches one after the other. */
static int order_of(mc_dataset *d, mc_dataloader_options options, int epochs, int64_t *out)
{
    mc_dataloader *l = mc_dataloader_new(d, &options);
    int n = 0;
    for (int epoch = 0; epoch < epochs; epoch++)
        for (mc_batch *b; (b = mc_dataloader_next(l));)
            for (int i = 0; i < b->rows; i++) out[n++] = b->row_index[i];
    mc_dataloader_free(l);
    return n;
}

static void test_shuffling(void **state)
{
    fixture *f = *state;
    mc_dataset *d = make_rows(f, 200, length_mixed);
    mc_dataloader_options options = {.batch_size = 4, .shuffle = true};
    int64_t first[400], again[400], other[400];
    for (int kind = 0; kind < 3; kind++) {
        options.batching = (mc_batching)kind;
        options.seed = 0;
        assert_int_equal(order_of(d, options, 2, first), 400);
        assert_int_equal(order_of(d, options, 2, again), 400);
        assert_memory_equal(first, again, sizeof first);
        assert_memory_not_equal(first, first + 200, sizeof first / 2); /* epochs differ */
        options.epoch_start = 1;
        order_of(d, options, 1, other);
        assert_memory_equal(first + 200, other, sizeof first / 2);
        options.epoch_start = 0;
        options.seed = 42; /* the context's */
        order_of(d, options, 2, other);
        assert_memory_equal(first, other, sizeof first);
        options.seed = 43;
        order_of(d, options, 2, other);
        assert_memory_not_equal(first, other, sizeof first);
        options.seed = (uint64_t)MC_INT_ZERO;
        order_of(d, options, 2, other);
        assert_memory_not_equal(first, other, sizeof first);
    }
}

/* The order is part of what checkpoints rely on: it may not change from version to version. */
static void test_known_order(void **state)
{
    fixture *f = *state;
    mc_dataset *d = make_rows(f, 12, length_mixed);
    int64_t found[24];
    mc_dataloader_options options = {
        .batch_size = 2, .shuffle = true, .seed = 7, .batching = MC_BATCHING_IN_ORDER};
    static const int64_t in_order[24] = {11, 9, 3, 2, 7, 1, 4, 8, 5,  10, 6, 0,
                                         10, 8, 6, 4, 9, 0, 7, 2, 11, 1,  5, 3};
    order_of(d, options, 2, found);
    assert_memory_equal(found, in_order, sizeof found);
    options.batching = MC_BATCHING_BY_LENGTH;
    static const int64_t by_length[24] = {0, 11, 10, 5, 8, 3,  9, 4, 7,  2, 6, 1,
                                          6, 1,  8,  3, 0, 11, 7, 2, 10, 5, 9, 4};
    order_of(d, options, 2, found);
    assert_memory_equal(found, by_length, sizeof found);
}

/* Each place of an epoch must hold each row about equally often. */
static void test_fair_shuffle(void **state)
{
    fixture *f = *state;
    enum { N = 6, EPOCHS = 3000 };
    mc_dataset *d = make_rows(f, N, length_short);
    mc_dataloader *l = mc_dataloader_new(
        d, &(mc_dataloader_options){
               .batch_size = N, .shuffle = true, .batching = MC_BATCHING_IN_ORDER});
    int count[N][N] = {{0}};
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        mc_batch *b = mc_dataloader_next(l);
        assert_non_null(b);
        for (int i = 0; i < N; i++) count[i][b->row_index[i]]++;
        assert_null(mc_dataloader_next(l));
    }
    double chi = 0, expected = (double)EPOCHS / N;
    for (int i = 0; i < N * N; i++) {
        double off = count[i / N][i % N] - expected;
        chi += off * off / expected;
    }
    assert_true(chi > 5 && chi < 60); /* 25 degrees of freedom: outside once in 10,000 */
}

/* Tokens a padded batch would have beside those there are, over an epoch. */
static double padded_waste(mc_dataset *d, mc_dataloader_options options, int world)
{
    int64_t padded = 0, tokens = 0;
    for (int rank = 0; rank < world; rank++) {
        options.world = world;
        options.rank = rank;
        mc_dataloader *l = mc_dataloader_new(d, &options);
        for (mc_batch *b; (b = mc_dataloader_next(l));) {
            padded += (int64_t)b->lengths->longest * b->lengths->count;
            tokens += b->tokens;
        }
        mc_dataloader_free(l);
    }
    return (double)(padded - tokens) / (double)tokens;
}

/* Tokens of the fullest rank of a step beside the mean, over an epoch. */
static double imbalance(mc_dataset *d, mc_dataloader_options options, int world)
{
    static int64_t most[MAX_ROWS], all[MAX_ROWS];
    memset(most, 0, sizeof most);
    memset(all, 0, sizeof all);
    for (int rank = 0; rank < world; rank++) {
        options.world = world;
        options.rank = rank;
        mc_dataloader *l = mc_dataloader_new(d, &options);
        for (mc_batch *b; (b = mc_dataloader_next(l));) {
            all[b->step] += b->tokens;
            if (b->tokens > most[b->step]) most[b->step] = b->tokens;
        }
        mc_dataloader_free(l);
    }
    int64_t waited = 0, worked = 0;
    for (int i = 0; i < MAX_ROWS; i++) {
        waited += most[i] * world;
        worked += all[i];
    }
    return (double)(waited - worked) / (double)worked;
}

static void test_by_length(void **state)
{
    fixture *f = *state;
    mc_dataset *d = make_rows(f, 512, length_mixed);
    mc_dataloader_options options = {.batch_size = 8, .shuffle = true};
    double by_length = padded_waste(d, options, 1), balance = imbalance(d, options, 4);
    options.batching = MC_BATCHING_IN_ORDER;
    double in_order = padded_waste(d, options, 1), unbalance = imbalance(d, options, 4);
    print_message("padding: %.3f by length, %.3f in order; imbalance of 4 ranks: %.3f, %.3f\n",
                  by_length, in_order, balance, unbalance);
    assert_true(by_length < 0.15 * in_order);
    assert_true(balance < 0.25 * unbalance);
    /* and batches don't come in the order of their lengths */
    options.batching = MC_BATCHING_BY_LENGTH;
    mc_dataloader *l = mc_dataloader_new(d, &options);
    int rises = 0, falls = 0;
    int64_t before = 0;
    for (mc_batch *b; (b = mc_dataloader_next(l)); before = b->tokens) {
        rises += b->tokens > before;
        falls += b->tokens < before;
    }
    assert_true(rises > 20 && falls > 20);
}

static void test_rounding(void **state)
{
    fixture *f = *state;
    mc_dataset *d = make_rows(f, 40, length_mixed);
    mc_dataloader *l =
        mc_dataloader_new(d, &(mc_dataloader_options){.batch_size = 3, .round_to = 128});
    for (mc_batch *b; (b = mc_dataloader_next(l));) {
        assert_int_equal(b->lengths->capacity % 128, 0);
        assert_true(b->lengths->capacity - b->tokens < 128);
        check_batch(f, d, b);
    }
    expect_ok(f->ctx);
}

static void test_drop_last(void **state)
{
    fixture *f = *state;
    mc_dataset *d = make_rows(f, 23, length_mixed);
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        mc_dataloader *l = mc_dataloader_new(
            d, &(mc_dataloader_options){.batch_size = 5, .drop_last = true, .shuffle = shuffle});
        assert_int_equal(mc_dataloader_batches(l), 4);
        for (int epoch = 0; epoch < 2; epoch++) {
            int rows = 0;
            for (mc_batch *b; (b = mc_dataloader_next(l));) {
                assert_int_equal(b->rows, 5);
                rows += b->rows;
            }
            assert_int_equal(rows, 20);
        }
    }
    expect_ok(f->ctx);
}

static void test_pairs_and_choices(void **state)
{
    fixture *f = *state;
    char lines[4096], *at = lines;
    for (int i = 0; i < 7; i++)
        at += sprintf(at,
                      "{\"premise\": \"p%d\", \"choice1\": \"first %d\", \"choice2\": \"2\", "
                      "\"question\": \"cause\", \"label\": %d}\n",
                      i, i, i % 2);
    mc_dataset *d = parse(f, "COPA", "train", lines);
    mc_dataloader *l =
        mc_dataloader_new(d, &(mc_dataloader_options){.batch_size = 2, .shuffle = true});
    int rows = 0;
    for (mc_batch *b; (b = mc_dataloader_next(l)); rows += b->rows) {
        assert_int_equal(b->choices, 2);
        check_batch(f, d, b);
    }
    assert_int_equal(rows, 7);
    expect_ok(f->ctx);
}

static void test_truncation(void **state)
{
    fixture *f = *state;
    enum { SIZE = 10 << 20 };
    char *line = malloc(SIZE + 128);
    assert_non_null(line);
    int start = sprintf(line, "{\"label\": true, \"question\": \"q\", \"passage\": \"");
    for (int i = 0; i < SIZE; i++) line[start + i] = i % 6 ? 'a' : ' ';
    memcpy(line + start + SIZE, "\"}\n", 4);
    mc_dataset *d = mc_dataset_from_memory(f->ctx, "BoolQ", "long", line, strlen(line), "train",
                                           f->tok, &(mc_dataset_options){.max_length = 100});
    free(line);
    mc_dataloader *l = mc_dataloader_new(d, &(mc_dataloader_options){.batch_size = 8});
    mc_batch *b = mc_dataloader_next(l);
    expect_ok(f->ctx);
    assert_int_equal(b->tokens, 100);
    check_batch(f, d, b);
    assert_null(mc_dataloader_next(l));
}

/* Any token fills batches up where the tokenizer has none for it. */
static void test_no_padding_token(void **state)
{
    fixture *f = *state;
    assert_int_equal(mkdir(temp_path(&f->folder, "bpe"), 0777), 0);
    write_text(temp_path(&f->folder, "bpe/vocab.json"),
               "{\"\u0120\": 0, \"p\": 1, \"q\": 2, \".\": 3}");
    write_text(temp_path(&f->folder, "bpe/merges.txt"), "#version: 0.2\n");
    mc_tokenizer *tok = mc_tokenizer_from_pretrained(f->ctx, temp_path(&f->folder, "bpe"));
    assert_int_equal(mc_tokenizer_pad_id(tok), -1);
    const char line[] = "{\"label\": true, \"question\": \"q\", \"passage\": \"p\"}";
    mc_dataset *d =
        mc_dataset_from_memory(f->ctx, "BoolQ", "row", line, sizeof line - 1, "train", tok, NULL);
    mc_dataloader *l =
        mc_dataloader_new(d, &(mc_dataloader_options){.batch_size = 1, .round_to = 8});
    mc_batch *b = mc_dataloader_next(l);
    expect_ok(f->ctx);
    const int32_t expected[] = {1, 3, 0, 2, 0, 0, 0, 0}, *ids = mc_tensor_data(b->ids);
    assert_int_equal(mc_tensor_count(b->ids), 8);
    assert_memory_equal(ids, expected, sizeof expected);
}

/* A tokenizer may have more tokens than the model, as long as no row needs them. */
static void test_vocabulary(void **state)
{
    fixture *f = *state;
    const char lines[] = "{\"label\": true, \"question\": \"q\", \"passage\": \"a\"}\n"
                         "{\"label\": true, \"question\": \"q\", \"passage\": \"z\"}\n";
    int32_t z = mc_tokenizer_token_to_id(f->tok, "z");
    char expected[128];
    for (int more = 1; more >= 0; more--) {
        mc_dataset *d =
            mc_dataset_from_memory(f->ctx, "BoolQ", "rows", lines, sizeof lines - 1, "train",
                                   f->tok, &(mc_dataset_options){.vocabulary = z + more});
        mc_dataloader *l = mc_dataloader_new(d, &(mc_dataloader_options){.batch_size = 1});
        assert_non_null(mc_dataloader_next(l));
        assert_int_equal(mc_dataloader_next(l) != NULL, more);
        mc_dataloader_free(l);
    }
    snprintf(expected, sizeof expected,
             "token \"z\" has id %d, but the model has %d tokens where the tokenizer has %d", z, z,
             mc_tokenizer_vocab_size(f->tok));
    expect_error(f->ctx, MC_ERR_ARGUMENT, expected);
}

/* Takes `count` batches (NULLs at the ends of epochs count as well, as batches of -1 rows). */
static void take(mc_dataloader *l, int count, copy *out)
{
    for (int i = 0; i < count; i++) {
        mc_batch *b = mc_dataloader_next(l);
        if (b)
            out[i] = copy_batch(b);
        else
            out[i] = (copy){.epoch = -1};
    }
}

static void test_resume(void **state)
{
    fixture *f = *state;
    enum { STEPS = 26 }; /* 8 batches and a NULL an epoch */
    static copy whole[STEPS], rest[STEPS];
    mc_dataset *d = make_rows(f, 61, length_mixed);
    for (int kind = 0; kind < 4; kind++) {
        mc_dataloader_options options = {
            .batch_size = 4, .world = 2, .rank = 1, .shuffle = kind & 1, .epoch_start = 5};
        options.batching = kind & 2 ? MC_BATCHING_BY_LENGTH : MC_BATCHING_DEFAULT;
        mc_dataloader *l = mc_dataloader_new(d, &options);
        take(l, STEPS, whole);
        mc_dataloader_free(l);
        for (int at = 0; at < STEPS; at++) {
            l = mc_dataloader_new(d, &options);
            take(l, at, rest);
            mc_data_position position = mc_dataloader_position(l);
            assert_int_equal(position.epoch, 5 + at / 9);
            assert_int_equal(position.step, at % 9);
            assert_int_equal(position.rows, at % 9 == 8 ? 61 : at % 9 * 8);
            mc_dataloader_free(l);
            options.seed = 99; /* the position's seed counts */
            l = mc_dataloader_new(d, &options);
            take(l, at % 3, rest);
            assert_int_equal(mc_dataloader_seek(l, &position), MC_OK);
            take(l, STEPS - at, rest);
            for (int i = at; i < STEPS; i++) same_batch(&whole[i], &rest[i - at]);
            mc_dataloader_free(l);
            options.seed = 0;
        }
    }
    expect_ok(f->ctx);
}

/* A position of two ranks, resumed on one with twice the batch: the same rows follow. */
static void test_resume_other_world(void **state)
{
    fixture *f = *state;
    mc_dataset *d = make_rows(f, 61, length_mixed);
    mc_dataloader_options options = {.batch_size = 4, .shuffle = true};
    mc_dataloader *one = mc_dataloader_new(d, &options);
    options = (mc_dataloader_options){.batch_size = 2, .shuffle = true, .world = 2};
    mc_dataloader *two = mc_dataloader_new(d, &options);
    for (int i = 0; i < 7; i++) assert_non_null(mc_dataloader_next(two));
    mc_data_position position = mc_dataloader_position(two);
    assert_int_equal(mc_dataloader_seek(one, &position), MC_OK);
    mc_batch *whole = mc_dataloader_next(one), *half = mc_dataloader_next(two);
    assert_int_equal(whole->step, 7);
    for (int i = 0; i < 2; i++) assert_int_equal(whole->row_index[2 * i], half->row_index[i]);
}

static void test_bad_positions(void **state)
{
    fixture *f = *state;
    mc_dataset *d = make_rows(f, 10, length_short);
    mc_dataloader *l =
        mc_dataloader_new(d, &(mc_dataloader_options){.batch_size = 4, .shuffle = true});
    mc_dataloader_next(l);
    mc_data_position good = mc_dataloader_position(l), p;
#define EXPECT_BAD(change, part)                                  \
    p = good;                                                     \
    p.change;                                                     \
    assert_int_equal(mc_dataloader_seek(l, &p), MC_ERR_ARGUMENT); \
    expect_error(f->ctx, MC_ERR_ARGUMENT, part)
    EXPECT_BAD(dataset_rows = 11, "made on 11 rows, rows.jsonl has 10");
    EXPECT_BAD(batch_rows = 8, "made with 8 rows a step over all ranks, the loader has 4");
    EXPECT_BAD(shuffle = false, "\"the file's by length\", the loader's is \"shuffled by length\"");
    EXPECT_BAD(by_length = false, "the order of rows was \"shuffled in order\"");
    EXPECT_BAD(step = 4, "no place in epochs of 3 batches");
    EXPECT_BAD(step = -1, "no place");
    EXPECT_BAD(step = 2, "no place");
    EXPECT_BAD(rows = 5, "no place");
    EXPECT_BAD(epoch = -1, "no place");
    assert_int_equal(mc_dataloader_seek(l, NULL), MC_ERR_ARGUMENT);
    expect_error(f->ctx, MC_ERR_ARGUMENT, "none given");
    assert_int_equal(mc_dataloader_seek(NULL, &good), MC_ERR_ARGUMENT);
    mc_batch *b = mc_dataloader_next(l); /* it stayed where it was */
    assert_int_equal(b->step, 1);
}

/* A batch is whole until the second call after it. */
static void test_lifetime(void **state)
{
    fixture *f = *state;
    mc_dataset *d = make_rows(f, 60, length_mixed);
    mc_dataloader *l = mc_dataloader_new(
        d, &(mc_dataloader_options){.batch_size = 4, .shuffle = true, .prefetch = 1});
    mc_batch *before = mc_dataloader_next(l);
    copy kept = copy_batch(before);
    for (mc_batch *b; (b = mc_dataloader_next(l)); before = b) {
        assert_ptr_not_equal(b, before);
        copy now = copy_batch(before);
        same_batch(&kept, &now);
        check_batch(f, d, before);
        kept = copy_batch(b);
    }
}

static void test_stopping(void **state)
{
    fixture *f = *state;
    mc_dataset *d = make_rows(f, 100, length_mixed);
    for (int taken = 0; taken < 6; taken++) {
        mc_dataloader *l = mc_dataloader_new(
            d, &(mc_dataloader_options){.batch_size = 4, .shuffle = true, .prefetch = 1 + taken});
        for (int i = 0; i < taken; i++) assert_non_null(mc_dataloader_next(l));
        if (taken % 2) mc_fail(f->ctx, MC_ERR_STATE, "stop here");
        if (taken % 2) assert_null(mc_dataloader_next(l));
        mc_dataloader_free(l);
        mc_clear_error(f->ctx);
    }
    /* on after an error that was cleared, where it stood */
    mc_dataloader *l = mc_dataloader_new(d, &(mc_dataloader_options){.batch_size = 10});
    for (int i = 0; i < 3; i++) mc_dataloader_next(l);
    mc_fail(f->ctx, MC_ERR_STATE, "stop here");
    assert_null(mc_dataloader_next(l));
    assert_null(mc_dataloader_new(d, &(mc_dataloader_options){.batch_size = 10}));
    mc_data_position position = mc_dataloader_position(l);
    assert_int_equal(mc_dataloader_seek(l, &position), MC_ERR_STATE);
    mc_clear_error(f->ctx);
    assert_int_equal(mc_dataloader_next(l)->row_index[0], 30);
    /* the dataset goes first, then (with the context) the loader */
    mc_dataset_free(d);
    assert_int_equal(mc_dataloader_next(l)->row_index[0], 40);
}

static void test_bad_options(void **state)
{
    fixture *f = *state;
    mc_dataset *d = make_rows(f, 10, length_short);
    static const struct {
        mc_dataloader_options options;
        const char *message;
    } cases[] = {
        {{.shuffle = true}, "option batch_size is required"},
        {{.batch_size = -1}, "batch_size is -1, expected 1 to"},
        {{.batch_size = 1, .prefetch = -1}, "prefetch is -1, expected 0 to 64"},
        {{.batch_size = 1, .prefetch = 65}, "prefetch is 65"},
        {{.batch_size = 1, .round_to = -8}, "round_to is -8"},
        {{.batch_size = 1, .sizes = -1}, "sizes is -1"},
        {{.batch_size = 1, .sizes = 17}, "sizes is 17, expected 0 to 16"},
        {{.batch_size = 1, .world = 2, .rank = 2}, "rank is 2, expected 0 to 1"},
        {{.batch_size = 1, .world = 2, .rank = -1}, "rank is -1"},
        {{.batch_size = 1, .rank = 1}, "rank is 1, expected 0 to 0"},
        {{.batch_size = 1, .world = -1}, "world is -1"},
        {{.batch_size = 1, .epoch_start = -1}, "epoch_start is -1"},
        {{.batch_size = 1, .batching = (mc_batching)7}, "batching is 7"},
        {{.batch_size = 11, .drop_last = true}, "10 rows are less than one batch of 11"},
        {{.batch_size = 6, .world = 2, .drop_last = true}, "less than one batch of 12"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_null(mc_dataloader_new(d, &cases[i].options));
        expect_error(f->ctx, MC_ERR_ARGUMENT, cases[i].message);
    }
    assert_null(mc_dataloader_new(d, NULL));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "batch_size is required");
    assert_null(mc_dataloader_new(NULL, NULL));
    assert_null(mc_dataloader_next(NULL));
    assert_int_equal(mc_dataloader_batches(NULL), 0);
    assert_null(mc_dataloader_dataset(NULL));
    assert_int_equal(mc_dataloader_position(NULL).step, 0);
    mc_dataloader_free(NULL);
}

/* A batch far larger than the dataset costs no more than the dataset. */
static void test_one_row(void **state)
{
    fixture *f = *state;
    mc_dataset *d = make_rows(f, 1, length_short);
    mc_dataloader *l = mc_dataloader_new(
        d, &(mc_dataloader_options){.batch_size = INT32_MAX, .shuffle = true, .world = 3});
    for (int epoch = 0; epoch < 3; epoch++) {
        mc_batch *b = mc_dataloader_next(l);
        assert_int_equal(b->rows, 1);
        assert_int_equal(b->nominal_rows, (int64_t)INT32_MAX * 3);
        check_batch(f, d, b);
        assert_null(mc_dataloader_next(l));
    }
    expect_ok(f->ctx);
}

/* Batches far beyond what buffers hold at first: 280 rows of 400 to 500 tokens. */
static void test_growth(void **state)
{
    fixture *f = *state;
    mc_dataset *d = make_rows(f, 300, length_long);
    mc_dataloader *l = mc_dataloader_new(
        d, &(mc_dataloader_options){.batch_size = 280, .shuffle = true, .round_to = 1000});
    for (int epoch = 0; epoch < 2; epoch++) {
        int rows = 0;
        for (mc_batch *b; (b = mc_dataloader_next(l)); rows += b->rows) check_batch(f, d, b);
        assert_int_equal(rows, 300);
    }
    expect_ok(f->ctx);
}

static void test_real_rows(void **state)
{
    fixture *f = *state;
    const char *shared = shared_folder();
    if (!shared) skip();
    char folder[1024];
    snprintf(folder, sizeof folder, "%s/data/vocab/bert-base-uncased", shared);
    mc_tokenizer *tok = mc_tokenizer_from_pretrained(f->ctx, folder);
    snprintf(folder, sizeof folder, "%s/data/boolq", shared);
    mc_dataset *d = mc_dataset_open(f->ctx, "BoolQ", folder, "val", tok, NULL);
    expect_ok(f->ctx);
    f->tok = tok; /* what check_batch compares with */
    mc_dataloader *l = mc_dataloader_new(d, &(mc_dataloader_options){.batch_size = 32});
    int64_t rows = 0;
    for (mc_batch *b; (b = mc_dataloader_next(l)); rows += b->rows) check_batch(f, d, b);
    expect_ok(f->ctx);
    assert_int_equal(rows, 3270);
}

#ifdef MC_FAULT_INJECTION
/* Fails every allocation of making a loader and running two epochs in turn. Each failure must come
 * out as an error, and once memory is there again the loader must go on where it stood. */
static void fail_each(fixture *f, mc_dataset *d, const mc_dataloader_options *options)
{
    for (long nth = 1, failed = 1; failed; nth++) {
        mc_fault_fail_at(nth, false);
        mc_dataloader *l = mc_dataloader_new(d, options);
        int64_t rows = 0, all = 2 * mc_dataset_rows(d);
        for (int epoch = 0; epoch < 2; epoch++)
            for (mc_batch *b; (b = mc_dataloader_next(l));) rows += b->rows;
        failed = mc_fault_count() >= nth;
        mc_fault_fail_at(0, false);
        /* the thread may have met it in a batch of the third epoch, which nobody asked for yet */
        while (failed && rows == all && mc_dataloader_next(l)) {
        }
        assert_int_equal(mc_failed(f->ctx), failed);
        if (failed) expect_error(f->ctx, MC_ERR_NOMEM, "memory");
        while (l && rows < all) {
            mc_data_position position = mc_dataloader_position(l);
            mc_batch *b = mc_dataloader_next(l);
            expect_ok(f->ctx);
            if (b) assert_int_equal(b->step, position.step);
            if (b) rows += b->rows;
        }
        assert_true(!l || rows == all);
        mc_dataloader_free(l);
    }
}

static void test_faults(void **state)
{
    fixture *f = *state;
    mc_dataset *d = make_rows(f, 20, length_mixed);
    fail_each(f, d, &(mc_dataloader_options){.batch_size = 4, .shuffle = true, .round_to = 16});
    fail_each(f, d, &(mc_dataloader_options){.batch_size = 4, .shuffle = true, .sizes = 3});
    d = make_rows(f, 300, length_long);
    fail_each(f, d, &(mc_dataloader_options){.batch_size = 150, .shuffle = true, .prefetch = 1});
}

/* After a first epoch nothing is allocated. */
static void test_steady_state(void **state)
{
    fixture *f = *state;
    mc_dataset *d = make_rows(f, 400, length_mixed);
    for (int sizes = 0; sizes < 9; sizes += 8) {
        mc_dataloader_options options = {.batch_size = 8, .shuffle = true, .sizes = sizes};
        mc_dataloader *l = mc_dataloader_new(d, &options);
        while (mc_dataloader_next(l)) {
        }
        mc_fault_fail_at(0, false);
        for (int epoch = 0; epoch < 5; epoch++)
            while (mc_dataloader_next(l)) {
            }
        assert_int_equal(mc_fault_count(), 0);
        mc_dataloader_free(l);
    }
    expect_ok(f->ctx);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_file_order, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_worlds, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_zero_rows, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_shuffling, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_known_order, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_fair_shuffle, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_by_length, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_rounding, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_drop_last, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_pairs_and_choices, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_truncation, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_vocabulary, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_no_padding_token, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_resume, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_resume_other_world, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bad_positions, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_lifetime, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_stopping, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bad_options, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_one_row, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_growth, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_real_rows, set_up, tear_down),
#ifdef MC_FAULT_INJECTION
        cmocka_unit_test_setup_teardown(test_faults, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_steady_state, set_up, tear_down),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
