/* Objectives of pretraining: they turn windows of a token stream into a model's inputs and targets.
 *
 *     mc_objective_options o = { .style = *mc_family_objective("bert"), .seq_length = 128, ... };
 *     mc_lm_loader *loader = mc_lm_loader_new(file, &(mc_lm_loader_options){
 *                                .seq_length = mc_objective_window(ctx, &o), ... });
 *     mc_objective *train = mc_objective_new(loader, elsewhere, &o);
 *     for (const mc_objective_batch *b; (b = mc_objective_next(train)); )
 *         ... b->field[MC_FIELD_IDS], b->field[MC_FIELD_TARGETS] ...
 *
 * models/pretraining.h has the objective of each family, and the loss of a batch.
 *
 * The random choices for a sequence (masked tokens, places of spans, the second sentence) depend
 * only on the loader's seed, the epoch and the sequence's place in the epoch. So they are the same
 * at any number of ranks and after a resume, and new in every epoch. All batches of an objective
 * have the same shapes, as recorded steps need it.
 *
 * Windows are cut from the stream as datasets/lm.h says; they may hold the end of one document and
 * the beginning of the next.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_DATASETS_OBJECTIVE_H
#define MC_DATASETS_OBJECTIVE_H

#include "datasets/lm.h"
#include "tokenizers/tokenizer.h"

typedef enum mc_objective_kind {
    /* The model predicts each token's successor (GPT-2, GPT-J). A window has seq_length tokens. */
    MC_OBJECTIVE_NEXT_TOKEN = 1,
    /* BERT's (Devlin et al. 2019): a share of the tokens is chosen, and the model predicts them. Of
     * the chosen ones, 80 % are replaced by the mask, 10 % by a random token of the vocabulary, and
     * 10 % stay. Special tokens are never chosen. The number of chosen tokens is round(share *
     * window), or less if whole words do not fit or the window has too few other tokens.
     *
     * A sequence is [CLS] window [SEP], with a window of seq_length - 2 tokens. With
     * `next_sentence` it is [CLS] A [SEP] B [SEP]. In half of the sequences (label 0) A and B are
     * the two parts of a window of seq_length - 3 tokens, cut at a random place; in the others
     * (label 1) B comes from another window. */
    MC_OBJECTIVE_MASKED,
    /* T5's span corruption (Raffel et al. 2020): a share of the window is in spans of a given mean
     * length, at random places. In the input a sentinel replaces each span. The target consists of
     * each sentinel with its span after it. The window's length is chosen so that the input has
     * seq_length tokens. */
    MC_OBJECTIVE_SPANS,
    /* CPM-1's (ModelCenter): the tokens of each document in a window are a span of their own, and
     * attend only to that span. The model predicts, one after the other, the tokens from a random
     * place between an eighth and a quarter of the span to a random place after three quarters (to
     * the span's end if the document ends there). The other tokens are context. Spans of fewer than
     * 32 tokens have no targets. A window has seq_length tokens. */
    MC_OBJECTIVE_CONTEXT,
} mc_objective_kind;

/* The objective of a family's pretraining. Strings are names of tokens. */
typedef struct mc_objective_style {
    mc_objective_kind kind;
    bool next_sentence;     /* MASKED: sequences are pairs */
    const char *sentinel;   /* SPANS: "<extra_id_%d>", the name of the i-th from 0 on */
    const char *start;      /* SPANS: the decoder's first token; NULL: tokens.start is given */
    const char *input_end;  /* SPANS: added at the end of an input; NULL: nothing */
    const char *target_end; /* SPANS: added at the end of a target; NULL: one more sentinel */
} mc_objective_style;

enum { MC_SENTINELS = 256 };

/* Ids of the tokens that an objective inserts. -1: none. */
typedef struct mc_objective_tokens {
    int32_t mask, begin, separator;       /* MASKED: [MASK], [CLS], [SEP] */
    int32_t start, input_end, target_end; /* SPANS */
    int32_t sentinel[MC_SENTINELS];       /* SPANS: sentinel_count of them */
    int sentinel_count;
    int32_t end_of_text; /* CONTEXT: ends a document */
} mc_objective_tokens;

/* Finds a style's tokens in a tokenizer. A NULL tokenizer has no tokens: MC_ERR_ARGUMENT for MASKED
 * and SPANS, which insert some. MC_ERR_NOT_FOUND, set in the context, names a token that the
 * tokenizer does not have. */
