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
 * What a row is, by the kind of its task:
 *
 *   CLASSIFY     one text or two, and a class
 *   CHOOSE       several inputs, of which one is right: a logit each
 *   MULTI_LABEL  one text or two, and any number of the labels
 *   REGRESS      one text or two, and a number
 *   GENERATE     a text (prompt, source) and the text that is to follow from it
 *   ANSWER       a prompt, and a class: which of a few tokens the language model has to give at one
 *                place
 *   TEXT         one text or two, and nothing else
 *
 * How a row is put to the model, options->prompt says (T tokens of the text, A of the answer):
 *
 *   all but the last two    the text, or pair, with the tokenizer's special tokens, cut to
 *                           max_length at the end of the longer text
 *   GENERATE, decoder       T A; each token of A, and the end of text after it, is a target of the
 *                           row before; nothing of T is. Nothing comes between the two texts: a
 *                           space or line break is the data's to bring.
 *   GENERATE, T5            the encoder reads T </s>; the decoder is to give A </s>
 *   GENERATE, CPM-1         <s> T A, where <s> T is context; targets as of a decoder, to <eod>
 *   GENERATE, CPM-2         the encoder reads T <s_0>; the decoder begins with <s_0> and is to give
 *                           A <eod>
 *   ANSWER, decoder         T; the answer is read after its last token, and the tokens of T are
 *                           targets themselves (ModelCenter's loss of GPT-2 has both parts)
 *   ANSWER, T5              T </s>, in which <extra_id_0> is the blank; the decoder gets its start
 *                           token and <extra_id_0>, and the answer is read after the latter
 *   ANSWER, CPM-1           <s> T, a blank (token 0), and the pair's text; all but the blank is
 *                           context; the answer is read at the row before the blank
 *   ANSWER, CPM-2           as GENERATE; the answer is read after the decoder's <s_0>
 *
 * Where T and A do not fit: A is cut at its end, to max_target_length and to what max_length leaves
 * (and then has no end of text), and T loses tokens from its beginning, the oldest first; of a
 * GENERATE row's T at least one is kept. T5's encoder keeps the beginning of GENERATE's T as
 * Hugging Face's scripts do, and the end of ANSWER's T as ModelCenter does.
 *
 * Tasks with names, as encoders get them (ModelCenter's templates for BERT):
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
 * Decoders, T5 and CPM get the same rows as prompts (ANSWER), and have further tasks: MultiRC,
 * ReCoRD, SQuAD, HellaSwag, LCQMC. docs/benchmarks.md has all prompts, the words that stand for
 * classes, and what is measured. To train a model of any family as a classifier, use the prompt of
 * encoders (zeros).
 *
 * Their files are UTF-8, one JSON object a line (but SQuAD's, one document, and LCQMC's, TSV); a
 * byte order mark, CRLF line ends, blank lines and a last line without an end are fine, and so is a
 * line of many megabytes. Spare keys are ignored. Every error names file, line and key, or column.
 */
#ifndef MC_DATASETS_DATASET_H
#define MC_DATASETS_DATASET_H

#include <stddef.h>
#include <stdint.h>
#include "core/base/context.h"
#include "datasets/chat_format.h"
#include "datasets/prompt.h"
#include "datasets/table_format.h"
#include "tokenizers/tokenizer.h"

typedef struct mc_dataset mc_dataset;

/* The label of a row that has none: what mc_cross_entropy ignores by default, and what
 * mc_accuracy_add doesn't count. */
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

/* The results that a model's scores are computed from, and how: datasets/scorer.h. */
typedef enum mc_scoring {
    MC_SCORING_NONE = 0,  /* not by a scorer: REGRESS, MULTI_LABEL, TEXT */
    MC_SCORING_CLASSES,   /* classes of rows */
    MC_SCORING_QUESTIONS, /* classes of rows, several of which make a question: MultiRC */
    MC_SCORING_TEXTS,     /* texts of rows: SQuAD, and GENERATE with your own data */
    MC_SCORING_ENTITIES,  /* rows are candidates, whose texts count: ReCoRD */
    MC_SCORING_ENDINGS,   /* rows are candidates, of which one is right: HellaSwag */
} mc_scoring;

typedef struct mc_dataset_options {
    int max_length;        /* most tokens of a sequence, specials included. 0: 512 */
    int max_target_length; /* most tokens of a GENERATE row's answer, its end included. 0: 128 */
    int64_t vocabulary;    /* tokens of the model: rows that have others fail when they are
                              tokenized. 0: not checked */
    mc_prompt prompt;      /* how rows are put; zeros: as an encoder reads them */
} mc_dataset_options;

/* ---- benchmarks ------------------------------------------------------------------------------ */

/* Opens a split of a task. `task` is one of the names above, in any case. `split` names the file:
 * "train" is train.jsonl, and so on for any plain name; "val", "dev" and "validation" are one split
 * in a file of any of these names. The file is looked for in
 *
 *     {folder}/{split}.jsonl
 *     {folder}/{task}/{split}.jsonl                           the task's folder in any case
 *     {folder}/down_data/superglue/{task}/{split}.jsonl       ModelCenter's layout
 *
 * and so under the names that SQuAD's, HellaSwag's and LCQMC's files have (docs/benchmarks.md).
 *
 * Rows without a label (or with null, or -1) are allowed in the splits "test" and "unlabeled" only
 * and have the label MC_NO_LABEL. The tokenizer must outlive the dataset, and both belong to the
 * context. `options` may be NULL.
 *
 * Errors (NULL): an unknown task (the known ones are listed); no such file (all places looked at
 * are listed, and what is there instead); a file without rows; malformed JSON, a NUL, bytes that
 * are no UTF-8; a key that is missing, twice there, or of the wrong type; a label that is not the
 * task's; a max_length too small for the special tokens. */
MC_API mc_dataset *mc_dataset_open(mc_context *ctx, const char *task, const char *folder,
                                   const char *split, const mc_tokenizer *tok,
                                   const mc_dataset_options *options);

/* ---- your own data ----------------------------------------------------------------------- */

/* The columns of a table and their use. NULL: no such column. */
typedef struct mc_data_columns {
    const char *text;  /* required; of GENERATE the prompt or source */
    const char *pair;  /* the second text of a pair */
    const char *label; /* a class; of REGRESS a number; of MULTI_LABEL the labels of the row: a list
                           of JSON, or text with `separator` between them. Or, with commas between
                           them, several columns of 1 and 0, which are the labels */
    const char *target; /* the text to be generated */
    /* A conversation, in place of text and target: a list of {"role": ..., "content": ...} in a
     * file of JSON Lines. Each message of the assistant becomes a row: what comes before it as
     * prompt, "User: Hello\nAssistant:", and what it says, " Hi", as target (docs/data.md). */
    const char *messages;
    /* The format of conversations, for decoders: a row is then a whole conversation with the
     * format's markers, and only the assistant's tokens are targets. 0: rows as above. */
    mc_chat_format chat_format;
    mc_task_kind kind;      /* 0: GENERATE with a target, CLASSIFY with a label, else TEXT */
    const char *separator;  /* of several labels in one column; NULL: "|" */
    mc_table_format format; /* of the file, where its name does not say it */
    /* The labels there are, in their order: those a model was trained with, say; rows mean them as
     * datasets/labels.h says, another one is an error. NULL: those that the rows hold, sorted: as
     * numbers if all of them are numbers (1, 2, 10), else by their bytes. */
    const char *const *label_names;
    int labels;
    /* The names are a proposal, those of a model that is trained further: they are the labels if
     * the rows' labels fit them (mc_labels_fit); else the labels are those that the rows hold. */
    bool labels_proposed;
} mc_data_columns;

/* The format of its conversations; 0 if they have none, or if `dataset` is NULL. */
MC_API mc_chat_format mc_dataset_chat_format(const mc_dataset *dataset);

/* The rows of a file (datasets/table.h), or of all files that a pattern matches. `options` may be
 * NULL. The names of columns are copied. Errors (NULL), of rows with their place: what
 * mc_table_open refuses; a column that is not there; a file without rows; a value that is missing
 * or no number; a label that is not among those given; more than MC_DATASET_MAX_LABELS labels, or
 * less than two where rows have one each; GENERATE with a family that does not. */
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

/* The same of an array. */
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

/* Frees the dataset; loaders made from it keep what they need until they are freed themselves. NULL
 * is allowed. */
MC_API void mc_dataset_free(mc_dataset *dataset);

MC_API int64_t mc_dataset_rows(const mc_dataset *dataset);      /* repeated rows count each time */
MC_API mc_task_kind mc_dataset_kind(const mc_dataset *dataset); /* 0 for NULL */
/* Classes, or labels; 0 where rows have none. */
MC_API int mc_dataset_labels(const mc_dataset *dataset);
/* The name of class k, e.g. "entailment"; NULL if out of range. */
MC_API const char *mc_dataset_label_name(const mc_dataset *dataset, int k);
/* Units the classifier needs: one a class or label; 1 for a number, and where a row has several
 * inputs, whose logits side by side, (rows * choices, 1) seen as (rows, choices), are those of the
 * row. 0: none, of GENERATE, ANSWER and TEXT. */
MC_API int mc_dataset_outputs(const mc_dataset *dataset);
/* "BoolQ"; NULL for your own data. */
MC_API const char *mc_dataset_task(const mc_dataset *dataset);
MC_API const char *mc_dataset_path(const mc_dataset *dataset); /* the (first) file that was read */

#endif
