#include "tokenizers/gguf/tokens_internal.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include "core/base/memory_internal.h"

#define KEY MC_GGUF_KEY
static const char phantom[] = MC_SPACE_SYMBOL; /* before each piece that begins a word */
static const char sentinel[] = "<extra_id_";

/* ---- what all kinds have --------------------------------------------------------------------- */

typedef struct taking {
    mc_error *err;
    const mc_gguf *g;
    mc_inside *out;
    const mc_gguf_value *tokens, *types;
} taking;

const mc_gguf_words mc_gguf_words_known[MC_GGUF_WORDS] = {
    {"gpt-2", MC_CUT_GPT2},
    {"llama-bpe", MC_CUT_CL100K, .whole_words = true, .adds_bos = true},
    {"qwen2", MC_CUT_QWEN, .nfc = true},
    {"modern-bert", MC_CUT_GPT2, .nfc = true, .adds_bos = true, .encoder = true},
};

static bool wrong(const taking *t, const char *key, const char *expected)
{
    mc_error_set(t->err, MC_ERR_FORMAT, "%s: key \"%s\": expected %s", t->g->path, key, expected);
    return false;
}

static bool out_of_memory(const taking *t)
{
    mc_error_set(t->err, MC_ERR_NOMEM, "%s: out of memory for its tokenizer", t->g->path);
    return false;
}

/* An array of so many items, of texts or of numbers. NULL after an error. */
static const mc_gguf_value *array_of(const taking *t, const char *key, bool texts, uint64_t count)
{
    const mc_gguf_value *v = mc_gguf_find(t->g, key);
    bool good = v && v->is_array && (v->kind == MC_GGUF_STRING) == texts &&
                (!count || v->count == count) && v->count <= MC_TOKENS_MAX;
    if (good) return v;
    wrong(t, key, texts ? "an array of texts" : "an array of numbers, one for each token");
    return NULL;
}

static double number_of(const mc_gguf_value *v, uint64_t i, double otherwise)
{
    double number = otherwise;
    return mc_gguf_number(v, i, &number) ? number : otherwise;
}

static bool flag_of(const taking *t, const char *key, bool otherwise)
{
    return number_of(mc_gguf_find(t->g, key), 0, otherwise) != 0;
}

/* The text of the token whose id a key is, on the heap; NULL: there is none. False when memory is
 * out. */
static bool token_text(const taking *t, const char *key, char **out)
{
    size_t length = 0;
    const char *text = NULL;
    const uint8_t *at = t->tokens->data;
    double id = number_of(mc_gguf_find(t->g, key), 0, -1);
    *out = NULL;
    if (id < 0 || id >= (double)t->tokens->count) return true;
    for (uint64_t i = 0; i <= (uint64_t)id; i++) text = mc_gguf_text(&at, &length);
    *out = mc_strndup(text, length);
    return *out;
}

static bool add_name(const taking *t, cJSON *config, const char *key, const char *name)
{
    char *text;
    bool good = token_text(t, key, &text) && (!text || cJSON_AddStringToObject(config, name, text));
    mc_free(text);
    return good;
}

static bool write_file(const taking *t, const char *name, const void *bytes, size_t size)
{
    return mc_inside_add(t->out, name, bytes, size) || out_of_memory(t);
}

static bool write_json(const taking *t, const char *name, cJSON *json)
{
    char *text = json ? cJSON_Print(json) : NULL;
    bool good = text ? write_file(t, name, text, strlen(text)) : out_of_memory(t);
    cJSON_free(text);
    return good;
}

/* Which tokens are put around a text; files that do not say it have llama.cpp's default. */
static bool add_ends(const taking *t, cJSON *config, bool bos)
{
    return cJSON_AddBoolToObject(config, "add_bos_token", flag_of(t, KEY("add_bos_token"), bos)) &&
           cJSON_AddBoolToObject(config, "add_eos_token", flag_of(t, KEY("add_eos_token"), false));
}

static bool add_encoder_names(const taking *t, cJSON *config)
{
    const char *first = KEY("cls_token_id");
    if (!mc_gguf_find(t->g, first)) first = KEY("bos_token_id");
    return add_name(t, config, first, "cls_token") &&
           add_name(t, config, KEY("seperator_token_id"), "sep_token") &&
           add_name(t, config, KEY("mask_token_id"), "mask_token");
}

