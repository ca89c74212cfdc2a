/* Checkpoints of a run: saved whole or not at all, opened only if whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <cmocka.h>
#include <cjson/cJSON.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tests/optim/optim_test.h"

/* ---- a run ----------------------------------------------------------------------------------- */

typedef struct run {
    mc_context *ctx;
    mc_module *model;
    mc_parameter *weight;
    mc_optim_manager *optim;
} run;

static char log_text[4096];

static void keep_line(void *user, mc_log_level level, const char *line)
{
    (void)user, (void)level;
    snprintf(log_text, sizeof log_text, "%s", line);
}

static run new_run(uint64_t seed)
{
    run r = {.ctx = mc_init_distributed(&(mc_init_options){.seed = seed, .log = keep_line})};
    r.model = new_root(r.ctx, MC_BF16);
    r.weight = mc_parameter_new(r.model, "weight", MC_SHAPE(3, 5), mc_init_normal(0, 1));
    mc_optimizer *adam = mc_adam_new(r.ctx, NULL);
    mc_optimizer_add(adam, r.model);
    r.optim = mc_optim_manager_new(r.ctx, &(mc_optim_manager_options){.loss_scale = 8});
    mc_optim_manager_add(r.optim, adam, NULL);
    assert_good(r.ctx);
    return r;
}

static void train(run *r, int steps)
{
    for (int i = 0; i < steps; i++) {
        mc_optim_manager_zero_grad(r->optim);
        fill_gradient(r->weight, 0.5f);
        mc_optim_manager_step(r->optim);
    }
    assert_good(r->ctx);
}

/* A model's file, of which only that it is there matters here. */
static mc_status save_model(void *user, const char *folder)
{
    run *r = user;
    char path[1024];
    float values[15];
    mc_parameter_read(r->weight, values);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    mc_safetensors_spec spec = {.name = "weight", .ndim = 1, .shape = (int64_t[]){15}};
    mc_safetensors_writer *w = mc_safetensors_writer_new(r->ctx, path, &spec, 1, NULL, 0);
    mc_safetensors_write(w, values, sizeof values);
    mc_safetensors_writer_commit(w);
    mc_safetensors_writer_free(w);
    return mc_error_status(r->ctx);
}

static mc_status save_nothing(void *user, const char *folder)
{
    (void)user, (void)folder;
    return MC_ERR_INTERRUPTED;
}

static const mc_checkpoint_setting settings[] = {{"lr", "0.001"}, {"text", "a \"b\" \xc3\xa9"}};

static mc_checkpoint_options options_of(run *r, int64_t step)
{
    return (mc_checkpoint_options){.step = step,
                                   .keep = 1,
                                   .optim = r->optim,
                                   .save_files = save_model,
                                   .user = r,
                                   .settings = settings,
                                   .setting_count = 2};
}

static void save(run *r, const temp_folder *f, int64_t step)
{
    mc_checkpoint_options o = options_of(r, step);
    assert_int_equal(mc_checkpoint_save(r->ctx, f->path, &o), MC_OK);
    assert_good(r->ctx);
}

static bool exists(const temp_folder *f, const char *name)
{
    return access(temp_path(f, name), F_OK) == 0;
}

/* ---- saving and going on --------------------------------------------------------------------- */

static void test_round_trip(void **state)
{
    (void)state;
    temp_folder f = temp_folder_new();
    run a = new_run(3), b = new_run(3);
    assert_false(mc_checkpoint_exists(f.path));
    assert_null(mc_checkpoint_open(a.ctx, f.path));
    assert_null(mc_checkpoint_open(a.ctx, temp_path(&f, "absent")));
    assert_good(a.ctx);
    train(&a, 3);
    a.ctx->rng_offset = 12345678901234567890u;
    save(&a, &f, 3);
    assert_true(mc_checkpoint_exists(f.path));
    mc_checkpoint *c = mc_checkpoint_open(b.ctx, f.path);
    assert_good(b.ctx);
    assert_int_equal(mc_checkpoint_step(c), 3);
    assert_string_equal(mc_checkpoint_setting_of(c, "lr"), "0.001");
    assert_string_equal(mc_checkpoint_setting_of(c, "text"), settings[1].value);
    assert_null(mc_checkpoint_setting_of(c, "absent"));
    assert_non_null(strstr(mc_checkpoint_folder(c), "/checkpoint-3"));
    assert_int_equal(mc_checkpoint_restore(c, b.optim), MC_OK);
    assert_true(b.ctx->rng_offset == 12345678901234567890u);
    mc_checkpoint_free(c);
    train(&a, 5); /* the weights come from the master copies at the first step */
    train(&b, 5);
    for (int i = 0; i < 15; i++) assert_true(value_at(a.weight, i) == value_at(b.weight, i));
    assert_int_equal(mc_optim_manager_steps(b.optim), 8);
    mc_context_free(a.ctx);
    mc_context_free(b.ctx);
    temp_folder_free(&f);
}

