/* Benchmarks as each family reads them: the packed ids, written by hand for small tokenizers, where
 * the answer is read, and scores. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include "core/base/memory_internal.h"
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "core/tensor/tensor_internal.h"
#include "tests/datasets/benchmark_test.h"

typedef struct fixture {
    temp_folder folder;
    mc_context *ctx;
    mc_tokenizer *tok[MC_PROMPT_STYLES];
} fixture;

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->folder = temp_folder_new();
    f->ctx = mc_init_distributed(&(mc_init_options){.seed = 42});
    write_decoder_tokenizer(&f->folder, "decoder");
    write_t5_tokenizer(&f->folder, "t5");
    write_cpm_tokenizer(&f->folder, "cpm1", cpm1_words);
    write_cpm_tokenizer(&f->folder, "cpm2", cpm2_words);
    static const char *const names[] = {[MC_PROMPT_DECODER] = "decoder",
                                        [MC_PROMPT_T5] = "t5",
                                        [MC_PROMPT_CPM1] = "cpm1",
                                        [MC_PROMPT_CPM2] = "cpm2"};
    for (int i = MC_PROMPT_DECODER; i <= MC_PROMPT_CPM2; i++) /* GLM has no benchmarks */
        f->tok[i] = mc_tokenizer_from_pretrained(f->ctx, temp_path(&f->folder, names[i]));
    if (mc_failed(f->ctx)) mc_print_error(f->ctx, stderr);
    *state = f;
    return mc_failed(f->ctx) ? -1 : 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    mc_context_free(f->ctx);
    temp_folder_free(&f->folder);
    free(f);
    return 0;
}

/* What rows of a task become; `start` is what CPM-2's and T5's decoders begin with. */
static mc_dataset *parse(fixture *f, const char *task, mc_prompt_style style, const char *split,
                         int max_length, const char *lines)
{
    int32_t start = style == MC_PROMPT_CPM2 ? C2_BLANK : 0;
    mc_dataset_options options = {.max_length = max_length, .prompt = {style, start}};
    mc_dataset *d = mc_dataset_from_memory(f->ctx, task, "F", lines, strlen(lines), split,
                                           f->tok[style], &options);
    if (mc_failed(f->ctx)) mc_print_error(f->ctx, stderr);
    assert_non_null(d);
    return d;
}

/* The tensor begins with these numbers; -1 ends them. */
static void holds(const mc_tensor *x, const int32_t *expected)
{
    assert_non_null(x);
    const int32_t *found = mc_tensor_host(x);
    for (int64_t i = 0; expected[i] != -1; i++) {
        assert_true(i < mc_tensor_count(x));
        if (found[i] != expected[i])
            fail_msg("number %d is %d, expected %d", (int)i, found[i], expected[i]);
    }
}

#define HOLDS(x, ...) holds((x), (const int32_t[]){__VA_ARGS__, -1})
enum { NONE = MC_NO_LABEL };

static mc_batch *first_batch(mc_dataset *d, mc_dataloader **loader)
{
    *loader = mc_dataloader_new(d, &(mc_dataloader_options){.batch_size = 4});
    mc_batch *b = mc_dataloader_next(*loader);
    assert_non_null(b);
    return b;
}

/* ---- answers --------------------------------------------------------------------------------- */

static const char boolq[] = "{\"passage\": \"ab\", \"question\": \"c d\", \"label\": true}\n"
                            "{\"passage\": \"x\", \"question\": \"y\", \"label\": false}\n";

static void test_decoder_answer(void **state)
{
    fixture *f = *state;
    mc_dataloader *loader;
    mc_dataset *d = parse(f, "BoolQ", MC_PROMPT_DECODER, "val", 0, boolq);
    assert_int_equal(mc_dataset_kind(d), MC_TASK_ANSWER);
    assert_string_equal(mc_dataset_text(d, 0, 0), "ab. c d?");
    assert_int_equal(mc_dataset_answers(d)[0], T_N);
    assert_int_equal(mc_dataset_answers(d)[1], T_Y);
    mc_batch *b = first_batch(d, &loader);
    HOLDS(b->ids, T('a'), T('b'), T('.'), T_SPACE, T('c'), T_SPACE, T('d'), T('?'), /* row 1 */
          T('x'), T('.'), T_SPACE, T('y'), T('?'));
    HOLDS(b->targets, T('b'), T('.'), T_SPACE, T('c'), T_SPACE, T('d'), T('?'), NONE, /* row 1 */
          T('.'), T_SPACE, T('y'), T('?'), NONE);
    HOLDS(b->answer_rows, 7, 12);
    HOLDS(b->labels, 1, 0);
    assert_null(b->decoder_ids);
    mc_dataloader_free(loader);
    mc_dataset_free(d);
    d = parse(f, "BoolQ", MC_PROMPT_DECODER, "val", 3, boolq); /* the beginning is cut */
    b = first_batch(d, &loader);
    HOLDS(b->ids, T_SPACE, T('d'), T('?'), T_SPACE, T('y'), T('?'));
    HOLDS(b->answer_rows, 2, 5);
    mc_dataloader_free(loader);
}

