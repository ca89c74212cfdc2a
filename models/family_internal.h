/* A family of models as a description: what differs between BERT, GPT-2, T5 and the others is data
 * and a short forward pass; reading and writing configs and weights, packing batches, heads,
 * generation and the commands are written once and take everything from here.
 *
 * To add a family: docs/new-model.md. */
#ifndef MC_MODELS_FAMILY_INTERNAL_H
#define MC_MODELS_FAMILY_INTERNAL_H

#include <stddef.h>
#include "core/base/json_internal.h"
#include "core/checkpoint/weight_map_internal.h"
#include "core/nn/module_internal.h"
#include "core/nn/sublayer.h"
#include "core/ops/general.h"
#include "core/ops/rope.h"
#include "datasets/image/image.h"
#include "datasets/objective.h"
#include "models/details.h"

/* ---- configs --------------------------------------------------------------------------------- */

/* The two forms of config.json. ModelCenter's has "dim_model", "dim_head", "dim_ff" or
 * "ffn_activate_fn". */
typedef enum mc_config_form { MC_FORM_HF, MC_FORM_MC, MC_FORMS } mc_config_form;

/* A feed-forward's activation and whether it is gated, which files give as one word. */
typedef struct mc_ffn_kind {
    mc_activation activation;
    bool gated;
} mc_ffn_kind;

enum { MC_MOST_LAYERS = 4096 };

typedef enum mc_config_kind {
    MC_CONFIG_END = 0,  /* of a table */
    MC_CONFIG_SIZE,     /* int64_t member: a whole number from `low` to 2^31 */
    MC_CONFIG_LAYERS,   /* the same up to MC_MOST_LAYERS */
    MC_CONFIG_EACH,     /* int64_t: as SIZE, or a list with this number for each layer */
    MC_CONFIG_TOKEN,    /* int64_t: a token's id; null: -1; of a list the first */
    MC_CONFIG_OPTIONAL, /* int64_t: as SIZE, or null: -1 (which ModelCenter's files write as -1) */
    MC_CONFIG_FLOAT,    /* float from `low` to `high` */
    MC_CONFIG_DROPOUT,  /* float: a probability from 0 to less than 1 */
    MC_CONFIG_FLAG,     /* bool */
    MC_CONFIG_WORD,     /* int64_t: which of the row's `words` the text is, from 0 on */
    MC_CONFIG_ACTIVATION, /* mc_activation: gelu, gelu_new, gelu_pytorch_tanh, relu, silu */
    MC_CONFIG_ROPE,       /* mc_rope: an object, see mc_config_read_rope */
    MC_CONFIG_FFN,        /* mc_ffn_kind: "relu", "gated-gelu" (T5's), "gated_gelu_new" ... */
    MC_CONFIG_TYPE,       /* const char *: which of the family's model types, a static string */
    MC_CONFIG_ONLY,       /* no member: any value but the default is not supported */
    MC_CONFIG_KNOWN,      /* no member: a key without effect here */
} mc_config_kind;

/* One thing that a config says. Defaults are JSON, or "", which leaves what an earlier row read (0
 * without one); a key without a default is required. */
typedef struct mc_config_row {
    mc_config_kind kind;
    size_t member;             /* its offset in the family's config */
    const char *key[MC_FORMS]; /* NULL: that form has no such key, and the default holds */
    const char *value[MC_FORMS];
    double low, high; /* high 0: no limit */
    bool other_name;  /* the key is another name, which is read and not written */
    /* Words: the family's model types that have the key; NULL: all. A type's file that has a key of
     * another type is treated as one with an unknown key. */
    const char *of_types;
    const char *const *words; /* of MC_CONFIG_WORD; NULL ends */
} mc_config_row;

/* A row of a member: its kind, its keys in both forms, its defaults, and limits. The table's source
 * defines AT(member) as the member's offset. */
#define MC_ROW(kind, member, hf, mc, hf_value, mc_value, ...)                     \
    {                                                                             \
        MC_CONFIG_##kind, AT(member), {hf, mc}, {hf_value, mc_value}, __VA_ARGS__ \
    }
/* Another name of a member in Hugging Face's form, which overrules the rows before it: those of a
 * class's attribute_map in transformers. */