static bool same_file(const temp_folder *f, const char *a, const char *b)
{
    struct stat one, other;
    assert_int_equal(stat(temp_path(f, a), &one), 0);
    assert_int_equal(stat(temp_path(f, b), &other), 0);
    return one.st_ino == other.st_ino;
}

static void test_what_stays(void **state)
{
    (void)state;
    temp_folder f = temp_folder_new();
    run r = new_run(1);
    train(&r, 1);
    mkdir(temp_path(&f, "checkpoint-7.tmp"), 0777); /* of a process that died */
    write_text(temp_path(&f, "checkpoint-7.tmp/model.safetensors"), "half");
    write_text(temp_path(&f, "checkpoint-x"), "none of ours");
    for (int64_t step = 1; step <= 4; step++) save(&r, &f, step);
    save(&r, &f, 4);
    assert_true(exists(&f, "checkpoint-4") && exists(&f, "checkpoint-3"));
    assert_true(exists(&f, "model.safetensors") && exists(&f, "checkpoint-x"));
    assert_int_equal(count_files(f.path), 4);
    assert_int_equal(count_files(temp_path(&f, "checkpoint-4")), 3);
    assert_true(same_file(&f, "model.safetensors", "checkpoint-4/model.safetensors"));
    mc_context_free(r.ctx);
    temp_folder_free(&f);
}

static void save_best(run *r, const temp_folder *f, int64_t step, int64_t best)
{
    mc_checkpoint_options o = options_of(r, step);
    o.best = best;
    o.keep = 0;
    assert_int_equal(mc_checkpoint_save(r->ctx, f->path, &o), MC_OK);
}

/* The best step's weights are the run's, and stay; without them a later checkpoint is not whole. */
static void test_best(void **state)
{
    (void)state;
    temp_folder f = temp_folder_new();
    run r = new_run(1);
    train(&r, 1);
    write_text(temp_path(&f, "model.safetensors"), "own");
    save_best(&r, &f, 1, MC_CHECKPOINT_BEST_BESIDE);
    assert_false(same_file(&f, "model.safetensors", "checkpoint-1/model.safetensors"));
    mkdir(temp_path(&f, "checkpoint-7.tmp"), 0777);
    mc_checkpoint_restore(mc_checkpoint_open(r.ctx, f.path), r.optim);
    assert_false(exists(&f, "checkpoint-7.tmp"));
    assert_false(same_file(&f, "model.safetensors", "checkpoint-1/model.safetensors"));
    save_best(&r, &f, 2, 2);
    assert_true(same_file(&f, "model.safetensors", "checkpoint-2/model.safetensors"));
    for (int step = 3; step <= 5; step++) save_best(&r, &f, step, 2);
    assert_int_equal(count_files(f.path), 3); /* with steps 2 and 5 */
    assert_true(same_file(&f, "model.safetensors", "checkpoint-2/model.safetensors"));
    unlink(temp_path(&f, "model.safetensors"));
    mc_checkpoint *c = mc_checkpoint_open(r.ctx, f.path);
    assert_int_equal(mc_checkpoint_step(c), 5);
    assert_int_equal(mc_checkpoint_restore(c, r.optim), MC_OK);
    assert_true(same_file(&f, "model.safetensors", "checkpoint-2/model.safetensors"));
    assert_int_equal(truncate(temp_path(&f, "checkpoint-2/model.safetensors"), 9), 0);
    assert_null(mc_checkpoint_open(r.ctx, f.path));
    assert_error(r.ctx, MC_ERR_FORMAT, "checkpoint-2/model.safetensors: 9 bytes, expected");
    save_best(&r, &f, 6, 0);
    assert_true(same_file(&f, "model.safetensors", "checkpoint-6/model.safetensors"));
    assert_int_equal(count_files(f.path), 2);
    mc_checkpoint_options o = options_of(&r, 7);
    o.best = 8;
    mc_checkpoint_save(r.ctx, f.path, &o);
    assert_error(r.ctx, MC_ERR_ARGUMENT, "a best up to the step");
    mc_context_free(r.ctx);
    temp_folder_free(&f);
}

