/* 1. Fine-tuning: a pretrained BERT with a new linear head learns to answer BoolQ's questions.
 *
 * Shows the whole way from a checkpoint to an accuracy, and how errors are handled: every call
 * below does nothing once an error is set, so the program checks in two places only, after setting
 * up and at its end.
 *
 *     ./finetune_boolq [MODEL [DATA [EPOCHS]]]
 *     ./finetune_boolq bert-base-uncased data/boolq 5
 *
 * MODEL is a folder or an identifier on the Hugging Face hub, DATA a folder that holds
 * train.jsonl and val.jsonl. Needs some 2 GB of memory for bert-base; a step on a CPU takes
 * seconds. */
#include <modelcenter.h>

#include <stdlib.h>

int main(int argc, char **argv)
{
    const char *model = argc > 1 ? argv[1] : "bert-base-uncased";
    const char *data = argc > 2 ? argv[2] : "data/boolq";
    long epochs = argc > 3 ? strtol(argv[3], NULL, 10) : 5;

    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 42}); /* reads RANK, ... */
    mc_model *bert = mc_bert_from_pretrained(ctx, model, &(mc_load_options){.dtype = MC_BF16});
    mc_linear *head = mc_linear_new(ctx, mc_model_dim(bert), 2, NULL); /* in f32 */
    mc_tokenizer *tok = mc_tokenizer_from_pretrained(ctx, model);

    mc_dataset *train_rows = mc_dataset_open(ctx, "BoolQ", data, "train", tok, NULL);
    mc_dataset *val_rows = mc_dataset_open(ctx, "BoolQ", data, "val", tok, NULL);
    mc_dataloader *train =
        mc_dataloader_new(train_rows, &(mc_dataloader_options){.batch_size = 64, .shuffle = true});
    mc_dataloader *val = mc_dataloader_new(val_rows, &(mc_dataloader_options){.batch_size = 64});

    mc_optimizer *adam = mc_adam_offload_new(ctx, &(mc_adam_options){.weight_decay = 1e-2f});
    mc_optim_manager *optim =
        mc_optim_manager_new(ctx, &(mc_optim_manager_options){.loss_scale = 1024});
    mc_optimizer_add(adam, mc_model_module(bert));
    mc_optimizer_add(adam, mc_linear_module(head));
    mc_optim_manager_add(optim, adam, mc_noam_new(ctx, 1e-5, 100));

    if (mc_failed(ctx)) return mc_print_error(ctx, stderr); /* once, for all of the above */

    for (long epoch = 0; epoch < epochs; epoch++) {
        for (mc_batch *b; (b = mc_dataloader_next(train));) {
            mc_optim_manager_zero_grad(optim);
            mc_tape *t = mc_tape_begin(ctx);
            mc_model_input input = {.ids = b->ids, .lengths = b->lengths};
            mc_tensor *pooled = mc_model_forward(t, bert, &input).pooled;
            mc_tensor *logits = mc_linear_forward(t, head, pooled);
            mc_tensor *loss = mc_cross_entropy(t, logits, b->labels, NULL);
            mc_optim_manager_backward(optim, t, loss);
            double norm = mc_optim_manager_clip_grad_norm(optim, 1.0f);
            mc_optim_manager_step(optim);
            mc_print_rank(ctx, 0, "loss %.4f | norm %.3f\n", mc_mean_loss(ctx, loss), norm);
            mc_tape_end(t);
        }
        mc_accuracy acc = {0};
        for (mc_batch *b; (b = mc_dataloader_next(val));) {
            mc_tape *t = mc_tape_begin_eval(ctx); /* records nothing, dropout off */
            mc_model_input input = {.ids = b->ids, .lengths = b->lengths};
            mc_tensor *pooled = mc_model_forward(t, bert, &input).pooled;
            mc_tensor *logits = mc_linear_forward(t, head, pooled);
            mc_accuracy_add(&acc, mc_argmax(t, logits), b->labels);
            mc_tape_end(t);
        }
        mc_print_rank(ctx, 0, "accuracy %.2f %%\n", 100 * mc_accuracy_gather(ctx, &acc));
    }
    int bad = mc_failed(ctx) ? mc_print_error(ctx, stderr) : 0;
    mc_context_free(ctx); /* frees all that was made from it */
    return bad;
}
