#include <math.h>
#include <stdio.h>
#include <string.h>
#include "models/gguf/gguf_internal.h"

/* ---- what several families share ------------------------------------------------------------- */

static bool refuse(mc_model *m, const char *key, const char *expected)
{
    mc_fail(m->module.ctx, MC_ERR_UNSUPPORTED,
            "%s: the config's \"%s\" has no GGUF form, expected %s", m->family->title, key,
            expected);
    return false;
}

static bool is_text(const cJSON *config, const char *key, const char *value)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(config, key));
    return text && strcmp(text, value) == 0;
}

static bool is_number(const cJSON *config, const char *key, double value)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(config, key);
    return cJSON_IsNumber(item) && item->valuedouble == value;
}

static bool is_true(const cJSON *config, const char *key)
{
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(config, key));
}

#define LAYER "encoder.layers.{i}."
#define ATTENTION "self_att.self_attention."

/* ---- GPT-2 ----------------------------------------------------------------------------------- */

static const mc_gguf_row gpt2_rows[] = {
    {"token_embd", {"input_embedding"}},
    {"position_embd", {"position_embedding"}, .plain = true},
    {"blk.{i}.attn_norm", {LAYER "self_att.layernorm_before_attention"}},
    {"blk.{i}.attn_qkv",
     {LAYER ATTENTION "project_q", LAYER ATTENTION "project_k", LAYER ATTENTION "project_v"}},
    {"blk.{i}.attn_output", {LAYER ATTENTION "attention_out"}},
    {"blk.{i}.ffn_norm", {LAYER "ffn.layernorm_before_ffn"}},
    {"blk.{i}.ffn_up", {LAYER "ffn.ffn.w_in.w"}},
    {"blk.{i}.ffn_down", {LAYER "ffn.ffn.w_out"}},
    {"output_norm", {"encoder.output_layernorm"}},
    {"output", {"output_projection"}},
    {NULL}};

static const mc_gguf_key gpt2_keys[] = {
    {"context_length", "n_positions"},
    {"embedding_length", "n_embd"},
    {"feed_forward_length", "n_inner"},
    {"block_count", "n_layer"},
    {"attention.head_count", "n_head"},
    {"attention.layer_norm_epsilon", "layer_norm_epsilon", .is_float = true},
    {NULL}};

static bool gpt2_write(mc_gguf_writer *w, mc_model *m, const cJSON *config)
{
    (void)w;
    if (!is_text(config, "activation_function", "gelu_new"))
        return refuse(m, "activation_function", "gelu_new");
    if (!is_true(config, "scale_attn_weights")) return refuse(m, "scale_attn_weights", "true");
    if (is_true(config, "scale_attn_by_inverse_layer_idx"))
        return refuse(m, "scale_attn_by_inverse_layer_idx", "false");
    return true;
}

static bool tied_read(const mc_gguf *g, cJSON *config)
{
    return cJSON_AddBoolToObject(config, "tie_word_embeddings",
                                 !mc_gguf_find_tensor(g, "output.weight"));
}

/* ---- BERT ------------------------------------------------------------------------------------ */

static const mc_gguf_row bert_rows[] = {
    {"token_embd", {"input_embedding"}},
    {"position_embd", {"position_embedding"}, .plain = true},
    {"token_types", {"token_type_embedding"}, .plain = true},
    {"blk.{i-1}.layer_output_norm",
     {LAYER "self_att.layernorm_before_attention"},
     .first = "token_embd_norm"},
    {"blk.{last}.layer_output_norm", {"encoder.output_layernorm"}},
    {"blk.{i}.attn_q", {LAYER ATTENTION "project_q"}},
    {"blk.{i}.attn_k", {LAYER ATTENTION "project_k"}},
    {"blk.{i}.attn_v", {LAYER ATTENTION "project_v"}},
    {"blk.{i}.attn_output", {LAYER ATTENTION "attention_out"}},
    {"blk.{i}.attn_output_norm", {LAYER "ffn.layernorm_before_ffn"}},
    {"blk.{i}.ffn_up", {LAYER "ffn.ffn.w_in.w"}},
    {"blk.{i}.ffn_down", {LAYER "ffn.ffn.w_out"}},
    {NULL}};

static const mc_gguf_key bert_keys[] = {
    {"context_length", "max_position_embeddings"},
    {"embedding_length", "hidden_size"},
    {"feed_forward_length", "intermediate_size"},
    {"block_count", "num_hidden_layers"},
    {"attention.head_count", "num_attention_heads"},
    {"attention.layer_norm_epsilon", "layer_norm_eps", .is_float = true},
    {NULL}};

