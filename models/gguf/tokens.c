#include <math.h>
#include <stdio.h>
#include <string.h>
#include "core/base/memory_internal.h"
#include "models/gguf/gguf_internal.h"
#include "tokenizers/tokenizer_internal.h"

/* llama.cpp's numbers are SentencePiece's, mc_piece_type. */

#define KEY(name) "tokenizer.ggml." name
static const char phantom[] = MC_SPACE_SYMBOL; /* before each piece that begins a word */
static const char sentinel[] = "<extra_id_";
static const float added_score = -1000;

/* ---- what all kinds have --------------------------------------------------------------------- */

typedef struct putting {
    mc_gguf_writer *w;
    mc_error *err;
    const mc_tokenizer *tok;
    int32_t count; /* of ids: the model's rows */
} putting;

static bool refuse(const putting *p, const char *what)
{
    mc_error_set(p->err, MC_ERR_UNSUPPORTED, "%s: has no GGUF form: %s", p->tok->path, what);
    return false;
}

static const mc_added_token *added_of(const putting *p, int32_t id)
{
    int32_t at = (size_t)id < p->tok->id_end ? p->tok->id_to_added[id] : -1;
    return at >= 0 ? &p->tok->added[at] : NULL;
}

/* The text of an id; `room` for those that only the model's padding has. */
static const char *text_of(const putting *p, int32_t id, char room[32])
{
    const char *text = mc_tokenizer_id_to_token(p->tok, id);
    if (text) return text;
    snprintf(room, 32, "[PAD%d]", id);
    return room;
}

static mc_piece_type type_of(const putting *p, int32_t id)
{
    const mc_added_token *added = added_of(p, id);
    if (added) return added->special ? MC_PIECE_CONTROL : MC_PIECE_USER_DEFINED;
    return mc_tokenizer_id_to_token(p->tok, id) ? MC_PIECE_NORMAL : MC_PIECE_UNUSED;
}

static void put_id(const putting *p, const char *key, const char *token)
{
    int32_t id = token ? mc_tokenizer_token_to_id(p->tok, token) : -1;
    if (id >= 0) mc_gguf_put_u32(p->w, key, (uint32_t)id);
}

static void put_common(const putting *p, const char *bos, const char *eos)
{
    put_id(p, KEY("bos_token_id"), bos);
    put_id(p, KEY("eos_token_id"), eos);
    put_id(p, KEY("unknown_token_id"), p->tok->unk_token);
    put_id(p, KEY("padding_token_id"), p->tok->pad_token);
    mc_gguf_put_bool(p->w, KEY("add_bos_token"), p->tok->single.prefix_count > 0);
    mc_gguf_put_bool(p->w, KEY("add_eos_token"), p->tok->single.suffix_count > 0);
}

/* ---- byte-level BPE -------------------------------------------------------------------------- */

static bool put_bpe(const putting *p)
{
    char room[32];
    const mc_tokenizer *tok = p->tok;
    if (tok->bpe.cuts_json || tok->bpe.whole_words || tok->bpe.byte_fallback)
        return refuse(p, "expected GPT-2's pre-tokenizer and merges");
    if (tok->bpe.add_prefix_space) return refuse(p, "a space before each text");
    if (tok->form_count) return refuse(p, "a normalizer");
    mc_gguf_put_string(p->w, KEY("model"), "gpt2");
    mc_gguf_put_string(p->w, KEY("pre"), "gpt-2");
    mc_gguf_put_array(p->w, KEY("tokens"), MC_GGUF_STRING, (uint64_t)p->count);
    for (int32_t i = 0; i < p->count; i++) {
        const char *text = text_of(p, i, room);
        mc_gguf_item_text(p->w, text, strlen(text));
    }
    mc_gguf_put_array(p->w, KEY("token_type"), MC_GGUF_I32, (uint64_t)p->count);
    for (int32_t i = 0; i < p->count; i++) mc_gguf_item_u32(p->w, type_of(p, i));
    mc_gguf_put_array(p->w, KEY("merges"), MC_GGUF_STRING, tok->bpe.merge_count);
    for (size_t i = 0; i < tok->bpe.merge_count; i++) {
        const mc_entry left = tok->entries[tok->bpe.merges[i].left],
                       right = tok->entries[tok->bpe.merges[i].right];
        mc_bytes merge = {0};
        if (!mc_bytes_append(&merge, mc_tokenizer_text(tok, left), left.length) ||
            !mc_bytes_append(&merge, " ", 1) ||
            !mc_bytes_append(&merge, mc_tokenizer_text(tok, right), right.length))
            p->w->nomem = true;
        mc_gguf_item_text(p->w, (const char *)merge.data, merge.count);
        mc_bytes_release(&merge);
    }
    put_common(p, tok->bos_token, tok->eos_token);
    return true;
}

