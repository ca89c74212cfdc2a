#include "tools/log/run_log.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "tools/log/run_csv.h"
#include "tools/files/text.h"

enum { LINE_ROOM = 1024, JSON_ROOM = 16384 };
enum { TERMINAL_EVERY = 10 }; /* steps from line to line above a bar, by default */

static const double MEAN_WEIGHT = 0.1; /* of the newest step in step_seconds */

/* printf writes the NaN of a failed computation as "-nan" on some processors. */
static double shown(double value) { return isnan(value) ? NAN : value; }

static FILE *progress_stream(const run_log *log) { return log->progress ? log->progress : stderr; }

static void show_line(run_log *log, const char *line)
{
    if (log->silent) return;
    progress_bar_clear(&log->bar);
    mc_print_text(progress_stream(log), line);
    fputc('\n', progress_stream(log));
    fflush(progress_stream(log));
}

void run_log_line(run_log *log, const char *format, ...)
{
    char line[LINE_ROOM];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (length < (int)sizeof line) {
        show_line(log, line);
        return;
    }
    char *whole = malloc((size_t)length + 1);
    if (whole) {
        va_start(args, format);
        vsnprintf(whole, (size_t)length + 1, format, args);
        va_end(args);
    }
    show_line(log, whole ? whole : line);
    free(whole);
}

void run_log_library_line(void *user, mc_log_level level, const char *line)
{
    run_log_line(user, "%s%s", level == MC_LOG_WARNING ? "warning: " : "", line);
}

/* ---- the files ---- */

static void report_failure(run_log *log, const append_file *file, bool *reported)
{
    if (!file->status || *reported) return;
    *reported = true;
    if (!log->status) {
        log->status = file->status;
        snprintf(log->message, sizeof log->message, "%s", file->message);
    }
    run_log_line(log, "error: %s; nothing more is logged there", file->message);
}

static void fail_line(run_log *log, const char *why, const char *what)
{
    if (log->status) return;
    log->status = MC_ERR_ARGUMENT;
    snprintf(log->message, sizeof log->message, "%s%s", why, what);
}

/* Ends a JSON object of `t` and appends it as a line. */
static void write_json(run_log *log, text *t)
{
    text_add(t, "}\n");
    if (t->cut) {
        fail_line(log, "a log line is too long", "");
        return;
    }
    append_file_write(&log->jsonl, t->data, t->used);
    report_failure(log, &log->jsonl, &log->jsonl_reported);
}

/* The same of what the CSV has a row for. */
static void write_row(run_log *log, text *t)
{
    char line[JSON_ROOM], key[64];
    write_json(log, t);
    if (!log->csv.open || t->cut) return;
    text row = text_into(line, sizeof line);
    if (!run_csv_add_row(&row, t->data, key) || row.cut) {
        fail_line(log, *key ? "the CSV has no column " : "a log line is too long", key);
        return;
    }
    append_file_write(&log->csv, row.data, row.used);
    report_failure(log, &log->csv, &log->csv_reported);
}

static bool has_rows(const run_log *log) { return log->jsonl.open || log->csv.open; }

static void write_scalars(run_log *log, int64_t step, const tensorboard_scalar *scalars, size_t n)
{
    tensorboard_write(&log->board, step, scalars, n);
    report_failure(log, &log->board.file, &log->board_reported);
}

/* Adds `,"name":number`. */
static void add_member(text *t, const char *name, double value)
{
    text_add(t, ",\"%s\":", name);
    text_add_json_number(t, value);
}

/* The step of a line that we wrote, -1 if the line is not of ours or is torn. Sets *trained if the
 * line reports the step itself, rather than an evaluation or a sample after it. */
typedef int64_t step_of_fn(const char *line, bool *trained);

static int64_t step_of_line(const char *line, bool *trained)
{
    static const char start[] = "{\"step\":", of_step[] = ",\"loss\":";
    size_t length = strlen(line);
    if (strncmp(line, start, sizeof start - 1) != 0) return -1;
    if (length < 3 || strcmp(line + length - 2, "}\n") != 0) return -1;
    char number[24];
    int64_t step;
    size_t digits = strcspn(line + sizeof start - 1, ",");
    if (digits >= sizeof number) return -1;
    memcpy(number, line + sizeof start - 1, digits);
    number[digits] = '\0';
    *trained = strncmp(line + sizeof start - 1 + digits, of_step, sizeof of_step - 1) == 0;
    return text_parse_whole(number, &step) ? step : -1;
}

