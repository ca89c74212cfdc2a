/* What a run shows: plain lines, the bar on a (pseudo) terminal, JSON Lines, the result line. */
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>
#include <cjson/cJSON.h>
#include "tools/train/interrupt.h"
#include "tools/log/run_log.h"
#include "tests/child.h"

static char folder[128];

static const char *in_folder(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* A log that shows into memory. */
typedef struct shown {
    run_log log;
    FILE *progress, *result;
    char *progress_text, *result_text;
    size_t progress_size, result_size;
} shown;

static mc_status show_init(shown *s, run_log_options options)
{
    *s = (shown){0};
    options.progress = s->progress = open_memstream(&s->progress_text, &s->progress_size);
    options.result = s->result = open_memstream(&s->result_text, &s->result_size);
    return run_log_init(&s->log, &options);
}

static void show_end(shown *s)
{
    run_log_release(&s->log);
    fclose(s->progress);
    fclose(s->result);
}

static void show_free(shown *s)
{
    free(s->progress_text);
    free(s->result_text);
}

static run_step step_at(int64_t step)
{
    return (run_step){.step = step,
                      .loss = 0.693147,
                      .grad_norm = 3.21449,
                      .lr = (double)5e-5f,
                      .loss_scale = 1,
                      .ms = 812.34,
                      .tokens = 4819};
}

static const char *const yes_no[] = {"no", "yes"};
static const double recall[] = {0.4125, 0.83};

static const run_metric metrics[] = {{"accuracy", 0.66544}, {"f1", 0.7311}};
static const run_metric no_f1[] = {{"accuracy", 0.66544}, {"f1", NAN}};
static const run_metric boolq[] = {{"accuracy", 0.963}, {"f1", 0.97119}};

static run_eval eval_at(int64_t step)
{
    return (run_eval){.step = step,
                      .epoch = 2,
                      .split = "val",
                      .n = 3270,
                      .metrics = metrics,
                      .metric_count = 2,
                      .classes = 2,
                      .class_names = yes_no,
                      .recall = recall,
                      .seconds = 12.3};
}

static void test_plain_lines(void **state)
{
    (void)state;
    shown s;
    show_init(&s, (run_log_options){.steps = 266, .steps_per_epoch = 133});
    run_step step = step_at(12), odd = step_at(13), untimed = step_at(14);
    untimed.ms = NAN;
    odd.loss = -NAN;
    odd.grad_norm = INFINITY;
    odd.mfu = 0.475;
    odd.peak = "bf16";
    odd.skipped = true;
    odd.loss_scale = 512;
    run_eval eval = eval_at(266), alone = eval_at(0);
    alone.epoch = 0;
    alone.metrics = no_f1;
    alone.classes = 0;
    alone.seconds = 0;
    run_log_step(&s.log, &step);
    run_log_progress(&s.log, "eval", "row", 10, 100); /* shows nothing here */
    run_log_step(&s.log, &odd);
    run_log_step(&s.log, &untimed);
    run_log_eval(&s.log, &eval);
    eval.recall = (const double[]){NAN, 0.83}; /* no rows of the first class */
    run_log_eval(&s.log, &eval);
    run_log_eval(&s.log, &alone);
    run_log_line(&s.log, "saved to %s", "out");
    run_log_library_line(&s.log, MC_LOG_WARNING, "a spare tensor");
    show_end(&s);
    assert_string_equal(
        s.progress_text,
        "step   12/266 | loss 0.693147 | norm 3.2145 | lr 5.00e-05 | 812.34 ms | 5932 tok/s\n"
        "step   13/266 | loss     nan | norm    inf | lr 5.00e-05 | 812.34 ms | 47.5% bf16 MFU | "
        "5932 tok/s | overflow, skipped, loss scale 512\n"
        "step   14/266 | loss 0.693147 | norm 3.2145 | lr 5.00e-05\n"
        "eval  266/266 | epoch 2 | val accuracy 0.6654 | f1 0.7311 | recall no 0.4125 yes 0.8300 | "
        "n 3270 | 12.30 s\n"
        "eval  266/266 | epoch 2 | val accuracy 0.6654 | f1 0.7311 | recall yes 0.8300 | n 3270 | "
        "12.30 s\n"
        "eval val accuracy 0.6654 | n 3270\n"
        "saved to out\n"
        "warning: a spare tensor\n");
    assert_string_equal(s.result_text, "");
    show_free(&s);
}

/* Every third step, that of an epoch's end, the last, and one that was skipped. */
static void test_log_every(void **state)
{
    (void)state;
    shown s;
    show_init(&s, (run_log_options){.steps = 10, .steps_per_epoch = 5, .log_every = 3});
    for (int i = 1; i <= 10; i++) {
        run_step step = step_at(i);
        step.skipped = i == 4;
        run_log_step(&s.log, &step);
    }
    show_end(&s);
    static const int lines[] = {3, 4, 5, 6, 9, 10};
    const char *at = s.progress_text;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++, at = strchr(at, '\n') + 1) {
        char start[16];
        snprintf(start, sizeof start, "step %4d/10 ", lines[i]);
        assert_memory_equal(at, start, strlen(start));
    }
    assert_string_equal(at, "");
    show_free(&s);
}

