/* Datasets: rows of text with their labels or targets, from your own files, from memory, from a
 * function of the program, or from a benchmark.
 *
 *     mc_dataset *train = mc_dataset_open(ctx, "BoolQ", "data/boolq", "train", tok, NULL);
 *     mc_dataset *own = mc_dataset_from_file(ctx, "reviews.csv",
 *         &(mc_data_columns){.text = "review", .label = "stars"}, tok, NULL);
 *
 * Opening a dataset reads and checks all rows, so that an error in the last one shows before the
 * first training step. It keeps the text of each row and its answer. The loader tokenizes
 * (datasets/loader.h). Every rank reads all rows and has the same dataset.
 *
 * The kind of a task decides what a row is:
 *
 *   CLASSIFY     one text or two, and a class
 *   CHOOSE       several inputs, of which one is right: a logit each
 *   MULTI_LABEL  one text or two, and any number of the labels
 *   REGRESS      one text or two, and a number
 *   GENERATE     a text (prompt, source) and the text to be generated
 *   ANSWER       a prompt, and a class: one of a few tokens, which the language model has to
 *                predict at one place
 *   TEXT         one text or two, and nothing else
 *
 * options->prompt decides which tokens the model reads and which it has to predict. T are the
 * tokens of the text, A those of the answer:
 *
 *   kinds but the next two  reads the text or pair, with the tokenizer's special tokens
 *   GENERATE, decoder       reads T A, predicts A and the end of text. Nothing is put between the
 *                           two texts: a space or line break has to be in the data
 *   GENERATE, T5            the encoder reads T </s>, the decoder predicts A </s>
 *   GENERATE, CPM-1         reads <s> T A, of which <s> T is context; predicts A <eod>
 *   GENERATE, CPM-2         the encoder reads T <s_0>; the decoder reads <s_0>, predicts A <eod>
 *   ANSWER, decoder         reads T, predicts T, and the answer after its last token (both are in
 *                           ModelCenter's loss of GPT-2)
 *   ANSWER, T5              the encoder reads T </s>, in which <extra_id_0> is the blank; the
 *                           decoder reads its start token and <extra_id_0>, predicts the answer
 *   ANSWER, CPM-1           reads <s> T, a blank (token 0), and the pair's text, all of it context
 *                           but the blank; predicts the answer at the token before the blank
 *   ANSWER, CPM-2           the encoder reads T <s_0>; the decoder reads <s_0>, predicts the answer
 *
 * If a row is longer than max_length:
 *
 *   - A text or pair loses tokens at the end of the longer text.
 *   - A is cut at its end to max_target_length and to the room that max_length leaves. It then has
 *     no end of text.
 *   - T loses tokens at its beginning; GENERATE keeps at least one. The exception is GENERATE of
 *     T5, where T loses tokens at its end, as in Hugging Face's scripts.
 *
 * Tasks with names, as encoders read them (ModelCenter's templates for BERT):
 *
 *   BoolQ  "{passage}. {question}"                                0 false, 1 true
 *   CB     "{premise}" with "{hypothesis}"                        0 contradiction, 1 entailment,
 *                                                                 2 neutral
 *   COPA   two inputs, k = 1 and 2: "{choice k}" with             0 choice1, 1 choice2
 *          `The {question} of "{premise}"`
 *   RTE    "{premise}" with "{hypothesis}"                        0 not_entailment, 1 entailment
 *   WiC    "{sentence1}" with "{sentence2}"                       0 false, 1 true
 *   WSC    "{text} Does {target.span2_text} refers to {target.span1_text}?"   0 false, 1 true
 *
 * "A with B" is a text pair: [CLS] A [SEP] B [SEP]. In the split "train" each row of CB is repeated
 * int(rows of the largest class / rows of its class) times, one after the other, to even out the
 * classes. A true/false label may also be written 1 or 0.
 *
 * Decoders, T5 and CPM read the same rows as prompts (ANSWER), and have further tasks: MultiRC,
 * ReCoRD, SQuAD, HellaSwag, LCQMC. docs/benchmarks.md has all prompts, the words for the classes,
 * and the scores. To train a model of any family as a classifier, use the prompt of encoders
 * (zeros).
 *
 * Files of tasks are UTF-8 with one JSON object a line; SQuAD's is one JSON document, LCQMC's are
 * TSV. A byte order mark, CRLF line ends, blank lines, a last line without an end, and lines of
 * many megabytes are allowed. Spare keys are ignored. Every error names file, line and key, or
 * column.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_DATASETS_DATASET_H
#define MC_DATASETS_DATASET_H

#include <stddef.h>
#include <stdint.h>
#include "core/base/context.h"
#include "datasets/chat_format.h"
#include "datasets/image/image.h"
#include "datasets/prompt.h"
#include "datasets/table_format.h"
#include "tokenizers/tokenizer.h"

typedef struct mc_dataset mc_dataset;

/* The label of a row without one: mc_cross_entropy ignores it by default, and mc_accuracy_add does
 * not count it. */
