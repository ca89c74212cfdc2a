/* The loader of language modelling: what batches hold, their order at any number of ranks,
 * shuffling, resuming, and tokens that are not in the vocabulary. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "datasets/lm/loader_internal.h"
#include "tests/datasets/lm_test.h"
#include "datasets/token_files.h"

/* A shard of the tokens 0 .. n - 1, so that a token says where it is from. */
static mc_token_file *make_file(fixture *f, int n)
{
    const char *path = temp_path(&f->folder, "train.bin");
    write_u16_shard(path, n, 1);
    mc_token_file *file = mc_token_file_open(f->ctx, path);
    expect_ok(f->ctx);
    return file;
}

static mc_lm_loader *make_loader(fixture *f, mc_token_file *file, mc_lm_loader_options options)
{
    mc_lm_loader *l = mc_lm_loader_new(file, &options);
    expect_ok(f->ctx);
    assert_non_null(l);
    return l;
}

/* llm.c: batch k has the tokens from k * B * T on, and as labels those one further. */
static void test_file_order(void **state)
{
    fixture *f = *state;
    enum { B = 4, T = 8, TOKENS = 5 * B * T + 1 };
    mc_token_file *file = make_file(f, TOKENS);
    mc_lm_loader *l =
        make_loader(f, file, (mc_lm_loader_options){.batch_size = B, .seq_length = T});
    assert_int_equal(mc_lm_loader_batches(l), 5);
    assert_ptr_equal(mc_lm_loader_file(l), file);
    for (int epoch = 0; epoch < 3; epoch++) {
        for (int k = 0; k < 5; k++) {
            assert_int_equal(mc_lm_loader_epoch(l), epoch);
            const mc_lm_batch *b = mc_lm_loader_next(l);
            assert_non_null(b);
            assert_int_equal(b->batch_size, B);
            assert_int_equal(b->seq_length, T);
            assert_int_equal(b->tokens, B * T);
            assert_int_equal(b->epoch, epoch);
            assert_int_equal(b->step, k);
            for (int i = 0; i < B * T; i++) {
                assert_int_equal(b->ids[i], k * B * T + i);
                assert_int_equal(b->labels[i], k * B * T + i + 1);
            }
        }
        assert_null(mc_lm_loader_next(l));
    }
    expect_ok(f->ctx);
    mc_token_file_free(file); /* the loader keeps it */
    assert_int_equal(mc_lm_loader_next(l)->ids[1], 1);
}

/* A token less, and a batch less: its last label is missing. */
static void test_ends(void **state)
{
    fixture *f = *state;
    mc_token_file *file = make_file(f, 64);
    mc_lm_loader *l =
        make_loader(f, file, (mc_lm_loader_options){.batch_size = 2, .seq_length = 8});
    assert_int_equal(mc_lm_loader_batches(l), 3);
    l = make_loader(f, file, (mc_lm_loader_options){.batch_size = 7, .seq_length = 9});
    assert_int_equal(mc_lm_loader_batches(l), 1);
    assert_int_equal(mc_lm_loader_next(l)->labels[62], 63);
    assert_null(mc_lm_loader_new(file, &(mc_lm_loader_options){.batch_size = 8, .seq_length = 8}));
    expect_error(f->ctx, MC_ERR_ARGUMENT,
                 "train.bin: 64 tokens are too few for one batch: they "
                 "make 7 sequences of 8 and a label, a batch has 8");
    assert_null(mc_lm_loader_new(
        file, &(mc_lm_loader_options){.batch_size = 8, .seq_length = 64, .keep_last = true}));
    expect_error(f->ctx, MC_ERR_ARGUMENT,
                 "train.bin: 64 tokens are too few for a sequence of 64 and a label");
    assert_null(mc_lm_loader_new(
        file, &(mc_lm_loader_options){.batch_size = 2, .seq_length = 8, .world = 4}));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "a batch has 2 on each of 4 ranks");
}