#define MC_OTHER_NAME(kind, member, hf, low)                                           \
    {                                                                                  \
        MC_CONFIG_##kind, AT(member), {hf, NULL}, {"", ""}, low, 0, .other_name = true \
    }
/* Of a family with several model types that compute the same: which one a config has, so that it is
 * written again. */
#define MC_TYPE_ROW(member)                                          \
    {                                                                \
        MC_CONFIG_TYPE, AT(member), {"model_type", NULL}, { "", "" } \
    }
/* A key without effect. */
#define MC_KNOWN(hf, mc)               \
    {                                  \
        MC_CONFIG_KNOWN, 0, { hf, mc } \
    }
/* The key, in both forms, may have this one value alone; NULL: that form has no such key. */
#define MC_ONLY(hf, mc, text)                       \
    {                                               \
        MC_CONFIG_ONLY, 0, {hf, mc}, { text, text } \
    }
/* Keys of ModelCenter's form that say what every model of the zoo does. */
#define MC_ONLY_MC_ROWS                                                            \
    MC_ONLY(NULL, "emb_init_mean", "0"), MC_ONLY(NULL, "att_init_mean", "0"),      \
        MC_ONLY(NULL, "ffn_init_mean", "0"), MC_ONLY(NULL, "proj_init_mean", "0"), \
        MC_ONLY(NULL, "norm_init_var", "1")

/* Where a value was read from, for errors. */
typedef struct mc_config_reader {
    mc_context *ctx;
    const cJSON *json;
    const char *path;
    mc_config_form form;
    const cJSON *defaults; /* counts for keys that `json` lacks, before the rows'; may be NULL */
    bool of_weights;       /* the config of weights: a token beyond the vocabulary is a warning */
} mc_config_reader;

/* Sets `path: key "x": FOUND is not supported, expected EXPECTED`; returns false. */
bool mc_config_unsupported(const mc_config_reader *r, const char *key, const char *found,
                           const char *expected);

/* Adds a float as the shortest decimal that reads back as the same float, with a point. False when
 * memory is out. */
bool mc_config_add_float(cJSON *json, const char *key, float value);
/* Reads how rotary positions are scaled from the object of a key ("rope_parameters", or as files
 * before transformers 5 call it, "rope_scaling"), whose "rope_theta" sets out->theta. Errors name
 * file, key and what is possible: an unknown "rope_type", a missing or wrong number. */
bool mc_config_read_rope(const mc_config_reader *r, const char *key, const cJSON *item,
                         mc_rope *out);
/* The same as an object of the key, or null where angles are not scaled. False when memory is
 * out. */
bool mc_config_add_rope(cJSON *json, const char *key, const mc_rope *rope);

/* The shape of a config with members of these names and heads that make up dim; of tokens it has
 * the padding alone. */
#define MC_SHAPE_OF(c)                                                                      \
    (mc_model_shape)                                                                        \
    {                                                                                       \
        .vocab_size = (c)->vocab_size, .dim = (c)->dim, .dim_ff = (c)->dim_ff,              \
        .heads = (c)->heads, .head_dim = (c)->heads > 0 ? (c)->dim / (c)->heads : 0,        \
        .layers = (c)->layers, .positions = (c)->positions, .pad_token = (c)->pad_token_id, \
        .bos_token = -1, .eos_token = -1, .start_token = -1                                 \
    }
/* For `finish`: whether sizes are positive and heads make up dim (`head_dim`, which the config
 * says, is 0 or the same), else the error. */
bool mc_config_check_sizes(const mc_config_reader *r, const mc_model_shape *s, int64_t head_dim,
                           float eps);
/* The same of sizes whose heads need not make up dim, and whose queries may share keys: head_dim
 * and key_heads of -1 become what they are then. Errors name the keys that don't fit. */
bool mc_config_check_grouped(const mc_config_reader *r, const mc_model_shape *s, float eps,
                             int64_t *head_dim, int64_t *key_heads);
/* And whether a table, of "positions" say, has rows. */
bool mc_config_check_rows(const mc_config_reader *r, const char *what, int64_t rows);

/* Defaults of Hugging Face's form, as an object, where a model type's are not those of the rows. */
typedef struct mc_type_defaults {
    const char *type, *json;
} mc_type_defaults;

/* A shape that is known by name, as a config of either form. */
typedef struct mc_named_shape {
    const char *names; /* one or several, with spaces between: "gpt2 gpt2-base" */
    const char *json;
} mc_named_shape;

