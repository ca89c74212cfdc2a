/* The stack that decoders are made of, GPT-2's and LLaMA's for two: words, blocks of causal
 * attention and a feed-forward with norms, a last norm, and the heads of a decoder. */
#ifndef MC_MODELS_DECODER_INTERNAL_H
#define MC_MODELS_DECODER_INTERNAL_H

#include "models/family_internal.h"

typedef struct mc_decoder_options {
    const char *list; /* of the blocks' and the last norm's names; NULL: "encoder" */
    int64_t layers, dim, dim_ff, heads;
    int64_t word_dim;  /* of words and of the result, projected to dim and back; 0: dim */
    int64_t positions; /* rows of the table of learned positions; 0: no table */
    /* Rows of that table before the one of position 0. Not 0: positions are a running sum of the
     * mask, and what it hides has the last of these rows, as OPT has it. */
    int64_t rows_before;
    bool norm_after;   /* a block's sublayers end in their norms, as BERT's */
    bool no_last_norm; /* none after the last block */
    bool parallel;     /* attention and feed-forward both read the block's input */
    bool one_norm;     /* which one norm of it serves then; else each has its own */
    bool rms_norm;     /* norms are RMSNorms */
    bool tied, head_bias, no_token_bias; /* the last: of ModelCenter's cls_head */
    const char *token_head;              /* the name of that head's weights; NULL: the usual one */
    float eps, dropout, embedding_dropout, attention_dropout;
    float init_std, embedding_std;  /* of attention and classifiers; of words and positions */
    float embedding_scale;          /* of the words' embeddings; 0: 1 */
    double scale;                   /* of attention's scores; 0: 1 / sqrt(head size) */
    bool scale_by_layer;            /* layer i's is divided by i + 1 */
    int64_t window_from;            /* attention.window is that of the layers from this one on */
    mc_attention_options attention; /* what the members above do not say */
    mc_feed_forward_options ffn;
} mc_decoder_options;

/* A family's `parts`. */
typedef struct mc_decoder_stack {
    mc_decoder_options o;
    mc_embedding *positions; /* NULL: no table */
    mc_linear *in, *out;     /* from word_dim to dim and back; NULL: they are the same */
    mc_layernorm *norm;      /* after the last block; NULL: none */
} mc_decoder_stack;

/* Options from a config that has members of these names; the other options are 0. */
#define MC_DECODER_OF(c)                                                                    \
    (mc_decoder_options)                                                                    \
    {                                                                                       \
        .layers = (c)->layers, .dim = (c)->dim, .dim_ff = (c)->dim_ff, .heads = (c)->heads, \
        .tied = (c)->tied, .eps = (c)->eps, .dropout = (c)->dropout,                        \
        .attention_dropout = (c)->attention_dropout, .init_std = (c)->init_std,             \
        .embedding_std = (c)->embedding_std, .ffn = {                                       \
            .activation = (c)->activation,                                                  \
            .init_std = mc_literal((c)->ffn_std)                                            \
        }                                                                                   \
    }

/* For `declare`: words, positions, blocks, norm and heads, in this order. False after an error. */
bool mc_decoder_declare(mc_model *m, const mc_decoder_options *options,
                        const mc_load_options *load);
/* A family's `decode`, `set_dropout` and `look`: mc_look_at_head. */
mc_tensor *mc_decoder_decode(mc_tape *t, mc_model *m, mc_stack_input *in);
void mc_decoder_set_dropout(mc_model *m, float p);
bool mc_decoder_look(mc_context *ctx, const mc_model_file *f, void *config, mc_model_heads *heads);

/* What the descriptions of these families say besides, but for `look`. */
#define MC_DECODER_FAMILY(f)                                                                       \
    MC_FAMILY_OF(f, mc_decoder_stack),                                                             \
        .classes = classes, .kind = MC_MODEL_DECODER, .prompt = MC_PROMPT_DECODER,                 \
        .objective = {.kind = MC_OBJECTIVE_NEXT_TOKEN}, .has = {.labels = true}, .mc_has = mc_has, \
        .mc_lacks = mc_lacks, .classifier = "score.weight", .decode = mc_decoder_decode,           \
        .classify = mc_score_last, .set_dropout = mc_decoder_set_dropout

/* Config rows that both families have. */
#define MC_DECODER_ROWS                                                                           \
    MC_ROW(TOKEN, bos_token_id, "bos_token_id", NULL, "50256", "-1", 0),                          \
        MC_ROW(TOKEN, eos_token_id, "eos_token_id", NULL, "50256", "-1", 0),                      \
        MC_ROW(TOKEN, pad_token_id, "pad_token_id", NULL, "-1", "-1", 0),                         \
        MC_OTHER_NAME(SIZE, dim, "hidden_size", 1),                                               \
        MC_OTHER_NAME(SIZE, positions, "max_position_embeddings", 1),                             \
        MC_OTHER_NAME(LAYERS, layers, "num_hidden_layers", 0),                                    \
        MC_OTHER_NAME(SIZE, heads, "num_attention_heads", 1), MC_ONLY(NULL, "norm_bias", "true"), \
        MC_ONLY(NULL, "ffn_bias", "true"), MC_ONLY(NULL, "length_scale", "false"),                \
        MC_ONLY_MC_ROWS, MC_KNOWN(NULL, "proj_init_std"), MC_KNOWN("summary_activation", NULL),   \
        MC_KNOWN("summary_first_dropout", NULL), MC_KNOWN("summary_proj_to_labels", NULL),        \
        MC_KNOWN("summary_type", NULL), MC_KNOWN("summary_use_proj", NULL)

#endif