static void test_repeat(void **state)
{
    fixture *f = *state;
    mc_token_file *file = make_file(f, 100);
    mc_lm_loader *l =
        make_loader(f, file,
                    (mc_lm_loader_options){
                        .batch_size = 3, .seq_length = 11, .repeat = true, .epoch_start = 5});
    assert_int_equal(mc_lm_loader_batches(l), 3); /* 9 windows of 11 */
    for (int i = 0; i < 10; i++) {
        assert_int_equal(mc_lm_loader_epoch(l), 5 + i / 3);
        const mc_lm_batch *b = mc_lm_loader_next(l);
        assert_non_null(b);
        assert_int_equal(b->epoch, 5 + i / 3);
        assert_int_equal(b->step, i % 3);
        assert_int_equal(b->ids[0], i % 3 * 33);
    }
}

/* Windows do not span shards; batches do. */
static void test_shards(void **state)
{
    fixture *f = *state;
    write_u16_shard(temp_path(&f->folder, "s1.bin"), 20, 1);    /* 4 windows of 4 */
    write_u16_shard(temp_path(&f->folder, "s2.bin"), 4, 2);     /* none: no label for the last */
    write_u16_shard(temp_path(&f->folder, "s3.bin"), 13, 1000); /* 3 */
    mc_token_file *file = mc_token_file_open(f->ctx, temp_path(&f->folder, "s?.bin"));
    expect_ok(f->ctx);
    mc_lm_loader *l =
        make_loader(f, file, (mc_lm_loader_options){.batch_size = 3, .seq_length = 4});
    assert_int_equal(mc_lm_loader_batches(l), 2);
    assert_int_equal(mc_lm_loader_next(l)->ids[8], 8);
    const mc_lm_batch *b = mc_lm_loader_next(l);
    static const int32_t ids[] = {12, 13, 14, 15, 0, 1000, 2000, 3000, 4000, 5000, 6000, 7000};
    static const int32_t labels[] = {13,   14,   15,   16,   1000, 2000,
                                     3000, 4000, 5000, 6000, 7000, 8000};
    assert_memory_equal(b->ids, ids, sizeof ids);
    assert_memory_equal(b->labels, labels, sizeof labels);
    assert_null(mc_lm_loader_next(l));
}

/* The batches of all ranks side by side are the batches of one. */
static void test_worlds(void **state)
{
    fixture *f = *state;
    mc_token_file *file = make_file(f, 1000);
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        for (int world = 1; world <= 6; world++) {
            if (12 % world) continue;
            int each = 12 / world;
            mc_lm_loader *one = make_loader(
                f, file,
                (mc_lm_loader_options){.batch_size = 12, .seq_length = 5, .shuffle = shuffle});
            for (int rank = 0; rank < world; rank++) {
                mc_lm_loader *l = make_loader(f, file,
                                              (mc_lm_loader_options){.batch_size = each,
                                                                     .seq_length = 5,
                                                                     .shuffle = shuffle,
                                                                     .world = world,
                                                                     .rank = rank});
                assert_int_equal(mc_lm_loader_batches(l), mc_lm_loader_batches(one));
                mc_lm_position start = mc_lm_loader_position(one);
                for (const mc_lm_batch *b; (b = mc_lm_loader_next(l));) {
                    const mc_lm_batch *whole = mc_lm_loader_next(one);
                    size_t size = (size_t)each * 5 * sizeof *b->ids, at = (size_t)(rank * each * 5);
                    assert_memory_equal(b->ids, whole->ids + at, size);
                    assert_memory_equal(b->labels, whole->labels + at, size);
                }
                assert_null(mc_lm_loader_next(one));
                assert_int_equal(mc_lm_loader_seek(one, &start), MC_OK);
                mc_lm_loader_free(l);
            }
            mc_lm_loader_free(one);
        }
    }
    expect_ok(f->ctx);
}

/* Each window once an epoch, in another order each epoch and with each seed. */
/* With keep_last every window comes exactly once an epoch at any number of ranks, all of which get
 * as many batches; the last one is dealt out evenly, and some may have none of it. */
