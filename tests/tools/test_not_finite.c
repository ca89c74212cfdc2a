/* Models whose weights are finite and whose outputs in f16 are not: every command that reads
 * outputs says so, names the row and the dtype, and leaves no file. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tests/tools/command_test.h"
#include "tests/tools/small_models.h"

static const char quickstart[] = MC_SOURCE_DIR "/datasets/quickstart";
static const char hint[] = "are not finite: computed in f16, whose largest number is 65504; bf16 "
                           "and f32 have room";

/* Saves it with `weight` in its norms. */
static void save_with(float weight, mc_model *model, const mc_tokenizer *tok, const char *name,
                      const char *task)
{
    mc_parameter_iterator at = {0};
    char path[64];
    for (mc_parameter *p; (p = mc_module_next_parameter(mc_model_module(model), &at));) {
        float values[64];
        if (!strstr(mc_parameter_name(p), "norm") || !strstr(mc_parameter_name(p), "weight"))
            continue;
        for (int i = 0; i < 64; i++) values[i] = weight;
        mc_parameter_write(p, values);
    }
    mc_model_save(model, temp_path(&folder, name));
    if (tok) mc_tokenizer_save(tok, temp_path(&folder, name));
    snprintf(path, sizeof path, "%s/task.json", name);
    if (task) write_text(temp_path(&folder, path), task);
}

/* Saves it with norms whose outputs are beyond f16. */
static void save(mc_model *model, const mc_tokenizer *tok, const char *name, const char *task)
{
    save_with(60000, model, tok, name, task);
}

static void make_bert(mc_context *ctx, const mc_tokenizer *tok)
{
    static const char *const names[] = {"bad", "good"};
    mc_bert_config config = small_bert();
    mc_model *model =
        mc_bert_new(ctx, &config, &(mc_model_heads){.pooler = true, .labels = 2}, NULL);
    mc_model_set_task(model, NULL, names);
    save(model, tok, "bert",
         "{\"kind\": \"classify\", \"text\": \"review\", \"label\": \"label\"}");
    save(model, tok, "pairs",
         "{\"kind\": \"classify\", \"text\": \"review\", \"text_pair\": \"label\", "
         "\"label\": \"label\"}");
    save_with(NAN, model, tok, "spoiled", NULL);
}

static void make_gpt2(mc_context *ctx, const mc_tokenizer *tok)
{
    mc_gpt2_config config = small_gpt2();
    save(mc_gpt2_new(ctx, &config, NULL, NULL), tok, "gpt2", NULL);
    save(mc_gpt2_new(ctx, &config, NULL, NULL), tok, "writer",
         "{\"kind\": \"generate\", \"text\": \"review\", \"target\": \"label\", "
         "\"max_target_length\": 5}");
}

/* A language model of letters that reads the letter z as NaN, and no other one. */
static void make_llama(void)
{
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 5});
    mc_tokenizer *tok = mc_tokenizer_from_pretrained(ctx, temp_path(&folder, "own"));
    mc_llama_config config = mc_llama_config_default();
    static float words[SMALL_VOCABULARY * SMALL_DIM];
    config.vocab_size = SMALL_VOCABULARY;
    config.dim = SMALL_DIM;
    config.dim_ff = SMALL_DIM_FF;
    config.heads = config.key_heads = SMALL_HEADS;
    config.head_dim = -1;
    config.layers = 1;
    config.positions = 64;
    mc_model *model = mc_llama_new(ctx, &config, NULL, NULL);
    mc_parameter *p = mc_module_find_parameter(mc_model_module(model), "input_embedding.weight");
    mc_parameter_read(p, words);
    for (int i = 0; i < SMALL_DIM; i++)
        words[mc_tokenizer_token_to_id(tok, "z") * SMALL_DIM + i] = NAN;
    mc_parameter_write(p, words);
    mc_model_save(model, temp_path(&folder, "letters"));
    mc_tokenizer_save(tok, temp_path(&folder, "letters"));
    assert_int_equal(mc_print_error(ctx, stderr), 0);
    mc_context_free(ctx);
    write_text(temp_path(&folder, "letters/task.json"),
               "{\"kind\": \"generate\", \"text\": \"review\", \"target\": \"label\"}");
}

static int set_up(void **state)
{
    make_folder(state);
    write_text(temp_path(&folder, "rows.csv"),
               "review,label\nthe,good\nis the,bad\nthe is the,good\n");
    write_text(temp_path(&folder, "book.txt"), "the is the is the is the is the is");
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 5});
    mc_tokenizer *tok = mc_tokenizer_from_pretrained(ctx, quickstart);
    make_bert(ctx, tok);
    make_gpt2(ctx, tok);
    assert_int_equal(mc_print_error(ctx, stderr), 0);
    mc_context_free(ctx);
    /* the same with a token that ends a text */
    must("$MC tokenizer train --input book.txt --type byte-bpe --vocab-size 257 --output own && "
         "mkdir ends && "
         "cp writer/config.json writer/model.safetensors writer/task.json ends && cp own/* ends");
    make_llama();
    return 0;
}