static void test_t5_answer(void **state)
{
    fixture *f = *state;
    mc_dataloader *loader;
    mc_dataset *d = parse(f, "BoolQ", MC_PROMPT_T5, "val", 0, boolq);
    assert_string_equal(mc_dataset_text(d, 1, 0), "x. y? <extra_id_0>.");
    assert_int_equal(mc_dataset_answers(d)[0], U_NO);
    assert_int_equal(mc_dataset_answers(d)[1], U_YES);
    mc_batch *b = first_batch(d, &loader);
    HOLDS(b->ids, U_SPACE, U('a'), U('b'), U('.'), U_SPACE, U('c'), U_SPACE, U('d'), U('?'),
          U_SPACE, U_BLANK, U_SPACE, U('.'), U_EOS, /* row 1 */
          U_SPACE, U('x'), U('.'), U_SPACE, U('y'), U('?'), U_SPACE, U_BLANK, U_SPACE, U('.'),
          U_EOS);
    HOLDS(b->decoder_ids, 0, U_BLANK, 0, U_BLANK);
    HOLDS(b->answer_rows, 1, 3);
    assert_int_equal(b->lengths->length[0], 14);
    assert_int_equal(b->decoder_lengths->length[1], 2);
    mc_dataloader_free(loader);
    mc_dataset_free(d);
    d = parse(f, "BoolQ", MC_PROMPT_T5, "val", 6, boolq); /* the end is kept */
    b = first_batch(d, &loader);
    HOLDS(b->ids, U('?'), U_SPACE, U_BLANK, U_SPACE, U('.'), U_EOS);
    assert_int_equal(b->lengths->length[0], 6); /* and the length is that of what is kept */
    mc_dataloader_free(loader);
}

static const char lcqmc[] = "text_a\ttext_b\tlabel\n\u732b\t\u72d7\t0\n\u5927\u732b\t\u732b\t1\n";

static void test_cpm1_answer(void **state)
{
    fixture *f = *state;
    mc_dataloader *loader;
    mc_dataset *d = parse(f, "LCQMC", MC_PROMPT_CPM1, "val", 0, lcqmc);
    assert_int_equal(mc_dataset_answers(d)[0], C1_UNRELATED);
    assert_int_equal(mc_dataset_answers(d)[1], C1_RELATED);
    mc_batch *b = first_batch(d, &loader);
    HOLDS(b->ids, C1_S, C1_QUOTE, C1_CAT, C1_QUOTE, C1_AND, C1_QUOTE, C1_DOG, C1_QUOTE, C1_OF,
          C1_RELATION, C1_IS, C1_COLON, 0, C1_STOP, /* row 1 */
          C1_S, C1_QUOTE, C1_BIG, C1_CAT, C1_QUOTE, C1_AND, C1_QUOTE, C1_CAT, C1_QUOTE, C1_OF,
          C1_RELATION, C1_IS, C1_COLON, 0, C1_STOP);
    HOLDS(b->marks, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
          0, 1);
    HOLDS(b->answer_rows, 11, 26); /* at the row before the blank */
    HOLDS(b->labels, 0, 1);
    mc_dataloader_free(loader);
}

static void test_cpm2_answer(void **state)
{
    fixture *f = *state;
    mc_dataloader *loader;
    mc_dataset *d = parse(f, "LCQMC", MC_PROMPT_CPM2, "val", 0, lcqmc);
    assert_int_equal(mc_dataset_answers(d)[0], C2_NO);
    assert_int_equal(mc_dataset_answers(d)[1], C2_YES);
    mc_batch *b = first_batch(d, &loader);
    HOLDS(b->ids, C2_OPEN, C2_CAT, C2_CLOSE, C2_AND, C2_OPEN, C2_DOG, C2_CLOSE, C2_WHETHER,
          C2_RELATED, C2_ASK, C2_BLANK, C2_OPEN, C2_BIG);
    HOLDS(b->decoder_ids, C2_BLANK, C2_BLANK);
    HOLDS(b->answer_rows, 0, 1);
    mc_dataloader_free(loader);
}

