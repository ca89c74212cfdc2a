/* 8. Rows of your own: texts and labels in memory become a data set, which is tokenized, batched
 * and dealt out to ranks as any other. A small BERT from random weights learns to tell them apart.
 *
 *     ./own_rows [TOKENIZER [STEPS]]
 *     ./own_rows datasets/quickstart 60
 *
 * TOKENIZER is a folder or an identifier. A file takes one call, mc_dataset_from_file; rows that a
 * function computes take mc_dataset_from_source. */
#include <modelcenter.h>

#include <stdlib.h>

static const mc_data_row rows[] = {
    {.text = "Tom is in the kitchen.", .label = "inside"},
    {.text = "The cat sleeps in the garden.", .label = "outside"},
    {.text = "The clock is in the library.", .label = "inside"},
    {.text = "Maria is in the forest.", .label = "outside"},
    {.text = "The piano is in the kitchen.", .label = "inside"},
    {.text = "A duck swims in the lake.", .label = "outside"},
    {.text = "Zoe is in the library.", .label = "inside"},
    {.text = "The goat is in the garden.", .label = "outside"},
};
enum { ROWS = sizeof rows / sizeof *rows };

static mc_tensor *logits_of(mc_tape *t, mc_model *model, const mc_batch *b)
{
    mc_model_input input = {.ids = b->ids, .lengths = b->lengths, .type_ids = b->type_ids};
    mc_model_output out = mc_model_forward(t, model, &input);
    return mc_model_classify(t, model, &out);
}

int main(int argc, char **argv)
{
    const char *folder = argc > 1 ? argv[1] : "datasets/quickstart";
    long steps = argc > 2 ? strtol(argv[2], NULL, 10) : 60;

    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 1});
    mc_tokenizer *tok = mc_tokenizer_from_pretrained(ctx, folder);
    mc_data_columns columns = {.kind = MC_TASK_CLASSIFY};
    mc_dataset *data = mc_dataset_from_rows(ctx, "rooms", rows, ROWS, &columns, tok, NULL);
    mc_dataloader *loader =
        mc_dataloader_new(data, &(mc_dataloader_options){.batch_size = 4, .shuffle = true});

    mc_bert_config config = mc_bert_config_default();
    config.vocab_size = mc_tokenizer_vocab_size(tok);
    config.dim = 64;
    config.dim_ff = 128;
    config.layers = config.heads = 2;
    mc_model *bert =
        mc_bert_new(ctx, &config, NULL, &(mc_load_options){.num_labels = mc_dataset_outputs(data)});
    mc_model_set_dropout(bert, 0);
    mc_optimizer *adam = mc_adam_new(ctx, NULL);
    mc_optim_manager *optim = mc_optim_manager_new(ctx, NULL);
    mc_optimizer_add(adam, mc_model_module(bert));
    mc_optim_manager_add(optim, adam, mc_noam_new(ctx, 5e-3, 10));
    if (mc_failed(ctx)) return mc_print_error(ctx, stderr);

    mc_accuracy acc = {0};
    for (long step = 0; step < steps && !mc_failed(ctx); step++) {
        mc_batch *b = mc_dataloader_next(loader);
        if (!b) b = mc_dataloader_next(loader); /* the next epoch */
        if (!b) break;
        mc_optim_manager_zero_grad(optim);
        mc_tape *t = mc_tape_begin(ctx);
        mc_tensor *loss = mc_cross_entropy(t, logits_of(t, bert, b), b->labels, NULL);
        mc_optim_manager_backward(optim, t, loss);
        mc_optim_manager_step(optim);
        mc_tape_end(t);
    }
    mc_dataloader *again = mc_dataloader_new(data, &(mc_dataloader_options){.batch_size = 4});
    for (mc_batch *b; (b = mc_dataloader_next(again));) {
        mc_tape *t = mc_tape_begin_eval(ctx);
        mc_accuracy_add(&acc, mc_argmax(t, logits_of(t, bert, b)), b->labels);
        mc_tape_end(t);
    }
    mc_print_rank(ctx, 0, "%d labels, %s and %s; accuracy %.2f\n", mc_dataset_labels(data),
                  mc_dataset_label_name(data, 0), mc_dataset_label_name(data, 1),
                  mc_accuracy_gather(ctx, &acc));
    int bad = mc_failed(ctx) ? mc_print_error(ctx, stderr) : 0;
    mc_context_free(ctx);
    return bad;
}