/* Asks until the checkpoint of a step is whole, or has failed. */
static mc_status poll_until(mc_context *ctx, int64_t step)
{
    int64_t saved = -1;
    mc_status status = MC_OK;
    for (int i = 0; i < 10000 && !status && saved != step; i++) {
        status = mc_checkpoint_poll(ctx, &saved);
        usleep(1000);
    }
    if (!status) assert_int_equal(saved, step);
    return status;
}

/* In the background: training that goes on is not seen, and one save waits for the other. */
static void test_background(void **state)
{
    (void)state;
    temp_folder f = temp_folder_new();
    run a = new_run(3), b = new_run(3);
    assert_int_equal(mc_checkpoint_poll(a.ctx, NULL), MC_OK);
    assert_int_equal(mc_checkpoint_poll(NULL, NULL), MC_ERR_NOMEM);
    assert_int_equal(poll_until(a.ctx, 0), MC_OK);      /* there is none */
    assert_int_equal(mc_checkpoint_wait(a.ctx), MC_OK); /* for nothing */
    assert_int_equal(mc_checkpoint_wait(NULL), MC_ERR_NOMEM);
    for (int step = 2; step <= 6; step += 2) {
        train(&a, 2);
        mc_checkpoint_options o = options_of(&a, step);
        o.background = true;
        assert_int_equal(mc_checkpoint_save(a.ctx, f.path, &o), MC_OK);
    }
    train(&a, 3);
    assert_int_equal(mc_checkpoint_wait(a.ctx), MC_OK);
    assert_true(exists(&f, "checkpoint-4") && !exists(&f, "checkpoint-2"));
    assert_int_equal(count_files(temp_path(&f, "checkpoint-6")), 3);
    mc_checkpoint *c = mc_checkpoint_open(b.ctx, f.path);
    assert_int_equal(mc_checkpoint_step(c), 6);
    assert_int_equal(mc_checkpoint_restore(c, b.optim), MC_OK);
    train(&b, 3);
    for (int i = 0; i < 15; i++) assert_true(value_at(a.weight, i) == value_at(b.weight, i));
    mc_checkpoint_options o = options_of(&a, 9);
    o.background = true;
    assert_int_equal(poll_until(a.ctx, 6), MC_OK);
    mc_checkpoint_save(a.ctx, f.path, &o);
    assert_int_equal(poll_until(a.ctx, 9), MC_OK);
    assert_true(exists(&f, "checkpoint-9/training.json"));
    o.step = 10;
    mc_checkpoint_save(a.ctx, f.path, &o);
    mc_context_free(a.ctx); /* waits */
    assert_true(exists(&f, "checkpoint-10/training.json"));
    save(&b, &f, 11); /* at once */
    assert_int_equal(poll_until(b.ctx, 11), MC_OK);
    mc_context_free(b.ctx);
    temp_folder_free(&f);
}