static mc_status refuse_to_resume(run_log *log, mc_status status, const char *path, int64_t line,
                                  const char *why)
{
    snprintf(log->message, sizeof log->message, "%s:%lld: %s", path, (long long)line, why);
    return log->status = status;
}

/* Whether a run that is resumed will write this line again. */
static bool comes_again(const run_log_options *options, int64_t step, bool trained)
{
    return step > options->resume_step ||
           (step == options->resume_step && options->eval_due && !trained);
}

/* Adds up the lines that do not come again. A torn last line is dropped; any other line that isn't
 * ours means that the file is something else, which is left alone. */
static mc_status add_kept_lines(run_log *log, FILE *file, const char *path,
                                const run_log_options *options, step_of_fn *step_of, int64_t *size)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    int64_t number = 1;
    for (; (length = getline(&line, &room, file)) > 0; number++) {
        bool trained = false;
        int64_t step = step_of(line, &trained);
        if (comes_again(options, step, trained) || (step < 0 && line[length - 1] != '\n')) break;
        if (step < 0) {
            refuse_to_resume(log, MC_ERR_FORMAT, path, number,
                             "expected a line of a run's log, to go on after it");
            break;
        }
        *size += length;
    }
    free(line);
    if (length < 0 && !feof(file))
        refuse_to_resume(log, MC_ERR_IO, path, number, "cannot read the log to resume");
    return log->status;
}

/* How much of a log is kept when a run is resumed: nothing where there is no file yet, or one that
 * is no regular file. */
static mc_status kept_size(run_log *log, const char *path, const run_log_options *options,
                           step_of_fn *step_of, int64_t *size)
{
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode)) return MC_OK;
    FILE *file = fopen(path, "re");
    if (!file) return refuse_to_resume(log, MC_ERR_IO, path, 1, strerror(errno));
    mc_status status = add_kept_lines(log, file, path, options, step_of, size);
    fclose(file);
    return status;
}

/* Opens a log of lines, anew or after those that a resumed run keeps. */
static mc_status open_lines(run_log *log, append_file *file, const char *path,
                            const run_log_options *options, step_of_fn *step_of)
{
    int64_t size = 0;
    append_file_mode mode = APPEND_FILE_ANEW;
    if (options->resume_step > 0) {
        mode = APPEND_FILE_CONTINUED;
        if (kept_size(log, path, options, step_of, &size)) return log->status;
    }
    mc_status status = append_file_init(file, path, mode);
    if (!status && file->size > size) status = append_file_cut(file, size);
    if (status) snprintf(log->message, sizeof log->message, "%s", file->message);
    return log->status = status;
}

static mc_status open_csv(run_log *log, const run_log_options *options)
{
    char header[LINE_ROOM];
    text t = text_into(header, sizeof header);
    run_csv_add_header(&t);
    mc_status status = open_lines(log, &log->csv, options->csv, options, run_csv_step_of);
    if (status || log->csv.size) return status;
    if (append_file_write(&log->csv, t.data, t.used))
        snprintf(log->message, sizeof log->message, "%s", log->csv.message);
    return log->status = log->csv.status;
}

static mc_status open_tensorboard(run_log *log, const run_log_options *options)
{
    mc_status status = tensorboard_init(&log->board, options->tensorboard, options->resume_step);
    if (status) snprintf(log->message, sizeof log->message, "%s", log->board.file.message);
    return log->status = status;
}

mc_status run_log_init(run_log *log, const run_log_options *options)
{
    *log = (run_log){
        .progress = options->progress ? options->progress : stderr,
        .result = options->result,
        .silent = options->silent,
        .steps = options->steps,
        .steps_per_epoch = options->steps_per_epoch,
        .log_every = options->log_every,
        .last_step = progress_bar_now(),
    };
    if (log->silent) return MC_OK;
    progress_bar_init(&log->bar, log->progress);
    mc_status status = MC_OK;
    if (options->jsonl)
        status = open_lines(log, &log->jsonl, options->jsonl, options, step_of_line);
    if (!status && options->csv) status = open_csv(log, options);
    if (!status && options->tensorboard) status = open_tensorboard(log, options);
    if (status) run_log_release(log);
    return status;
}

mc_status run_log_release(run_log *log)
{
    progress_bar_clear(&log->bar);
    append_file_release(&log->jsonl);
    append_file_release(&log->csv);
    tensorboard_release(&log->board);
    if (!log->status) report_failure(log, &log->jsonl, &log->jsonl_reported);
    if (!log->status) report_failure(log, &log->csv, &log->csv_reported);
    if (!log->status) report_failure(log, &log->board.file, &log->board_reported);
    return log->status;
}