/* ---- a model --------------------------------------------------------------------------------- */

typedef struct mc_family mc_family;

/* Takes tokens that begin, end and pad texts out of a config where they lie beyond its vocabulary,
 * so that none is saved. An encoder's padding is left to its `finish`. */
void mc_config_drop_tokens(const mc_family *family, void *config);
/* The token that a row of this key of Hugging Face's says; NULL: the family has no such row. */
int64_t *mc_config_token(const mc_family *family, void *config, const char *key);

enum { MC_MODEL_MAX_EOS = 16, MC_VOCAB_ALIGN = 128 };

/* What a model's generation_config.json says, read with it. */
typedef struct mc_generation_config {
    char *text; /* the file's; NULL: there was none */
    char *path;
    int32_t eos[MC_MODEL_MAX_EOS]; /* those that end an answer, where there is a file */
    int eos_count;
    char **stop_texts; /* once they have been asked for */
    int64_t start;     /* what a decoder begins with; -1: config.json's */
} mc_generation_config;

struct mc_model {
    mc_module module; /* the root of all its parameters */
    const mc_family *family;
    void *config; /* the family's struct */
    void *parts;  /* the family's own modules */
    mc_model_shape shape;
    mc_model_heads heads;
    /* What all families have, declared by their `declare`. */
    mc_embedding *words;
    int64_t words_dim; /* columns of the words where a projection to dim follows; 0: dim */
    mc_block_list *encoder, *decoder; /* a model of one stack has one of them */
    mc_parameter *head_weight;        /* the language model's own matrix; NULL: the words' */
    mc_parameter *head_bias;          /* NULL: none */
    float head_scale;                 /* of the language model's logits, before the bias */
    mc_linear *token_head;            /* ModelCenter's cls_head; NULL: none */
    mc_linear *score;                 /* Hugging Face's classifier of decoders; NULL: none */
    int32_t eos[MC_MODEL_MAX_EOS];    /* those that end a text */
    int eos_count;
    mc_generation_config generation;
    bool untied;                      /* of a tied base: an adapter has one of words and head */
    struct mc_model_adapter *adapter; /* what is trained beside frozen weights; NULL: none */
    mc_image_form image;              /* of a family of images; else size 0 */
    char *image_text;                 /* of preprocessor_config.json; NULL: there was none */
    char *source;                     /* what it was loaded from; NULL: nothing */
    char *task;
    char **label_names;       /* heads.labels of them, or NULL */
    const char *problem_type; /* static; NULL: not said */
    char
        *other_keys; /* a JSON object: what a config.json of Hugging Face's form says that no row of
                         the family's table does; saved again. NULL: nothing */
};

/* What a stack of blocks gets of a batch. */
typedef struct mc_stack_input {
    mc_tensor *ids;       /* (capacity) i32 or i64, with lengths; NULL of images */
    mc_tensor *pixels;    /* of a family of images: (batch, channels, rows, columns) */
    mc_tensor *positions; /* (capacity) i32, from 0 in each sequence */
    mc_tensor *types;     /* (capacity); NULL unless the family has types */
    /* i32 (capacity): with virtual tokens, which row of a table of them and of the ids' words each
     * token is; ids are without them then, and carry lengths of their own. NULL: none */
    mc_tensor *rows;
    /* i32 (sequences): during generation, of a family with `places`, its second position of each
     * token; NULL: not known yet */
    mc_tensor *blocks;
    const mc_lengths *lengths;
    int64_t longest; /* tokens at most of a sequence, those in the cache included */
    mc_call call;    /* masks, marks, memory, cache, what to keep */
} mc_stack_input;

/* ---- the description ------------------------------------------------------------------------- */

/* Which fields of mc_model_input and mc_model_heads the family has a use for. */
typedef struct mc_family_traits {
    bool types, marks, globals, pooler, nsp, labels, replaced;
    bool pixels; /* it reads images, and no ids */
} mc_family_traits;

/* What a file of weights says about the model to be made. */
typedef struct mc_model_file {
    const mc_family *family;
    mc_tensor_file *file;
    const char *folder;
    mc_config_form form;
    const mc_weight_map *map;
    int layers;
} mc_model_file;

/* transformers' classes of a model type: with a classifier, a language model, neither (NULL: the
 * one before), all heads of pretraining, and BERT's next sentences alone. */