static void test_result_line(void **state)
{
    (void)state;
    shown s;
    show_init(&s, (run_log_options){0});
    run_log_result(&s.log, &(run_result){"BoolQ", boolq, 2, 3270, 81.24, NULL});
    const run_metric copa[] = {{"accuracy", 0.5}, {"f1", -NAN}};
    run_log_result(&s.log, &(run_result){"COPA", copa, 2, 100, 0, "rank=0"});
    show_end(&s);
    assert_string_equal(s.result_text,
                        "result task=BoolQ accuracy=0.9630 f1=0.9712 n=3270 train_seconds=81.2\n"
                        "result task=COPA accuracy=0.5000 n=100 train_seconds=0.0 rank=0\n");
    assert_string_equal(s.progress_text, "");
    show_free(&s);
    FILE *full = fopen("/dev/full", "w");
    run_log log;
    assert_int_equal(run_log_init(&log, &(run_log_options){.result = full, .progress = full}),
                     MC_OK);
    assert_int_equal(run_log_result(&log, &(run_result){.task = "BoolQ"}), MC_ERR_IO);
    assert_int_equal(run_log_release(&log), MC_ERR_IO);
    fclose(full);
}

static void test_silent(void **state)
{
    (void)state;
    shown s;
    const char *path = in_folder("silent.jsonl");
    assert_int_equal(show_init(&s, (run_log_options){.silent = true, .jsonl = path}), MC_OK);
    run_step step = step_at(1);
    run_eval eval = eval_at(1);
    run_log_step(&s.log, &step);
    run_log_eval(&s.log, &eval);
    run_log_line(&s.log, "hello");
    run_log_result(&s.log, &(run_result){.task = "BoolQ"});
    show_end(&s);
    assert_string_equal(s.progress_text, "");
    assert_string_equal(s.result_text, "");
    assert_int_equal(access(path, F_OK), -1);
    show_free(&s);
}

/* ---- JSON Lines ---- */

static char *read_whole(const char *path)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *data = calloc(1, 1 << 16);
    size_t size = fread(data, 1, (1 << 16) - 1, file);
    assert_true(size < (1 << 16) - 1);
    fclose(file);
    return data;
}

/* Parses each line as JSON; `steps` (64 of room) gets each line's step. */
static int parse_lines(const char *path, cJSON **lines, int64_t *steps)
{
    char *data = read_whole(path);
    int count = 0;
    for (char *at = data, *end; *at; at = end + 1) {
        end = strchr(at, '\n');
        assert_non_null(end); /* no torn line */
        *end = '\0';
        assert_true(count < 64);
        lines[count] = cJSON_ParseWithOpts(at, NULL, true);
        assert_non_null(lines[count]);
        steps[count] = (int64_t)cJSON_GetObjectItem(lines[count], "step")->valuedouble;
        count++;
    }
    free(data);
    return count;
}

