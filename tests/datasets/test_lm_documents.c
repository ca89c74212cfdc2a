/* Documents kept apart: where windows are divided, the same at any number of ranks; and the losses
 * of a model on them are those of the pieces alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "datasets/lm/loader_internal.h"
#include "tests/datasets/lm_test.h"
#include "tests/device_choice.h"
#include "tests/models/family_test.h"

enum { END = 1, MOST_DOCUMENTS = 64 };

/* Documents of random lengths, empty ones among them, each with END as its first or last token. */
typedef struct corpus {
    int count;
    int64_t counts[MOST_DOCUMENTS], begins[MOST_DOCUMENTS + 1];
    int32_t tokens[4096];
} corpus;

static corpus make_corpus(int count, int longest, bool ends, bool empty, unsigned seed)
{
    corpus c = {.count = count};
    for (int i = 0; i < count; i++) {
        seed = seed * 1664525 + 1013904223;
        int length = (int)(seed >> 16) % longest + 1;
        if (empty && seed >> 29 == 0) length = 0;
        c.counts[i] = length;
        for (int k = 0; k < length; k++) {
            bool border = ends ? k == length - 1 : k == 0;
            c.tokens[c.begins[i] + k] = border ? END : 2 + (int)((unsigned)(7 * i + k) % 48);
        }
        c.begins[i + 1] = c.begins[i] + length;
    }
    return c;
}

static mc_token_file *file_of(fixture *f, const corpus *c)
{
    const int32_t *documents[MOST_DOCUMENTS];
    for (int i = 0; i < c->count; i++) documents[i] = c->tokens + c->begins[i];
    mc_token_file *file = mc_token_file_from_arrays(f->ctx, documents, c->counts, c->count);
    expect_ok(f->ctx);
    return file;
}

/* The same tokens as llm.c's, which don't say where documents are. */
static mc_token_file *bare_file_of(fixture *f, const corpus *c)
{
    const char *path = temp_path(&f->folder, "bare.bin");
    int64_t n = c->begins[c->count];
    int32_t header[256] = {20240520, 1, (int32_t)n};
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fwrite(header, 1, sizeof header, file);
    for (int64_t i = 0; i < n; i++) fwrite(&c->tokens[i], 2, 1, file);
    assert_int_equal(fclose(file), 0);
    mc_token_file *opened = mc_token_file_open(f->ctx, path);
    expect_ok(f->ctx);
    return opened;
}

static mc_lm_loader *make_loader(fixture *f, mc_token_file *file, mc_lm_loader_options options)
{
    options.separate_documents = true;
    mc_lm_loader *l = mc_lm_loader_new(file, &options);
    expect_ok(f->ctx);
    return l;
}

/* Whether a document of the corpus begins at a token. */
static bool begins_at(const corpus *c, int64_t token)
{
    for (int i = 0; i < c->count; i++)
        if (c->counts[i] && c->begins[i] == token) return true;
    return token == c->begins[c->count];
}

/* What a batch of windows from token `first` on has to be, token by token. */
static void check_batch(const corpus *c, const mc_lm_batch *b, int64_t first)
{
    int piece = 0, length = 0;
    for (int64_t i = 0; i < b->tokens; i++) {
        bool border = begins_at(c, first + i + 1), end = (i + 1) % b->seq_length == 0;
        length++;
        assert_int_equal(b->ids[i], c->tokens[first + i]);
        assert_int_equal(b->labels[i], border ? MC_LM_IGNORE : c->tokens[first + i + 1]);
        if (!border && !end) continue;
        assert_true(piece < b->pieces);
        assert_int_equal(b->lengths[piece++], length);
        length = 0;
    }
    assert_int_equal(piece, b->pieces);
    int room = 3;
    while (room < piece) room *= 2;
    assert_int_equal(b->most_pieces, room < 3 * b->seq_length ? room : 3 * b->seq_length);
}

static void check_corpus(const corpus *c, mc_lm_loader *l)
{
    const mc_lm_batch *b;
    int64_t first = 0, batches = 0;
    for (; (b = mc_lm_loader_next(l)); first += b->tokens, batches++) check_batch(c, b, first);
    assert_int_equal(batches, mc_lm_loader_batches(l));
    assert_true(batches > 2);
}

