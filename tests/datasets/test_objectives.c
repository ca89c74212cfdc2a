/* Objectives of pretraining on small streams: exact structure, statistics of what is drawn, the
 * same sequences at any number of ranks and after a seek, and bad options. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <cmocka.h>
#include "datasets/objective.h"
#include "tests/datasets/lm_test.h"
#include "tokenizers/details.h"

enum { MASK = 901, BEGIN, SEPARATOR, START, END, SENTINEL, VOCABULARY = 900 };

static mc_objective_tokens tokens_of_test(void)
{
    mc_objective_tokens t = {.mask = MASK,
                             .begin = BEGIN,
                             .separator = SEPARATOR,
                             .start = START,
                             .input_end = END,
                             .target_end = END,
                             .sentinel_count = 40,
                             .end_of_text = 7};
    for (int i = 0; i < t.sentinel_count; i++) t.sentinel[i] = SENTINEL + i;
    return t;
}

static mc_objective_options options_of(mc_objective_kind kind, int seq_length)
{
    return (mc_objective_options){.style = {.kind = kind},
                                  .seq_length = seq_length,
                                  .tokens = tokens_of_test(),
                                  .vocabulary = VOCABULARY};
}

/* A file of tokens i * step % VOCABULARY. */
static mc_token_file *make_file(fixture *f, int n, int step)
{
    const char *path = temp_path(&f->folder, "stream.bin");
    int32_t header[256] = {20240520, 1, n};
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fwrite(header, 1, sizeof header, file);
    for (int i = 0; i < n; i++) {
        uint16_t token = (uint16_t)(i * step % VOCABULARY);
        fwrite(&token, sizeof token, 1, file);
    }
    assert_int_equal(fclose(file), 0);
    mc_token_file *opened = mc_token_file_open(f->ctx, path);
    expect_ok(f->ctx);
    return opened;
}

static mc_objective *make_part(fixture *f, mc_token_file *file, const mc_objective_options *o,
                               int batch_size, int world, int rank)
{
    mc_lm_loader_options options = {.batch_size = batch_size,
                                    .seq_length = mc_objective_window(f->ctx, o),
                                    .shuffle = true,
                                    .seed = 11,
                                    .repeat = true,
                                    .world = world,
                                    .rank = rank};
    mc_lm_loader *loader = mc_lm_loader_new(file, &options), *elsewhere = NULL;
    options.seed = 12;
    if (o->style.next_sentence) elsewhere = mc_lm_loader_new(file, &options);
    mc_objective *made = mc_objective_new(loader, elsewhere, o);
    expect_ok(f->ctx);
    assert_non_null(made);
    return made;
}

static mc_objective *make(fixture *f, mc_token_file *file, const mc_objective_options *o,
                          int batch_size)
{
    return make_part(f, file, o, batch_size, 1, 0);
}

/* ---- masked ---------------------------------------------------------------------------------- */

typedef struct mask_counts {
    int chosen, masked, kept, random, first[4]; /* first: of a quarter of the sequence */
} mask_counts;

/* Undoes the masking; the stream counts up by one, so that the window shows at once. */
static void check_masked_row(const mc_objective_batch *b, int row, int length, int targets,
                             mask_counts *counts)
{
    int32_t ids[64];
    memcpy(ids, b->field[MC_FIELD_IDS] + row * length, (size_t)length * sizeof *ids);
    for (int k = 0; k < targets; k++) {
        int at = b->field[MC_FIELD_TARGET_ROWS][row * targets + k] - row * length;
        int32_t target = b->field[MC_FIELD_TARGETS][row * targets + k];
        assert_in_range(at, 1, length - 2);
        assert_true(target >= 0 && target < VOCABULARY);
        counts->chosen++;
        counts->first[4 * (at - 1) / (length - 2)]++;
        counts->masked += ids[at] == MASK;
        counts->kept += ids[at] == target;
        counts->random += ids[at] != MASK && ids[at] != target;
        ids[at] = target;
    }
    assert_int_equal(ids[0], BEGIN);
    assert_int_equal(ids[length - 1], SEPARATOR);
    for (int i = 2; i < length - 1; i++) assert_int_equal(ids[i], (ids[1] + i - 1) % VOCABULARY);
}