static void run_whole_epoch(fixture *f, mc_token_file *file, int each, int world, int windows)
{
    int seen[200] = {0}, total = each * world, batches = (windows + total - 1) / total;
    for (int rank = 0; rank < world; rank++) {
        mc_lm_loader_options o = {.batch_size = each,
                                  .seq_length = 5,
                                  .shuffle = true,
                                  .keep_last = true,
                                  .world = world,
                                  .rank = rank};
        mc_lm_loader *l = make_loader(f, file, o);
        assert_int_equal(mc_lm_loader_batches(l), batches);
        for (int k = 0; k < batches; k++) {
            const mc_lm_batch *b = mc_lm_loader_next(l);
            assert_non_null(b);
            int all = k < batches - 1 ? total : windows - k * total;
            assert_int_equal(b->all_tokens, 5 * all);
            assert_int_equal(b->tokens, 5 * b->batch_size);
            assert_true(b->batch_size >= all / world && b->batch_size <= (all + world - 1) / world);
            for (int i = 0; i < b->batch_size; i++) seen[b->ids[5 * i] / 5]++;
        }
        assert_null(mc_lm_loader_next(l));
        assert_int_equal(mc_lm_loader_next(l)->epoch, 1);
        mc_lm_loader_free(l);
    }
    for (int i = 0; i < windows; i++) assert_int_equal(seen[i], 1);
}

static void test_keep_last(void **state)
{
    fixture *f = *state;
    for (int windows = 1; windows < 30; windows += 7) {
        mc_token_file *file = make_file(f, 5 * windows + 1);
        for (int world = 1; world <= 5; world++)
            for (int each = 1; each <= 4; each++) run_whole_epoch(f, file, each, world, windows);
        mc_token_file_free(file);
    }
    expect_ok(f->ctx);
}

static void test_shuffling(void **state)
{
    fixture *f = *state;
    enum { T = 3, WINDOWS = 1000 };
    mc_token_file *file = make_file(f, WINDOWS * T + 1);
    int32_t first[6] = {0};
    for (int run = 0; run < 6; run++) { /* epochs 0, 1, 2 of seed 42 and of 43 */
        mc_lm_loader *l = make_loader(f, file,
                                      (mc_lm_loader_options){.batch_size = 8,
                                                             .seq_length = T,
                                                             .shuffle = true,
                                                             .seed = run < 3 ? 0 : 43,
                                                             .epoch_start = run % 3});
        bool seen[WINDOWS] = {false};
        int in_place = 0, n = 0;
        for (const mc_lm_batch *b; (b = mc_lm_loader_next(l));) {
            assert_int_equal(b->epoch, run % 3);
            for (int row = 0; row < 8; row++, n++) {
                int32_t token = b->ids[row * T];
                assert_true(token % T == 0 && !seen[token / T]);
                seen[token / T] = true;
                in_place += token / T == n;
                assert_int_equal(b->labels[row * T + T - 1], token + T);
                if (n == 0) first[run] = token;
            }
        }
        assert_int_equal(n, WINDOWS);
        assert_true(in_place < 20);
    }
    int same = 0;
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < i; k++) same += first[i] == first[k];
    assert_int_equal(same, 0);
}

static void test_permutations(void **state)
{
    (void)state;
    static bool seen[5000];
    for (int64_t n = 1; n < 5000; n = n < 70 ? n + 1 : n * 3 / 2) {
        for (uint64_t key = 1; key < 4; key++) {
            memset(seen, 0, sizeof seen);
            for (int64_t i = 0; i < n; i++) {
                int64_t at = mc_lm_permute(key * 0x9E3779B97F4A7C15u, n, i);
                assert_true(at >= 0 && at < n && !seen[at]);
                seen[at] = true;
            }
        }
    }
    for (int64_t i = 0; i < 1000; i++) { /* numbers past 2^32 keep to their range too */
        int64_t at = mc_lm_permute(7, (1LL << 40) + 12345, (1LL << 40) + i);
        assert_true(at >= 0 && at < (1LL << 40) + 12345);
    }
}

/* Where each of five windows goes, over many keys: every place about as often. */
static void test_fair_shuffle(void **state)
{
    (void)state;
    int count[5][5] = {{0}};
    for (uint64_t key = 0; key < 10000; key++)
        for (int64_t i = 0; i < 5; i++) count[i][mc_lm_permute(key * 0xD1342543DE82EF95u, 5, i)]++;
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 5; k++) /* 2000 expected, standard deviation 40 */
            if (count[i][k] < 1800 || count[i][k] > 2200)
                fail_msg("window %d came to place %d %d times of 10000", i, k, count[i][k]);
}

