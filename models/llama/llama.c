#include "models/llama/llama.h"

#include <math.h>
#include <string.h>
#include "models/decoder_internal.h"

/* ---- config ---------------------------------------------------------------------------------- */

#define AT(member) offsetof(mc_llama_config, member)
#define ROW MC_ROW
#define OF(types) .of_types = types
static const mc_config_row config_rows[] = {
    MC_TYPE_ROW(model_type),
    ROW(SIZE, vocab_size, "vocab_size", "vocab_size", "32000", "32000", 1),
    ROW(SIZE, dim, "hidden_size", "dim_model", "4096", "4096", 1),
    ROW(SIZE, dim_ff, "intermediate_size", "dim_ff", "11008", "11008", 1),
    ROW(LAYERS, layers, "num_hidden_layers", "num_layers", "32", "32", 0),
    ROW(SIZE, heads, "num_attention_heads", "num_heads", "32", "32", 1),
    ROW(OPTIONAL, key_heads, "num_key_value_heads", "num_heads_kv", "null", "null", 1),
    ROW(OPTIONAL, head_dim, "head_dim", "dim_head", "null", "128", 1),
    ROW(SIZE, positions, "max_position_embeddings", NULL, "2048", "0", 0),
    ROW(FLOAT, rope.theta, "rope_theta", NULL, "10000", "10000", 1e-6, 1e30),
    MC_OTHER_NAME(ROPE, rope, "rope_parameters", 0),
    ROW(ROPE, rope, "rope_scaling", NULL, "", "", 0),
    ROW(OPTIONAL, window, "sliding_window", NULL, "null", "null", 1, OF("mistral qwen2 qwen3")),
    ROW(FLAG, use_window, "use_sliding_window", NULL, "false", "false", 0, OF("qwen2 qwen3")),
    ROW(SIZE, window_from, "max_window_layers", NULL, "28", "28", 0, OF("qwen2 qwen3")),
    ROW(ACTIVATION, activation, "hidden_act", NULL, "\"silu\"", "\"silu\"", 0),
    ROW(FLOAT, eps, "rms_norm_eps", "norm_eps", "1e-6", "1e-6", 1e-30, 1),
    ROW(DROPOUT, dropout, NULL, "dropout_p", "0", "0", 0),
    ROW(DROPOUT, attention_dropout, "attention_dropout", "dropout_p", "0", "0", 0),
    ROW(FLOAT, init_std, "initializer_range", "att_init_std", "0.02", "0.02", 0, 1e6),
    ROW(FLOAT, embedding_std, "initializer_range", "emb_init_std", "0.02", "0.02", 0, 1e6),
    ROW(FLOAT, ffn_std, "initializer_range", "ffn_init_std", "0.02", "0.02", 0, 1e6),
    ROW(FLAG, attention_bias, "attention_bias", NULL, "false", "false", 0, OF("llama qwen3")),
    ROW(FLAG, ffn_bias, "mlp_bias", NULL, "false", "false", 0, OF("llama")),
    ROW(FLAG, tied, "tie_word_embeddings", "tied", "false", "false", 0),
    ROW(FLOAT, embedding_scale, "scale_emb", NULL, "1", "1", 1e-30, 0, OF("minicpm")),
    ROW(FLOAT, depth_scale, "scale_depth", NULL, "1", "1", 1e-30, 0, OF("minicpm")),
    ROW(SIZE, base_dim, "dim_model_base", NULL, "1", "1", 1, OF("minicpm")),
    ROW(TOKEN, bos_token_id, "bos_token_id", NULL, "1", "-1", 0),
    ROW(TOKEN, eos_token_id, "eos_token_id", NULL, "2", "-1", 0),
    ROW(TOKEN, pad_token_id, "pad_token_id", NULL, "-1", "-1", 0),
    MC_ONLY(NULL, "ffn_activate_fn", "\"gated_silu\""),
    MC_ONLY(NULL, "pos_bias_type", "\"rotary\""),
    MC_ONLY(NULL, "norm_bias", "false"),
    MC_ONLY(NULL, "att_bias", "false"),
    MC_ONLY(NULL, "ffn_bias", "false"),
    MC_ONLY(NULL, "proj_bias", "false"),
    MC_ONLY(NULL, "length_scale", "false"),
    MC_ONLY(NULL, "attn_scale", "true"),
    MC_ONLY(NULL, "post_layer_norm", "false"),
    MC_ONLY_MC_ROWS,
    MC_KNOWN(NULL, "proj_init_std"),
    MC_KNOWN("pretraining_tp", NULL),
    MC_KNOWN("is_llama_config", NULL), /* SmolLM2's */
    MC_ONLY("rope_interleaved", NULL, "false"),
    MC_ONLY("use_mrope", NULL, "false"),                /* Qwen2's */
    MC_KNOWN("original_max_position_embeddings", NULL), /* see mc_config_read_rope */
    MC_KNOWN("layer_types", NULL),                      /* see take_layer_types */
    {MC_CONFIG_END},
};