/* What goes wrong later is an error later. */
static void test_background_failure(void **state)
{
    (void)state;
    temp_folder f = temp_folder_new();
    run r = new_run(1);
    train(&r, 1);
    save(&r, &f, 1);
    mkdir(temp_path(&f, "checkpoint-1.tmp"), 0777); /* the old one will go by this name */
    mkdir(temp_path(&f, "checkpoint-1.tmp/folder"), 0777);
    mc_checkpoint_options o = options_of(&r, 2);
    o.background = true;
    o.keep = 0;
    assert_int_equal(mc_checkpoint_save(r.ctx, f.path, &o), MC_ERR_IO); /* it cannot be removed */
    assert_error(r.ctx, MC_ERR_IO, "checkpoint-1.tmp/folder: cannot remove it");
    assert_int_equal(rmdir(temp_path(&f, "checkpoint-1.tmp/folder")), 0);
    write_text(temp_path(&f, "checkpoint-2"), "a file"); /* whose name the new one wants */
    assert_int_equal(mc_checkpoint_save(r.ctx, f.path, &o), MC_OK);
    assert_int_equal(mc_checkpoint_wait(r.ctx), MC_ERR_IO);
    assert_error(r.ctx, MC_ERR_IO, "checkpoint-2: cannot name the checkpoint");
    assert_int_equal(mc_checkpoint_save(r.ctx, f.path, &o), MC_OK);
    assert_int_equal(poll_until(r.ctx, 2), MC_ERR_IO);
    assert_error(r.ctx, MC_ERR_IO, "checkpoint-2: cannot name the checkpoint");
    assert_int_equal(mc_checkpoint_wait(r.ctx), MC_OK); /* it was waited for */
    assert_int_equal(poll_until(r.ctx, 1), MC_OK);
    assert_int_equal(mc_checkpoint_save(r.ctx, f.path, &o), MC_OK);
    mc_context_free(r.ctx);
    assert_non_null(strstr(log_text, "the checkpoint of step 2 was not saved"));
    assert_true(exists(&f, "checkpoint-1/training.json"));
    temp_folder_free(&f);
}

static void test_a_failed_save(void **state)
{
    (void)state;
    temp_folder f = temp_folder_new();
    run r = new_run(1);
    save(&r, &f, 1);
    mc_checkpoint_options o = options_of(&r, 2);
    o.save_files = save_nothing;
    assert_int_equal(mc_checkpoint_save(r.ctx, f.path, &o), MC_ERR_INTERRUPTED);
    assert_error(r.ctx, MC_ERR_INTERRUPTED, "checkpoint-2");
    mc_checkpoint *c = mc_checkpoint_open(r.ctx, f.path);
    assert_int_equal(mc_checkpoint_step(c), 1);
    save(&r, &f, 2);
    assert_int_equal(count_files(f.path), 3);
    o = options_of(&r, 0);
    mc_checkpoint_save(r.ctx, f.path, &o);
    assert_error(r.ctx, MC_ERR_ARGUMENT, "a step of 1 or more");
    mc_checkpoint_save(r.ctx, f.path, NULL);
    assert_error(r.ctx, MC_ERR_ARGUMENT, "expected");
    o = options_of(&r, 3);
    mc_checkpoint_save(r.ctx, temp_path(&f, "model.safetensors/in"), &o);
    assert_true(mc_failed(r.ctx));
    mc_clear_error(r.ctx);
    assert_null(mc_checkpoint_open(r.ctx, NULL));
    assert_error(r.ctx, MC_ERR_ARGUMENT, "NULL");
    assert_int_equal(mc_checkpoint_restore(NULL, r.optim), MC_ERR_ARGUMENT);
    assert_int_equal(mc_checkpoint_restore(c, NULL), MC_ERR_ARGUMENT);
    assert_error(r.ctx, MC_ERR_ARGUMENT, "OptimManager");
    run other = new_run(2);
    c = mc_checkpoint_open(other.ctx, f.path);
    assert_int_equal(mc_checkpoint_restore(c, other.optim), MC_ERR_ARGUMENT);
    assert_error(other.ctx, MC_ERR_ARGUMENT, "saved with seed 1, the context's is 2");
    assert_int_equal(mc_checkpoint_step(NULL), 0);
    assert_null(mc_checkpoint_folder(NULL));
    assert_null(mc_checkpoint_setting_of(NULL, "lr"));
    mc_checkpoint_free(NULL);
    mc_context_free(r.ctx);
    mc_context_free(other.ctx);
    temp_folder_free(&f);
}

/* ---- damage ---------------------------------------------------------------------------------- */

