/* A model of any family. The same functions load, run, train, generate from and save it.
 *
 *     mc_model *bert = mc_model_from_pretrained(ctx, "bert-base-uncased", NULL);
 *     mc_tape *t = mc_tape_begin_eval(ctx);
 *     mc_tensor *pooled = mc_model_forward(t, bert, &(mc_model_input){.ids = ids}).pooled;
 *
 * A family's own header (models/t5/t5.h, ...) adds a typed config and the family's particular
 * functions; its mc_<family>_new and mc_<family>_from_pretrained return an mc_model too.
 *
 * Parameters have ModelCenter's names. Files are read with those or Hugging Face's names, and
 * written with Hugging Face's, except for families without such a form (CPM).
 *
 * Vocabularies are padded with rows of zeros to a multiple of 128, so that the products of the head
 * have an efficient size. No id selects these rows; logits, losses, files, counts and optimizers
 * ignore them.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_MODELS_MODEL_H
#define MC_MODELS_MODEL_H

#include <stddef.h>
#include "core/checkpoint/pretrained.h"
#include "core/ops/ops.h"
#include "datasets/prompt.h"
#include "tokenizers/tokenizer.h"

typedef struct mc_model mc_model;

typedef enum mc_model_kind {
    MC_MODEL_ENCODER = 1, /* every token attends to all others: BERT */
    MC_MODEL_DECODER,     /* a token attends to itself and earlier ones: GPT-2 */
    MC_MODEL_ENCODER_DECODER,
} mc_model_kind;

/* ---- making, loading, saving ----------------------------------------------------------------- */

/* The heads on top of the stack of blocks. */
typedef struct mc_model_heads {
    bool pooler; /* of BERT: tanh(dense(first token)) */
    bool lm;     /* the language model's; for an encoder a masked one */
    bool nsp;    /* of BERT: next sentence; needs the pooler */
    int labels;  /* classes of a sequence classifier of Hugging Face's form; 0: none */
    /* Outputs of ModelCenter's "cls_head", which replaces the language model's head and computes
     * logits for each token; 0: none. */
    int token_labels;
    /* ELECTRA's discriminator instead of the language model's head: mc_model_logits gives (rows,
     * 1), positive for a token that seems to be replaced; mc_model_loss takes labels of 1
     * (replaced), 0 and -100 (ignored). */
    bool replaced;
} mc_model_heads;

enum { MC_MODEL_MAX_LABELS = 1024 };

/* Loads a model with weights from a folder, an identifier (from the Hugging Face cache or else the
 * hub, core/hub/hub.h), or one of llm.c's checkpoints of GPT-2 (.bin). config.json determines the
 * family: Hugging Face's by "model_type", ModelCenter's by its keys and the names of the weights.
 * Weights are in safetensors or PyTorch's files: see mc_tensor_file_open. A wrapper's prefix of all
 * names ("_orig_mod.", "module.", "model.") is removed, and a table shared by word embedding and
 * head may have either name. The model has the heads that the file has, and a classifier if
 * options->num_labels asks for one. Errors: a missing key or tensor (all listed), a key or value
 * that is not supported, wrong shapes or dtypes, damaged files. Unknown keys and unused tensors are
 * logged as warnings. */
MC_API mc_model *mc_model_from_pretrained(mc_context *ctx, const char *identifier,
                                          const mc_load_options *options);
/* mc_model_from_pretrained for one family ("t5"; NULL: any). Another family's folder is
 * MC_ERR_UNSUPPORTED. ModelCenter's configs, which name no family, are read as this one's if the
 * names of the weights allow it. */
MC_API mc_model *mc_model_from_pretrained_of(mc_context *ctx, const char *family,
                                             const char *identifier,
                                             const mc_load_options *options);
/* Creates a model with initial weights. `config` is the name of a shape of the family, a folder, or
 * a config.json of either form. `family` NULL: the config's. `heads` NULL: the usual heads for
 * training (a pooler and options->num_labels classes, or the language model). Errors as above; an
 * unknown name is MC_ERR_NOT_FOUND, and the message lists the known ones. */
MC_API mc_model *mc_model_new(mc_context *ctx, const char *family, const char *config,
                              const mc_model_heads *heads, const mc_load_options *options);
/* Writes a model and its tokenizer into one folder (created if needed), for
 * mc_model_from_pretrained, mc_tokenizer_from_pretrained and `transformers`. It writes what
 * mc_tokenizer_save and mc_model_save_as write, with their errors, and replaces the model in the
 * folder as a whole. `options` may be NULL, as may the tokenizer of a model of images. Ranks call
 * it together. */
MC_API mc_status mc_save_pretrained(mc_model *model, const mc_tokenizer *tokenizer,
                                    const char *folder, const mc_save_options *options);
