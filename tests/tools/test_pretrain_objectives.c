/* `modelcenter pretrain` with the objective of each family: tiny models learn; a run that was
 * stopped goes on to the byte, and with another objective is refused; memory is what was planned;
 * errors name what is wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tests/tokenizers/jieba_test.h"

#define COMMAND_VARIABLES    \
    "P=\"$MC pretrain\" && " \
    "S=\"--batch-size 4 --seq-length 48 --lr 0.01 --dropout 0 --shuffle --seed 5\" && "
#include "tests/tools/command_test.h"

enum { TOKENS = 12000, LETTERS = 20 };

/* ---- data ------------------------------------------------------------------------------------ */

/* Letters that come many times over before the next one does, so that each follows from those
 * around it; they are the ids from `first` on. Documents end now and then with `end`; -1: never. */
static void write_stream(const char *name, int first, int end, uint32_t seed)
{
    static struct {
        int32_t header[256];
        uint16_t tokens[TOKENS];
    } file;
    memset(&file, 0, sizeof file);
    file.header[0] = 20240520;
    file.header[1] = 1;
    file.header[2] = TOKENS;
    for (int i = 0, letter = 0; i < TOKENS; i++) {
        seed = seed * 1664525 + 1013904223;
        if (seed >> 28 == 0) letter = (int)(seed >> 16 & 255) % LETTERS;
        bool ends = end >= 0 && (seed >> 8 & 127) == 0;
        file.tokens[i] = (uint16_t)(ends ? end : first + letter);
    }
    write_bytes(temp_path(&folder, name), &file, sizeof file);
}

static void write_vocabulary(const char *name, const char *head, const char *extra)
{
    char text[4096], path[64];
    int used = snprintf(text, sizeof text, "%s", head);
    for (int i = 0; i < LETTERS; i++)
        used +=
            snprintf(text + used, sizeof text - (size_t)used, "%s%c\n", i % 3 ? "##" : "", 'a' + i);
    for (int i = 0; extra && i < 8; i++)
        used += snprintf(text + used, sizeof text - (size_t)used, extra, i);
    assert_int_equal(mkdir(temp_path(&folder, name), 0777), 0);
    snprintf(path, sizeof path, "%s/vocab.txt", name);
    write_text(temp_path(&folder, path), text);
}

/* RoBERTa's tokenizer, of letters of which every third begins a word. */
static void write_bpe(void)
{
    char text[1024];
    int used =
        snprintf(text, sizeof text, "{\"<s>\":0,\"<pad>\":1,\"</s>\":2,\"<unk>\":3,\"<mask>\":4");
    for (int i = 0; i < LETTERS; i++)
        used += snprintf(text + used, sizeof text - (size_t)used, ",\"%s%c\":%d",
                         i % 3 ? "" : "\xC4\xA0", 'a' + i, 5 + i);
    snprintf(text + used, sizeof text - (size_t)used, "}");
    assert_int_equal(mkdir(temp_path(&folder, "roberta"), 0777), 0);
    write_text(temp_path(&folder, "roberta/vocab.json"), text);
    write_text(temp_path(&folder, "roberta/merges.txt"), "#version: 0.2\n");
    write_text(temp_path(&folder, "roberta/tokenizer_config.json"),
               "{\"tokenizer_class\": \"RobertaTokenizer\"}");
}

static void write_configs(void)
{
    static const char encoder[] =
        "{\"model_type\": \"%s\", \"vocab_size\": 40, \"hidden_size\": 32, "
        "\"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"intermediate_size\": 64, "
        "\"max_position_embeddings\": 64, \"pad_token_id\": 0}";
    static const char cpm[] =
        "{\"vocab_size\": %d, \"dim_model\": 32, \"num_heads\": 2, \"dim_head\": 16, "
        "\"dim_ff\": 64, %s, \"tied\": true}";
    char text[600];
    snprintf(text, sizeof text, encoder, "bert");
    write_text(temp_path(&folder, "bert.json"), text);
    snprintf(text, sizeof text, encoder, "roberta");
    write_text(temp_path(&folder, "roberta.json"), text);
    write_text(temp_path(&folder, "t5.json"),
               "{\"model_type\": \"t5\", \"vocab_size\": 48, \"d_model\": 32, \"d_ff\": 64, "
               "\"num_layers\": 2, \"num_heads\": 2, \"d_kv\": 16}");
    write_text(temp_path(&folder, "gpt2.json"),
               "{\"model_type\": \"gpt2\", \"vocab_size\": 40, \"n_embd\": 32, \"n_layer\": 2, "
               "\"n_head\": 2, \"n_positions\": 64}");
    write_text(temp_path(&folder, "gptj.json"),
               "{\"model_type\": \"gptj\", \"vocab_size\": 40, \"n_embd\": 32, \"n_layer\": 2, "
               "\"n_head\": 2, \"n_positions\": 64, \"rotary_dim\": 8}");
    snprintf(text, sizeof text, cpm, 40, "\"num_layers\": 2");
    write_text(temp_path(&folder, "cpm1.json"), text);
    snprintf(text, sizeof text, cpm, 40, "\"num_encoder_layers\": 2, \"num_decoder_layers\": 2");
    write_text(temp_path(&folder, "cpm2.json"), text);
}

