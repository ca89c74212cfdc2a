/* The zoo's one handle: a model of any family, loaded, run, trained, generated from and saved by
 * the same functions.
 *
 *     mc_model *bert = mc_model_from_pretrained(ctx, "bert-base-uncased", NULL);
 *     mc_tape *t = mc_tape_begin_eval(ctx);
 *     mc_tensor *pooled = mc_model_forward(t, bert, &(mc_model_input){.ids = ids}).pooled;
 *
 * A family's own header (models/t5/t5.h, ...) adds its config, typed, and what is particular about
 * it; its mc_<family>_new and mc_<family>_from_pretrained return an mc_model too.
 *
 * Parameters carry ModelCenter's names. Files are read under those and under Hugging Face's, and
 * written under Hugging Face's, but for families that have no such form (CPM).
 *
 * Vocabularies are stored with rows of zeros after their own, up to a multiple of 128, so that the
 * products of the head have a good size. No id selects them, logits and losses leave them out,
 * files and counts don't hold them, and optimizers don't touch them. */
#ifndef MC_MODELS_MODEL_H
#define MC_MODELS_MODEL_H

#include <stddef.h>
#include "core/checkpoint/pretrained.h"
#include "core/ops/ops.h"
#include "datasets/prompt.h"
#include "tokenizers/tokenizer.h"

typedef struct mc_model mc_model;

typedef enum mc_model_kind {
    MC_MODEL_ENCODER = 1, /* every token sees all others: BERT */
    MC_MODEL_DECODER,     /* a token sees those before it: GPT-2 */
    MC_MODEL_ENCODER_DECODER,
} mc_model_kind;

/* ---- making, loading, saving ----------------------------------------------------------------- */

/* The parts that stand on the stack of blocks. */
typedef struct mc_model_heads {
    bool pooler; /* of BERT: tanh(dense(first token)) */
    bool lm;     /* the language model, of an encoder a masked one */
    bool nsp;    /* of BERT: next sentence; needs the pooler */
    int labels;  /* classes of a sequence classifier of Hugging Face's form; 0: none */
    /* Units of ModelCenter's "cls_head", which takes the language model's place and gives logits of
     * each token; 0: none. */
    int token_labels;
    /* ELECTRA's discriminator, which takes the language model's place: mc_model_logits gives (rows,
     * 1), positive where a token is held for a replaced one, and mc_model_loss takes labels of 1
     * (replaced), 0 and -100 (does not count). */
    bool replaced;
} mc_model_heads;

enum { MC_MODEL_MAX_LABELS = 1024 };

/* A model with weights, from a folder, an identifier, whose files come from the Hugging Face cache
 * or, where it lacks them, the hub (core/hub/hub.h), or one of llm.c's checkpoints of GPT-2 (.bin).
 * config.json says of which family it is: Hugging Face's by "model_type", ModelCenter's by their
 * keys and by the names of the weights. Weights are in safetensors or PyTorch's files: see
 * mc_tensor_file_open. A wrapper's prefix that all names have ("_orig_mod.", "module.", "model.")
 * is taken off, and a table that words and head share may have either name. The model has the heads
 * that the file has, and a classifier if options->num_labels asks for one. Errors: a missing key or
 * tensor (all listed), a key or value that is not supported, wrong shapes or dtypes, damaged files.
 * Warnings through the log: keys that are not known, tensors that nothing takes. */
MC_API mc_model *mc_model_from_pretrained(mc_context *ctx, const char *identifier,
                                          const mc_load_options *options);
/* The same for one family ("t5"); another family's folder is MC_ERR_UNSUPPORTED. ModelCenter's
 * configs, which name no family, are read as this one's if the weights' names can be. NULL: any. */
MC_API mc_model *mc_model_from_pretrained_of(mc_context *ctx, const char *family,
                                             const char *identifier,
                                             const mc_load_options *options);
/* A model with initial weights. `config` is the name of a shape of the family, a folder, or a
 * config.json of either form; `family` NULL: that of the config. `heads` may be NULL: those a new
 * model is trained with (a pooler and options->num_labels classes, or the language model). Errors
 * as above; an unknown name is MC_ERR_NOT_FOUND and lists those that there are. */
MC_API mc_model *mc_model_new(mc_context *ctx, const char *family, const char *config,
                              const mc_model_heads *heads, const mc_load_options *options);
/* Writes a model and its tokenizer into one folder (made if need be), from which
 * mc_model_from_pretrained and mc_tokenizer_from_pretrained open them, and `transformers` too: what
 * mc_tokenizer_save and mc_model_save_as write, with their errors. `options` may be NULL. The files
 * take their places together, in place of the model there. Ranks call it together. */
