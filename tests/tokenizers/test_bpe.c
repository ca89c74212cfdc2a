/* The byte-level BPE tokenizer: against the recorded results, against a plain loop on random
 * merges, and case by case on a small vocabulary. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/tokenizers/tokenizer_test.h"
#include "tokenizers/details.h"

/* The entries after the 256 letters for bytes, whose ids are the bytes: each is the result of the
 * merge of its number, and END stands after them. */
enum { AB = 256, AA, AAAA, S_A, S_AB, ABC, Q_S, NN, END, ENTRIES };
static const char *const merge_texts[][2] = {
    {"a", "b"},       {"a", "a"},  {"aa", "aa"}, {"\u0120", "a"},
    {"\u0120a", "b"}, {"ab", "c"}, {"'", "s"},   {"\u010a", "\u010a"},
};
enum { MERGES = sizeof merge_texts / sizeof *merge_texts, SPACE = ' ' };

/* A text that grows; tests have no need of failures here. */
typedef struct builder {
    char *text;
    size_t size;
} builder;

static void add(builder *b, const char *format, ...) MC_PRINTF(2, 3);
static void add(builder *b, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    b->text = mc_realloc(b->text, b->size + (size_t)length + 1);
    assert_non_null(b->text);
    va_start(args, format);
    vsnprintf(b->text + b->size, (size_t)length + 1, format, args);
    va_end(args);
    b->size += (size_t)length;
}

/* {"!": 33, ...} with what is after the bytes' letters. */
static void add_vocab(builder *b, const char *more)
{
    for (int byte = 0; byte < 256; byte++) {
        uint8_t letter[5] = {0};
        mc_utf8_encode(mc_bpe_letter_of((uint8_t)byte), letter);
        bool quoted = byte == '"' || byte == '\\';
        add(b, "%s\"%s%s\": %d", byte ? ", " : "{", quoted ? "\\" : "", (char *)letter, byte);
    }
    for (int i = 0; i < MERGES; i++)
        add(b, ", \"%s%s\": %d", merge_texts[i][0], merge_texts[i][1], AB + i);
    add(b, ", \"<|endoftext|>\": %d%s}", END, more);
}

static void write_built(const char *name, builder *b)
{
    write_bytes(temp_path(&folder, name), b->text, b->size);
    mc_free(b->text);
    *b = (builder){0};
}

static void write_files(void)
{
    builder b = {0};
    add_vocab(&b, "");
    write_built("vocab.json", &b);
    add(&b, "#version: 0.2\n");
    for (int i = 0; i < MERGES; i++) add(&b, "%s %s\n", merge_texts[i][0], merge_texts[i][1]);
    write_built("merges.txt", &b);
}

static mc_tokenizer *open_small(void)
{
    write_files();
    return open_folder();
}

#define PRE(prefix) "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": " prefix "}"
#define DECODER "\"decoder\": {\"type\": \"ByteLevel\"}"
#define PARTS PRE("false") ", " DECODER

/* A tokenizer.json with `parts` and the small model, its merges in pairs or spaced. */
static void write_json(const char *parts, const char *model, bool pairs)
{
    builder b = {0};
    add(&b, "{%s, \"model\": {\"type\": \"BPE\"%s, \"vocab\": ", parts, model);
    add_vocab(&b, "");
    add(&b, ", \"merges\": [");
    for (int i = 0; i < MERGES; i++)
        add(&b, pairs ? "%s[\"%s\", \"%s\"]" : "%s\"%s %s\"", i ? ", " : "", merge_texts[i][0],
            merge_texts[i][1]);
    add(&b, "]}}");
    write_built("tokenizer.json", &b);
}

static mc_tokenizer *open_json(const char *parts)
{
    write_json(parts, "", true);
    return open_folder();
}

/* ---- The recorded results -------------------------------------------------------------------- */

static void test_goldens(void **state)
{
    (void)state;
    const char *shared = shared_folder();
    if (!shared) skip();
    check_recorded(shared, "gpt2", "gpt2-a");
    check_recorded(shared, "gptj", "gptj-a");
}

/* What tokenizer.json and vocab.json with merges.txt say is the same. */
static void test_real_files_agree(void **state)
{
    (void)state;
    static const char *const names[] = {"vocab.json", "merges.txt"};
    static const char text[] = "I'll've  been\t\n 12,345 na\u00efve caf\u00e9s\u3000<|endoftext|>!";
    char path[4096];
    mc_encoding other = {0};
    const char *shared = shared_folder();
    if (!shared) skip();
    for (int i = 0; i < 2; i++) {
        size_t size;
        snprintf(path, sizeof path, "%s/data/vocab/gpt2/%s", shared, names[i]);
        char *bytes = mc_file_read(&ctx->error, path, 1 << 24, &size);
        assert_non_null(bytes);
        write_bytes(temp_path(&folder, names[i]), bytes, size);
        mc_free(bytes);
    }
    snprintf(path, sizeof path, "%s/data/vocab/gpt2", shared);
    const mc_tokenizer *a = mc_tokenizer_from_pretrained(ctx, path), *b = open_folder();
    assert_non_null(a);
    assert_int_equal(a->bpe.fingerprint, b->bpe.fingerprint);
    assert_true(a->bpe.ordered && a->bpe.all_bytes);
    assert_int_equal(mc_tokenizer_end_of_text_id(a), 50256);
    assert_int_equal(mc_tokenizer_end_of_text_id(b), 50256);
    assert_int_equal(mc_tokenizer_vocab_size(b), 50257);
    assert_int_equal(mc_tokenizer_append(a, text, strlen(text), &encoding), MC_OK);
    assert_int_equal(mc_tokenizer_append(b, text, strlen(text), &other), MC_OK);
    assert_int_equal(encoding.count, other.count);
    assert_memory_equal(encoding.ids, other.ids, other.count * sizeof *other.ids);
    mc_encoding_release(&other);
}

/* ---- Words and merges ------------------------------------------------------------------------ */