static bool add_template(const taking *t, cJSON *config)
{
    size_t length = 0;
    const mc_gguf_value *v = mc_gguf_find(t->g, MC_GGUF_TEMPLATE);
    const uint8_t *at = v && v->kind == MC_GGUF_STRING && !v->is_array ? v->data : NULL;
    const char *text = at ? mc_gguf_text(&at, &length) : NULL;
    char *copy = text ? mc_strndup(text, length) : NULL;
    bool good = !text || (copy && cJSON_AddStringToObject(config, "chat_template", copy));
    mc_free(copy);
    return good;
}

/* tokenizer_config.json, with the tokens that are no part of the vocabulary proper. */
static bool write_config(const taking *t, const char *class, cJSON *config, bool encoder)
{
    static const char *const names[][2] = {{KEY("bos_token_id"), "bos_token"},
                                           {KEY("eos_token_id"), "eos_token"},
                                           {KEY("unknown_token_id"), "unk_token"},
                                           {KEY("padding_token_id"), "pad_token"}};
    bool good = config && cJSON_AddStringToObject(config, "tokenizer_class", class);
    for (size_t i = encoder ? 2 : 0; good && i < sizeof names / sizeof *names; i++)
        good = add_name(t, config, names[i][0], names[i][1]);
    good = good && (!encoder || add_encoder_names(t, config)) && add_template(t, config);
    return (good || out_of_memory(t)) && write_json(t, "tokenizer_config.json", config);
}

/* ---- byte-level BPE -------------------------------------------------------------------------- */

static bool add_flags(cJSON *one, const char *text, bool special, bool lstrip)
{
    return cJSON_AddStringToObject(one, "content", text) &&
           cJSON_AddBoolToObject(one, "special", special) &&
           cJSON_AddBoolToObject(one, "normalized", false) &&
           cJSON_AddBoolToObject(one, "lstrip", lstrip) &&
           cJSON_AddBoolToObject(one, "rstrip", false) &&
           cJSON_AddBoolToObject(one, "single_word", false);
}

/* Adds a token to added_tokens_decoder if its type says that it is added. */
static bool note_added(const taking *t, cJSON *added, uint64_t id, const char *text)
{
    char key[24];
    double type = number_of(t->types, id, MC_PIECE_NORMAL);
    if (type != MC_PIECE_CONTROL && type != MC_PIECE_USER_DEFINED) return true;
    snprintf(key, sizeof key, "%llu", (unsigned long long)id);
    cJSON *one = cJSON_AddObjectToObject(added, key);
    return one && add_flags(one, text, type == MC_PIECE_CONTROL, false);
}

static bool write_vocab(const taking *t, cJSON *added)
{
    cJSON *vocab = cJSON_CreateObject();
    const uint8_t *at = t->tokens->data;
    bool good = vocab && added;
    for (uint64_t i = 0; good && i < t->tokens->count; i++) {
        size_t length;
        const char *text = mc_gguf_text(&at, &length);
        if (number_of(t->types, i, MC_PIECE_NORMAL) == MC_PIECE_UNUSED) continue;
        char *copy = mc_strndup(text, length);
        good = copy && cJSON_AddNumberToObject(vocab, copy, (double)i) &&
               note_added(t, added, i, copy);
        mc_free(copy);
    }
    good = good ? write_json(t, "vocab.json", vocab) : out_of_memory(t);
    cJSON_Delete(vocab);
    return good;
}

static bool write_merges(const taking *t)
{
    const mc_gguf_value *merges = array_of(t, KEY("merges"), true, 0);
    mc_bytes text = {0};
    if (!merges) return false;
    const uint8_t *at = merges->data;
    bool good = mc_bytes_append(&text, "#version: 0.2\n", 14);
    for (uint64_t i = 0; good && i < merges->count; i++) {
        size_t length;
        const char *merge = mc_gguf_text(&at, &length);
        good = mc_bytes_append(&text, merge, length) && mc_bytes_append(&text, "\n", 1);
    }
    good = good ? write_file(t, "merges.txt", text.data, text.count) : out_of_memory(t);
    mc_bytes_release(&text);
    return good;
}