/* ---- resuming ---- */

/* What follows a position is what followed there, in the same loader, a new one, and one with
 * another batch size. */
static void test_resume(void **state)
{
    fixture *f = *state;
    mc_token_file *file = make_file(f, 301);
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        mc_lm_loader_options options = {
            .batch_size = 4, .seq_length = 5, .shuffle = shuffle, .repeat = true};
        for (int stop = 0; stop < 40; stop++) { /* 15 batches an epoch */
            mc_lm_loader *l = make_loader(f, file, options);
            for (int i = 0; i < stop; i++) mc_lm_loader_next(l);
            mc_lm_position position = mc_lm_loader_position(l);
            options.seed = 1234; /* the position brings its own */
            mc_lm_loader *same = make_loader(f, file, options);
            options.batch_size = 2;
            mc_lm_loader *half = make_loader(f, file, options);
            options.batch_size = 4;
            options.seed = 0;
            assert_int_equal(mc_lm_loader_seek(same, &position), MC_OK);
            assert_int_equal(mc_lm_loader_seek(half, &position), MC_OK);
            for (int i = 0; i < 20; i++) {
                const mc_lm_batch *a = mc_lm_loader_next(l), *b = mc_lm_loader_next(same);
                assert_true(a->epoch == b->epoch && a->step == b->step);
                assert_memory_equal(a->ids, b->ids, 20 * sizeof *a->ids);
                assert_memory_equal(a->labels, b->labels, 20 * sizeof *a->ids);
                assert_memory_equal(a->ids, mc_lm_loader_next(half)->ids, 10 * sizeof *a->ids);
                assert_memory_equal(a->ids + 10, mc_lm_loader_next(half)->ids, 10 * sizeof *a->ids);
            }
            mc_lm_position p = mc_lm_loader_position(l), q = mc_lm_loader_position(same);
            assert_true(p.epoch == q.epoch && p.window == q.window && p.seed == q.seed);
            mc_lm_loader_free(l);
            mc_lm_loader_free(same);
            mc_lm_loader_free(half);
        }
    }
    expect_ok(f->ctx);
}

/* Epochs end where those of the loader did that the position is of: 60 windows are 56 in batches of
 * 8, and so they stay in smaller ones. */
static void test_resume_epochs(void **state)
{
    fixture *f = *state;
    mc_token_file *file = make_file(f, 301);
    mc_lm_loader_options options = {
        .batch_size = 8, .seq_length = 5, .shuffle = true, .repeat = true};
    for (int batch = 1; batch <= 4; batch *= 2) {
        options.batch_size = 8;
        mc_lm_loader *l = make_loader(f, file, options);
        for (int i = 0; i < 5; i++) mc_lm_loader_next(l);
        mc_lm_position position = mc_lm_loader_position(l);
        assert_int_equal(position.epoch_windows, 56);
        options.batch_size = batch;
        mc_lm_loader *small = make_loader(f, file, options);
        assert_int_equal(mc_lm_loader_position(small).epoch_windows, 60);
        assert_int_equal(mc_lm_loader_seek(small, &position), MC_OK);
        assert_int_equal(mc_lm_loader_batches(small), 56 / batch);
        for (int i = 0; i < 20; i++) { /* 7 an epoch */
            const mc_lm_batch *all = mc_lm_loader_next(l);
            for (int part = 0; part < 8 / batch; part++)
                assert_memory_equal(mc_lm_loader_next(small)->ids, all->ids + part * batch * 5,
                                    (size_t)batch * 5 * sizeof *all->ids);
        }
        mc_lm_loader_free(l);
        mc_lm_loader_free(small);
    }
    expect_ok(f->ctx);
}

static void refuse(fixture *f, mc_lm_loader *l, mc_lm_position position, const char *part)
{
    mc_lm_position before = mc_lm_loader_position(l);
    assert_int_equal(mc_lm_loader_seek(l, &position), MC_ERR_ARGUMENT);
    expect_error(f->ctx, MC_ERR_ARGUMENT, part);
    mc_lm_position after = mc_lm_loader_position(l);
    assert_true(before.window == after.window && before.epoch == after.epoch);
}