static void test_words(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_small();
    expect_ids(tok, "", -1);
    expect_ids(tok, "abc", ABC, -1);
    expect_ids(tok, "aab", 'a', AB, -1); /* the first merge of the file goes first */
    expect_ids(tok, "aaaaa", AAAA, 'a', -1);
    expect_ids(tok, "aaaaaaa", AAAA, AA, 'a', -1);
    expect_ids(tok, " ab", SPACE, AB, -1); /* "a b" is before "\u0120 a" */
    expect_ids(tok, " ac", S_A, 'c', -1);
    expect_ids(tok, "  a", SPACE, S_A, -1);
    expect_ids(tok, "a a\na", 'a', S_A, '\n', 'a', -1);
    expect_ids(tok, "\n\n\na", NN, '\n', 'a', -1);
    expect_ids(tok, "a\n\n\n", 'a', NN, '\n', -1);
    expect_ids(tok, "\n\n a", NN, S_A, -1);
    expect_ids(tok, "\n\n  ", NN, SPACE, SPACE, -1);
    expect_ids(tok, "a1a", 'a', '1', 'a', -1);
    expect_ids(tok, "a!!a", 'a', '!', '!', 'a', -1);
    expect_ids(tok, "a's", 'a', Q_S, -1);
    expect_ids(tok, "a'S", 'a', '\'', 'S', -1);
    expect_ids(tok, "a 's", 'a', SPACE, '\'', 's', -1); /* " '" is a run of signs */
    expect_ids(tok, "'", '\'', -1);
    expect_ids(tok, "a'reab", 'a', '\'', 'r', 'e', AB, -1);
    expect_ids(tok, "\u00e9", 0xC3, 0xA9, -1);
    expect_ids(tok, "\u00a0a\u3000a", 0xC2, 0xA0, 'a', 0xE3, 0x80, 0x80, 'a', -1);
}

/* What training and Hugging Face mean by merging, word by word. */
static size_t merge_plainly(const mc_bpe *bpe, int32_t *ids, size_t count)
{
    for (;;) {
        uint32_t least = MC_BPE_NONE;
        size_t at = 0;
        for (size_t i = 0; i + 1 < count; i++)
            for (uint32_t m = 0; m < bpe->merge_count && m < least; m++)
                if (bpe->merges[m].left == ids[i] && bpe->merges[m].right == ids[i + 1]) {
                    least = m;
                    at = i;
                }
        if (least == MC_BPE_NONE) return count;
        ids[at] = bpe->merges[least].result;
        memmove(ids + at + 1, ids + at + 2, (count - at - 2) * sizeof *ids);
        count--;
    }
}

/* Random merges of what there is, in the order of making or any other. */
static void write_random_merges(bool ordered)
{
    enum { MADE = 60 };
    static char texts[4 + MADE][512], lines[MADE][1100];
    builder b = {0};
    int count = 4, tries = 0;
    for (int i = 0; i < 4; i++) snprintf(texts[i], sizeof texts[i], "%c", 'a' + i);
    add(&b, "{\"a\": 0, \"b\": 1, \"c\": 2, \"d\": 3");
    while (count < 4 + MADE && tries++ < 10000) {
        char made[1024];
        int left = (int)random_below((uint32_t)count), right = (int)random_below((uint32_t)count);
        snprintf(made, sizeof made, "%s%s", texts[left], texts[right]);
        bool known = strlen(made) > 40;
        for (int i = 0; i < count; i++) known = known || strcmp(texts[i], made) == 0;
        if (known) continue;
        snprintf(lines[count - 4], sizeof *lines, "%s %s\n", texts[left], texts[right]);
        snprintf(texts[count], sizeof *texts, "%.500s", made);
        add(&b, ", \"%s\": %d", made, count);
        count++;
    }
    add(&b, "}");
    write_built("vocab.json", &b);
    for (int i = 0; i < count - 4; i++) {
        int other = ordered ? i : (int)random_below((uint32_t)(count - 4));
        char line[1100];
        memcpy(line, lines[i], sizeof line);
        memcpy(lines[i], lines[other], sizeof line);
        memcpy(lines[other], line, sizeof line);
    }
    for (int i = 0; i < count - 4; i++) add(&b, "%s", lines[i]);
    write_built("merges.txt", &b);
}

static void check_random_words(const mc_bpe *bpe, mc_bpe_scratch *scratch)
{
    enum { LONGEST = 300 };
    for (int round = 0; round < 60; round++) {
        uint8_t word[LONGEST];
        int32_t got[LONGEST], expected[LONGEST];
        size_t size = 1 + random_below(LONGEST), count;
        uint32_t letters = 1 + random_below(5), run = 1 + random_below(20);
        for (size_t i = 0; i < size; i++) {
            bool again = i && random_below(run);
            word[i] = again ? word[i - 1] : (uint8_t)('a' + random_below(letters));
        }
        size_t known = 0; /* 'e' has no entry and is left out */
        for (size_t i = 0; i < size; i++)
            if (word[i] != 'e') expected[known++] = word[i] - 'a';
        known = merge_plainly(bpe, expected, known);
        assert_true(mc_bpe_merge_word(bpe, scratch, word, size, got, &count));
        assert_int_equal(count, known);
        assert_memory_equal(got, expected, count * sizeof *got);
    }
}

static void test_merges_against_a_plain_loop(void **state)
{
    (void)state;
    int unordered = 0;
    for (int v = 0; v < 40; v++) {
        mc_bpe_scratch scratch = {0};
        write_random_merges(v % 2 == 0);
        mc_tokenizer *tok = open_folder();
        if (v % 2 == 0) assert_true(tok->bpe.ordered);
        unordered += !tok->bpe.ordered;
        check_random_words(&tok->bpe, &scratch);
        mc_bpe_scratch_release(&scratch);
        mc_tokenizer_free(tok);
    }
    assert_true(unordered > 10);
}