/* ---- WordPiece ------------------------------------------------------------------------------- */

static bool is_bracketed(const char *text, size_t length)
{
    return length > 1 && text[0] == '[' && text[length - 1] == ']';
}

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* What begins a word has a space's symbol before it, and what continues one has no "##". */
static bool put_piece(const putting *p, const char *text)
{
    const size_t length = strlen(text);
    mc_bytes piece = {0};
    if (begins(text, "##")) {
        if (begins(text + 2, phantom) || is_bracketed(text + 2, length - 2))
            return refuse(p, "a piece that would be taken for another");
        mc_gguf_item_text(p->w, text + 2, length - 2);
        return true;
    }
    if (is_bracketed(text, length)) {
        mc_gguf_item_text(p->w, text, length);
        return true;
    }
    if (!mc_bytes_append(&piece, phantom, MC_SPACE_SIZE) || !mc_bytes_append(&piece, text, length))
        p->w->nomem = true;
    mc_gguf_item_text(p->w, (const char *)piece.data, piece.count);
    mc_bytes_release(&piece);
    return true;
}

static bool put_wordpiece(const putting *p)
{
    char room[32];
    const mc_tokenizer *tok = p->tok;
    if (!tok->normalizer_options.lowercase || !tok->normalizer_options.handle_chinese_chars ||
        strcmp(tok->prefix, "##") != 0)
        return refuse(p,
                      "llama.cpp puts texts of a BERT in lower case, and words of Chinese apart");
    mc_gguf_put_string(p->w, KEY("model"), "bert");
    mc_gguf_put_array(p->w, KEY("tokens"), MC_GGUF_STRING, (uint64_t)p->count);
    for (int32_t i = 0; i < p->count; i++)
        if (!put_piece(p, text_of(p, i, room))) return false;
    mc_gguf_put_array(p->w, KEY("token_type"), MC_GGUF_I32, (uint64_t)p->count);
    for (int32_t i = 0; i < p->count; i++) mc_gguf_item_u32(p->w, type_of(p, i));
    put_id(p, KEY("seperator_token_id"), tok->sep_token); /* that is its spelling */
    put_id(p, KEY("mask_token_id"), tok->mask_token);
    put_common(p, tok->cls_token, tok->sep_token);
    return true;
}

/* ---- Unigram --------------------------------------------------------------------------------- */

static void put_charsmap(const putting *p)
{
    const mc_charsmap *map = &p->tok->unigram.charsmap;
    const uint32_t size = (uint32_t)(map->unit_count * sizeof *map->units);
    if (!map->units) return;
    mc_gguf_put_array(p->w, KEY("precompiled_charsmap"), MC_GGUF_U8,
                      sizeof size + size + map->forms_size);
    mc_gguf_item_u32(p->w, size);
    mc_gguf_item_bytes(p->w, map->units, size);
    mc_gguf_item_bytes(p->w, map->forms, map->forms_size);
}

static bool put_unigram(const putting *p)
{
    char room[32];
    const mc_unigram *u = &p->tok->unigram;
    const size_t pieces = u->count - (size_t)u->sentinels; /* <extra_id_0> is the last entry */
    if (!u->single || u->by_library)
        return refuse(p, "expected the Unigram model of a spiece.model (T5)");
    mc_gguf_put_string(p->w, KEY("model"), "t5");
    mc_gguf_put_array(p->w, KEY("tokens"), MC_GGUF_STRING, (uint64_t)p->count);
    for (int32_t i = 0; i < p->count; i++) {
        const char *text = text_of(p, i, room);
        mc_gguf_item_text(p->w, text, strlen(text));
    }
    mc_gguf_put_array(p->w, KEY("scores"), MC_GGUF_FLOAT, (uint64_t)p->count);
    for (int32_t i = 0; i < p->count; i++)
        mc_gguf_item_f32(p->w, (size_t)i < pieces ? (float)u->scores[i] : added_score);
    mc_gguf_put_array(p->w, KEY("token_type"), MC_GGUF_I32, (uint64_t)p->count);
    for (int32_t i = 0; i < p->count; i++) {
        bool own = (size_t)i < pieces;
        bool is = own || mc_tokenizer_id_to_token(p->tok, i);
        mc_gguf_item_u32(p->w, own ? u->types[i] : is ? MC_PIECE_USER_DEFINED : MC_PIECE_UNUSED);
    }
    mc_gguf_put_bool(p->w, KEY("add_space_prefix"), u->add_dummy_prefix);
    mc_gguf_put_bool(p->w, KEY("remove_extra_whitespaces"), u->remove_extra_whitespaces);
    put_charsmap(p);
    put_common(p, NULL, p->tok->eos_token);
    return true;
}

