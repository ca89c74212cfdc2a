#include "tokenizers/files/settings_internal.h"

#include <stdio.h>
#include <string.h>
#include "tokenizers/gguf/inside_internal.h"
#include "tokenizers/files/keys_internal.h"
#include "tokenizers/files/parts_internal.h"

static const mc_settings none;

static const mc_settings *settings_of(const mc_tokenizer *tok)
{
    return tok->settings ? tok->settings : &none;
}

/* ---- classes --------------------------------------------------------------------------------- */

/* Without "Fast" at their ends, which changes nothing of the ids. */
static const struct {
    mc_tokenizer_class class;
    const char *names; /* with a space after each */
} classes[] = {
    {MC_CLASS_BERT, "BertTokenizer DistilBertTokenizer ElectraTokenizer MobileBertTokenizer "
                    "ConvBertTokenizer LxmertTokenizer SqueezeBertTokenizer LayoutLMTokenizer "
                    "DPRQuestionEncoderTokenizer DPRContextEncoderTokenizer DPRReaderTokenizer "
                    "RetriBertTokenizer RealmTokenizer "},
    {MC_CLASS_GPT2, "GPT2Tokenizer CodeGenTokenizer "},
    {MC_CLASS_ROBERTA, "RobertaTokenizer LongformerTokenizer BartTokenizer LEDTokenizer "},
    {MC_CLASS_T5, "T5Tokenizer MT5Tokenizer "},
    {MC_CLASS_LLAMA, "LlamaTokenizer "},
    {MC_CLASS_GENERIC, "PreTrainedTokenizer TokenizersBackend PythonBackend "},
    {MC_CLASS_FILE, "GPTNeoXTokenizer BloomTokenizer MPNetTokenizer "},
    {MC_CLASS_QWEN2, "Qwen2Tokenizer "},
    {MC_CLASS_XLMR, "XLMRobertaTokenizer "},
    {MC_CLASS_CAMEMBERT, "CamembertTokenizer "},
    {MC_CLASS_GLM, "GLMChineseTokenizer "},
    {MC_CLASS_PYTHON,
     "BartphoTokenizer BertGenerationTokenizer BertJapaneseTokenizer BertTokenizerLegacy "
     "BertweetTokenizer BioGptTokenizer BlenderbotSmallTokenizer ByT5Tokenizer CTRLTokenizer "
     "CanineTokenizer ClvpTokenizer CpmAntTokenizer CpmTokenizer DiaTokenizer EsmTokenizer "
     "FSMTTokenizer FastSpeech2ConformerTokenizer FlaubertTokenizer GPTNeoXJapaneseTokenizer "
     "GPTSw3Tokenizer M2M100Tokenizer MarianTokenizer MgpstrTokenizer MyT5Tokenizer "
     "PLBartTokenizer PerceiverTokenizer PhobertTokenizer Pop2PianoTokenizer ProphetNetTokenizer "
     "RoCBertTokenizer SiglipTokenizer Speech2TextTokenizer SpeechT5Tokenizer TapasTokenizer "
     "VitsTokenizer Wav2Vec2CTCTokenizer Wav2Vec2PhonemeCTCTokenizer XLMTokenizer "},
};

static mc_tokenizer_class class_of(const char *name)
{
    size_t length = strlen(name);
    if (length > 4 && strcmp(name + length - 4, "Fast") == 0) length -= 4;
    for (size_t c = 0; length && c < sizeof classes / sizeof *classes; c++)
        for (const char *at = classes[c].names; *at; at += strcspn(at, " ") + 1)
            if (strcspn(at, " ") == length && strncmp(at, name, length) == 0)
                return classes[c].class;
    return length ? MC_CLASS_OTHER : MC_CLASS_NONE;
}

mc_tokenizer_class mc_settings_class(const mc_tokenizer *tok) { return settings_of(tok)->class; }

void mc_settings_fall_back(mc_tokenizer *tok, unsigned own)
{
    mc_settings *s = tok->settings;
    if (s && s->class == MC_CLASS_NONE && own & MC_CLASSES(s->of_type)) s->class = s->of_type;
}

