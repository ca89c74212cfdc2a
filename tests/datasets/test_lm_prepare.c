/* Preparing data: what is written is what the tokenizer says, in both formats, whatever the number
 * of threads; and what is wrong with an input is said with file and line, with nothing written. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <cjson/cJSON.h>
#include <signal.h>
#include <sys/resource.h>
#include "datasets/lm/prepare_internal.h"
#include "tests/datasets/lm_test.h"
#include "tests/shared_data.h"
#include "datasets/token_files.h"
#include "tokenizers/details.h"

enum { MOST = 1 << 21 };

/* What a file should hold: documents with their tokens. */
typedef struct expected {
    mc_encoding tokens;
    int64_t ends[64];
    int documents;
} expected;

static void add_token(expected *e, const mc_tokenizer *tok, const char *token)
{
    assert_int_equal(mc_tokenizer_append(tok, token, strlen(token), &e->tokens), MC_OK);
}

static void end_document(expected *e) { e->ends[e->documents++] = (int64_t)e->tokens.count; }

/* A document of a text and, before or after it, a token ("" for none). */
static void add_document(expected *e, const mc_tokenizer *tok, const char *before, const char *text,
                         const char *after)
{
    add_token(e, tok, before);
    assert_int_equal(mc_tokenizer_append(tok, text, strlen(text), &e->tokens), MC_OK);
    add_token(e, tok, after);
    end_document(e);
}

static void check_file(fixture *f, const char *path, expected *e, bool documents)
{
    mc_token_file *file = mc_token_file_open(f->ctx, path);
    expect_ok(f->ctx);
    assert_int_equal(mc_token_file_count(file), e->tokens.count);
    int32_t *tokens = malloc(e->tokens.count * sizeof *tokens);
    assert_non_null(tokens);
    assert_int_equal(mc_token_file_read(file, 0, (int64_t)e->tokens.count, tokens), MC_OK);
    assert_memory_equal(tokens, e->tokens.ids, e->tokens.count * sizeof *tokens);
    free(tokens);
    assert_int_equal(mc_token_file_documents(file), documents ? e->documents : -1);
    for (int i = 0; documents && i < e->documents; i++) {
        int64_t first, count;
        assert_true(mc_token_file_document(file, i, &first, &count));
        assert_int_equal(first + count, e->ends[i]);
    }
    mc_token_file_free(file);
    mc_encoding_release(&e->tokens);
    e->documents = 0;
}

static mc_prepare_result prepare(fixture *f, const char *const *inputs, int count,
                                 const char *output, mc_prepare_options options)
{
    mc_prepare_result result;
    mc_prepare_tokens(f->ctx, f->tok, inputs, count, output, &options, &result);
    expect_ok(f->ctx);
    assert_int_equal(result.bytes, result.total_bytes);
    return result;
}

/* ---- what is written ---- */

static const char lines[] = "{\"text\": \"first of lines\", \"id\": 1}\n\n"
                            "{\"id\": 2, \"text\": \"se\\u0063ond\\n\\\"q\\\"\"}\r\n"
                            "  {\"text\": \"\"}\n"
                            "{\"text\": \"last\"}";