/* Any bytes come back. */
static void test_random_bytes(void **state)
{
    (void)state;
    static const char *const bits[] = {"a",      "b",          " ",      "  ",
                                       "\n",     "ab",         "'s",     "\u00e9",
                                       "\u4e2d", "\U0001F600", "\u3000", "<|endoftext|>",
                                       "1",      "\u0663",     "aaaa"};
    mc_tokenizer *tok = open_small();
    mc_decode_options raw = {.raw_bytes = true};
    for (int round = 0; round < 20000; round++) {
        char text[600];
        size_t size = 0, wanted = random_below(round % 10 ? 40 : 500), got_size;
        while (size < wanted) {
            const char *bit = bits[random_below(sizeof bits / sizeof *bits)];
            if (round % 3 && random_below(3)) {
                memcpy(text + size, bit, strlen(bit));
                size += strlen(bit);
            } else {
                text[size++] = (char)random_below(256);
            }
        }
        char *exact = mc_malloc(size); /* nothing is read after the text */
        memcpy(exact, text, size);
        assert_int_equal(mc_tokenizer_encode(tok, exact, size, NULL, 0, 0, &encoding), MC_OK);
        mc_free(exact);
        char *got = mc_tokenizer_decode_sized(tok, encoding.ids, encoding.count, &raw, &got_size);
        assert_non_null(got);
        assert_int_equal(got_size, size);
        assert_memory_equal(got, text, size);
        mc_string_free(got);
    }
}

/* Words of megabytes, which a quadratic way would take hours for, and ctest's limit ends it. */
static void test_long_words(void **state)
{
    (void)state;
    static const char *const patterns[] = {"a",      " ",  "\n",   "ab",    "abc",
                                           "\u4e2d", "'",  "\xff", "1",     "<|endoftext|",
                                           "aaab",   "a'", " a",   "\u0301"};
    enum { SIZE = 1 << 22 };
    char *text = mc_malloc(SIZE);
    mc_tokenizer *tok = open_small();
    mc_decode_options raw = {.raw_bytes = true};
    assert_non_null(text);
    for (size_t p = 0; p < sizeof patterns / sizeof *patterns; p++) {
        size_t length = strlen(patterns[p]), size = 0;
        for (size_t i = 0; i < SIZE; i++) text[i] = patterns[p][i % length];
        encoding.count = 0;
        assert_int_equal(mc_tokenizer_append(tok, text, SIZE, &encoding), MC_OK);
        if (p == 0) assert_int_equal(encoding.count, SIZE / 4);
        char *back = mc_tokenizer_decode_sized(tok, encoding.ids, encoding.count, &raw, &size);
        assert_non_null(back);
        assert_int_equal(size, SIZE);
        assert_memory_equal(back, text, SIZE);
        mc_string_free(back);
    }
    mc_free(text);
}

/* ---- Special tokens, pairs, length ----------------------------------------------------------- */

static void test_special_tokens_in_text(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_small();
    assert_int_equal(mc_tokenizer_end_of_text_id(tok), END);
    expect_ids(tok, "<|endoftext|>", END, -1);
    expect_ids(tok, "ab<|endoftext|> a<|endoftext|>", AB, END, S_A, END, -1);
    expect_ids(tok, "a <|endoftext|>\n\n\na", 'a', SPACE, END, NN, '\n', 'a', -1);
    expect_ids(tok, "<|", '<', '|', -1);
    tok = open_json(
        PARTS ", \"added_tokens\": [{\"content\": \"<l>\", \"lstrip\": true, \"special\": true},"
              "{\"content\": \"<r>\", \"rstrip\": true, \"normalized\": false},"
              "{\"content\": \"ab\", \"single_word\": true},"
              "{\"content\": \"\\u0120x\", \"special\": true}]");
    expect_ids(tok, "a  <l> a<r>  a", 'a', ENTRIES, S_A, ENTRIES + 1, 'a', -1);
    expect_ids(tok, "ab abc ab", AB, SPACE, ABC, SPACE, AB, -1);
    expect_ids(tok, "\u0120x", ENTRIES + 2, -1);
    char *text = mc_tokenizer_decode(tok, (int32_t[]){ENTRIES + 2, ENTRIES, AB}, 3, false);
    assert_string_equal(text, " x<l>ab"); /* its letters stand for bytes, as in Hugging Face's */
    mc_string_free(text);
    assert_int_equal(mc_tokenizer_end_of_text_id(tok), END); /* an entry, no added token */
}

static void test_prefix_space(void **state)
{
    (void)state;
    mc_tokenizer *tok =
        open_json(PRE("true") ", " DECODER ", \"added_tokens\": [{\"content\": \"<x>\"}]");
    expect_ids(tok, "", -1);
    expect_ids(tok, "ac", S_A, 'c', -1);
    expect_ids(tok, " ac", S_A, 'c', -1);
    expect_ids(tok, "\nac", SPACE, '\n', 'a', 'c', -1);
    expect_ids(tok, "a<x>a", S_A, ENTRIES, S_A, -1);
}

static void test_templates(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_json(
        PARTS ", \"post_processor\": {\"type\": \"RobertaProcessing\", \"cls\": [\"a\", 97],"
              " \"sep\": [\"b\", 98]}");
    assert_int_equal(mc_tokenizer_encode(tok, "1", 1, "2", 1, 0, &encoding), MC_OK);
    static const int32_t pair[] = {'a', '1', 'b', 'b', '2', 'b'};
    assert_int_equal(encoding.count, 6);
    assert_memory_equal(encoding.ids, pair, sizeof pair);
    for (size_t i = 0; i < 6; i++) assert_int_equal(encoding.type_ids[i], 0);
    assert_int_equal(mc_tokenizer_cls_id(tok), 'a');
    assert_int_equal(mc_tokenizer_append(tok, "1", 1, &encoding), MC_OK); /* puts nothing around */
    assert_int_equal(encoding.count, 7);
    assert_int_equal(encoding.ids[6], '1');
    tok = open_json(PARTS ", \"post_processor\": {\"type\": \"ByteLevel\"}");
    assert_int_equal(mc_tokenizer_encode(tok, "1", 1, "2", 1, 0, &encoding), MC_OK);
    assert_int_equal(encoding.count, 2);
    assert_int_equal(encoding.type_ids[0], 0);
    assert_int_equal(encoding.type_ids[1], 1);
    assert_int_equal(mc_tokenizer_pad_id(tok), -1);
    assert_int_equal(mc_tokenizer_cls_id(tok), -1);
    assert_int_equal(mc_tokenizer_sep_id(tok), -1);
}

