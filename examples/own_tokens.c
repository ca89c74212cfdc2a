/* 6. Tokens of your own: a GPT-2 learns what a function of this program gives, without any file.
 *
 * Shows a source of tokens that is a function (numbers that count up) and one that is an array of
 * documents (numbers that count down), a blend of both by weight, documents kept apart within a
 * sequence, and steps that a GPU can record although the documents' lengths change.
 *
 *     ./own_tokens [STEPS [DEVICE]]
 *     ./own_tokens 300 cuda
 */
#include <modelcenter.h>
#include <modelcenter/more.h>

#include <stdlib.h>

enum { BATCH = 8, LENGTH = 32, NUMBERS = 50, DOCUMENT = 20, LESSONS = 40 };

/* Document d of the function counts up from some number. */
static bool count_up(void *user, int64_t first, int64_t count, int32_t *out)
{
    (void)user;
    for (int64_t i = first; i < first + count; i++)
        out[i - first] = (int32_t)((i / DOCUMENT * 7 + i % DOCUMENT) % NUMBERS);
    return true;
}

static mc_token_file *open_function(mc_context *ctx)
{
    enum {
        KNOWN = 100000
    }; /* documents, whose lengths have to be said where they are kept apart */
    static int64_t lengths[KNOWN];
    for (int i = 0; i < KNOWN; i++) lengths[i] = DOCUMENT;
    return mc_token_file_from_source(ctx, &(mc_token_source){.name = "counting up",
                                                             .count = (int64_t)KNOWN * DOCUMENT,
                                                             .read = count_up,
                                                             .documents = lengths,
                                                             .document_count = KNOWN});
}

static mc_token_file *open_arrays(mc_context *ctx)
{
    static int32_t ids[LESSONS][DOCUMENT];
    const int32_t *documents[LESSONS];
    int64_t counts[LESSONS];
    for (int d = 0; d < LESSONS; d++) {
        documents[d] = ids[d];
        counts[d] = DOCUMENT - d % 10;
        for (int i = 0; i < DOCUMENT; i++) ids[d][i] = (d * 11 + NUMBERS - i) % NUMBERS;
    }
    return mc_token_file_from_arrays(ctx, documents, counts, LESSONS);
}

typedef struct run {
    mc_model *model;
    mc_optim_manager *optim;
    mc_tensor *ids, *next; /* (BATCH * LENGTH) */
    mc_lm_lengths *lengths;
} run;

static void step(mc_context *ctx, void *user)
{
    run *r = user;
    mc_optim_manager_zero_grad(r->optim);
    mc_tape *t = mc_tape_begin(ctx);
    mc_model_input in = {.ids = r->ids, .lengths = mc_lm_lengths_get(r->lengths, 0)};
    mc_model_output out = mc_model_forward(t, r->model, &in);
    mc_optim_manager_backward(r->optim, t, mc_model_loss(t, r->model, out.last_hidden, r->next));
    mc_tape_end(t);
    mc_optim_manager_step(r->optim);
}

static void train(mc_context *ctx, run *r, mc_lm_loader *loader, long steps)
{
    for (long i = 1; i <= steps; i++) {
        const mc_lm_batch *b = mc_lm_loader_next(loader);
        if (!b) return;
        mc_tensor_write(r->ids, b->ids, BATCH * LENGTH * sizeof *b->ids);
        mc_tensor_write(r->next, b->labels, BATCH * LENGTH * sizeof *b->labels);
        mc_lm_lengths_set(r->lengths, 0, b);
        mc_step_run(ctx, (uint64_t)mc_lm_lengths_write(r->lengths), step, r);
        mc_step_report report;
        if (i % 20 == 0 && mc_optim_manager_report(r->optim, 0, &report))
            mc_print_rank(ctx, 0, "step %ld  %d pieces  loss %.4f\n", i, b->pieces, report.loss);
    }
}

int main(int argc, char **argv)
{
    long steps = argc > 1 ? strtol(argv[1], NULL, 10) : 200;
    mc_context *ctx =
        mc_init_distributed(&(mc_init_options){.seed = 42, .device = argc > 2 ? argv[2] : "cpu"});
    mc_gpt2_config config = mc_gpt2_config_default();
    config.vocab_size = NUMBERS;
    config.dim = 32;
    config.dim_ff = 128;
    config.layers = 2;
    config.heads = 2;
    config.positions = LENGTH;
    run r = {.model = mc_gpt2_new(ctx, &config, NULL, NULL)};
    mc_model_set_dropout(r.model, 0);
    const mc_lm_source sources[] = {{open_function(ctx), 0.75}, {open_arrays(ctx), 0.25}};
    mc_lm_loader *loader =
        mc_lm_loader_new_blend(sources, 2,
                               &(mc_lm_loader_options){.batch_size = BATCH,
                                                       .seq_length = LENGTH,
                                                       .shuffle = true,
                                                       .repeat = true,
                                                       .vocabulary = NUMBERS,
                                                       .separate_documents = true});
    mc_optimizer *adam = mc_adam_new(ctx, &(mc_adam_options){.lr = 3e-3f});
    r.optim = mc_optim_manager_new(ctx, &(mc_optim_manager_options){.max_grad_norm = 1});
    mc_optimizer_add(adam, mc_model_module(r.model));
    mc_optim_manager_add(r.optim, adam, mc_cosine_new(ctx, 3e-3, 10, (int64_t)steps));
    r.ids = mc_tensor_new(ctx, MC_I32, MC_SHAPE(BATCH * LENGTH));
    r.next = mc_tensor_new(ctx, MC_I32, MC_SHAPE(BATCH * LENGTH));
    r.lengths = mc_lm_lengths_new(ctx, 1, BATCH, LENGTH);

    if (!mc_failed(ctx)) train(ctx, &r, loader, steps);
    int bad = mc_failed(ctx) ? mc_print_error(ctx, stderr) : 0;
    mc_context_free(ctx);
    return bad;
}