/* The text that rows of every task become, for decoders; T5's is the same with its blank. */
static void test_prompts(void **state)
{
    static const struct prompt {
        const char *task, *line, *text;
        int label;
        const char *split;
    } prompts[] = {
        {"CB", "{\"premise\":\"p\",\"hypothesis\":\"h\",\"label\":\"neutral\"}",
         "Sentence 1: p Sentence 2: h Does sentence 1 entails sentence 2?", 2, "train"},
        {"RTE", "{\"premise\":\"p\",\"hypothesis\":\"h\",\"label\":\"not_entailment\"}",
         "Sentence 1: p Sentence 2: h Does sentence 1 entails sentence 2?", 0, "train"},
        {"COPA",
         "{\"premise\":\"p\",\"choice1\":\"a\",\"choice2\":\"b\",\"question\":\"cause\","
         "\"label\":1}",
         "Choice 1: a Choice 2: b The cause of \"p\" was choice", 1, "val"},
        {"WiC", "{\"word\":\"w\",\"sentence1\":\"s\",\"sentence2\":\"t\",\"label\":false}",
         "Sentence 1: s Sentence 2: t Does the word w in sentence 1 express the same meaning as in "
         "sentence 2?",
         0, "val"},
        {"WSC",
         "{\"text\":\"T\",\"target\":{\"span1_text\":\"one\",\"span2_text\":\"it\"},"
         "\"label\":true}",
         "T Does it refers to one?", 1, "val"},
        {"MultiRC",
         "{\"passage\":{\"text\":\"P\",\"questions\":[{\"question\":\"Q?\",\"answers\":["
         "{\"text\":\"a\",\"label\":1}]}]}}",
         "P Is answer \"a\" the answer to the question \"Q?\"?", 1, "val"},
    };
    fixture *f = *state;
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++) {
        const struct prompt *p = &prompts[i];
        char blank[256];
        mc_dataset *d = parse(f, p->task, MC_PROMPT_DECODER, p->split, 0, p->line);
        assert_string_equal(mc_dataset_text(d, 0, 0), p->text);
        assert_int_equal(mc_dataset_label(d, 0), p->label);
        assert_int_equal(mc_dataset_rows(d), 1);
        mc_dataset_free(d);
        snprintf(blank, sizeof blank, "%s <extra_id_0>.", p->text);
        d = parse(f, p->task, MC_PROMPT_T5, p->split, 0, p->line);
        assert_string_equal(mc_dataset_text(d, 0, 0), blank);
        mc_dataset_free(d);
    }
}

/* The words that stand for classes. */
static void test_words(void **state)
{
    fixture *f = *state;
    const char *cb = "{\"premise\":\"p\",\"hypothesis\":\"h\",\"label\":\"neutral\"}";
    mc_dataset *d = parse(f, "CB", MC_PROMPT_DECODER, "val", 0, cb);
    for (int k = 0; k < 3; k++)
        assert_int_equal(mc_dataset_answers(d)[k], ((const int[]){T_N, T_Y, T_M})[k]);
    d = parse(f, "CB", MC_PROMPT_T5, "val", 0, cb);
    for (int k = 0; k < 3; k++)
        assert_int_equal(mc_dataset_answers(d)[k], ((const int[]){U_NO, U_YES, U_MAYBE})[k]);
}

/* COPA's training rows come a second time with the choices exchanged, but to encoders. */
static void test_mirrored(void **state)
{
    fixture *f = *state;
    const char *lines =
        "{\"premise\":\"p\",\"choice1\":\"a\",\"choice2\":\"b\",\"question\":\"cause\",\"label\":1}"
        "\n{\"premise\":\"q\",\"choice1\":\"c\",\"choice2\":\"d\",\"question\":\"effect\","
        "\"label\":1}\n";
    mc_dataset *d = parse(f, "COPA", MC_PROMPT_DECODER, "train", 0, lines);
    assert_int_equal(mc_dataset_rows(d), 4);
    assert_string_equal(mc_dataset_text(d, 1, 0),
                        "Choice 1: b Choice 2: a The cause of \"p\" was choice");
    assert_int_equal(mc_dataset_label(d, 0), 1);
    assert_int_equal(mc_dataset_label(d, 1), 0);
    assert_int_equal(mc_dataset_line(d, 3), 2);
    assert_int_equal(mc_dataset_answers(d)[0], T_1);
    assert_int_equal(mc_dataset_answers(d)[1], T_2);
    d = parse(f, "COPA", MC_PROMPT_T5, "train", 0, lines);
    assert_int_equal(mc_dataset_rows(d), 4);
    assert_int_equal(mc_dataset_answers(d)[1], U_2);
    d = parse(f, "COPA", MC_PROMPT_T5, "val", 0, lines);
    assert_int_equal(mc_dataset_rows(d), 2);
}

