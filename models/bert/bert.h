/* BERT (Devlin et al. 2018): a post-LN encoder, with the heads of Hugging Face's BertForPreTraining
 * and BertForSequenceClassification.
 *
 * Numerics are Hugging Face's, dropout included: after the embedding's layer norm, on attention
 * probabilities, after the attention's and the feed-forward's output, and before the classifier.
 * Parameters carry ModelCenter's names; files are read and written under Hugging Face's.
 *
 *     mc_bert *bert = mc_bert_from_pretrained(ctx, "bert-base-uncased", NULL);
 *     mc_tape *t = mc_tape_begin_eval(ctx);
 *     mc_bert_output out = mc_bert_forward(t, bert, &(mc_bert_input){ .ids = ids });
 */
#ifndef MC_MODELS_BERT_H
#define MC_MODELS_BERT_H

#include "core/checkpoint/pretrained.h"
#include "core/ops/ops.h"

typedef struct mc_bert mc_bert;

/* The shape of a BERT; keys of Hugging Face's config.json and of ModelCenter's in brackets. Read
 * literally: a zero is a zero. Start from mc_bert_config_default(). */
typedef struct mc_bert_config {
    int64_t vocab_size;       /* vocab_size */
    int64_t dim;              /* hidden_size [dim_model] */
    int64_t dim_ff;           /* intermediate_size [dim_ff] */
    int64_t layers;           /* num_hidden_layers [num_layers] */
    int64_t heads;            /* num_attention_heads [num_heads]; divides dim */
    int64_t positions;        /* max_position_embeddings [position_size] */
    int64_t types;            /* type_vocab_size [type_size] */
    int64_t pad_token_id;     /* pad_token_id */
    mc_activation activation; /* hidden_act [ffn_activate_fn]: gelu, gelu_new, relu */
    float eps;                /* layer_norm_eps [norm_eps] */
    float dropout;            /* hidden_dropout_prob [dropout_p] */
    float attention_dropout;  /* attention_probs_dropout_prob [dropout_p] */
    float classifier_dropout; /* classifier_dropout; hidden_dropout_prob where null */
    float init_std;           /* initializer_range [att_init_std] */
} mc_bert_config;

/* Which parts stand on the encoder. */
typedef struct mc_bert_heads {
    bool pooler; /* tanh(dense(first token)) */
    bool mlm;    /* masked language model, tied to the word embedding */
    bool nsp;    /* next sentence: needs the pooler */
    int labels; /* classifier of that many labels on the pooled output; needs the pooler; 0: none */
} mc_bert_heads;

enum { MC_BERT_MAX_LABELS = 1024 };

/* bert-base-uncased's shape, the defaults of Hugging Face's BertConfig. */
MC_API mc_bert_config mc_bert_config_default(void);
/* Reads a config.json of Hugging Face's or ModelCenter's form (told apart by "dim_model") over the
 * defaults. Errors: what is malformed or out of range names file and key; other model types,
 * decoders and relative positions are MC_ERR_UNSUPPORTED. */
MC_API mc_status mc_bert_config_read(mc_context *ctx, const char *path, mc_bert_config *config);

/* A BERT with initial weights. `options` gives dtype and recompute. */
MC_API mc_bert *mc_bert_new(mc_context *ctx, const mc_bert_config *config, mc_bert_heads heads,
                            const mc_load_options *options);
/* A BERT with weights from a folder or an identifier in the Hugging Face cache (no network), such
 * as bert-base-cased, bert-base-uncased, bert-large-cased, bert-large-uncased, bert-base-chinese,
 * bert-base-multilingual-cased. It has the heads that the file has (but no masked language model
 * whose matrix is its own, "tie_word_embeddings": false: a log line says so), a pooler even if the
 * file has none (initialised then), and a classifier if options->num_labels asks for one. Errors:
 * missing tensors (all listed), wrong shapes or dtypes, damaged files. */
MC_API mc_bert *mc_bert_from_pretrained(mc_context *ctx, const char *identifier,
                                        const mc_load_options *options);
/* Writes config.json and model.safetensors into a folder (made if need be), for from_pretrained
 * here and in `transformers`. Both are written aside and synced to disk before either takes its
 * name, each in one step: a crash leaves whole files, and a folder that loads, since both belong to
 * the same kind of model; only a folder that held a model of another shape could be left with one
 * file of each. Weights have the dtype they have in memory.
 *
 * Ranks load and save together, from and to files that all of them see. Each reads and writes its
 * share of the bytes only, and the files do not tell how many ranks there were. */
MC_API mc_status mc_bert_save(mc_bert *bert, const char *folder);
MC_API void mc_bert_free(mc_bert *bert);

MC_API mc_module *mc_bert_module(mc_bert *bert);
MC_API int64_t mc_bert_dim(const mc_bert *bert); /* 0 for NULL */
MC_API mc_bert_config mc_bert_get_config(const mc_bert *bert);
MC_API mc_bert_heads mc_bert_get_heads(const mc_bert *bert);
/* Sets all three dropout probabilities; 0 switches dropout off. */
MC_API void mc_bert_set_dropout(mc_bert *bert, float p);
/* The task a classifier was trained for and the names of its labels, kept in config.json (id2label;
 * copied). NULL without one. */
MC_API mc_status mc_bert_set_task(mc_bert *bert, const char *task, const char *const *label_names);
MC_API const char *mc_bert_task(const mc_bert *bert);
MC_API const char *mc_bert_label_name(const mc_bert *bert, int label);

typedef struct mc_bert_input {
    /* i32 or i64 token ids: packed (capacity) with lengths, or (batch, longest). */
    mc_tensor *ids;
    /* Lengths of the sequences. NULL: those that `ids` carries; without any, all of ids (batch,
     * longest) counts. With ids (batch, longest), tokens from a row's length on are padding and are
     * not computed. With lengths of mc_lengths_new ids are packed, and may have room for more than
     * the capacity. */
    const mc_lengths *lengths;
    mc_tensor *type_ids; /* of the ids' shape; NULL: all 0 */
    /* For masks that are not lengths: u8, bool, i32 or i64 (batch, longest), 0 = nobody attends to
     * this token. All tokens are computed. Only with ids (batch, longest) and no lengths. */
    mc_tensor *mask;
} mc_bert_input;

typedef struct mc_bert_output {
    mc_tensor *last_hidden; /* packed (rows, dim); mc_unpack gives (batch, longest, dim) */
    mc_tensor *pooled;      /* (batch, dim); NULL without a pooler */
} mc_bert_output;

/* All NULL after an error: an id or type out of range (named), a sequence longer than the position
 * table, shapes that don't fit. */
MC_API mc_bert_output mc_bert_forward(mc_tape *t, mc_bert *bert, const mc_bert_input *input);

/* Logits (batch, labels) from `pooled`; dropout comes first. */
MC_API mc_tensor *mc_bert_classify(mc_tape *t, mc_bert *bert, mc_tensor *pooled);
/* Logits (batch, 2): 0 = the second sentence follows. */
MC_API mc_tensor *mc_bert_nsp_logits(mc_tape *t, mc_bert *bert, mc_tensor *pooled);
/* Logits (rows, vocab_size) of the masked language model. */
MC_API mc_tensor *mc_bert_mlm_logits(mc_tape *t, mc_bert *bert, mc_tensor *hidden);
/* Its loss against labels (rows) of i32 or i64 (-100: does not count), computed for the counting
 * rows only and without whole logits. */
MC_API mc_tensor *mc_bert_mlm_loss(mc_tape *t, mc_bert *bert, mc_tensor *hidden, mc_tensor *labels);

#endif