bool mc_gguf_put_tokens(mc_gguf_writer *w, mc_error *err, const mc_tokenizer *tok,
                        int64_t vocabulary)
{
    const putting p = {.w = w, .err = err, .tok = tok, .count = (int32_t)vocabulary};
    if ((int64_t)tok->id_end > vocabulary) {
        mc_error_set(err, MC_ERR_ARGUMENT,
                     "%s: %zu tokens, but the model has %lld: a GGUF file has as many of both",
                     tok->path, tok->id_end, (long long)vocabulary);
        return false;
    }
    switch (tok->kind) {
    case MC_TOKENIZER_BYTE_BPE: return put_bpe(&p);
    case MC_TOKENIZER_WORDPIECE: return put_wordpiece(&p);
    case MC_TOKENIZER_UNIGRAM: return put_unigram(&p);
    default: return refuse(&p, "llama.cpp has no tokenizer of this kind");
    }
}

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct taking {
    mc_error *err;
    const mc_gguf *g;
    const char *folder;
    const mc_gguf_value *tokens, *types;
} taking;

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

static bool flag_of(const taking *t, const char *key)
{
    return number_of(mc_gguf_find(t->g, key), 0, 0) != 0;
}

/* The text of token `id`, on the heap; NULL: no token has this id. */
static char *token_text(const taking *t, double id)
{
    size_t length = 0;
    const char *text = NULL;
    const uint8_t *at = t->tokens->data;
    if (id < 0 || id >= (double)t->tokens->count) return NULL;
    for (uint64_t i = 0; i <= (uint64_t)id; i++) text = mc_gguf_text(&at, &length);
    return text ? mc_strndup(text, length) : NULL;
}

static bool add_name(const taking *t, cJSON *config, const char *key, const char *name)
{
    double id = number_of(mc_gguf_find(t->g, key), 0, -1);
    char *text = token_text(t, id);
    bool good = !text || cJSON_AddStringToObject(config, name, text);
    mc_free(text);
    return good;
}

static bool write_file(const taking *t, const char *name, const void *bytes, size_t size)
{
    char path[MC_PATH_MAX];
    mc_file_writer w;
    if (mc_path_join(t->err, path, t->folder, name) || mc_file_writer_init(t->err, &w, path))
        return false;
    mc_file_write(&w, bytes, size);
    mc_file_commit(&w);
    mc_file_writer_release(&w);
    return !mc_error_is_set(t->err);
}

static bool write_json(const taking *t, const char *name, cJSON *json)
{
    char *text = json ? cJSON_Print(json) : NULL;
    bool good = text ? write_file(t, name, text, strlen(text)) : out_of_memory(t);
    cJSON_free(text);
    return good;
}

/* tokenizer_config.json, with the tokens that are no part of the vocabulary proper. */
static bool write_config(const taking *t, const char *class, cJSON *config)
{
    static const char *const names[][2] = {{KEY("bos_token_id"), "bos_token"},
                                           {KEY("eos_token_id"), "eos_token"},
                                           {KEY("unknown_token_id"), "unk_token"},
                                           {KEY("padding_token_id"), "pad_token"}};
    bool bert = strcmp(class, "BertTokenizer") == 0;
    bool good = config && cJSON_AddStringToObject(config, "tokenizer_class", class);
    for (size_t i = bert ? 2 : 0; good && i < sizeof names / sizeof *names; i++)
        good = add_name(t, config, names[i][0], names[i][1]);
    if (bert)
        good = good && add_name(t, config, KEY("bos_token_id"), "cls_token") &&
               add_name(t, config, KEY("seperator_token_id"), "sep_token") &&
               add_name(t, config, KEY("mask_token_id"), "mask_token");
    return (good || out_of_memory(t)) && write_json(t, "tokenizer_config.json", config);
}