/* Texts and lines, and where the end-of-text token goes. */
static void test_documents(void **state)
{
    fixture *f = *state;
    const char *output = temp_path(&f->folder, "out.bin");
    const char *inputs[] = {temp_path(&f->folder, "a.txt"), temp_path(&f->folder, "b.jsonl"),
                            temp_path(&f->folder, "empty.txt"),
                            temp_path(&f->folder, "none.jsonl")};
    write_text(inputs[0], "\xEF\xBB\xBFone text.\nof lines\n");
    write_text(inputs[1], lines);
    write_text(inputs[2], "");
    write_text(inputs[3], "\n \n");
    static const struct {
        mc_token_format format;
        mc_end_of_text end;
        const char *token, *before, *after;
    } cases[] = {
        {MC_TOKENS_DEFAULT, MC_END_OF_TEXT_DEFAULT, NULL, "[SEP]", ""},
        {MC_TOKENS_MEGATRON, MC_END_OF_TEXT_DEFAULT, NULL, "", "[SEP]"},
        {MC_TOKENS_LLMC, MC_END_OF_TEXT_AFTER, "[CLS]", "", "[CLS]"},
        {MC_TOKENS_MEGATRON, MC_END_OF_TEXT_BEFORE, "[MASK]", "[MASK]", ""},
        {MC_TOKENS_LLMC, MC_END_OF_TEXT_NONE, NULL, "", ""},
        {MC_TOKENS_MEGATRON, MC_END_OF_TEXT_NONE, NULL, "", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expected e = {0};
        const char *before = cases[i].before, *after = cases[i].after;
        add_document(&e, f->tok, before, "one text.\nof lines\n", after);
        add_document(&e, f->tok, before, "first of lines", after);
        add_document(&e, f->tok, before, "second\n\"q\"", after);
        add_document(&e, f->tok, before, "", after);
        add_document(&e, f->tok, before, "last", after);
        add_document(&e, f->tok, before, "", after);
        mc_prepare_result r = prepare(f, inputs, 4, output,
                                      (mc_prepare_options){.format = cases[i].format,
                                                           .end_of_text = cases[i].end,
                                                           .end_token = cases[i].token,
                                                           .threads = 2});
        assert_int_equal(r.documents, 6);
        assert_int_equal(r.tokens, e.tokens.count);
        check_file(f, output, &e, cases[i].format == MC_TOKENS_MEGATRON);
    }
    assert_int_equal(count_files(f->folder.path), 4 + 2 + 1); /* inputs, .bin, .idx, tok */
}

static void test_json_key(void **state)
{
    fixture *f = *state;
    const char *input = temp_path(&f->folder, "a.json"), *output = temp_path(&f->folder, "out");
    write_text(input, "{\"text\": 1, \"body\": {\"raw\": \"abc\"}}\n");
    prepare(f, &input, 1, output,
            (mc_prepare_options){.json_key = "body.raw", .format = MC_TOKENS_MEGATRON});
    expected e = {0};
    add_document(&e, f->tok, "", "abc", "[SEP]");
    check_file(f, temp_path(&f->folder, "out.bin"), &e, true);
}

/* The number of bytes of a header are as a reader elsewhere expects them. */
static void test_bytes(void **state)
{
    fixture *f = *state;
    size_t size;
    const char *input = temp_path(&f->folder, "a.txt");
    write_text(input, "!");
    prepare(f, &input, 1, temp_path(&f->folder, "out.bin"), (mc_prepare_options){0});
    char *bytes = read_whole(temp_path(&f->folder, "out.bin"), &size);
    assert_int_equal(size, 1024 + 4);
    const int32_t header[4] = {20240520, 1, 2, 0};
    assert_memory_equal(bytes, header, sizeof header);
    const uint16_t tokens[2] = {3, 5};
    assert_memory_equal(bytes + 1024, tokens, sizeof tokens);
    free(bytes);
    prepare(f, &input, 1, temp_path(&f->folder, "out.bin"),
            (mc_prepare_options){.format = MC_TOKENS_MEGATRON});
    bytes = read_whole(temp_path(&f->folder, "out.idx"), &size);
    static const uint8_t index[] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0, 1, 0, 0, 0, 0, 0, 0,
                                    0,   8,   1,   0,   0,   0,   0,   0, 0, 0, 2, 0, 0, 0, 0, 0,
                                    0,   0,                               /* header */
                                    2,   0,   0,   0,                     /* length */
                                    0,   0,   0,   0,   0,   0,   0,   0, /* pointer */
                                    0,   0,   0,   0,   0,   0,   0,   0, 1, 0, 0, 0, 0, 0, 0, 0};
    assert_int_equal(size, sizeof index);
    assert_memory_equal(bytes, index, sizeof index);
    free(bytes);
}

/* ---- threads ---- */

/* Words of changing length, in lines; deterministic. */
static char *make_text(size_t size)
{
    char *text = malloc(size + 1);
    assert_non_null(text);
    uint32_t x = 1;
    for (size_t i = 0; i < size; i++) {
        x = x * 1664525 + 1013904223;
        text[i] = x >> 24 < 40 ? ' ' : x >> 24 < 48 ? '\n' : (char)('a' + (x >> 16) % 26);
    }
    text[size] = '\0';
    return text;
}

/* A text of many pieces is tokenized as if it were one. */
static void test_long_text(void **state)
{
    fixture *f = *state;
    char *text = make_text(MOST);
    const char *input = temp_path(&f->folder, "a.txt"), *output = temp_path(&f->folder, "out.bin");
    write_text(input, text);
    for (int threads = 1; threads <= 7; threads += 3) {
        expected e = {0};
        add_document(&e, f->tok, "[SEP]", text, "");
        mc_prepare_result r =
            prepare(f, &input, 1, output, (mc_prepare_options){.threads = threads});
        assert_int_equal(r.documents, 1);
        assert_int_equal(r.bytes, MOST);
        check_file(f, output, &e, false);
    }
    free(text);
}

