/* BERT (Devlin et al. 2018): a post-LN encoder, with the heads of Hugging Face's BertForPreTraining
 * and BertForSequenceClassification.
 *
 * Numerics are Hugging Face's, dropout included: after the embedding's layer norm, on attention
 * probabilities, after the attention's and the feed-forward's output, and before the classifier.
 *
 *     mc_model *bert = mc_bert_from_pretrained(ctx, "bert-base-uncased", NULL);
 *     mc_tape *t = mc_tape_begin_eval(ctx);
 *     mc_model_output out = mc_model_forward(t, bert, &(mc_model_input){.ids = ids});
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_MODELS_BERT_H
#define MC_MODELS_BERT_H

#include "models/model.h"

/* The shape of a BERT; comments give the keys of Hugging Face's config.json, and ModelCenter's in
 * brackets. A zero is a zero, not a default: start from mc_bert_config_default(). */
typedef struct mc_bert_config {
    int64_t vocab_size;       /* vocab_size */
    int64_t dim;              /* hidden_size [dim_model] */
    int64_t dim_ff;           /* intermediate_size [dim_ff] */
    int64_t layers;           /* num_hidden_layers [num_layers] */
    int64_t heads;            /* num_attention_heads [num_heads]; divides dim */
    int64_t head_dim;         /* [dim_head]; 0: dim / heads, and nothing else is supported */
    int64_t positions;        /* max_position_embeddings [position_size] */
    int64_t types;            /* type_vocab_size [type_size] */
    int64_t pad_token_id;     /* pad_token_id */
    mc_activation activation; /* hidden_act [ffn_activate_fn]: gelu, gelu_new, relu, silu */
    float eps;                /* layer_norm_eps [norm_eps] */
    float dropout;            /* hidden_dropout_prob [dropout_p] */
    float attention_dropout;  /* attention_probs_dropout_prob [dropout_p] */
    float classifier_dropout; /* classifier_dropout; hidden_dropout_prob if null */
    float init_std;           /* initializer_range [att_init_std] */
    float embedding_std;      /* initializer_range [emb_init_std] */
    float ffn_std;            /* initializer_range [ffn_init_std] */
    bool tied; /* tie_word_embeddings [tied]: the masked language model's head is the word
                  embedding */
    /* For a RoBERTa: model_type, a static string: roberta, xlm-roberta or camembert. NULL: roberta.
     * It is only saved in config.json; results do not depend on it. */
    const char *model_type;
} mc_bert_config;

/* bert-base-uncased's shape, the defaults of Hugging Face's BertConfig. */
MC_API mc_bert_config mc_bert_config_default(void);
/* A shape by name: bert-base-uncased, bert-large-cased, ... Errors: another name is
 * MC_ERR_NOT_FOUND, and lists the known names; *config is then unchanged. */
MC_API mc_status mc_bert_config_named(mc_context *ctx, const char *name, mc_bert_config *config);
/* Reads a config.json of Hugging Face's or ModelCenter's form. Errors: for malformed and
 * out-of-range values the message names file and key; other model types, decoders and relative
 * positions are MC_ERR_UNSUPPORTED. */
MC_API mc_status mc_bert_config_read(mc_context *ctx, const char *path, mc_bert_config *config);
MC_API mc_bert_config mc_bert_get_config(const mc_model *model); /* zeros for another family's */

/* A BERT with initial weights; see mc_model_new for heads and options, which may be NULL. */
MC_API mc_model *mc_bert_new(mc_context *ctx, const mc_bert_config *config,
                             const mc_model_heads *heads, const mc_load_options *options);
/* mc_model_from_pretrained for a folder that is a BERT's, such as bert-base-cased,
 * bert-base-uncased, bert-large-cased, bert-large-uncased, bert-base-chinese,
 * bert-base-multilingual-cased. It has a pooler even if the file has none (initialised then). */
MC_API mc_model *mc_bert_from_pretrained(mc_context *ctx, const char *identifier,
                                         const mc_load_options *options);

#endif