/* GPT-2's as two files. */
static bool write_plain(const taking *t)
{
    cJSON *config = cJSON_CreateObject();
    cJSON *added = config ? cJSON_AddObjectToObject(config, "added_tokens_decoder") : NULL;
    bool good = write_vocab(t, added) && write_merges(t) &&
                (add_ends(t, config, false) || out_of_memory(t)) &&
                write_config(t, "GPT2Tokenizer", config, false);
    cJSON_Delete(config);
    return good;
}

static bool add_type(cJSON *part, const char *type)
{
    return part && cJSON_AddStringToObject(part, "type", type);
}

/* Adds an item to a list, which owns it then; NULL when memory is out. */
static cJSON *add_item(cJSON *list, cJSON *item)
{
    if (list && item && cJSON_AddItemToArray(list, item)) return item;
    cJSON_Delete(item);
    return NULL;
}

/* Words cut by a pattern, whose bytes are then letters. */
static bool add_words(cJSON *json, const mc_gguf_words *words)
{
    cJSON *pre = cJSON_AddObjectToObject(json, "pre_tokenizer");
    cJSON *list = add_type(pre, "Sequence") ? cJSON_AddArrayToObject(pre, "pretokenizers") : NULL;
    cJSON *split = add_item(list, cJSON_CreateObject());
    cJSON *bytes = add_item(list, cJSON_CreateObject());
    bool good = add_type(split, "Split") && add_type(bytes, "ByteLevel") &&
                cJSON_AddStringToObject(split, "behavior", "Isolated") &&
                cJSON_AddBoolToObject(split, "invert", false) &&
                cJSON_AddBoolToObject(bytes, "add_prefix_space", false) &&
                cJSON_AddBoolToObject(bytes, "trim_offsets", false) &&
                cJSON_AddBoolToObject(bytes, "use_regex", false);
    cJSON *pattern = good ? cJSON_AddObjectToObject(split, "pattern") : NULL;
    good = pattern && cJSON_AddStringToObject(pattern, "Regex", mc_bpe_pattern(words->kind));
    if (good && words->nfc) good = add_type(cJSON_AddObjectToObject(json, "normalizer"), "NFC");
    return good && add_type(cJSON_AddObjectToObject(json, "decoder"), "ByteLevel");
}

/* The id of a mask that takes in the spaces before it; -1: there is none. */
static double mask_with_spaces(const taking *t, const mc_gguf_words *words)
{
    size_t length = 0, wanted = strlen(words->pre);
    const mc_gguf_value *v = mc_gguf_find(t->g, MC_GGUF_NAMED);
    const uint8_t *at = v && v->kind == MC_GGUF_STRING && !v->is_array ? v->data : NULL;
    const char *name = at ? mc_gguf_text(&at, &length) : "";
    bool named = words->encoder && memmem(name, length, words->pre, wanted);
    return named ? number_of(mc_gguf_find(t->g, KEY("mask_token_id")), 0, -1) : -1;
}

/* One of the parts of a text with its ends: [CLS] $A [SEP]. */
static bool add_part(cJSON *list, const char *kind, const char *id)
{
    cJSON *part = add_item(list, cJSON_CreateObject());
    cJSON *one = part ? cJSON_AddObjectToObject(part, kind) : NULL;
    return one && cJSON_AddStringToObject(one, "id", id) &&
           cJSON_AddNumberToObject(one, "type_id", 0);
}

static bool add_end(const taking *t, cJSON *specials, const char *key, const char *token)
{
    cJSON *one = cJSON_AddObjectToObject(specials, token);
    cJSON *ids = one ? cJSON_AddArrayToObject(one, "ids") : NULL;
    cJSON *tokens = ids ? cJSON_AddArrayToObject(one, "tokens") : NULL;
    return tokens && cJSON_AddStringToObject(one, "id", token) &&
           add_item(ids, cJSON_CreateNumber(number_of(mc_gguf_find(t->g, key), 0, -1))) &&
           add_item(tokens, cJSON_CreateString(token));
}

