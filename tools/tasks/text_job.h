/* A model on the texts of a table: what `embed` and `predict` have in common. Every chunk of rows
 * is divided among the ranks, each of which has the whole model. */
#ifndef MC_TOOLS_TEXT_JOB_H
#define MC_TOOLS_TEXT_JOB_H

#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tools/options/model_options.h"
#include "tools/files/output.h"
#include "tools/ranks.h"
#include "tools/log/run_log.h"
#include "tools/files/text_source.h"

typedef struct text_job_options {
    model_options from;
    args_list texts, pairs; /* --text and --text-pair: texts, or with --data old names of columns */
    args_list files;        /* --data */
    bool column_given;
    const char *data; /* its first, or "-" for stdin; NULL: texts are given */
    const char *text, *pair, *output;
    const char *usual, *messages; /* see text_source_options, */
    mc_chat_format chat_format;   /* and these: set before text_job_run */
    const mc_tokenizer *tok;
    int64_t max_length; /* 0: the default */
    bool overwrite;
    int device, dtype;
    ranks_options ranks;
} text_job_options;

/* --model in some `ways`, --data, --text, --output, and what they need beside. */
void text_job_add_rows(args_table *table, text_job_options *o, int ways);
/* --text-pair, which has a column too. */
void text_job_add_pair_rows(args_table *table, text_job_options *o);
/* Room for `argc` texts; and gives it back. */
void text_job_options_init(text_job_options *o, int argc);
void text_job_options_release(text_job_options *o);
/* Where the texts come from: --data, --text, or else standard input, if something is connected to
 * it. EXIT_OK, or EXIT_USAGE after an error. */
int text_job_check(const args_spec *spec, text_job_options *o);
/* --device, --dtype, --comm-timeout. */
void text_job_add_machine_rows(args_table *table, text_job_options *o);
/* The dtype asked for: f32 on a CPU and else bf16 where none is. */
mc_dtype text_job_dtype(const text_job_options *o);

typedef struct text_job {
    const text_job_options *o;
    const char *name; /* of the command */
    bool cells;       /* parts have their rows as CSV too */
    /* called once on all ranks, with the columns and before the first part; NULL: nothing */
    void (*begin)(struct text_job *job, const text_source *columns, void *user);
    mc_context *ctx;
    run_log log;
    output out;
    int64_t rows; /* of all ranks, done */
    double seconds;
} text_job;

/* The rows of a chunk that are this rank's: their number in the table, and their texts. */
typedef struct text_part {
    int64_t first;
    size_t count;
    bool chats;                        /* see text_chunk */
    const mc_text_span *texts, *pairs; /* pairs NULL: single texts */
    const mc_text_span *cells;         /* see text_chunk */
    int64_t chunk_first;               /* of the whole chunk, all ranks' rows */
    size_t chunk_count;
} text_part;

/* Makes the context, checks --output, calls `work` with it, and leaves; the command's exit code.
 * `work` returns false after an error or an interrupt. */
int text_job_start(text_job *job, bool (*work)(text_job *job, void *user), void *user);
/* Calls `take` with every part, on all ranks alike, until the end, an error or an interrupt; false
 * after these two. */
bool text_job_run(text_job *job, bool (*take)(text_job *job, const text_part *part, void *user),
                  void *user);

#endif