MC_API mc_status mc_objective_find_tokens(mc_context *ctx, const mc_objective_style *style,
                                          const mc_tokenizer *tok, mc_objective_tokens *tokens);

typedef struct mc_objective_options {
    mc_objective_style style;   /* required: the kind, and next_sentence; names are not read */
    int seq_length;             /* tokens of a sequence (for an encoder-decoder, the encoder's) */
    mc_objective_tokens tokens; /* those of the kind are required */
    int64_t vocabulary;         /* MASKED: random tokens are below it; required */
    double mask_probability;    /* MASKED: the share of masked tokens. 0: 0.15 */
    /* MASKED: choose whole words; this tokenizer says which tokens continue one
     * (mc_tokenizer_continues), and must outlive the objective. NULL: choose single tokens. */
    const mc_tokenizer *whole_words;
    double noise_density;    /* SPANS: the share of tokens in spans. 0: 0.15 */
    double mean_span_length; /* SPANS: 0: 3 */
} mc_objective_options;

/* The arrays of a batch, each i32 (sequences, width of the field), sequence by sequence. */
typedef enum mc_objective_field {
    MC_FIELD_IDS,         /* width seq_length */
    MC_FIELD_TYPE_IDS,    /* seq_length: 0 for [CLS] A [SEP], 1 for B [SEP] */
    MC_FIELD_MARKS,       /* seq_length: 2 * span + context, as mc_model_input.marks */
    MC_FIELD_DECODER_IDS, /* width: the target's length */
    /* Rows of the batch's (sequences * seq_length) hidden states to which targets belong; without
     * this field the targets belong to all rows, in order. */
    MC_FIELD_TARGET_ROWS,
    MC_FIELD_TARGETS, /* the token to be predicted for the row; -100: ignored */
    MC_FIELD_LABELS,  /* width 1: 0 if B follows A, else 1 */
    MC_FIELDS
} mc_objective_field;

typedef struct mc_objective mc_objective;

/* Arrays belong to the objective and are valid until its next call. */
typedef struct mc_objective_batch {
    const int32_t *field[MC_FIELDS]; /* NULL for fields that the objective lacks */
    const mc_lm_batch *windows;      /* the loader's windows that the sequences are made of */
    int batch_size;                  /* sequences, on this rank */
    int64_t targets;                 /* number of targets on this rank that are not ignored */
    int64_t epoch, step;             /* see mc_lm_batch */
} mc_objective_batch;

/* Returns how many tokens of the stream a sequence takes: the seq_length for the loader. 0 after an
 * error, set in the context: an option that is missing or out of its range (named), or too few
 * sentinels. */
MC_API int mc_objective_window(mc_context *ctx, const mc_objective_options *options);
/* The width of a field; 0: batches do not have it. mc_objective_window must accept the options. */
MC_API int mc_objective_width(const mc_objective_options *options, mc_objective_field field);

/* Creates an objective from a loader with such windows. `elsewhere`, required for next_sentence and
 * only then, is a second loader of the same data and batch size with another seed: the B that does
 * not follow its A comes from there. The loaders must outlive the objective, which alone may use
 * them. Errors (NULL): those of mc_objective_window; a loader of other windows. A NULL loader gives
 * NULL. */
MC_API mc_objective *mc_objective_new(mc_lm_loader *loader, mc_lm_loader *elsewhere,
                                      const mc_objective_options *options);
/* Frees the objective before its context does. NULL is allowed. */
MC_API void mc_objective_free(mc_objective *objective);

/* Returns the next batch. NULL when mc_lm_loader_next returns NULL, and after an error of its own:
 * 1,024 consecutive sequences without a target, as with MC_OBJECTIVE_CONTEXT if all documents are
 * shorter than 32 tokens. Nothing is allocated. */
MC_API const mc_objective_batch *mc_objective_next(mc_objective *objective);
MC_API mc_lm_loader *mc_objective_loader(const mc_objective *objective);
/* Goes to a position of mc_lm_loader_position(mc_objective_loader(objective)): see
 * mc_lm_loader_seek. */
MC_API mc_status mc_objective_seek(mc_objective *objective, const mc_lm_position *position);

#endif