static char *read_text(const char *path)
{
    static char text[1 << 14];
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return text;
}

/* The rows that losses of several ranks are divided by go on; older checkpoints may lack them. */
static void test_loss_rows(void **state)
{
    (void)state;
    temp_folder f = temp_folder_new();
    run a = new_run(1);
    a.optim->open.rows = 77;
    save(&a, &f, 5);
    const char *path = temp_path(&f, "checkpoint-5/training.json");
    for (int i = 0; i < 2; i++) {
        run b = new_run(1);
        mc_checkpoint *c = mc_checkpoint_open(b.ctx, f.path);
        assert_int_equal(mc_checkpoint_restore(c, b.optim), MC_OK);
        assert_int_equal(b.optim->open.rows, i ? 0 : 77);
        mc_checkpoint_free(c);
        mc_context_free(b.ctx);
        char text[1 << 15];
        snprintf(text, sizeof text, "%s", read_text(path));
        char *key = strstr(text, "\"loss_rows\"");
        if (key) memcpy(key, "\"lost_rows\"", strlen("\"lost_rows\""));
        write_text(path, text);
    }
    mc_context_free(a.ctx);
    temp_folder_free(&f);
}

static void test_damaged_descriptions(void **state)
{
    (void)state;
    static const char *const changes[][3] = {
        {"\"format\":\t1", "\"format\":\t2", "format 2, expected 1"},
        {"\"format\":\t1", "\"format\":\t\"1\"", "format"},
        {"\"step\":\t5", "\"step\":\t6", "says step 6, its folder 5"},
        {"\"step\":\t5", "\"step\":\t0", "step"},
        {"\"seed\":\t\"1\"", "\"seed\":\t1", "seed"},
        {"\"seed\":\t\"1\"", "\"seed\":\t\"-1\"", "expected a whole number in quotes, found -1"},
        {"\"seed\":\t\"1\"", "\"seed\":\t\"99999999999999999999\"", "whole number"},
        {"\"rng_offset\"", "\"rng\"", "rng_offset"},
        {"\"files\"", "\"filed\"", "\"files\": expected an object"},
        {"optimizer.safetensors", "optimiser.safetensors", "expected an object with"},
        {"\"model.safetensors\"", "\"../model.safetensors\"", "no name of a file"},
        {"\"model.safetensors\"", "\"absent.safetensors\"", "absent.safetensors"},
        {"\"bytes\":\t\"", "\"bytes\":\t\"1", "bytes, expected 1"},
        {"\"checksum\":\t\"", "\"checksum\":\t\"0x", "checksum"},
        {"}", "", "training.json"},
    };
    temp_folder f = temp_folder_new();
    run r = new_run(1);
    save(&r, &f, 5);
    const char *path = temp_path(&f, "checkpoint-5/training.json");
    char whole[1 << 15], changed[1 << 15];
    snprintf(whole, sizeof whole, "%s", read_text(path));
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        const char *at = strstr(whole, changes[i][0]);
        if (!at) fail_msg("no %s in %s", changes[i][0], whole);
        snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - whole), whole, changes[i][1],
                 at + strlen(changes[i][0]));
        write_text(path, changed);
        assert_null(mc_checkpoint_open(r.ctx, f.path));
        if (!strstr(mc_error_message(r.ctx), changes[i][2]))
            fail_msg("no \"%s\" in: %s", changes[i][2], mc_error_message(r.ctx));
        mc_clear_error(r.ctx);
    }
    for (size_t size = 0; size + 1 < strlen(whole); size += 7) { /* cut off anywhere */
        write_bytes(path, whole, size);
        assert_null(mc_checkpoint_open(r.ctx, f.path));
        assert_error(r.ctx, MC_ERR_FORMAT, "training.json");
    }
    write_text(path, whole);
    assert_non_null(mc_checkpoint_open(r.ctx, f.path));
    mc_context_free(r.ctx);
    temp_folder_free(&f);
}