/* A text without a place to cut it is one piece, however long. */
static void test_uncuttable_text(void **state)
{
    fixture *f = *state;
    char *text = malloc(MOST + 1);
    assert_non_null(text);
    memset(text, 'a', MOST);
    text[MOST] = '\0';
    const char *input = temp_path(&f->folder, "a.txt"), *output = temp_path(&f->folder, "out.bin");
    write_text(input, text);
    expected e = {0};
    add_document(&e, f->tok, "[SEP]", text, "");
    prepare(f, &input, 1, output, (mc_prepare_options){.threads = 2});
    check_file(f, output, &e, false);
    free(text);
}

/* Writes rows of `text` as JSON Lines. */
static void write_rows(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (const char *end; *text; text = *end ? end + 1 : end) {
        end = text + strcspn(text, "\n");
        fprintf(file, "{\"text\": \"%.*s\"}\n", (int)(end - text), text);
    }
    assert_int_equal(fclose(file), 0);
}

/* The same bytes at any number of threads, for many inputs of both kinds. */
static void test_threads(void **state)
{
    fixture *f = *state;
    char *text = make_text(MOST), name[32];
    char paths[12][1024];
    const char *inputs[12];
    for (int i = 0; i < 12; i++) {
        snprintf(name, sizeof name, i % 2 ? "%d.jsonl" : "%d.txt", i);
        snprintf(paths[i], sizeof paths[i], "%s", temp_path(&f->folder, name));
        inputs[i] = paths[i];
        text[MOST - i * 100000] = '\0';
        if (i % 2)
            write_rows(paths[i], text);
        else
            write_text(paths[i], text);
    }
    char *first[3] = {NULL};
    size_t sizes[3], size;
    for (int threads = 1; threads <= 16; threads = threads * 2 + 1) {
        static const char *const outputs[] = {"l.bin", "m.bin", "m.idx"};
        for (int k = 0; k < 3; k++) {
            if (k < 2)
                prepare(f, inputs, 12, temp_path(&f->folder, outputs[k]),
                        (mc_prepare_options){.threads = threads,
                                             .format = k ? MC_TOKENS_MEGATRON : MC_TOKENS_LLMC});
            char *bytes = read_whole(temp_path(&f->folder, outputs[k]), &size);
            if (!first[k]) {
                first[k] = bytes;
                sizes[k] = size;
                continue;
            }
            assert_int_equal(size, sizes[k]);
            assert_memory_equal(bytes, first[k], size);
            free(bytes);
        }
    }
    for (int k = 0; k < 3; k++) free(first[k]);
    free(text);
}

/* ---- GPT-2 ---- */

static void test_gpt2(void **state)
{
    fixture *f = *state;
    const char *folder = shared_path("data/vocab/gpt2"), *texts[2], *output;
    texts[0] = shared_path("data/text/tinyshakespeare.txt");
    texts[1] = shared_path("data/text/zh-sample.txt");
    if (!folder || !texts[0] || !texts[1]) skip();
    f->tok = mc_tokenizer_from_pretrained(f->ctx, folder);
    expect_ok(f->ctx);
    expected e = {0};
    for (int i = 0; i < 2; i++) {
        size_t size;
        char *text = read_whole(texts[i], &size);
        add_document(&e, f->tok, "<|endoftext|>", text, "");
        free(text);
    }
    assert_int_equal(e.tokens.ids[0], 50256);
    output = temp_path(&f->folder, "gpt2.bin");
    prepare(f, texts, 2, output, (mc_prepare_options){.threads = 3});
    check_file(f, output, &e, false);
}

/* ---- errors ---- */

static void refuse(fixture *f, const char *const *inputs, int count, mc_prepare_options options,
                   mc_status status, const char *part)
{
    const char *output = temp_path(&f->folder, "out.bin");
    int files = count_files(f->folder.path);
    assert_int_equal(mc_prepare_tokens(f->ctx, f->tok, inputs, count, output, &options, NULL),
                     status);
    expect_error(f->ctx, status, part);
    assert_int_equal(count_files(f->folder.path), files);
}