/* The line fails with `where` and the hint, prints no result, and works in bf16. */
static void check(const char *where, const char *line)
{
    char whole[1024];
    snprintf(whole, sizeof whole, "%s --dtype f16", line);
    must_refuse(1, hint, whole);
    must_hold(err, where);
    assert_null(strstr(out, "result"));
    snprintf(whole, sizeof whole, "%s --dtype bf16", line);
    must(whole);
}

static void test_vectors_and_classes(void **state)
{
    (void)state;
    check("rows.csv:", "$MC embed --model bert --data rows.csv --output v.npy --overwrite");
    must("rm v.npy");
    must_refuse(1, hint, "$MC embed --model bert --data rows.csv --output v.npy --dtype f16");
    must("test ! -e v.npy && ! ls | grep -q tmp");
    check("the numbers of the vector of text 0", "$MC embed --model bert --text the");
    check("rows.csv:", "$MC predict --model bert --data rows.csv --output p.jsonl --overwrite");
    check("the logits of text 0", "$MC predict --model pairs --text the --text-pair is");
    must("rm p.jsonl");
    must_refuse(1, hint, "$MC predict --model bert --data rows.csv --output p.jsonl --dtype f16");
    must("test ! -e p.jsonl && ! ls | grep -q tmp");
}

static void test_scores(void **state)
{
    (void)state;
    check("rows.csv:", "$MC eval --model bert --data rows.csv");
    check("rows.csv:", "$MC eval --model pairs --data rows.csv");
    check("the losses of this row are", "$MC eval --model ends --data rows.csv");
    check("book.txt: the losses of the window from token 0 on",
          "$MC eval --model gpt2 --data book.txt --seq-length 8");
}

/* Of a batch whose loss is not finite the row is named that is the reason. */
static void test_row_of_batch(void **state)
{
    (void)state;
    must("printf 'review,label\na,b\nab,b\nabz,b\nba,a\n' > odd.csv; "
         "printf abcabcabcazbcabcz > odd.txt");
    for (int batch = 1; batch < 9; batch += 3) {
        char line[256];
        snprintf(line, sizeof line, "$MC eval --model letters --data odd.csv --batch-size %d",
                 batch);
        must_refuse(1, "odd.csv:4: the losses of this row are not finite", line);
        /* letters 0 to 3, 3 to 6, 6 to 9, 9 to 12, which has the first z */
        snprintf(line, sizeof line,
                 "$MC eval --model letters --data odd.txt --seq-length 4 --stride 3 "
                 "--batch-size %d",
                 batch);
        must_refuse(1, "odd.txt: the losses of the window from token 9 on are not finite", line);
    }
    must("grep -v z odd.csv > even.csv; $MC eval --model letters --data even.csv");
}

/* A model whose losses grow with the scale of its last norm. */
static void make_vast(float scale)
{
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 5});
    mc_gpt2_config config = small_gpt2();
    mc_model *model = mc_gpt2_new(ctx, &config, NULL, NULL);
    mc_module *module = mc_model_module(model);
    mc_parameter *words = mc_module_find_parameter(module, "input_embedding.weight");
    mc_parameter *norm = mc_module_find_parameter(module, "encoder.output_layernorm.weight");
    static float values[SMALL_VOCABULARY * SMALL_DIM];
    mc_parameter_read(words, values);
    for (int i = 0; i < SMALL_VOCABULARY * SMALL_DIM; i++) values[i] *= 20;
    mc_parameter_write(words, values);
    for (int i = 0; i < SMALL_DIM; i++) values[i] = scale;
    mc_parameter_write(norm, values);
    mc_model_save(model, temp_path(&folder, "vast"));
    assert_int_equal(mc_print_error(ctx, stderr), 0);
    mc_context_free(ctx);
}

/* Losses that are too large only together: all rows of the batch are named. */
static void test_batch_without_a_row(void **state)
{
    (void)state;
    bool found = false;
    must("mkdir vast; cp ends/* vast; { echo review,label; "
         "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do echo a,b; done; } > vast.csv");
    for (float scale = 1e36f; !found && scale < 1e38f; scale *= 4) {
        make_vast(scale);
        found = run("$MC eval --model vast --data vast.csv --batch-size 16") != 0;
    }
    assert_true(found);
    must_hold(err, "vast.csv:2: the losses of this row, or of others of a batch of 16 up to "
                   "vast.csv:17, are not finite");
}

static void test_texts(void **state)
{
    (void)state;
    check("of prompt 0", "$MC predict --model writer --data rows.csv");
    must_refuse(1, "of prompt 0",
                "$MC predict --model writer --data rows.csv --batch-size 1 "
                "--dtype f16");
}

