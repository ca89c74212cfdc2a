/* check_objective FAMILY TOKENIZER DATA LENGTH BATCH STEPS SEED: the batches that
 *
 *     modelcenter pretrain FAMILY --tokenizer TOKENIZER --data DATA --seq-length LENGTH
 *         --batch-size BATCH --steps STEPS --seed SEED --shuffle
 *
 * trains on, one a line, as JSON: {"ids": [[...], ...], "targets": ...}, an array of sequences for
 * each field. tests/compare_pretraining.py trains another implementation on them.
 *
 * Exit 0, or 1 after an error. */
#include <stdio.h>
#include <stdlib.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>

static const char *const names[MC_FIELDS] = {[MC_FIELD_IDS] = "ids",
                                             [MC_FIELD_TYPE_IDS] = "type_ids",
                                             [MC_FIELD_MARKS] = "marks",
                                             [MC_FIELD_DECODER_IDS] = "decoder_ids",
                                             [MC_FIELD_TARGET_ROWS] = "target_rows",
                                             [MC_FIELD_TARGETS] = "targets",
                                             [MC_FIELD_LABELS] = "labels"};

/* Fills in the options too. */
static mc_objective *open_batches(mc_context *ctx, char **given, mc_objective_options *o)
{
    mc_tokenizer *tok = mc_tokenizer_from_pretrained(ctx, given[2]);
    mc_token_file *file = mc_token_file_open(ctx, given[3]);
    *o = (mc_objective_options){.style = *mc_family_objective(given[1]),
                                .seq_length = atoi(given[4]),
                                .vocabulary = mc_tokenizer_vocab_size(tok)};
    if (mc_objective_find_tokens(ctx, &o->style, tok, &o->tokens) != MC_OK) return NULL;
    if (o->tokens.start < 0) o->tokens.start = 0; /* T5's, which its config names */
    mc_lm_loader_options options = {.batch_size = atoi(given[5]),
                                    .seq_length = mc_objective_window(ctx, o),
                                    .shuffle = true,
                                    .repeat = true,
                                    .seed = strtoull(given[7], NULL, 10)};
    mc_lm_loader *loader = mc_lm_loader_new(file, &options), *elsewhere = NULL;
    options.seed++;
    if (o->style.next_sentence) elsewhere = mc_lm_loader_new(file, &options);
    return mc_objective_new(loader, elsewhere, o);
}

static void print_field(const char *name, const int32_t *values, int rows, int width)
{
    printf("\"%s\": [", name);
    for (int r = 0; r < rows; r++) {
        printf("%s[", r ? ", " : "");
        for (int i = 0; i < width; i++) printf("%s%d", i ? ", " : "", values[r * width + i]);
        printf("]");
    }
    printf("]");
}

int main(int argc, char **argv)
{
    if (argc != 8 || !mc_family_known(argv[1])) {
        fprintf(stderr, "usage: %s FAMILY TOKENIZER DATA LENGTH BATCH STEPS SEED\n", argv[0]);
        return 1;
    }
    mc_context *ctx = mc_init_distributed(NULL);
    mc_objective_options o;
    mc_objective *objective = open_batches(ctx, argv, &o);
    for (int step = 0; objective && step < atoi(argv[6]); step++) {
        const mc_objective_batch *b = mc_objective_next(objective);
        const char *before = "{";
        for (int f = 0; b && f < MC_FIELDS; f++) {
            if (!b->field[f]) continue;
            printf("%s", before);
            print_field(names[f], b->field[f], b->batch_size, mc_objective_width(&o, f));
            before = ", ";
        }
        puts("}");
    }
    int failed = mc_print_error(ctx, stderr);
    mc_context_free(ctx);
    return failed ? 1 : 0;
}