/* Each single byte of a file that changes is found; the older checkpoint is taken. */
static void test_damaged_bytes(void **state)
{
    (void)state;
    temp_folder f = temp_folder_new();
    run r = new_run(1);
    save(&r, &f, 1);
    save(&r, &f, 2);
    const char *path = temp_path(&f, "checkpoint-2/model.safetensors");
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    for (long i = 0; i < info.st_size; i += 3) {
        FILE *file = fopen(path, "r+");
        assert_non_null(file);
        fseek(file, i, SEEK_SET);
        int byte = fgetc(file);
        fseek(file, i, SEEK_SET);
        fputc(byte ^ 1 << i % 8, file);
        fflush(file);
        mc_checkpoint *c = mc_checkpoint_open(r.ctx, f.path);
        assert_int_equal(mc_checkpoint_step(c), 1);
        assert_non_null(strstr(log_text, "checkpoint-2/model.safetensors: damaged"));
        mc_checkpoint_free(c);
        fseek(file, i, SEEK_SET);
        fputc(byte, file);
        fclose(file);
    }
    mc_checkpoint *c = mc_checkpoint_open(r.ctx, f.path);
    assert_int_equal(mc_checkpoint_step(c), 2);
    assert_int_equal(truncate(path, info.st_size - 1), 0);
    c = mc_checkpoint_open(r.ctx, f.path);
    assert_int_equal(mc_checkpoint_restore(c, r.optim), MC_OK);
    assert_true(exists(&f, "checkpoint-2.damaged") && !exists(&f, "checkpoint-2"));
    save(&r, &f, 2);
    assert_true(exists(&f, "checkpoint-1"));
    mc_context_free(r.ctx);
    temp_folder_free(&f);
}

/* ---- memory that runs out -------------------------------------------------------------------- */

#ifdef MC_FAULT_INJECTION
static void test_faults(void **state)
{
    (void)state;
    cJSON_InitHooks(&(cJSON_Hooks){mc_malloc, mc_free});
    temp_folder f = temp_folder_new();
    run r = new_run(1);
    save(&r, &f, 1);
    mc_checkpoint_options o = options_of(&r, 2);
    long count = 0, nth = 0;
    do {
        nth++;
        o.background = nth / 2 % 2 == 0;
        mc_fault_fail_at(nth / 4 + 1, nth % 2 == 0);
        mc_checkpoint_save(r.ctx, f.path, &o);
        mc_checkpoint_wait(r.ctx);
        count = 4 * mc_fault_count();
        mc_fault_fail_at(0, false);
        if (mc_failed(r.ctx)) assert_error(r.ctx, MC_ERR_NOMEM, "");
        mc_checkpoint *c = mc_checkpoint_open(r.ctx, f.path);
        assert_good(r.ctx);
        assert_true(mc_checkpoint_step(c) >= 1);
        mc_checkpoint_free(c);
    } while (nth <= count);
    assert_true(nth > 20);
    nth = 0;
    do {
        nth++;
        mc_fault_fail_at(nth, nth % 2 == 0);
        mc_checkpoint *c = mc_checkpoint_open(r.ctx, f.path);
        if (c) mc_checkpoint_restore(c, r.optim);
        count = mc_fault_count();
        mc_fault_fail_at(0, false);
        if (nth <= count && !mc_failed(r.ctx)) fail_msg("allocation %ld: nobody noticed", nth);
        if (mc_failed(r.ctx)) assert_error(r.ctx, MC_ERR_NOMEM, "");
        mc_checkpoint_free(c);
    } while (nth <= count);
    assert_true(exists(&f, "checkpoint-2") && exists(&f, "checkpoint-1"));
    mc_context_free(r.ctx);
    cJSON_InitHooks(NULL);
    temp_folder_free(&f);
}
#else
static void test_faults(void **state)
{
    (void)state;
    printf("SKIPPED: failing allocations (needs MC_FAULT_INJECTION)\n");
    skip();
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),    cmocka_unit_test(test_what_stays),
        cmocka_unit_test(test_best),          cmocka_unit_test(test_a_failed_save),
        cmocka_unit_test(test_loss_rows),     cmocka_unit_test(test_damaged_descriptions),
        cmocka_unit_test(test_background),    cmocka_unit_test(test_background_failure),
        cmocka_unit_test(test_damaged_bytes), cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