/* ---- candidates and texts -------------------------------------------------------------------- */

static const char record[] =
    "{\"passage\":{\"text\":\"Ann saw Bob.\",\"entities\":[{\"start\":0,\"end\":2},"
    "{\"start\":8,\"end\":10}]},\"qas\":[{\"query\":\"@placeholder ran\",\"answers\":["
    "{\"text\":\"Bob\"}]},{\"query\":\"@placeholder sat\",\"answers\":[{\"text\":\"Ann\"}]}]}\n";
#define RECORD_TEXT                                                     \
    "Ann saw Bob. Question: @placeholder ran Entities: Ann, Bob Which " \
    "entities can be filled in the placeholder?"

static void test_record(void **state)
{
    fixture *f = *state;
    mc_dataset *d = parse(f, "ReCoRD", MC_PROMPT_DECODER, "val", 0, record);
    assert_int_equal(mc_dataset_kind(d), MC_TASK_GENERATE);
    assert_int_equal(mc_dataset_scoring(d), MC_SCORING_ENTITIES);
    assert_int_equal(mc_dataset_rows(d), 4);
    assert_string_equal(mc_dataset_text(d, 0, 0), RECORD_TEXT);
    assert_string_equal(mc_dataset_target(d, 1), " Bob");
    assert_int_equal(mc_dataset_group(d, 1), 0);
    assert_int_equal(mc_dataset_group(d, 2), 1);
    assert_int_equal(mc_dataset_label(d, 1), 1);
    assert_string_equal(mc_dataset_reference(d, 3, 0), "Ann");
    assert_null(mc_dataset_reference(d, 3, 1));
    d = parse(f, "ReCoRD", MC_PROMPT_T5, "train", 0, record);
    assert_int_equal(mc_dataset_rows(d), 2);
    assert_string_equal(mc_dataset_text(d, 0, 0), RECORD_TEXT " <extra_id_0>.");
    assert_string_equal(mc_dataset_target(d, 0), "<extra_id_0> Bob <extra_id_1>");
}

/* Question 0 is answered wrongly, 1 rightly. */
static void test_record_scores(void **state)
{
    fixture *f = *state;
    mc_dataset *d = parse(f, "ReCoRD", MC_PROMPT_T5, "val", 0, record);
    mc_scorer *s = mc_scorer_new(d);
    mc_score score;
    mc_scorer_add_candidate(s, 0, -1, 1);
    mc_scorer_add_candidate(s, 1, -2, 4);
    mc_scorer_add_candidate(s, 2, -3, 1);
    mc_scorer_add_candidate(s, 3, -4, 1);
    assert_int_equal(mc_scorer_finish(s, &score), MC_OK);
    assert_int_equal(score.n, 2);
    assert_true(mc_score_value(&score, "f1") == 0.5 && mc_score_value(&score, "em") == 0.5);
    mc_scorer_free(s);
}

static const char hellaswag[] = "{\"ctx\":\"a b\",\"endings\":[\"c\",\"d e\"],\"label\":1}\n"
                                "{\"ctx\":\"f\",\"endings\":[\"g\",\"h\",\"i\"],\"label\":\"0\"}\n";