static void test_bad_inputs(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *name, *content, *message;
    } cases[] = {
        {"a.txt", "good\nbad \xFF\n", "a.txt:2: not UTF-8: byte 0xFF at offset 9"},
        {"b.txt", "cut \xE2\x82", "b.txt:1: not UTF-8: byte 0xE2"},
        {"c.txt", "overlong \xC0\xAF", "c.txt:1: not UTF-8: byte 0xC0"},
        {"d.jsonl", "{\"text\": \"a\"}\n{\"text\": \n", "d.jsonl:2: malformed JSON"},
        {"e.jsonl", "\n{\"text\": \"a\"}\n{\"tixt\": \"b\"}\n",
         "e.jsonl:3: key \"text\" is missing, expected a string"},
        {"f.jsonl", "{\"text\": 7}\n", "f.jsonl:1: key \"text\": expected a string, found 7"},
        {"g.jsonl", "[\"text\"]\n", "g.jsonl:1: expected a JSON object, found \"text\""},
        {"h.jsonl", "{\"text\": \"a\xFF\"}\n", "h.jsonl:1: malformed JSON: not UTF-8"},
        {"i.jsonl", "{\"text\": \"a\", \"text\": \"b\"}\n",
         "i.jsonl:1: key \"text\" appears twice"},
        {"j.jsonl", "{\"text\": \"a\"} {\"text\": \"b\"}\n", "j.jsonl:1: malformed JSON"},
        {"k.jsonl", "{\"text\": null}\n", "expected a string, found null"},
    };
    const char *good = temp_path(&f->folder, "good.txt");
    char output[1024];
    snprintf(output, sizeof output, "%s", temp_path(&f->folder, "out.bin"));
    write_text(good, "good text");
    write_text(output, "what was there");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *inputs[] = {good, temp_path(&f->folder, cases[i].name), good};
        write_text(inputs[1], cases[i].content);
        refuse(f, inputs, 3, (mc_prepare_options){.threads = 2}, MC_ERR_FORMAT, cases[i].message);
        refuse(f, inputs, 3, (mc_prepare_options){.format = MC_TOKENS_MEGATRON}, MC_ERR_FORMAT,
               cases[i].message);
        good = temp_path(&f->folder, "good.txt");
    }
    size_t size;
    char *bytes = read_whole(output, &size);
    assert_string_equal(bytes, "what was there");
    free(bytes);
}

/* Lines are counted over all pieces, and the first error counts, whatever the threads. */
static void test_line_numbers(void **state)
{
    fixture *f = *state;
    char *text = make_text(MOST);
    const char *rows = temp_path(&f->folder, "a.jsonl"), *plain = temp_path(&f->folder, "a.txt");
    write_rows(rows, text);
    FILE *file = fopen(rows, "r+");
    assert_non_null(file);
    char line[4096], message[128];
    for (int i = 1; i < 50000; i++) assert_non_null(fgets(line, sizeof line, file));
    long at = ftell(file);
    assert_int_equal(fseek(file, at + 2, SEEK_SET), 0);
    fputc('T', file); /* "Text" in line 50000 */
    assert_int_equal(fseek(file, -3, SEEK_END), 0);
    fputc('?', file);
    fclose(file);
    int number = 1;
    for (size_t i = 0; i < 3 * MOST / 4; i++) number += text[i] == '\n';
    text[3 * MOST / 4] = '\x80';
    write_text(plain, text);
    text[0] = '\0';
    for (int threads = 1; threads <= 9; threads += 4) {
        refuse(f, &rows, 1, (mc_prepare_options){.threads = threads}, MC_ERR_FORMAT,
               "a.jsonl:50000: key \"text\" is missing");
        snprintf(message, sizeof message, "a.txt:%d: not UTF-8: byte 0x80 at offset %d", number,
                 3 * MOST / 4);
        refuse(f, &plain, 1, (mc_prepare_options){.threads = threads}, MC_ERR_FORMAT, message);
    }
    free(text);
}