/* Their vectors are of the whole text; the heads are for training. */
static const char *const bert_dropped[] = {"pooler.*", "lm_head.*", "nsp_head.*", NULL};

static bool bert_write(mc_gguf_writer *w, mc_model *m, const cJSON *config)
{
    if (!is_text(config, "hidden_act", "gelu")) return refuse(m, "hidden_act", "gelu");
    mc_gguf_put_bool(w, "bert.attention.causal", false);
    return true;
}

static bool bert_read(const mc_gguf *g, cJSON *config)
{
    const mc_gguf_tensor *types = mc_gguf_find_tensor(g, "token_types.weight");
    return !types || cJSON_AddNumberToObject(config, "type_vocab_size", (double)types->rows);
}

/* ---- T5 -------------------------------------------------------------------------------------- */

#define D "decoder.layers.{i}."
#define CROSS "cross_att.self_attention."
static const mc_gguf_row t5_rows[] = {
    {"token_embd", {"input_embedding"}},
    {"enc.blk.0.attn_rel_b",
     {"position_bias_enc.relative_attention_bias"},
     .plain = true,
     .bare = true},
    {"enc.blk.{i}.attn_norm", {LAYER "self_att.layernorm_before_attention"}},
    {"enc.blk.{i}.attn_q", {LAYER ATTENTION "project_q"}},
    {"enc.blk.{i}.attn_k", {LAYER ATTENTION "project_k"}},
    {"enc.blk.{i}.attn_v", {LAYER ATTENTION "project_v"}},
    {"enc.blk.{i}.attn_o", {LAYER ATTENTION "attention_out"}},
    {"enc.blk.{i}.ffn_norm", {LAYER "ffn.layernorm_before_ffn"}},
    {"enc.blk.{i}.ffn_up", {LAYER "ffn.ffn.w_in.w"}},
    {"enc.blk.{i}.ffn_gate", {LAYER "ffn.ffn.w_in.w_0"}},
    {"enc.blk.{i}.ffn_up", {LAYER "ffn.ffn.w_in.w_1"}},
    {"enc.blk.{i}.ffn_down", {LAYER "ffn.ffn.w_out"}},
    {"enc.output_norm", {"encoder.output_layernorm"}},
    {"dec.blk.0.attn_rel_b",
     {"position_bias_dec.relative_attention_bias"},
     .plain = true,
     .bare = true},
    {"dec.blk.{i}.attn_norm", {D "self_att.layernorm_before_attention"}},
    {"dec.blk.{i}.attn_q", {D ATTENTION "project_q"}},
    {"dec.blk.{i}.attn_k", {D ATTENTION "project_k"}},
    {"dec.blk.{i}.attn_v", {D ATTENTION "project_v"}},
    {"dec.blk.{i}.attn_o", {D ATTENTION "attention_out"}},
    {"dec.blk.{i}.cross_attn_norm", {D "cross_att.layernorm_before_attention"}},
    {"dec.blk.{i}.cross_attn_q", {D CROSS "project_q"}},
    {"dec.blk.{i}.cross_attn_k", {D CROSS "project_k"}},
    {"dec.blk.{i}.cross_attn_v", {D CROSS "project_v"}},
    {"dec.blk.{i}.cross_attn_o", {D CROSS "attention_out"}},
    {"dec.blk.{i}.ffn_norm", {D "ffn.layernorm_before_ffn"}},
    {"dec.blk.{i}.ffn_up", {D "ffn.ffn.w_in.w"}},
    {"dec.blk.{i}.ffn_gate", {D "ffn.ffn.w_in.w_0"}},
    {"dec.blk.{i}.ffn_up", {D "ffn.ffn.w_in.w_1"}},
    {"dec.blk.{i}.ffn_down", {D "ffn.ffn.w_out"}},
    {"dec.output_norm", {"decoder.output_layernorm"}},
    {"output", {"output_projection"}},
    {NULL}};

static const mc_gguf_key t5_keys[] = {
    {"embedding_length", "d_model"},
    {"feed_forward_length", "d_ff"},
    {"block_count", "num_layers"},
    {"decoder_block_count", "num_decoder_layers"},
    {"attention.head_count", "num_heads"},
    {"attention.key_length", "d_kv"},
    {"attention.value_length", "d_kv", .derived = true},
    {"attention.layer_norm_epsilon", "layer_norm_epsilon", .is_float = true},
    {"attention.layer_norm_rms_epsilon", "layer_norm_epsilon", .is_float = true, .derived = true},
    {"attention.relative_buckets_count", "relative_attention_num_buckets"},
    {"decoder_start_token_id", "decoder_start_token_id"},
    {NULL}};

