/* What a run shows: step lines or a progress bar, JSON Lines, TensorBoard, and the result line.
 *
 *     run_log log;
 *     if (run_log_init(&log, &(run_log_options){ .steps = 266, .steps_per_epoch = 133,
 *                                                .jsonl = "log.jsonl", .tensorboard = "runs" })) {
 *         fprintf(stderr, "error: %s\n", log.message);
 *         return EXIT_RUN_FAILED;
 *     }
 *     ...
 *     run_log_step(&log, &(run_step){ .step = 12, .loss = loss, .grad_norm = norm, .lr = lr,
 *                                     .loss_scale = 1, .ms = ms, .tokens = tokens });
 *     run_log_eval(&log, &(run_eval){ .step = 133, .epoch = 1, .split = "val", ... });
 *     ...
 *     run_log_result(&log, &(run_result){ .task = "BoolQ", .accuracy = 0.963, ... });
 *     mc_status status = run_log_release(&log);
 *
 * Progress goes to stderr. On a terminal it is a bar in one line, updated in place, with the rate
 * and the time left. Above it the lines of every log_every-th step, of an epoch's last step, of
 * steps that were skipped and of evaluations stay, so that the course of a run can be scrolled
 * back. Elsewhere, and where TERM is "dumb" or HF_HUB_DISABLE_PROGRESS_BARS is 1, ON, YES or TRUE,
 * there are these lines alone, in llm.c's shape:
 *
 *     step   12/266 | loss 0.693147 | norm 3.2145 | lr 5.00e-05 | 812.34 ms | 5932 tok/s
 *
 * NO_COLOR takes the colours away. stdout gets nothing but the result line.
 *
 * Failures. Files that can't be opened fail run_log_init, before any work is done. A write that
 * fails later (a full disk) doesn't stop the run: it is shown once, nothing more is written to that
 * file, whole records stay readable, and `status` and `message` keep the first such failure. */
#ifndef MC_TOOLS_RUN_LOG_H
#define MC_TOOLS_RUN_LOG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "core/base/context.h"
#include "tools/files/append_file.h"
#include "tools/log/progress_bar.h"
#include "tools/log/tensorboard.h"

typedef struct run_log_options {
    int64_t steps;           /* the last step's number; 0: unknown */
    int64_t steps_per_epoch; /* 0: unknown */
    int64_t log_every;       /* steps from line to line; 0: 10 above a bar, else 1 */
    int64_t resume_step;     /* > 0: the run goes on after this step; the files' lines up to it are
                                kept, later ones dropped. 0: a new run, the JSON Lines anew */
    bool eval_due;     /* with resume_step: the run begins with the evaluation after that step,
                                whose lines of an earlier attempt are dropped too */
    const char *jsonl; /* path, NULL: none */
    const char *csv;   /* the same as a table (tools/log/run_csv.h), without samples; NULL: none */
    const char *tensorboard; /* folder, NULL: none */
    bool silent;             /* shows and writes nothing (any rank but 0) */
    FILE *progress;          /* NULL: stderr */
    FILE *result;            /* NULL: stdout */
} run_log_options;

/* Zero-initialised it is a log of plain lines on stderr, without files. */
typedef struct run_log {
    FILE *progress, *result;
    bool silent;
    progress_bar bar;
    int64_t steps, steps_per_epoch, log_every;
    double step_seconds;  /* running mean of the time between steps, 0 at first */
    double last_step;     /* when the last step, or what isn't training, ended (seconds) */
    const char *counting; /* what run_log_progress counts, and since when, from which number */
    double counting_since;
    int64_t counting_from;
    append_file jsonl, csv;
    tensorboard board;
    bool jsonl_reported, csv_reported, board_reported; /* that writing to it failed */
    mc_status status;
    char message[APPEND_FILE_PATH + 128];
} run_log;

typedef struct run_step {
    int64_t step;      /* from 1 */
    double loss;       /* mean over the global batch */
    double grad_norm;  /* before clipping */
    double lr;         /* the rate that this step used */
    double loss_scale; /* 1 if there is none */
    double ms;         /* wall time of the step; NaN: not measured, and not shown */
    int64_t tokens;    /* computed in the step; tokens / ms is shown as tok/s */
    double mfu;        /* share of the peak rate, 0 .. 1; 0: the peak is unknown */
    const char *peak;  /* whose peak that is, "bf16"; NULL without mfu */
    bool skipped;      /* the gradients overflowed and no weight changed */
    bool fp8;          /* the next two are shown */
    double fp8_saturated, fp8_vanished; /* shares of the elements cast to 8 bits: mc_step_report */
} run_step;

