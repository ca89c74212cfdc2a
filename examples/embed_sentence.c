/* 3. Sentence vectors: a pretrained BERT as an encoder.
 *
 * Shows inference: texts to packed ids, a forward pass on an evaluation tape, a mean over each
 * sentence's tokens on the device, results read back. A batch holds sentences of any lengths; no
 * padding is computed.
 *
 *     ./embed_sentence MODEL SENTENCE...
 *     ./embed_sentence sentence-transformers/all-MiniLM-L6-v2 "is water wet?" "water is a liquid"
 *
 * MODEL is a folder or an identifier on the Hugging Face hub. Each SENTENCE gives three lines of
 * numbers, separated by spaces, each behind the word that says what it is:
 *
 *     ids 101 2003 2300 ...         its tokens
 *     pooled -0.0218 0.3149 ...     the pooler's output, tanh(W [CLS] + b): dim numbers
 *     mean 0.0713 -0.0042 ...       the mean of its last hidden states, scaled to length 1: the
 *                                   sentence-transformers vector, whose dot products are
 *                                   similarities
 *
 * To build it outside the tree:
 *     cc embed_sentence.c -o embed_sentence $(pkg-config --cflags --libs modelcenter) -lm */
#include <modelcenter.h>

#include <stdlib.h>
#include <string.h>

static void print_vector(const char *name, const float *x, int64_t n)
{
    fputs(name, stdout);
    for (int64_t i = 0; i < n; i++) printf(" %.9g", (double)x[i]);
    putchar('\n');
}

/* All sentences in one batch: `ids` of all, one behind the other, and the `length` of each. */
static int embed(mc_context *ctx, mc_model *bert, const int32_t *ids, const int32_t *length,
                 int count)
{
    int64_t dim = mc_model_dim(bert);
    mc_tape *t = mc_tape_begin_eval(ctx);
    const mc_lengths *lengths = mc_tape_lengths(t, length, count, 1);
    int64_t total = lengths ? lengths->total : 0;
    mc_model_input input = {.ids = mc_tape_input(t, MC_I32, MC_SHAPE(total), ids, false),
                            .lengths = lengths};
    mc_model_output out = mc_model_forward(t, bert, &input);
    mc_tensor *vectors =
        mc_normalize_rows(t, mc_mean_pool(t, out.last_hidden), 0); /* (count, dim) */
    float *pooled = malloc((size_t)(count * dim + 1) * sizeof *pooled);
    float *mean = malloc((size_t)(count * dim + 1) * sizeof *mean);
    int good = pooled && mean;
    if (good) {
        mc_tensor_read_f32(ctx, out.pooled, pooled, count * dim);
        mc_tensor_read_f32(ctx, vectors, mean, count * dim);
    }
    for (int i = 0; good && !mc_failed(ctx) && i < count; i++) {
        fputs("ids", stdout);
        for (int32_t k = 0; k < length[i]; k++) printf(" %d", (int)ids[lengths->offset[i] + k]);
        putchar('\n');
        print_vector("pooled", pooled + i * dim, dim);
        print_vector("mean", mean + i * dim, dim);
    }
    free(pooled);
    free(mean);
    mc_tape_end(t);
    if (!good) fputs("error: out of memory\n", stderr);
    return good ? 0 : 1;
}

/* Tokenizes all sentences and embeds them. */
static int run(mc_context *ctx, mc_model *bert, mc_tokenizer *tok, char **sentence, int count)
{
    size_t longest = (size_t)mc_bert_get_config(bert).positions, total = 0;
    int32_t *ids = malloc(((size_t)count * longest + 1) * sizeof *ids);
    int32_t *length = malloc(((size_t)count + 1) * sizeof *length);
    mc_encoding encoding = {0};
    mc_status status = ids && length ? MC_OK : MC_ERR_NOMEM;
    for (int i = 0; i < count && status == MC_OK; i++) {
        status =
            mc_tokenizer_encode(tok, sentence[i], strlen(sentence[i]), NULL, 0, longest, &encoding);
        if (status != MC_OK) break;
        memcpy(ids + total, encoding.ids, encoding.count * sizeof *ids);
        length[i] = (int32_t)encoding.count;
        total += encoding.count;
    }
    if (status != MC_OK) fprintf(stderr, "error: %s\n", mc_status_text(status));
    int bad = status != MC_OK || embed(ctx, bert, ids, length, count);
    mc_encoding_release(&encoding);
    free(ids);
    free(length);
    return bad;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: %s MODEL SENTENCE...\n", argv[0]);
        return 2;
    }
    mc_context *ctx = mc_init_distributed(NULL);
    mc_model *bert = mc_bert_from_pretrained(ctx, argv[1], NULL);
    mc_tokenizer *tok = mc_tokenizer_from_pretrained(ctx, argv[1]);
    int bad = mc_failed(ctx) ? 0 : run(ctx, bert, tok, argv + 2, argc - 2);
    if (mc_failed(ctx)) bad = mc_print_error(ctx, stderr);
    mc_context_free(ctx);
    return bad;
}
