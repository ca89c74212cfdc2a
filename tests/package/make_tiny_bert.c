/* Makes a folder that from_pretrained reads: a BERT with initial weights of the shape that
 * FOLDER/config.json says, and the vocabulary in FOLDER/vocab.txt.
 *
 *     make_tiny_bert FOLDER OUTPUT */
#include <modelcenter.h>

int main(int argc, char **argv)
{
    if (argc != 3) return 2;
    char path[4096];
    snprintf(path, sizeof path, "%s/config.json", argv[1]);
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 7});
    mc_bert_config config = mc_bert_config_default();
    mc_bert_config_read(ctx, path, &config);
    mc_model *bert = mc_bert_new(ctx, &config, &(mc_model_heads){.pooler = true}, NULL);
    mc_tokenizer *tok = mc_tokenizer_from_pretrained(ctx, argv[1]);
    mc_model_save(bert, argv[2]);
    if (!mc_failed(ctx)) mc_tokenizer_save(tok, argv[2]);
    int bad = mc_print_error(ctx, stderr);
    mc_context_free(ctx);
    return bad;
}
