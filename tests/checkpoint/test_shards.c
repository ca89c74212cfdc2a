/* Weights in several files: which tensor goes where, that an older save is replaced as a whole
 * whenever the process dies, and what is wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/checkpoint/shards_internal.h"
#include "core/checkpoint/training_internal.h"
#include "tests/checkpoint/kill_points.h"
#include "tests/faults.h"

/* ---- the rules ------------------------------------------------------------------------------- */

static void tensors_are_dealt_out_as_huggingface_hub_does(void **state)
{
    (void)state;
    enum { MOST = 8 };
    static const struct {
        uint64_t most, bytes[MOST];
        size_t shard[MOST], shards;
    } cases[] = {
        {10, {6, 6, 2, 6, 2, 2}, {0, 1, 1, 2, 2, 2}, 3}, /* huggingface_hub's own example */
        {10, {4, 4, 2}, {0, 0, 0}, 1},
        {10, {4, 11, 4, 4}, {1, 0, 1, 2}, 3}, /* a large one is listed first */
        {10, {11, 12}, {0, 1}, 2},
        {10, {10, 10}, {0, 1}, 2},
        {UINT64_MAX, {6, 6, 2}, {0, 0, 0}, 1},
        {1, {0}, {0}, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t shard[MOST], count = 0;
        while (count < MOST && cases[i].bytes[count]) count++;
        assert_int_equal(mc_shards_split(cases[i].bytes, count, cases[i].most, shard),
                         cases[i].shards);
        for (size_t k = 0; k < count; k++) assert_int_equal(shard[k], cases[i].shard[k]);
    }
}

static void names_are_in_the_order_of_declaration(void **state)
{
    (void)state;
    static const char order[] = "weight bias a.b wte h attn mlp c_attn";
    static const char *const names[] = {
        "wte.weight",
        "h.2.attn.c_attn.weight",
        "h.2.attn.c_attn.bias",
        "h.2.mlp.weight",
        "h.10.attn.bias",
        "h.10.attn.bias.x",
        "other.weight",
        "others",
        "z",
    };
    enum { NAMES = sizeof names / sizeof *names };
    for (int i = 0; i < NAMES; i++)
        for (int k = 0; k < NAMES; k++) {
            int found = mc_tensor_name_compare(order, names[i], names[k]);
            assert_int_equal((found > 0) - (found < 0), (i > k) - (i < k));
        }
}

/* ---- a module of equal numbers --------------------------------------------------------------- */

enum { PARAMETERS = 5, ELEMENTS = 100, TWO = 2 * ELEMENTS * 4 /* bytes of two parameters */ };

typedef struct fixture {
    temp_folder folder;
    mc_context *ctx;
    mc_module *module;
    char path[600], run[600];
} fixture;

static mc_module *new_module(mc_context *ctx)
{
    mc_module *m = mc_module_new(ctx, "", sizeof *m, NULL);
    for (int i = 0; i < PARAMETERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "p%d", i);
        mc_parameter_new(m, name, MC_SHAPE(ELEMENTS), mc_init_zeros());
    }
    return m;
}

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    f->folder = temp_folder_new();
    f->ctx = mc_init_distributed(NULL);
    f->module = new_module(f->ctx);
    snprintf(f->path, sizeof f->path, "%s/model.safetensors", f->folder.path);
    snprintf(f->run, sizeof f->run, "%s/run", f->folder.path);
    *state = f;
    return mc_failed(f->ctx);
}

static int tear_down(void **state)
{
    fixture *f = *state;
    mc_context_free(f->ctx);
    temp_folder_free(&f->folder);
    free(f);
    return 0;
}

static void fill(mc_module *m, float version)
{
    float values[ELEMENTS];
    mc_parameter_iterator it = {0};
    for (int i = 0; i < ELEMENTS; i++) values[i] = version;
    for (mc_parameter *p; (p = mc_module_next_parameter(m, &it));) mc_parameter_write(p, values);
}

static mc_status save_version(mc_module *m, const char *path, float version, int64_t most)
{
    fill(m, version);
    return mc_module_save_as(m, path, &(mc_save_options){.max_shard_size = most});
}

/* The version in a folder, by what a loader would open; fails if it is a mixture. */
static float version_in(mc_context *ctx, const char *folder)
{
    mc_module *m = new_module(ctx);
    float values[ELEMENTS], version = -1;
    mc_module_load(m, folder);
    assert_good(ctx);
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(m, &it));) {
        mc_parameter_read(p, values);
        for (int i = 0; i < ELEMENTS; i++) {
            if (version < 0) version = values[i];
            assert_true(values[i] == version);
        }
    }
    mc_module_free(m);
    return version;
}

static char *read_text(const char *path)
{
    mc_error err = {0};
    char *text = mc_file_read(&err, path, 1 << 20, NULL);
    assert_non_null(text);
    return text;
}

/* ---- saving ---------------------------------------------------------------------------------- */