static void test_bad_files(void **state)
{
    fixture *f = *state;
    const char *good = temp_path(&f->folder, "a.txt"), *missing = temp_path(&f->folder, "b.txt");
    write_text(good, "text");
    refuse(f, (const char *[]){good, missing}, 2, (mc_prepare_options){0}, MC_ERR_NOT_FOUND,
           "b.txt: cannot open");
    refuse(f, (const char *[]){good, f->folder.path}, 2, (mc_prepare_options){0}, MC_ERR_IO,
           "not a regular file");
    refuse(f, (const char *[]){good, NULL}, 2, (mc_prepare_options){0}, MC_ERR_ARGUMENT,
           "input 1 has no path");
    refuse(f, NULL, 0, (mc_prepare_options){0}, MC_ERR_ARGUMENT, "needs inputs");
    write_text(temp_path(&f->folder, "empty.jsonl"), "\n");
    write_text(temp_path(&f->folder, "empty.txt"), "");
    const char *empty[] = {temp_path(&f->folder, "empty.jsonl"),
                           temp_path(&f->folder, "empty.txt")};
    refuse(f, empty, 1, (mc_prepare_options){0}, MC_ERR_FORMAT, "empty.jsonl: no tokens in it");
    refuse(f, empty, 2, (mc_prepare_options){.end_of_text = MC_END_OF_TEXT_NONE}, MC_ERR_FORMAT,
           "no tokens in this and the other inputs");
    good = temp_path(&f->folder, "a.txt");
    assert_int_equal(mc_prepare_tokens(f->ctx, f->tok, &good, 1,
                                       temp_path(&f->folder, "no/folder/x.bin"), NULL, NULL),
                     MC_ERR_NOT_FOUND);
    expect_error(f->ctx, MC_ERR_NOT_FOUND, "x.bin: cannot create");
    good = temp_path(&f->folder, "a.txt");
    assert_int_equal(mc_prepare_tokens(f->ctx, f->tok, &good, 1, good, NULL, NULL),
                     MC_ERR_ARGUMENT);
    expect_error(f->ctx, MC_ERR_ARGUMENT, "a.txt: is both input and output");
    assert_int_equal(mc_prepare_tokens(f->ctx, f->tok, &good, 1, f->folder.path, NULL, NULL),
                     MC_ERR_ARGUMENT);
    expect_error(f->ctx, MC_ERR_ARGUMENT, "is a folder, expected a file to write");
    assert_int_equal(mc_prepare_tokens(f->ctx, NULL, &good, 1, "x", NULL, NULL), MC_ERR_ARGUMENT);
    expect_error(f->ctx, MC_ERR_ARGUMENT, "needs a tokenizer");
}

/* What is no file stays what it is, whichever of the two files would have replaced it. Through a
 * link the file that it points to is replaced. */
static void test_outputs_that_are_there(void **state)
{
    fixture *f = *state;
    struct stat info;
    const char *input = temp_path(&f->folder, "a.txt"), *pipe = temp_path(&f->folder, "out.idx"),
               *out = temp_path(&f->folder, "out.bin"), *link = temp_path(&f->folder, "link.bin"),
               *old = temp_path(&f->folder, "old.bin");
    mc_prepare_options megatron = {.format = MC_TOKENS_MEGATRON};
    write_text(input, "!");
    write_text(old, "old");
    assert_int_equal(mkfifo(pipe, 0600), 0);
    assert_int_equal(symlink("old.bin", link), 0);
    assert_int_equal(mc_prepare_tokens(f->ctx, f->tok, &input, 1, pipe, NULL, NULL),
                     MC_ERR_ARGUMENT);
    expect_error(f->ctx, MC_ERR_ARGUMENT, "out.idx: is no regular file");
    assert_int_equal(mc_prepare_tokens(f->ctx, f->tok, &input, 1, out, &megatron, NULL),
                     MC_ERR_ARGUMENT);
    expect_error(f->ctx, MC_ERR_ARGUMENT, "out.idx: is no regular file");
    assert_true(lstat(pipe, &info) == 0 && S_ISFIFO(info.st_mode));
    assert_int_not_equal(stat(out, &info), 0);
    prepare(f, &input, 1, link, (mc_prepare_options){0});
    assert_true(lstat(link, &info) == 0 && S_ISLNK(info.st_mode));
    assert_true(lstat(old, &info) == 0 && info.st_size == 1024 + 4);
}

