/* finetune and eval on a benchmark in each style of prompt: tiny models learn a few rows by heart,
 * and are scored by what they give. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/datasets/benchmark_test.h"
#include "tests/tools/command_test.h"

static const char gpt2_config[] =
    "{\"model_type\": \"gpt2\", \"vocab_size\": 101, \"n_embd\": 32, \"n_layer\": 1, \"n_head\": "
    "2, \"n_positions\": 160, \"bos_token_id\": 100, \"eos_token_id\": 100}";
static const char t5_config[] =
    "{\"model_type\": \"t5\", \"vocab_size\": 105, \"d_model\": 32, \"d_ff\": 64, \"d_kv\": 16, "
    "\"num_heads\": 2, \"num_layers\": 1, \"num_decoder_layers\": 1, \"eos_token_id\": 1, "
    "\"pad_token_id\": 0, \"decoder_start_token_id\": 0}";
static const char cpm1_config[] =
    "{\"vocab_size\": 21, \"dim_model\": 32, \"dim_ff\": 64, \"num_heads\": 2, \"dim_head\": 16, "
    "\"num_layers\": 1, \"position_bias_num_buckets\": 8, \"position_bias_max_distance\": 20, "
    "\"emb_init_std\": 1, \"att_init_std\": 1, \"ffn_init_std\": 1, \"length_scale\": true, "
    "\"attn_scale\": true, \"tied\": true, \"half\": false}";
/* The sentinels are the last 190 tokens: <s_0> is number 21. */
static const char cpm2_config[] =
    "{\"vocab_size\": 211, \"dim_model\": 32, \"dim_ff\": 64, \"num_heads\": 2, \"dim_head\": 16, "
    "\"num_encoder_layers\": 1, \"num_decoder_layers\": 1, \"position_bias_num_buckets\": 8, "
    "\"position_bias_max_distance\": 20, \"emb_init_std\": 0.3, \"att_init_std\": 0.3, "
    "\"ffn_init_std\": 0.3, \"proj_init_std\": 0.3, \"half\": false}";

static int make_models(void **state)
{
    make_folder(state);
    write_decoder_tokenizer(&folder, "gpt2");
    write_t5_tokenizer(&folder, "t5");
    write_cpm_tokenizer(&folder, "cpm1", cpm1_words);
    write_cpm_tokenizer(&folder, "cpm2", cpm2_words);
    write_text(temp_path(&folder, "gpt2/config.json"), gpt2_config);
    write_text(temp_path(&folder, "t5/config.json"), t5_config);
    write_text(temp_path(&folder, "cpm1/config.json"), cpm1_config);
    write_text(temp_path(&folder, "cpm2/config.json"), cpm2_config);
    return 0;
}

/* Rows for both splits. */
static void write_rows(const char *task, const char *train, const char *val, const char *text)
{
    fclose(create(&folder, task, "none"));
    const char *const files[] = {train, val};
    for (int i = 0; i < 2; i++) {
        char path[1400];
        snprintf(path, sizeof path, "%s/%s", temp_path(&folder, task), files[i]);
        write_text(path, text);
    }
}

/* Trains a family and evaluates what was saved: both end with a line that begins with `result`. */
static void learns(const char *family, const char *task, const char *options, const char *result)
{
    char line[1024];
    snprintf(line, sizeof line,
             "\"$MC\" finetune %s --task %s --config %s --data . --output o --overwrite --seed 3 "
             "--batch-size 8 --dropout 0 %s",
             family, task, family, options);
    if (run_in(&folder, "", line)) fail_msg("%s", err);
    if (!strstr(out, result)) fail_msg("expected \"%s\": %s%s", result, out, err);
    char trained[512];
    snprintf(trained, sizeof trained, "%.*s", (int)strcspn(out, "\n"), out);
    char *loss = strstr(trained, " val_loss"); /* batches of other sizes round it otherwise */
    *(loss ? loss : strstr(trained, " train_seconds")) = '\0';
    snprintf(line, sizeof line, "\"$MC\" eval %s --task %s --model o --data .", family, task);
    if (run_in(&folder, "", line)) fail_msg("%s", err);
    if (!strstr(out, trained)) fail_msg("expected \"%s\": %s%s", trained, out, err);
}

#define BOOLQ(passage, label) \
    "{\"passage\": \"" passage "\", \"question\": \"is it\", \"label\": " label "}\n"
static const char boolq[] = BOOLQ("a", "true") BOOLQ("b", "false") BOOLQ("c", "true")
    BOOLQ("d", "false") BOOLQ("e", "true") BOOLQ("f", "false");

/* `ask` answers as the rows that were learned. */
static void is_asked(void)
{
    const char *ask = "\"$MC\" ask --model o --question 'is it' --passage ";
    char line[256];
    for (char passage = 'a'; passage <= 'f'; passage++) {
        snprintf(line, sizeof line, "%s%c", ask, passage);
        if (run_in(&folder, "", line)) fail_msg("%s", err);
        const char *expected = (passage - 'a') % 2 ? "no " : "yes ";
        if (strncmp(out, expected, strlen(expected)) != 0) fail_msg("%c: %s", passage, out);
    }
}

static void test_answers(void **state)
{
    (void)state;
    write_rows("BoolQ", "train.jsonl", "val.jsonl", boolq);
    const char *expected = "result task=BoolQ accuracy=1.0000 f1=1.0000 val_loss=0.";
    learns("gpt2", "BoolQ", "--epochs 60 --lr 1e-2", expected);
    is_asked();
    learns("t5", "BoolQ", "--epochs 60 --lr 1e-2", expected);
    is_asked();
    learns("gpt2", "BoolQ", "--epochs 60 --lr 1e-2 --classifier", expected);
    is_asked();
}