/* T5 1.0 scales the logits of a head that is the words'. llama.cpp has no key for that, so the file
 * has a head of its own. */
static double t5_head_scale(const mc_model *m, const cJSON *config)
{
    bool scaled =
        is_true(config, "tie_word_embeddings") && is_true(config, "scale_decoder_outputs");
    return scaled && m->heads.lm ? 1 / sqrt((double)m->shape.dim) : 0;
}

/* llama.cpp has no key for the largest distance. */
static bool t5_write(mc_gguf_writer *w, mc_model *m, const cJSON *config)
{
    enum { CONTEXT = 512, DISTANCE = 128 };
    bool gated = is_true(config, "is_gated_act");
    if (!is_text(config, "dense_act_fn", gated ? "gelu_new" : "relu"))
        return refuse(m, "feed_forward_proj", "relu or gated-gelu");
    if (!is_number(config, "relative_attention_max_distance", DISTANCE))
        return refuse(m, "relative_attention_max_distance", "128");
    mc_gguf_put_u32(w, "t5.context_length", CONTEXT);
    return true;
}

static bool t5_read(const mc_gguf *g, cJSON *config)
{
    bool gated = mc_gguf_find_tensor(g, "enc.blk.0.ffn_gate.weight");
    return tied_read(g, config) && cJSON_AddBoolToObject(config, "scale_decoder_outputs", false) &&
           cJSON_AddStringToObject(config, "feed_forward_proj", gated ? "gated-gelu" : "relu") &&
           cJSON_AddBoolToObject(config, "is_encoder_decoder", true);
}

/* ---- all of them ----------------------------------------------------------------------------- */

static const char *const none[] = {NULL};

static const mc_gguf_family families[] = {
    {"gpt2", "gpt2", gpt2_rows, gpt2_keys, none, gpt2_write, tied_read},
    {"bert", "bert", bert_rows, bert_keys, bert_dropped, bert_write, bert_read},
    {"t5", "t5", t5_rows, t5_keys, none, t5_write, t5_read, t5_head_scale},
};
enum { FAMILIES = sizeof families / sizeof *families };

const mc_gguf_family *mc_gguf_family_of(const mc_family *family)
{
    for (int i = 0; i < FAMILIES; i++)
        if (strcmp(families[i].family, family->name) == 0) return &families[i];
    return NULL;
}

const mc_gguf_family *mc_gguf_family_named(const char *architecture, size_t length)
{
    for (int i = 0; i < FAMILIES; i++)
        if (strlen(families[i].architecture) == length &&
            memcmp(families[i].architecture, architecture, length) == 0)
            return &families[i];
    return NULL;
}

const char *mc_gguf_list(char *out, size_t size)
{
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; i < FAMILIES && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%s", i ? ", " : "",
                                 families[i].architecture);
    return out;
}

/* ---- names ----------------------------------------------------------------------------------- */

/* The pattern with {i}, {i-1} or {last} replaced by the number i or, for {i-1}, i - 1. */
static void expand(const char *pattern, int64_t i, const char *suffix, char out[MC_GGUF_NAME])
{
    const char *open = strchr(pattern, '{'), *close = open ? strchr(open, '}') : NULL;
    if (!close) {
        snprintf(out, MC_GGUF_NAME, "%s%s", pattern, suffix);
        return;
    }
    bool before = strncmp(open, "{i-1}", 5) == 0;
    snprintf(out, MC_GGUF_NAME, "%.*s%lld%s%s", (int)(open - pattern), pattern,
             (long long)(before ? i - 1 : i), close + 1, suffix);
}

bool mc_gguf_is_layered(const mc_gguf_row *row) { return strchr(row->ours[0], '{') != NULL; }

void mc_gguf_theirs(const mc_gguf_row *row, int64_t i, const char *suffix, char out[MC_GGUF_NAME])
{
    expand(i == 0 && row->first ? row->first : row->theirs, i, suffix, out);
}

bool mc_gguf_ours(const mc_gguf_row *row, int k, int64_t i, const char *suffix,
                  char out[MC_GGUF_NAME])
{
    if (k >= MC_GGUF_STACKED || !row->ours[k]) return false;
    expand(row->ours[k], i, row->bare ? "" : suffix, out);
    return true;
}
