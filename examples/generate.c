/* 11. Answers as they come: a decoder or T5 that streams text, several prompts at once.
 *
 * Shows mc_generator_add: each prompt joins the batch that is running and leaves it when its answer
 * ends, and a function of yours gets each token. A single prompt's text is printed while it is
 * written; of several each answer is a line, in the order in which they end.
 *
 *     ./generate gpt2 "Once upon a time"
 *     ./generate google/flan-t5-small "translate to German: How old are you?" "What is a lion?"
 *
 * MODEL is a folder or an identifier on the Hugging Face hub, of any family that decodes. */
#include <modelcenter.h>
#include <modelcenter/more.h>

#include <stdlib.h>
#include <string.h>

/* One answer: a text stream turns tokens into whole characters. */
typedef struct answer {
    mc_text_stream *stream;
    int number, count; /* which prompt, of how many */
    char *text;        /* so far, where there are several */
    size_t size;
    bool failed;
} answer;

/* Prints a piece of text, or keeps it until the answer has ended. */
static void take(answer *a, const char *piece, size_t size)
{
    if (!piece || !size) return;
    if (a->count == 1) {
        fwrite(piece, 1, size, stdout);
        fflush(stdout);
        return;
    }
    char *grown = realloc(a->text, a->size + size);
    a->failed = a->failed || !grown;
    if (!grown) return;
    a->text = grown;
    memcpy(a->text + a->size, piece, size);
    a->size += size;
}

static void got_token(void *user, const mc_answer_event *event)
{
    answer *a = user;
    size_t size = 0;
    if (event->state == MC_ANSWER_FAILED) {
        fprintf(stderr, "prompt %d: %s\n", a->number, event->error);
        a->failed = true;
        return;
    }
    const char *piece = mc_text_stream_add(a->stream, event->token, &size);
    take(a, piece, size);
    if (event->state == MC_ANSWER_GOES_ON) return;
    piece = mc_text_stream_end(a->stream, &size);
    take(a, piece, size);
    if (a->count > 1) {
        printf("%d\t", a->number);
        fwrite(a->text, 1, a->size, stdout);
    }
    putchar('\n');
    fflush(stdout);
}

/* The prompts are copied when they are added. */
static bool add_prompt(mc_generator *g, mc_model *model, mc_stop *stop, const char *text, answer *a)
{
    mc_text_prompt prompt;
    mc_generate_options options;
    if (mc_model_generate_options(model, &options)) return false;
    if (!options.max_new_tokens && !options.max_length) options.max_new_tokens = 50;
    options.num_return_sequences = 1; /* event->answer would tell several apart */
    options.stop = mc_stop_reached;   /* looks for the texts at which the model's answers end */
    options.stop_user = stop;
    stop->texts = options.stop_texts;
    stop->text_count = options.stop_text_count;
    if (mc_text_prompt_init(&prompt, model, stop->tokenizer, text, strlen(text))) return false;
    a->stream = mc_text_stream_new(stop, 0);
    bool good = a->stream && mc_generator_add(g, prompt.ids, prompt.count, &options, got_token, a);
    mc_text_prompt_release(&prompt);
    return good;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: generate MODEL PROMPT...\n");
        return 2;
    }
    int count = argc - 2, code = 0;
    mc_context *ctx = mc_init_distributed(NULL);
    mc_tokenizer *tokenizer = mc_tokenizer_open(ctx, argv[1], NULL);
    mc_model *model = mc_model_from_pretrained(ctx, argv[1], NULL);
    mc_generator *g = mc_model_generator_open(model, NULL);
    mc_stop stop = {.tokenizer = tokenizer};
    answer *answers = calloc((size_t)count, sizeof *answers);
    bool good = answers && g;
    for (int i = 0; good && i < count; i++) {
        answers[i].number = i;
        answers[i].count = count;
        good = add_prompt(g, model, &stop, argv[i + 2], &answers[i]);
    }
    while (good && mc_generator_step(g)) continue;
    if (mc_print_error(ctx, stderr) || !good) code = 1;
    for (int i = 0; answers && i < count; i++) {
        if (answers[i].failed) code = 1;
        mc_text_stream_free(answers[i].stream);
        free(answers[i].text);
    }
    free(answers);
    mc_context_free(ctx);
    return code;
}
