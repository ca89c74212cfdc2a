/* The LLaMA family: a model type has an architecture of its own there, but for Mistral. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "models/gguf/gguf_internal.h"
#include "models/llama/llama.h"

#define LAYER "encoder.layers.{i}."
#define ATTENTION LAYER "self_att.self_attention."
#define FFN LAYER "ffn."
static const mc_gguf_row rows[] = {
    {"token_embd", {"input_embedding"}},
    {"blk.{i}.attn_norm", {LAYER "self_att.layernorm_before_attention"}},
    {"blk.{i}.attn_q", {ATTENTION "project_q"}, .heads = MC_GGUF_QUERIES},
    {"blk.{i}.attn_k", {ATTENTION "project_k"}, .heads = MC_GGUF_KEYS},
    {"blk.{i}.attn_v", {ATTENTION "project_v"}},
    {"blk.{i}.attn_q_norm", {ATTENTION "q_norm"}},
    {"blk.{i}.attn_k_norm", {ATTENTION "k_norm"}},
    {"blk.{i}.attn_output", {ATTENTION "attention_out"}},
    {"blk.{i}.ffn_norm", {FFN "layernorm_before_ffn"}},
    {"blk.{i}.ffn_gate", {FFN "ffn.w_in.w_0"}},
    {"blk.{i}.ffn_up", {FFN "ffn.w_in.w_1"}},
    {"blk.{i}.ffn_down", {FFN "ffn.w_out"}},
    {"output_norm", {"encoder.output_layernorm"}},
    {"output", {"output_projection"}},
    {NULL}};

static const mc_gguf_key keys[] = {
    {"embedding_length", "hidden_size"},
    {"feed_forward_length", "intermediate_size"},
    {"block_count", "num_hidden_layers"},
    {"attention.head_count", "num_attention_heads"},
    {"attention.head_count_kv", "num_key_value_heads", .optional = true},
    {"attention.key_length", "head_dim", .optional = true},
    {"attention.value_length", "head_dim", .derived = true},
    {"rope.dimension_count", "head_dim", .derived = true},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps", .is_float = true},
    {"vocab_size", "vocab_size", .derived = true},
    {NULL}};

static const char *const dropped[] = {NULL};

static const char context_key[] = "context_length", window_key[] = "attention.sliding_window";
static const char embedding_key[] = "embedding_scale", residual_key[] = "residual_scale";
static const char logit_key[] = "logit_scale";

static const char *key_of(const char *architecture, const char *name, char out[MC_GGUF_NAME])
{
    snprintf(out, MC_GGUF_NAME, "%s.%s", architecture, name);
    return out;
}

/* ---- writing --------------------------------------------------------------------------------- */

static bool is_mistral(const mc_llama_config *c)
{
    return c->model_type && strcmp(c->model_type, "mistral") == 0;
}

/* Tokens that a layer with a window sees; 0: all layers see all. */
static int64_t window_of(const mc_llama_config *c)
{
    bool some = is_mistral(c) || (c->use_window && c->window_from < c->layers);
    return some && c->window > 0 ? c->window : 0;
}

/* llama.cpp has no window for these architectures. A context of the window's length needs none. */
static void put_context(mc_gguf_writer *w, mc_model *m, const cJSON *config, const char *arch)
{
    char key[MC_GGUF_NAME];
    const mc_llama_config c = mc_llama_get_config(m);
    double positions =
        cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(config, "max_position_embeddings"));
    int64_t window = window_of(&c);
    if (window && (double)window < positions) {
        mc_log(
            m->module.ctx, MC_LOG_WARNING,
            "GGUF: llama.cpp has no window for \"%s\": the file's context_length is the window's "
            "%lld tokens, not %.0f",
            arch, (long long)window, positions);
        positions = (double)window;
    }
    mc_gguf_put_u32(w, key_of(arch, context_key, key), (uint32_t)positions);
    if (window && is_mistral(&c))
        mc_gguf_put_u32(w, key_of(arch, window_key, key), (uint32_t)window);
}

static bool write_common(mc_gguf_writer *w, mc_model *m, const cJSON *config, const char *arch,
                         bool takes_tensor)
{
    const mc_llama_config c = mc_llama_get_config(m);
    if (!mc_gguf_is_text(config, "hidden_act", "silu"))
        return mc_gguf_refuse_key(m, "hidden_act", "silu");
    put_context(w, m, config, arch);
    return mc_gguf_put_rope(w, m, arch, &c.rope, takes_tensor);
}

static bool write_llama(mc_gguf_writer *w, mc_model *m, const cJSON *config)
{
    return write_common(w, m, config, "llama", true);
}

static bool write_qwen2(mc_gguf_writer *w, mc_model *m, const cJSON *config)
{
    const mc_llama_config c = mc_llama_get_config(m);
    if (c.head_dim > 0 && c.head_dim * c.heads != c.dim)
        return mc_gguf_refuse_key(m, "head_dim", "hidden_size / num_attention_heads");
    return write_common(w, m, config, "qwen2", false);
}

static bool write_qwen3(mc_gguf_writer *w, mc_model *m, const cJSON *config)
{
    if (mc_llama_get_config(m).attention_bias)
        return mc_gguf_refuse_key(m, "attention_bias", "false");
    return write_common(w, m, config, "qwen3", false);
}