/* ---- steps ---- */

static double tokens_per_second(const run_step *step)
{
    return step->ms > 0 ? (double)step->tokens / (step->ms / 1000) : NAN;
}

/* The fields of a step in llm.c's order. */
static void describe_step(const run_step *step, progress_line *b)
{
    static const int importance[] = {0, 2, 1, 5, 3, 4}; /* loss, lr, norm, tok/s, ms, MFU */
    memcpy(b->importance, importance, sizeof importance);
    b->field_count = 6;
    snprintf(b->fields[0], sizeof b->fields[0], "loss %7.6f", shown(step->loss));
    snprintf(b->fields[1], sizeof b->fields[1], "norm %6.4f", shown(step->grad_norm));
    snprintf(b->fields[2], sizeof b->fields[2], "lr %.2e", shown(step->lr));
    if (step->ms > 0) snprintf(b->fields[3], sizeof b->fields[3], "%.2f ms", step->ms);
    if (step->mfu > 0)
        snprintf(b->fields[4], sizeof b->fields[4], "%.1f%%%s%s MFU", 100 * step->mfu,
                 step->peak ? " " : "", step->peak ? step->peak : "");
    if (step->tokens > 0 && step->ms > 0)
        snprintf(b->fields[5], sizeof b->fields[5], "%.0f tok/s", tokens_per_second(step));
}

static void show_step_line(run_log *log, const run_step *step, const progress_line *b)
{
    char line[LINE_ROOM];
    text t = text_into(line, sizeof line);
    text_add(&t, "step %4lld", (long long)step->step);
    if (log->steps) text_add(&t, "/%lld", (long long)log->steps);
    for (int i = 0; i < b->field_count; i++)
        if (b->fields[i][0]) text_add(&t, " | %s", b->fields[i]);
    if (step->skipped) text_add(&t, " | overflow, skipped, loss scale %g", step->loss_scale);
    show_line(log, line);
}

/* Keeps the mean time from step to step, which holds loading as well, but not evaluations. */
static void measure_step(run_log *log, const run_step *step)
{
    double time = progress_bar_now(), seconds = time - log->last_step;
    if (log->step_seconds > 0)
        log->step_seconds += MEAN_WEIGHT * (seconds - log->step_seconds);
    else /* before the first step models were loaded */
        log->step_seconds = step->ms > 0 ? step->ms / 1000 : seconds;
    log->last_step = time;
}

/* Whether a step gets a line of its own, which stays. */
static bool is_line(const run_log *log, const run_step *step)
{
    int64_t every = log->log_every ? log->log_every : log->bar.on ? TERMINAL_EVERY : 1;
    int64_t epoch = log->steps_per_epoch;
    return step->step % every == 0 || step->step == log->steps || step->skipped ||
           (epoch > 0 && step->step % epoch == 0);
}

static void show_step(run_log *log, const run_step *step)
{
    progress_line b = {.label = "", .unit = "step", .done = step->step, .total = log->steps};
    describe_step(step, &b);
    log->counting = NULL;
    if (is_line(log, step)) show_step_line(log, step, &b);
    if (!log->bar.on) return;
    measure_step(log, step);
    b.seconds = log->step_seconds;
    bool last = step->step == log->steps;
    if (!last && progress_bar_is_due(&log->bar)) progress_bar_draw(&log->bar, &b);
}

/* The rate and the MFU are NaN where they are not known; these and a time that was not measured are
 * left out. */
static void write_step_scalars(run_log *log, const run_step *step, double rate, double mfu)
{
    tensorboard_scalar scalars[9] = {
        {"train/loss", step->loss},
        {"train/grad_norm", step->grad_norm},
        {"train/lr", step->lr},
        {"train/loss_scale", step->loss_scale},
    };
    size_t n = 4;
    if (step->ms > 0) scalars[n++] = (tensorboard_scalar){"train/ms", step->ms};
    if (!isnan(rate)) scalars[n++] = (tensorboard_scalar){"train/tokens_per_s", rate};
    if (!isnan(mfu)) scalars[n++] = (tensorboard_scalar){"train/mfu", mfu};
    if (step->fp8) {
        scalars[n++] = (tensorboard_scalar){"train/fp8_saturated", step->fp8_saturated};
        scalars[n++] = (tensorboard_scalar){"train/fp8_vanished", step->fp8_vanished};
    }
    write_scalars(log, step->step, scalars, n);
}