enum { MC_NO_LABEL = -100 };

typedef enum mc_task_kind {
    MC_TASK_CLASSIFY = 1,
    MC_TASK_CHOOSE,
    MC_TASK_MULTI_LABEL,
    MC_TASK_REGRESS,
    MC_TASK_GENERATE,
    MC_TASK_ANSWER,
    MC_TASK_TEXT,
} mc_task_kind;

/* What a scorer (datasets/scorer.h) compares. */
typedef enum mc_scoring {
    MC_SCORING_NONE = 0,  /* nothing: REGRESS, MULTI_LABEL, TEXT have no scorer */
    MC_SCORING_CLASSES,   /* the class of each row */
    MC_SCORING_QUESTIONS, /* the class of each row; several rows are one question: MultiRC */
    MC_SCORING_TEXTS,     /* the text of each row: SQuAD, and GENERATE with your own data */
    MC_SCORING_ENTITIES,  /* the texts of rows that are candidates: ReCoRD */
    MC_SCORING_ENDINGS,   /* rows that are candidates, one of which is right: HellaSwag */
} mc_scoring;

typedef struct mc_dataset_options {
    int max_length;        /* most tokens of a sequence, specials included. 0: 512 */
    int max_target_length; /* most tokens of a GENERATE row's answer, its end included. 0: 128 */
    int64_t vocabulary;    /* tokens of the model; tokenizing a row with any other token is an
                              error. 0: not checked */
    mc_prompt prompt;      /* what the model reads of a row; zeros: what an encoder reads */
    /* How images are read (models/details.h: mc_model_image_form). A loader of images requires
     * it; size 0: not known yet. */
    mc_image_form image;
} mc_dataset_options;

/* ---- benchmarks ------------------------------------------------------------------------------ */

/* Opens a split of a task. `task` is one of the names above, in any case. `split` is a plain name
 * and names the file: "train" is train.jsonl. "val", "dev" and "validation" are one split, whose
 * file may have any of these names. The file is searched for as
 *
 *     {folder}/{split}.jsonl
 *     {folder}/{task}/{split}.jsonl                           the task's folder in any case
 *     {folder}/down_data/superglue/{task}/{split}.jsonl       ModelCenter's layout
 *
 * or, in the same folders, under the names of SQuAD's, HellaSwag's and LCQMC's files
 * (docs/benchmarks.md).
 *
 * Rows without a label (or with null or -1) are allowed only in the splits "test" and "unlabeled",
 * and have the label MC_NO_LABEL. The tokenizer must outlive the dataset; both belong to the
 * context. `options` may be NULL.
 *
 * Errors (NULL): an unknown task (lists the known ones); no such file (lists the places that were
 * searched, and the files there); a file without rows; malformed JSON, a NUL, bytes that are not
 * UTF-8; a key that is missing, comes twice, or has the wrong type; a label that is not the task's;
 * a max_length too small for the special tokens. */
MC_API mc_dataset *mc_dataset_open(mc_context *ctx, const char *task, const char *folder,
                                   const char *split, const mc_tokenizer *tok,
                                   const mc_dataset_options *options);

/* ---- your own data --------------------------------------------------------------------------- */

/* The columns of a table and their use. NULL: no such column. */
typedef struct mc_data_columns {
    const char *text; /* required; of GENERATE the prompt or source */
    /* In place of text: paths of images (datasets/image/image.h), relative to the folder of the
     * file that has the column. The rows have classes, labels, numbers or nothing. The tokenizer
     * is not used and may be NULL. With a custom source, any value but NULL means that a row's text
     * is the path of an image, relative to the current folder. */
    const char *image;
    const char *pair; /* the second text of a pair */
    /* CLASSIFY: a class. REGRESS: a number. MULTI_LABEL: the labels of the row, a list of JSON or
     * text with `separator` between them; or the names of several columns of 1 and 0, with commas
     * between them, each of which is a label. */
    const char *label;
    const char *target; /* the text to be generated */
    /* A conversation, in place of text and target: a list of {"role": ..., "content": ...} in a
     * file of JSON Lines. Each message of the assistant becomes a row. The messages before it are
     * the prompt, "User: Hello\nAssistant:"; its content, " Hi", is the target (docs/data.md). */
    const char *messages;
    /* The format of conversations, for decoders: a row is then a whole conversation with the
     * format's markers, and only the assistant's tokens are targets. 0: rows as above. */
    mc_chat_format chat_format;
    /* With a chat_format: each message of the assistant is a row, with the markers in its prompt;
     * without messages, the text is a user's message. For answers that are to be scored. */
    bool answers;
    mc_task_kind kind;      /* 0: GENERATE with a target, CLASSIFY with a label, else TEXT */
    const char *separator;  /* of several labels in one column; NULL: "|" */
    mc_table_format format; /* of the file, where its name does not say it */
    /* All labels, in their order, e.g. those of a trained model; no two have one name. The rows'
     * labels are matched to them as datasets/labels.h says; any other label is an error. NULL: the
     * labels in the rows, sorted as numbers if all are numbers (1, 2, 10), else by their bytes. */
    const char *const *label_names;
    int labels;
    /* The names are a proposal, e.g. those of a model that is trained further. If the rows' labels
     * do not fit them (mc_labels_fit), the labels in the rows are used instead. */
    bool labels_proposed;
} mc_data_columns;