static mc_status refuse_class(const mc_settings *s, mc_error *err, const char *file,
                              const char *expected)
{
    return mc_error_set(err, MC_ERR_UNSUPPORTED,
                        "%s: key \"tokenizer_class\": \"%s\" is not supported for %s, expected %s",
                        s->class_path, s->class_name, file, expected);
}

mc_status mc_settings_expect_class(const mc_tokenizer *tok, mc_error *err, const char *file,
                                   unsigned own)
{
    const mc_settings *s = settings_of(tok);
    char expected[512] = "";
    own |= MC_CLASSES(MC_CLASS_NONE) | MC_CLASSES(MC_CLASS_GENERIC);
    if (own & MC_CLASSES(s->class)) return MC_OK;
    for (size_t c = 0; c < sizeof classes / sizeof *classes; c++) {
        size_t used = strlen(expected);
        if (!(own & MC_CLASSES(classes[c].class)) || classes[c].class == MC_CLASS_GENERIC) continue;
        snprintf(expected + used, sizeof expected - used, "%s%.*s", used ? " or " : "",
                 (int)strcspn(classes[c].names, " "), classes[c].names);
    }
    return refuse_class(s, err, file, expected);
}

static mc_tokenizer_class class_of_type(const char *type)
{
    static const struct {
        const char *type;
        mc_tokenizer_class class;
    } types[] = {
        {"bert", MC_CLASS_BERT},        {"gpt2", MC_CLASS_GPT2},          {"gptj", MC_CLASS_GPT2},
        {"roberta", MC_CLASS_ROBERTA},  {"longformer", MC_CLASS_ROBERTA}, {"t5", MC_CLASS_T5},
        {"mt5", MC_CLASS_T5},           {"qwen2", MC_CLASS_QWEN2},        {"qwen3", MC_CLASS_QWEN2},
        {"xlm-roberta", MC_CLASS_XLMR}, {"camembert", MC_CLASS_CAMEMBERT}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].type, type) == 0) return types[i].class;
    return MC_CLASS_NONE;
}

/* What config.json says, which need not be there. */
static mc_status read_model_class(const mc_tokenizer *tok, mc_error *err, const char *folder,
                                  const char **name, cJSON **model)
{
    mc_settings *s = tok->settings;
    char path[MC_PATH_MAX];
    const char *type = "";
    if (mc_path_join(err, path, folder, "config.json")) return err->status;
    if (mc_inside_is_file(tok->inside, path))
        *model = mc_inside_read_object(tok->inside, err, path, 1 << 24);
    if (!*model || !mc_json_get_string(err, *model, path, "tokenizer_class", name))
        return err->status;
    const cJSON *item = mc_tokenizer_part(*model, "model_type");
    if (cJSON_IsString(item)) type = item->valuestring;
    if (**name) snprintf(s->class_path, sizeof s->class_path, "%s", path);
    s->of_type = class_of_type(type);
    return MC_OK;
}

/* The class, and the file that names it. */
static mc_status read_class(const mc_tokenizer *tok, mc_error *err, const char *folder)
{
    mc_settings *s = tok->settings;
    const char *name = "";
    cJSON *model = NULL;
    snprintf(s->class_path, sizeof s->class_path, "%s", s->config_path);
    if (!mc_json_get_string(err, s->config, s->config_path, "tokenizer_class", &name))
        return err->status;
    if (!*name && folder) read_model_class(tok, err, folder, &name, &model);
    snprintf(s->class_name, sizeof s->class_name, "%s", name);
    cJSON_Delete(model);
    s->class = class_of(s->class_name);
    if (!err->status && s->class == MC_CLASS_PYTHON)
        return mc_error_set(err, MC_ERR_UNSUPPORTED,
                            "%s: key \"tokenizer_class\": \"%s\" is not supported: it cuts words "
                            "in Python, and other words would give other ids",
                            s->class_path, s->class_name);
    return err->status;
}

/* ---- files ----------------------------------------------------------------------------------- */