mc_status run_log_step(run_log *log, const run_step *step)
{
    if (log->silent) return MC_OK;
    show_step(log, step);
    double rate = tokens_per_second(step), mfu = step->mfu > 0 ? step->mfu : NAN;
    if (has_rows(log)) {
        char line[LINE_ROOM];
        text t = text_into(line, sizeof line);
        text_add(&t, "{\"step\":%lld", (long long)step->step);
        add_member(&t, "loss", step->loss);
        add_member(&t, "grad_norm", step->grad_norm);
        add_member(&t, "lr", step->lr);
        add_member(&t, "loss_scale", step->loss_scale);
        add_member(&t, "ms", step->ms > 0 ? step->ms : NAN);
        add_member(&t, "tokens_per_s", rate);
        add_member(&t, "mfu", mfu);
        if (step->fp8) add_member(&t, "fp8_saturated", step->fp8_saturated);
        if (step->fp8) add_member(&t, "fp8_vanished", step->fp8_vanished);
        write_row(log, &t);
    }
    write_step_scalars(log, step, rate, mfu);
    return log->status;
}

/* ---- evaluations ---- */

static void show_eval(run_log *log, const run_eval *eval)
{
    char line[LINE_ROOM];
    text t = text_into(line, sizeof line);
    text_add(&t, "eval ");
    if (eval->step > 0) text_add(&t, "%4lld", (long long)eval->step);
    if (eval->step > 0 && log->steps) text_add(&t, "/%lld", (long long)log->steps);
    if (eval->epoch > 0) text_add(&t, " | epoch %lld", (long long)eval->epoch);
    text_add(&t, "%s%s", eval->step > 0 || eval->epoch > 0 ? " | " : "", eval->split);
    const char *before = " ";
    for (int i = 0; i < eval->metric_count; i++) {
        if (isnan(eval->metrics[i].value)) continue;
        text_add(&t, "%s%s %.4f", before, eval->metrics[i].name, eval->metrics[i].value);
        before = " | ";
    }
    before = " | recall";
    for (int i = 0; i < eval->classes; i++) {
        if (isnan(eval->recall[i])) continue; /* of a class without rows */
        text_add(&t, "%s %s %.4f", before, eval->class_names[i], eval->recall[i]);
        before = "";
    }
    text_add(&t, " | n %lld", (long long)eval->n);
    if (eval->seconds > 0) text_add(&t, " | %.2f s", eval->seconds);
    show_line(log, line);
}

static void write_eval_json(run_log *log, const run_eval *eval)
{
    char line[JSON_ROOM];
    text t = text_into(line, sizeof line);
    text_add(&t, "{\"step\":%lld,\"epoch\":%lld,\"split\":", (long long)eval->step,
             (long long)eval->epoch);
    text_add_json_string(&t, eval->split);
    text_add(&t, ",\"n\":%lld", (long long)eval->n);
    for (int i = 0; i < eval->metric_count; i++)
        add_member(&t, eval->metrics[i].name, eval->metrics[i].value);
    for (int i = 0; i < eval->classes; i++) {
        text_add(&t, i ? "," : ",\"recall\":{");
        text_add_json_string(&t, eval->class_names[i]);
        text_add(&t, ":");
        text_add_json_number(&t, eval->recall[i]);
    }
    if (eval->classes) text_add(&t, "}");
    write_row(log, &t);
}

static void write_eval_scalars(run_log *log, const run_eval *eval)
{
    char tags[RUN_EVAL_CLASSES + RUN_METRICS][256];
    tensorboard_scalar scalars[RUN_EVAL_CLASSES + RUN_METRICS];
    size_t n = 0;
    for (int i = 0; i < eval->metric_count; i++) {
        if (isnan(eval->metrics[i].value)) continue;
        snprintf(tags[n], sizeof tags[n], "eval/%s", eval->metrics[i].name);
        scalars[n] = (tensorboard_scalar){tags[n], eval->metrics[i].value};
        n++;
    }
    for (int i = 0; i < eval->classes; i++) {
        if (isnan(eval->recall[i])) continue;
        snprintf(tags[n], sizeof tags[n], "eval/recall_%s", eval->class_names[i]);
        scalars[n] = (tensorboard_scalar){tags[n], eval->recall[i]};
        n++;
    }
    write_scalars(log, eval->step, scalars, n);
}