/* What an encoder's class puts around a text, and between two. */
static bool add_around(const taking *t, cJSON *json)
{
    const char *const keys[] = {KEY("bos_token_id"), KEY("eos_token_id")};
    const bool puts[] = {flag_of(t, KEY("add_bos_token"), true),
                         flag_of(t, KEY("add_eos_token"), true)};
    char *ends[2] = {NULL, NULL};
    bool good = token_text(t, keys[0], &ends[0]) && token_text(t, keys[1], &ends[1]);
    cJSON *post = cJSON_AddObjectToObject(json, "post_processor");
    good = good && add_type(post, "TemplateProcessing");
    cJSON *one = good ? cJSON_AddArrayToObject(post, "single") : NULL;
    cJSON *two = one ? cJSON_AddArrayToObject(post, "pair") : NULL;
    cJSON *specials = two ? cJSON_AddObjectToObject(post, "special_tokens") : NULL;
    good = specials;
    for (int i = 0; i < 2 && good; i++)
        good = !(puts[i] && ends[i]) || add_end(t, specials, keys[i], ends[i]);
    for (int texts = 1; texts <= 2 && good; texts++) {
        cJSON *list = texts == 1 ? one : two;
        if (puts[0] && ends[0]) good = add_part(list, "SpecialToken", ends[0]);
        for (int k = 0; k < texts && good; k++)
            good = add_part(list, "Sequence", k ? "B" : "A") &&
                   (!(puts[1] && ends[1]) || add_part(list, "SpecialToken", ends[1]));
    }
    mc_free(ends[0]);
    mc_free(ends[1]);
    return good;
}

static bool is_added(const taking *t, uint64_t id)
{
    double type = number_of(t->types, id, MC_PIECE_NORMAL);
    return type == MC_PIECE_CONTROL || type == MC_PIECE_USER_DEFINED;
}

/* How many ids there are up to the last one of a token that is not added. Added ones among them are
 * entries of the vocabulary too, which has no gaps. */
static uint64_t plain_end(const taking *t)
{
    uint64_t end = t->tokens->count;
    while (end && (is_added(t, end - 1) || number_of(t->types, end - 1, 0) == MC_PIECE_UNUSED))
        end--;
    return end;
}

/* The tokens, those that are added in a list of their own. */
static bool add_entries(const taking *t, const mc_gguf_words *words, cJSON *vocab, cJSON *added)
{
    const double mask = mask_with_spaces(t, words);
    const uint64_t end = plain_end(t);
    const uint8_t *at = t->tokens->data;
    bool good = vocab && added;
    for (uint64_t i = 0; good && i < t->tokens->count; i++) {
        size_t length;
        const char *text = mc_gguf_text(&at, &length);
        double type = number_of(t->types, i, MC_PIECE_NORMAL);
        if (type == MC_PIECE_UNUSED) continue;
        char *copy = mc_strndup(text, length);
        if (!copy) return false;
        if (is_added(t, i)) {
            cJSON *one = add_item(added, cJSON_CreateObject());
            good = one && cJSON_AddNumberToObject(one, "id", (double)i) &&
                   add_flags(one, copy, type == MC_PIECE_CONTROL, (double)i == mask);
        }
        if (i < end) good = good && cJSON_AddNumberToObject(vocab, copy, (double)i);
        mc_free(copy);
    }
    return good;
}

static bool add_merges(const mc_gguf_value *merges, cJSON *model)
{
    cJSON *list = cJSON_AddArrayToObject(model, "merges");
    const uint8_t *at = merges->data;
    bool good = list;
    for (uint64_t i = 0; good && i < merges->count; i++) {
        size_t length;
        const char *text = mc_gguf_text(&at, &length);
        char *copy = mc_strndup(text, length);
        good = add_item(list, copy ? cJSON_CreateString(copy) : NULL);
        mc_free(copy);
    }
    return good;
}

