/* The few sizes that batches are rounded up to: which are chosen, and what the loader makes of
 * them. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "datasets/loader.h"
#include "datasets/sizes_internal.h"
#include "tests/datasets/fixture.h"

static unsigned draw(uint64_t *state, unsigned below)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(*state >> 33) % below;
}

/* ---- choosing -------------------------------------------------------------------------------- */

enum { UNIT = 64, CELLS = 9 };

/* What all batches are rounded up to together, batches[i] of them of i + 1 units, by the sizes
 * whose bits are set. */
static int64_t sum_of(const int batches[CELLS], unsigned sizes)
{
    int64_t sum = 0;
    for (int i = 0; i < CELLS; i++) {
        int size = i;
        while (!(sizes >> size & 1)) size++;
        sum += (int64_t)batches[i] * (size + 1);
    }
    return sum;
}

/* The least such sum with so many sizes, by trying all; the largest is always one of them. */
static int64_t least_sum(const int batches[CELLS], int most)
{
    int64_t least = INT64_MAX;
    for (unsigned sizes = 1u << (CELLS - 1); sizes < 1u << CELLS; sizes++) {
        int64_t sum = __builtin_popcount(sizes) <= most ? sum_of(batches, sizes) : INT64_MAX;
        if (sum < least) least = sum;
    }
    return least;
}

static void test_best_sizes(void **state)
{
    (void)state;
    uint64_t seed = 1;
    const mc_size largest = {CELLS * UNIT, 100};
    for (int round = 0; round < 300; round++) {
        int most = 1 + (int)draw(&seed, 6), batches[CELLS];
        mc_sizes s;
        mc_sizes_init(&s, largest, 1);
        assert_int_equal(s.unit, UNIT);
        for (int i = 0; i < CELLS; i++) {
            batches[i] = draw(&seed, 3) ? (int)draw(&seed, 9) : 0;
            for (int k = 0; k < batches[i]; k++)
                mc_sizes_note(&s, (mc_size){(i + 1) * UNIT - k, 10});
        }
        batches[CELLS - 1]++; /* so that the largest size has a use, as it always has a place */
        mc_sizes_note(&s, largest);
        mc_sizes_choose(&s, most, largest);
        assert_in_range(s.count, 1, most);
        unsigned chosen = 0;
        for (int i = 0; i < s.count; i++) chosen |= 1u << (s.size[i].tokens / UNIT - 1);
        if (most > 1) /* one size less where the largest one is of batches that may come */
            assert_in_range(sum_of(batches, chosen), least_sum(batches, most),
                            least_sum(batches, most - 1));
        assert_int_equal(s.size[s.count - 1].tokens, largest.tokens);
        assert_int_equal(s.size[s.count - 1].longest, largest.longest);
    }
}

/* A size holds what is put into it, in both respects, and no smaller one does. */
static void test_fit(void **state)
{
    (void)state;
    uint64_t seed = 2;
    const mc_size largest = {5000, 500};
    mc_sizes s;
    mc_sizes_init(&s, largest, 48);
    for (int i = 0; i < 200; i++)
        mc_sizes_note(&s, (mc_size){draw(&seed, 3000), 1 + (int32_t)draw(&seed, 300)});
    mc_sizes_choose(&s, MC_MOST_SIZES, largest);
    assert_in_range(s.count, 2, MC_MOST_SIZES);
    for (int i = 0; i < s.count; i++) {
        assert_int_equal(s.size[i].tokens % 48, 0);
        assert_true(i == 0 || s.size[i].tokens > s.size[i - 1].tokens);
        assert_true(i == 0 || s.size[i].longest >= s.size[i - 1].longest);
    }
    for (int i = 0; i < 2000; i++) {
        mc_size batch = {draw(&seed, 5001), (int32_t)draw(&seed, 501)};
        mc_size size = mc_sizes_fit(&s, batch);
        assert_true(size.tokens >= batch.tokens && size.longest >= batch.longest);
        for (int k = 0; k < s.count && s.size[k].tokens < size.tokens; k++)
            assert_true(s.size[k].tokens < batch.tokens || s.size[k].longest < batch.longest);
    }
}

static void test_no_batches(void **state)
{
    (void)state;
    mc_sizes s;
    mc_sizes_init(&s, (mc_size){0}, 1);
    mc_sizes_choose(&s, 4, (mc_size){0});
    assert_int_equal(s.count, 1);
    assert_int_equal(mc_sizes_fit(&s, (mc_size){0}).tokens, UNIT);
}

/* ---- the loader ------------------------------------------------------------------------------ */