#define QWEN                                                                           \
    "\"vocab_size\":151936,\"intermediate_size\":22016,\"num_key_value_heads\":32,"    \
    "\"max_position_embeddings\":32768,\"sliding_window\":4096,\"bos_token_id\":null," \
    "\"eos_token_id\":null"
static const mc_type_defaults type_defaults[] = {
    {"mistral", "{\"intermediate_size\":14336,\"num_key_value_heads\":8,"
                "\"max_position_embeddings\":131072,\"sliding_window\":4096}"},
    {"qwen2", "{" QWEN "}"},
    {"qwen3", "{\"head_dim\":128," QWEN "}"},
    {"minicpm", "{\"tie_word_embeddings\":true}"},
    {NULL}};

#define SHAPE(dim, ff, layers, heads, kv, vocab, length)                                         \
    "\"hidden_size\":" #dim ",\"intermediate_size\":" #ff ",\"num_hidden_layers\":" #layers      \
    ",\"num_attention_heads\":" #heads ",\"num_key_value_heads\":" #kv ",\"vocab_size\":" #vocab \
    ",\"max_position_embeddings\":" #length
#define TIED ",\"tie_word_embeddings\":true"
#define EPS5 ",\"rms_norm_eps\":1e-5"
#define LLAMA3 EPS5 ",\"rope_theta\":500000,\"bos_token_id\":128000,\"eos_token_id\":128001"
#define LLAMA31(factor)                                                      \
    LLAMA3 ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":" #factor \
           ",\"low_freq_factor\":1,\"high_freq_factor\":4,"                  \
           "\"original_max_position_embeddings\":8192}"
