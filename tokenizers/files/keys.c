#include "tokenizers/files/keys_internal.h"

#include <stddef.h>

static const char python_words[] =
    "this is a setting of tokenizers whose words are cut by other programs";

static const mc_key_row tokenizer_config[] = {
    /* which tokenizer */
    {"tokenizer_class", MC_KEY_FOLLOWED},
    {"auto_map", MC_KEY_WARNED, "[{}]", "code that comes with a model is never run"},
    /* special tokens and other added ones */
    {"bos_token", MC_KEY_FOLLOWED},
    {"eos_token", MC_KEY_FOLLOWED},
    {"unk_token", MC_KEY_FOLLOWED},
    {"sep_token", MC_KEY_FOLLOWED},
    {"pad_token", MC_KEY_FOLLOWED},
    {"cls_token", MC_KEY_FOLLOWED},
    {"mask_token", MC_KEY_FOLLOWED},
    {"*_token", MC_KEY_FOLLOWED}, /* a model's own: "image_token" */
    {"additional_special_tokens", MC_KEY_FOLLOWED},
    {"extra_special_tokens", MC_KEY_FOLLOWED},
    {"model_specific_special_tokens", MC_KEY_FOLLOWED},
    {"added_tokens_decoder", MC_KEY_FOLLOWED},
    {"extra_ids", MC_KEY_FOLLOWED},
    {"add_bos_token", MC_KEY_FOLLOWED},
    {"add_eos_token", MC_KEY_FOLLOWED},
    {"split_special_tokens", MC_KEY_ONLY, "[false]",
     "special tokens that a text holds are those tokens"},
    /* normal form and words */
    {"do_lower_case", MC_KEY_FOLLOWED},
    {"strip_accents", MC_KEY_FOLLOWED},
    {"tokenize_chinese_chars", MC_KEY_FOLLOWED},
    {"add_prefix_space", MC_KEY_FOLLOWED},
    {"never_split", MC_KEY_FOLLOWED},
    {"clean_text", MC_KEY_ONLY, "[true]", NULL},
    {"wordpieces_prefix", MC_KEY_ONLY, "[\"##\"]", NULL},
    {"do_basic_tokenize", MC_KEY_ONLY, "[true]",
     "text is always cut into words before these are cut into pieces"},
    {"do_word_tokenize", MC_KEY_ONLY, "[true]", python_words},
    {"do_subword_tokenize", MC_KEY_ONLY, "[true]", python_words},
    {"word_tokenizer_type", MC_KEY_ONLY, "[\"basic\"]", python_words},
    {"subword_tokenizer_type", MC_KEY_ONLY, "[\"wordpiece\"]", python_words},
    {"mecab_kwargs", MC_KEY_ONLY, "[{}]", python_words},
    {"sudachi_kwargs", MC_KEY_ONLY, "[{}]", python_words},
    {"jumanpp_kwargs", MC_KEY_ONLY, "[{}]", python_words},
    {"normalization", MC_KEY_ONLY, "[false]", python_words},
    {"sp_model_kwargs", MC_KEY_ONLY, "[{}]", "pieces are never sampled"},
    /* lengths; batches have no padding here, so its side is of no account */
    {"model_max_length", MC_KEY_FOLLOWED},
    {"max_len", MC_KEY_FOLLOWED},
    {"truncation_side", MC_KEY_FOLLOWED},
    {"model_input_names", MC_KEY_FOLLOWED},
    {"max_length", MC_KEY_NO_EFFECT}, /* of a call that was saved with the tokenizer */
    {"stride", MC_KEY_NO_EFFECT},
    {"truncation", MC_KEY_NO_EFFECT},
    {"truncation_strategy", MC_KEY_NO_EFFECT},
    {"padding", MC_KEY_NO_EFFECT},
    {"padding_side", MC_KEY_NO_EFFECT},
    {"pad_to_multiple_of", MC_KEY_NO_EFFECT},
    {"pad_token_type_id", MC_KEY_NO_EFFECT},
    {"max_model_input_sizes", MC_KEY_NO_EFFECT},
    /* decoding */
    {"clean_up_tokenization_spaces", MC_KEY_FOLLOWED},
    {"clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", MC_KEY_FOLLOWED},
    {"errors", MC_KEY_NO_EFFECT},
    {"spaces_between_special_tokens", MC_KEY_NO_EFFECT},
    {"trim_offsets", MC_KEY_NO_EFFECT},
    /* conversations, whose text a program writes itself */
    {"chat_template", MC_KEY_FOLLOWED}, /* its markers, by datasets/conversation.h */
    {"chat_control_tokens", MC_KEY_NO_EFFECT},
    {"response_schema", MC_KEY_NO_EFFECT},
    {"response_template", MC_KEY_NO_EFFECT},
    {"sanitize_control_tokens", MC_KEY_NO_EFFECT},
    {"use_default_system_prompt", MC_KEY_NO_EFFECT},
    /* how the Python side loads it */
    {"_commit_hash", MC_KEY_NO_EFFECT},
    {"_name_or_path", MC_KEY_NO_EFFECT},
    {"backend", MC_KEY_NO_EFFECT},
    {"device_map", MC_KEY_NO_EFFECT},
    {"fast_tokenizer_files", MC_KEY_ONLY, "[[], [\"tokenizer.json\"]]",
     "a tokenizer.json by its own name is read"},
    {"files_loaded", MC_KEY_NO_EFFECT},
    {"fix_mistral_regex", MC_KEY_NO_EFFECT},
    {"from_slow", MC_KEY_NO_EFFECT},
    {"gguf_file", MC_KEY_NO_EFFECT},
    {"init_inputs", MC_KEY_NO_EFFECT},
    {"is_fast", MC_KEY_NO_EFFECT},
    {"is_local", MC_KEY_NO_EFFECT},
    {"legacy", MC_KEY_FOLLOWED},
    {"local_files_only", MC_KEY_NO_EFFECT},
    {"merges", MC_KEY_NO_EFFECT},
    {"merges_file", MC_KEY_NO_EFFECT},
    {"name_or_path", MC_KEY_NO_EFFECT},
    {"processor_class", MC_KEY_NO_EFFECT},
    {"return_token_type_ids", MC_KEY_NO_EFFECT}, /* of a call */
    {"slow_tokenizer_class", MC_KEY_NO_EFFECT},
    {"special_tokens_map_file", MC_KEY_NO_EFFECT},
    {"special_tokens_pattern", MC_KEY_NO_EFFECT},
    {"token_type_ids_include_special_tokens", MC_KEY_NO_EFFECT},
    {"token_type_ids_pattern", MC_KEY_NO_EFFECT},
    {"tokenizer_file", MC_KEY_NO_EFFECT},
    {"transformers_version", MC_KEY_NO_EFFECT},
    {"use_fast", MC_KEY_NO_EFFECT},
    {"verbose", MC_KEY_NO_EFFECT},
    {"vocab", MC_KEY_NO_EFFECT},
    {"vocab_file", MC_KEY_NO_EFFECT},
    {"vocab_size", MC_KEY_NO_EFFECT},
    {NULL}};