static void test_bad_options(void **state)
{
    fixture *f = *state;
    const char *good = temp_path(&f->folder, "a.txt");
    write_text(good, "text");
    refuse(f, &good, 1, (mc_prepare_options){.threads = -1}, MC_ERR_ARGUMENT, "-1 threads");
    refuse(f, &good, 1, (mc_prepare_options){.threads = 5000}, MC_ERR_ARGUMENT, "5000 threads");
    refuse(f, &good, 1, (mc_prepare_options){.json_key = ""}, MC_ERR_ARGUMENT, "key \"\"");
    refuse(f, &good, 1, (mc_prepare_options){.format = (mc_token_format)9}, MC_ERR_ARGUMENT,
           "format 9");
    refuse(f, &good, 1, (mc_prepare_options){.end_of_text = (mc_end_of_text)9}, MC_ERR_ARGUMENT,
           "end_of_text 9");
    refuse(f, &good, 1, (mc_prepare_options){.end_token = "<none>"}, MC_ERR_NOT_FOUND,
           "no token \"<none>\"");
}

/* Vocabularies that 16 bits hold, do not hold, and that Megatron writes as i32. */
static void test_vocabularies(void **state)
{
    fixture *f = *state;
    static const struct {
        int entries;
        bool fits;
        int type;
    } cases[] = {{65499, true, 8}, {65500, true, 4}, {65536, true, 4}, {65537, false, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *input = temp_path(&f->folder, "a.txt");
        FILE *file = fopen(temp_path(&f->folder, "tok/vocab.txt"), "w");
        fputs("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n", file);
        for (int k = 5; k < cases[i].entries; k++) fprintf(file, "w%d\n", k);
        fclose(file);
        f->tok = mc_tokenizer_from_pretrained(f->ctx, temp_path(&f->folder, "tok"));
        expect_ok(f->ctx);
        char text[32];
        snprintf(text, sizeof text, "w%d", cases[i].entries - 1);
        write_text(input, text);
        const char *output = temp_path(&f->folder, "v.bin");
        if (cases[i].fits) {
            expected e = {0};
            add_document(&e, f->tok, "[SEP]", text, "");
            assert_int_equal(e.tokens.ids[1], cases[i].entries - 1);
            prepare(f, &input, 1, output, (mc_prepare_options){0});
            check_file(f, output, &e, false);
        } else {
            refuse(f, &input, 1, (mc_prepare_options){0}, MC_ERR_UNSUPPORTED,
                   "a vocabulary of 65537 does not fit the 16 bits of a token in llm.c's format "
                   "(at most 65536): use the format megatron");
        }
        expected e = {0};
        add_document(&e, f->tok, "", text, "[SEP]");
        prepare(f, &input, 1, output, (mc_prepare_options){.format = MC_TOKENS_MEGATRON});
        check_file(f, output, &e, true);
        size_t size;
        char *bytes = read_whole(temp_path(&f->folder, "v.idx"), &size);
        assert_int_equal(bytes[17], cases[i].type);
        free(bytes);
    }
}

static bool stop_halfway(void *user, const mc_prepare_result *done)
{
    int *calls = user;
    assert_true(done->bytes > 0 && done->bytes <= done->total_bytes);
    return ++*calls < 2;
}

static void test_interrupted(void **state)
{
    fixture *f = *state;
    char *text = make_text(MOST);
    const char *input = temp_path(&f->folder, "a.txt");
    write_text(input, text);
    int calls = 0;
    refuse(f, &input, 1,
           (mc_prepare_options){.threads = 2, .progress = stop_halfway, .progress_user = &calls},
           MC_ERR_INTERRUPTED, "out.bin: interrupted");
    assert_int_equal(calls, 2);
    free(text);
}

/* A disk that is full: a limit on the size of files stands for it. */
static void test_full_disk(void **state)
{
    fixture *f = *state;
    char *text = make_text(MOST);
    const char *input = temp_path(&f->folder, "a.txt");
    write_text(input, text);
    free(text);
    struct rlimit before, limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = 1 << 20;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    for (int format = MC_TOKENS_LLMC; format <= MC_TOKENS_MEGATRON; format++)
        refuse(f, &input, 1, (mc_prepare_options){.format = (mc_token_format)format}, MC_ERR_IO,
               "out.bin: cannot write: File too large");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, handler);
}

