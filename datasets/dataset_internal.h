/* The inside of datasets: where rows are kept, how they are built, the table of benchmarks. */
#ifndef MC_DATASETS_DATASET_INTERNAL_H
#define MC_DATASETS_DATASET_INTERNAL_H

#include <pthread.h>
#include "core/base/context_internal.h"
#include "core/base/file_internal.h"
#include "core/base/paths_internal.h"
#include "datasets/dataset.h"
#include "datasets/table.h"
#include "datasets/table/jsonl_internal.h"
#include "datasets/tasks/rows_internal.h"
#include "datasets/labels.h"

/* A growing string. */
typedef struct mc_text {
    char *data; /* NUL-terminated unless empty */
    size_t size, capacity;
} mc_text;
/* Appends `size` bytes and, after them, a NUL that is not counted. False when memory is out. */
bool mc_text_append(mc_text *text, const char *data, size_t size);
bool mc_text_append_format(mc_text *text, const char *format, ...) MC_PRINTF(2, 3);
void mc_text_release(mc_text *text);

/* ---- rows ------------------------------------------------------------------------------------ */

typedef struct mc_row {
    int64_t line;
    int32_t source; /* index of its texts and values: rows that are repeated share them */
    int32_t label;
    int32_t group;
    int32_t file;   /* of the store's files, if it has any */
    int32_t record; /* of a table: its row's number, which several rows may be of */
} mc_row;

/* Texts and values, which datasets that were split share. */
typedef struct mc_row_store {
    int references;
    mc_paths files; /* of a table of several files; none: the dataset's path */
    mc_text text;   /* all texts, each with a NUL after it */
    size_t *bound;  /* (sources * pieces + 1): where each text starts in `text` */
    size_t bounds, bound_capacity;
    float *value; /* (sources, values) */
    size_t values, value_capacity;
    mc_text right;    /* texts that are right answers, by group, each with a NUL after it */
    size_t *right_at; /* (rights): where those of a group start in `right` */
    size_t rights, right_capacity;
} mc_row_store;

/* How many tokens rows have, which the threads of all loaders of a dataset find out together. */
typedef struct mc_row_weights {
    pthread_mutex_t lock;
    uint32_t *weight;  /* (rows), 0 where not counted yet */
    uint32_t *written; /* (rows) those of the decoder among them; NULL: there is none */
    int64_t weighed;   /* rows before it are counted */
} mc_row_weights;

/* Names of labels. */
typedef struct mc_label_names {
    int count;
    char *name[MC_DATASET_MAX_LABELS];
} mc_label_names;

struct mc_dataset {
    mc_owned owned;
    mc_context *ctx;
    int references; /* the context's or caller's one, and one a loader */
    const mc_tokenizer *tok;
    mc_dataset_options options; /* without zeros that mean defaults */
    char *path;
    const char *task; /* NULL: the user's data */
    mc_task_kind kind;
    int choices;                /* inputs of a row */
    bool paired, targeted;      /* an input has a pair; a row has a text to be generated */
    bool images;                /* a row's text is the path of an image */
    bool beside;                /* which is relative to the row's file */
    bool balance;               /* repeat rows of rare classes */
    bool keep_end;              /* T5 reads the end of a source that is too long */
    bool open_end;              /* a decoder's answer has no end of text */
    bool conversations;         /* rows of one record are of one conversation */
    mc_chat_format chat_format; /* a row is a conversation, its target the spans to learn; 0: no */
    bool answers;               /* a row is one answer of it after all */
    mc_scoring scoring;
    int values;           /* numbers of a row */
    int32_t end_of_text;  /* of GENERATE: what ends an answer; of CPM-2 and T5: the sentinel, too */
    int32_t sentinel;     /* <extra_id_0> or <s_0> */
    int32_t begin;        /* CPM-1's <s> */
    int32_t end_of_piece; /* GLM's [E] */
    mc_label_names *labels; /* NULL: none */
    int32_t *answer;        /* (labels->count) of ANSWER */
    mc_row_store *store;
    mc_row *row; /* (rows) */
    size_t rows, row_capacity;
    mc_row_weights *weights; /* NULL: no loader has asked for them */
};

/* Texts of one row: one or two for each choice, and a target. */
int mc_dataset_pieces(const mc_dataset *dataset);
/* Text number `which` (choice * texts per choice + 0 text or 1 pair; the target is the last) and
 * its length in bytes. */
const char *mc_dataset_piece(const mc_dataset *dataset, int64_t row, int which, size_t *length);
/* Makes room for the rows' weights, once; with those of the decoder if it `writes`. False when
 * memory is out. */
bool mc_dataset_need_weights(mc_dataset *dataset, bool writes);
void mc_dataset_ref(mc_dataset *dataset);
void mc_dataset_unref(mc_dataset *dataset);

/* ---- building: datasets/build.c -------------------------------------------------------------- */

/* What a dataset is to hold, before its rows. */
typedef struct mc_dataset_plan {
    const char *name; /* of its file, for errors */
    const char *task; /* static, or NULL */
    mc_task_kind kind;
    int choices; /* 0: 1 */
    bool paired, balance, keep_end, open_end, images;
    mc_scoring scoring; /* 0: by the kind */
} mc_dataset_plan;