static void test_bad_positions(void **state)
{
    fixture *f = *state;
    mc_token_file *file = make_file(f, 301);
    mc_lm_loader *l =
        make_loader(f, file, (mc_lm_loader_options){.batch_size = 4, .seq_length = 5});
    mc_lm_loader_next(l);
    const mc_lm_position good = mc_lm_loader_position(l);
    assert_int_equal(good.window, 4);
    assert_int_equal(good.seed, 42);
    mc_lm_position p = good;
    p.tokens++;
    refuse(f, l, p,
           "train.bin: the position to resume from is of other data or options: its count "
           "of tokens is 302, here it is 301");
    p = good;
    p.seq_length = 6;
    refuse(f, l, p, "its seq_length is 6, here it is 5");
    p = good;
    p.windows = 50;
    refuse(f, l, p, "its count of sequences is 50, here it is 60");
    p = good;
    p.shuffle = true;
    refuse(f, l, p, "its shuffle is 1, here it is 0");
    p = good;
    p.window = 61;
    refuse(f, l, p, "window 61 of epoch 0 is no position");
    p.window = -1;
    refuse(f, l, p, "window -1");
    p.window = 5;
    p.epoch_windows = 4;
    refuse(f, l, p, "window 5 of epoch 0 is no position: an epoch has 4 windows");
    p.epoch_windows = 61;
    refuse(f, l, p, "an epoch has 61 windows");
    p.epoch_windows = 60;
    p.window = 0;
    p.epoch = -1;
    refuse(f, l, p, "epoch -1");
    assert_int_equal(mc_lm_loader_seek(l, NULL), MC_ERR_ARGUMENT);
    expect_error(f->ctx, MC_ERR_ARGUMENT, "no position");
    /* other data of the same size; and the same data in another place */
    write_u16_shard(temp_path(&f->folder, "other.bin"), 301, 2);
    mc_token_file *other = mc_token_file_open(f->ctx, temp_path(&f->folder, "other.bin"));
    mc_lm_loader *m =
        make_loader(f, other, (mc_lm_loader_options){.batch_size = 4, .seq_length = 5});
    refuse(f, m, good, "other.bin: the position to resume from is of other data: as many tokens");
    write_u16_shard(temp_path(&f->folder, "copy.bin"), 301, 1);
    other = mc_token_file_open(f->ctx, temp_path(&f->folder, "copy.bin"));
    m = make_loader(f, other, (mc_lm_loader_options){.batch_size = 4, .seq_length = 5});
    assert_int_equal(mc_lm_loader_seek(m, &good), MC_OK);
    assert_int_equal(mc_lm_loader_next(m)->ids[0], 20);
}

/* ---- errors ---- */

static void test_vocabulary(void **state)
{
    fixture *f = *state;
    mc_token_file *file = make_file(f, 101);
    mc_lm_loader *l = make_loader(
        f, file, (mc_lm_loader_options){.batch_size = 2, .seq_length = 10, .vocabulary = 60});
    assert_non_null(mc_lm_loader_next(l));
    assert_non_null(mc_lm_loader_next(l));
    mc_lm_position before = mc_lm_loader_position(l);
    for (int again = 0; again < 2; again++) { /* token 60 is a label only, that of 59 */
        assert_null(mc_lm_loader_next(l));
        expect_error(f->ctx, MC_ERR_FORMAT,
                     "train.bin: token 60 at position 60 is past the vocabulary: expected 0 to 59");
        assert_int_equal(mc_lm_loader_position(l).window, before.window);
    }
    l = make_loader(f, file,
                    (mc_lm_loader_options){.batch_size = 2, .seq_length = 10, .vocabulary = 101});
    while (mc_lm_loader_next(l)) {
    }
    expect_ok(f->ctx);
    /* positions are those in the shard */
    write_u16_shard(temp_path(&f->folder, "s1.bin"), 11, 1);
    write_u16_shard(temp_path(&f->folder, "s2.bin"), 11, 100);
    file = mc_token_file_open(f->ctx, temp_path(&f->folder, "s?.bin"));
    l = make_loader(f, file,
                    (mc_lm_loader_options){.batch_size = 1, .seq_length = 5, .vocabulary = 501});
    for (int i = 0; i < 3; i++) assert_non_null(mc_lm_loader_next(l));
    assert_null(mc_lm_loader_next(l));
    expect_error(f->ctx, MC_ERR_FORMAT, "s2.bin: token 600 at position 6 is past the vocabulary");
}

