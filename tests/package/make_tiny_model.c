/* Makes a folder that from_pretrained reads: a model with initial weights of the shape that
 * FOLDER/config.json says, and the tokenizer in FOLDER.
 *
 *     make_tiny_model FAMILY FOLDER OUTPUT */
#include <modelcenter.h>
#include <modelcenter/more.h>
#include <string.h>

int main(int argc, char **argv)
{
    if (argc != 4) return 2;
    char path[4096];
    snprintf(path, sizeof path, "%s/config.json", argv[2]);
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 7});
    bool encodes = strcmp(argv[1], "bert") == 0;
    mc_model_heads heads = {.pooler = encodes, .lm = !encodes};
    mc_model *model = mc_model_new(ctx, argv[1], path, &heads, NULL);
    mc_tokenizer *tok = mc_tokenizer_from_pretrained(ctx, argv[2]);
    mc_save_pretrained(model, tok, argv[3], NULL);
    int bad = mc_print_error(ctx, stderr);
    mc_context_free(ctx);
    return bad;
}