static bool write_minicpm(mc_gguf_writer *w, mc_model *m, const cJSON *config)
{
    char key[MC_GGUF_NAME];
    const char *arch = "minicpm";
    const mc_llama_config c = mc_llama_get_config(m);
    mc_gguf_put_f32(w, key_of(arch, embedding_key, key), c.embedding_scale);
    mc_gguf_put_f32(w, key_of(arch, residual_key, key), c.depth_scale / sqrtf((float)c.layers));
    mc_gguf_put_f32(w, key_of(arch, logit_key, key), (float)c.dim / (float)c.base_dim);
    return write_common(w, m, config, arch, true);
}

static int64_t rope_divisors(const mc_model *m, float *out)
{
    const mc_llama_config c = mc_llama_get_config(m);
    int64_t head_dim = c.head_dim > 0 ? c.head_dim : c.dim / c.heads;
    if (c.rope.scaling.type != MC_ROTARY_LLAMA3) return 0;
    if (out) mc_gguf_rope_divisors(&c.rope, head_dim, out);
    return head_dim / 2;
}

/* ---- reading --------------------------------------------------------------------------------- */

static bool has_bias(const mc_gguf *g, const char *tensor)
{
    return mc_gguf_find_tensor(g, tensor);
}

static bool read_common(mc_context *ctx, const mc_gguf *g, cJSON *config, const char *arch)
{
    double dim = mc_gguf_number_of(g, arch, "embedding_length", 0);
    double heads = mc_gguf_number_of(g, arch, "attention.head_count", 1);
    double head_dim = mc_gguf_number_of(g, arch, "attention.key_length", dim / heads);
    double window = mc_gguf_number_of(g, arch, window_key, 0);
    double context = mc_gguf_number_of(g, arch, context_key, 0);
    if (!(head_dim >= 2 && head_dim <= INT32_MAX && context >= 1))
        return !mc_fail(ctx, MC_ERR_FORMAT,
                        "%s: key \"%s.%s\": expected heads of 2 or more numbers, and a "
                        "\"context_length\" of 1 or more",
                        g->path, arch, "attention.head_count");
    bool good = mc_gguf_read_tied(ctx, g, config) &&
                cJSON_AddNumberToObject(config, "max_position_embeddings", context);
    if (window >= 1) good = good && cJSON_AddNumberToObject(config, "sliding_window", window);
    return good && mc_gguf_read_rope(ctx, g, arch, (int64_t)head_dim, config);
}

/* A window makes a Mistral of it. */
static bool read_llama(mc_context *ctx, const mc_gguf *g, cJSON *config)
{
    if (mc_gguf_number_of(g, "llama", window_key, 0) >= 1) {
        cJSON *type = cJSON_CreateString("mistral");
        if (!type || !cJSON_ReplaceItemInObjectCaseSensitive(config, "model_type", type))
            return false;
    } else if (!cJSON_AddBoolToObject(config, "attention_bias",
                                      has_bias(g, "blk.0.attn_output.bias")) ||
               !cJSON_AddBoolToObject(config, "mlp_bias", has_bias(g, "blk.0.ffn_up.bias"))) {
        return false;
    }
    return read_common(ctx, g, config, "llama");
}

static bool read_qwen2(mc_context *ctx, const mc_gguf *g, cJSON *config)
{
    return read_common(ctx, g, config, "qwen2");
}

static bool read_qwen3(mc_context *ctx, const mc_gguf *g, cJSON *config)
{
    return read_common(ctx, g, config, "qwen3");
}

/* Files of before these keys have the scales of MiniCPM-2B. */
static bool read_minicpm(mc_context *ctx, const mc_gguf *g, cJSON *config)
{
    const char *arch = "minicpm";
    double layers = mc_gguf_number_of(g, arch, "block_count", 1);
    double dim = mc_gguf_number_of(g, arch, "embedding_length", 0);
    double scale = mc_gguf_number_of(g, arch, residual_key, 0);
    double base = round(dim / mc_gguf_number_of(g, arch, logit_key, dim / 256));
    return cJSON_AddNumberToObject(config, "scale_emb",
                                   mc_gguf_number_of(g, arch, embedding_key, 12)) &&
           cJSON_AddNumberToObject(
               config, "scale_depth",
               scale > 0 ? mc_gguf_undivided((float)scale, (double)sqrtf((float)layers)) : 1.4) &&
           cJSON_AddNumberToObject(config, "dim_model_base", base) &&
           read_common(ctx, g, config, arch);
}

/* ---- the families ---------------------------------------------------------------------------- */

#define ROTATED .pairs = true, .extra = mc_gguf_rope_tensor, .extra_values = rope_divisors
const mc_gguf_family mc_gguf_llama_families[MC_GGUF_LLAMA_FAMILIES] = {
    {"llama", "llama", "llama", rows, keys, dropped, write_llama, read_llama, ROTATED},
    {"llama", "mistral", "llama", rows, keys, dropped, write_llama, read_llama, ROTATED},
    {"llama", "qwen2", "qwen2", rows, keys, dropped, write_qwen2, read_qwen2},
    {"llama", "qwen3", "qwen3", rows, keys, dropped, write_qwen3, read_qwen3},
    {"llama", "minicpm", "minicpm", rows, keys, dropped, write_minicpm, read_minicpm, ROTATED},
};