static void test_truncation(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_small();
    for (size_t max = 1; max < 8; max++) {
        assert_int_equal(mc_tokenizer_encode(tok, "a b a b a", 9, NULL, 0, max, &encoding), MC_OK);
        assert_int_equal(encoding.count, max < 7 ? max : 7);
    }
    assert_int_equal(mc_tokenizer_encode(tok, "1 2 3", 5, "4 5 6 7", 7, 6, &encoding), MC_OK);
    assert_int_equal(encoding.count, 6);
}

static void test_unknown_bytes(void **state)
{
    (void)state;
    write_text(temp_path(&folder, "vocab.json"), "{\"a\": 0, \"b\": 1, \"ab\": 2}");
    write_text(temp_path(&folder, "merges.txt"), "a b");
    expect_ids(open_folder(), "axb ?", 2, -1); /* left out, as in Hugging Face's */
    static const char model[] = "{" PARTS ", \"model\": {\"type\": \"BPE\", \"unk_token\": \"?\","
                                " \"fuse_unk\": %s, \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2,"
                                " \"?\": 3}, \"merges\": [\"a b\"]}}";
    char text[1024];
    snprintf(text, sizeof text, model, "false");
    write_text(temp_path(&folder, "tokenizer.json"), text);
    expect_ids(open_folder(), "axyabz", 0, 3, 3, 2, 3, -1);
    snprintf(text, sizeof text, model, "true");
    write_text(temp_path(&folder, "tokenizer.json"), text);
    expect_ids(open_folder(), "axyabz", 0, 3, 2, 3, -1);
}

/* ---- Streams and threads --------------------------------------------------------------------- */

static void test_append(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_small();
    assert_int_equal(mc_tokenizer_append(tok, "ab", 2, &encoding), MC_OK);
    assert_int_equal(mc_tokenizer_append(tok, "", 0, &encoding), MC_OK);
    assert_int_equal(mc_tokenizer_append(tok, NULL, 0, &encoding), MC_OK);
    assert_int_equal(mc_tokenizer_append(tok, "c<|endoftext|>", 14, &encoding), MC_OK);
    assert_int_equal(encoding.count, 3);
    assert_int_equal(encoding.ids[0], AB);
    assert_int_equal(encoding.ids[1], 'c');
    assert_int_equal(encoding.ids[2], END);
    assert_int_equal(mc_tokenizer_append(NULL, "a", 1, &encoding), MC_ERR_ARGUMENT);
    assert_int_equal(mc_tokenizer_append(tok, NULL, 1, &encoding), MC_ERR_ARGUMENT);
    assert_int_equal(mc_tokenizer_append(tok, "a", 1, NULL), MC_ERR_ARGUMENT);
    assert_int_equal(encoding.count, 3);
}

/* One encoding for two vocabularies: neither is answered from the other's words. */
static void test_two_tokenizers(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_small();
    expect_ids(tok, "abc", ABC, -1);
    write_text(temp_path(&folder, "merges.txt"), "a b\n");
    mc_tokenizer *other = open_folder();
    for (int i = 0; i < 3; i++) {
        expect_ids(other, "abc", AB, 'c', -1);
        expect_ids(tok, "abc", ABC, -1);
    }
}

static void check_cuts(const mc_tokenizer *tok, const char *text, size_t size)
{
    mc_encoding parts = {0};
    size_t chunk = 1 + random_below(30);
    for (size_t at = 0, next; at < size; at = next) {
        next = at + mc_tokenizer_cut(tok, text + at, size - at, chunk);
        assert_true(next > at && next <= size);
        assert_int_equal(mc_tokenizer_append(tok, text + at, next - at, &parts), MC_OK);
    }
    encoding.count = 0;
    assert_int_equal(mc_tokenizer_append(tok, text, size, &encoding), MC_OK);
    assert_int_equal(parts.count, encoding.count);
    if (parts.count) assert_memory_equal(parts.ids, encoding.ids, parts.count * sizeof *parts.ids);
    mc_encoding_release(&parts);
}

static void check_random_cuts(const mc_tokenizer *tok)
{
    static const char *const bits[] = {"a",
                                       "ab",
                                       " ",
                                       "  ",
                                       "\n",
                                       "\t",
                                       "'s",
                                       "\u00a0",
                                       "!!",
                                       "12",
                                       "\xe4\xb8",
                                       "\u3000",
                                       "<|endoftext|>",
                                       "<l>",
                                       "<s p>",
                                       "\r",
                                       "\u2003",
                                       "\u00e9"};
    for (int round = 0; round < 3000; round++) {
        char text[400];
        size_t size = 0, count = random_below(40);
        for (size_t i = 0; i < count; i++) {
            const char *bit = bits[random_below(sizeof bits / sizeof *bits)];
            memcpy(text + size, bit, strlen(bit));
            size += strlen(bit);
        }
        check_cuts(tok, text, size);
    }
}

static void test_cuts(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_small();
    assert_int_equal(mc_tokenizer_cut(tok, "ab cd", 5, 0), 2);
    assert_int_equal(mc_tokenizer_cut(tok, "ab cd", 5, 3), 5);
    assert_int_equal(mc_tokenizer_cut(tok, "ab  cd ", 7, 3), 6);
    assert_int_equal(mc_tokenizer_cut(tok, "ab\ncd", 5, 1), 2);
    assert_int_equal(mc_tokenizer_cut(tok, "abcd", 4, 1), 4);
    check_random_cuts(tok);
    check_random_cuts(open_json(PRE("true") ", " DECODER));
    check_random_cuts(open_json(PARTS
                                ", \"added_tokens\": [{\"content\": \"<l>\", \"lstrip\": true},"
                                "{\"content\": \"ab\", \"single_word\": true}]"));
    tok = open_json(PARTS ", \"added_tokens\": [{\"content\": \"<s p>\"}]");
    assert_int_equal(mc_tokenizer_cut(tok, "ab cd", 5, 0), 5);
    check_random_cuts(tok);
    check_random_cuts(open_json(PARTS ", \"added_tokens\": [{\"content\": \"<l>\", \"rstrip\":"
                                      " true}]"));
}