mc_status run_log_eval(run_log *log, const run_eval *eval)
{
    if (eval->classes < 0 || eval->classes > RUN_EVAL_CLASSES || eval->metric_count > RUN_METRICS)
        return MC_ERR_ARGUMENT;
    if (log->silent) return MC_OK;
    show_eval(log, eval);
    if (has_rows(log)) write_eval_json(log, eval);
    if (log->board.file.open) write_eval_scalars(log, eval);
    log->counting = NULL;
    log->last_step = progress_bar_now();
    return log->status;
}

mc_status run_log_validation(run_log *log, const run_validation *v)
{
    if (log->silent) return MC_OK;
    char line[LINE_ROOM];
    text t = text_into(line, sizeof line);
    text_add(&t, "val  %4lld", (long long)v->step);
    if (log->steps) text_add(&t, "/%lld", (long long)log->steps);
    text_add(&t, " | loss %7.6f | %lld tokens", shown(v->loss), (long long)v->tokens);
    if (v->seconds > 0) text_add(&t, " | %.2f s", v->seconds);
    show_line(log, line);
    if (has_rows(log)) {
        t = text_into(line, sizeof line);
        text_add(&t, "{\"step\":%lld,\"split\":\"val\"", (long long)v->step);
        add_member(&t, "loss", v->loss);
        text_add(&t, ",\"tokens\":%lld", (long long)v->tokens);
        write_row(log, &t);
    }
    write_scalars(log, v->step, &(tensorboard_scalar){"eval/loss", v->loss}, 1);
    log->counting = NULL;
    log->last_step = progress_bar_now();
    return log->status;
}

mc_status run_log_sample(run_log *log, int64_t step, const char *sample)
{
    if (log->silent) return MC_OK;
    run_log_line(log, "text %4lld | %s", (long long)step, sample);
    log->last_step = progress_bar_now();
    if (!log->jsonl.open) return log->status;
    size_t room = 64 + 6 * strlen(sample); /* a byte takes six characters at most */
    char *line = malloc(room);
    if (!line) return log->status = MC_ERR_NOMEM;
    text t = text_into(line, room);
    text_add(&t, "{\"step\":%lld,\"sample\":", (long long)step);
    text_add_json_string(&t, sample);
    write_json(log, &t);
    free(line);
    return log->status;
}

void run_log_progress(run_log *log, const char *what, const char *unit, int64_t done, int64_t total)
{
    if (log->silent || !log->bar.on) return;
    double time = progress_bar_now();
    log->last_step = time;
    if (!log->counting || strcmp(log->counting, what) != 0) {
        log->counting = what;
        log->counting_since = time;
        log->counting_from = done;
    }
    if (done < total && !progress_bar_is_due(&log->bar)) return;
    progress_line b = {.label = what, .unit = unit, .done = done, .total = total};
    if (done > log->counting_from)
        b.seconds = (time - log->counting_since) / (double)(done - log->counting_from);
    progress_bar_draw(&log->bar, &b);
}

/* ---- the result ---- */

static mc_status end_result(run_log *log, FILE *out)
{
    if (fflush(out) == 0 && !ferror(out)) return log->status;
    if (!log->status) {
        log->status = MC_ERR_IO;
        snprintf(log->message, sizeof log->message, "cannot write the result line");
    }
    run_log_line(log, "error: cannot write the result line");
    return log->status;
}

static FILE *begin_result(run_log *log)
{
    progress_bar_clear(&log->bar);
    fflush(progress_stream(log));
    return log->result ? log->result : stdout;
}

mc_status run_log_result(run_log *log, const run_result *result)
{
    if (log->silent) return MC_OK;
    FILE *out = begin_result(log);
    fprintf(out, "result task=%s", result->task);
    for (int i = 0; i < result->metric_count; i++)
        if (!isnan(result->metrics[i].value))
            fprintf(out, " %s=%.4f", result->metrics[i].name, result->metrics[i].value);
    fprintf(out, " n=%lld train_seconds=%.1f%s%s\n", (long long)result->n, result->train_seconds,
            result->extra ? " " : "", result->extra ? result->extra : "");
    return end_result(log, out);
}

mc_status run_log_result_line(run_log *log, const char *format, ...)
{
    if (log->silent) return MC_OK;
    FILE *out = begin_result(log);
    va_list args;
    va_start(args, format);
    vfprintf(out, format, args);
    va_end(args);
    fputc('\n', out);
    return end_result(log, out);
}