static void the_index_is_as_python_writes_it(void **state)
{
    fixture *f = *state;
    assert_int_equal(save_version(f->module, f->path, 1, TWO), MC_OK);
    char *text = read_text(temp_path(&f->folder, "model.safetensors.index.json"));
    assert_string_equal(text, "{\n  \"metadata\": {\n    \"total_parameters\": 500,\n"
                              "    \"total_size\": 2000\n  },\n  \"weight_map\": {\n"
                              "    \"p0\": \"model-00001-of-00003.safetensors\",\n"
                              "    \"p1\": \"model-00001-of-00003.safetensors\",\n"
                              "    \"p2\": \"model-00002-of-00003.safetensors\",\n"
                              "    \"p3\": \"model-00002-of-00003.safetensors\",\n"
                              "    \"p4\": \"model-00003-of-00003.safetensors\"\n  }\n}\n");
    mc_free(text);
    assert_int_equal(count_files(f->folder.path), 4);
    assert_true(version_in(f->ctx, f->folder.path) == 1);
    mc_module_load(f->module, temp_path(&f->folder, "model.safetensors.index.json"));
    assert_good(f->ctx);
}

/* One file, three, three again, five, one: what is there is the newest, and nothing else but what
 * is not ours. */
static void an_older_save_is_replaced(void **state)
{
    fixture *f = *state;
    static const struct {
        int64_t most;
        int files;
    } saves[] = {{0, 1}, {TWO, 4}, {TWO, 4}, {400, 6}, {1, 6}, {TWO, 4}, {0, 1}, {TWO * 9, 1}};
    static const char *const foreign[] = {"model-00001-of-00002.bin", "model-1-of-2.safetensors",
                                          "other-00001-of-00002.safetensors"};
    for (int i = 0; i < 3; i++) write_text(temp_path(&f->folder, foreign[i]), "not ours");
    for (int i = 0; i < (int)(sizeof saves / sizeof *saves); i++) {
        save_version(f->module, f->path, (float)i, saves[i].most);
        assert_good(f->ctx);
        assert_true(version_in(f->ctx, f->folder.path) == (float)i);
        assert_int_equal(count_files(f->folder.path), saves[i].files + 3);
    }
}

static void a_damaged_index_is_replaced(void **state)
{
    fixture *f = *state;
    const char *index = temp_path(&f->folder, "model.safetensors.index.json");
    static const char *const texts[] = {
        "", "{\"weight_map\": [1]}", "{\"weight_map\": {\"a\": 1, \"b\": \"model-00001\"}}",
        "{\"weight_map\": {\"a\": \"model-00001-of-00003.safetensors\"}}"};
    for (int i = 0; i < 4; i++) {
        write_text(index, texts[i]);
        save_version(f->module, f->path, (float)i, TWO);
        assert_good(f->ctx);
        assert_true(version_in(f->ctx, f->folder.path) == (float)i);
        assert_int_equal(count_files(f->folder.path), 4);
    }
}

/* What stands where a link should be: the old index goes, and the new files are there. */
static void without_links_the_old_index_goes_first(void **state)
{
    fixture *f = *state;
    const char *folder = temp_path(&f->folder, "model-00001-of-00003.new.safetensors");
    assert_int_equal(save_version(f->module, f->path, 1, TWO), MC_OK);
    assert_int_equal(mkdir(folder, 0777), 0);
    save_version(f->module, f->path, 2, TWO);
    assert_error(f->ctx, MC_ERR_IO, "new.safetensors: cannot remove", "an older save left");
    assert_true(version_in(f->ctx, f->folder.path) == 2);
}

static void bad_options_are_errors(void **state)
{
    fixture *f = *state;
    save_version(f->module, f->path, 1, -1);
    assert_error(f->ctx, MC_ERR_ARGUMENT, "max_shard_size -1: expected a number from 0 up");
    save_version(f->module, temp_path(&f->folder, "mine.bin"), 1, TWO);
    assert_error(f->ctx, MC_ERR_ARGUMENT,
                 "mine.bin: weights in several files are named after one that ends in "
                 "\".safetensors\"");
    assert_int_equal(count_files(f->folder.path), 0);
    assert_int_equal(save_version(f->module, temp_path(&f->folder, "mine.bin"), 1, 0), MC_OK);
    assert_int_equal(count_files(f->folder.path), 1);
}

/* ---- what goes wrong on the way -------------------------------------------------------------- */

typedef struct replacement {
    const fixture *f;
    int64_t most; /* bytes of a shard */
} replacement;

/* In a process that is going to be killed. */
static void save_second_version(void *user)
{
    const replacement *r = user;
    assert_int_equal(save_version(r->f->module, r->f->path, 2, r->most), MC_OK);
}

/* Wherever a process is killed that replaces one file or several by as many, more or fewer, the
 * folder holds one version as a whole. */