/* The format of its conversations; 0 if they have none, or if `dataset` is NULL. */
MC_API mc_chat_format mc_dataset_chat_format(const mc_dataset *dataset);

/* Creates a dataset from the rows of a file (datasets/table.h), or of all files that a pattern
 * matches. `options` may be NULL. The names of columns are copied. Errors (NULL), which name the
 * row's place: those of mc_table_open; no such column, or one named twice; a file without rows; a
 * value that is missing or not a number; a label that is not in label_names; more than
 * MC_DATASET_MAX_LABELS labels, or fewer than two classes; GENERATE with a family that cannot. */
MC_API mc_dataset *mc_dataset_from_file(mc_context *ctx, const char *path,
                                        const mc_data_columns *columns, const mc_tokenizer *tok,
                                        const mc_dataset_options *options);

/* The same of several paths or patterns, one after the other: see mc_table_open_list. */
MC_API mc_dataset *mc_dataset_from_files(mc_context *ctx, const char *const *paths, int count,
                                         const mc_data_columns *columns, const mc_tokenizer *tok,
                                         const mc_dataset_options *options);

/* One row of a custom source. Texts are UTF-8, end with a NUL, and are copied. Fields that the kind
 * does not use are ignored. */
typedef struct mc_data_row {
    const char *text, *pair;
    const char *target;        /* GENERATE */
    const char *label;         /* CLASSIFY */
    const char *const *labels; /* MULTI_LABEL: (label_count) */
    int label_count;
    double value; /* REGRESS */
    /* Bytes of the texts, for those that hold NUL characters; 0: up to the NUL. */
    size_t text_size, pair_size, target_size;
} mc_data_row;

/* Fills in row number i (from 0), which is all zeros before. Returns false after the last row.
 * Strings must stay valid until the next call. An error that it sets (mc_set_error) ends the
 * reading. */
typedef bool (*mc_data_fn)(void *user, int64_t i, mc_data_row *row);

/* Creates a dataset from the rows that a function of the program returns, in their order. Uses only
 * the members of `columns` that name no column: kind (0 is TEXT), label names, and whether `pair`
 * is not NULL (rows have pairs). `name` stands for the source in errors: "NAME: row 7: ...", from 1
 * on. Errors as above. */
MC_API mc_dataset *mc_dataset_from_source(mc_context *ctx, const char *name, mc_data_fn next,
                                          void *user, const mc_data_columns *columns,
                                          const mc_tokenizer *tok,
                                          const mc_dataset_options *options);

/* The same for an array. */
MC_API mc_dataset *mc_dataset_from_rows(mc_context *ctx, const char *name, const mc_data_row *rows,
                                        int64_t count, const mc_data_columns *columns,
                                        const mc_tokenizer *tok, const mc_dataset_options *options);

/* Moves a random share of the rows from a dataset to a new one: `fraction` of them, rounded to the
 * nearest whole number, at least 1 and at most all but one. Rows of one conversation stay together,
 * and conversations are then counted instead of rows. `seed` selects the rows; both datasets keep
 * the order of the file. The choice depends only on the row numbers, so all ranks and a resumed run
 * get the same split. Call it before creating loaders. Errors: a fraction that is not between 0 and
 * 1, fewer than two rows, a dataset with repeated rows (CB's training rows) or in use. */
MC_API mc_dataset *mc_dataset_split(mc_dataset *dataset, double fraction, uint64_t seed);

/* ---- what it holds --------------------------------------------------------------------------- */

/* Frees the dataset. Loaders of it stay valid: they keep what they need until they are freed. NULL
 * is allowed. */
MC_API void mc_dataset_free(mc_dataset *dataset);

MC_API int64_t mc_dataset_rows(const mc_dataset *dataset);      /* repeated rows count each time */
MC_API mc_task_kind mc_dataset_kind(const mc_dataset *dataset); /* 0 for NULL */
/* Classes, or labels; 0 where rows have none. */
MC_API int mc_dataset_labels(const mc_dataset *dataset);
/* The name of class k, e.g. "entailment"; NULL if out of range. */
MC_API const char *mc_dataset_label_name(const mc_dataset *dataset, int k);
/* The number of outputs that a classifier needs: one for each class or label; 1 for a number; 1 for
 * CHOOSE, whose logits (rows * choices, 1), seen as (rows, choices), are those of a row's inputs.
 * 0 for GENERATE, ANSWER and TEXT. */
MC_API int mc_dataset_outputs(const mc_dataset *dataset);
/* "BoolQ"; NULL for your own data. */
MC_API const char *mc_dataset_task(const mc_dataset *dataset);
MC_API const char *mc_dataset_path(const mc_dataset *dataset); /* the (first) file that was read */

#endif