static void free_lines(cJSON **lines, int count)
{
    for (int i = 0; i < count; i++) cJSON_Delete(lines[i]);
}

static void test_json_lines(void **state)
{
    (void)state;
    shown s;
    const char *path = in_folder("sub/log.jsonl");
    static const char *const odd_names[] = {"say \"no\"\\", "tab\tß"};
    static const double odd_recall[] = {NAN, 1};
    assert_int_equal(show_init(&s, (run_log_options){.jsonl = path}), MC_OK);
    run_step step = step_at(12), odd = step_at(13);
    odd.loss = NAN;
    odd.grad_norm = -INFINITY;
    odd.ms = NAN; /* not measured */
    odd.mfu = 0.5;
    run_eval eval = eval_at(266), names = eval_at(267);
    names.class_names = odd_names;
    names.recall = odd_recall;
    names.metrics = no_f1;
    run_log_step(&s.log, &step);
    run_log_step(&s.log, &odd);
    run_log_eval(&s.log, &eval);
    run_log_eval(&s.log, &names);
    char *data = read_whole(path); /* flushed before the end of the run */
    assert_memory_equal(data,
                        "{\"step\":12,\"loss\":0.693147,\"grad_norm\":3.21449,\"lr\":5e-05,"
                        "\"loss_scale\":1,\"ms\":812.34,\"tokens_per_s\":5932.2",
                        strlen("{\"step\":12,\"loss\":0.693147,\"grad_norm\":3.21449,\"lr\":5e-05,"
                               "\"loss_scale\":1,\"ms\":812.34,\"tokens_per_s\":5932.2"));
    assert_non_null(strstr(data, ",\"mfu\":null}\n"));
    assert_non_null(strstr(data,
                           "{\"step\":13,\"loss\":null,\"grad_norm\":null,\"lr\":5e-05,"
                           "\"loss_scale\":1,\"ms\":null,\"tokens_per_s\":null,\"mfu\":0.5}\n"));
    assert_non_null(strstr(data, "{\"step\":266,\"epoch\":2,\"split\":\"val\",\"n\":3270,"
                                 "\"accuracy\":0.66544,\"f1\":0.7311,"
                                 "\"recall\":{\"no\":0.4125,\"yes\":0.83}}\n"));
    free(data);
    show_end(&s);
    cJSON *lines[64];
    int64_t steps[64];
    assert_int_equal(parse_lines(path, lines, steps), 4);
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(lines[3], "f1")));
    cJSON *recalls = cJSON_GetObjectItem(lines[3], "recall");
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(recalls, odd_names[0])));
    assert_int_equal(cJSON_GetObjectItem(recalls, odd_names[1])->valuedouble, 1);
    free_lines(lines, 4);
    show_free(&s);
}

/* Logs steps [from, to] with an evaluation at every tenth. */
static void log_steps(const char *path, int64_t resume_step, int64_t from, int64_t to)
{
    shown s;
    assert_int_equal(show_init(&s, (run_log_options){.jsonl = path, .resume_step = resume_step}),
                     MC_OK);
    for (int64_t i = from; i <= to; i++) {
        run_step step = step_at(i);
        run_eval eval = eval_at(i);
        run_log_step(&s.log, &step);
        if (i % 10 == 0) run_log_eval(&s.log, &eval);
    }
    show_end(&s);
    show_free(&s);
}

static void check_steps(const char *path, int64_t last)
{
    cJSON *lines[64];
    int64_t steps[64];
    int count = parse_lines(path, lines, steps), at = 0;
    for (int64_t i = 1; i <= last; i++) {
        assert_int_equal(steps[at++], i);
        if (i % 10 == 0) assert_int_equal(steps[at++], i);
    }
    assert_int_equal(count, at);
    free_lines(lines, count);
}