static void test_threads(void **state)
{
    (void)state;
    static const int32_t ids[] = {S_A, 'c', NN, '\n', ABC, Q_S, END, AAAA, 'a'};
    check_threads(open_small(), " ac\n\n\nabc's<|endoftext|>aaaaa", ids, sizeof ids / sizeof *ids);
}

/* ---- Decoding -------------------------------------------------------------------------------- */

static void expect_decoded(const mc_tokenizer *tok, bool skip, const char *expected, size_t size,
                           ...)
{
    int32_t ids[32];
    size_t count = 0, got_size;
    va_list args;
    va_start(args, size);
    while (count < 32 && (ids[count] = va_arg(args, int)) >= 0) count++;
    va_end(args);
    mc_decode_options options = {.skip_special = skip};
    char *text = mc_tokenizer_decode_sized(tok, ids, count, &options, &got_size);
    assert_non_null(text);
    assert_int_equal(got_size, size);
    assert_memory_equal(text, expected, size + 1);
    mc_string_free(text);
    text = mc_tokenizer_decode(tok, ids, count, skip);
    assert_memory_equal(text, expected, size + 1);
    mc_string_free(text);
}

static void test_decode(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_small();
    expect_decoded(tok, false, "", 0, -1);
    expect_decoded(tok, false, " abc's\n\n", 8, SPACE, ABC, Q_S, NN, -1);
    expect_decoded(tok, false, "a<|endoftext|>b", 15, 'a', END, 'b', -1);
    expect_decoded(tok, true, "ab", 2, 'a', END, 'b', -1);
    expect_decoded(tok, false, "a\0b", 3, 'a', 0, 'b', -1);
    expect_decoded(tok, false, "\u4e2d", 3, 0xE4, 0xB8, 0xAD, -1);
    /* one U+FFFD for what could have begun a character, one each for what could not */
    expect_decoded(tok, false, "\ufffda", 4, 0xE4, 0xB8, 'a', -1);
    expect_decoded(tok, false, "a\ufffd\ufffd", 7, 'a', 0xFF, 0x80, -1);
    expect_decoded(tok, false, "\ufffd\ufffd\ufffd", 9, 0xED, 0xA0, 0x80, -1);
    char *text = mc_tokenizer_decode(tok, (int32_t[]){'a', ENTRIES, -1, 'b'}, 4, false);
    assert_string_equal(text, "ab"); /* ids out of range are passed over */
    mc_string_free(text);
}

static void test_strict_decode(void **state)
{
    (void)state;
    size_t size;
    mc_tokenizer *tok = open_small();
    mc_decode_options raw = {.raw_bytes = true};
    char *text = mc_tokenizer_decode_sized(tok, (int32_t[]){'a', 0xFF, 0xE4}, 3, &raw, &size);
    assert_int_equal(size, 3);
    assert_memory_equal(text, "a\xff\xe4", 4);
    mc_string_free(text);
    text = mc_tokenizer_decode_sized(tok, (int32_t[]){'a'}, 1, NULL, NULL);
    assert_string_equal(text, "a");
    mc_string_free(text);
    static const int32_t wrong[] = {ENTRIES, -1, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; i++) {
        int32_t ids[] = {'a', 'b', wrong[i]};
        assert_null(mc_tokenizer_decode_sized(tok, ids, 3, NULL, &size));
        assert_int_equal(mc_error_status(ctx), MC_ERR_ARGUMENT);
        assert_non_null(strstr(mc_error_message(ctx), "place 2 of 3"));
        mc_clear_error(ctx);
        raw.skip_unknown = true;
        text = mc_tokenizer_decode_sized(tok, ids, 3, &raw, &size);
        assert_true(size == 2 && strcmp(text, "ab") == 0);
        mc_string_free(text);
    }
    assert_null(mc_tokenizer_decode_sized(NULL, NULL, 0, NULL, NULL));
}

/* ---- Files ----------------------------------------------------------------------------------- */

static void test_lookup(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_small();
    assert_int_equal(mc_tokenizer_vocab_size(tok), ENTRIES);
    assert_int_equal(mc_tokenizer_token_to_id(tok, "\u0120ab"), S_AB);
    assert_int_equal(mc_tokenizer_token_to_id(tok, " ab"), -1);
    for (int32_t id = 0; id < ENTRIES; id++)
        assert_int_equal(mc_tokenizer_token_to_id(tok, mc_tokenizer_id_to_token(tok, id)), id);
    assert_null(mc_tokenizer_id_to_token(tok, ENTRIES));
    assert_int_equal(mc_tokenizer_end_of_text_id(NULL), -1);
    for (int byte = 0; byte < 256; byte++)
        assert_int_equal(mc_bpe_byte_of(mc_bpe_letter_of((uint8_t)byte)), byte);
    static const uint32_t no_letters[] = {0, ' ', 127, 160, 173, 324, 0x10FFFF};
    for (size_t i = 0; i < sizeof no_letters / sizeof *no_letters; i++)
        assert_int_equal(mc_bpe_byte_of(no_letters[i]), -1);
    mc_tokenizer_options lower = {MC_LOWERCASE_YES}, cased = {MC_LOWERCASE_NO};
    assert_non_null(mc_tokenizer_open(ctx, folder.path, &cased));
    assert_null(mc_tokenizer_open(ctx, folder.path, &lower));
    assert_int_equal(mc_error_status(ctx), MC_ERR_UNSUPPORTED);
}