static int set_up(void **state)
{
    (void)state;
    folder = temp_folder_new();
    setenv("OMP_NUM_THREADS", "1", 1);
    write_jieba(&folder, "jieba");
    write_vocabulary("bert", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n", NULL);
    write_vocabulary("t5", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n</s>\n", "<extra_id_%d>\n");
    write_vocabulary("cpm2",
                     "<unk>\n<s>\n</s>\n\xE2\x96\x83\n<sep>\n<pad>\n<mask>\n<eod>\n"
                     "\xE2\x96\x81\n\xE2\x96\x82\n",
                     "<s_%d>\n");
    write_bpe();
    write_configs();
    write_stream("letters.bin", 5, -1, 1);
    write_stream("documents.bin", 5, 4, 2);
    write_stream("cpm2.bin", 10, 7, 3);
    write_stream("val.bin", 5, 4, 4);
    return 0;
}

/* ---- learning -------------------------------------------------------------------------------- */

/* From about log 40 = 3.7 (BERT: and log 2 of the pairs) to below `loss` in $N steps; under
 * sanitizers there are ten, which learn little. */
static void learns(int steps, const char *line, const char *says, double loss)
{
    char whole[1200];
    snprintf(whole, sizeof whole, "N=%d && %s", is_watched() ? 10 : steps, line);
    must(whole);
    must_hold(err, says);
    double first = number_after(err, "| loss "), last = number_after(out, " loss=");
    if (!(first > 3.2 && (is_watched() || last < loss)))
        fail_msg("loss from %.4f to %.4f, expected below %.2f: %s", first, last, loss, line);
}

static void test_each_family_learns(void **state)
{
    (void)state;
    learns(200,
           "$P bert --config bert.json --tokenizer bert --data letters.bin --steps $N $S "
           "--batch-size 12 "
           "--output bert-run && grep -q BertForPreTraining bert-run/config.json && "
           "test -e bert-run/vocab.txt",
           "objective: 7 of 45 tokens masked, and whether the second part follows the first\n",
           2.6);
    learns(200,
           "$P bert --config bert.json --tokenizer bert --data letters.bin --steps $N $S "
           "--batch-size 12 --no-nsp "
           "--whole-word-mask --mask-probability 0.2 --output mlm && "
           "grep -q BertForMaskedLM mlm/config.json",
           "objective: 9 of 46 tokens masked, whole words\n", 2.6);
    learns(250,
           "$P roberta --config roberta.json --tokenizer roberta --data documents.bin --steps $N "
           "$S --batch-size 12 --whole-word-mask",
           "objective: 7 of 46 tokens masked, whole words\n", 2.6);
    learns(
        200,
        "$P t5 --config t5.json --tokenizer t5 --data documents.bin --steps $N $S --batch-size 12",
        "objective: spans of 52 tokens, as inputs of 48 and targets of 12\n", 2.6);
    learns(200, "$P cpm1 --config cpm1.json --data documents.bin --steps $N $S --batch-size 12",
           "objective: the middle of each document", 2.6);
    learns(200,
           "$P cpm2 --config cpm2.json --tokenizer cpm2 --data cpm2.bin --steps $N $S "
           "--batch-size 12",
           "objective: spans of 53 tokens, as inputs of 48 and targets of 12\n", 2.6);
    learns(100, "$P gptj --config gptj.json --data letters.bin --steps $N $S --batch-size 12",
           "gptj: ", 2.6);
}

/* Weights of one run are where the next begins, with their tokenizer. */
static void test_given_weights(void **state)
{
    (void)state;
    must("rm -rf more && $P bert --pretrained bert-run --data letters.bin --val val.bin "
         "--batch-size 4 --seq-length 48 --steps 1 --lr 0 --output more");
    double most = is_watched() ? 5 : 2.8;
    assert_true(number_after(out, " loss=") < most && number_after(out, "val_loss=") < most);
    must("cmp bert-run/vocab.txt more/vocab.txt");
    must("$P bert --pretrained mlm --data letters.bin $S --steps 1 --no-nsp 2>said && "
         "! grep 'a new one is made' said");
    must("$P bert --pretrained mlm --data letters.bin $S --steps 1 2>said && "
         "grep -q 'warning: mlm: the model has no next sentence head: a new one is made' said && "
         "! grep 'no language model head' said");
}

/* ---- resuming -------------------------------------------------------------------------------- */

static void check_resume(const char *given)
{
    char line[1200];
    snprintf(line, sizeof line,
             "rm -rf whole parts && "
             "R=\"$P %s $S --val val.bin --val-every 4 --tokens-per-step 384 --steps 9\" && "
             "$R --output whole && $R --output parts --stop-after 4 && "
             "$R --output parts --resume && "
             "cmp whole/model.safetensors parts/model.safetensors && cmp "
             "whole/checkpoint-9/optimizer.safetensors parts/checkpoint-9/optimizer.safetensors",
             given);
    must(line);
    must_hold(err, "resumed after step 4 from parts/checkpoint-4\n");
}

static void test_resume(void **state)
{
    (void)state;
    check_resume("bert --config bert.json --tokenizer bert --data letters.bin --recompute full");
    check_resume("t5 --config t5.json --tokenizer t5 --data documents.bin --recompute selective");
    check_resume("cpm1 --config cpm1.json --data documents.bin");
    check_resume(
        "bert --config bert.json --tokenizer bert --data letters.bin:0.7 documents.bin:0.3");
}

static void test_other_objectives(void **state)
{
    (void)state;
    must(
        "rm -rf run && $P bert --config bert.json --tokenizer bert --data letters.bin $S --steps 2 "
        "--output run");
    must("$P bert --data letters.bin $S --steps 3 --output run --resume"); /* with its tokenizer */
    static const char *const changes[][2] = {
        {"--mask-probability 0.2", "--mask-probability is 0.2, but the run in run was begun with "
                                   "0.15"},
        {"--whole-word-mask", "--whole-word-mask is true, but the run in run was begun with false"},
        {"--no-nsp", "--no-nsp is true, but the run in run was begun with false"},
        {"--tokenizer roberta", "--tokenizer is mask 4 begin 0 separator 2, but the run in run was "
                                "begun with mask 4 begin 2 separator 3"}};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        char line[300];
        snprintf(line, sizeof line,
                 "$P bert --data letters.bin $S --steps 4 --output run --resume %s", changes[i][0]);
        must_refuse(1, changes[i][1], line);
    }
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void test_plan_is_right(void **state)
{
    (void)state;
    static const char *const runs[] = {
        "bert --config bert.json --tokenizer bert --data letters.bin",
        "t5 --config t5.json --tokenizer t5 --data documents.bin --tokens-per-step 576",
        "cpm1 --config cpm1.json --data documents.bin --recompute full"};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        char line[300];
        snprintf(line, sizeof line, "$P %s $S --steps 2", runs[i]);
        must(line);
        double real = number_after(out, "peak_bytes="),
               planned = number_after(out, "planned_bytes=");
        if (planned < 0.98 * real || planned > 1.02 * real)
            fail_msg("planned %.0f, was %.0f: %s", planned, real, line);
    }
    must("$P t5 --config t5.json --tokenizer t5 --data documents.bin --batch-size auto "
         "--memory 0.02 --seq-length 48 --steps 1");
    assert_true(number_after(out, "peak_bytes=") <= 0.02 * 1024 * 1024 * 1024);
}

/* Frozen weights have no gradients of their own, 4 N; the factors have theirs, 6 N, for the rows of
 * their stack, `of_memory` of a decoder's for the encoder's. `pairs` of rows attend to each
 * other. */
static void check_lora_work(mc_model *m, mc_sequence_work work, double pairs, double of_memory)
{
    double attention = 12 * 32 * pairs, factors[2] = {0};
    double whole = mc_model_sequence_flops(m, &work) - attention;
    assert_int_equal(mc_lora_add(m, &(mc_lora_options){.rank = 2}), MC_OK);
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(mc_model_module(m), &it));)
        if (mc_parameter_trainable(p))
            factors[strncmp(mc_parameter_name(p), "decoder", 7) == 0] +=
                (double)mc_shape_count(mc_parameter_shape(p));
    assert_true(factors[0] > 0 && factors[1] >= of_memory);
    double rows = factors[0] + of_memory, targets = factors[1] - of_memory;
    double expected = whole * 4 / 6 + 6 * (rows * 48 + targets * 12) + attention;
    assert_float_equal(mc_model_sequence_flops(m, &work), expected, 1);
}

