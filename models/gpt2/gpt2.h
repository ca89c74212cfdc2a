/* GPT-2 (Radford et al. 2019): a pre-LN decoder with learned positions and a tied head.
 *
 * Numerics are Hugging Face's GPT2LMHeadModel, dropout included: after the embedding, on attention
 * probabilities, and after each sublayer's output. Parameters carry ModelCenter's names; files are
 * read and written under Hugging Face's, whose linear weights are stored transposed.
 *
 *     mc_gpt2 *gpt2 = mc_gpt2_from_pretrained(ctx, "gpt2", NULL);
 *     mc_tape *t = mc_tape_begin(ctx);
 *     mc_tensor *hidden = mc_gpt2_forward(t, gpt2, &(mc_gpt2_input){.ids = ids}).last_hidden;
 *     mc_tensor *loss = mc_gpt2_loss(t, gpt2, hidden, next);      next[i] follows ids[i]
 *
 * The word embedding is stored with rows of zeros behind the vocabulary, up to a multiple of
 * MC_GPT2_VOCAB_ALIGN, so that the products of the head have a good size. Nothing outside sees
 * them: no id selects them, logits and losses leave them out, files and counts don't hold them, and
 * optimizers don't touch them. */
#ifndef MC_MODELS_GPT2_H
#define MC_MODELS_GPT2_H

#include "core/checkpoint/pretrained.h"
#include "core/ops/ops.h"
#include "models/generate/generate.h"

typedef struct mc_gpt2 mc_gpt2;

enum { MC_GPT2_VOCAB_ALIGN = 128 };

/* The shape of a GPT-2; keys of Hugging Face's config.json and of ModelCenter's in brackets. Read
 * literally: a zero is a zero. Start from mc_gpt2_config_default() or mc_gpt2_config_named(). */
typedef struct mc_gpt2_config {
    int64_t vocab_size;       /* vocab_size */
    int64_t dim;              /* n_embd [dim_model] */
    int64_t dim_ff;           /* n_inner, 4 * n_embd where null [dim_ff] */
    int64_t layers;           /* n_layer [num_layers] */
    int64_t heads;            /* n_head [num_heads]; divides dim */
    int64_t positions;        /* n_positions or n_ctx [position_size] */
    mc_activation activation; /* activation_function [ffn_activate_fn]: gelu_new, gelu, relu */
    float eps;                /* layer_norm_epsilon [norm_eps] */
    float dropout;            /* resid_pdrop [dropout_p]: of each sublayer's output */
    float embedding_dropout;  /* embd_pdrop [dropout_p] */
    float attention_dropout;  /* attn_pdrop [dropout_p] */
    float init_std;           /* initializer_range [att_init_std] */
    bool tied;                /* tie_word_embeddings [tied]: the head is the word embedding */
    bool scale_attention;     /* scale_attn_weights [attn_scale]: scores over sqrt(head size) */
    bool scale_by_layer;      /* scale_attn_by_inverse_layer_idx: and over layer + 1, from 0 on */
    int64_t bos_token_id;     /* bos_token_id; -1: none */
    /* eos_token_id, which ends a generated text (the first, where the file lists several: all end
     * one); -1: none */
    int64_t eos_token_id;
} mc_gpt2_config;

/* gpt2's shape (124M), the defaults of Hugging Face's GPT2Config. */
MC_API mc_gpt2_config mc_gpt2_config_default(void);
/* A shape by name: gpt2-base (or gpt2), gpt2-medium, gpt2-large, gpt2-xl. Errors: another name is
 * MC_ERR_NOT_FOUND, with the names that there are; *config is left alone then. */
MC_API mc_status mc_gpt2_config_named(mc_context *ctx, const char *name, mc_gpt2_config *config);
/* Reads a config.json of Hugging Face's or ModelCenter's form (told apart by "dim_model") over the
 * defaults. Errors: what is malformed or out of range names file and key; other model types,
 * cross-attention, other activations are MC_ERR_UNSUPPORTED. */
MC_API mc_status mc_gpt2_config_read(mc_context *ctx, const char *path, mc_gpt2_config *config);

/* A GPT-2 with initial weights: normal(0, init_std), for the products that end a sublayer
 * normal(0, init_std / sqrt(2 * layers)); biases 0. `options` gives dtype and recompute. */
MC_API mc_gpt2 *mc_gpt2_new(mc_context *ctx, const mc_gpt2_config *config,
                            const mc_load_options *options);
/* A GPT-2 with weights from a folder or an identifier in the Hugging Face cache (no network), such
 * as gpt2, gpt2-medium, gpt2-large, gpt2-xl. Errors: missing tensors (all listed), wrong shapes or
 * dtypes, damaged files; options->num_labels is MC_ERR_UNSUPPORTED. */
MC_API mc_gpt2 *mc_gpt2_from_pretrained(mc_context *ctx, const char *identifier,
                                        const mc_load_options *options);