/* ---- byte-level BPE -------------------------------------------------------------------------- */

/* Adds a token to added_tokens_decoder if its type says that it is added. */
static bool note_added(const taking *t, cJSON *added, uint64_t id, const char *text)
{
    char key[24];
    double type = number_of(t->types, id, MC_PIECE_NORMAL);
    if (type != MC_PIECE_CONTROL && type != MC_PIECE_USER_DEFINED) return true;
    snprintf(key, sizeof key, "%llu", (unsigned long long)id);
    cJSON *one = cJSON_AddObjectToObject(added, key);
    return one && cJSON_AddStringToObject(one, "content", text) &&
           cJSON_AddBoolToObject(one, "special", type == MC_PIECE_CONTROL) &&
           cJSON_AddBoolToObject(one, "normalized", false) &&
           cJSON_AddBoolToObject(one, "lstrip", false) &&
           cJSON_AddBoolToObject(one, "rstrip", false) &&
           cJSON_AddBoolToObject(one, "single_word", false);
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

static bool take_bpe(const taking *t)
{
    const mc_gguf_value *pre = mc_gguf_find(t->g, KEY("pre"));
    const uint8_t *at = pre && pre->kind == MC_GGUF_STRING && !pre->is_array ? pre->data : NULL;
    size_t length = 0;
    const char *name = at ? mc_gguf_text(&at, &length) : "";
    if (length != 5 || memcmp(name, "gpt-2", 5) != 0) return wrong(t, KEY("pre"), "\"gpt-2\"");
    cJSON *config = cJSON_CreateObject();
    cJSON *added = config ? cJSON_AddObjectToObject(config, "added_tokens_decoder") : NULL;
    bool good =
        write_vocab(t, added) && write_merges(t) && write_config(t, "GPT2Tokenizer", config);
    cJSON_Delete(config);
    return good;
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
        } else if (!is_bracketed(piece, length)) {
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
               write_config(t, "BertTokenizer", config);
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

/* The trainer's settings: the type (1: Unigram), and ids. The normalizer's: its table and flags. */
static bool put_settings(const taking *t, mc_bytes *to)
{
    static const char *const ids[] = {KEY("unknown_token_id"), KEY("bos_token_id"),
                                      KEY("eos_token_id"), KEY("padding_token_id")};
    mc_bytes trainer = {0}, normalizer = {0};
    const mc_gguf_value *map = mc_gguf_find(t->g, KEY("precompiled_charsmap"));
    bool good = put_number(&trainer, 3, 1);
    for (int i = 0; good && i < 4; i++) /* -1, as an int32 has it: none */
        good = put_number(&trainer, 40 + i,
                          (uint64_t)(int64_t)number_of(mc_gguf_find(t->g, ids[i]), 0, -1));
    good = good && put_bytes(to, 2, trainer.data, trainer.count);
    if (map && map->is_array && (map->kind == MC_GGUF_U8 || map->kind == MC_GGUF_I8))
        good = good && put_bytes(&normalizer, 2, map->data, map->count);
    good = good && put_number(&normalizer, 3, flag_of(t, KEY("add_space_prefix"))) &&
           put_number(&normalizer, 4, flag_of(t, KEY("remove_extra_whitespaces"))) &&
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
    good = good && (put_settings(t, &model) || out_of_memory(t)) &&
           write_file(t, "spiece.model", model.data, model.count);
    mc_bytes_release(&model);
    cJSON *config = good ? cJSON_CreateObject() : NULL;
    if (good)
        good = ((config && cJSON_AddNumberToObject(config, "extra_ids", (double)extra)) ||
                out_of_memory(t)) &&
               write_config(t, "T5Tokenizer", config);
    cJSON_Delete(config);
    return good;
}

/* ---- all ------------------------------------------------------------------------------------- */

mc_status mc_gguf_write_tokens(mc_error *err, const mc_gguf *g, const char *folder)
{
    static const struct {
        const char *name;
        bool (*take)(const taking *t);
    } kinds[] = {{"gpt2", take_bpe}, {"bert", take_wordpiece}, {"t5", take_unigram}};
    taking t = {.err = err, .g = g, .folder = folder};
    const mc_gguf_value *model = mc_gguf_find(g, KEY("model"));
    size_t length = 0;
    if (!model) return MC_OK;
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
    wrong(&t, KEY("model"), "\"gpt2\", \"bert\" or \"t5\"");
    return err->status;
}