static void expect_share(int count, int all, double share)
{
    double found = (double)count / all;
    /* five standard deviations of draws that are independent */
    double room = 5 * sqrt(share * (1 - share) / all);
    if (found < share - room || found > share + room)
        fail_msg("%d of %d is a share of %.4f, expected %.4f +- %.4f", count, all, found, share,
                 room);
}

static void test_masked(void **state)
{
    fixture *f = *state;
    enum { LENGTH = 42, TARGETS = 6, STEPS = 400, BATCH = 4 };
    mc_objective_options o = options_of(MC_OBJECTIVE_MASKED, LENGTH);
    assert_int_equal(mc_objective_window(f->ctx, &o), LENGTH - 2);
    assert_int_equal(mc_objective_width(&o, MC_FIELD_TARGETS), TARGETS);
    assert_int_equal(mc_objective_width(&o, MC_FIELD_TYPE_IDS), 0);
    assert_int_equal(mc_objective_width(&o, MC_FIELD_LABELS), 0);
    mc_objective *objective = make(f, make_file(f, 8000, 1), &o, BATCH);
    mask_counts counts = {0};
    for (int step = 0; step < STEPS; step++) {
        const mc_objective_batch *b = mc_objective_next(objective);
        assert_non_null(b);
        assert_null(b->field[MC_FIELD_LABELS]);
        assert_int_equal(b->targets, BATCH * TARGETS);
        for (int row = 0; row < BATCH; row++) check_masked_row(b, row, LENGTH, TARGETS, &counts);
    }
    assert_int_equal(counts.chosen, STEPS * BATCH * TARGETS); /* 15 % of 40 */
    expect_share(counts.masked, counts.chosen, 0.8);
    /* one random token in VOCABULARY is the same again */
    expect_share(counts.random, counts.chosen, 0.1 * (VOCABULARY - 1) / VOCABULARY);
    expect_share(counts.kept, counts.chosen, 0.1 + 0.1 / VOCABULARY);
    for (int i = 0; i < 4; i++) expect_share(counts.first[i], counts.chosen, 0.25);
}

/* Special tokens of the stream are neither chosen nor counted. */
static void test_special_tokens(void **state)
{
    fixture *f = *state;
    mc_objective_options o = options_of(MC_OBJECTIVE_MASKED, 12);
    o.mask_probability = 1;
    o.tokens.separator = 0; /* every third token of the stream */
    mc_objective *objective = make(f, make_file(f, 301, 300), &o, 1);
    for (int step = 0; step < 50; step++) {
        const mc_objective_batch *b = mc_objective_next(objective);
        assert_true(b->targets == 6 || b->targets == 7); /* of 10 */
        for (int i = 0; i < 10; i++) {
            bool counts = i < b->targets;
            assert_true(counts ? b->field[MC_FIELD_TARGETS][i] > 0
                               : b->field[MC_FIELD_TARGETS][i] == -100);
            assert_in_range(b->field[MC_FIELD_TARGET_ROWS][i], 0, 11);
        }
    }
}