/* The index and the token, first or last of a document, divide at the same places. */
static void test_borders(void **state)
{
    fixture *f = *state;
    for (unsigned seed = 0; seed < 12; seed++) {
        static const int longest[] = {1, 3, 20, 100};
        bool ends = seed % 2;
        corpus c = make_corpus(MOST_DOCUMENTS, longest[seed % 4], ends, false, seed);
        mc_lm_loader_options options = {.batch_size = 3, .seq_length = longest[seed % 4] + 1};
        if (seed % 4 == 3) options.seq_length = 37;
        check_corpus(&c, make_loader(f, file_of(f, &c), options));
        options.document_token = END;
        options.document_token_ends = ends;
        check_corpus(&c, make_loader(f, bare_file_of(f, &c), options));
        c = make_corpus(MOST_DOCUMENTS, longest[seed % 4] + 2, ends, true, seed);
        check_corpus(&c, make_loader(f, file_of(f, &c), options));
    }
    expect_ok(f->ctx);
}

/* Token 0 may begin documents too. */
static void test_token_zero(void **state)
{
    fixture *f = *state;
    corpus c = make_corpus(20, 10, false, false, 5);
    for (int i = 0; i < 20; i++) c.tokens[c.begins[i]] = 0;
    check_corpus(&c,
                 make_loader(f, bare_file_of(f, &c),
                             (mc_lm_loader_options){
                                 .batch_size = 3, .seq_length = 8, .document_token = MC_INT_ZERO}));
    mc_token_file *bare = bare_file_of(f, &c);
    assert_null(mc_lm_loader_new(
        bare,
        &(mc_lm_loader_options){.batch_size = 3, .seq_length = 8, .separate_documents = true}));
    expect_error(f->ctx, MC_ERR_ARGUMENT,
                 "bare.bin: it does not say where documents begin: separate_documents needs "
                 "document_token");
    assert_null(mc_lm_loader_new(
        bare, &(mc_lm_loader_options){.batch_size = 3, .seq_length = 8, .document_token = -1}));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "document_token is -1");
}

/* Side by side the pieces of all ranks are those of one, and most_pieces is the same on all. */
static void test_ranks(void **state)
{
    fixture *f = *state;
    corpus c = make_corpus(MOST_DOCUMENTS, 20, true, false, 77);
    mc_token_file *file = file_of(f, &c);
    mc_lm_loader_options options = {.batch_size = 8, .seq_length = 6, .shuffle = true, .world = 1};
    mc_lm_loader *one = make_loader(f, file, options), *ranks[4];
    for (int rank = 0; rank < 4; rank++) {
        options.batch_size = 2;
        options.world = 4;
        options.rank = rank;
        ranks[rank] = make_loader(f, file, options);
    }
    for (const mc_lm_batch *whole; (whole = mc_lm_loader_next(one));) {
        int pieces = 0, most = 0, room = 0;
        for (int rank = 0; rank < 4; rank++) {
            const mc_lm_batch *b = mc_lm_loader_next(ranks[rank]);
            assert_memory_equal(b->ids, whole->ids + 12 * rank, 12 * sizeof *b->ids);
            assert_memory_equal(b->labels, whole->labels + 12 * rank, 12 * sizeof *b->ids);
            assert_memory_equal(b->lengths, whole->lengths + pieces,
                                (size_t)b->pieces * sizeof *b->lengths);
            pieces += b->pieces;
            if (b->pieces > most) most = b->pieces;
            if (rank) assert_int_equal(b->most_pieces, room);
            room = b->most_pieces;
        }
        assert_int_equal(pieces, whole->pieces);
        assert_true(room >= most && (room == 2 || room < 2 * most));
    }
}

/* ---- losses ---- */

/* Relative, of losses that should be the same. A GPU takes other algorithms for other shapes, and
 * adds up in another order. */
static double tolerance(void)
{
    const char *device = getenv("MC_TEST_DEVICE");
    return device && *device ? 2e-5 : 1e-6;
}

/* A loader on the device that MC_TEST_DEVICE names: its context is not the fixture's. */
static mc_lm_loader *loader_on(mc_context *ctx, const corpus *c, mc_lm_loader_options options)
{
    fixture there = {.ctx = ctx};
    return make_loader(&there, file_of(&there, c), options);
}

/* Mean loss of a batch, its documents apart, with lengths that a recorded step could use. */
static double packed_loss(mc_context *ctx, mc_model *model, const mc_lm_batch *b,
                          mc_lm_lengths *lengths)
{
    mc_lm_lengths_set(lengths, 1, b);
    int shape = mc_lm_lengths_write(lengths);
    const mc_lengths *l = mc_lm_lengths_get(lengths, 1);
    assert_non_null(l);
    assert_int_equal(l->count, b->most_pieces);
    assert_int_equal(2 << shape, b->most_pieces);
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_tensor *ids = mc_tape_input(t, MC_I32, MC_SHAPE(b->tokens), b->ids, false);
    mc_tensor *labels = mc_tape_input(t, MC_I32, MC_SHAPE(b->tokens), b->labels, false);
    mc_model_output out = mc_model_forward(t, model, &(mc_model_input){.ids = ids, .lengths = l});
    double loss = mc_mean_loss(ctx, mc_model_loss(t, model, out.last_hidden, labels));
    assert_good(ctx);
    mc_tape_end(t);
    return loss;
}