static void test_resuming(void **state)
{
    (void)state;
    const char *path = in_folder("resumed.jsonl");
    log_steps(path, 0, 1, 25);
    check_steps(path, 25);
    log_steps(path, 20, 21, 30); /* killed at 25, the checkpoint is of 20 */
    check_steps(path, 30);
    FILE *file = fopen(path, "a"); /* a torn last line */
    fputs("{\"step\":31,\"lo", file);
    fclose(file);
    log_steps(path, 30, 31, 33);
    check_steps(path, 33);
    log_steps(path, 0, 1, 5); /* a new run starts anew */
    check_steps(path, 5);
    unlink(path);
    log_steps(path, 5, 6, 7); /* resumed without the old log */
    char *data = read_whole(path);
    assert_memory_equal(data, "{\"step\":6,", 10);
    free(data);
}

/* Killed in the evaluation after a step, or after it: it comes again, and so its line does not. */
static void test_resuming_before_eval(void **state)
{
    (void)state;
    const char *path = in_folder("due.jsonl");
    log_steps(path, 0, 1, 25);
    shown s;
    run_eval eval = eval_at(20);
    const run_log_options o = {.jsonl = path, .resume_step = 20, .eval_due = true};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(show_init(&s, o), MC_OK);
        run_log_eval(&s.log, &eval);
        show_end(&s);
        show_free(&s);
        check_steps(path, 20);
    }
}

static void test_resuming_other_file(void **state)
{
    (void)state;
    const char *path = in_folder("notes.txt");
    FILE *file = fopen(path, "w");
    fputs("{\"step\":1,\"x\":1}\nmy notes\n", file);
    fclose(file);
    shown s;
    assert_int_equal(show_init(&s, (run_log_options){.jsonl = path, .resume_step = 9}),
                     MC_ERR_FORMAT);
    assert_non_null(strstr(s.log.message, "notes.txt:2: expected a line of a run's log"));
    show_end(&s);
    show_free(&s);
    char *data = read_whole(path);
    assert_string_equal(data, "{\"step\":1,\"x\":1}\nmy notes\n");
    free(data);
}

/* ---- failures ---- */

static void test_unusable_files(void **state)
{
    (void)state;
    shown s;
    assert_int_equal(show_init(&s, (run_log_options){.jsonl = "/dev/null/log.jsonl"}), MC_ERR_IO);
    assert_non_null(strstr(s.log.message, "/dev/null/log.jsonl: cannot open for writing: "));
    show_end(&s);
    show_free(&s);
    assert_int_equal(show_init(&s, (run_log_options){.jsonl = folder}), MC_ERR_IO);
    assert_non_null(strstr(s.log.message, "cannot open for writing: Is a directory"));
    show_end(&s);
    show_free(&s);
    assert_int_equal(show_init(&s, (run_log_options){.tensorboard = "/dev/null/runs"}), MC_ERR_IO);
    show_end(&s);
    show_free(&s);
}

static int count_of(const char *haystack, const char *needle)
{
    int count = 0;
    for (; (haystack = strstr(haystack, needle)); haystack++) count++;
    return count;
}

static void test_full_device(void **state)
{
    (void)state;
    shown s;
    assert_int_equal(show_init(&s, (run_log_options){.jsonl = "/dev/full"}), MC_OK);
    for (int i = 1; i <= 3; i++) {
        run_step step = step_at(i);
        assert_int_equal(run_log_step(&s.log, &step), MC_ERR_IO);
    }
    run_log_result(&s.log, &(run_result){.task = "BoolQ"}); /* the run goes on to its end */
    assert_string_equal(s.log.message, "/dev/full: cannot write: No space left on device");
    show_end(&s);
    assert_int_equal(count_of(s.progress_text, "error: /dev/full: cannot write: No space left on "
                                               "device; nothing more is logged there\n"),
                     1);
    assert_int_equal(count_of(s.progress_text, "step "), 3);
    assert_int_equal(count_of(s.result_text, "result task=BoolQ"), 1);
    show_free(&s);
}