static void test_configuration(void **state)
{
    (void)state;
    write_text(temp_path(&folder, "added_tokens.json"),
               "{\"<y>\": 266, \"<x>\": 265, \"ab\": 256}");
    write_text(temp_path(&folder, "special_tokens_map.json"),
               "{\"pad_token\": \"<y>\", \"eos_token\": {\"content\": \"<e>\", \"lstrip\": true}}");
    mc_tokenizer *tok = open_small();
    expect_ids(tok, "<x><y> <e>a", ENTRIES, ENTRIES + 1, ENTRIES + 2, 'a', -1);
    assert_int_equal(mc_tokenizer_end_of_text_id(tok), ENTRIES + 2);
    assert_int_equal(mc_tokenizer_pad_id(tok), ENTRIES + 1);
    expect_decoded(tok, true, "<x>", 3, ENTRIES, ENTRIES + 1, ENTRIES + 2, END, -1);
    write_text(temp_path(&folder, "tokenizer_config.json"),
               "{\"add_prefix_space\": true, \"tokenizer_class\": \"GPT2Tokenizer\","
               " \"eos_token\": \"<|endoftext|>\", \"additional_special_tokens\": [\"<z>\"],"
               " \"added_tokens_decoder\": {\"265\": {\"content\": \"<w>\", \"special\": true}}}");
    tok = open_folder();
    /* its list of added tokens counts alone */
    expect_ids(tok, "a<w>a<z>", S_A, ENTRIES, S_A, ENTRIES + 1, -1);
    assert_int_equal(mc_tokenizer_end_of_text_id(tok), END);
}

static void test_both_forms_of_merges(void **state)
{
    (void)state;
    for (int pairs = 0; pairs < 2; pairs++) {
        write_json(PARTS, "", pairs);
        expect_ids(open_folder(), "aab ac", 'a', AB, S_A, 'c', -1);
    }
    /* a model that does not say its type, and line ends of the other kind */
    write_text(temp_path(&folder, "tokenizer.json"),
               "{" PARTS ", \"model\": {\"vocab\": {\"a\": 0, \"aa\": 1}, \"merges\": [\"a a\"]}}");
    expect_ids(open_folder(), "aaa", 1, 0, -1);
    unlink(temp_path(&folder, "tokenizer.json"));
    write_text(temp_path(&folder, "vocab.json"), "{\"a\": 0, \"aa\": 1}");
    write_text(temp_path(&folder, "merges.txt"), "#version: 0.2\r\na a\r\n\r\n");
    expect_ids(open_folder(), "aaa", 1, 0, -1);
    write_text(temp_path(&folder, "merges.txt"), ""); /* no merges are no mistake */
    expect_ids(open_folder(), "aaa", 0, 0, 0, -1);
}

static void test_bad_files(void **state)
{
    (void)state;
    static const struct {
        const char *vocab, *merges, *part;
    } cases[] = {
        {"", "", "vocab.json"},
        {"[1]", "", "vocab.json"},
        {"{\"a\": 0,\n\"b\" 1}", "", "vocab.json:2"},
        {"{}", "", "vocab.json: 0 entries"},
        {"{\"a\": 0, \"b\": 0}", "", "\"a\" and \"b\" both have id 0"},
        {"{\"a\": 0, \"a\": 1}", "", "\"a\" has two ids, 0 and 1"},
        {"{\"a\": 0, \"b\": 2}", "", "no entry has id 1"},
        {"{\"a\": 0, \"b\": -1}", "", "\"b\": expected an id"},
        {"{\"a\": 0, \"b\": 1.5}", "", "\"b\": expected an id"},
        {"{\"a\": 0, \"b\": \"1\"}", "", "\"b\": expected an id"},
        {"{\"a\": 0, \"\": 1}", "", "empty entry of id 1"},
        {"{\"a\": 0}", "#version: 0.2\na b\n", "merges.txt:2: the vocabulary has no entry \"b\""},
        {"{\"a\": 0}", "b a\n", "merges.txt:1: the vocabulary has no entry \"b\""},
        {"{\"a\": 0}", "a a\n", "merges.txt:1: the vocabulary has no entry \"aa\""},
        {"{\"a\": 0, \"aa\": 1}", "a a\na a\n", "merges.txt:2: merge \"a a\" stands on line 1"},
        {"{\"a\": 0, \"aa\": 1}", "a a\n\na a\n", "merges.txt:2: expected two tokens"},
        {"{\"a\": 0, \"aa\": 1}", "aa\n", "merges.txt:1: expected two tokens"},
        {"{\"a\": 0, \"aa\": 1}", "a a a\n", "merges.txt:1: expected two tokens"},
        {"{\"a\": 0, \"aa\": 1}", " a\n", "merges.txt:1: expected two tokens"},
        {"{\"a\": 0, \"aa\": 1}", "a \n", "merges.txt:1: expected two tokens"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text(temp_path(&folder, "vocab.json"), cases[i].vocab);
        write_text(temp_path(&folder, "merges.txt"), cases[i].merges);
        expect_failure(MC_ERR_FORMAT, cases[i].part);
    }
    write_files();
    unlink(temp_path(&folder, "merges.txt"));
    assert_null(mc_tokenizer_from_pretrained(ctx, folder.path));
    assert_non_null(strstr(mc_error_message(ctx), "merges.txt"));
}

static void test_bad_configuration(void **state)
{
    (void)state;
    static const struct {
        mc_status status;
        const char *name, *text, *part;
    } cases[] = {
        {MC_ERR_FORMAT, "tokenizer_config.json", "{\"add_prefix_space\": 1}", "add_prefix_space"},
        {MC_ERR_FORMAT, "tokenizer_config.json", "{\"eos_token\": 3}", "tokenizer_config.json"},
        {MC_ERR_FORMAT, "tokenizer_config.json", "{\"additional_special_tokens\": 3}",
         "additional_special_tokens"},
        {MC_ERR_UNSUPPORTED, "tokenizer_config.json", "{\"tokenizer_class\": \"CLIPTokenizer\"}",
         "\"CLIPTokenizer\""},
        {MC_ERR_FORMAT, "tokenizer_config.json",
         "{\"add_bos_token\": true, \"bos_token\": \"<b>\"}", "no entry \"<b>\""},
        {MC_ERR_UNSUPPORTED, "tokenizer_config.json", "{\"split_special_tokens\": true}",
         "key \"split_special_tokens\": true is not supported, expected false"},
        {MC_ERR_FORMAT, "special_tokens_map.json", "{\"pad_token\": {}}", "\"content\""},
        {MC_ERR_FORMAT, "special_tokens_map.json", "{", "special_tokens_map.json"},
        {MC_ERR_FORMAT, "added_tokens.json", "{\"x\": \"y\"}",
         "\"x\": expected a token and its id"},
        {MC_ERR_FORMAT, "added_tokens.json", "[]", "added_tokens.json"},
    };
    write_files();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text(temp_path(&folder, cases[i].name), cases[i].text);
        expect_failure(cases[i].status, cases[i].part);
        unlink(temp_path(&folder, cases[i].name));
    }
}

