/* GGUF files: a model and its tokenizer there and back, and every complaint about files that are
 * not whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/formats/gguf_internal.h"
#include "models/files/convert.h"
#include "models/gguf/gguf_internal.h"
#include "tests/models/gpt2_test.h"
#include "tests/temp_folder.h"
#include "tokenizers/unigram/unigram_internal.h"

/* ---- models ---------------------------------------------------------------------------------- */

enum { LOGITS = BATCH * WIDTH * VOCABULARY };

static void logits(mc_context *ctx, mc_model *gpt2, float out[LOGITS])
{
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_model_input in = make_batch(t, MASK);
    mc_tensor *x = mc_model_logits(t, gpt2, mc_model_forward(t, gpt2, &in).last_hidden);
    mc_tensor_read_f32(ctx, x, out, LOGITS);
    assert_good(ctx);
    mc_tape_end(t);
}

/* The largest difference that the numbers of a type make; 0: none. */
static void test_there_and_back(void **state)
{
    (void)state;
    static const struct {
        const char *dtype;
        float bound;
    } cases[] = {{"f32", 0}, {"f16", 0.02f}, {"bf16", 0.15f}, {"q8_0", 0.15f}};
    static float first[LOGITS], second[LOGITS];
    temp_folder folder = temp_folder_new();
    mc_context *ctx = mc_context_new(&(mc_init_options){.seed = 5, .log = NULL});
    mc_model *gpt2 = new_gpt2(ctx, MC_F32, MC_RECOMPUTE_NONE);
    logits(ctx, gpt2, first);
    mc_model_save(gpt2, temp_path(&folder, "gpt2"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = temp_path(&folder, cases[i].dtype);
        mc_convert_options options = {.gguf = cases[i].dtype};
        mc_model_convert(ctx, temp_path(&folder, "gpt2"), path, &options);
        mc_model *again = mc_model_from_pretrained(ctx, path, NULL);
        assert_good(ctx);
        logits(ctx, again, second);
        float most = 0;
        for (int k = 0; k < LOGITS; k++) most = fmaxf(most, fabsf(first[k] - second[k]));
        if (most > cases[i].bound || (i > 0 && most == 0))
            fail_msg("%s: logits differ by %g", cases[i].dtype, most);
        mc_model_free(again);
    }
    mc_convert_options wrong = {.gguf = "q4_0"};
    mc_model_convert(ctx, temp_path(&folder, "gpt2"), temp_path(&folder, "x"), &wrong);
    assert_error(ctx, MC_ERR_ARGUMENT, "expected f32, f16, bf16 or q8_0");
    mc_context_free(ctx);
    temp_folder_free(&folder);
}

/* llama.cpp opens no BERT without the number of token types. */
static void test_bert(void **state)
{
    (void)state;
    temp_folder folder = temp_folder_new();
    const char *path = temp_path(&folder, "bert.gguf");
    mc_context *ctx = mc_context_new(&(mc_init_options){.log = NULL});
    mc_file_map map;
    mc_gguf g;
    double types = 0;
    mc_bert_config c = mc_bert_config_default();
    c.vocab_size = c.dim = c.dim_ff = c.positions = 32;
    c.layers = 1;
    c.heads = 2;
    c.types = 3;
    mc_gguf_write_model(mc_bert_new(ctx, &c, NULL, NULL), NULL, path, "F32", 0);
    assert_good(ctx);
    assert_int_equal(mc_file_map_init(&ctx->error, &map, path), MC_OK);
    assert_int_equal(mc_gguf_parse(&ctx->error, &g, map.data, map.size, path), MC_OK);
    assert_true(mc_gguf_number(mc_gguf_find(&g, "tokenizer.ggml.token_type_count"), 0, &types));
    assert_true(types == 3);
    mc_gguf_release(&g);
    mc_file_map_release(&map);
    assert_non_null(mc_model_from_pretrained(ctx, path, NULL));
    mc_context_free(ctx);
    temp_folder_free(&folder);
}

/* What llama.cpp computes otherwise is an error that names it. */
static void test_no_form(void **state)
{
    (void)state;
    temp_folder folder = temp_folder_new();
    const char *path = temp_path(&folder, "x.gguf");
    mc_context *ctx = mc_context_new(NULL);
    mc_gpt2_config c = small_config();
    c.scale_by_layer = true;
    mc_model *gpt2 = mc_gpt2_new(ctx, &c, NULL, NULL);
    assert_int_equal(mc_gguf_write_model(gpt2, NULL, path, "F16", 0), MC_ERR_UNSUPPORTED);
    assert_error(ctx, MC_ERR_UNSUPPORTED, "scale_attn_by_inverse_layer_idx");
    c.scale_by_layer = false;
    gpt2 = mc_gpt2_new(ctx, &c, &(mc_model_heads){.labels = 3}, NULL);
    mc_gguf_write_model(gpt2, NULL, path, "F16", 0);
    assert_error(ctx, MC_ERR_UNSUPPORTED, "1 of its");
    mc_gptj_config j = mc_gptj_config_default();
    j.vocab_size = j.dim = j.dim_ff = 32;
    j.layers = 1;
    j.heads = j.rotary_dim = 2;
    mc_gguf_write_model(mc_gptj_new(ctx, &j, NULL, NULL), NULL, path, "F16", 0);
    assert_error(ctx, MC_ERR_UNSUPPORTED, "expected one of gpt2, bert, modern-bert, t5");
    assert_false(mc_path_is_file(path));
    mc_context_free(ctx);
    temp_folder_free(&folder);
}

/* ---- tokenizers ------------------------------------------------------------------------------ */

static void read_whole(const temp_folder *folder, const char *name, char out[512])
{
    FILE *file = fopen(temp_path(folder, name), "r");
    assert_non_null(file);
    out[fread(out, 1, 511, file)] = '\0';
    fclose(file);
}

static const mc_model_shape shape_of_70 = {.vocab_size = 70, .bos_token = -1, .eos_token = -1};
static const mc_model_shape shape_of_3 = {.vocab_size = 3, .bos_token = -1, .eos_token = -1};

/* Writes a tokenizer as a file's values alone, and these as a tokenizer again. */
static void there_and_back_of(mc_context *ctx, const temp_folder *folder, const char *from,
                              const char *to, const mc_model_shape *shape)
{
    mc_gguf_writer w = {.value_count = 0};
    mc_file_writer file;
    mc_gguf g;
    mc_file_map map;
    const char *path = temp_path(folder, "tokens.gguf");
    mc_tokenizer *tok = mc_tokenizer_open(ctx, temp_path(folder, from), NULL);
    assert_good(ctx);
    assert_true(mc_gguf_put_tokens(&w, &ctx->error, tok, shape));
    assert_int_equal(mc_gguf_begin(&ctx->error, &w, &file, path), MC_OK);
    assert_int_equal(mc_file_commit(&file), MC_OK);
    mc_file_writer_release(&file);
    mc_gguf_writer_release(&w);
    assert_int_equal(mc_file_map_init(&ctx->error, &map, path), MC_OK);
    assert_int_equal(mc_gguf_parse(&ctx->error, &g, map.data, map.size, path), MC_OK);
    assert_int_equal(mc_make_folders(&ctx->error, temp_path(folder, to)), MC_OK);
    mc_gguf_write_tokens(&ctx->error, &g, temp_path(folder, to));
    mc_gguf_release(&g);
    mc_file_map_release(&map);
    mc_tokenizer_free(tok);
    mc_tokenizer_free(mc_tokenizer_open(ctx, temp_path(folder, to), NULL));
    assert_good(ctx);
}

static void there_and_back(mc_context *ctx, const temp_folder *folder, const char *to)
{
    there_and_back_of(ctx, folder, "from", to, &shape_of_70);
}

static void test_wordpiece(void **state)
{
    (void)state;
    static const char vocabulary[] =
        "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nwater\nis\nwet\n##s\n##ter\n.\n";
    char again[512];
    temp_folder folder = temp_folder_new();
    mc_context *ctx = mc_context_new(NULL);
    assert_int_equal(mkdir(temp_path(&folder, "from"), 0700), 0);
    write_bytes(temp_path(&folder, "from/vocab.txt"), vocabulary, sizeof vocabulary - 1);
    there_and_back(ctx, &folder, "to");
    read_whole(&folder, "to/vocab.txt", again);
    assert_string_equal(again, vocabulary);
    static const char cased[] = "{\"do_lower_case\": false}";
    write_bytes(temp_path(&folder, "from/tokenizer_config.json"), cased, sizeof cased - 1);
    mc_tokenizer *tok = mc_tokenizer_open(ctx, temp_path(&folder, "from"), NULL);
    mc_gguf_writer w = {.value_count = 0};
    assert_false(mc_gguf_put_tokens(&w, &ctx->error, tok, &shape_of_70));
    assert_error(ctx, MC_ERR_UNSUPPORTED, "lower case");
    assert_false(mc_gguf_put_tokens(&w, &ctx->error, tok, &shape_of_3));
    assert_error(ctx, MC_ERR_ARGUMENT, "11 tokens, but the model has 3");
    mc_gguf_writer_release(&w);
    mc_context_free(ctx);
    temp_folder_free(&folder);
}

static void test_bytes(void **state)
{
    (void)state;
    static const char vocabulary[] =
        "{\"a\": 0, \"b\": 1, \"c\": 2, \"ab\": 3, \"abc\": 4, \"<|endoftext|>\": 5}";
    static const char merges[] = "#version: 0.2\na b\nab c\n";
    char again[512];
    temp_folder folder = temp_folder_new();
    mc_context *ctx = mc_context_new(NULL);
    assert_int_equal(mkdir(temp_path(&folder, "from"), 0700), 0);
    write_bytes(temp_path(&folder, "from/vocab.json"), vocabulary, sizeof vocabulary - 1);
    write_bytes(temp_path(&folder, "from/merges.txt"), merges, sizeof merges - 1);
    there_and_back(ctx, &folder, "to");
    read_whole(&folder, "to/merges.txt", again);
    assert_string_equal(again, merges);
    mc_tokenizer *tok = mc_tokenizer_open(ctx, temp_path(&folder, "to"), NULL);
    mc_encoding e = {0};
    mc_tokenizer_encode(tok, "abcab<|endoftext|>", 18, NULL, 0, 0, &e);
    assert_good(ctx);
    assert_int_equal(e.count, 3);
    assert_true(e.ids[0] == 4 && e.ids[1] == 3 && e.ids[2] == 5);
    mc_encoding_release(&e);
    mc_context_free(ctx);
    temp_folder_free(&folder);
}

/* The ids that the tokenizer of a folder makes of a text. */
static mc_encoding encode(mc_context *ctx, const temp_folder *folder, const char *name,
                          const char *text)
{
    mc_encoding e = {0};
    mc_tokenizer *tok = mc_tokenizer_open(ctx, temp_path(folder, name), NULL);
    mc_tokenizer_encode(tok, text, strlen(text), NULL, 0, 0, &e);
    assert_good(ctx);
    mc_tokenizer_free(tok);
    return e;
}

static void assert_same_ids(mc_context *ctx, const temp_folder *folder, const char *name,
                            const char *text, const int32_t *ids, size_t count)
{
    mc_encoding e = encode(ctx, folder, name, text);
    if (e.count != count || memcmp(e.ids, ids, count * sizeof *ids) != 0)
        fail_msg("\"%s\": %zu other ids, the first %d, expected %zu", text, e.count,
                 (int)(e.count ? e.ids[0] : -1), count);
    mc_encoding_release(&e);
}

static void write_tokenizer(const temp_folder *folder, const char *json)
{
    write_bytes(temp_path(folder, "from/tokenizer.json"), json, strlen(json));
}

/* Why a tokenizer has no form. */
static void refuse_tokens(mc_context *ctx, const temp_folder *folder, const char *json,
                          const mc_model_shape *shape, const char *words)
{
    mc_gguf_writer w = {.value_count = 0};
    write_tokenizer(folder, json);
    mc_tokenizer *tok = mc_tokenizer_open(ctx, temp_path(folder, "from"), NULL);
    assert_good(ctx);
    assert_false(mc_gguf_put_tokens(&w, &ctx->error, tok, shape));
    assert_error(ctx, MC_ERR_UNSUPPORTED, words);
    mc_gguf_writer_release(&w);
    mc_tokenizer_free(tok);
}

#define SPLIT(pattern)                                                                             \
    "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": " \
    "\"" pattern "\"}, \"behavior\": \"Isolated\", \"invert\": false}, {\"type\": \"ByteLevel\", " \
    "\"add_prefix_space\": false, \"trim_offsets\": false, \"use_regex\": false}]}"
#define PATTERN(numbers)                                                            \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|" numbers \
    "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
/* 12 is an entry that only whole words reach; \u00c3 and \u00a9 are the bytes of an e with an
 * accent. */
#define BYTES(form, pattern, whole, flags)                                                         \
    "{\"normalizer\": " form ", \"pre_tokenizer\": " SPLIT(                                        \
        pattern) ", \"decoder\": {\"type\": \"ByteLevel\"}, \"added_tokens\": [{\"id\": 8, "       \
                 "\"content\": "                                                                   \
                 "\"<|end|>\", \"special\": true, \"normalized\": false, \"lstrip\": " flags       \
                 ", \"rstrip\": false, \"single_word\": false}], \"model\": {\"type\": \"BPE\", "  \
                 "\"ignore_merges\": " whole                                                       \
                 ", \"vocab\": {\"1\": 0, \"2\": 1, \"3\": 2, \"12\": 3, "                         \
                 "\"23\": 4, \"\\u00c3\": 5, \"\\u00a9\": 6, \"\\u00c3\\u00a9\": 7}, \"merges\": " \
                 "[\"2 3\", "                                                                      \
                 "\"\\u00c3 \\u00a9\"]}}"
#define QWEN PATTERN("\\\\p{N}")
#define LLAMA3 PATTERN("\\\\p{N}{1,3}")
#define NFC "{\"type\": \"NFC\"}"

static void test_patterns(void **state)
{
    (void)state;
    temp_folder folder = temp_folder_new();
    mc_context *ctx = mc_context_new(&(mc_init_options){.log = NULL});
    assert_int_equal(mkdir(temp_path(&folder, "from"), 0700), 0);
    write_tokenizer(&folder, BYTES(NFC, QWEN, "false", "false"));
    there_and_back(ctx, &folder, "qwen");
    /* each number by itself, and an accent that follows its letter joins it */
    assert_same_ids(ctx, &folder, "qwen", "23<|end|>e\xcc\x81", (int32_t[]){1, 2, 8, 7}, 4);
    write_tokenizer(&folder, BYTES("null", LLAMA3, "true", "false"));
    there_and_back(ctx, &folder, "llama3");
    assert_same_ids(ctx, &folder, "llama3", "12<|end|>123", (int32_t[]){3, 8, 0, 4}, 4);
    const mc_model_shape *shape = &shape_of_70;
    static const char expected[] = "GPT-2, Llama 3, Qwen 2 or ModernBERT";
    refuse_tokens(ctx, &folder, BYTES("null", LLAMA3, "false", "false"), shape, expected);
    refuse_tokens(ctx, &folder, BYTES(NFC, LLAMA3, "true", "false"), shape, expected);
    refuse_tokens(ctx, &folder, BYTES("null", "[0-9]+", "false", "false"), shape, expected);
    refuse_tokens(ctx, &folder, BYTES(NFC, QWEN, "false", "true"), shape, "takes in spaces");
    mc_context_free(ctx);
    temp_folder_free(&folder);
}

/* A tokenizer.json of pieces: three special ones, all bytes, and five letters and pairs. */
static const char *pieces_json(const char *merges, const char *fallback)
{
    static char json[1 << 14];
    size_t at = (size_t)snprintf(
        json, sizeof json,
        "{\"added_tokens\": [{\"id\": 1, \"content\": \"<s>\", \"special\": true}, {\"id\": 2, "
        "\"content\": \"</s>\", \"special\": true}], \"normalizer\": null, \"pre_tokenizer\": "
        "{\"type\": \"Metaspace\", \"replacement\": \"" MC_SPACE_SYMBOL "\", "
        "\"prepend_scheme\": \"always\", \"split\": true}, \"post_processor\": {\"type\": "
        "\"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\", \"type_id\": "
        "0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], \"pair\": [{\"Sequence\": {\"id\": "
        "\"A\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"B\", \"type_id\": 0}}], "
        "\"special_tokens\": {\"<s>\": {\"id\": \"<s>\", \"ids\": [1], \"tokens\": "
        "[\"<s>\"]}}}, \"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": "
        "\"Replace\", \"pattern\": {\"String\": \"" MC_SPACE_SYMBOL "\"}, \"content\": \" \"}, "
        "{\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}]}, \"model\": {\"type\": \"BPE\", "
        "\"unk_token\": \"<unk>\", \"fuse_unk\": true, \"byte_fallback\": %s, \"merges\": [%s], "
        "\"vocab\": {\"<unk>\": 0, \"<s>\": 1, \"</s>\": 2",
        fallback, merges);
    for (int byte = 0; byte < 256; byte++)
        at += (size_t)snprintf(json + at, sizeof json - at, ", \"<0x%02X>\": %d", (unsigned)byte,
                               byte + 3);
    snprintf(json + at, sizeof json - at,
             ", \"" MC_SPACE_SYMBOL "\": 259, \"a\": 260, \"b\": 261, \"" MC_SPACE_SYMBOL
             "a\": 262, \"ab\": 263, \"" MC_SPACE_SYMBOL "ab\": 264}}}");
    return json;
}

static void test_pieces(void **state)
{
    (void)state;
    static const mc_model_shape shape = {.vocab_size = 272, .bos_token = 1, .eos_token = 2};
    static const char merges[] = "\"a b\", \"" MC_SPACE_SYMBOL " a\", \"" MC_SPACE_SYMBOL
                                 " ab\", \"" MC_SPACE_SYMBOL "a b\"";
    static const char text[] = "a ab</s>\xc3\xa9";
    static const int32_t ids[] = {1, 262, 264, 2, 259, 0xc3 + 3, 0xa9 + 3};
    const size_t count = sizeof ids / sizeof *ids;
    temp_folder folder = temp_folder_new();
    mc_context *ctx = mc_context_new(&(mc_init_options){.log = NULL});
    assert_int_equal(mkdir(temp_path(&folder, "from"), 0700), 0);
    write_tokenizer(&folder, pieces_json(merges, "true"));
    assert_same_ids(ctx, &folder, "from", text, ids, count);
    there_and_back_of(ctx, &folder, "from", "to", &shape);
    assert_true(mc_path_is_file(temp_path(&folder, "to/tokenizer.model")));
    assert_same_ids(ctx, &folder, "to", text, ids, count);
    there_and_back_of(ctx, &folder, "to", "again", &shape); /* of SentencePiece's model */
    assert_same_ids(ctx, &folder, "again", text, ids, count);
    refuse_tokens(ctx, &folder, pieces_json("\"a b\", \"" MC_SPACE_SYMBOL " a\"", "true"), &shape,
                  "to be merges, as in SentencePiece");
    refuse_tokens(ctx, &folder, pieces_json(merges, "false"), &shape, "pieces of bytes");
    mc_context_free(ctx);
    temp_folder_free(&folder);
}

/* ---- bad files ------------------------------------------------------------------------------- */

typedef struct bytes {
    uint8_t data[1024];
    size_t size;
} bytes;

static void put(bytes *b, const void *data, size_t size)
{
    assert_true(b->size + size <= sizeof b->data);
    memcpy(b->data + b->size, data, size);
    b->size += size;
}

static void put_u64(bytes *b, uint64_t value) { put(b, &value, sizeof value); }

static void put_u32(bytes *b, uint32_t value) { put(b, &value, sizeof value); }

static void put_text(bytes *b, const char *text)
{
    put_u64(b, strlen(text));
    put(b, text, strlen(text));
}

/* What is wrong with a file of one value and two tensors. */
typedef struct flaw {
    const char *expected;
    uint32_t version, kind, dtype, dims;
    uint64_t tensors, values, items, rows, offset;
    const char *key, *name;
    mc_status status;
} flaw;

static bytes make_file(const flaw *f)
{
    bytes b = {.size = 0};
    put(&b, "GGUF", 4);
    put_u32(&b, f->version ? f->version : 3);
    put_u64(&b, f->tensors ? f->tensors : 2);
    put_u64(&b, f->values ? f->values : 2);
    put_text(&b, "other");
    put_u32(&b, MC_GGUF_BOOL);
    put(&b, "\1", 1);
    put_text(&b, f->key ? f->key : "list");
    put_u32(&b, MC_GGUF_ARRAY);
    put_u32(&b, f->kind ? f->kind : MC_GGUF_STRING);
    put_u64(&b, f->items ? f->items : 2);
    put_text(&b, "one");
    put_text(&b, "two");
    for (int i = 0; i < 2; i++) {
        put_text(&b, i ? (f->name ? f->name : "second") : "first");
        put_u32(&b, f->dims ? f->dims : 2);
        put_u64(&b, 32);
        put_u64(&b, f->rows ? f->rows : 1);
        put_u32(&b, f->dtype ? f->dtype : 8);
        put_u64(&b, i ? (f->offset ? f->offset : 64) : 0);
    }
    static const uint8_t zeros[160];
    put(&b, zeros, (32 - b.size % 32) % 32 + 64 + 34);
    return b;
}

static void test_bad_files(void **state)
{
    (void)state;
    static const flaw flaws[] = {
        {"version 4", .version = 4, .status = MC_ERR_UNSUPPORTED},
        {"version 50331648", .version = 3u << 24, .status = MC_ERR_UNSUPPORTED},
        {"does not fit into", .tensors = 1u << 30},
        {"does not fit into", .values = (uint64_t)1 << 60},
        {"key \"list\": more items", .items = (uint64_t)1 << 50},
        {"key \"list\": no such type", .kind = 77},
        {"key \"list\": an array of arrays", .kind = MC_GGUF_ARRAY},
        {"key \"other\": stands there twice", .key = "other"},
        {"a name that is no UTF-8", .key = "\xff\xfe"},
        {"tensor \"first\": stands there twice", .name = "first"},
        {"tensor \"first\": type 2 (Q4_0): expected F32", .dtype = 2, .status = MC_ERR_UNSUPPORTED},
        {"tensor \"first\": type 999: expected F32", .dtype = 999, .status = MC_ERR_UNSUPPORTED},
        {"tensor \"first\": expected 1 to 4 dimensions", .dims = 9},
        {"tensor \"first\": a dimension of 0, or too many", .rows = (uint64_t)1 << 62},
        {"tensor \"first\": 2176 bytes", .rows = 64},
        {"tensor \"second\": its offset is no multiple", .offset = 40},
        {"tensor \"second\": 34 bytes from byte 4096", .offset = 4096},
    };
    mc_error err = {0};
    mc_gguf g;
    bytes good = make_file(&(flaw){.expected = ""});
    assert_int_equal(mc_gguf_parse(&err, &g, good.data, good.size, "file"), MC_OK);
    assert_true(g.tensor_count == 2 && g.value_count == 2);
    assert_true(mc_gguf_find_tensor(&g, "second")->data == good.data + good.size - 34);
    assert_null(mc_gguf_find(&g, "third"));
    mc_gguf_release(&g);
    for (size_t i = 0; i < sizeof flaws / sizeof *flaws; i++) {
        bytes bad = make_file(&flaws[i]);
        mc_status status = mc_gguf_parse(&err, &g, bad.data, bad.size, "file");
        if (status != (flaws[i].status ? flaws[i].status : MC_ERR_FORMAT) ||
            strncmp(err.message, "file: ", 6) != 0 || !strstr(err.message, flaws[i].expected))
            fail_msg("expected \"%s\", found \"%s\"", flaws[i].expected, err.message);
        assert_null(g.values);
        mc_error_clear(&err);
    }
    for (size_t size = 0; size < good.size; size++) { /* exact, so that a sanitizer sees more */
        uint8_t *cut = malloc(size + 1);
        memcpy(cut, good.data, size);
        assert_int_not_equal(mc_gguf_parse(&err, &g, cut, size, "file"), MC_OK);
        assert_true(strncmp(err.message, "file: ", 6) == 0);
        mc_error_clear(&err);
        free(cut);
    }
}

/* A whole file of another model than its header says. */
static void test_other_shapes(void **state)
{
    (void)state;
    temp_folder folder = temp_folder_new();
    const char *path = temp_path(&folder, "x.gguf");
    mc_context *ctx = mc_context_new(&(mc_init_options){.seed = 5});
    mc_model *gpt2 = new_gpt2(ctx, MC_F32, MC_RECOMPUTE_NONE);
    static const struct {
        const char *key;
        uint32_t value;
        const char *expected;
    } cases[] = {{"gpt2.block_count", 4, "no tensor \"blk.3.attn_norm.weight\""},
                 {"gpt2.block_count", 2, "tensors belong to a GPT-2"},
                 {"gpt2.block_count", 1 << 30, "layers in a file of"},
                 {"gpt2.feed_forward_length", 41, "expected 41 of"},
                 {"gpt2.context_length", 1 << 28, "\"position_embd.weight\""},
                 {"general.architecture", 0, "expected one of gpt2, bert, modern-bert, t5"}};
    static uint8_t whole[1 << 20];
    assert_int_equal(mc_gguf_write_model(gpt2, NULL, path, "F32", 0), MC_OK);
    FILE *file = fopen(path, "r");
    size_t size = fread(whole, 1, sizeof whole, file);
    fclose(file);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t *at = memmem(whole, size, cases[i].key, strlen(cases[i].key));
        assert_non_null(at);
        at += strlen(cases[i].key) + 4 + (cases[i].value ? 0 : 8); /* a text's: its first letter */
        uint32_t before;
        memcpy(&before, at, sizeof before);
        memcpy(at, cases[i].value ? (const void *)&cases[i].value : "wxyz", 4);
        write_bytes(temp_path(&folder, "bad.gguf"), whole, size);
        memcpy(at, &before, sizeof before);
        assert_null(mc_model_from_pretrained(ctx, temp_path(&folder, "bad.gguf"), NULL));
        if (!strstr(mc_error_message(ctx), cases[i].expected) ||
            !strstr(mc_error_message(ctx), "bad.gguf"))
            fail_msg("expected \"%s\", found \"%s\"", cases[i].expected, mc_error_message(ctx));
        mc_clear_error(ctx);
    }
    mc_context_free(ctx);
    temp_folder_free(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_there_and_back), cmocka_unit_test(test_no_form),
        cmocka_unit_test(test_bert),           cmocka_unit_test(test_wordpiece),
        cmocka_unit_test(test_bytes),          cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_pieces),         cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_other_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