static void test_disk_fills_up(void **state)
{
    (void)state;
    const char *path = in_folder("filling.jsonl");
    struct rlimit old, small;
    getrlimit(RLIMIT_FSIZE, &old);
    small = (struct rlimit){.rlim_cur = 700, .rlim_max = old.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    shown s;
    assert_int_equal(show_init(&s, (run_log_options){.jsonl = path}), MC_OK);
    setrlimit(RLIMIT_FSIZE, &small);
    int64_t good = 0;
    for (int64_t i = 1; i <= 20; i++) {
        run_step step = step_at(i);
        if (run_log_step(&s.log, &step) == MC_OK) good = i;
    }
    setrlimit(RLIMIT_FSIZE, &old);
    assert_true(good > 2 && good < 9);
    show_end(&s);
    check_steps(path, good);
    assert_int_equal(count_of(s.progress_text, "error: "), 1);
    show_free(&s);
}

/* ---- the terminal ---- */

enum { ROWS = 60, COLUMNS = 132 };

/* A terminal of `columns`: what its screen shows, and all bytes that came. */
typedef struct screen {
    int master, columns, row, column;
    char cells[ROWS][COLUMNS + 1];
    int escapes, returns;
    bool in_escape, wrapped;
} screen;

static void put_byte(screen *s, char c)
{
    if (s->in_escape) {
        s->in_escape = c == '[' || c == ';' || (c >= '0' && c <= '9');
        if (!s->in_escape) assert_int_equal(c, 'm'); /* colours only */
    } else if (c == '\033') {
        s->in_escape = true;
        s->escapes++;
    } else if (c == '\r') {
        s->column = 0;
        s->returns++;
    } else if (c == '\n') {
        assert_true(++s->row < ROWS);
        s->column = 0;
    } else {
        if (s->column >= s->columns) {
            s->wrapped = true;
            s->row++;
            s->column = 0;
        }
        s->cells[s->row][s->column++] = c;
    }
}

static void read_screen(screen *s)
{
    char bytes[4096];
    ssize_t n;
    while ((n = read(s->master, bytes, sizeof bytes)) > 0)
        for (ssize_t i = 0; i < n; i++) put_byte(s, bytes[i]);
}

/* A row without the spaces at its end. */
static const char *row_of(screen *s, int row)
{
    char *cells = s->cells[row];
    for (int i = 0; i < COLUMNS; i++)
        if (!cells[i]) cells[i] = ' ';
    for (int i = COLUMNS; i > 0 && cells[i - 1] == ' '; i--) cells[i - 1] = '\0';
    return cells;
}

static FILE *open_terminal(screen *s, int columns)
{
    *s = (screen){.columns = columns, .master = posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK)};
    assert_true(s->master >= 0);
    assert_int_equal(grantpt(s->master), 0);
    assert_int_equal(unlockpt(s->master), 0);
    int slave = open(ptsname(s->master), O_RDWR | O_NOCTTY);
    assert_true(slave >= 0);
    struct winsize size = {.ws_col = (unsigned short)columns, .ws_row = 24};
    assert_int_equal(ioctl(slave, TIOCSWINSZ, &size), 0);
    return fdopen(slave, "w");
}

static void pause_for(long milliseconds)
{
    nanosleep(&(struct timespec){.tv_nsec = milliseconds * 1000000}, NULL);
}

/* Runs four steps of two epochs and an evaluation; `bar` gets the row as it was after step 3. */
static void run_on_terminal(screen *s, int columns, char bar[COLUMNS + 1])
{
    FILE *tty = open_terminal(s, columns);
    run_log log;
    assert_int_equal(
        run_log_init(
            &log,
            &(run_log_options){.steps = 4, .steps_per_epoch = 2, .progress = tty, .result = tty}),
        MC_OK);
    for (int i = 1; i <= 4; i++) {
        run_step step = step_at(i);
        step.ms = 110;
        run_log_step(&log, &step);
        read_screen(s);
        if (i == 3) memcpy(bar, row_of(s, s->row), COLUMNS + 1);
        pause_for(110);
    }
    run_log_progress(&log, "eval", "row", 0, 100);
    pause_for(110);
    run_log_progress(&log, "eval", "row", 50, 100);
    read_screen(s);
    if (log.bar.on) assert_memory_equal(row_of(s, s->row), "eval  50% ", 10);
    run_eval eval = eval_at(4);
    run_log_eval(&log, &eval);
    run_log_result(&log, &(run_result){"BoolQ", boolq, 2, 3270, 81.24, NULL});
    assert_int_equal(run_log_release(&log), MC_OK);
    fclose(tty);
    read_screen(s);
    close(s->master);
}