/* FLOP of a sequence by hand: of T5 with T = 48 and targets of 12, D = 32, width 32, F = 64. */
static void test_work(void **state)
{
    (void)state;
    mc_context *ctx = mc_init_distributed(NULL);
    mc_model *t5 = mc_model_new(ctx, "t5", temp_path(&folder, "t5.json"), NULL, NULL);
    double attention = 4 * 32 * 32, norm = 32, ffn = 2 * 32 * 64;
    double encoder = 2 * (attention + ffn + 2 * norm);
    double decoder = 2 * (2 * attention + ffn + 3 * norm), between = 2 * 2 * 32 * 32;
    double products = 48 * (encoder + between) + 12 * (decoder - between) + 12 * 48 * 32;
    double pairs = 2 * 48 * 48 + 2 * 12 * (12 + 48);
    mc_sequence_work work = {.length = 48, .target_length = 12};
    assert_float_equal(mc_model_sequence_flops(t5, &work), 6 * products + 12 * 32 * pairs, 1);
    mc_model *gpt2 = mc_model_new(ctx, "gpt2", temp_path(&folder, "gpt2.json"), NULL, NULL);
    work = (mc_sequence_work){.length = 48};
    assert_float_equal(mc_model_sequence_flops(gpt2, &work), 48 * mc_model_flops(gpt2, 48), 1);
    mc_model *bert = mc_model_new(ctx, "bert", temp_path(&folder, "bert.json"), NULL, NULL);
    double all = mc_model_sequence_flops(bert, &work);
    work.targets = 8;
    assert_float_equal(all - mc_model_sequence_flops(bert, &work), 6.0 * 40 * 40 * 32, 1);
    assert_true(mc_model_sequence_flops(NULL, &work) == 0);
    check_lora_work(bert, (mc_sequence_work){.length = 48}, 2 * 48 * 48, 0);
    /* T5's queries and values, of rank 2: those of values between the stacks read 48 rows each */
    check_lora_work(t5, (mc_sequence_work){.length = 48, .target_length = 12},
                    2 * 48 * 48 + 2 * 12 * (12 + 48), 2 * 2 * (32 + 32));
    assert_false(mc_print_error(ctx, stderr));
    mc_context_free(ctx);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void test_errors(void **state)
{
    (void)state;
    must_refuse(1, "--tokenizer is required: pretraining bert puts in tokens of its own",
                "$P bert --config bert.json --data letters.bin $S --steps 1");
    must_refuse(1, "objective: the tokenizer has no token \"</s>\"",
                "$P t5 --config t5.json --tokenizer bert --data letters.bin $S --steps 1");
    must_refuse(1, "--tokenizer cpm2 has 38 tokens, the model only 20",
                "sed 's/40/20/' cpm2.json >small.json && "
                "$P cpm2 --config small.json --tokenizer cpm2 --data cpm2.bin $S --steps 1");
    must_refuse(1, "a sequence of 256 has 14 sentinels, the tokenizer only 8",
                "$P t5 --config t5.json --tokenizer t5 --data documents.bin --seq-length 256");
    must_refuse(1, "seq_length is 16, expected 32 or more",
                "$P cpm1 --config cpm1.json --data documents.bin --seq-length 16");
    must_refuse(1, "expected more than those that a sequence takes, 14114",
                "$P t5 --config t5.json --tokenizer t5 --data documents.bin --seq-length 12000 "
                "--mean-span-length 1200");
    must_refuse(1, "--target-length is 2: the spans of inputs of",
                "$P t5 --config t5.json --tokenizer t5 --data documents.bin $S --steps 1 "
                "--max-decoder-length 2");
    must("$P cpm2 --config cpm2.json --tokenizer cpm2 --data cpm2.bin $S --steps 1 "
         "--max-decoder-length 64");
    must_refuse(1, "this tokenizer's vocabulary does not say which tokens continue a word",
                "$P bert --config bert.json --tokenizer cpm2 --data letters.bin $S --steps 1 "
                "--whole-word-mask --no-nsp");
    must_refuse(2, "--whole-word-mask: gpt2 is not pretrained in a way that has a use for it",
                "$P gpt2 --config gpt2.json --data letters.bin $S --whole-word-mask");
    must_refuse(2, "--no-nsp: roberta is not",
                "$P roberta --config roberta.json --data x --no-nsp");
    must_refuse(2, "--mask-probability: t5 is not",
                "$P t5 --config t5.json --data x --mask-probability 0.1");
    must_refuse(2, "--target-length: bert is not",
                "$P bert --config bert.json --data x --target-length 9");
    must_refuse(2, "--noise-density: bert is not",
                "$P bert --config bert.json --data x --noise-density 0.1");
    must_refuse(2, "--mean-span-length: cpm1 is not",
                "$P cpm1 --config cpm1.json --data x --mean-span-length 4");
    must_refuse(2, "--sample-every: bert is not",
                "$P bert --config bert.json --data x --sample-every 2 --tokenizer bert");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_family_learns),
                                       cmocka_unit_test(test_given_weights),
                                       cmocka_unit_test(test_resume),
                                       cmocka_unit_test(test_other_objectives),
                                       cmocka_unit_test(test_plan_is_right),
                                       cmocka_unit_test(test_work),
                                       cmocka_unit_test(test_errors)};
    return cmocka_run_group_tests(tests, set_up, remove_folder);
}