/* eval and ask cut texts where training cut them, unless they are given another length. */
static void test_lengths(void **state)
{
    (void)state;
    char as_trained[512];
    write_rows("BoolQ", "train.jsonl", "val.jsonl",
               BOOLQ("a b c d e f a b c d", "true") BOOLQ("b b c d e f a b c e", "false"));
    learns("gpt2", "BoolQ", "--epochs 1 --max-length 12 --classifier", "result task=BoolQ");
    read_text(err, &folder, "o/task.json");
    assert_non_null(strstr(err, "\"task\":\t\"BoolQ\""));
    assert_non_null(strstr(err, "\"max_length\":\t12"));
    assert_int_equal(run_in(&folder, "", "\"$MC\" eval gpt2 --task BoolQ --model o --data ."), 0);
    snprintf(as_trained, sizeof as_trained, "%.500s", out);
    const char *line = "\"$MC\" eval gpt2 --task BoolQ --model o --data . --max-length 12";
    assert_int_equal(run_in(&folder, "", line), 0);
    assert_string_equal(out, as_trained);
    line = "\"$MC\" eval gpt2 --task BoolQ --model o --data . --max-length 24";
    assert_int_equal(run_in(&folder, "", line), 0);
    assert_string_not_equal(out, as_trained);
}

static void test_lcqmc(void **state)
{
    (void)state;
    write_rows("LCQMC", "train.tsv", "dev.tsv",
               "text_a\ttext_b\tlabel\n\u5927\t\u5927\t0\n\u732b\t\u732b\t1\n\u72d7\t\u5927\t0\n"
               "\u72d7\t\u732b\t1\n");
    const char *expected = "result task=LCQMC accuracy=1.0000 f1=1.0000 val_loss=0.";
    learns("cpm1", "LCQMC", "--epochs 100 --lr 1e-2", expected);
    learns("cpm2", "LCQMC", "--epochs 100 --lr 5e-3", expected);
}

/* Two entities of one passage: each is right for one of the queries. */
static const char record[] =
    "{\"passage\": {\"text\": \"Ann saw Bob.\", \"entities\": [{\"start\": 0, \"end\": 2}, "
    "{\"start\": 8, \"end\": 10}]}, \"qas\": [{\"query\": \"@placeholder X\", \"answers\": "
    "[{\"text\": \"Bob\"}]}, {\"query\": \"@placeholder Z\", \"answers\": [{\"text\": "
    "\"Ann\"}]}]}\n";
static const char hellaswag[] =
    "{\"ctx\": \"a b\", \"endings\": [\"c\", \"d e\"], \"label\": 1}\n"
    "{\"ctx\": \"f\", \"endings\": [\"g\", \"h\", \"i j\"], \"label\": \"0\"}\n";

static void test_candidates(void **state)
{
    (void)state;
    write_rows("ReCoRD", "train.jsonl", "val.jsonl", record);
    write_rows("HellaSwag", "hellaswag_train.jsonl", "hellaswag_val.jsonl", hellaswag);
    learns("gpt2", "HellaSwag", "--epochs 40 --lr 1e-2",
           "result task=HellaSwag accuracy=1.0000 accuracy_norm=1.0000 n=2");
    learns("gpt2", "ReCoRD", "--epochs 300 --lr 3e-3",
           "result task=ReCoRD f1=1.0000 em=1.0000 n=2");
    learns("t5", "ReCoRD", "--epochs 250 --lr 1e-2", "result task=ReCoRD f1=1.0000 em=1.0000 n=2");
}

static const char squad[] =
    "{\"data\": [{\"paragraphs\": [{\"context\": \"The cat sat.\", \"qas\": [{\"id\": \"1\", "
    "\"question\": \"Who?\", \"answers\": [{\"text\": \"cat\"}]}, {\"id\": \"2\", "
    "\"question\": \"Did what?\", \"answers\": [{\"text\": \"sat\"}]}]}]}]}";
static const char multirc[] =
    "{\"passage\": {\"text\": \"P\", \"questions\": [{\"question\": \"Q\", \"answers\": ["
    "{\"text\": \"a\", \"label\": 1}, {\"text\": \"b\", \"label\": 0}]}, {\"question\": \"R\", "
    "\"answers\": [{\"text\": \"c\", \"label\": 1}]}]}}\n";

static void test_texts_and_questions(void **state)
{
    (void)state;
    write_rows("SQuAD", "train-v1.1.json", "dev-v1.1.json", squad);
    write_rows("MultiRC", "train.jsonl", "val.jsonl", multirc);
    learns("t5", "SQuAD", "--epochs 120 --lr 1e-2 --max-target-length 8",
           "result task=SQuAD f1=1.0000 em=1.0000 rougeL=1.0000 n=2");
    learns("gpt2", "MultiRC", "--epochs 60 --lr 1e-2",
           "result task=MultiRC f1a=1.0000 em=1.0000 accuracy=1.0000 val_loss=0.");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_answers, make_models, remove_folder),
        cmocka_unit_test_setup_teardown(test_lengths, make_models, remove_folder),
        cmocka_unit_test_setup_teardown(test_lcqmc, make_models, remove_folder),
        cmocka_unit_test_setup_teardown(test_candidates, make_models, remove_folder),
        cmocka_unit_test_setup_teardown(test_texts_and_questions, make_models, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