typedef struct mc_family_classes {
    const char *labels, *lm, *base, *pretraining, *nsp;
} mc_family_classes;

struct mc_family {
    /* ---- required ---- */
    const char *name;              /* on the command line, and of its functions: "gpt2" */
    const char *title;             /* in messages: "GPT-2" */
    const char *const *model_type; /* of config.json; the first one is written. NULL ends */
    mc_model_kind kind;
    size_t config_size, parts_size;
    const mc_config_row *rows;       /* ends with MC_CONFIG_END */
    const mc_named_shape *named;     /* ends with names == NULL */
    const mc_weight_map *map;        /* names of weights in files, and ours */
    const char *const *lora_targets; /* the layers to which PEFT adds factors by default; NULL
                                        ends */
    /* Fills in what follows from other values, and checks what no single row can. */
    bool (*finish)(const mc_config_reader *r, void *config);
    mc_model_shape (*shape)(const void *config);
    /* Declares the modules of the model: words, stacks, heads. */
    bool (*declare)(mc_model *m, const mc_load_options *o);
    /* From ids to the last hidden states, (capacity, dim). A model of one stack has one of them. */
    mc_tensor *(*encode)(mc_tape *t, mc_model *m, mc_stack_input *in);
    mc_tensor *(*decode)(mc_tape *t, mc_model *m, mc_stack_input *in);
    void (*set_dropout)(mc_model *m, float p); /* of the modules: the config says p already */

    /* ---- by the form of its files: one of these two, or the members after them ---- */
    bool own_form; /* files are written in ModelCenter's form: Hugging Face has none */
    bool hf_only;  /* ModelCenter has no such model, and its form of files none of its keys */
    /* Required unless own_form: transformers' classes, a row for each of model_type. */
    const mc_family_classes *classes;
    /* Required unless hf_only, since ModelCenter's files don't name their family: tensors that only
     * this one's have, and those that only others have; NULL ends. */
    const char *const *mc_has, *const *mc_lacks;
    bool (*mc_is)(const cJSON *json); /* and a condition on config.json; NULL: none */

    /* ---- optional: zero and NULL mean that the family has no such thing ---- */
    mc_family_traits has;                  /* fields of inputs and heads */
    mc_prompt_style prompt;                /* how texts of data sets are presented; 0: as BERT's */
    mc_objective_style objective;          /* of pretraining */
    const mc_type_defaults *type_defaults; /* ends with type == NULL */
    const char *classifier; /* the last matrix of Hugging Face's classification head */
    /* A parameter that an encoder's file with a language model has; NULL: "lm_head.dense.weight" */
    const char *lm_has;
    int64_t (*image_size)(const void *config); /* of images: rows and columns */
    /* Changes config and heads by what a file holds (a head of its own, say). */
    bool (*look)(mc_context *ctx, const mc_model_file *f, void *config, mc_model_heads *heads);
    mc_tensor *(*pool)(mc_tape *t, mc_model *m, mc_tensor *hidden);
    /* What comes before the language model's product. */
    mc_tensor *(*head)(mc_tape *t, mc_model *m, mc_tensor *hidden);
    mc_tensor *(*classify)(mc_tape *t, mc_model *m, const mc_model_output *out);
    mc_tensor *(*nsp)(mc_tape *t, mc_model *m, mc_tensor *pooled);
    mc_tensor *(*replaced)(mc_tape *t, mc_model *m, mc_tensor *hidden); /* (rows, 1) */
    /* Where an answer begins if it does not follow its prompt, in the family's two positions: the
     * first stays, the second counts on. False: the prompt cannot be answered, and the error gives
     * the reason. Such a family reads a prompt as a whole. */
    bool (*places)(const mc_model *m, const int32_t *ids, int count, int32_t *position,
                   int32_t *block);
    /* Changes the config that is written (a copy) in a form, and sets mc_weight_form's scaling if
     * it is not 0. False: the model has no such form, and the error gives the reason. */
    bool (*before_save)(mc_model *m, mc_config_form form, void *config, int *scaling);
};

/* What every description says, of the statics that a family's source has under these names. */
#define MC_FAMILY_OF(f, parts)                                                     \
    .name = #f, .model_type = model_types, .config_size = sizeof(mc_##f##_config), \
    .parts_size = sizeof(parts), .rows = config_rows, .named = named, .map = &map, \
    .lora_targets = lora_targets, .finish = finish, .shape = shape, .declare = declare