static void test_hellaswag(void **state)
{
    fixture *f = *state;
    mc_dataloader *loader;
    mc_dataset *d = parse(f, "HellaSwag", MC_PROMPT_DECODER, "val", 0, hellaswag);
    assert_int_equal(mc_dataset_rows(d), 5);
    mc_batch *b = first_batch(d, &loader);
    /* the last token of an ending is read by no row, and no end of text follows it */
    HOLDS(b->ids, T('a'), T_SPACE, T('b'), T_SPACE,          /* row 1 */
          T('a'), T_SPACE, T('b'), T_SPACE, T('d'), T_SPACE, /* row 2 */
          T('f'), T_SPACE);
    HOLDS(b->targets, NONE, NONE, T_SPACE, T('c'), NONE, NONE, T_SPACE, T('d'), T_SPACE, T('e'),
          T_SPACE, T('g'));
    mc_dataloader_free(loader);
    mc_scorer *s = mc_scorer_new(d);
    mc_score score;
    /* question 0: by the sum ending 0, by the mean (-1.5 against -1) ending 1, which is right */
    mc_scorer_add_candidate(s, 0, -1.5, 1);
    mc_scorer_add_candidate(s, 1, -2, 2);
    /* question 1: both ways ending 0, which is right */
    mc_scorer_add_candidate(s, 2, -1, 1);
    mc_scorer_add_candidate(s, 3, -2, 1);
    mc_scorer_add_candidate(s, 4, -3, 1);
    assert_int_equal(mc_scorer_finish(s, &score), MC_OK);
    assert_int_equal(score.n, 2);
    assert_true(mc_score_value(&score, "accuracy") == 0.5);
    assert_true(mc_score_value(&score, "accuracy_norm") == 1);
}

static const char squad[] =
    "{\"data\":[{\"paragraphs\":[{\"context\":\"The cat sat.\",\"qas\":[{\"id\":\"1\","
    "\"question\":\"Who?\",\"answers\":[{\"text\":\"cat\"},{\"text\":\"The cat\"}]},"
    "{\"id\":\"2\",\"question\":\"Did what?\",\"answers\":[{\"text\":\"sat down\"}]}]}]}]}";

static void test_squad(void **state)
{
    fixture *f = *state;
    mc_dataset *d = parse(f, "SQuAD", MC_PROMPT_T5, "train", 0, squad);
    assert_int_equal(mc_dataset_rows(d), 2);
    assert_string_equal(mc_dataset_text(d, 0, 0),
                        "Question: Who? Answer: <extra_id_0> Context: The cat sat.");
    assert_string_equal(mc_dataset_target(d, 0), "<extra_id_0> cat <extra_id_1>");
    assert_string_equal(mc_dataset_reference(d, 0, 1), "The cat");
    mc_scorer *s = mc_scorer_new(d);
    mc_score score;
    mc_scorer_add_text(s, 0, "the cat!", 8); /* exact */
    mc_scorer_add_text(s, 1, "sat", 3);      /* precision 1, recall 1/2 */
    assert_int_equal(mc_scorer_finish(s, &score), MC_OK);
    assert_int_equal(score.n, 2);
    assert_true(mc_score_value(&score, "em") == 0.5);
    assert_true(fabs(mc_score_value(&score, "f1") - (1 + 2.0 / 3) / 2) < 1e-7);
    assert_true(fabs(mc_score_value(&score, "rougeL") - (1 + 2.0 / 3) / 2) < 1e-7);
}

static void test_multirc_scores(void **state)
{
    fixture *f = *state;
    const char *lines =
        "{\"passage\":{\"text\":\"P\",\"questions\":[{\"question\":\"Q\",\"answers\":["
        "{\"text\":\"a\",\"label\":1},{\"text\":\"b\",\"label\":0}]},{\"question\":\"R\","
        "\"answers\":[{\"text\":\"c\",\"label\":1}]}]}}";
    mc_dataset *d = parse(f, "MultiRC", MC_PROMPT_DECODER, "val", 0, lines);
    mc_scorer *s = mc_scorer_new(d);
    mc_score score;
    mc_scorer_add_class(s, 0, 1);
    mc_scorer_add_class(s, 1, 0);
    mc_scorer_add_class(s, 2, 0);
    assert_int_equal(mc_scorer_finish(s, &score), MC_OK);
    assert_int_equal(score.n, 2);
    assert_true(mc_score_value(&score, "em") == 0.5);
    assert_true(fabs(mc_score_value(&score, "f1a") - 2.0 / 3) < 1e-12);
    assert_true(fabs(mc_score_value(&score, "accuracy") - 2.0 / 3) < 1e-12);
    mc_scorer_add_candidate(s, 0, -1, 1);
    assert_int_equal(mc_error_status(f->ctx), MC_ERR_ARGUMENT);
    mc_clear_error(f->ctx);
    mc_scorer_add_class(s, 3, 0);
    assert_string_equal(mc_error_message(f->ctx), "F: result of row 3, expected 0 to 2");
    mc_clear_error(f->ctx);
}