static mc_dataset *make_rows(fixture *f, int rows, bool pairs_of_choices)
{
    char *lines = malloc((size_t)rows * 500), *at = lines;
    uint64_t seed = 7;
    assert_non_null(lines);
    for (int i = 0; i < rows; i++) {
        if (pairs_of_choices)
            at += sprintf(at, "{\"label\": %d, \"premise\": \"", i % 2);
        else
            at += sprintf(at, "{\"label\": %s, \"question\": \"q\", \"passage\": \"",
                          i % 3 ? "true" : "false");
        for (unsigned k = draw(&seed, 1 + draw(&seed, 120)) + 1; k; k--)
            at += sprintf(at, "%c ", 'a' + (int)draw(&seed, 26));
        if (pairs_of_choices)
            at += sprintf(at, "\", \"choice1\": \"a b\", \"choice2\": \"c\", \"question\": "
                              "\"cause\"");
        else
            at += sprintf(at, "\"");
        at += sprintf(at, "}\n");
    }
    mc_dataset *d = parse(f, pairs_of_choices ? "COPA" : "BoolQ", "train", lines);
    free(lines);
    expect_ok(f->ctx);
    return d;
}

/* Shapes that were seen, and where the tensors lie. */
typedef struct shapes {
    int count;
    uint64_t key[16];
    mc_lengths lengths[16];
    const void *ids, *type_ids, *labels, *fixed;
} shapes;

static void check_shape(shapes *s, const mc_batch *b)
{
    int i = 0;
    while (i < s->count && s->key[i] != b->key) i++;
    if (i == s->count) {
        assert_true(s->count < 16);
        s->key[s->count] = b->key;
        s->lengths[s->count++] = *b->lengths;
    }
    assert_int_equal(b->lengths->capacity, s->lengths[i].capacity);
    assert_int_equal(b->lengths->longest, s->lengths[i].longest);
    assert_int_equal(b->lengths->count, s->lengths[i].count);
    if (!s->ids) {
        s->ids = mc_tensor_data(b->ids);
        s->type_ids = mc_tensor_data(b->type_ids);
        s->labels = mc_tensor_data(b->labels);
        s->fixed = mc_tensor_data(b->lengths->fixed);
    }
    assert_ptr_equal(mc_tensor_data(b->ids), s->ids);
    assert_ptr_equal(mc_tensor_data(b->type_ids), s->type_ids);
    assert_ptr_equal(mc_tensor_data(b->labels), s->labels);
    assert_ptr_equal(mc_tensor_data(b->lengths->fixed), s->fixed);
}

/* The same rows and tokens as in a plain batch, and nothing that counts after them. */
static void check_contents(const mc_batch *b, const mc_batch *plain, int batch_size, int32_t pad)
{
    const mc_lengths *l = b->lengths, *p = plain->lengths;
    assert_int_equal(b->rows, plain->rows);
    assert_memory_equal(b->row_index, plain->row_index, (size_t)b->rows * sizeof *b->row_index);
    assert_int_equal(b->tokens, plain->tokens);
    assert_int_equal(b->all_tokens, plain->all_tokens);
    assert_int_equal(l->count, batch_size * b->choices);
    assert_int_equal(l->total, l->capacity);
    assert_int_equal(l->offset[l->count], b->tokens);
    assert_true(l->longest >= p->longest && l->capacity >= p->total);
    assert_true(mc_shape_equal(mc_tensor_shape(b->ids), MC_SHAPE(l->capacity)));
    assert_true(mc_shape_equal(mc_tensor_shape(b->labels), MC_SHAPE(batch_size)));
    const int32_t *ids = mc_tensor_data(b->ids), *types = mc_tensor_data(b->type_ids);
    const int32_t *labels = mc_tensor_data(b->labels), *expected = mc_tensor_data(plain->labels);
    size_t bytes = (size_t)b->tokens * sizeof *ids;
    assert_memory_equal(ids, mc_tensor_data(plain->ids), bytes);
    assert_memory_equal(types, mc_tensor_data(plain->type_ids), bytes);
    for (int64_t i = b->tokens; i < l->capacity; i++) assert_true(ids[i] == pad && types[i] == 0);
    for (int i = 0; i < batch_size; i++)
        assert_int_equal(labels[i], i < b->rows ? expected[i] : MC_NO_LABEL);
    const int32_t *fixed = mc_tensor_data(l->fixed), *first = fixed + 2 * l->count + 1;
    for (int i = 0; i < l->count; i++) {
        int32_t n = i < p->count ? p->length[i] : 0;
        assert_int_equal(l->length[i], n);
        assert_int_equal(fixed[i], n);
        assert_int_equal(fixed[l->count + i], l->offset[i]);
        assert_int_equal(first[i], n ? l->offset[i] : -1);
        for (int k = 0; k < n; k++) assert_int_equal(first[l->count + l->offset[i] + k], k);
    }
    for (int64_t i = b->tokens; i < l->capacity; i++) assert_int_equal(first[l->count + i], 0);
}

