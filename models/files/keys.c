#include "models/files/keys_internal.h"

#include <stddef.h>

/* ---- generation_config.json ------------------------------------------------------------------ */

static const char own_options[] =
    "--ignore-generation-config, or options of your own, do without the file";

static const mc_key_row generation_config[] = {
    {"do_sample", MC_KEY_FOLLOWED},
    {"temperature", MC_KEY_FOLLOWED},
    {"top_k", MC_KEY_FOLLOWED},
    {"top_p", MC_KEY_FOLLOWED},
    {"repetition_penalty", MC_KEY_FOLLOWED},
    {"num_beams", MC_KEY_FOLLOWED},
    {"length_penalty", MC_KEY_FOLLOWED},
    {"early_stopping", MC_KEY_FOLLOWED},
    {"stop_strings", MC_KEY_FOLLOWED},
    {"num_return_sequences", MC_KEY_FOLLOWED},
    {"max_length", MC_KEY_FOLLOWED},
    {"max_new_tokens", MC_KEY_FOLLOWED},
    {"eos_token_id", MC_KEY_FOLLOWED},
    {"decoder_start_token_id", MC_KEY_FOLLOWED},
    /* ways of choosing tokens that are not here */
    {"begin_suppress_tokens", MC_KEY_ONLY, "[[]]", own_options},
    {"bad_words_ids", MC_KEY_ONLY, "[[]]", own_options},
    {"constraints", MC_KEY_ONLY, "[[]]", own_options},
    {"diversity_penalty", MC_KEY_ONLY, "[0, false]", own_options},
    {"dola_layers", MC_KEY_ONLY, "[0, [], false]", own_options},
    {"encoder_no_repeat_ngram_size", MC_KEY_ONLY, "[0, false]", own_options},
    {"encoder_repetition_penalty", MC_KEY_ONLY, "[1]", own_options},
    {"epsilon_cutoff", MC_KEY_ONLY, "[0, false]", own_options},
    {"eta_cutoff", MC_KEY_ONLY, "[0, false]", own_options},
    {"exponential_decay_length_penalty", MC_KEY_ONLY, "[0, [], false]", own_options},
    {"force_words_ids", MC_KEY_ONLY, "[[]]", own_options},
    {"forced_bos_token_id", MC_KEY_ONLY, "[]", own_options},
    {"forced_decoder_ids", MC_KEY_ONLY, "[[]]", own_options},
    {"forced_eos_token_id", MC_KEY_ONLY, "[]", own_options},
    {"guidance_scale", MC_KEY_ONLY, "[1]", own_options},
    {"max_time", MC_KEY_ONLY, "[]", own_options},
    {"min_length", MC_KEY_ONLY, "[0]", own_options},
    {"min_new_tokens", MC_KEY_ONLY, "[0]", own_options},
    {"min_p", MC_KEY_ONLY, "[0, false]", own_options},
    {"no_repeat_ngram_size", MC_KEY_ONLY, "[0, false]", own_options},
    {"num_beam_groups", MC_KEY_ONLY, "[1]", own_options},
    {"penalty_alpha", MC_KEY_ONLY, "[0, false]", own_options},
    {"renormalize_logits", MC_KEY_ONLY, "[false, 0]", own_options},
    {"sequence_bias", MC_KEY_ONLY, "[[], {}]", own_options},
    {"suppress_tokens", MC_KEY_ONLY, "[[]]", own_options},
    {"token_healing", MC_KEY_ONLY, "[false, 0]", own_options},
    {"top_h", MC_KEY_ONLY, "[0, false]", own_options},
    {"typical_p", MC_KEY_ONLY, "[1]", own_options},
    {"watermarking_config", MC_KEY_ONLY, "[{}, []]", own_options},
    {"remove_invalid_values", MC_KEY_NO_EFFECT}, /* logits that are not finite are an error */
    /* prompts are never padded, and begin as the tokenizer says */
    {"bos_token_id", MC_KEY_NO_EFFECT},
    {"pad_token_id", MC_KEY_NO_EFFECT},
    /* how fast, and what else is returned */
    {"_commit_hash", MC_KEY_NO_EFFECT},
    {"_from_model_config", MC_KEY_NO_EFFECT},
    {"assistant_confidence_threshold", MC_KEY_NO_EFFECT},
    {"assistant_early_exit", MC_KEY_NO_EFFECT},
    {"assistant_ensemble_weight", MC_KEY_NO_EFFECT},
    {"assistant_lookbehind", MC_KEY_NO_EFFECT},
    {"cache_config", MC_KEY_NO_EFFECT},
    {"cache_implementation", MC_KEY_NO_EFFECT},
    {"compile_config", MC_KEY_NO_EFFECT},
    {"continuous_batching_config", MC_KEY_NO_EFFECT},
    {"disable_compile", MC_KEY_NO_EFFECT},
    {"is_assistant", MC_KEY_NO_EFFECT},
    {"low_memory", MC_KEY_NO_EFFECT},
    {"max_cache_len", MC_KEY_NO_EFFECT},
    {"max_matching_ngram_size", MC_KEY_NO_EFFECT},
    {"num_assistant_tokens", MC_KEY_NO_EFFECT},
    {"num_assistant_tokens_schedule", MC_KEY_NO_EFFECT},
    {"output_attentions", MC_KEY_NO_EFFECT},
    {"output_hidden_states", MC_KEY_NO_EFFECT},
    {"output_logits", MC_KEY_NO_EFFECT},
    {"output_scores", MC_KEY_NO_EFFECT},
    {"prefill_chunk_size", MC_KEY_NO_EFFECT},
    {"prompt_lookup_num_tokens", MC_KEY_NO_EFFECT},
    {"return_dict_in_generate", MC_KEY_NO_EFFECT},
    {"return_legacy_cache", MC_KEY_NO_EFFECT},
    {"speculation_type", MC_KEY_NO_EFFECT},
    {"target_lookbehind", MC_KEY_NO_EFFECT},
    {"transformers_version", MC_KEY_NO_EFFECT},
    {"use_cache", MC_KEY_NO_EFFECT},
    {"use_mtp", MC_KEY_NO_EFFECT},
    {NULL}};