static const mc_key_row special_tokens_map[] = {{"bos_token", MC_KEY_FOLLOWED},
                                                {"eos_token", MC_KEY_FOLLOWED},
                                                {"unk_token", MC_KEY_FOLLOWED},
                                                {"sep_token", MC_KEY_FOLLOWED},
                                                {"pad_token", MC_KEY_FOLLOWED},
                                                {"cls_token", MC_KEY_FOLLOWED},
                                                {"mask_token", MC_KEY_FOLLOWED},
                                                {"*_token", MC_KEY_FOLLOWED},
                                                {"additional_special_tokens", MC_KEY_FOLLOWED},
                                                {"extra_special_tokens", MC_KEY_FOLLOWED},
                                                {NULL}};

/* The parts say themselves which of their types are supported. */
static const mc_key_row tokenizer_json[] = {
    {"version", MC_KEY_NO_EFFECT},       {"truncation", MC_KEY_FOLLOWED},
    {"padding", MC_KEY_NO_EFFECT},       {"added_tokens", MC_KEY_FOLLOWED},
    {"normalizer", MC_KEY_FOLLOWED},     {"pre_tokenizer", MC_KEY_FOLLOWED},
    {"post_processor", MC_KEY_FOLLOWED}, {"decoder", MC_KEY_FOLLOWED},
    {"model", MC_KEY_FOLLOWED},          {NULL}};

const mc_key_table mc_keys_tokenizer_config = {"tokenizer_config.json", tokenizer_config};
const mc_key_table mc_keys_special_tokens_map = {"special_tokens_map.json", special_tokens_map};
const mc_key_table mc_keys_tokenizer_json = {"tokenizer.json", tokenizer_json};