/* All families, in the order of help texts; NULL ends. The one list that a new family changes. */
extern const mc_family *const mc_families[];
const mc_family *mc_family_find(const char *name); /* NULL: none */

/* Defaults of Hugging Face's form, or of ModelCenter's for a family that has no other. */
void mc_config_default(const mc_family *family, void *config);
/* Reads a config of either form. */
bool mc_config_read(const mc_family *family, const mc_config_reader *r, void *config);
/* Reads a file. */
mc_status mc_config_read_file(mc_context *ctx, const mc_family *family, const char *path,
                              void *config);
mc_status mc_config_named(mc_context *ctx, const mc_family *family, const char *name, void *config);
bool mc_config_is_named(const char *name); /* of any family */
/* The family that knows a shape by this name; NULL: none does, which mc_config_no_shape reports. */
const mc_family *mc_config_family_of_shape(const char *name);
mc_status mc_config_no_shape(mc_context *ctx, const char *name);
/* The "model_type" of a config: what its MC_TYPE_ROW holds, else the family's first. */
const char *mc_config_type(const mc_family *family, const void *config);
/* Whether configs of a model type have the row's key. */
bool mc_config_has_row(const mc_config_row *row, const char *type);
/* The word for an activation in a form. */
const char *mc_config_activation(mc_ffn_kind kind, mc_config_form form);
/* The form that the family's files are written in unless another is asked for. */
mc_config_form mc_config_form_for(const mc_family *family);
/* The member of a config that a key of Hugging Face's form says; NULL: the family has no such
 * key. */
void *mc_config_member(const mc_family *family, void *config, const char *key);
/* Sets m->other_keys from the file that a model is read from. False after an error. */
bool mc_config_keep_others(mc_model *m, const mc_config_reader *reader);
/* Adds m->other_keys. False when memory is out. */
bool mc_config_add_others(cJSON *json, const mc_model *m);
/* Adds all rows to a JSON object; false when memory is out. */
bool mc_config_write(const mc_family *family, mc_config_form form, const void *config, cJSON *json);
/* What config `from` says in Hugging Face's form and `to` does not: the first key of something that
 * is computed differently then. NULL: nothing. */
const char *mc_config_lost(const mc_family *family, const void *from, const void *to);
mc_config_form mc_config_form_of(const cJSON *json);
/* "dtype" or "torch_dtype"; of ModelCenter's form f16 unless "half" is false. */
bool mc_config_dtype(const mc_config_reader *r, mc_dtype *out);
bool mc_config_add_dtype(cJSON *json, mc_dtype dtype);

/* A model with initial weights from a config of the family's struct. */
mc_model *mc_model_from_config(mc_context *ctx, const mc_family *family, const void *config,
                               const mc_model_heads *heads, const mc_load_options *options);
/* The same for a file whose weights are loaded next: parameters that it lacks are marked as new
 * before the options' adapter is added, which saves them. */
mc_model *mc_model_from_config_for(mc_context *ctx, const mc_family *family, const void *config,
                                   const mc_model_heads *heads, const mc_load_options *options,
                                   const mc_model_file *f);
/* The config of the family's struct; NULL for NULL and for another family's model. */
const void *mc_model_config(const mc_model *m, const mc_family *family);

/* ---- what `declare` and the forward passes share --------------------------------------------- */

/* The words' embedding, stored padded. */
mc_embedding *mc_declare_words(mc_model *m, float init_std);
/* The language model's own matrix (unless it is tied to the words) and bias, under `name`. Nothing
 * where the model has no language model. */
void mc_declare_lm_head(mc_model *m, const char *name, bool tied, bool bias, float init_std);
/* ModelCenter's cls_head, where heads.token_labels asks for one; and one whose weights have another
 * name than "cls_projection". */
void mc_declare_token_head(mc_model *m, bool bias, float init_std);
void mc_declare_token_head_named(mc_model *m, const char *name, bool bias, float init_std);
/* Hugging Face's classifier of decoders, "score", where heads.labels asks for one. */
void mc_declare_score(mc_model *m, float init_std);
/* Runs the blocks on x and, unless it is NULL, the norm after them; keeps hidden states. */
mc_tensor *mc_run_stack(mc_tape *t, mc_block_list *blocks, mc_tensor *x, mc_layernorm *norm,
                        const mc_call *call);