static void test_pairs(void **state)
{
    fixture *f = *state;
    enum { LENGTH = 23, STEPS = 1000 };
    mc_objective_options o = options_of(MC_OBJECTIVE_MASKED, LENGTH);
    o.style.next_sentence = true;
    o.mask_probability = 1e-6; /* one, which is put back */
    assert_int_equal(mc_objective_window(f->ctx, &o), LENGTH - 3);
    assert_int_equal(mc_objective_width(&o, MC_FIELD_TYPE_IDS), LENGTH);
    mc_objective *objective = make(f, make_file(f, 4000, 1), &o, 1);
    int elsewhere = 0, cuts[LENGTH] = {0};
    for (int step = 0; step < STEPS; step++) {
        const mc_objective_batch *b = mc_objective_next(objective);
        int32_t ids[LENGTH], label = b->field[MC_FIELD_LABELS][0];
        const int32_t *types = b->field[MC_FIELD_TYPE_IDS];
        memcpy(ids, b->field[MC_FIELD_IDS], sizeof ids);
        ids[b->field[MC_FIELD_TARGET_ROWS][0]] = b->field[MC_FIELD_TARGETS][0];
        int a = 0; /* tokens of the first part */
        while (ids[a + 1] != SEPARATOR) a++;
        assert_int_equal(ids[0], BEGIN);
        assert_int_equal(ids[LENGTH - 1], SEPARATOR);
        for (int i = 0; i < LENGTH; i++) assert_int_equal(types[i], i > a + 1);
        for (int i = 2; i <= a; i++) assert_int_equal(ids[i], (ids[1] + i - 1) % VOCABULARY);
        for (int i = a + 3; i < LENGTH - 1; i++)
            assert_int_equal(ids[i], (ids[a + 2] + i - a - 2) % VOCABULARY);
        assert_int_equal(label, ids[a + 2] != (ids[a] + 1) % VOCABULARY);
        elsewhere += label;
        cuts[a]++;
    }
    /* of 199 windows a few repeat: the same tokens again follow, whatever was drawn */
    expect_share(elsewhere, STEPS, 0.5 * (1 - 4.42 / 199));
    for (int a = 1; a < LENGTH - 3; a++) assert_true(cuts[a] > 20); /* 1000 / 19 = 53 */
    assert_int_equal(cuts[0] + cuts[LENGTH - 3], 0);
}

/* A vocabulary of letters: "a" begins a word, "##a" continues it. The stream is words of one to
 * four letters. */
static void test_whole_words(void **state)
{
    fixture *f = *state;
    enum { LENGTH = 34, TOKENS = 3000, STEPS = 300 };
    int32_t begins = mc_tokenizer_token_to_id(f->tok, "a");
    int32_t continues = mc_tokenizer_token_to_id(f->tok, "##a");
    assert_int_equal(mc_tokenizer_continues(f->tok, begins), 0);
    assert_int_equal(mc_tokenizer_continues(f->tok, continues), 1);
    assert_int_equal(mc_tokenizer_continues(f->tok, mc_tokenizer_cls_id(f->tok)), 0);
    int32_t header[256] = {20240520, 1, TOKENS};
    FILE *file = fopen(temp_path(&f->folder, "words.bin"), "wb");
    fwrite(header, 1, sizeof header, file);
    for (int i = 0, left = 0; i < TOKENS; i++) {
        uint16_t token = (uint16_t)(left ? continues : begins);
        left = left ? left - 1 : i * 7 % 4;
        fwrite(&token, sizeof token, 1, file);
    }
    fclose(file);
    mc_objective_options o = options_of(MC_OBJECTIVE_MASKED, LENGTH);
    o.whole_words = f->tok;
    o.mask_probability = 0.25; /* 8 of 32 */
    mc_token_file *words = mc_token_file_open(f->ctx, temp_path(&f->folder, "words.bin"));
    mc_objective *objective = make(f, words, &o, 1);
    int64_t chosen = 0;
    for (int step = 0; step < STEPS; step++) {
        const mc_objective_batch *b = mc_objective_next(objective);
        int32_t ids[LENGTH];
        bool is_chosen[LENGTH] = {false};
        memcpy(ids, b->field[MC_FIELD_IDS], sizeof ids);
        for (int k = 0; k < b->targets; k++) {
            int at = b->field[MC_FIELD_TARGET_ROWS][k];
            assert_false(is_chosen[at]);
            is_chosen[at] = true;
            ids[at] = b->field[MC_FIELD_TARGETS][k];
        }
        for (int i = 2; i < LENGTH - 1; i++)
            if (ids[i] == continues) assert_int_equal(is_chosen[i], is_chosen[i - 1]);
        chosen += b->targets;
    }
    assert_true(chosen > 7 * STEPS); /* at most a word of four is left out */
}

/* ---- spans ----------------------------------------------------------------------------------- */

