/* Small tokenizers of each style of prompt, in which nearly every character is a token, so that the
 * ids of a prompt can be counted by hand. Include after cmocka.h.
 *
 *   decoder   byte-level BPE: '!' to '~' are 0 to 93, a space 94, and with the space before it
 *             " N" 95, " Y" 96, " M" 97, " 1" 98, " 2" 99; <|endoftext|> 100
 *   t5        Unigram: <pad> 0, </s> 1, <unk> 2, a space 3, '!' to '~' 4 to 97, and with the space
 *             before them "No" 98, "Yes" 99, "Maybe" 100, "1" 101, "2" 102; <extra_id_0> 103,
 *             <extra_id_1> 104
 *   cpm1      the lines of cpm1_words; cpm2 those of cpm2_words */
#ifndef MC_TESTS_BENCHMARK_TEST_H
#define MC_TESTS_BENCHMARK_TEST_H

#include "tests/tokenizers/jieba_test.h"

enum { T_SPACE = 94, T_N, T_Y, T_M, T_1, T_2, T_END };
enum { U_EOS = 1, U_SPACE = 3, U_NO = 98, U_YES, U_MAYBE, U_1, U_2, U_BLANK, U_BLANK_1 };

/* The id of a printable character. */
#define T(c) ((c) - '!')
#define U(c) ((c) - '!' + 4)

static inline FILE *create(const temp_folder *folder, const char *name, const char *file)
{
    char path[1400];
    mkdir(temp_path(folder, name), 0777);
    snprintf(path, sizeof path, "%s/%s", temp_path(folder, name), file);
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    return out;
}

/* Writes a character as a JSON string. */
static inline void put_character(FILE *out, char c)
{
    fprintf(out, c == '"' || c == '\\' ? "\"\\%c\"" : "\"%c\"", c);
}

static inline void write_decoder_tokenizer(const temp_folder *folder, const char *name)
{
    static const char behind_space[] = "NYM12";
    FILE *out = create(folder, name, "vocab.json");
    fputc('{', out);
    for (char c = '!'; c <= '~'; c++) {
        put_character(out, c);
        fprintf(out, ": %d, ", c - '!');
    }
    fprintf(out, "\"\u0120\": %d", T_SPACE);
    for (int i = 0; behind_space[i]; i++)
        fprintf(out, ", \"\u0120%c\": %d", behind_space[i], T_N + i);
    fprintf(out, ", \"<|endoftext|>\": %d}", T_END);
    fclose(out);
    out = create(folder, name, "merges.txt");
    for (int i = 0; behind_space[i]; i++) fprintf(out, "\u0120 %c\n", behind_space[i]);
    fclose(out);
}

static const char t5_rest[] =
    "\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"\u2581\", "
    "\"add_prefix_space\": true}, \"decoder\": {\"type\": \"Metaspace\", \"replacement\": "
    "\"\u2581\", \"add_prefix_space\": true}, \"post_processor\": {\"type\": "
    "\"TemplateProcessing\", \"single\": [{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, "
    "{\"SpecialToken\": {\"id\": \"</s>\", \"type_id\": 0}}], \"pair\": [{\"Sequence\": {\"id\": "
    "\"A\", \"type_id\": 0}}, {\"SpecialToken\": {\"id\": \"</s>\", \"type_id\": 0}}, "
    "{\"Sequence\": {\"id\": \"B\", \"type_id\": 0}}, {\"SpecialToken\": {\"id\": \"</s>\", "
    "\"type_id\": 0}}], \"special_tokens\": {\"</s>\": {\"id\": \"</s>\", \"ids\": [1], "
    "\"tokens\": [\"</s>\"]}}}}";

static inline void put_added(FILE *out, int id, const char *text, const char *comma)
{
    fprintf(out,
            "{\"id\": %d, \"content\": \"%s\", \"single_word\": false, \"lstrip\": false, "
            "\"rstrip\": false, \"normalized\": false, \"special\": true}%s",
            id, text, comma);
}

static inline void write_t5_tokenizer(const temp_folder *folder, const char *name)
{
    static const char *const words[] = {"No", "Yes", "Maybe", "1", "2"};
    FILE *out = create(folder, name, "tokenizer.json");
    fputs("{\"version\": \"1.0\", \"added_tokens\": [", out);
    put_added(out, 0, "<pad>", ", ");
    put_added(out, 1, "</s>", ", ");
    put_added(out, 2, "<unk>", ", ");
    put_added(out, U_BLANK, "<extra_id_0>", ", ");
    put_added(out, U_BLANK_1, "<extra_id_1>", "], ");
    fputs("\"normalizer\": null, \"model\": {\"type\": \"Unigram\", \"unk_id\": 2, \"vocab\": "
          "[[\"<pad>\", 0], [\"</s>\", 0], [\"<unk>\", 0], [\"\u2581\", -4]",
          out);
    for (char c = '!'; c <= '~'; c++) {
        fputs(", [", out);
        put_character(out, c);
        fputs(", -5]", out);
    }
    for (int i = 0; i < 5; i++) fprintf(out, ", [\"\u2581%s\", -3]", words[i]);
    fprintf(out, "]}, %s", t5_rest);
    fclose(out);
}

static const char cpm1_words[] = "<pad>\n<s>\n</s>\n<sep>\n<eod>\n<unk>\n<mask>\n</n>\n</_>\n"
                                 "\"\n\u4e0e\n\u7684\n\u5173\u7cfb\n\u662f\n:\n\u3002\n"
                                 "\u65e0\u5173\n\u6709\u5173\n\u732b\n\u72d7\n\u5927\n";
enum { C1_S = 1, C1_EOD = 4, C1_QUOTE = 9, C1_AND, C1_OF, C1_RELATION, C1_IS, C1_COLON, C1_STOP };
enum { C1_UNRELATED = 16, C1_RELATED, C1_CAT, C1_DOG, C1_BIG };
static const char cpm2_words[] =
    "<unk>\n<s>\n</s>\n\u2583\n<sep>\n<pad>\n<mask>\n<eod>\n\u2581\n\u201c\n\u2582\n\u201d\n"
    "\u4e0e\n\u662f\u5426\n\u6709\u5173\n\uff1f\n\u5426\n\u662f\n\u732b\n\u72d7\n\u5927\n<s_0>\n";
enum { C2_OPEN = 9, C2_CLOSE = 11, C2_AND, C2_WHETHER, C2_RELATED, C2_ASK, C2_NO, C2_YES };
enum { C2_CAT = 18, C2_DOG, C2_BIG, C2_BLANK };

/* A dictionary with the words of the prompts, and the vocabulary. */
static inline void write_cpm_tokenizer(const temp_folder *folder, const char *name,
                                       const char *words)
{
    char path[1400];
    write_jieba(folder, "jieba");
    snprintf(path, sizeof path, "%s/dict.txt", temp_path(folder, "jieba"));
    write_text(path, "\u65e0\u5173 90 n\n\u6709\u5173 90 n\n\u5173\u7cfb 90 n\n\u662f\u5426 90 n\n"
                     "\u662f 90 v\n\u5426 90 v\n\u7684 90 u\n\u4e0e 90 c\n\u732b 90 n\n"
                     "\u72d7 90 n\n\u5927 90 a\n");
    FILE *out = create(folder, name, "vocab.txt");
    fputs(words, out);
    fclose(out);
}

#endif