#define SMOL TIED EPS5 ",\"bos_token_id\":0,\"eos_token_id\":0,\"rope_theta\":"
#define QWEN2 "{\"model_type\":\"qwen2\",\"rope_theta\":1000000,\"eos_token_id\":151643,"
#define QWEN3 "{\"model_type\":\"qwen3\",\"rope_theta\":1000000,\"eos_token_id\":151645,"
static const mc_named_shape named[] = {
    {"llama-7b huggyllama/llama-7b", "{}"},
    {"llama-2-7b meta-llama/Llama-2-7b-hf",
     "{" SHAPE(4096, 11008, 32, 32, 32, 32000, 4096) EPS5 "}"},
    {"llama-2-13b meta-llama/Llama-2-13b-hf",
     "{" SHAPE(5120, 13824, 40, 40, 40, 32000, 4096) EPS5 "}"},
    {"llama-3-8b meta-llama/Meta-Llama-3-8B",
     "{" SHAPE(4096, 14336, 32, 32, 8, 128256, 8192) LLAMA3 "}"},
    {"llama-3.1-8b meta-llama/Llama-3.1-8B",
     "{" SHAPE(4096, 14336, 32, 32, 8, 128256, 131072) LLAMA31(8) "}"},
    {"llama-3.2-1b meta-llama/Llama-3.2-1B",
     "{" SHAPE(2048, 8192, 16, 32, 8, 128256, 131072) LLAMA31(32) TIED "}"},
    {"llama-3.2-3b meta-llama/Llama-3.2-3B",
     "{" SHAPE(3072, 8192, 28, 24, 8, 128256, 131072) LLAMA31(32) TIED "}"},
    {"tinyllama TinyLlama/TinyLlama-1.1B-Chat-v1.0",
     "{" SHAPE(2048, 5632, 22, 32, 4, 32000, 2048) EPS5 "}"},
    {"smollm2-135m HuggingFaceTB/SmolLM2-135M",
     "{" SHAPE(576, 1536, 30, 9, 3, 49152, 8192) SMOL "100000}"},
    {"smollm2-360m HuggingFaceTB/SmolLM2-360M",
     "{" SHAPE(960, 2560, 32, 15, 5, 49152, 8192) SMOL "100000}"},
    {"smollm2-1.7b HuggingFaceTB/SmolLM2-1.7B",
     "{" SHAPE(2048, 8192, 24, 32, 32, 49152, 8192) SMOL "130000}"},
    {"mistral-7b mistralai/Mistral-7B-v0.1",
     "{\"model_type\":\"mistral\"," SHAPE(4096, 14336, 32, 32, 8, 32000, 32768) EPS5 "}"},
    {"mistral-7b-v0.3 mistralai/Mistral-7B-v0.3",
     "{\"model_type\":\"mistral\"," SHAPE(4096, 14336, 32, 32, 8, 32768, 32768) EPS5
     ",\"sliding_window\":null,\"rope_theta\":1000000}"},
    {"qwen2.5-0.5b Qwen/Qwen2.5-0.5B", QWEN2 SHAPE(896, 4864, 24, 14, 2, 151936, 32768) TIED "}"},
    {"qwen2.5-1.5b Qwen/Qwen2.5-1.5B", QWEN2 SHAPE(1536, 8960, 28, 12, 2, 151936, 131072) TIED "}"},
    {"qwen2.5-7b Qwen/Qwen2.5-7B", QWEN2 SHAPE(3584, 18944, 28, 28, 4, 152064, 131072) "}"},
    {"qwen3-0.6b Qwen/Qwen3-0.6B", QWEN3 SHAPE(1024, 3072, 28, 16, 8, 151936, 40960) TIED "}"},
    {"qwen3-1.7b Qwen/Qwen3-1.7B", QWEN3 SHAPE(2048, 6144, 28, 16, 8, 151936, 40960) TIED "}"},
    {"qwen3-4b Qwen/Qwen3-4B", QWEN3 SHAPE(2560, 9728, 36, 32, 8, 151936, 40960) TIED "}"},
    {"qwen3-8b Qwen/Qwen3-8B", QWEN3 SHAPE(4096, 12288, 36, 32, 8, 151936, 40960) "}"},
    {"minicpm-2b openbmb/MiniCPM-2B-sft-bf16",
     "{\"model_type\":\"minicpm\"," SHAPE(2304, 5760, 40, 36, 36, 122753, 2048) EPS5
     ",\"scale_emb\":12,\"scale_depth\":1.4,\"dim_model_base\":256}"},
    {NULL}};

static mc_model_shape shape(const void *config)
{
    const mc_llama_config *c = config;
    mc_model_shape s = MC_SHAPE_OF(c);
    s.head_dim = c->head_dim;
    s.key_heads = c->key_heads == c->heads ? 0 : c->key_heads;
    s.bos_token = c->bos_token_id;
    s.eos_token = c->eos_token_id;
    return s;
}

static bool is(const mc_llama_config *c, const char *type)
{
    return strcmp(c->model_type, type) == 0;
}