/* Puts each span in place of its sentinel; the stream counts up by one. */
static void check_spans(const mc_objective_batch *b, const mc_objective_options *o, int window,
                        int spans[64])
{
    int targets = mc_objective_width(o, MC_FIELD_TARGETS), count = 0, length = 0, last = -1;
    const int32_t *ids = b->field[MC_FIELD_IDS], *target = b->field[MC_FIELD_TARGETS];
    int32_t whole[256];
    int ends = o->tokens.input_end >= 0, at = 0;
    for (int i = 0; i < o->seq_length - ends; i++) {
        if (ids[i] != o->tokens.sentinel[count]) {
            whole[length++] = ids[i];
            last = i;
            continue;
        }
        assert_int_equal(last, i - 1); /* never two spans side by side, nor one at the beginning */
        assert_int_equal(target[at++], o->tokens.sentinel[count++]);
        int begin = at;
        while (target[at] < VOCABULARY) whole[length++] = target[at++];
        assert_true(at > begin && at - begin < 64);
        spans[at - begin]++;
    }
    assert_int_equal(at, targets - 1);
    assert_int_equal(target[at], o->tokens.target_end >= 0 ? END : o->tokens.sentinel[count]);
    if (ends) assert_int_equal(ids[o->seq_length - 1], END);
    assert_int_equal(length, window);
    for (int i = 1; i < length; i++) assert_int_equal(whole[i], (whole[0] + i) % VOCABULARY);
    assert_int_equal(b->field[MC_FIELD_DECODER_IDS][0], START);
    assert_memory_equal(b->field[MC_FIELD_DECODER_IDS] + 1, target,
                        (size_t)(targets - 1) * sizeof *target);
}

static void test_spans(void **state)
{
    fixture *f = *state;
    mc_objective_options o = options_of(MC_OBJECTIVE_SPANS, 512);
    /* as T5's compute_input_and_target_lengths(512, 0.15, 3) */
    assert_int_equal(mc_objective_window(f->ctx, &o), 568);
    assert_int_equal(mc_objective_width(&o, MC_FIELD_TARGETS), 114);
    o.seq_length = 64;
    int window = mc_objective_window(f->ctx, &o), spans[64] = {0};
    assert_int_equal(window, 70); /* 10 tokens in 3 spans */
    assert_int_equal(mc_objective_width(&o, MC_FIELD_TARGETS), 14);
    mc_token_file *file = make_file(f, 9000, 1);
    mc_objective *objective = make(f, file, &o, 1);
    for (int step = 0; step < 2000; step++)
        check_spans(mc_objective_next(objective), &o, window, spans);
    /* a span of n tokens, of all ways of cutting 10 into 3: (9 - n) of 36, 9 being the first cut's
     * places and the other's */
    for (int n = 1; n <= 8; n++) expect_share(spans[n], 6000, (9.0 - n) / 36);
    o.tokens.input_end = o.tokens.target_end = -1; /* CPM-2's */
    window = mc_objective_window(f->ctx, &o);
    assert_int_equal(window, 71);
    objective = make(f, file, &o, 1);
    for (int step = 0; step < 100; step++)
        check_spans(mc_objective_next(objective), &o, window, spans);
    o.noise_density = 0.5;
    o.mean_span_length = 5;
    window = mc_objective_window(f->ctx, &o);
    objective = make(f, file, &o, 1);
    for (int step = 0; step < 100; step++)
        check_spans(mc_objective_next(objective), &o, window, spans);
}

/* ---- context --------------------------------------------------------------------------------- */

/* Checks the part from `first` on: one stretch of targets, everything else context. */
static void check_part(const mc_objective_batch *b, int first, int length, int span, bool ends)
{
    const int32_t *ids = b->field[MC_FIELD_IDS] + first;
    const int32_t *marks = b->field[MC_FIELD_MARKS] + first;
    const int32_t *targets = b->field[MC_FIELD_TARGETS] + first;
    int left = 0, right;
    for (int i = 0; i < length; i++) assert_int_equal(marks[i] / 2, span);
    while (left < length && marks[left] % 2) left++;
    for (right = left; right < length && marks[right] % 2 == 0;) right++;
    for (int i = right; i < length; i++) assert_int_equal(marks[i] % 2, 1);
    for (int i = 0; i < length; i++)
        assert_int_equal(targets[i], i + 1 >= left && i + 1 < right ? ids[i + 1] : -100);
    if (length < 32) {
        assert_int_equal(left, length);
        return;
    }
    assert_in_range(left, length / 8, length / 4);
    assert_in_range(right, length / 4 * 3, length);
    if (ends) assert_int_equal(right, length);
}