static void test_images(void **state)
{
    (void)state;
#ifdef MC_HAVE_PNG
    must("mkdir vit && cp '" MC_SOURCE_DIR "/tests/datasets/images/'*.png . && "
         "echo '{\"model_type\": \"vit\", \"hidden_size\": 16, \"num_hidden_layers\": 1, "
         "\"num_attention_heads\": 2, \"intermediate_size\": 32, \"image_size\": 8, "
         "\"patch_size\": 4}' > vit/config.json && "
         "printf 'file,kind\\nrgb.png,colour\\ngrey.png,grey\\n' > images.csv && "
         "$MC finetune vit --config vit --data images.csv --val images.csv --image file --label "
         "kind "
         "--epochs 1 --output kinds");
    mc_context *ctx = mc_init_distributed(NULL);
    mc_load_options load = {.saved_heads = true};
    save(mc_model_from_pretrained(ctx, temp_path(&folder, "kinds"), &load), NULL, "kinds", NULL);
    assert_int_equal(mc_print_error(ctx, stderr), 0);
    mc_context_free(ctx);
    check("images.csv:", "$MC eval --model kinds --data images.csv");
    check("images.csv:2: ", "$MC predict --model kinds --data images.csv --image file");
    check("rgb.png: the logits of the image", "$MC predict --model kinds --image rgb.png");
#endif
}

/* A validation of fine-tuning has no metric then, and names a row. Training goes on, since what it
 * has done would be lost: its model is saved. */
static void check_validation(const char *where, const char *line)
{
    char whole[1024];
    snprintf(whole, sizeof whole,
             "rm -rf trained log.jsonl && %s --output trained --log-jsonl "
             "log.jsonl",
             line);
    must(whole);
    must_hold(err, where);
    must_hold(err, " are not finite: computed in ");
    assert_null(strstr(out, "accuracy="));
    assert_null(strstr(out, "loss="));
    must("ls trained | grep -q safetensors && grep '\"split\":' log.jsonl");
    assert_null(strstr(out, "\"accuracy\":0"));
    assert_null(strstr(out, "\"accuracy\":1"));
}

static void test_validation(void **state)
{
    (void)state;
#define FINETUNE(model) \
    "$MC finetune --model " model " --data rows.csv --val val.csv --text review "
    must("printf 'review,label\nis the,bad\nthe,good\n' > val.csv");
    check_validation(
        "warning: validation of rows.csv after step 1 has no metric, for 2 of its rows: val.csv:",
        FINETUNE("bert") "--label label --dtype f16 --epochs 1 --batch-size 3");
    check_validation(
        "warning: validation of rows.csv after step 1 has no metric, for 2 of its rows: val.csv:",
        FINETUNE("bert") "--label label --dtype f16 --epochs 1 --batch-size 3 "
                         "--keep best");
    check_validation("warning: validation of rows.csv after step 0 has no metric, for 2 of its "
                     "batches: val.csv:3: the losses of this row",
                     FINETUNE("ends") "--target label --dtype f16 --epochs 0 --batch-size 1");
    must("printf 'review,label\nis the,0.5\nthe,1.5\n' > numbers.csv");
    check_validation("has no metric, for 2 of its rows: numbers.csv:",
                     "$MC finetune --model bert --data numbers.csv --val numbers.csv --text review "
                     "--label label --regression --dtype f16 --epochs 1 --batch-size 2");
    /* a run that has diverged: weights are NaN */
    check_validation(
        "warning: validation of rows.csv after step 0 has no metric, for 2 of its rows: val.csv:",
        FINETUNE("spoiled") "--label label --epochs 0");
}

/* With a loss scale a weight that is NaN makes every step overflow: training ends and names it. */
static void test_training_without_steps(void **state)
{
    (void)state;
    must_refuse(1, "has a value that is infinite or NaN, and so has the gradient of",
                FINETUNE("spoiled") "--label label --dtype f16 --loss-scale 2 --batch-size 3 "
                                    "--epochs 50 --output never");
    must_hold(err, "error: parameter \"");
    must_hold(err, "as in each of the 16 steps before, at the least loss scale 1; no step");
    assert_null(strstr(out, "result"));
    must("test ! -e never/model.safetensors");
}

/* Pretraining goes on: its validations warn. */
static void test_validation_of_pretraining(void **state)
{
    (void)state;
    must("$MC prepare --tokenizer gpt2 --input book.txt --output book.bin");
    must("$MC pretrain --model gpt2 --data book.bin --val book.bin --dtype f16 --seq-length 8 "
         "--batch-size 1 --steps 1 --output more");
    must_hold(err, "warning: the validation loss after step 1 is not finite: computed in f16");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors_and_classes),
        cmocka_unit_test(test_scores),
        cmocka_unit_test(test_row_of_batch),
        cmocka_unit_test(test_batch_without_a_row),
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_images),
        cmocka_unit_test(test_validation),
        cmocka_unit_test(test_training_without_steps),
        cmocka_unit_test(test_validation_of_pretraining),
    };
    return cmocka_run_group_tests(tests, set_up, remove_folder);
}