/* The others as a tokenizer.json. */
static bool write_split(const taking *t, const mc_gguf_words *words)
{
    const mc_gguf_value *merges = array_of(t, KEY("merges"), true, 0);
    if (!merges) return false;
    cJSON *json = cJSON_CreateObject(), *config = cJSON_CreateObject();
    bool good = json && config && add_words(json, words);
    cJSON *added = good ? cJSON_AddArrayToObject(json, "added_tokens") : NULL;
    cJSON *model = good ? cJSON_AddObjectToObject(json, "model") : NULL;
    good =
        add_type(model, "BPE") && cJSON_AddBoolToObject(model, "ignore_merges", words->whole_words);
    cJSON *vocab = good ? cJSON_AddObjectToObject(model, "vocab") : NULL;
    good = good && add_entries(t, words, vocab, added) && add_merges(merges, model) &&
           (words->encoder ? add_around(t, json) : add_ends(t, config, words->adds_bos));
    good = (good || out_of_memory(t)) && write_json(t, "tokenizer.json", json) &&
           write_config(t, "PreTrainedTokenizerFast", config, words->encoder);
    cJSON_Delete(config);
    cJSON_Delete(json);
    return good;
}

static bool take_bpe(const taking *t)
{
    const mc_gguf_value *pre = mc_gguf_find(t->g, KEY("pre"));
    const uint8_t *at = pre && pre->kind == MC_GGUF_STRING && !pre->is_array ? pre->data : NULL;
    size_t length = 0;
    const char *name = at ? mc_gguf_text(&at, &length) : "";
    for (int i = 0; i < MC_GGUF_WORDS; i++) {
        const mc_gguf_words *words = &mc_gguf_words_known[i];
        if (strlen(words->pre) == length && memcmp(words->pre, name, length) == 0)
            return i ? write_split(t, words) : write_plain(t);
    }
    return wrong(t, KEY("pre"), "\"gpt-2\", \"llama-bpe\", \"qwen2\" or \"modern-bert\"");
}

/* ---- WordPiece ------------------------------------------------------------------------------- */

static bool take_wordpiece(const taking *t)
{
    mc_bytes text = {0};
    const uint8_t *at = t->tokens->data;
    bool good = true;
    for (uint64_t i = 0; good && i < t->tokens->count; i++) {
        size_t length;
        const char *piece = mc_gguf_text(&at, &length);
        if (number_of(t->types, i, MC_PIECE_NORMAL) == MC_PIECE_UNUSED) continue;
        if (length >= MC_SPACE_SIZE && memcmp(piece, phantom, MC_SPACE_SIZE) == 0) {
            piece += MC_SPACE_SIZE;
            length -= MC_SPACE_SIZE;
        } else if (!mc_gguf_is_bracketed(piece, length)) {
            good = mc_bytes_append(&text, "##", 2);
        }
        good = good && mc_bytes_append(&text, piece, length) && mc_bytes_append(&text, "\n", 1);
    }
    good = good ? write_file(t, "vocab.txt", text.data, text.count) : out_of_memory(t);
    mc_bytes_release(&text);
    cJSON *config = good ? cJSON_CreateObject() : NULL;
    if (good)
        good = ((config && cJSON_AddBoolToObject(config, "do_lower_case", true)) ||
                out_of_memory(t)) &&
               write_config(t, "BertTokenizer", config, true);
    cJSON_Delete(config);
    return good;
}

/* ---- Unigram: SentencePiece's model, a protobuf message -------------------------------------- */

enum { WIRE_VARINT = 0, WIRE_BYTES = 2, WIRE_32 = 5 };

static bool put_varint(mc_bytes *to, uint64_t value)
{
    bool good = true;
    do {
        uint8_t byte = (uint8_t)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
        good = good && mc_bytes_append(to, &byte, 1);
        value >>= 7;
    } while (value);
    return good;
}

static bool put_number(mc_bytes *to, int field, uint64_t value)
{
    return put_varint(to, (uint64_t)field << 3 | WIRE_VARINT) && put_varint(to, value);
}

static bool put_bytes(mc_bytes *to, int field, const void *bytes, size_t size)
{
    return put_varint(to, (uint64_t)field << 3 | WIRE_BYTES) && put_varint(to, size) &&
           mc_bytes_append(to, bytes, size);
}

/* ModelProto's piece: text, score, type. */
static bool put_model_piece(mc_bytes *to, const char *text, size_t length, float score, int type)
{
    mc_bytes piece = {0};
    bool good = put_bytes(&piece, 1, text, length) && put_varint(&piece, 2 << 3 | WIRE_32) &&
                mc_bytes_append(&piece, &score, sizeof score) &&
                put_number(&piece, 3, (uint64_t)type) && put_bytes(to, 1, piece.data, piece.count);
    mc_bytes_release(&piece);
    return good;
}

