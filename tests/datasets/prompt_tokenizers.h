/* Tokenizers of a few letters for the families that generate, whose ids tests can name: a, b, c, d
 * are 0 to 3 of GPT-2's, 3 to 6 of T5's, 9 to 12 of CPM's, 1 to 4 of GLM's. Include after
 * cmocka.h. */
#ifndef MC_TESTS_PROMPT_TOKENIZERS_H
#define MC_TESTS_PROMPT_TOKENIZERS_H

#include "datasets/prompt.h"
#include "tests/tokenizers/jieba_test.h"

static const char gpt2_json[] =
    "{\"a\": 0, \"b\": 1, \"c\": 2, \"d\": 3, \"\xC4\xA0\": 4, \"<|endoftext|>\": 5}";
static const char t5_json[] =
    "{\"version\": \"1.0\", \"added_tokens\": ["
    "{\"id\": 0, \"content\": \"<pad>\", \"special\": true, \"single_word\": false, \"lstrip\": "
    "false, \"rstrip\": false, \"normalized\": false},"
    "{\"id\": 1, \"content\": \"</s>\", \"special\": true, \"single_word\": false, \"lstrip\": "
    "false, \"rstrip\": false, \"normalized\": false},"
    "{\"id\": 7, \"content\": \"<extra_id_0>\", \"special\": true, \"single_word\": false, "
    "\"lstrip\": false, \"rstrip\": false, \"normalized\": false}],"
    "\"normalizer\": null, \"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": "
    "\"\xE2\x96\x81\", \"prepend_scheme\": \"never\", \"split\": true},"
    "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": {\"id\": "
    "\"A\", \"type_id\": 0}}, {\"SpecialToken\": {\"id\": \"</s>\", \"type_id\": 0}}], \"pair\": "
    "[{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, {\"SpecialToken\": {\"id\": \"</s>\", "
    "\"type_id\": 0}}, {\"Sequence\": {\"id\": \"B\", \"type_id\": 0}}, {\"SpecialToken\": "
    "{\"id\": "
    "\"</s>\", \"type_id\": 0}}], \"special_tokens\": {\"</s>\": {\"id\": \"</s>\", \"ids\": [1], "
    "\"tokens\": [\"</s>\"]}}}, \"decoder\": null,"
    "\"model\": {\"type\": \"Unigram\", \"unk_id\": 2, \"vocab\": [[\"<pad>\", 0.0], [\"</s>\", "
    "0.0], [\"<unk>\", 0.0], [\"a\", -1.0], [\"b\", -1.0], [\"c\", -1.0], [\"d\", -1.0], "
    "[\"<extra_id_0>\", 0.0]]}}";
#define GLM_TOKEN(id, text)                                                             \
    "{\"id\": " #id ", \"content\": \"" text "\", \"special\": true, \"single_word\": " \
    "false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false}"
static const char glm_json[] =
    "{\"version\": \"1.0\", \"added_tokens\": [" GLM_TOKEN(5, "[CLS]") ", " GLM_TOKEN(
        6, "[S]") ", " GLM_TOKEN(7,
                                 "[E]") ", " GLM_TOKEN(8,
                                                       "[MASK]") "], \"normalizer\": null, "
                                                                 "\"pre_tokenizer\": {\"type\": "
                                                                 "\"Metaspace\", \"replacement\": "
                                                                 "\"\xE2\x96\x81\", "
                                                                 "\"prepend_scheme\": \"never\", "
                                                                 "\"split\": true}, "
                                                                 "\"post_processor\": null, "
                                                                 "\"decoder\": "
                                                                 "null, \"model\": {\"type\": "
                                                                 "\"Unigram\", \"unk_id\": 0, "
                                                                 "\"vocab\": [[\"<unk>\", 0.0], "
                                                                 "[\"a\", -1.0], [\"b\", -1.0], "
                                                                 "[\"c\", -1.0], [\"d\", -1.0]]}}";
static const char cpm1_text[] =
    "<pad>\n<s>\n</s>\n<sep>\n<eod>\n<unk>\n<mask>\n</n>\n</_>\na\nb\nc\nd\n";
static const char cpm2_text[] =
    "<unk>\n<s>\n</s>\n\xE2\x96\x83\n<sep>\n<pad>\n<mask>\n<eod>\n\xE2\x96\x82\n"
    "a\nb\nc\nd\n<s_0>\n<s_1>\n";

/* Writes the tokenizer of a style into a folder. */
static inline void write_prompt_tokenizer(const temp_folder *folder, mc_prompt_style style)
{
    if (style == MC_PROMPT_DECODER) {
        write_text(temp_path(folder, "vocab.json"), gpt2_json);
        write_text(temp_path(folder, "merges.txt"), "#version: 0.2\n");
    } else if (style == MC_PROMPT_T5) {
        write_text(temp_path(folder, "tokenizer.json"), t5_json);
    } else if (style == MC_PROMPT_GLM) {
        write_text(temp_path(folder, "tokenizer.json"), glm_json);
    } else {
        write_jieba(folder, "jieba");
        write_text(temp_path(folder, "vocab.txt"), style == MC_PROMPT_CPM1 ? cpm1_text : cpm2_text);
    }
}

#endif