/* The same of every piece alone: a batch of one sequence. */
static double separate_loss(mc_context *ctx, mc_model *model, const mc_lm_batch *b)
{
    double sum = 0;
    int64_t counted = 0;
    for (int64_t i = 0, at = 0; i < b->pieces; at += b->lengths[i++]) {
        int64_t length = b->lengths[i], some = 0;
        for (int64_t k = 0; k < length; k++) some += b->labels[at + k] >= 0;
        if (!some) continue;
        mc_tape *t = mc_tape_begin_eval(ctx);
        mc_tensor *ids = mc_tape_input(t, MC_I32, MC_SHAPE(1, length), b->ids + at, false);
        mc_tensor *labels = mc_tape_input(t, MC_I32, MC_SHAPE(1, length), b->labels + at, false);
        mc_model_output out = mc_model_forward(t, model, &(mc_model_input){.ids = ids});
        mc_tensor *loss = mc_model_loss(t, model, out.last_hidden, labels);
        sum += (double)some * mc_mean_loss(ctx, loss);
        counted += some;
        mc_tape_end(t);
    }
    return sum / (double)counted;
}

static void test_losses(void **state)
{
    (void)state;
    static const char *const families[] = {"gpt2", "gptj"};
    corpus c = make_corpus(40, 14, true, false, 3);
    mc_context *ctx = test_context(42);
    for (size_t i = 0; i < 2; i++) {
        mc_model *model = tiny_model(ctx, tiny(families[i]), NULL);
        mc_lm_loader *l =
            loader_on(ctx, &c, (mc_lm_loader_options){.batch_size = 2, .seq_length = 24});
        mc_lm_lengths *lengths = mc_lm_lengths_new(ctx, 2, 2, 24);
        double apart = 0, joined = 0;
        for (const mc_lm_batch *b; (b = mc_lm_loader_next(l));) {
            double loss = packed_loss(ctx, model, b, lengths);
            double expected = separate_loss(ctx, model, b);
            assert_true(fabs(loss - expected) < tolerance() * fabs(expected));
            apart += loss;
            mc_lm_batch whole = *b;
            int32_t all[2] = {24, 24};
            whole.lengths = all;
            whole.pieces = whole.most_pieces = 2;
            joined += packed_loss(ctx, model, &whole, lengths);
        }
        assert_true(fabs(apart - joined) > 1e-3); /* it does make a difference */
    }
    assert_good(ctx);
    mc_context_free(ctx);
}

/* ---- steps that are recorded ---- */

enum { STEPS = 24, MICRO = 2, ROWS = 3, LENGTH = 24 };

typedef struct training {
    mc_context *ctx;
    mc_model *model;
    mc_optim_manager *optim;
    mc_tensor *ids[MICRO], *labels[MICRO];
    mc_lm_lengths *lengths;
    mc_lm_batch batches[MICRO]; /* copies, where lengths are given as they are */
    int32_t pieces[MICRO][ROWS * LENGTH];
    bool exact;
} training;

/* Exact: lengths of the tape, as many as there are pieces, which cannot be recorded. */
static void train_step(mc_context *ctx, void *user)
{
    training *r = user;
    mc_optim_manager_zero_grad(r->optim);
    for (int i = 0; i < MICRO; i++) {
        mc_tape *t = mc_tape_begin(ctx);
        const mc_lengths *l = r->exact ? mc_tape_lengths(t, r->pieces[i], r->batches[i].pieces, 1)
                                       : mc_lm_lengths_get(r->lengths, i);
        mc_model_output out =
            mc_model_forward(t, r->model, &(mc_model_input){.ids = r->ids[i], .lengths = l});
        mc_tensor *loss = mc_model_loss(t, r->model, out.last_hidden, r->labels[i]);
        mc_optim_manager_backward(r->optim, t, loss);
        mc_tape_end(t);
    }
    mc_optim_manager_step(r->optim);
}