/* Writes config.json and model.safetensors into a folder (made if need be), for from_pretrained
 * here and in `transformers` (GPT2LMHeadModel). Both are written aside and synced to disk before
 * either takes its name, each in one step. Weights have the dtype they have in memory.
 *
 * Ranks load and save together, from and to files that all of them see. Each reads and writes its
 * share of the bytes only, and the files do not tell how many ranks there were. */
MC_API mc_status mc_gpt2_save(mc_gpt2 *gpt2, const char *folder);
MC_API void mc_gpt2_free(mc_gpt2 *gpt2);

MC_API mc_module *mc_gpt2_module(mc_gpt2 *gpt2);
MC_API int64_t mc_gpt2_dim(const mc_gpt2 *gpt2); /* 0 for NULL */
MC_API mc_gpt2_config mc_gpt2_get_config(const mc_gpt2 *gpt2);
/* Sets all three dropout probabilities; 0 switches dropout off. */
MC_API void mc_gpt2_set_dropout(mc_gpt2 *gpt2, float p);
/* How much of the blocks' forward pass is run again in backward. May be changed between tapes. */
MC_API void mc_gpt2_set_recompute(mc_gpt2 *gpt2, mc_recompute recompute);

/* ---- forward --------------------------------------------------------------------------------- */

typedef struct mc_gpt2_input {
    /* i32 or i64 token ids: packed (capacity) with lengths, or (batch, length). A (batch, length)
     * without lengths is the cheapest form: it is used as it is. */
    mc_tensor *ids;
    /* Lengths of the sequences. NULL: those that `ids` carries; without any, all of ids (batch,
     * length) counts. With ids (batch, longest), tokens from a row's length on are padding and are
     * not computed. Positions begin at 0 in every sequence. */
    const mc_lengths *lengths;
    /* For masks that are not lengths: u8, bool, i32 or i64 (batch, length), 0 = nobody attends to
     * this token. All tokens are computed, and positions count masked tokens too, as Hugging Face's
     * do. Only with ids (batch, length) and no lengths. */
    mc_tensor *mask;
} mc_gpt2_input;

typedef struct mc_gpt2_output {
    mc_tensor *last_hidden; /* packed (rows, dim), after the last norm; mc_unpack pads it */
} mc_gpt2_output;

/* NULL after an error: an id out of range (named), a sequence longer than the position table,
 * shapes that don't fit. */
MC_API mc_gpt2_output mc_gpt2_forward(mc_tape *t, mc_gpt2 *gpt2, const mc_gpt2_input *input);

/* Logits (rows, vocab_size) of the token after each row. They exist whole: use it for evaluation
 * and for few rows. */
MC_API mc_tensor *mc_gpt2_logits(mc_tape *t, mc_gpt2 *gpt2, mc_tensor *hidden);

/* The language model's loss against the next tokens: labels (rows) of i32 or i64, where labels[i]
 * is the token that FOLLOWS row i (-100: does not count), as data loaders of token files give them.
 * Nothing is shifted here; for labels that stand beside their own tokens, as Hugging Face's models
 * take them, see mc_gpt2_shift_labels. Any shape of as many elements will do. Computed without
 * whole logits; the gradients of the head are added in this call already (see
 * mc_linear_cross_entropy). */
MC_API mc_tensor *mc_gpt2_loss(mc_tape *t, mc_gpt2 *gpt2, mc_tensor *hidden, mc_tensor *labels);

/* Labels as Hugging Face's GPT2LMHeadModel takes them, labels[i] being the token at place i itself
 * (often the ids again), made into those of mc_gpt2_loss: each sequence moves up by one, and its
 * last row does not count. `labels` have the shape that the ids had: packed, or (batch, length);
 * `hidden` is what forward returned, whose lengths say where sequences end. The result is i32
 * (rows). Reads the labels on the host. */
MC_API mc_tensor *mc_gpt2_shift_labels(mc_tape *t, mc_tensor *hidden, mc_tensor *labels);

/* ---- generation ------------------------------------------------------------------------------ */

/* Begins answers to `count` prompts: prompts[i] is lengths[i] >= 1 ids. `options` may be NULL. The
 * prompts are run with the first mc_generator_next. Errors: an id out of range, an empty prompt, a
 * prompt and answer longer than the position table, an option out of range; num_beams over 1, since
 * the tokens of a beam search are only known at its end: use mc_gpt2_generate. */
MC_API mc_generator *mc_gpt2_generator_new(mc_gpt2 *gpt2, const int32_t *const *prompts,
                                           const int *lengths, int count,
                                           const mc_generate_options *options);
/* The answers as a whole, beam search included. NULL after an error. */
MC_API mc_generation *mc_gpt2_generate(mc_gpt2 *gpt2, const int32_t *const *prompts,
                                       const int *lengths, int count,
                                       const mc_generate_options *options);

#endif