/* Writes the model without a tokenizer: config.json, model.safetensors and the
 * generation_config.json that it was loaded with, into a folder (created if needed), for
 * from_pretrained here and in `transformers`. All files are written under temporary names and
 * synced before any is renamed, so after a crash all files are complete and the folder still loads.
 * Weights keep their dtype in memory. A model without a Hugging Face form is MC_ERR_UNSUPPORTED;
 * the message gives the reason.
 *
 * Ranks load and save together, with files that all of them can access. Each reads and writes only
 * its share of the bytes, and the files do not depend on the number of ranks. */
MC_API mc_status mc_model_save(mc_model *model, const char *folder);
/* mc_model_save with options (NULL: none): the form, and weights in several files. ModelCenter's
 * form cannot express every model: a setting that would change results is MC_ERR_UNSUPPORTED, and
 * the message names its key. Several files and their index replace older weights atomically: a
 * loader finds either the old or the new ones. On a file system without hard links, a crash may
 * lose the index if the old one had the same number of files. Files of an older save are
 * removed. */
MC_API mc_status mc_model_save_as(mc_model *model, const char *folder,
                                  const mc_save_options *options);
MC_API void mc_model_free(mc_model *model); /* NULL is allowed */

/* ---- properties ------------------------------------------------------------------------------ */

/* The sizes of a model of any family. */
typedef struct mc_model_shape {
    mc_model_kind kind;
    int64_t vocab_size, dim, dim_ff, heads, head_dim;
    int64_t key_heads;      /* heads of keys and values, if fewer than heads (grouped heads); else
                               0 */
    int64_t layers;         /* of the encoder, or of the only stack */
    int64_t decoder_layers; /* of an encoder-decoder's decoder, else 0 */
    int64_t positions;      /* the longest sequence in tokens; 0: no limit */
    int64_t types;          /* token types; 0: none */
    /* Special tokens; -1: none. eos_token is the first one if several end a text; start_token
     * begins the decoder of an encoder-decoder. */
    int64_t pad_token, bos_token, eos_token, start_token;
} mc_model_shape;

MC_API const char *mc_model_family(const mc_model *model); /* "bert"; NULL for NULL */
MC_API mc_model_shape mc_model_get_shape(const mc_model *model);
MC_API mc_model_heads mc_model_get_heads(const mc_model *model);
MC_API int64_t mc_model_dim(const mc_model *model); /* 0 for NULL */
MC_API mc_module *mc_model_module(mc_model *model);
/* Sets all dropout probabilities to p in [0, 1); 0 turns dropout off. */
MC_API mc_status mc_model_set_dropout(mc_model *model, float p);
/* Sets how much of the blocks' forward pass backward recomputes. May be changed between tapes. */
MC_API mc_status mc_model_set_recompute(mc_model *model, mc_recompute recompute);
MC_API const char *mc_model_label_name(const mc_model *model, int label); /* NULL: no such label */

/* ---- forward --------------------------------------------------------------------------------- */

/* The inputs of a batch. Setting a field that the family does not use is an error that names the
 * field. */
typedef struct mc_model_input {
    /* i32 or i64 token ids: packed (capacity) with lengths, or (batch, longest). */
    mc_tensor *ids;
    /* Lengths of the sequences. NULL: the lengths that `ids` carries; if it carries none, all of
     * ids (batch, longest). With ids (batch, longest), tokens from a row's length on are padding
     * and are not computed. With lengths of mc_lengths_new, ids are packed and may be larger than
     * the capacity. Positions begin at 0 in every sequence. */
    const mc_lengths *lengths;
    /* For masks that lengths cannot express: u8, bool, i32 or i64 (batch, longest), 0 = no token
     * attends to this one. All tokens are computed. Only with ids (batch, longest) and no
     * lengths. */
    mc_tensor *mask;
    mc_tensor *type_ids; /* token types, of the ids' shape; NULL: all 0. BERT */
    /* For encoder-decoders: the decoder's ids (which begin with the start token: see
     * mc_model_shift_right) and their lengths, as above; the same number of sequences. */
    mc_tensor *decoder_ids;
    const mc_lengths *decoder_lengths;
    /* For CPM-1, of the ids' shape. Tokens attend only within their own span (a number from 0 on;
     * `span` NULL: one span). In it, all tokens attend to context tokens (1); other tokens (0) also
     * attend to earlier tokens. `context` NULL: all 0. */
    mc_tensor *context, *span;
    /* Instead of these two: i32 (capacity), 2 * span + context of each packed token. Kernels read
     * it directly, so in a recorded step (core/autograd/step.h) it may be a tensor of the context;
     * context and span are read on the host. */
    mc_tensor *marks;
    /* For Longformer, u8, bool, i32 or i64 of the ids' shape: 1 = a global token, which attends to
     * all tokens and to which all attend. Read on the host. NULL: the first token of each sequence
     * for a classifier, else none. */
    mc_tensor *global_mask;
    /* For families of images (ViT), in place of all the fields above: floats (batch, channels,
     * size, size). */
    mc_tensor *pixels;
    /* Also return the hidden states and the attention probabilities of every layer; the latter only
     * on evaluation tapes, and slowly. */
    bool hidden_states, attentions;
} mc_model_input;