static void a_killed_save_leaves_one_version(void **state)
{
    fixture *f = *state;
    static const int64_t most[][2] = {{TWO, TWO}, {TWO, 400}, {400, TWO}, {TWO, 0}, {0, TWO}};
    for (size_t i = 0; i < sizeof most / sizeof *most; i++) {
        replacement r = {.f = f, .most = most[i][1]};
        int old = 0, kills = 0, more = 0;
        assert_int_equal(save_version(f->module, f->path, 1, most[i][0]), MC_OK);
        int files = count_files(f->folder.path);
        while (killed_at(kills + 1, save_second_version, &r)) {
            float version = version_in(f->ctx, f->folder.path);
            assert_true(version == 1 || version == 2);
            old += version == 1;
            more += count_files(f->folder.path) > files;
            kills++;
            if (version == 1) continue; /* the next one saves beside what this one left */
            assert_int_equal(save_version(f->module, f->path, 1, most[i][0]), MC_OK);
        }
        print_message("%d kills: %d left the old version, %d more files\n", kills, old, more);
        assert_true(version_in(f->ctx, f->folder.path) == 2);
        assert_true(old > 0 && more > 0);
    }
    assert_int_equal(save_version(f->module, f->path, 7, TWO), MC_OK);
    assert_true(version_in(f->ctx, f->folder.path) == 7);
}

/* Each allocation in turn fails while version 2 replaces version 1, of as many files. */
static void failing_allocations_leave_the_old_version(void **state)
{
    fixture *f = *state;
    if (!is_available(HOST)) return;
    assert_int_equal(save_version(f->module, f->path, 1, TWO), MC_OK);
    for (long nth = 1;; nth++) {
        fail_at(HOST, nth, false);
        save_version(f->module, f->path, 2, TWO);
        long count = stop_failing(HOST);
        bool clean = was_clean(f->ctx, "saving shards", nth);
        float version = version_in(f->ctx, f->folder.path);
        assert_true(version == 2 || clean);
        if (nth > count) break;
        if (version == 2) save_version(f->module, f->path, 1, TWO);
        assert_good(f->ctx);
    }
}

/* ---- checkpoints of runs --------------------------------------------------------------------- */

/* The newest weights beside the checkpoints, in files that change in number. */
static void a_run_publishes_its_shards(void **state)
{
    fixture *f = *state;
    static const int64_t most[] = {TWO, TWO, 0, 400, 400, 0};
    for (int i = 0; i < 6; i++) {
        char checkpoint[700], path[800];
        snprintf(checkpoint, sizeof checkpoint, "%s/checkpoint-%d", f->run, i + 1);
        snprintf(path, sizeof path, "%s/model.safetensors", checkpoint);
        assert_int_equal(mc_make_folders(&f->ctx->error, checkpoint), MC_OK);
        assert_int_equal(save_version(f->module, path, (float)i, most[i]), MC_OK);
        snprintf(path, sizeof path, "%s/config.json", checkpoint);
        write_text(path, "{}");
        assert_int_equal(mc_checkpoint_publish(&f->ctx->error, f->run, i + 1, 0, false), MC_OK);
        assert_true(version_in(f->ctx, f->run) == (float)i);
        int files = most[i] == TWO ? 4 : most[i] ? 6 : 1;
        assert_int_equal(count_files(f->run), files + 1 + i + 1); /* config.json, checkpoints */
    }
    for (int i = 0; i < 6; i++) {
        char checkpoint[700];
        snprintf(checkpoint, sizeof checkpoint, "%s/checkpoint-%d", f->run, i + 1);
        assert_true(version_in(f->ctx, checkpoint) == (float)i); /* nothing of them was taken */
    }
}

static mc_status save_files(void *user, const char *folder)
{
    char path[MC_PATH_MAX];
    snprintf(path, sizeof path, "%.4000s/model.safetensors", folder);
    return mc_module_save_as(user, path, &(mc_save_options){.max_shard_size = TWO});
}

/* What is written later is what was there when saving began. */
static void shards_are_saved_in_the_background(void **state)
{
    fixture *f = *state;
    mc_optimizer *sgd = mc_sgd_new(f->ctx, &(mc_sgd_options){.lr = 0.1f});
    mc_optim_manager *optim = mc_optim_manager_new(f->ctx, NULL);
    mc_optimizer_add(sgd, f->module);
    mc_optim_manager_add(optim, sgd, NULL);
    for (int step = 1; step <= 4; step++) {
        mc_checkpoint_options o = {.step = step,
                                   .optim = optim,
                                   .save_files = save_files,
                                   .user = f->module,
                                   .background = step % 2};
        fill(f->module, (float)step);
        mc_checkpoint_save(f->ctx, f->run, &o);
        fill(f->module, 99);
        mc_checkpoint_wait(f->ctx);
        assert_good(f->ctx);
        assert_true(version_in(f->ctx, f->run) == (float)step);
        assert_int_equal(count_files(f->run), 4 + 1); /* and one checkpoint */
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_dealt_out_as_huggingface_hub_does),
        cmocka_unit_test(names_are_in_the_order_of_declaration),
        TEST(the_index_is_as_python_writes_it),
        TEST(an_older_save_is_replaced),
        TEST(a_damaged_index_is_replaced),
        TEST(without_links_the_old_index_goes_first),
        TEST(bad_options_are_errors),
        TEST(a_killed_save_leaves_one_version),
        TEST(failing_allocations_leave_the_old_version),
        TEST(a_run_publishes_its_shards),
        TEST(shards_are_saved_in_the_background),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