const mc_key_table mc_keys_generation_config = {"generation_config.json", generation_config};

/* ---- preprocessor_config.json ---------------------------------------------------------------- */

static const mc_key_row preprocessor_config[] = {
    {"do_resize", MC_KEY_FOLLOWED},
    {"size", MC_KEY_FOLLOWED},
    {"resample", MC_KEY_FOLLOWED},
    {"do_rescale", MC_KEY_FOLLOWED},
    {"rescale_factor", MC_KEY_FOLLOWED},
    {"do_normalize", MC_KEY_FOLLOWED},
    {"image_mean", MC_KEY_FOLLOWED},
    {"image_std", MC_KEY_FOLLOWED},
    {"image_processor_type", MC_KEY_ONLY,
     "[\"ViTImageProcessor\", \"ViTImageProcessorFast\", \"ViTImageProcessorPil\", "
     "\"ViTFeatureExtractor\"]",
     NULL},
    {"feature_extractor_type", MC_KEY_ONLY, "[\"ViTFeatureExtractor\", \"ViTImageProcessor\"]",
     NULL},
    {"do_center_crop", MC_KEY_ONLY, "[false]", NULL},
    {"do_pad", MC_KEY_ONLY, "[false]", NULL},
    {"crop_size", MC_KEY_NO_EFFECT}, /* of do_center_crop */
    {"pad_size", MC_KEY_NO_EFFECT},
    {"default_to_square", MC_KEY_NO_EFFECT}, /* a size here is square */
    {"do_convert_rgb", MC_KEY_NO_EFFECT},    /* which load_image has done */
    {"data_format", MC_KEY_NO_EFFECT},       /* of arrays that others are given */
    {"input_data_format", MC_KEY_NO_EFFECT},
    {"return_tensors", MC_KEY_NO_EFFECT},
    {"device", MC_KEY_NO_EFFECT},
    {"disable_grouping", MC_KEY_NO_EFFECT},
    {"image_seq_length", MC_KEY_NO_EFFECT},
    {NULL}};