static bool is_qwen(const mc_llama_config *c) { return is(c, "qwen2") || is(c, "qwen3"); }

static bool fail_types(const mc_config_reader *r, const char *found, const char *expected)
{
    return mc_config_unsupported(r, "layer_types", found, expected);
}

/* A list of layers' attention, which overrules max_window_layers: only the first may be full. */
static bool take_layer_types(const mc_config_reader *r, mc_llama_config *c)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(r->json, "layer_types"), *item;
    int64_t full = 0, count = 0;
    if (!cJSON_IsArray(list)) return true;
    cJSON_ArrayForEach(item, list)
    {
        const char *type = cJSON_IsString(item) ? item->valuestring : "";
        bool is_full = strcmp(type, "full_attention") == 0;
        if (!is_full && strcmp(type, "sliding_attention") != 0)
            return fail_types(r, type, "full_attention or sliding_attention");
        if (is_full && full < count)
            return fail_types(r, "full_attention after sliding_attention", "full layers first");
        if (!is_full && !is_qwen(c) && !is(c, "mistral"))
            return fail_types(r, type, "full_attention");
        full += is_full;
        count++;
    }
    if (count != c->layers) return fail_types(r, "a list", "a type for each layer");
    if (is(c, "mistral") && full && c->window > 0)
        return fail_types(r, "full_attention", "sliding_attention, for there is a window");
    if (is_qwen(c) && c->use_window) c->window_from = full;
    return true;
}

static bool finish(const mc_config_reader *r, void *config)
{
    mc_llama_config *c = config;
    if (!c->model_type) c->model_type = "llama";
    mc_model_shape s = shape(c);
    if (!mc_config_check_grouped(r, &s, c->eps, &c->head_dim, &c->key_heads)) return false;
    if (c->head_dim % 2)
        return !mc_fail(r->ctx, MC_ERR_FORMAT,
                        "%s: key \"%s\": heads of %lld, expected an even number, half of whose "
                        "columns are rotated with the other half",
                        r->path, r->form == MC_FORM_HF ? "head_dim" : "dim_head",
                        (long long)c->head_dim);
    if (c->window == 0 || c->window > INT32_MAX)
        return !mc_fail(r->ctx, MC_ERR_FORMAT,
                        "%s: key \"sliding_window\": %lld, expected 1 or more, or null", r->path,
                        (long long)c->window);
    return take_layer_types(r, c);
}

/* ---- construction ---------------------------------------------------------------------------- */

/* Tokens that one of the windowed layers sees; 0: all. */
static int window_of(const mc_llama_config *c)
{
    bool counts = is(c, "mistral") || (is_qwen(c) && c->use_window);
    return counts && c->window > 0 ? (int)c->window : 0;
}

static bool declare(mc_model *m, const mc_load_options *load)
{
    const mc_llama_config *c = m->config;
    bool scaled = is(c, "minicpm") && c->layers > 0;
    float branch = scaled ? c->depth_scale / sqrtf((float)c->layers) : 0;
    if (scaled) m->head_scale = (float)c->base_dim / (float)c->dim;
    mc_decoder_options o = MC_DECODER_OF(c);
    o.rms_norm = o.no_token_bias = true;
    o.embedding_scale = scaled ? c->embedding_scale : 0;
    o.window_from = is_qwen(c) ? c->window_from : 0;
    o.attention = (mc_attention_options){.head_dim = (int)c->head_dim,
                                         .key_heads = (int)c->key_heads,
                                         .no_bias = !c->attention_bias && !is(c, "qwen2"),
                                         .no_out_bias = !c->attention_bias,
                                         .window = window_of(c),
                                         .qk_norm_eps = is(c, "qwen3") ? c->eps : 0,
                                         .out_scale = branch,
                                         .rotary_dim = (int)c->head_dim,
                                         .rotary_halves = true,
                                         .rotary_base = c->rope.theta,
                                         .rotary_scaling = c->rope.scaling};
    o.ffn.gated = true;
    o.ffn.no_bias = !c->ffn_bias;
    o.ffn.out_scale = branch;
    return mc_decoder_declare(m, &o, load);
}