MC_API mc_status mc_save_pretrained(mc_model *model, const mc_tokenizer *tokenizer,
                                    const char *folder, const mc_save_options *options);
/* The model alone. Writes config.json, model.safetensors and the generation_config.json that it
 * came with into a folder (made if need be), for from_pretrained here and in `transformers`. All
 * are written aside and synced to disk before any takes its name, each in one step: a crash leaves
 * whole files, and a folder that loads. Weights have the dtype they have in memory. What has no
 * Hugging Face form is MC_ERR_UNSUPPORTED and says why.
 *
 * Ranks load and save together, from and to files that all of them see. Each reads and writes its
 * share of the bytes only, and the files do not depend on how many ranks there were. */
MC_API mc_status mc_model_save(mc_model *model, const char *folder);
/* The same with options (NULL: none): the form, weights in several files. ModelCenter's form cannot
 * say everything: what would be computed differently is MC_ERR_UNSUPPORTED and names the key.
 * Several files and their index
 * replace older weights as one: a loader finds either. On a file system without hard links a crash
 * may leave no index where there was one with as many files. Files that an older save has left are
 * removed. */
MC_API mc_status mc_model_save_as(mc_model *model, const char *folder,
                                  const mc_save_options *options);
MC_API void mc_model_free(mc_model *model); /* NULL is allowed */

/* ---- what it is ------------------------------------------------------------------------------ */

/* The sizes of a model, of whatever family. */
typedef struct mc_model_shape {
    mc_model_kind kind;
    int64_t vocab_size, dim, dim_ff, heads, head_dim;
    int64_t key_heads;      /* of keys and values, where they are fewer (grouped heads); else 0 */
    int64_t layers;         /* of the encoder, or of the only stack */
    int64_t decoder_layers; /* of an encoder-decoder's decoder, else 0 */
    int64_t positions;      /* tokens at most of a sequence; 0: no limit */
    int64_t types;          /* token types; 0: none */
    /* Tokens by their use; -1: none. The first of those that end a text, where there are several;
     * what an encoder-decoder's decoder begins with. */
    int64_t pad_token, bos_token, eos_token, start_token;
} mc_model_shape;

MC_API const char *mc_model_family(const mc_model *model); /* "bert"; NULL for NULL */
MC_API mc_model_shape mc_model_get_shape(const mc_model *model);
MC_API mc_model_heads mc_model_get_heads(const mc_model *model);
MC_API int64_t mc_model_dim(const mc_model *model); /* 0 for NULL */
MC_API mc_module *mc_model_module(mc_model *model);
/* All probabilities of dropout, each in [0, 1); 0 switches it off. */
MC_API mc_status mc_model_set_dropout(mc_model *model, float p);
/* How much of the blocks' forward pass is run again in backward. May be changed between tapes. */
MC_API mc_status mc_model_set_recompute(mc_model *model, mc_recompute recompute);
MC_API const char *mc_model_label_name(const mc_model *model, int label); /* NULL: no such label */

/* ---- forward --------------------------------------------------------------------------------- */

/* What a batch may hold. A field that the family cannot use is an error that names it. */
typedef struct mc_model_input {
    /* i32 or i64 token ids: packed (capacity) with lengths, or (batch, longest). */
    mc_tensor *ids;
    /* Lengths of the sequences. NULL: those that `ids` carries; without any, all of ids (batch,
     * longest) counts. With ids (batch, longest), tokens from a row's length on are padding and are
     * not computed. With lengths of mc_lengths_new ids are packed, and may have room for more than
     * the capacity. Positions begin at 0 in every sequence. */
    const mc_lengths *lengths;
    /* For masks that are not lengths: u8, bool, i32 or i64 (batch, longest), 0 = nobody attends to
     * this token. All tokens are computed. Only with ids (batch, longest) and no lengths. */
    mc_tensor *mask;
    mc_tensor *type_ids; /* token types, of the ids' shape; NULL: all 0. BERT */
    /* Of encoder-decoders: the decoder's ids (which begin with the start token: see
     * mc_model_shift_right) and their lengths, as above; of as many sequences. */
    mc_tensor *decoder_ids;
    const mc_lengths *decoder_lengths;
    /* Of CPM-1, of the ids' shape: context tokens (1) are seen by all of their span and see context
     * alone, others (0) also those before them; NULL: all 0. Tokens see those of their own span
     * (a number from 0 on) only; NULL: all of one. */
    mc_tensor *context, *span;
    /* The same as one: i32 (capacity), 2 * span + context of each packed token, in place of the
     * two. Kernels read it where it is, so that a recorded step (core/autograd/step.h) takes it as
     * a tensor of the context; context and span are read on the host. */
    mc_tensor *marks;
    /* Also give the hidden states and the attention probabilities of every layer; the latter on
     * evaluation tapes only, and slowly. */
    bool hidden_states, attentions;
} mc_model_input;