static void test_context(void **state)
{
    fixture *f = *state;
    mc_objective_options o = options_of(MC_OBJECTIVE_CONTEXT, 256);
    assert_int_equal(mc_objective_window(f->ctx, &o), 256);
    /* 7 comes at every 60th and 900th token or so: documents of many lengths */
    mc_objective *objective = make(f, make_file(f, 20000, 77), &o, 1);
    int parts = 0, short_ones = 0;
    for (int step = 0; step < 300; step++) {
        const mc_objective_batch *b = mc_objective_next(objective);
        int first = 0, span = 0;
        for (int i = 0; i < 256; i++) {
            bool ends = b->field[MC_FIELD_IDS][i] == 7;
            if (!ends && i < 255) continue;
            check_part(b, first, i + 1 - first, span++, ends);
            short_ones += i + 1 - first < 32;
            first = i + 1;
            parts++;
        }
    }
    assert_true(parts > 350 && short_ones > 5);
}

/* ---- the same everywhere --------------------------------------------------------------------- */

static mc_objective_options any_options(int i)
{
    static const mc_objective_kind kinds[] = {MC_OBJECTIVE_NEXT_TOKEN, MC_OBJECTIVE_MASKED,
                                              MC_OBJECTIVE_MASKED, MC_OBJECTIVE_SPANS,
                                              MC_OBJECTIVE_CONTEXT};
    mc_objective_options o = options_of(kinds[i], 40);
    o.style.next_sentence = i == 2;
    return o;
}

/* Compares row r of a with row s of b; rows of hidden states count from each batch's beginning. */
static void same_rows(const mc_objective_options *o, const mc_objective_batch *a, int r,
                      const mc_objective_batch *b, int s)
{
    for (int field = 0; field < MC_FIELDS; field++) {
        int width = mc_objective_width(o, field);
        assert_int_equal(a->field[field] != NULL, width > 0);
        for (int i = 0; i < width; i++) {
            int32_t x = a->field[field][r * width + i], y = b->field[field][s * width + i];
            if (field == MC_FIELD_TARGET_ROWS) x -= r * o->seq_length, y -= s * o->seq_length;
            assert_int_equal(x, y);
        }
    }
}

static void test_ranks(void **state)
{
    fixture *f = *state;
    mc_token_file *file = make_file(f, 1500, 1);
    for (int kind = 0; kind < 5; kind++) {
        mc_objective_options o = any_options(kind);
        mc_objective *whole = make(f, file, &o, 4);
        mc_objective *part[2] = {make_part(f, file, &o, 2, 2, 0), make_part(f, file, &o, 2, 2, 1)};
        for (int step = 0; step < 30; step++) { /* three epochs and more */
            const mc_objective_batch *all = mc_objective_next(whole);
            for (int rank = 0; rank < 2; rank++) {
                const mc_objective_batch *b = mc_objective_next(part[rank]);
                assert_int_equal(b->epoch, all->epoch);
                for (int i = 0; i < 2; i++) same_rows(&o, all, 2 * rank + i, b, i);
            }
        }
    }
}

static void test_seek(void **state)
{
    fixture *f = *state;
    mc_token_file *file = make_file(f, 1500, 1);
    for (int kind = 0; kind < 5; kind++) {
        mc_objective_options o = any_options(kind);
        mc_objective *a = make(f, file, &o, 2), *b = make(f, file, &o, 2);
        for (int step = 0; step < 31; step++) mc_objective_next(a);
        mc_lm_position at = mc_lm_loader_position(mc_objective_loader(a));
        assert_int_equal(mc_objective_seek(b, &at), MC_OK);
        for (int step = 0; step < 20; step++) {
            const mc_objective_batch *x = mc_objective_next(a), *y = mc_objective_next(b);
            for (int i = 0; i < 2; i++) same_rows(&o, x, i, y, i);
        }
        mc_objective_free(a);
        mc_objective_free(b);
    }
}

