/* 10. Classes of texts: a fine-tuned classifier, loaded from C.
 *
 * Shows inference in one call, mc_classify_texts: it tokenizes, batches texts of any lengths
 * without padding, runs the model and copies the logits back. The model's config.json says what
 * they mean.
 *
 *     modelcenter finetune --model bert-base-uncased --data examples/reviews.csv \
 *         --text review --label stars --output stars
 *     ./classify stars "What a film!" "I want my money back."
 *
 * MODEL is a folder or an identifier on the Hugging Face hub. Each TEXT gives a line: the most
 * probable class and its probability, all labels that are more probable than not with theirs, or
 * the value of a regression, separated by tabs. */
#include <modelcenter.h>
#include <modelcenter/more.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void print_label(const mc_model *model, int k, double probability)
{
    const char *name = mc_model_label_name(model, k);
    name ? printf("%s\t%.4f", name, probability) : printf("%d\t%.4f", k, probability);
}

/* Softmax: the classes exclude each other. */
static void print_class(const mc_model *model, const float *logits, int labels)
{
    int best = 0;
    double sum = 0;
    for (int k = 1; k < labels; k++)
        if (logits[k] > logits[best]) best = k;
    for (int k = 0; k < labels; k++) sum += exp((double)logits[k] - (double)logits[best]);
    print_label(model, best, 1 / sum);
}

/* Sigmoids: each label is a question of its own. */
static void print_labels(const mc_model *model, const float *logits, int labels)
{
    const char *between = "";
    for (int k = 0; k < labels; k++) {
        double probability = 1 / (1 + exp(-(double)logits[k]));
        if (probability <= 0.5) continue;
        fputs(between, stdout);
        print_label(model, k, probability);
        between = "\t";
    }
}

static void print_row(const mc_model *model, const float *logits, int labels)
{
    const char *type = mc_model_problem_type(model);
    if (type ? strcmp(type, "regression") == 0 : labels == 1)
        printf("%.6g", (double)logits[0]);
    else if (type && strcmp(type, "multi_label_classification") == 0)
        print_labels(model, logits, labels);
    else
        print_class(model, logits, labels);
    putchar('\n');
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: %s MODEL TEXT...\n", argv[0]);
        return 2;
    }
    size_t count = (size_t)argc - 2;
    mc_context *ctx = mc_init_distributed(NULL);
    mc_model *model = mc_model_from_pretrained(ctx, argv[1], NULL);
    mc_tokenizer *tok = mc_tokenizer_from_pretrained(ctx, argv[1]);
    mc_text_classifier *classifier = mc_text_classifier_new(model, tok, NULL);
    int labels = mc_model_get_heads(model).labels;
    mc_text_span *texts = calloc(count, sizeof *texts);
    float *logits = calloc(count * (size_t)labels + 1, sizeof *logits);
    for (size_t i = 0; texts && i < count; i++)
        texts[i] = (mc_text_span){.data = argv[i + 2], .size = strlen(argv[i + 2])};
    if (!texts || !logits) mc_set_error(ctx, MC_ERR_NOMEM, "out of memory for %zu texts", count);
    if (!mc_failed(ctx) && mc_classify_texts(classifier, texts, NULL, count, logits) == MC_OK)
        for (size_t i = 0; i < count; i++) print_row(model, logits + i * (size_t)labels, labels);
    int bad = mc_print_error(ctx, stderr);
    free(texts);
    free(logits);
    mc_context_free(ctx);
    return bad;
}