/* Every row of SuperGLUE's validation files becomes a prompt. */
static void test_real_files(void **state)
{
    static const struct file {
        const char *task, *folder;
        int rows;
    } files[] = {{"CB", "superglue", 56},   {"COPA", "superglue", 100}, {"RTE", "superglue", 277},
                 {"WSC", "superglue", 104}, {"WiC", "superglue", 638},  {"BoolQ", "boolq", 3270}};
    fixture *f = *state;
    const char *shared = shared_folder();
    if (!shared) skip();
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[1400];
        snprintf(path, sizeof path, "%s/data/%s", shared, files[i].folder);
        for (mc_prompt_style style = MC_PROMPT_DECODER; style <= MC_PROMPT_T5; style++) {
            mc_dataset_options options = {.prompt = {style, 0}};
            mc_dataset *d =
                mc_dataset_open(f->ctx, files[i].task, path, "val", f->tok[style], &options);
            if (!d) fail_msg("%s", mc_error_message(f->ctx));
            assert_int_equal(mc_dataset_rows(d), files[i].rows);
            mc_dataset_free(d);
        }
    }
}

/* A task that a family has no form for names both. */
static void test_forms(void **state)
{
    fixture *f = *state;
    mc_dataset_options options = {.prompt = {MC_PROMPT_CPM1, 0}};
    assert_null(mc_dataset_from_memory(f->ctx, "SQuAD", "F", squad, strlen(squad), "train",
                                       f->tok[MC_PROMPT_CPM1], &options));
    assert_int_equal(mc_error_status(f->ctx), MC_ERR_UNSUPPORTED);
    assert_non_null(strstr(mc_error_message(f->ctx), "task SQuAD has no form for CPM-1"));
    mc_clear_error(f->ctx);
}

/* Every allocation fails in turn: an error that says so, or the same rows. */
static void test_memory(void **state)
{
#ifdef MC_FAULT_INJECTION
    static const struct kind {
        const char *task, *data;
        mc_prompt_style style;
        int rows;
    } kinds[] = {{"COPA",
                  "{\"premise\":\"p\",\"choice1\":\"a\",\"choice2\":\"b\",\"question\":\"cause\","
                  "\"label\":1}",
                  MC_PROMPT_DECODER, 2},
                 {"MultiRC",
                  "{\"passage\":{\"text\":\"P\",\"questions\":[{\"question\":\"Q\",\"answers\":["
                  "{\"text\":\"a\",\"label\":1}]}]}}",
                  MC_PROMPT_T5, 1},
                 {"ReCoRD", record, MC_PROMPT_T5, 2},
                 {"SQuAD", squad, MC_PROMPT_T5, 2},
                 {"HellaSwag", hellaswag, MC_PROMPT_DECODER, 2},
                 {"LCQMC", lcqmc, MC_PROMPT_CPM1, 2}};
    fixture *f = *state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const struct kind *k = &kinds[i];
        mc_dataset_options options = {.prompt = {k->style, 0}};
        bool done = false;
        for (long n = 1; !done; n++) {
            mc_fault_fail_at(n, false);
            mc_dataset *d = mc_dataset_from_memory(f->ctx, k->task, "F", k->data, strlen(k->data),
                                                   "train", f->tok[k->style], &options);
            mc_scorer *s = mc_scorer_new(d);
            mc_score score;
            mc_scorer_finish(s, &score);
            done = mc_fault_count() < n;
            mc_fault_fail_at(0, false);
            assert_true(mc_failed(f->ctx) || mc_dataset_rows(d) == k->rows);
            assert_true(!mc_failed(f->ctx) || mc_error_status(f->ctx) == MC_ERR_NOMEM);
            assert_true(!done || !mc_failed(f->ctx));
            mc_clear_error(f->ctx);
            mc_scorer_free(s);
            mc_dataset_free(d);
        }
    }
#else
    (void)state;
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decoder_answer), cmocka_unit_test(test_t5_answer),
        cmocka_unit_test(test_cpm1_answer),    cmocka_unit_test(test_cpm2_answer),
        cmocka_unit_test(test_prompts),        cmocka_unit_test(test_words),
        cmocka_unit_test(test_mirrored),       cmocka_unit_test(test_record),
        cmocka_unit_test(test_record_scores),  cmocka_unit_test(test_hellaswag),
        cmocka_unit_test(test_squad),          cmocka_unit_test(test_multirc_scores),
        cmocka_unit_test(test_real_files),     cmocka_unit_test(test_forms),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