enum { MODEL_UNIGRAM = 1, MODEL_BPE = 2 };

/* The trainer's settings: the model's type, ids, and of BPE that bytes have pieces. The
 * normalizer's: its table and flags. */
static bool put_settings(const taking *t, mc_bytes *to, int type)
{
    static const char *const ids[] = {KEY("unknown_token_id"), KEY("bos_token_id"),
                                      KEY("eos_token_id"), KEY("padding_token_id")};
    mc_bytes trainer = {0}, normalizer = {0};
    const mc_gguf_value *map = mc_gguf_find(t->g, KEY("precompiled_charsmap"));
    const bool unigram = type == MODEL_UNIGRAM;
    bool good = put_number(&trainer, 3, (uint64_t)type) && (unigram || put_number(&trainer, 35, 1));
    for (int i = 0; good && i < 4; i++) /* -1, as an int32 has it: none */
        good = put_number(&trainer, 40 + i,
                          (uint64_t)(int64_t)number_of(mc_gguf_find(t->g, ids[i]), 0, -1));
    good = good && put_bytes(to, 2, trainer.data, trainer.count);
    if (map && map->is_array && (map->kind == MC_GGUF_U8 || map->kind == MC_GGUF_I8))
        good = good && put_bytes(&normalizer, 2, map->data, map->count);
    good = good && put_number(&normalizer, 3, flag_of(t, KEY("add_space_prefix"), !unigram)) &&
           put_number(&normalizer, 4, flag_of(t, KEY("remove_extra_whitespaces"), false)) &&
           put_number(&normalizer, 5, 1) && put_bytes(to, 3, normalizer.data, normalizer.count);
    mc_bytes_release(&trainer);
    mc_bytes_release(&normalizer);
    return good;
}

static bool take_unigram(const taking *t)
{
    mc_bytes model = {0};
    uint64_t extra = 0;
    const uint8_t *at = t->tokens->data;
    const mc_gguf_value *scores = array_of(t, KEY("scores"), false, t->tokens->count);
    bool good = scores;
    for (uint64_t i = 0; good && i < t->tokens->count; i++) {
        size_t length;
        const char *text = mc_gguf_text(&at, &length);
        double type = number_of(t->types, i, MC_PIECE_NORMAL);
        bool is_extra = length >= sizeof sentinel - 1 &&
                        memcmp(text, sentinel, sizeof sentinel - 1) == 0 &&
                        type == MC_PIECE_USER_DEFINED;
        extra += is_extra;
        bool padding = type == MC_PIECE_UNUSED && length > 4 && memcmp(text, "[PAD", 4) == 0;
        if (is_extra || padding) continue;
        good = put_model_piece(&model, text, length, (float)number_of(scores, i, 0), (int)type) ||
               out_of_memory(t);
    }
    good = good && (put_settings(t, &model, MODEL_UNIGRAM) || out_of_memory(t)) &&
           write_file(t, "spiece.model", model.data, model.count);
    mc_bytes_release(&model);
    cJSON *config = good ? cJSON_CreateObject() : NULL;
    if (good)
        good = ((config && cJSON_AddNumberToObject(config, "extra_ids", (double)extra)) ||
                out_of_memory(t)) &&
               write_config(t, "T5Tokenizer", config, false);
    cJSON_Delete(config);
    return good;
}

/* ---- BPE over characters: SentencePiece's ---------------------------------------------------- */

/* Ids are places in a model: those after the last token that is used are left out. */
static uint64_t count_used(const taking *t)
{
    uint64_t used = 0;
    for (uint64_t i = 0; i < t->tokens->count; i++)
        if (number_of(t->types, i, MC_PIECE_NORMAL) != MC_PIECE_UNUSED) used = i + 1;
    return used;
}