static void set_environment(const char *term, const char *no_color, const char *disable)
{
    setenv("TERM", term, 1);
    no_color ? setenv("NO_COLOR", no_color, 1) : unsetenv("NO_COLOR");
    disable ? setenv("HF_HUB_DISABLE_PROGRESS_BARS", disable, 1)
            : unsetenv("HF_HUB_DISABLE_PROGRESS_BARS");
}

static const char step_2[] =
    "step    2/4 | loss 0.693147 | norm 3.2145 | lr 5.00e-05 | 110.00 ms | "
    "43809 tok/s";
static const char step_4[] =
    "step    4/4 | loss 0.693147 | norm 3.2145 | lr 5.00e-05 | 110.00 ms | "
    "43809 tok/s";
static const char eval_4[] = "eval    4/4 | epoch 2 | val accuracy 0.6654 | f1 0.7311 | recall no "
                             "0.4125 yes 0.8300 | n 3270 | 12.30 s";
static const char result[] =
    "result task=BoolQ accuracy=0.9630 f1=0.9712 n=3270 train_seconds=81.2";

/* Only the lines that stay are on the screen at the end, and no rest of the bar. */
static void check_final_screen(screen *s)
{
    assert_string_equal(row_of(s, 0), step_2);
    assert_string_equal(row_of(s, 1), step_4);
    assert_string_equal(row_of(s, 2), eval_4);
    assert_string_equal(row_of(s, 3), result);
    assert_string_equal(row_of(s, 4), "");
    assert_int_equal(s->row, 4);
    assert_false(s->wrapped);
}

static void test_bar(void **state)
{
    (void)state;
    screen s;
    char bar[COLUMNS + 1];
    set_environment("xterm", NULL, NULL);
    run_on_terminal(&s, COLUMNS, bar);
    assert_memory_equal(bar, " 75% [======", 12);
    assert_non_null(strstr(bar, "] 3/4 "));
    assert_non_null(strstr(bar, " step/s ETA 00:00 | loss 0.693147 | norm 3.2145 | lr 5.00e-05 | "
                                "110.00 ms | 43809 tok/s"));
    assert_true(s.escapes > 0 && s.escapes % 2 == 0);
    check_final_screen(&s);
}

/* Lines of every tenth step stay above the bar, or as often as asked for. */
static void test_lines_above_bar(void **state)
{
    (void)state;
    set_environment("xterm", NULL, NULL);
    for (int every = 0; every <= 15; every += 15) {
        screen s;
        FILE *tty = open_terminal(&s, COLUMNS);
        run_log log;
        run_log_init(&log, &(run_log_options){.steps = 35, .progress = tty, .log_every = every});
        for (int i = 1; i <= 33; i++) {
            run_step step = step_at(i);
            run_log_step(&log, &step);
        }
        run_log_release(&log);
        fclose(tty);
        read_screen(&s);
        for (int i = 0, step = every ? 15 : 10; step <= 33; i++, step += every ? 15 : 10) {
            char start[24];
            snprintf(start, sizeof start, "step %4d/35 ", step);
            assert_memory_equal(row_of(&s, i), start, strlen(start));
        }
        assert_int_equal(s.row, every ? 2 : 3);
        assert_string_equal(row_of(&s, s.row), "");
        close(s.master);
    }
}

static void test_no_color(void **state)
{
    (void)state;
    screen s;
    char bar[COLUMNS + 1];
    set_environment("xterm", "1", "0");
    run_on_terminal(&s, COLUMNS, bar);
    assert_memory_equal(bar, " 75% [======", 12);
    assert_int_equal(s.escapes, 0);
    check_final_screen(&s);
}