enum { MC_EMBEDDING_OTHERS = 3 };
typedef struct mc_embedding_options {
    int others; /* tables whose rows are added to the words', by these indices */
    mc_tensor *table[MC_EMBEDDING_OTHERS], *index[MC_EMBEDDING_OTHERS];
    const char *name[MC_EMBEDDING_OTHERS]; /* of the indices, for errors */
    float scale;                           /* of the sum; 0: 1 */
    mc_layernorm *norm;                    /* of that; NULL: none */
    float dropout;                         /* at the end */
} mc_embedding_options;
/* The embeddings of the input's words, virtual tokens before them, as the options say. */
mc_tensor *mc_run_embedding(mc_tape *t, mc_model *m, const mc_stack_input *in,
                            const mc_embedding_options *options);
/* The row of each sequence's last token. */
mc_tensor *mc_last_tokens(mc_tape *t, mc_tensor *hidden);
/* The row of each sequence's last token that is `token` (`wanted`; an error if none is), or that is
 * not (the first, if all are). */
mc_tensor *mc_last_token_of(mc_tape *t, const mc_model_output *out, int64_t token, bool wanted);
/* For `classify`: "score" of each sequence's last token but padding. */
mc_tensor *mc_score_last(mc_tape *t, mc_model *m, const mc_model_output *out);
/* The length that position biases of this input are made for: rounded up, so that plans are few. */
int64_t mc_position_limit(const mc_stack_input *in);
/* Whether the file has a head matrix that differs from the words'. */
bool mc_file_has_own_head(const mc_model_file *f, const char *head, const char *words);
/* For `look` of a decoder whose config ties its head: unties it, with a warning, where the file's
 * differs, as transformers does from version 5 on; earlier ones tied all the same. */
void mc_look_at_head(mc_context *ctx, const mc_model_file *f, bool *tied);

/* A value of a config as an option of a layer, where a plain zero means the default. */
static inline float mc_literal(float x) { return x == 0 ? MC_TRUE_ZERO : x; }

/* The functions that every family's header declares, typed. */
#define MC_DEFINE_FAMILY(f)                                                                     \
    mc_##f##_config mc_##f##_config_default(void)                                               \
    {                                                                                           \
        mc_##f##_config config;                                                                 \
        mc_config_default(&mc_family_##f, &config);                                             \
        return config;                                                                          \
    }                                                                                           \
    mc_status mc_##f##_config_named(mc_context *ctx, const char *name, mc_##f##_config *config) \
    {                                                                                           \
        if (mc_failed(ctx) || !mc_given(ctx, name) || !mc_given(ctx, config))                   \
            return mc_error_status(ctx);                                                        \
        return mc_config_named(ctx, &mc_family_##f, name, config);                              \
    }                                                                                           \
    mc_status mc_##f##_config_read(mc_context *ctx, const char *path, mc_##f##_config *config)  \
    {                                                                                           \
        if (mc_failed(ctx) || !mc_given(ctx, path) || !mc_given(ctx, config))                   \
            return mc_error_status(ctx);                                                        \
        return mc_config_read_file(ctx, &mc_family_##f, path, config);                          \
    }                                                                                           \
    mc_model *mc_##f##_new(mc_context *ctx, const mc_##f##_config *config,                      \
                           const mc_model_heads *heads, const mc_load_options *options)         \
    {                                                                                           \
        if (mc_failed(ctx) || !mc_given(ctx, config)) return NULL;                              \
        return mc_model_from_config(ctx, &mc_family_##f, config, heads, options);               \
    }                                                                                           \
    mc_model *mc_##f##_from_pretrained(mc_context *ctx, const char *identifier,                 \
                                       const mc_load_options *options)                          \
    {                                                                                           \
        return mc_model_from_pretrained_of(ctx, mc_family_##f.name, identifier, options);       \
    }                                                                                           \
    mc_##f##_config mc_##f##_get_config(const mc_model *model)                                  \
    {                                                                                           \
        const mc_##f##_config *config = mc_model_config(model, &mc_family_##f);                 \
        return config ? *config : (mc_##f##_config){0};                                         \
    }

#endif