/* What a format cannot count is refused before it is written. */
static void test_too_many_tokens(void **state)
{
    fixture *f = *state;
    mc_error err = {0};
    mc_token_writer w;
    const int32_t tokens[2] = {1, 2};
    const char *output = temp_path(&f->folder, "out.bin");
    assert_int_equal(mc_token_writer_init(&err, &w, MC_TOKENS_LLMC, output, 10), MC_OK);
    w.tokens = INT32_MAX - 1;
    assert_int_equal(mc_token_writer_add(&w, tokens, 2), MC_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "out.bin: more than 2147483647 tokens"));
    mc_error_clear(&err);
    assert_int_equal(mc_token_writer_add(&w, tokens, 1), MC_OK);
    mc_token_writer_release(&w);
    assert_int_equal(mc_token_writer_init(&err, &w, MC_TOKENS_MEGATRON, output, 10), MC_OK);
    w.tokens = 5LL + INT32_MAX;
    w.ended = 5;
    assert_int_equal(mc_token_writer_end_document(&w), MC_OK);
    w.tokens += 1LL + INT32_MAX;
    assert_int_equal(mc_token_writer_end_document(&w), MC_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "out.bin: document 1 has 2147483648 tokens"));
    mc_error_clear(&err);
    mc_token_writer_release(&w);
    assert_int_equal(count_files(f->folder.path), 1);
}

/* Only what has been written can be patched, buffered or not. */
static void test_patches(void **state)
{
    fixture *f = *state;
    mc_error err = {0};
    mc_file_writer w;
    size_t size;
    const char *path = temp_path(&f->folder, "p");
    assert_int_equal(mc_file_writer_init(&err, &w, path), MC_OK);
    assert_int_equal(mc_file_write(&w, "abcdef", 6), MC_OK);
    assert_int_equal(mc_file_patch(&w, 4, "EF", 2), MC_OK);
    assert_int_equal(mc_file_write(&w, "ghi", 3), MC_OK);
    assert_int_equal(mc_file_patch(&w, 0, "A", 1), MC_OK);
    assert_int_equal(mc_file_write(&w, "j", 1), MC_OK);
    assert_int_equal(mc_file_commit(&w), MC_OK);
    mc_file_writer_release(&w);
    char *bytes = read_whole(path, &size);
    assert_string_equal(bytes, "AbcdEFghij");
    free(bytes);
    assert_int_equal(mc_file_writer_init(&err, &w, path), MC_OK);
    assert_int_equal(mc_file_write(&w, "abc", 3), MC_OK);
    assert_int_equal(mc_file_patch(&w, 2, "xy", 2), MC_ERR_ARGUMENT);
    mc_error_clear(&err);
    assert_int_not_equal(mc_file_commit(&w), MC_OK); /* a file that misses a write is no good */
    mc_error_clear(&err);
    mc_file_writer_release(&w);
}

#ifdef MC_FAULT_INJECTION
/* Each allocation in turn fails. How many there are varies a little with the threads' turns. */
static void test_faults(void **state)
{
    fixture *f = *state;
    cJSON_InitHooks(&(cJSON_Hooks){mc_malloc, mc_free});
    const char *inputs[] = {temp_path(&f->folder, "a.txt"), temp_path(&f->folder, "b.jsonl")};
    write_text(inputs[0], "some text of a document");
    write_text(inputs[1], lines);
    for (int format = MC_TOKENS_LLMC; format <= MC_TOKENS_MEGATRON; format++) {
        char output[1024];
        snprintf(output, sizeof output, "%s", temp_path(&f->folder, "out.bin"));
        unlink(output);
        int files = count_files(f->folder.path);
        long nth = 0, count = 0, failures = 0;
        do {
            mc_fault_fail_at(++nth, false);
            mc_status status = mc_prepare_tokens(
                f->ctx, f->tok, inputs, 2, output,
                &(mc_prepare_options){.threads = 2, .format = (mc_token_format)format}, NULL);
            count = mc_fault_count();
            mc_fault_fail_at(0, false);
            if (nth <= count) {
                assert_int_equal(status, MC_ERR_NOMEM);
                expect_error(f->ctx, MC_ERR_NOMEM, "out of memory");
                assert_int_equal(count_files(f->folder.path), files);
                failures++;
            }
        } while (nth <= count);
        expect_ok(f->ctx);
        assert_true(failures > 20);
    }
    cJSON_InitHooks(NULL);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_documents, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_json_key, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bytes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_long_text, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_uncuttable_text, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_threads, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_gpt2, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bad_inputs, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_line_numbers, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bad_files, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_outputs_that_are_there, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bad_options, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_vocabularies, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_interrupted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_full_disk, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_too_many_tokens, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_patches, set_up, tear_down),
#ifdef MC_FAULT_INJECTION
        cmocka_unit_test_setup_teardown(test_faults, set_up, tear_down),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