static bool take_pieces(const taking *t)
{
    mc_bytes model = {0};
    const uint64_t used = count_used(t);
    const uint8_t *at = t->tokens->data;
    const mc_gguf_value *scores = array_of(t, KEY("scores"), false, t->tokens->count);
    bool good = scores;
    for (uint64_t i = 0; good && i < used; i++) {
        size_t length;
        const char *text = mc_gguf_text(&at, &length);
        double type = number_of(t->types, i, MC_PIECE_NORMAL);
        good = put_model_piece(&model, text, length, (float)number_of(scores, i, 0), (int)type) ||
               out_of_memory(t);
    }
    good = good && (put_settings(t, &model, MODEL_BPE) || out_of_memory(t)) &&
           write_file(t, "tokenizer.model", model.data, model.count);
    mc_bytes_release(&model);
    cJSON *config = good ? cJSON_CreateObject() : NULL;
    if (good) /* llama.cpp puts spaces after special tokens too, which "legacy" says */
        good = ((config && cJSON_AddBoolToObject(config, "legacy", true) &&
                 add_ends(t, config, true)) ||
                out_of_memory(t)) &&
               write_config(t, "LlamaTokenizer", config, false);
    cJSON_Delete(config);
    return good;
}

/* ---- all ------------------------------------------------------------------------------------- */

bool mc_gguf_has_tokens(const mc_gguf *g) { return mc_gguf_find(g, KEY("model")); }

mc_status mc_gguf_read_tokens(mc_error *err, const mc_gguf *g, mc_inside *out)
{
    static const struct {
        const char *name;
        bool (*take)(const taking *t);
    } kinds[] = {
        {"gpt2", take_bpe}, {"bert", take_wordpiece}, {"t5", take_unigram}, {"llama", take_pieces}};
    taking t = {.err = err, .g = g, .out = out};
    const mc_gguf_value *model = mc_gguf_find(g, KEY("model"));
    size_t length = 0;
    *out = (mc_inside){.count = 0};
    if (!model)
        return mc_error_set(err, MC_ERR_NOT_FOUND, "%s: no key \"%s\": the file has no tokenizer",
                            g->path, KEY("model"));
    const uint8_t *at = model->kind == MC_GGUF_STRING && !model->is_array ? model->data : NULL;
    const char *name = at ? mc_gguf_text(&at, &length) : "";
    t.tokens = array_of(&t, KEY("tokens"), true, 0);
    if (t.tokens) t.types = array_of(&t, KEY("token_type"), false, t.tokens->count);
    if (!t.types) return err->status;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strlen(kinds[i].name) != length || memcmp(kinds[i].name, name, length) != 0) continue;
        kinds[i].take(&t);
        return err->status;
    }
    wrong(&t, KEY("model"), "\"gpt2\", \"bert\", \"t5\" or \"llama\"");
    return err->status;
}

mc_status mc_gguf_read_tokens_of(mc_error *err, const char *path, mc_inside *out)
{
    mc_file_map map;
    mc_gguf g;
    *out = (mc_inside){.count = 0};
    if (mc_file_map_init(err, &map, path)) return err->status;
    if (mc_gguf_parse(err, &g, map.data, map.size, path) == MC_OK) {
        mc_gguf_read_tokens(err, &g, out);
        mc_gguf_release(&g);
    }
    mc_file_check_bytes(err, map.data);
    mc_file_map_release(&map);
    return err->status;
}

static mc_status write_inside(mc_error *err, const struct mc_inside_file *file, const char *folder)
{
    char path[MC_PATH_MAX];
    mc_file_writer w;
    if (mc_path_join(err, path, folder, file->name) || mc_file_writer_init(err, &w, path))
        return err->status;
    mc_file_write(&w, file->bytes.data, file->bytes.count);
    mc_file_commit(&w);
    mc_file_writer_release(&w);
    return err->status;
}

mc_status mc_gguf_write_tokens(mc_error *err, const mc_gguf *g, const char *folder)
{
    mc_inside inside = {.count = 0};
    if (!mc_gguf_has_tokens(g)) return MC_OK;
    mc_status status = mc_gguf_read_tokens(err, g, &inside);
    for (int i = 0; i < inside.count && !status; i++)
        status = write_inside(err, &inside.files[i], folder);
    mc_inside_release(&inside);
    return status;
}

bool mc_gguf_path_is(const char *path)
{
    uint8_t head[4] = {0};
    FILE *file = mc_path_is_file(path) ? fopen(path, "re") : NULL;
    bool is = file && fread(head, 1, sizeof head, file) == sizeof head;
    if (file) fclose(file);
    return is && mc_gguf_is(head, sizeof head);
}
