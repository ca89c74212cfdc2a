/* The inside of datasets: the table of tasks, where rows are kept, and where files are found. */
#ifndef MC_DATASETS_DATASET_INTERNAL_H
#define MC_DATASETS_DATASET_INTERNAL_H

#include "core/base/context_internal.h"
#include "core/base/file_internal.h"
#include "datasets/dataset.h"
#include "datasets/jsonl_internal.h"

enum { MC_TASK_LABELS = 3, MC_TASK_CHOICES = 2 };

typedef enum mc_label_form {
    MC_LABEL_BOOL,  /* true or false (1 or 0) */
    MC_LABEL_NAME,  /* the class's name */
    MC_LABEL_INDEX, /* the class's number */
} mc_label_form;

/* A task is a row in a table. Templates hold keys of the row in braces. */
typedef struct mc_task {
    const char *name;
    mc_label_form form;
    int labels;
    const char *label[MC_TASK_LABELS];
    int choices;
    const char *text[MC_TASK_CHOICES];
    const char *pair[MC_TASK_CHOICES]; /* NULL: a single text */
    bool balance;                      /* repeat training rows of rare classes */
} mc_task;

/* The task of a name (in any case), NULL with an error that lists the known ones. */
const mc_task *mc_task_find(mc_error *err, const char *name);
/* Texts of one row: one or two for each choice. */
int mc_task_texts(const mc_task *task);

/* A growing string. */
typedef struct mc_text {
    char *data; /* NUL-terminated unless empty */
    size_t size, capacity;
} mc_text;
/* Appends `size` bytes and, behind them, a NUL that is not counted. False when memory is out. */
bool mc_text_append(mc_text *text, const char *data, size_t size);
bool mc_text_append_format(mc_text *text, const char *format, ...) MC_PRINTF(2, 3);
void mc_text_release(mc_text *text);

/* Appends the template, filled in from the reader's current row. */
bool mc_task_render(mc_jsonl *reader, const char *template, mc_text *out);
/* The label of the reader's current row. `unlabelled`: a row may have none. */
bool mc_task_read_label(mc_jsonl *reader, const mc_task *task, bool unlabelled, int32_t *label);

/* Finds the file of a split: writes its path; an error lists the places looked at. */
mc_status mc_dataset_locate(mc_error *err, const mc_task *task, const char *folder,
                            const char *split, char path[MC_PATH_MAX]);

typedef struct mc_row {
    int64_t line;
    int32_t source; /* index of its texts: rows that are repeated share them */
    int32_t label;
} mc_row;

struct mc_dataset {
    mc_owned owned;
    mc_context *ctx;
    int references; /* the context's or caller's one, and one a loader */
    const mc_task *task;
    const mc_tokenizer *tok;
    int max_length;
    int64_t vocabulary; /* 0: any */
    char *path;
    mc_text text;  /* all texts, each with a NUL behind it */
    size_t *bound; /* (sources * texts + 1): where each text starts in `text` */
    size_t bounds, bound_capacity;
    mc_row *row; /* (rows) */
    size_t rows, row_capacity;
};

/* Text number `which` (choice * texts per choice + 0 text or 1 pair) and its length in bytes. */
const char *mc_dataset_piece(const mc_dataset *dataset, int64_t row, int which, size_t *length);
void mc_dataset_ref(mc_dataset *dataset);
void mc_dataset_unref(mc_dataset *dataset);

#endif
