/* 3. Sentence vectors: a pretrained BERT as an encoder.
 *
 * Shows inference in one call, mc_embed_texts: it tokenizes, batches sentences of any lengths
 * without padding, runs the model, pools and copies vectors back. Of one model there may be several
 * embedders, here with two poolings.
 *
 *     ./embed_sentence MODEL SENTENCE...
 *     ./embed_sentence sentence-transformers/all-MiniLM-L6-v2 "is water wet?" "water is a liquid"
 *
 * MODEL is a folder or an identifier on the Hugging Face hub. Each SENTENCE gives three lines of
 * numbers, separated by spaces, each after the word that says what it is:
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

static void print_ids(const mc_batch_encoding *batch, int number)
{
    const int32_t *ids = batch->ids;
    for (int i = 0; i < number; i++) ids += batch->lengths[i];
    fputs("ids", stdout);
    for (int32_t k = 0; k < batch->lengths[number]; k++) printf(" %d", (int)ids[k]);
    putchar('\n');
}

/* Vectors of all texts by one pooling; NULL after an error. */
static float *embed(mc_model *bert, const mc_tokenizer *tok, const mc_text_span *texts, int count,
                    mc_embed_options options)
{
    mc_embedder *e = mc_embedder_new(bert, tok, &options);
    float *vectors = malloc((size_t)count * (size_t)mc_model_dim(bert) * sizeof *vectors);
    mc_status status = vectors ? mc_embed_texts(e, texts, (size_t)count, vectors) : MC_ERR_NOMEM;
    mc_embedder_free(e);
    if (status == MC_OK) return vectors;
    if (!vectors) fputs("error: out of memory\n", stderr);
    free(vectors);
    return NULL;
}

/* Embeds all sentences. */
static int run(mc_model *bert, const mc_tokenizer *tok, char **sentence, int count)
{
    int64_t dim = mc_model_dim(bert);
    mc_batch_encoding batch = {0};
    mc_text_span *texts = malloc((size_t)count * sizeof *texts);
    for (int i = 0; texts && i < count; i++)
        texts[i] = (mc_text_span){.data = sentence[i], .size = strlen(sentence[i])};
    float *pooled =
        texts ? embed(bert, tok, texts, count, (mc_embed_options){.pooling = MC_POOLING_POOLER})
              : NULL;
    float *mean =
        pooled ? embed(bert, tok, texts, count, (mc_embed_options){.normalize = MC_NORMALIZE_YES})
               : NULL;
    size_t longest = (size_t)mc_bert_get_config(bert).positions;
    int bad = !mean || mc_tokenizer_encode_batch(tok, texts, NULL, (size_t)count, longest, &batch);
    for (int i = 0; !bad && i < count; i++) {
        print_ids(&batch, i);
        print_vector("pooled", pooled + i * dim, dim);
        print_vector("mean", mean + i * dim, dim);
    }
    mc_batch_encoding_release(&batch);
    free(mean);
    free(pooled);
    free(texts);
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
    int bad = mc_failed(ctx) ? 0 : run(bert, tok, argv + 2, argc - 2);
    if (mc_failed(ctx)) bad = mc_print_error(ctx, stderr);
    mc_context_free(ctx);
    return bad;
}