static void test_bad_options(void **state)
{
    fixture *f = *state;
    mc_token_file *file = make_file(f, 100);
    const struct {
        mc_lm_loader_options options;
        const char *message;
    } cases[] = {
        {{.seq_length = 4}, "option batch_size is required"},
        {{.batch_size = 4}, "option seq_length is required"},
        {{.batch_size = -1, .seq_length = 4}, "batch_size is -1"},
        {{.batch_size = 4, .seq_length = -4}, "seq_length is -4"},
        {{.batch_size = 1 << 20, .seq_length = 1 << 20}, "batch_size * seq_length"},
        {{.batch_size = 1, .seq_length = 4, .vocabulary = -1}, "vocabulary is -1"},
        {{.batch_size = 1, .seq_length = 4, .epoch_start = -1}, "epoch_start is -1"},
        {{.batch_size = 1, .seq_length = 4, .world = -1}, "world is -1"},
        {{.batch_size = 1, .seq_length = 4, .world = 2, .rank = 2}, "rank is 2"},
        {{.batch_size = 1, .seq_length = 4, .rank = 1}, "rank is 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_null(mc_lm_loader_new(file, &cases[i].options));
        expect_error(f->ctx, MC_ERR_ARGUMENT, cases[i].message);
    }
    assert_null(mc_lm_loader_new(file, NULL));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "required");
    assert_null(mc_lm_loader_new(NULL, NULL));
    expect_ok(f->ctx);
    assert_null(mc_lm_loader_next(NULL));
    assert_int_equal(mc_lm_loader_batches(NULL), 0);
    assert_int_equal(mc_lm_loader_position(NULL).windows, 0);
    mc_lm_loader_free(NULL);
    /* nothing on a failed context */
    mc_lm_loader *l =
        make_loader(f, file, (mc_lm_loader_options){.batch_size = 1, .seq_length = 4});
    mc_fail(f->ctx, MC_ERR_STATE, "something else");
    assert_null(mc_lm_loader_next(l));
    assert_null(mc_lm_loader_new(file, &cases[0].options));
    expect_error(f->ctx, MC_ERR_STATE, "something else");
    assert_int_equal(mc_lm_loader_next(l)->step, 0);
}

#ifdef MC_FAULT_INJECTION
static void test_faults(void **state)
{
    fixture *f = *state;
    mc_token_file *file = make_file(f, 100);
    const mc_lm_loader_options options = {.batch_size = 1, .seq_length = 4, .shuffle = true};
    long nth = 0, count = 0;
    for (;;) {
        mc_fault_fail_at(++nth, false);
        mc_lm_loader *l = mc_lm_loader_new(file, &options);
        count = mc_fault_count();
        mc_fault_fail_at(0, false);
        if (nth > count) {
            while (mc_lm_loader_next(l)) { /* nothing is allocated from here on */
            }
            assert_int_equal(mc_fault_count(), 0);
            break;
        }
        assert_null(l);
        expect_error(f->ctx, MC_ERR_NOMEM, "a loader of tokens");
    }
    assert_int_equal(count, 8);
    expect_ok(f->ctx);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_file_order, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_ends, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_repeat, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_shards, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_worlds, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_keep_last, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_shuffling, set_up, tear_down),
        cmocka_unit_test(test_permutations),
        cmocka_unit_test(test_fair_shuffle),
        cmocka_unit_test_setup_teardown(test_resume, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_resume_epochs, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bad_positions, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_vocabulary, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bad_options, set_up, tear_down),
#ifdef MC_FAULT_INJECTION
        cmocka_unit_test_setup_teardown(test_faults, set_up, tear_down),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