static void test_bar_widths(void **state)
{
    (void)state;
    set_environment("xterm", NULL, NULL);
    for (int columns = 1; columns <= 131; columns++) {
        screen s;
        FILE *tty = open_terminal(&s, columns);
        run_log log;
        run_log_init(&log, &(run_log_options){.steps = 26600, .progress = tty});
        run_step step = step_at(12345);
        run_log_step(&log, &step);
        read_screen(&s);
        assert_false(s.wrapped);
        assert_int_equal(s.row, 0);
        assert_int_equal(s.column, 0);
        /* at 80 columns, the usual width, the rate, the time left, loss and lr all have room */
        const char *bar = row_of(&s, 0);
        if (columns >= 80) {
            assert_non_null(strstr(bar, " 46% [=="));
            assert_non_null(strstr(bar, " 12345/26600 1.23 step/s ETA 3:13:00 | loss 0.693147"));
            assert_non_null(strstr(bar, " | lr 5.00e-05"));
        }
        run_log_release(&log);
        fclose(tty);
        read_screen(&s);
        assert_string_equal(row_of(&s, 0), "");
        close(s.master);
    }
}

static void check_plain_on_terminal(void)
{
    screen s;
    char bar[COLUMNS + 1];
    run_on_terminal(&s, COLUMNS, bar);
    assert_int_equal(s.escapes, 0);
    assert_int_equal(s.returns, 6); /* of the line ends alone */
    assert_memory_equal(row_of(&s, 0), "step    1/4 | loss", 18);
    assert_string_equal(row_of(&s, 3), step_4);
    assert_string_equal(row_of(&s, 5), result);
}

static void test_bar_disabled(void **state)
{
    (void)state;
    set_environment("xterm", NULL, "1");
    check_plain_on_terminal();
    set_environment("xterm", NULL, "true");
    check_plain_on_terminal();
    set_environment("dumb", NULL, NULL);
    check_plain_on_terminal();
    set_environment("xterm", NULL, NULL);
}

/* ---- the whole, with TensorBoard; and signals ---- */

static void test_tensorboard_file(void **state)
{
    (void)state;
    shown s;
    assert_int_equal(show_init(&s, (run_log_options){.tensorboard = in_folder("board")}), MC_OK);
    run_step step = step_at(1);
    run_eval eval = eval_at(1);
    run_log_step(&s.log, &step);
    run_log_eval(&s.log, &eval);
    FILE *file = fopen(s.log.board.file.path, "rb");
    assert_non_null(file);
    char data[4096];
    size_t size = fread(data, 1, sizeof data, file);
    fclose(file);
    static const char *const tags[] = {"train/loss",         "train/grad_norm", "train/lr",
                                       "train/tokens_per_s", "eval/accuracy",   "eval/f1",
                                       "eval/recall_no",     "eval/recall_yes"};
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++)
        assert_non_null(memmem(data, size, tags[i], strlen(tags[i])));
    assert_null(memmem(data, size, "train/mfu", 9));
    show_end(&s);
    show_free(&s);
}

static void test_too_many_classes(void **state)
{
    (void)state;
    shown s;
    show_init(&s, (run_log_options){0});
    run_eval eval = eval_at(1);
    eval.classes = RUN_EVAL_CLASSES + 1;
    assert_int_equal(run_log_eval(&s.log, &eval), MC_ERR_ARGUMENT);
    show_end(&s);
    show_free(&s);
}

static volatile sig_atomic_t outer_count;

static void outer_handler(int number)
{
    (void)number;
    outer_count++;
}

static void test_interrupt(void **state)
{
    (void)state;
    struct sigaction outer = {.sa_handler = outer_handler};
    for (int number = 0; number < 2; number++) {
        int signal_number = number ? SIGTERM : SIGINT, other = number ? SIGINT : SIGTERM;
        sigaction(SIGINT, &outer, NULL);
        sigaction(SIGTERM, &outer, NULL);
        outer_count = 0;
        interrupt_init();
        assert_false(interrupt_requested());
        raise(signal_number);
        assert_true(interrupt_requested());
        assert_int_equal(interrupt_signal(), signal_number);
        raise(other); /* at once: the same request */
        assert_int_equal(interrupt_signal(), signal_number);
        interrupt_release();
        assert_int_equal(outer_count, 0);
        raise(signal_number);
        raise(other);
        assert_int_equal(outer_count, 2);
    }
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
}

