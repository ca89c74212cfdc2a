/* A running batch, which all of generation is driven by. A job is a prompt with its answer:
 *
 *     waiting  ->  in a row, its prompt run  ->  its tokens come  ->  ended (reported, and freed)
 *        \______________________\_____________________/
 *
 * A row has a part of the cache and the rules of its answer. What a step runs are columns of the
 * state that stands in device memory; each belongs to one row, and to which one changes when rows
 * that go on are moved together. `guard` protects the list of those that wait, the rows' jobs and
 * their `cancelled`. The device runs ahead of the host: a column whose answer has ended there does
 * nothing until the host notices and gives its row to another job.
 *
 * Of a prompt with several answers to draw each is a job of its own once it has a row; until then
 * one job stands for those that wait. A beam search is one job with as many rows as beams. While
 * there is one, the host takes in every step before it launches the next, and sends the state of
 * all columns (batch_beams.c); to choose_tokens the searches' columns have ended. */
#ifndef MC_MODELS_BATCH_INTERNAL_H
#define MC_MODELS_BATCH_INTERNAL_H

#include <pthread.h>
#include "models/generate/batch_model_internal.h"
#include "models/generate/beam_internal.h"

enum {
    MC_MOST_EOS = 16,   /* of a job with end tokens of its own */
    MC_GROUP_STEPS = 8, /* of a group on a GPU; where the host computes it is 1 */
    MC_STEP_GROUPS = 2, /* of steps on their way at once */
    MC_GROUPS = 6,      /* of all kinds */
    MC_KEPT = MC_STEP_GROUPS * MC_GROUP_STEPS
};

typedef struct mc_job {
    struct mc_job *next; /* that waits */
    int64_t id;
    int number; /* of a list: its prompt */
    mc_generate_options options;
    bool own_options; /* given with the prompt; else the model's */
    bool checked;     /* with defaults filled in */
    /* Of num_return_sequences the first that the job stands for, and how many. */
    int answer, answers;
    int32_t eos[MC_MOST_EOS];
    int32_t *ids; /* prompt, then (most) the answer */
    int prompt, most;
    int run;             /* tokens of the prompt that were launched */
    int launched, count; /* tokens of the answer that were launched, and that came */
    bool cancelled;
    double score;      /* of its tokens so far */
    uint32_t joined;   /* the first tick of its steps */
    int64_t group;     /* number of the group that its first token comes with */
    mc_search *search; /* of a job with beams, in its rows: row[i] is that of beam i */
    int *row;
    mc_answer_fn fn;
    void *user;
} mc_job;

/* Tokens that come to the host together: first ones of prompts, or those of steps (ticks). */
typedef struct mc_token_group {
    bool prompts;
    int64_t number;
    uint32_t first, end; /* ticks */
    uint64_t ticket;
} mc_token_group;

typedef struct mc_batch_options {
    mc_batch_shape shape;
    /* Tokens of prompts that are run together, and those while answers are under way. */
    int64_t prompt_tokens, prompt_piece;
    /* A list: all jobs end with the same tokens, and were checked before. What goes wrong with one
     * is an error on the context. */
    bool list;
    const int32_t *eos; /* of a list; copied */
    int eos_count;
} mc_batch_options;

struct mc_batch {
    mc_context *ctx;
    mc_model *m;
    mc_decoder decoder;
    mc_batch_options options;
    mc_batch_model *model;
    int rows; /* options.shape.rows */
    pthread_mutex_t guard;
    pthread_cond_t work;
    /* guarded */
    mc_job *waiting, **last;
    mc_job **job; /* (rows) NULL: free */
    int64_t ids;
    bool closed;
    /* of the thread that runs the steps */
    mc_chooser chooser;
    int *beam;                       /* (rows) which of its job's rows it is */
    int *column_of, *row_of;         /* (rows) of a row, of a column */
    int32_t *state;                  /* (MC_ROW_FIELDS, rows): what the device's is set to */
    mc_chosen *chosen;               /* pinned: (MC_KEPT + MC_GROUPS, rows) */
    int32_t *eos;                    /* of a list */
    uint32_t *seen;                  /* of one prompt */
    mc_token_group group[MC_GROUPS]; /* the oldest first */
    int group_count;
    uint32_t tick;
    int64_t group_number;
    /* prompts that are run together */
    int *joining, *joining_columns; /* (rows) rows; of a search its first */
    bool *searched;                 /* (rows) whether it is one */
    int *found;                     /* (rows) free rows for the next */
    int32_t *prompt_ids, *prompt_lengths;
    int64_t prompt_room;
    int joining_count;
    int piecing; /* the row whose prompt is run in part; -1: none */
    /* of searches, from the first on */
    int searches;    /* that have rows */
    mc_chosen *best; /* pinned: (rows, chooser.best.count), by columns */
    float *penalty;  /* (rows), by columns: mc_best_call.penalty */
    uint32_t *marks; /* (rows, mc_seen_words(vocab)), by columns: mc_best_call.seen */
    size_t best_bytes;
    char problem[512];
};