typedef struct mc_model_output {
    /* Packed (rows, dim), from the decoder if the model has one; mc_unpack returns (batch, longest,
     * dim). */
    mc_tensor *last_hidden;
    mc_tensor *ids;                 /* the input's, packed: classifiers look for tokens in them */
    mc_tensor *pooled;              /* (batch, dim); NULL without a pooler */
    mc_tensor *encoder_last_hidden; /* of encoder-decoders, virtual tokens included */
    /* last_hidden with the rows of virtual tokens before each sequence (soft prompts:
     * adapters/adapter.h). Without a soft prompt it is last_hidden; NULL for an encoder-decoder. */
    mc_tensor *with_prompt;
    /* The results of the embedding and of each layer (the last one is `with_prompt`): layers + 1 of
     * the encoder (or the only stack), decoder_layers + 1 of the decoder. NULL unless requested. */
    mc_tensor **hidden_states, **decoder_hidden_states;
    /* f32 (batch, heads, longest, longest keys), one per layer. NULL unless requested. */
    mc_tensor **attentions, **decoder_attentions, **cross_attentions;
} mc_model_output;

/* All NULL after an error: an id out of range (named), a sequence longer than the positions, shapes
 * that don't fit, a field that the family does not use, a required field that is NULL. */
MC_API mc_model_output mc_model_forward(mc_tape *t, mc_model *model, const mc_model_input *input);

/* ---- heads ----------------------------------------------------------------------------------- */

/* Returns the language model's logits (rows, vocab_size) for each row of last_hidden: of the next
 * token, or of the token itself for a masked language model. With token_labels: (rows,
 * token_labels). The whole tensor is allocated: use it for evaluation and for few rows. */
MC_API mc_tensor *mc_model_logits(mc_tape *t, mc_model *model, mc_tensor *hidden);
/* Returns the language model's loss against labels (rows) of i32 or i64. labels[i] is the label of
 * row i (-100: ignored): for a decoder the token that FOLLOWS row i, as loaders of token files
 * return it (nothing is shifted here, see mc_model_shift_labels); for an encoder the token that was
 * masked; for an encoder-decoder the target of decoder row i. Labels may have any shape with this
 * number of elements; with lengths of mc_lengths_new they may be larger than the capacity. The
 * logits never exist as a whole. The gradients of the head are added in this call (see
 * mc_linear_cross_entropy). */
MC_API mc_tensor *mc_model_loss(mc_tape *t, mc_model *model, mc_tensor *hidden, mc_tensor *labels);
/* Converts labels in Hugging Face's form, where each row's label is its own token (often the ids
 * themselves), to those of mc_model_loss: shifts each sequence by one, and its last row is ignored.
 * `labels` have the shape of the ids: packed, or (batch, length). `hidden` is the result of
 * forward, whose lengths give the ends of sequences. The result is i32 (rows). Reads the labels on
 * the host. */
MC_API mc_tensor *mc_model_shift_labels(mc_tape *t, mc_tensor *hidden, mc_tensor *labels);
/* Returns the decoder's ids for given targets, as Hugging Face's T5 computes them: the start token,
 * then all targets but the last; -100 becomes the pad token. `labels` (batch, length), or packed
 * with `lengths`; the result is i32 of that shape. Reads the labels on the host. */
MC_API mc_tensor *mc_model_shift_right(mc_tape *t, mc_model *model, mc_tensor *labels,
                                       const mc_lengths *lengths);
/* Returns the sequence classifier's logits (batch, labels), as Hugging Face's heads compute them,
 * dropout included. BERT reads `pooled`; RoBERTa the first token; GPT-2 and GPT-J the last token
 * that is not the config's pad_token_id (the first token if all are; the last one without a
 * pad_token_id or after a soft prompt); T5 the decoder's row at the last end-of-text token of the
 * ids, which must exist. */
MC_API mc_tensor *mc_model_classify(mc_tape *t, mc_model *model, const mc_model_output *output);
/* Logits (batch, 2) of BERT's next sentence head: 0 = the second sentence follows. */
MC_API mc_tensor *mc_model_nsp_logits(mc_tape *t, mc_model *model, mc_tensor *pooled);

#endif