/* Half a second after the first one a second one kills, whichever it is. */
/* Which signal ends a process that gets SIGTERM twice at once, and `last` later. */
static int ended_by(int last)
{
    int status;
    pid_t child = fork_child();
    if (child == 0) {
        interrupt_init();
        raise(SIGTERM);
        raise(SIGTERM);
        nanosleep(&(struct timespec){0, 600000000}, NULL);
        raise(last);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    return WTERMSIG(status);
}

static void test_interrupt_twice(void **state)
{
    (void)state;
    assert_int_equal(ended_by(SIGTERM), SIGTERM);
    /* a busy machine may stop the process between the first two, so that they count as two */
    int signal = SIGTERM;
    for (int tries = 0; tries < 10 && signal == SIGTERM; tries++) signal = ended_by(SIGINT);
    assert_int_equal(signal, SIGINT);
}

/* A product may have pointed the stack pointer into the heap: handlers leave it alone. */
static void test_interrupt_stack(void **state)
{
    (void)state;
    static char outer_stack[1 << 16];
    const stack_t outer = {.ss_sp = outer_stack, .ss_size = sizeof outer_stack};
    stack_t before, during;
    struct sigaction now;
    assert_int_equal(sigaltstack(&outer, &before), 0);
    interrupt_init();
    for (int i = 0; i < 2; i++) {
        sigaction(i ? SIGTERM : SIGINT, NULL, &now);
        assert_true(now.sa_flags & SA_ONSTACK);
    }
    assert_int_equal(sigaltstack(NULL, &during), 0);
    assert_false(during.ss_flags & SS_DISABLE);
    assert_ptr_not_equal(during.ss_sp, outer_stack);
    assert_true(during.ss_size >= (size_t)sysconf(_SC_SIGSTKSZ));
    raise(SIGTERM);
    assert_true(interrupt_requested());
    interrupt_release();
    assert_int_equal(sigaltstack(&before, &during), 0);
    assert_ptr_equal(during.ss_sp, outer_stack);
}

/* ---- main ---- */

static int make_folder(void **state)
{
    (void)state;
    const char *parent = getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp";
    snprintf(folder, sizeof folder, "%.80s/mc-run-log-XXXXXX", parent);
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    static const char *const names[] = {"sub", "board", ""};
    for (int i = 0; i < 3; i++) {
        char path[256], name[600];
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        DIR *listing = opendir(path);
        for (struct dirent *e; listing && (e = readdir(listing));) {
            snprintf(name, sizeof name, "%s/%s", path, e->d_name);
            unlink(name);
        }
        if (listing) closedir(listing);
        rmdir(path);
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_lines),
        cmocka_unit_test(test_log_every),
        cmocka_unit_test(test_lines_above_bar),
        cmocka_unit_test(test_result_line),
        cmocka_unit_test(test_silent),
        cmocka_unit_test(test_json_lines),
        cmocka_unit_test(test_resuming),
        cmocka_unit_test(test_resuming_before_eval),
        cmocka_unit_test(test_resuming_other_file),
        cmocka_unit_test(test_unusable_files),
        cmocka_unit_test(test_full_device),
        cmocka_unit_test(test_disk_fills_up),
        cmocka_unit_test(test_bar),
        cmocka_unit_test(test_no_color),
        cmocka_unit_test(test_bar_widths),
        cmocka_unit_test(test_bar_disabled),
        cmocka_unit_test(test_tensorboard_file),
        cmocka_unit_test(test_too_many_classes),
        cmocka_unit_test(test_interrupt),
        cmocka_unit_test(test_interrupt_twice),
        cmocka_unit_test(test_interrupt_stack),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
