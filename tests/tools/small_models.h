/* Configs of the small models that tests of commands make: one layer, and the vocabulary of
 * datasets/quickstart. Include after modelcenter/more.h. */
#ifndef MC_TESTS_SMALL_MODELS_H
#define MC_TESTS_SMALL_MODELS_H

enum { SMALL_VOCABULARY = 310, SMALL_DIM = 16, SMALL_DIM_FF = 32, SMALL_HEADS = 2 };

static inline mc_bert_config small_bert(void)
{
    mc_bert_config config = mc_bert_config_default();
    config.vocab_size = SMALL_VOCABULARY;
    config.dim = SMALL_DIM;
    config.dim_ff = SMALL_DIM_FF;
    config.heads = SMALL_HEADS;
    config.layers = 1;
    config.positions = 64;
    return config;
}

static inline mc_gpt2_config small_gpt2(void)
{
    mc_gpt2_config config = mc_gpt2_config_default();
    config.vocab_size = SMALL_VOCABULARY;
    config.dim = SMALL_DIM;
    config.dim_ff = SMALL_DIM_FF;
    config.heads = SMALL_HEADS;
    config.layers = 1;
    config.positions = 64;
    return config;
}

#endif