/* Each epoch masks other tokens of a window. */
static void test_epochs(void **state)
{
    fixture *f = *state;
    mc_objective_options o = options_of(MC_OBJECTIVE_MASKED, 42);
    mc_objective *objective = make(f, make_file(f, 41, 1), &o, 1); /* one window */
    int32_t first[6];
    int differing = 0;
    for (int epoch = 0; epoch < 20; epoch++) {
        const mc_objective_batch *b = mc_objective_next(objective);
        assert_int_equal(b->epoch, epoch);
        if (epoch == 0) memcpy(first, b->field[MC_FIELD_TARGETS], sizeof first);
        differing += memcmp(first, b->field[MC_FIELD_TARGETS], sizeof first) != 0;
    }
    assert_int_equal(differing, 19);
}

/* ---- tokens of a tokenizer ------------------------------------------------------------------- */

static void test_find_tokens(void **state)
{
    fixture *f = *state;
    mc_objective_tokens t;
    mc_objective_style masked = {.kind = MC_OBJECTIVE_MASKED};
    assert_int_equal(mc_objective_find_tokens(f->ctx, &masked, f->tok, &t), MC_OK);
    assert_int_equal(t.mask, 4);
    assert_int_equal(t.begin, 2);
    assert_int_equal(t.separator, 3);
    mc_objective_style spans = {
        .kind = MC_OBJECTIVE_SPANS, .sentinel = "##%d", .start = "[CLS]", .target_end = "[SEP]"};
    assert_int_equal(mc_objective_find_tokens(f->ctx, &spans, f->tok, &t), MC_OK);
    assert_int_equal(t.sentinel_count, 10);
    assert_int_equal(t.sentinel[9], mc_tokenizer_token_to_id(f->tok, "##9"));
    assert_int_equal(t.start, 2);
    assert_int_equal(t.input_end, -1);
    assert_int_equal(t.target_end, 3);
    spans.sentinel = "<extra_id_%d>";
    mc_objective_find_tokens(f->ctx, &spans, f->tok, &t);
    expect_error(f->ctx, MC_ERR_NOT_FOUND, "the tokenizer has no token \"<extra_id_0>\"");
    mc_objective_find_tokens(f->ctx, &masked, NULL, &t);
    expect_error(f->ctx, MC_ERR_ARGUMENT, "mc_objective_find_tokens: tok is NULL");
    mc_objective_find_tokens(f->ctx, &spans, NULL, &t);
    expect_error(f->ctx, MC_ERR_ARGUMENT, "mc_objective_find_tokens: tok is NULL");
    mc_objective_style next = {.kind = MC_OBJECTIVE_NEXT_TOKEN}; /* puts in none */
    assert_int_equal(mc_objective_find_tokens(f->ctx, &next, NULL, &t), MC_OK);
    assert_int_equal(t.mask, -1);
    assert_int_equal(t.end_of_text, -1);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void refuse(fixture *f, mc_objective_options o, const char *what)
{
    assert_int_equal(mc_objective_window(f->ctx, &o), 0);
    expect_error(f->ctx, MC_ERR_ARGUMENT, what);
}

static void test_errors(void **state)
{
    fixture *f = *state;
    mc_objective_options o = options_of(0, 40);
    refuse(f, o, "option style.kind is required");
    refuse(f, options_of(MC_OBJECTIVE_NEXT_TOKEN, 0), "seq_length is 0");
    refuse(f, options_of(MC_OBJECTIVE_MASKED, 2), "seq_length is 2, expected 3 or more");
    refuse(f, options_of(MC_OBJECTIVE_CONTEXT, 31), "seq_length is 31, expected 32 or more");
    refuse(f, options_of(MC_OBJECTIVE_SPANS, 2), "seq_length is 2, expected 3 or more");
    o = options_of(MC_OBJECTIVE_MASKED, 40);
    o.mask_probability = 1.5;
    refuse(f, o, "mask_probability is 1.5");
    o = options_of(MC_OBJECTIVE_MASKED, 40);
    o.tokens.mask = -1;
    refuse(f, o, "the mask token is not given");
    o = options_of(MC_OBJECTIVE_MASKED, 40);
    o.vocabulary = 0;
    refuse(f, o, "option vocabulary is required");
    o = options_of(MC_OBJECTIVE_SPANS, 1024);
    refuse(f, o, "a sequence of 1024 has 57 sentinels, the tokenizer only 40");
    o.seq_length = 40;
    o.noise_density = 0.9;
    o.mean_span_length = 1;
    refuse(f, o, "tokens between");
    o.mean_span_length = 0.5;
    refuse(f, o, "mean_span_length is 0.5, expected 1 to 40");
    o = options_of(MC_OBJECTIVE_MASKED, 40);
    mc_token_file *file = make_file(f, 500, 1);
    mc_lm_loader_options options = {.batch_size = 1, .seq_length = 40};
    mc_lm_loader *loader = mc_lm_loader_new(file, &options);
    assert_null(mc_objective_new(loader, NULL, &o));
    expect_error(f->ctx, MC_ERR_ARGUMENT,
                 "the loader has windows of 40 tokens, expected 38 for sequences of 40");
    assert_null(mc_objective_new(NULL, NULL, &o));
    o.style.next_sentence = true;
    options.seq_length = 37;
    loader = mc_lm_loader_new(file, &options);
    assert_null(mc_objective_new(loader, NULL, &o));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "a second loader is required");
    assert_null(mc_objective_new(loader, mc_lm_loader_new(file, &options), &o));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "the second loader has the seed of the first");
    assert_null(mc_objective_next(NULL));
    o = options_of(MC_OBJECTIVE_CONTEXT,
                   64); /* 300, 600 and 0 by turns: documents of three tokens */
    o.tokens.end_of_text = 600;
    mc_objective *objective = make(f, make_file(f, 1000, 300), &o, 8);
    for (int step = 0; step < 127; step++)
        assert_int_equal(mc_objective_next(objective)->targets, 0);
    assert_null(mc_objective_next(objective));
    expect_error(f->ctx, MC_ERR_ARGUMENT,
                 "1024 sequences in a row have no token that counts: each document in them has "
                 "fewer than 32 tokens");
    expect_ok(f->ctx);
}