typedef struct mc_model_output {
    /* Packed (rows, dim), of the decoder if there is one; mc_unpack gives (batch, longest, dim). */
    mc_tensor *last_hidden;
    mc_tensor *ids;                 /* the input's, packed: classifiers look for tokens in them */
    mc_tensor *pooled;              /* (batch, dim); NULL without a pooler */
    mc_tensor *encoder_last_hidden; /* of encoder-decoders, virtual tokens included */
    /* last_hidden with the rows of virtual tokens before those of each sequence (soft prompts:
     * adapters/adapter.h); last_hidden without them, NULL for an encoder-decoder. */
    mc_tensor *with_prompt;
    /* The result of the embedding and of each layer, the last as `with_prompt`: layers + 1 of the
     * encoder (or the only stack), decoder_layers + 1 of the decoder. NULL unless asked for. */
    mc_tensor **hidden_states, **decoder_hidden_states;
    /* f32 (batch, heads, longest, longest keys), one a layer. NULL unless asked for. */
    mc_tensor **attentions, **decoder_attentions, **cross_attentions;
} mc_model_output;

/* All NULL after an error: an id out of range (named), a sequence longer than the positions, shapes
 * that don't fit, a field that the family has no use for, one that it requires and that is NULL. */
MC_API mc_model_output mc_model_forward(mc_tape *t, mc_model *model, const mc_model_input *input);

/* ---- heads ----------------------------------------------------------------------------------- */

/* Logits (rows, vocab_size) of the language model for each row of last_hidden: of the token that
 * follows, or of the token itself for a masked language model. With token_labels (rows,
 * token_labels). They exist whole: use it for evaluation and for few rows. */
MC_API mc_tensor *mc_model_logits(mc_tape *t, mc_model *model, mc_tensor *hidden);
/* The language model's loss against labels (rows) of i32 or i64, where labels[i] belongs to row i
 * (-100: does not count): of a decoder the token that FOLLOWS row i, as data loaders of token
 * files give them (nothing is shifted here, see mc_model_shift_labels), of an encoder the token
 * that was masked, of an encoder-decoder the target that decoder row i shall give. Any shape of as
 * many elements will do; with lengths of mc_lengths_new they may have room for more than the
 * capacity. Computed without whole logits; the gradients of the head are added in this call
 * already (see mc_linear_cross_entropy). */
MC_API mc_tensor *mc_model_loss(mc_tape *t, mc_model *model, mc_tensor *hidden, mc_tensor *labels);
/* Labels that stand beside their own tokens, as Hugging Face's decoders take them (often the ids
 * again), as those of mc_model_loss: each sequence moves up by one, and its last row does not
 * count. `labels` have the shape that the ids had: packed, or (batch, length); `hidden` is what
 * forward returned, whose lengths say where sequences end. The result is i32 (rows). Reads the
 * labels on the host. */
MC_API mc_tensor *mc_model_shift_labels(mc_tape *t, mc_tensor *hidden, mc_tensor *labels);
/* The decoder's ids for given targets, as Hugging Face's T5 makes them: the start token, then the
 * targets but for the last; -100 becomes the pad token. `labels` (batch, length), or packed with
 * `lengths`; the result is i32 of that shape. Reads the labels on the host. */
MC_API mc_tensor *mc_model_shift_right(mc_tape *t, mc_model *model, mc_tensor *labels,
                                       const mc_lengths *lengths);
/* Logits (batch, labels) of the sequence classifier, as Hugging Face's heads compute them: BERT's
 * from `pooled`, RoBERTa's from the first token, GPT-2's and GPT-J's from the last that is not the
 * config's pad_token_id (the first, if all are; without a pad_token_id, or after a soft prompt,
 * from the last), T5's from the decoder's where the ids' last end of text is, without which it is
 * an error; dropout comes first where theirs does. */
MC_API mc_tensor *mc_model_classify(mc_tape *t, mc_model *model, const mc_model_output *output);
/* Logits (batch, 2) of BERT's next sentence head: 0 = the second sentence follows. */
MC_API mc_tensor *mc_model_nsp_logits(mc_tape *t, mc_model *model, mc_tensor *pooled);

#endif