static mc_settings *new_settings(mc_tokenizer *tok, mc_error *err)
{
    mc_settings_free(tok->settings);
    tok->settings = mc_calloc(1, sizeof *tok->settings);
    if (!tok->settings) mc_error_set(err, MC_ERR_NOMEM, "out of memory for a tokenizer's settings");
    return tok->settings;
}

static cJSON *read_file(mc_tokenizer *tok, mc_error *err, const char *folder, const char *name,
                        const mc_key_table *table, char path[MC_PATH_MAX])
{
    if (err->status || mc_path_join(err, path, folder, name) ||
        !mc_inside_is_file(tok->inside, path))
        return NULL;
    cJSON *json = mc_inside_read_object(tok->inside, err, path, MC_TOKENIZER_FILE_MAX);
    if (json && table) mc_keys_check(tok->ctx, err, path, json, table);
    return json;
}

static mc_status read_template(const mc_tokenizer *tok, mc_error *err, const char *folder)
{
    mc_settings *s = tok->settings;
    if (mc_path_join(err, s->template_path, folder, "chat_template.jinja")) return err->status;
    if (!mc_inside_is_file(tok->inside, s->template_path)) return MC_OK;
    s->chat_template = mc_inside_read(tok->inside, err, s->template_path, 1 << 24, NULL);
    return err->status;
}

/* A text, or of a list of {"name", "template"} that of the name "default" or else the first. */
const char *mc_tokenizer_chat_template(const mc_tokenizer *tok, const char **path)
{
    const mc_settings *s = settings_of(tok);
    const cJSON *item = mc_tokenizer_part(s->config, "chat_template"), *one;
    *path = s->chat_template ? s->template_path : s->config_path;
    if (s->chat_template) return s->chat_template;
    if (cJSON_IsArray(item)) {
        const cJSON *list = item;
        item = mc_tokenizer_part(list->child, "template");
        cJSON_ArrayForEach(one, list)
        {
            const cJSON *name = mc_tokenizer_part(one, "name");
            if (cJSON_IsString(name) && strcmp(name->valuestring, "default") == 0)
                item = mc_tokenizer_part(one, "template");
        }
    }
    return cJSON_IsString(item) ? item->valuestring : NULL;
}

const char *mc_tokenizer_named(const mc_tokenizer *tok, const char *key, const char *otherwise)
{
    const char *text = mc_settings_named(tok, key);
    const char *own = strcmp(key, "bos_token") == 0 ? tok->bos_token : tok->eos_token;
    if (text && *text) return text;
    return mc_tokenizer_token_to_id(tok, own) >= 0 ? own : otherwise;
}

mc_status mc_settings_open(mc_tokenizer *tok, mc_error *err, const char *folder)
{
    mc_settings *s = new_settings(tok, err);
    if (!s) return err->status;
    s->config = read_file(tok, err, folder, "tokenizer_config.json", &mc_keys_tokenizer_config,
                          s->config_path);
    s->map = read_file(tok, err, folder, "special_tokens_map.json", &mc_keys_special_tokens_map,
                       s->map_path);
    s->added = read_file(tok, err, folder, "added_tokens.json", NULL, s->added_path);
    s->has_decoder = mc_tokenizer_part(s->config, "added_tokens_decoder") != NULL;
    if (err->status || read_template(tok, err, folder)) return err->status;
    return read_class(tok, err, folder);
}

mc_status mc_settings_parse(mc_tokenizer *tok, mc_error *err, const char *path, const char *text,
                            size_t size)
{
    mc_settings *s = new_settings(tok, err);
    if (!s) return err->status;
    snprintf(s->config_path, sizeof s->config_path, "%s", path);
    s->config = mc_json_parse(err, text, size, path, 1);
    if (s->config && !cJSON_IsObject(s->config))
        mc_error_set(err, MC_ERR_FORMAT, "%s: expected a JSON object at the top level", path);
    if (!err->status) mc_keys_check(tok->ctx, err, path, s->config, &mc_keys_tokenizer_config);
    s->has_decoder = mc_tokenizer_part(s->config, "added_tokens_decoder") != NULL;
    return err->status ? err->status : read_class(tok, err, NULL);
}