/* An empty dataset; the tokenizer itself is asked whether max_length is enough, and has to have the
 * tokens that the prompt needs; rows of images have none. NULL on an error. */
mc_dataset *mc_dataset_new(mc_context *ctx, const mc_dataset_plan *plan, const mc_tokenizer *tok,
                           const mc_dataset_options *options);

/* A row is built of its texts, in the order of mc_dataset_piece, and then
 * ended:
 *
 *     mc_text *out = mc_dataset_begin_text(d);      what is appended to it is the text
 *     ... && mc_dataset_end_text(d) && mc_dataset_end_row(d, line, label, values)
 *
 * `values` (d->values) may be NULL where the kind has none. All return false (NULL) on an error. */
mc_text *mc_dataset_begin_text(mc_dataset *dataset);
bool mc_dataset_end_text(mc_dataset *dataset);
bool mc_dataset_add_text(mc_dataset *dataset, const char *text, size_t size); /* begin to end */
bool mc_dataset_end_row(mc_dataset *dataset, int64_t line, int32_t label, const float *values);
/* The group of the row that was ended last; else it is its number. */
void mc_dataset_set_group(mc_dataset *dataset, int32_t group);
/* The texts that are right answers to the question of that row: a list of strings. Further rows of
 * the group need not say them again. */
bool mc_dataset_set_references(mc_dataset *dataset, const cJSON *texts);

/* Adds a label; false when memory is out or there are too many. */
bool mc_dataset_add_label(mc_dataset *dataset, const char *name);
/* Sets the tokens that stand for the labels: the first of each text. Errors: a text without tokens,
 * two with the same. */
bool mc_dataset_set_answers(mc_dataset *dataset, const char *const *texts);
/* After the last row: balances classes; an error where there are no rows. */
bool mc_dataset_finish(mc_dataset *dataset);

/* ---- benchmarks: datasets/tasks.c ------------------------------------------------------------ */

enum { MC_TASK_LABELS = 3, MC_TASK_CHOICES = 2, MC_TASK_FORMS = 4 };

typedef enum mc_label_form {
    MC_LABEL_BOOL,  /* true or false (1 or 0) */
    MC_LABEL_NAME,  /* the class's name */
    MC_LABEL_INDEX, /* the class's number */
} mc_label_form;

#define MC_STYLE(s) (1u << MC_PROMPT_##s)
#define MC_ANY_STYLE (~0u)

/* How a task is put to families of some styles. Templates hold keys of the row in braces. */
typedef struct mc_task_form {
    unsigned styles; /* MC_STYLE(ENCODER) | ... */
    mc_task_kind kind;
    int choices; /* 0: 1 */
    const char *text[MC_TASK_CHOICES];
    const char *pair[MC_TASK_CHOICES]; /* NULL: a single text */
    const char *target;                /* of GENERATE */
    /* Of ANSWER: texts whose first tokens stand for the labels. */
    const char *answer[MC_TASK_LABELS];
    bool keep_end; /* of GENERATE: of a long source T5 reads the end, not the beginning */
    bool open_end; /* of GENERATE for decoders: the text goes on after the target */
} mc_task_form;

/* A benchmark is a row in a table. */
typedef struct mc_task {
    const char *name;
    mc_row_form rows;         /* how its files are read */
    mc_label_form label_form; /* of the key "label" */
    const char *label_key;    /* of rows without "label"; NULL: none */
    int labels;
    const char *label[MC_TASK_LABELS];
    mc_scoring scoring; /* 0: by the kind */
    bool balance;       /* repeat training rows of rare classes, where an encoder classifies */
    /* Of two classes: training rows come a second time with these two keys exchanged, as the other
     * class, where a language model answers. */
    const char *exchange[2];
    /* Files of a split, each with one %s for its name, looked for in this order in all places; NULL
     * is "%s.jsonl" alone. */
    const char *files[2];
    const char *folder;               /* of down_data in ModelCenter's layout; NULL: "superglue" */
    mc_task_form form[MC_TASK_FORMS]; /* those with kind 0 end it */
} mc_task;

/* The tables, each ended by NULL: datasets/superglue.c, datasets/tasks/benchmarks.c. */
extern const mc_task *const mc_superglue_tasks[], *const mc_benchmark_tasks[];

/* The task of a name (in any case), NULL with an error that lists the known ones. */
const mc_task *mc_task_find(mc_error *err, const char *name);
/* Its form for a style; NULL: there is none. */
const mc_task_form *mc_task_form_for(const mc_task *task, mc_prompt_style style);

/* Appends the template, filled in from the reader's current row. */
bool mc_task_render(mc_jsonl *reader, const char *template, mc_text *out);
/* The label of the reader's current row. `unlabelled`: a row may have none. */
bool mc_task_read_label(mc_jsonl *reader, const mc_task *task, bool unlabelled, int32_t *label);

/* Finds the file of a split: writes its path; an error lists the places looked at. */
mc_status mc_dataset_locate(mc_error *err, const mc_task *task, const char *folder,
                            const char *split, char path[MC_PATH_MAX]);

#endif