const mc_key_table mc_keys_preprocessor_config = {"preprocessor_config.json", preprocessor_config};

/* ---- sentence-transformers ------------------------------------------------------------------- */

static const mc_key_row sentence_bert_config[] = {
    {"max_seq_length", MC_KEY_FOLLOWED},
    {"do_lower_case", MC_KEY_FOLLOWED},
    {"transformer_task", MC_KEY_ONLY, "[\"feature-extraction\"]",
     "vectors are those of the encoder's last layer"},
    {"modality_config", MC_KEY_ONLY,
     "[{\"text\": {\"method\": \"forward\", \"method_output_name\": \"last_hidden_state\"}}]",
     "only texts are taken"},
    {"module_output_name", MC_KEY_ONLY, "[\"token_embeddings\"]", NULL},
    {"processing_kwargs", MC_KEY_ONLY, "[{}]", NULL},
    {"query_length", MC_KEY_NO_EFFECT}, /* of models that give a vector a token */
    {"document_length", MC_KEY_NO_EFFECT},
    {"query_expansion", MC_KEY_NO_EFFECT},
    {"unpad_inputs", MC_KEY_NO_EFFECT},
    /* older releases */
    {"model_args", MC_KEY_NO_EFFECT},
    {"tokenizer_args", MC_KEY_ONLY, "[{}]", NULL},
    {"config_args", MC_KEY_ONLY, "[{}]", NULL},
    {"model_kwargs", MC_KEY_NO_EFFECT},
    {"processor_kwargs", MC_KEY_ONLY, "[{}]", NULL},
    {"config_kwargs", MC_KEY_ONLY, "[{}]", NULL},
    {"tokenizer_name_or_path", MC_KEY_ONLY, "[]", "the folder's own tokenizer is used"},
    {"cache_dir", MC_KEY_NO_EFFECT},
    {"backend", MC_KEY_NO_EFFECT},
    {NULL}};

static const mc_key_row pooling_config[] = {
    {"word_embedding_dimension", MC_KEY_NO_EFFECT}, /* the model's own */
    {"embedding_dimension", MC_KEY_NO_EFFECT},
    {"pooling_mode", MC_KEY_FOLLOWED},
    {"pooling_mode_cls_token", MC_KEY_FOLLOWED},
    {"pooling_mode_max_tokens", MC_KEY_FOLLOWED},
    {"pooling_mode_mean_tokens", MC_KEY_FOLLOWED},
    {"pooling_mode_mean_sqrt_len_tokens", MC_KEY_FOLLOWED},
    {"pooling_mode_weightedmean_tokens", MC_KEY_FOLLOWED},
    {"pooling_mode_lasttoken", MC_KEY_FOLLOWED},
    {"include_prompt", MC_KEY_FOLLOWED},
    {NULL}};

static const mc_key_row sentence_transformers_config[] = {
    {"prompts", MC_KEY_FOLLOWED},
    {"default_prompt_name", MC_KEY_FOLLOWED},
    {"truncate_dim", MC_KEY_FOLLOWED},
    {"model_type", MC_KEY_ONLY, "[\"SentenceTransformer\"]", "only vectors of texts are computed"},
    {"similarity_fn_name", MC_KEY_NO_EFFECT}, /* vectors are given, not compared */
    {"__version__", MC_KEY_NO_EFFECT},
    {NULL}};

const mc_key_table mc_keys_sentence_bert_config = {"sentence_bert_config.json",
                                                   sentence_bert_config};
const mc_key_table mc_keys_pooling_config = {"1_Pooling/config.json", pooling_config};
const mc_key_table mc_keys_sentence_transformers_config = {"config_sentence_transformers.json",
                                                           sentence_transformers_config};