enum { RUN_EVAL_CLASSES = 16, RUN_METRICS = 8 };

typedef struct run_metric {
    const char *name; /* "accuracy" */
    double value;     /* NaN: it was not found */
} run_metric;

typedef struct run_eval {
    int64_t step;              /* the last training step before it; 0 outside training */
    int64_t epoch;             /* epochs finished; 0 outside training */
    const char *split;         /* "val", "train", ... */
    int64_t n;                 /* rows */
    const run_metric *metrics; /* (metric_count), at most RUN_METRICS */
    int metric_count;
    int classes;                    /* at most RUN_EVAL_CLASSES */
    const char *const *class_names; /* (classes) */
    const double *recall;           /* (classes), 0 .. 1; NaN for a class without rows */
    double seconds;                 /* wall time; 0: not shown */
} run_eval;

/* A language model's loss on text that is not trained on. */
typedef struct run_validation {
    int64_t step;   /* the last training step before it */
    double loss;    /* mean over the tokens */
    int64_t tokens; /* that were predicted */
    double seconds;
} run_validation;

typedef struct run_result {
    const char *task;
    const run_metric *metrics; /* (metric_count); those that are NaN are left out */
    int metric_count;
    int64_t n;
    double train_seconds; /* 0 after an evaluation alone */
    const char *extra;    /* further `key=value` pairs, separated by spaces; NULL: none */
} run_result;

/* Opens the files. On failure the log is closed, and message says why; log->status is returned. */
mc_status run_log_init(run_log *log, const run_log_options *options);

/* A finished step: updates the bar or prints the line, and appends to the files. A JSON line is
 *     {"step":12,"loss":0.693147,"grad_norm":3.2145,"lr":5e-05,"loss_scale":1,"ms":812.34,
 *      "tokens_per_s":5932.1,"mfu":null}
 * where NaN and infinities are null; the tags are train/loss, train/grad_norm, train/lr,
 * train/loss_scale, train/ms, train/tokens_per_s and train/mfu. With fp8 both also have
 * fp8_saturated and fp8_vanished. Returns log->status. */
mc_status run_log_step(run_log *log, const run_step *step);

/* An evaluation. A JSON line is {"step":266,"epoch":2,"split":"val","n":3270,"accuracy":0.66,
 * "f1":0.73,"recall":{"no":0.4,"yes":0.8}}; the tags are eval/accuracy, eval/f1,
 * eval/recall_<class>. Returns log->status; MC_ERR_ARGUMENT for too many or too long classes. */
mc_status run_log_eval(run_log *log, const run_eval *eval);

/* A validation. A JSON line is {"step":250,"split":"val","loss":3.41,"tokens":81920}; the tag is
 * eval/loss. Returns log->status. */
mc_status run_log_validation(run_log *log, const run_validation *validation);

/* A text that the model wrote after a step: lines of its own on the progress stream, and a JSON
 * line {"step":250,"sample":"Once upon"}. Returns log->status. */
mc_status run_log_sample(run_log *log, int64_t step, const char *sample);

/* A bar for work that is counted but has no steps ("eval", "rows"); nothing where there is no bar.
 * The time up to a call doesn't count as training. `what` must stay valid: a literal. */
void run_log_progress(run_log *log, const char *what, const char *unit, int64_t done,
                      int64_t total);

/* A line of its own on the progress stream, above the bar. */
void run_log_line(run_log *log, const char *format, ...) MC_PRINTF(2, 3);
/* The same as a callback for mc_init_options.log; `user` is the run_log. */
void run_log_library_line(void *user, mc_log_level level, const char *line);

/* The last line, on stdout: `result task=BoolQ accuracy=0.9630 f1=0.9712 n=3270
 * train_seconds=81.2`. MC_ERR_IO when stdout can't be written. */
mc_status run_log_result(run_log *log, const run_result *result);

/* The same line with pairs of any kind: `result model=gpt2 steps=100 loss=3.291`. */
mc_status run_log_result_line(run_log *log, const char *format, ...) MC_PRINTF(2, 3);

/* Takes the bar off the screen and closes the files. Returns the status of the first failure. */
mc_status run_log_release(run_log *log);

#endif