#ifdef MC_FAULT_INJECTION
static void test_faults(void **state)
{
    fixture *f = *state;
    mc_objective_options o = options_of(MC_OBJECTIVE_MASKED, 30);
    o.style.next_sentence = true;
    o.whole_words = f->tok;
    mc_lm_loader_options options = {.batch_size = 2, .seq_length = 27, .seed = 1};
    mc_token_file *file = make_file(f, 200, 1);
    mc_lm_loader *loader = mc_lm_loader_new(file, &options), *elsewhere;
    options.seed = 2;
    elsewhere = mc_lm_loader_new(file, &options);
    for (long nth = 1;; nth++) {
        mc_fault_fail_at(nth, false);
        mc_objective *made = mc_objective_new(loader, elsewhere, &o);
        long count = mc_fault_count();
        mc_fault_fail_at(0, false);
        if (nth > count) {
            while (mc_objective_next(made)) { /* nothing is allocated from here on */
            }
            assert_int_equal(mc_fault_count(), 0);
            assert_int_equal(count, 8); /* itself, scratch, five fields, words */
            break;
        }
        assert_null(made);
        expect_error(f->ctx, MC_ERR_NOMEM, "out of memory for");
    }
    expect_ok(f->ctx);
}
#endif

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_masked), TEST(test_special_tokens), TEST(test_pairs),  TEST(test_whole_words),
        TEST(test_spans),  TEST(test_context),        TEST(test_ranks),  TEST(test_seek),
        TEST(test_epochs), TEST(test_find_tokens),    TEST(test_errors),
#ifdef MC_FAULT_INJECTION
        TEST(test_faults),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