static inline mc_device *mc_batch_device(const struct mc_batch *b) { return b->ctx->device; }

/* ---- life (batch.c) -------------------------------------------------------------------------- */

/* NULL after an error. */
struct mc_batch *mc_batch_new(mc_model *model, const mc_batch_options *options);
void mc_batch_free(struct mc_batch *batch);        /* NULL allowed */
mc_job *mc_job_new(const int32_t *ids, int count); /* NULL when memory is out */
void mc_job_free(mc_job *job);
/* Puts a job after those that wait, which becomes the batch's. Any thread. */
int64_t mc_batch_add(struct mc_batch *batch, mc_job *job);
/* Whether a job waits or is in a row. Under `guard`. */
bool mc_batch_has_work(const struct mc_batch *batch);

/* ---- rows and columns (batch_rows.c) --------------------------------------------------------- */

/* The first row of a job; false for its others, and free ones. */
static inline bool mc_batch_is_first(const struct mc_batch *b, int row)
{
    return b->job[row] && !b->beam[row];
}
static inline int mc_job_beams(const mc_job *j) { return j->options.num_beams; }
/* The first that waits, or one of its answers, takes as many free rows as it has beams, its pages,
 * and its rules to the device. False after an error. */
bool mc_batch_take_rows(struct mc_batch *batch, const int *rows);
/* Its column is filled in: its prompt is about to be whole. */
void mc_batch_fill_column(struct mc_batch *batch, int row);
/* The job of a row leaves all its rows. */
mc_job *mc_batch_leave_row(struct mc_batch *batch, int row);
/* Stops the column of a row that goes on where the device is. */
void mc_batch_stop_column(struct mc_batch *batch, int row);
/* Columns up to the last one whose answer goes on; on a GPU one of few numbers, each of which is
 * recorded. */
int mc_batch_columns(const struct mc_batch *batch);
/* Moves the columns of answers that go on to the front. Nothing is on its way. */
void mc_batch_move_columns(struct mc_batch *batch);

/* ---- searches (batch_beams.c) ---------------------------------------------------------------- */

/* Memory for a search that joins, and a table that lets beams share rows. Takes in what is on its
 * way where there is no search yet. */
bool mc_batch_begin_search(struct mc_batch *batch, const mc_job *job);
/* Where the last search has left, rows are by pages again. */
bool mc_batch_end_searches(struct mc_batch *batch);
void mc_batch_free_searches(struct mc_batch *batch);
/* Whether a row is one of a search's that run, or whose prompt is run. */
bool mc_batch_is_searched(const struct mc_batch *batch, int row);
void mc_batch_search_fields(const struct mc_batch *batch, int row, int32_t *fields);
/* Sends what finding candidates needs, by the columns as they are. */
void mc_batch_send_searches(struct mc_batch *batch);
/* Copies the candidates of as many columns; the ticket as of copy_out_later. */
uint64_t mc_batch_copy_best(struct mc_batch *batch, int columns);
/* Goes on by the candidates that came; false where logits are not finite. */
bool mc_batch_advance(struct mc_batch *batch, mc_job *job);

/* ---- prompts (batch_join.c) ------------------------------------------------------------------ */

/* Fills in the options of a job that waits, and how many answers it stands for. */
bool mc_batch_read_options(struct mc_batch *batch, mc_job *job);
/* What `check` says, whose error is to be cleared: other ranks, which have errors at once, do not
 * see it. */
bool mc_batch_try(struct mc_batch *batch, mc_job *job,
                  bool (*check)(struct mc_batch *batch, mc_job *job));
/* Puts prompts that wait into free rows, and launches as many of their tokens as are run together.
 * A token group of first tokens follows where prompts are whole now. */
bool mc_batch_launch_prompts(struct mc_batch *batch);

/* The line of first tokens that a group of prompts has for itself while it is on its way. */
int mc_batch_first_line(int64_t number);

/* ---- steps (batch_steps.c) ------------------------------------------------------------------- */

/* Launches and takes in; false after an error. */
bool mc_batch_step(struct mc_batch *batch);
/* Takes in all that is on its way. */
bool mc_batch_take_in(struct mc_batch *batch);
/* Copies `count` lines of what was chosen, from line `first` on, when all before is done. */
void mc_batch_add_group(struct mc_batch *batch, mc_token_group group, int first, int count);

/* ---- reporting to callers (batch_events.c) --------------------------------------------------- */

/* A new token; with the last one the score. */
void mc_batch_report_token(const mc_job *job, mc_answer_state state, mc_chosen chosen);
/* All answers that the job stands for end without a token. */
void mc_batch_report_end(const mc_job *job, mc_answer_state state, const char *error);
/* The answers that a search has found, one after the other. */
void mc_batch_report_beams(const mc_job *job);

#endif