/* Two loaders side by side, one with sizes; returns how many shapes there were. */
static int compare(fixture *f, mc_dataset *d, mc_dataloader_options options, int sizes,
                   double *added)
{
    mc_dataloader *plain = mc_dataloader_new(d, &options);
    options.sizes = sizes;
    mc_dataloader *sized = mc_dataloader_new(d, &options);
    shapes s = {0};
    int64_t tokens = 0, rows = 0;
    for (int epoch = 0; epoch < 4;) {
        const mc_batch *p = mc_dataloader_next(plain), *b = mc_dataloader_next(sized);
        assert_int_equal(!p, !b);
        epoch += !p;
        if (!p) continue;
        assert_int_equal(p->key, 0);
        check_shape(&s, b);
        check_contents(b, p, options.batch_size, mc_tokenizer_pad_id(f->tok));
        tokens += b->tokens;
        rows += b->lengths->capacity;
    }
    expect_ok(f->ctx);
    if (added) *added = (double)rows / (double)tokens - 1;
    mc_dataloader_free(plain);
    mc_dataloader_free(sized);
    assert_in_range(s.count, 1, sizes);
    return s.count;
}

static void test_batches(void **state)
{
    fixture *f = *state;
    mc_dataset *d = make_rows(f, 205, false);
    for (int kind = 0; kind < 4; kind++) {
        double few, many;
        mc_dataloader_options options = {.batch_size = 10, .shuffle = kind & 1};
        options.batching = kind & 2 ? MC_BATCHING_BY_LENGTH : MC_BATCHING_IN_ORDER;
        assert_int_equal(compare(f, d, options, 1, NULL), 1);
        compare(f, d, options, 3, &few);
        compare(f, d, options, 16, &many);
        assert_true(many < few && many < 0.15); /* a size is a multiple of 64 of some 350 tokens */
    }
    compare(f, d, (mc_dataloader_options){.batch_size = 1, .shuffle = true}, 4, NULL);
    compare(f, d, (mc_dataloader_options){.batch_size = 150, .shuffle = true}, 4, NULL);
    compare(f, make_rows(f, 50, true),
            (mc_dataloader_options){.batch_size = 8, .shuffle = true, .round_to = 40}, 5, NULL);
}

/* Sizes do not depend on the seed, and a resumed loader finds the same. */
static void test_same_sizes(void **state)
{
    fixture *f = *state;
    mc_dataset *d = make_rows(f, 200, false);
    mc_dataloader_options options = {.batch_size = 8, .shuffle = true, .sizes = 6};
    uint64_t keys[2][25];
    for (int seed = 0; seed < 2; seed++) {
        options.seed = (uint64_t)seed + 1;
        mc_dataloader *l = mc_dataloader_new(d, &options);
        for (int i = 0; i < 25; i++) keys[seed][i] = mc_dataloader_next(l)->key;
    }
    int common = 0, differ = 0;
    for (int i = 0; i < 25; i++) {
        bool found = false;
        for (int k = 0; k < 25; k++) found |= keys[0][i] == keys[1][k];
        common += found;
        differ += keys[0][i] != keys[1][i];
    }
    assert_true(common > 20 && differ > 0); /* a rare size may be of one of them only */
    mc_data_position position = {.seed = 1,
                                 .step = 10,
                                 .rows = 80,
                                 .batch_rows = 8,
                                 .dataset_rows = 200,
                                 .shuffle = true,
                                 .by_length = true};
    mc_dataloader *l = mc_dataloader_new(d, &options);
    assert_int_equal(mc_dataloader_seek(l, &position), MC_OK);
    for (int i = 10; i < 25; i++) assert_int_equal(mc_dataloader_next(l)->key, keys[0][i]);
    expect_ok(f->ctx);
}

/* All ranks have the same shape in a step, for it may be recorded with what ranks do together. */
static void test_ranks(void **state)
{
    fixture *f = *state;
    enum { WORLD = 3, STEPS = 14 };
    mc_dataset *d = make_rows(f, 161, false); /* the last step has rows for two ranks */
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        uint64_t keys[WORLD][STEPS];
        for (int rank = 0; rank < WORLD; rank++) {
            mc_dataloader *l = mc_dataloader_new(
                d,
                &(mc_dataloader_options){
                    .batch_size = 4, .shuffle = shuffle, .sizes = 5, .world = WORLD, .rank = rank});
            assert_int_equal(mc_dataloader_batches(l), STEPS);
            for (int i = 0; i < STEPS; i++) {
                mc_batch *b = mc_dataloader_next(l);
                assert_non_null(b);
                keys[rank][i] = b->key;
                assert_int_equal(b->lengths->count, 4);
            }
            expect_ok(f->ctx);
        }
        for (int rank = 1; rank < WORLD; rank++)
            assert_memory_equal(keys[0], keys[rank], sizeof keys[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_best_sizes),
        cmocka_unit_test(test_fit),
        cmocka_unit_test(test_no_batches),
        cmocka_unit_test_setup_teardown(test_batches, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_same_sizes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_ranks, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