void mc_settings_free(mc_settings *s)
{
    if (!s) return;
    cJSON_Delete(s->config);
    cJSON_Delete(s->map);
    cJSON_Delete(s->added);
    mc_free(s->chat_template);
    mc_free(s);
}

/* ---- flags and lengths ----------------------------------------------------------------------- */

bool mc_settings_flag(const mc_tokenizer *tok, mc_error *err, const char *key, bool *value,
                      bool *given)
{
    const mc_settings *s = settings_of(tok);
    if (given) *given = mc_tokenizer_part(s->config, key) != NULL;
    return mc_json_get_bool(err, s->config, s->config_path, key, value);
}

void mc_settings_warn_unused(const mc_tokenizer *tok, const char *key, bool used)
{
    const mc_settings *s = settings_of(tok);
    const cJSON *item = mc_tokenizer_part(s->config, key);
    if (cJSON_IsBool(item) && (bool)cJSON_IsTrue(item) != used)
        mc_log(tok->ctx, MC_LOG_WARNING,
               "%s: key \"%s\" has no effect: tokenizers of class %s do what tokenizer.json says",
               s->config_path, key, *s->class_name ? s->class_name : "PreTrainedTokenizerFast");
}

/* transformers writes 1e30 where a tokenizer has no limit. */
static mc_status read_length(mc_tokenizer *tok, mc_error *err, const mc_settings *s)
{
    double length = 0;
    const char *key =
        mc_tokenizer_part(s->config, "model_max_length") ? "model_max_length" : "max_len";
    if (!mc_json_get_number(err, s->config, s->config_path, key, 1, 1e40, &length))
        return err->status;
    tok->max_length = length < INT32_MAX ? (int64_t)length : 0;
    return MC_OK;
}

static mc_status read_side(mc_tokenizer *tok, mc_error *err, const mc_settings *s)
{
    const char *side = NULL;
    if (!mc_json_get_string(err, s->config, s->config_path, "truncation_side", &side))
        return err->status;
    if (!side) return MC_OK;
    tok->cuts_left = strcmp(side, "left") == 0;
    if (tok->cuts_left || strcmp(side, "right") == 0) return MC_OK;
    return mc_error_set(err, MC_ERR_FORMAT,
                        "%s: key \"truncation_side\": expected left or right, found \"%.40s\"",
                        s->config_path, side);
}

static bool lists(const cJSON *list, const char *word)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, list)
    {
        if (cJSON_IsString(item) && strcmp(item->valuestring, word) == 0) return true;
    }
    return false;
}

/* Whether models are given the types of a pair's tokens: DistilBERT's are not. */
static mc_status read_inputs(mc_tokenizer *tok, mc_error *err, const mc_settings *s)
{
    const cJSON *inputs = mc_tokenizer_part(s->config, "model_input_names");
    if (inputs && !cJSON_IsArray(inputs))
        return mc_error_set(err, MC_ERR_FORMAT, "%s: key \"model_input_names\": expected a list",
                            s->config_path);
    if (inputs)
        tok->no_types = !lists(inputs, "token_type_ids");
    else
        tok->no_types = strncmp(s->class_name, "DistilBertTokenizer", 19) == 0;
    return MC_OK;
}

mc_status mc_settings_read_common(mc_tokenizer *tok, mc_error *err)
{
    const mc_settings *s = settings_of(tok);
    bool bpe = tok->kind == MC_TOKENIZER_BYTE_BPE, clean = false;
    if (read_length(tok, err, s) || read_side(tok, err, s) || read_inputs(tok, err, s))
        return err->status;
    if (!mc_settings_flag(tok, err, "clean_up_tokenization_spaces", &clean, NULL))
        return err->status;
    if (bpe && clean) {
        clean = false;
        mc_settings_flag(tok, err,
                         "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
                         &clean, NULL);
    }
    tok->cleans_up = clean;
    return err->status;
}