#define MODEL(rest) "{" PARTS ", \"model\": {\"type\": \"BPE\", " rest "}}"
#define SMALL "\"vocab\": {\"a\": 0, \"aa\": 1}, \"merges\": [\"a a\"]"

static void test_bad_json(void **state)
{
    (void)state;
    static const struct {
        mc_status status;
        const char *text, *part;
    } cases[] = {
        {MC_ERR_UNSUPPORTED, "{" PRE("false") ", \"model\": {\"type\": \"BPE\"}}",
         "decoder is of type \"null\""},
        {MC_ERR_UNSUPPORTED, "{" DECODER ", \"model\": {\"type\": \"BPE\"}}",
         "pre_tokenizer is of type \"null\""},
        {MC_ERR_UNSUPPORTED,
         "{\"pre_tokenizer\": {\"type\": \"Whitespace\"}, \"model\": {\"type\": \"BPE\"}}",
         "\"Whitespace\""},
        {MC_ERR_FORMAT,
         "{\"pre_tokenizer\": {\"type\": \"ByteLevel\"}, " DECODER
         ", \"model\": {\"type\": \"BPE\"}}",
         "\"add_prefix_space\""},
        {MC_ERR_UNSUPPORTED,
         "{\"normalizer\": {\"type\": \"Lowercase\"}, " PARTS ", \"model\": {\"type\": \"BPE\"}}",
         "normalizer is of type \"Lowercase\""},
        {MC_ERR_UNSUPPORTED,
         "{\"post_processor\": {\"type\": \"Sequence\"}, " PARTS
         ", \"model\": {\"type\": \"BPE\", " SMALL "}}",
         "post_processor is of type \"Sequence\""},
        {MC_ERR_FORMAT, MODEL("\"vocab\": [], \"merges\": []"), "\"vocab\""},
        {MC_ERR_FORMAT, MODEL("\"vocab\": {\"a\": 0}"), "\"merges\""},
        {MC_ERR_FORMAT, MODEL("\"vocab\": {\"a\": 0, \"b\": 2}, \"merges\": []"), "has id 1"},
        {MC_ERR_FORMAT, MODEL("\"vocab\": {\"a\": 0}, \"merges\": [[\"a\", \"a\"]]"),
         "merges[0]: the vocabulary has no entry \"aa\""},
        {MC_ERR_FORMAT, MODEL("\"vocab\": {\"a\": 0, \"aa\": 1}, \"merges\": [\"a a\", [\"a\"]]"),
         "merges[1]: expected"},
        {MC_ERR_FORMAT, MODEL("\"vocab\": {\"a\": 0, \"aa\": 1}, \"merges\": [\"a a\", 7]"),
         "merges[1]: expected"},
        {MC_ERR_FORMAT,
         MODEL("\"vocab\": {\"a\": 0, \"aa\": 1}, \"merges\": [\"a a\", [\"a\", \"a\"]]"),
         "merges[1]: \"a a\" is merges[0] already"},
        {MC_ERR_FORMAT, MODEL(SMALL ", \"unk_token\": \"u\""), "no entry \"u\""},
        {MC_ERR_UNSUPPORTED, MODEL(SMALL ", \"dropout\": 0.1"), "\"dropout\""},
        {MC_ERR_UNSUPPORTED, MODEL(SMALL ", \"end_of_word_suffix\": \"</w>\""), "suffix"},
        {MC_ERR_UNSUPPORTED, MODEL(SMALL ", \"continuing_subword_prefix\": \"##\""), "prefix"},
        {MC_ERR_UNSUPPORTED, MODEL(SMALL ", \"byte_fallback\": true"), "\"byte_fallback\""},
        {MC_ERR_FORMAT, MODEL(SMALL ", \"ignore_merges\": 1"), "\"ignore_merges\""},
        {MC_ERR_FORMAT, MODEL(SMALL ", \"fuse_unk\": 1"), "\"fuse_unk\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text(temp_path(&folder, "tokenizer.json"), cases[i].text);
        expect_failure(cases[i].status, cases[i].part);
    }
    write_text(temp_path(&folder, "tokenizer.json"), MODEL(SMALL));
    open_folder();
}

static void expect_same(const mc_tokenizer *a, const mc_tokenizer *b)
{
    static const char text[] = "aab  ac's\n\n\n <x> ab<|endoftext|> \xff\u00e9";
    mc_encoding other = {0};
    assert_int_equal(mc_tokenizer_encode(a, text, sizeof text, "a", 1, 0, &encoding), MC_OK);
    assert_int_equal(mc_tokenizer_encode(b, text, sizeof text, "a", 1, 0, &other), MC_OK);
    assert_int_equal(encoding.count, other.count);
    assert_memory_equal(encoding.ids, other.ids, other.count * sizeof *other.ids);
    assert_memory_equal(encoding.type_ids, other.type_ids, other.count);
    assert_int_equal(mc_tokenizer_vocab_size(a), mc_tokenizer_vocab_size(b));
    assert_int_equal(mc_tokenizer_end_of_text_id(a), mc_tokenizer_end_of_text_id(b));
    mc_encoding_release(&other);
}

static void test_save(void **state)
{
    (void)state;
    char target[1024], path[1100];
    snprintf(target, sizeof target, "%s/deep/er", folder.path);
    mc_tokenizer *tok = open_small();
    assert_int_equal(mc_tokenizer_save(tok, target), MC_OK);
    assert_int_equal(count_files(target), 4);
    expect_same(tok, mc_tokenizer_from_pretrained(ctx, target));
    snprintf(path, sizeof path, "%s/tokenizer.json", target);
    assert_int_equal(unlink(path), 0); /* the other files alone say the same */
    expect_same(tok, mc_tokenizer_from_pretrained(ctx, target));

    tok = open_json(
        PRE("true") ", " DECODER
                    ", \"added_tokens\": [{\"content\": \"<x>\", \"rstrip\": true, \"special\":"
                    " true}], \"post_processor\": {\"type\": \"RobertaProcessing\", \"cls\":"
                    " [\"a\", 97], \"sep\": [\"b\", 98]}");
    assert_int_equal(mc_tokenizer_save(tok, target), MC_OK);
    expect_same(tok, mc_tokenizer_from_pretrained(ctx, target));
    assert_false(mc_failed(ctx));
    assert_int_not_equal(mc_tokenizer_save(tok, temp_path(&folder, "vocab.json")), MC_OK);
    assert_true(mc_failed(ctx));
}

/* Merges that a line cannot hold are written to tokenizer.json only. */
static void test_save_of_odd_merges(void **state)
{
    (void)state;
    char target[1024];
    snprintf(target, sizeof target, "%s/saved", folder.path);
    write_text(temp_path(&folder, "tokenizer.json"),
               MODEL("\"vocab\": {\"a\": 0, \" \": 1, \"a \": 2}, \"merges\": [[\"a\", \" \"]]"));
    mc_tokenizer *tok = open_folder();
    assert_int_equal(mc_tokenizer_save(tok, target), MC_OK);
    assert_int_equal(count_files(target), 2);
    assert_non_null(mc_tokenizer_from_pretrained(ctx, target));
}

/* ---- Memory ---------------------------------------------------------------------------------- */

#ifdef MC_FAULT_INJECTION
/* Opens, encodes, decodes and saves; whether all went well. */
static bool do_everything(const char *text, size_t size, const char *to)
{
    mc_encoding own = {0};
    mc_decode_options options = {0};
    mc_tokenizer *tok = mc_tokenizer_from_pretrained(ctx, folder.path);
    assert_int_equal(tok == NULL, mc_failed(ctx));
    if (!tok) return false;
    mc_status status = mc_tokenizer_append(tok, text, size, &own);
    assert_true(!status || (status == MC_ERR_NOMEM && own.count == 0));
    char *decoded = mc_tokenizer_decode_sized(tok, own.ids, own.count, &options, NULL);
    assert_int_equal(decoded == NULL, mc_failed(ctx));
    mc_status saved = mc_tokenizer_save(tok, to);
    assert_int_equal(saved != MC_OK, mc_failed(ctx));
    bool good = !status && decoded && !saved;
    mc_string_free(decoded);
    mc_encoding_release(&own);
    mc_tokenizer_free(tok);
    return good;
}

static void expect_clean_failures(void)
{
    enum { LONG = 200, SIZE = 3 * LONG };
    static char text[SIZE], target[1024];
    snprintf(target, sizeof target, "%s/saved", folder.path);
    memset(text, 'a', LONG);
    for (int i = LONG; i < SIZE; i++) text[i] = "ab\xff <"[i % 5];
    long n = 0;
    for (bool good = false; !good; n++) {
        mc_fault_fail_at(n + 1, n % 2 == 0);
        good = do_everything(text, SIZE, target);
        mc_fault_fail_at(0, false);
        assert_int_equal(mc_error_status(ctx), mc_failed(ctx) ? MC_ERR_NOMEM : MC_OK);
        mc_clear_error(ctx);
        assert_true(n < 100000);
    }
    assert_true(n > 30);
}

static void test_allocation_failures(void **state)
{
    (void)state;
    write_text(temp_path(&folder, "vocab.json"),
               "{\"a\": 0, \"b\": 1, \"ab\": 2, \"aa\": 3, \"\\u00ff\": 4, \"\\u0120\": 5}");
    write_text(temp_path(&folder, "merges.txt"), "a b\na a\n");
    write_text(temp_path(&folder, "tokenizer_config.json"), "{\"eos_token\": \"<e>\"}");
    write_text(temp_path(&folder, "added_tokens.json"), "{\"<x>\": 6}");
    expect_clean_failures();
    write_text(temp_path(&folder, "merges.txt"), "aa b\na a\na b\n"); /* in another order */
    write_text(temp_path(&folder, "vocab.json"),
               "{\"a\": 0, \"b\": 1, \"ab\": 2, \"aa\": 3, \"aab\": 4, \"\\u0120\": 5}");
    expect_clean_failures();
    unlink(temp_path(&folder, "tokenizer_config.json"));
    write_files(); /* with all bytes */
    expect_clean_failures();
    write_text(temp_path(&folder, "tokenizer.json"),
               "{" PRE("true") ", " DECODER ", \"added_tokens\": [{\"content\": \"<x>\"}],"
                               " \"model\": {\"type\": \"BPE\", \"unk_token\": \"a\", " SMALL "}}");
    expect_clean_failures();
}

static void test_steady_state(void **state)
{
    (void)state;
    static const char text[] = " ac\n\nabc's<|endoftext|>aaaaa";
    mc_tokenizer *tok = open_small();
    for (int i = 0; i < 100; i++) {
        if (i == 1) mc_fault_fail_at(0, false);
        encoding.count = 0;
        assert_int_equal(mc_tokenizer_append(tok, text, strlen(text), &encoding), MC_OK);
    }
    assert_int_equal(mc_fault_count(), 0);
}
#endif

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_goldens),
        TEST(test_real_files_agree),
        TEST(test_words),
        TEST(test_merges_against_a_plain_loop),
        TEST(test_random_bytes),
        TEST(test_long_words),
        TEST(test_special_tokens_in_text),
        TEST(test_prefix_space),
        TEST(test_templates),
        TEST(test_truncation),
        TEST(test_unknown_bytes),
        TEST(test_append),
        TEST(test_two_tokenizers),
        TEST(test_cuts),
        TEST(test_threads),
        TEST(test_decode),
        TEST(test_strict_decode),
        TEST(test_lookup),
        TEST(test_configuration),
        TEST(test_both_forms_of_merges),
        TEST(test_bad_files),
        TEST(test_bad_configuration),
        TEST(test_bad_json),
        TEST(test_save),
        TEST(test_save_of_odd_merges),
#ifdef MC_FAULT_INJECTION
        TEST(test_allocation_failures),
        TEST(test_steady_state),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
