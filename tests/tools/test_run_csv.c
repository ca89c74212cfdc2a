/* A run's metrics as CSV: the same fields as the JSON Lines, one header, going on after a step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "tests/temp_folder.h"
#include "tools/log/run_csv.h"
#include "tools/log/run_log.h"

#define HEADER                                                                                   \
    "step,epoch,split,loss,grad_norm,lr,loss_scale,ms,mfu,tokens_per_s,n,tokens,accuracy,f1,em," \
    "rougeL,pearson,spearman,mse,perplexity,val_loss,recall,"                                    \
    "fp8_saturated,fp8_vanished\n"

static temp_folder folder;
static char path[600];

static int make_folder(void **state)
{
    (void)state;
    folder = temp_folder_new();
    snprintf(path, sizeof path, "%s", temp_path(&folder, "log.csv"));
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    temp_folder_free(&folder);
    return 0;
}

static void expect_file(const char *expected)
{
    static char content[1 << 14];
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    content[fread(content, 1, sizeof content - 1, file)] = '\0';
    fclose(file);
    assert_string_equal(content, expected);
}

static void write_step(run_log *log, int64_t step)
{
    assert_int_equal(run_log_step(log, &(run_step){.step = step,
                                                   .loss = 0.5,
                                                   .grad_norm = 2,
                                                   .lr = 5e-5,
                                                   .loss_scale = 1,
                                                   .ms = 100,
                                                   .tokens = 50}),
                     MC_OK);
}

static void open_log(run_log *log, FILE *progress, int64_t resume_step)
{
    run_log_options o = {.csv = path, .resume_step = resume_step, .progress = progress};
    assert_int_equal(run_log_init(log, &o), MC_OK);
}

static void test_rows(void **state)
{
    (void)state;
    const run_metric metrics[] = {{"accuracy", 0.75}, {"f1", 0.5}, {"val_loss", 0.25}};
    const char *const classes[] = {"no", "ja, \"klar\""};
    const double recall[] = {0.5, 1};
    FILE *quiet = fopen("/dev/null", "w");
    run_log log;
    open_log(&log, quiet, 0);
    write_step(&log, 1);
    write_step(&log, 2);
    run_log_eval(&log, &(run_eval){.step = 2,
                                   .epoch = 1,
                                   .split = "val",
                                   .n = 4,
                                   .metrics = metrics,
                                   .metric_count = 3,
                                   .classes = 2,
                                   .class_names = classes,
                                   .recall = recall});
    run_log_validation(&log, &(run_validation){.step = 2, .loss = 1.5, .tokens = 64});
    run_log_sample(&log, 2, "a sample is no metric");
    assert_int_equal(run_log_release(&log), MC_OK);
    expect_file(HEADER "1,,,0.5,2,5e-05,1,100,,500,,,,,,,,,,,,,,\n"
                       "2,,,0.5,2,5e-05,1,100,,500,,,,,,,,,,,,,,\n"
                       "2,1,val,,,,,,,,4,,0.75,0.5,,,,,,,0.25,"
                       "\"{\"\"no\"\":0.5,\"\"ja, \\\"\"klar\\\"\"\"\":1}\",,\n"
                       "2,,val,1.5,,,,,,,,64,,,,,,,,,,,,\n");
    open_log(&log, quiet, 1); /* goes on after step 1 */
    write_step(&log, 2);
    assert_int_equal(run_log_release(&log), MC_OK);
    expect_file(HEADER "1,,,0.5,2,5e-05,1,100,,500,,,,,,,,,,,,,,\n"
                       "2,,,0.5,2,5e-05,1,100,,500,,,,,,,,,,,,,,\n");
    fclose(quiet);
}

/* Rows of an evaluation that comes again are dropped, and those of later steps. */
static void test_eval_due(void **state)
{
    (void)state;
    const run_validation validation = {.step = 2, .loss = 1.5, .tokens = 64};
    FILE *quiet = fopen("/dev/null", "w");
    run_log log;
    open_log(&log, quiet, 0);
    write_step(&log, 1);
    run_log_validation(&log, &(run_validation){.step = 1, .loss = 2, .tokens = 64});
    write_step(&log, 2);
    run_log_validation(&log, &validation);
    write_step(&log, 3);
    assert_int_equal(run_log_release(&log), MC_OK);
    run_log_options o = {.csv = path, .resume_step = 2, .eval_due = true, .progress = quiet};
    assert_int_equal(run_log_init(&log, &o), MC_OK);
    run_log_validation(&log, &validation);
    assert_int_equal(run_log_release(&log), MC_OK);
    expect_file(HEADER "1,,,0.5,2,5e-05,1,100,,500,,,,,,,,,,,,,,\n"
                       "1,,val,2,,,,,,,,64,,,,,,,,,,,,\n"
                       "2,,,0.5,2,5e-05,1,100,,500,,,,,,,,,,,,,,\n"
                       "2,,val,1.5,,,,,,,,64,,,,,,,,,,,,\n");
    fclose(quiet);
}

/* A torn last row is dropped; another file is left alone. */
static void test_resuming(void **state)
{
    (void)state;
    FILE *quiet = fopen("/dev/null", "w");
    run_log log;
    write_text(path, HEADER "1,,,0.5,2,5e-05,1,100,,500,,,,,,,,,,,,,,\n2,,,0.");
    open_log(&log, quiet, 5);
    write_step(&log, 10);
    write_step(&log, 11);
    assert_int_equal(run_log_release(&log), MC_OK);
    open_log(&log, quiet, 10); /* whose row is found again */
    assert_int_equal(run_log_release(&log), MC_OK);
    expect_file(HEADER "1,,,0.5,2,5e-05,1,100,,500,,,,,,,,,,,,,,\n"
                       "10,,,0.5,2,5e-05,1,100,,500,,,,,,,,,,,,,,\n");
    write_text(path, "name,value\nx,1\n");
    run_log_options o = {.csv = path, .resume_step = 5, .progress = quiet};
    assert_int_equal(run_log_init(&log, &o), MC_ERR_FORMAT);
    expect_file("name,value\nx,1\n");
    unlink(path);
    open_log(&log, quiet, 5); /* nothing is there yet */
    assert_int_equal(run_log_release(&log), MC_OK);
    expect_file(HEADER);
    fclose(quiet);
}

static void test_unknown_key(void **state)
{
    (void)state;
    char line[512], key[64];
    text t = text_into(line, sizeof line);
    assert_false(run_csv_add_row(&t, "{\"step\":1,\"bleu\":2}", key));
    assert_string_equal(key, "bleu");
    bool trained = false;
    assert_int_equal(run_csv_step_of("12,,,0.5\n", &trained), 12);
    assert_true(trained);
    assert_int_equal(run_csv_step_of("12,1,val,\n", &trained), 12);
    assert_false(trained);
    assert_int_equal(run_csv_step_of("12,,val,0.5\n", &trained), 12);
    assert_false(trained);
    assert_int_equal(run_csv_step_of("12,,,", &trained), -1);
    assert_int_equal(run_csv_step_of("x,1\n", &trained), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_eval_due),
        cmocka_unit_test(test_resuming),
        cmocka_unit_test(test_unknown_key),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