static void make_training(training *r, mc_lm_loader **loader, const corpus *c)
{
    r->ctx = test_context(42);
    r->model = tiny_model(r->ctx, tiny("gpt2"), NULL);
    mc_model_set_dropout(r->model, 0);
    mc_optimizer *adam = mc_adam_new(r->ctx, NULL);
    mc_optimizer_add(adam, mc_model_module(r->model));
    r->optim = mc_optim_manager_new(r->ctx, &(mc_optim_manager_options){.micro_steps = MICRO});
    mc_optim_manager_add(r->optim, adam, mc_no_decay_new(r->ctx, 1e-3f, 0));
    for (int i = 0; i < MICRO; i++) {
        r->ids[i] = mc_tensor_new(r->ctx, MC_I32, MC_SHAPE(ROWS * LENGTH));
        r->labels[i] = mc_tensor_new(r->ctx, MC_I32, MC_SHAPE(ROWS * LENGTH));
    }
    r->lengths = mc_lm_lengths_new(r->ctx, MICRO, ROWS, LENGTH);
    *loader =
        loader_on(r->ctx, c,
                  (mc_lm_loader_options){
                      .batch_size = ROWS, .seq_length = LENGTH, .shuffle = true, .repeat = true});
    assert_good(r->ctx);
}

static void fill(training *r, int i, const mc_lm_batch *b)
{
    size_t bytes = (size_t)b->tokens * sizeof *b->ids;
    mc_tensor_write(r->ids[i], b->ids, bytes);
    mc_tensor_write(r->labels[i], b->labels, bytes);
    mc_lm_lengths_set(r->lengths, i, b);
    r->batches[i] = *b;
    memcpy(r->pieces[i], b->lengths, (size_t)b->pieces * sizeof *b->lengths);
}

/* The losses of a run; how many shapes its steps had. */
static int train(const corpus *c, bool exact, double losses[STEPS])
{
    training *r = calloc(1, sizeof *r);
    mc_lm_loader *loader;
    int shapes[32] = {0}, count = 0;
    assert_non_null(r);
    r->exact = exact;
    make_training(r, &loader, c);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < MICRO; i++) fill(r, i, mc_lm_loader_next(loader));
        int shape = mc_lm_lengths_write(r->lengths);
        if (exact)
            train_step(r->ctx, r);
        else
            mc_step_run(r->ctx, (uint64_t)shape, train_step, r);
        count += !shapes[shape]++;
        mc_step_report report;
        assert_true(mc_optim_manager_report(r->optim, 0, &report));
        losses[step] = report.loss;
    }
    assert_good(r->ctx);
    mc_context_free(r->ctx);
    free(r);
    return count;
}

/* Documents of all lengths: some steps have many pieces, some few. */
static void test_recorded_steps(void **state)
{
    (void)state;
    double recorded[STEPS], exact[STEPS];
    corpus c = make_corpus(MOST_DOCUMENTS, 40, false, false, 9);
    int shapes = train(&c, false, recorded);
    train(&c, true, exact);
    assert_true(shapes >= 2 && shapes <= 4);
    for (int step = 0; step < STEPS; step++)
        if (fabs(recorded[step] - exact[step]) > 2 * tolerance() * exact[step])
            fail_msg("step %d: %.8f, expected %.8f", step, recorded[step], exact[step]);
    assert_true(recorded[STEPS - 1] < recorded[0]);
}

static void test_bad_lengths(void **state)
{
    fixture *f = *state;
    assert_null(mc_lm_lengths_new(f->ctx, 0, 2, 24));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "lengths of 0 batches");
    assert_null(mc_lm_lengths_new(f->ctx, 1, 1 << 20, 1 << 20));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "tokens a batch");
    mc_lm_lengths *lengths = mc_lm_lengths_new(f->ctx, 1, 2, 24);
    const mc_lengths *l = mc_lm_lengths_get(lengths, 0);
    assert_true(l->count == 2 && l->length[0] == 24 && l->length[1] == 24 && l->total == 48);
    assert_null(mc_lm_lengths_get(lengths, 1));
    assert_null(mc_lm_lengths_get(NULL, 0));
    mc_lm_lengths_set(lengths, 1, &(mc_lm_batch){.batch_size = 2, .seq_length = 24});
    expect_error(f->ctx, MC_ERR_ARGUMENT, "batch 1 of 2 windows of 24 tokens, there is room for 1");
    mc_lm_lengths_set(lengths, 0, &(mc_lm_batch){.batch_size = 3, .seq_length = 24});
    expect_error(f->ctx, MC_ERR_ARGUMENT, "3 windows");
    mc_lm_lengths_set(lengths, 0, &(mc_lm_batch){.batch_size = 1, .seq_length = 24});
    assert_int_equal(mc_lm_lengths_write(lengths), 0);
    assert_true(mc_lm_lengths_get(lengths, 0)->length[1] == 0);
    mc_lm_lengths_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_borders, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_token_zero, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_ranks, set_up, tear_down),
        cmocka_unit_test(test_losses),
        cmocka_unit_test(test_recorded_steps),
        cmocka_unit_test_setup_teardown(test_bad_lengths, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