/* ---- files ----------------------------------------------------------------------------------- */

#define LAYER "encoder.layers.{i}."
#define ATTENTION LAYER "self_att.self_attention."
static const mc_weight_rule rules[] = {
    {"input_embedding", "embed_tokens", .tied_to = "lm_head"},
    {"encoder.output_layernorm", "norm"},
    {LAYER "self_att.layernorm_before_attention", "layers.{i}.input_layernorm"},
    {ATTENTION "project_q", "layers.{i}.self_attn.q_proj"},
    {ATTENTION "project_k", "layers.{i}.self_attn.k_proj"},
    {ATTENTION "project_v", "layers.{i}.self_attn.v_proj"},
    {ATTENTION "attention_out", "layers.{i}.self_attn.o_proj"},
    {ATTENTION "q_norm", "layers.{i}.self_attn.q_norm"},
    {ATTENTION "k_norm", "layers.{i}.self_attn.k_norm"},
    {LAYER "ffn.layernorm_before_ffn", "layers.{i}.post_attention_layernorm"},
    {LAYER "ffn.ffn.w_in.w_0", "layers.{i}.mlp.gate_proj"},
    {LAYER "ffn.ffn.w_in.w_1", "layers.{i}.mlp.up_proj"},
    {LAYER "ffn.ffn.w_out", "layers.{i}.mlp.down_proj"},
    {"output_projection", "lm_head", .head = true},
    {"score", "score", .head = true},
    {NULL}};

/* Old files hold the rotary angles. */
static const char *const ignored[] = {"*rotary_emb.inv_freq", "lm_head.weight", NULL};

static const mc_weight_map map = {
    .rules = rules,
    .base_prefix = "model.",
    .ignored = ignored,
    .order = "weight bias model lm_head score embed_tokens layers norm self_attn mlp "
             "input_layernorm post_attention_layernorm q_proj k_proj v_proj o_proj q_norm k_norm "
             "gate_proj up_proj down_proj"};

static bool before_save(mc_model *m, mc_config_form form, void *config, int *scaling)
{
    mc_llama_config *c = config;
    (void)scaling;
    if (form == MC_FORM_HF) {
        if (!c->positions)
            c->positions = 2048; /* ModelCenter's has no limit, transformers needs one */
        return true;
    }
    return is(c, "llama") ||
           !mc_fail(m->module.ctx, MC_ERR_UNSUPPORTED,
                    "LLaMA: a %s has no ModelCenter form, expected a llama", c->model_type);
}

static const char *const model_types[] = {"llama", "mistral", "qwen2", "qwen3", "minicpm", NULL};
static const mc_family_classes classes[] = {
    {"LlamaForSequenceClassification", "LlamaForCausalLM"},
    {"MistralForSequenceClassification", "MistralForCausalLM"},
    {"Qwen2ForSequenceClassification", "Qwen2ForCausalLM"},
    {"Qwen3ForSequenceClassification", "Qwen3ForCausalLM"},
    {"MiniCPMForSequenceClassification", "MiniCPMForCausalLM"}};

static const char *const mc_has[] = {"encoder.output_layernorm.weight",
                                     "encoder.layers.0.ffn.ffn.w_in.w_1.weight", NULL};
static const char *const mc_lacks[] = {"encoder.output_layernorm.bias",
                                       "position_bias.relative_attention_bias",
                                       "position_bias_enc.relative_attention_bias", NULL};
static const char *const lora_targets[] = {"q_proj", "v_proj", NULL};

const mc_family mc_family_llama = {
    MC_DECODER_FAMILY(llama), .title = "LLaMA",           .type_defaults = type_defaults,
    .look = mc_decoder_look,  .before_save = before_save,
};

MC_DEFINE_FAMILY(llama)
