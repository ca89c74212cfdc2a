/* Adapters on the command line, LoRA's and soft prompts: a run that goes on, the adapter as a model
 * of other commands, and merged. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>

#define COMMAND_VARIABLES                                                      \
    "P=\"$MC pretrain gpt2 --data train.bin --pretrained base --batch-size 2 " \
    "--seq-length 16 --lr 0.03 --warmup 1 --steps 40 --lora-rank 2 --lora-dropout 0.1\" && "
#include "tests/tools/command_test.h"

enum { VOCABULARY = 61, TOKENS = 2000 };

/* A token is the one before plus 3, mostly: a base of random weights knows nothing of it. */
static void write_tokens(void)
{
    static struct {
        int32_t header[256];
        uint16_t tokens[TOKENS];
    } file;
    file.header[0] = 20240520;
    file.header[1] = 1;
    file.header[2] = TOKENS;
    for (int i = 0; i < TOKENS; i++) file.tokens[i] = (uint16_t)(i * 3 % VOCABULARY);
    write_bytes(temp_path(&folder, "train.bin"), &file, sizeof file);
}

static int set_up(void **state)
{
    (void)state;
    folder = temp_folder_new();
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 8});
    mc_gpt2_config c = mc_gpt2_config_default();
    c.vocab_size = VOCABULARY;
    c.dim = 16;
    c.dim_ff = 64;
    c.layers = 2;
    c.heads = 2;
    c.positions = 24;
    c.init_std = c.embedding_std = c.ffn_std = 0.2f;
    c.bos_token_id = c.eos_token_id = 0;
    mc_model_save(mc_gpt2_new(ctx, &c, NULL, NULL), temp_path(&folder, "base"));
    c.tied = false;
    mc_model_save(mc_gpt2_new(ctx, &c, &(mc_model_heads){.lm = false}, NULL),
                  temp_path(&folder, "bare"));
    int bad = mc_print_error(ctx, stderr);
    mc_context_free(ctx);
    write_tokens();
    return bad;
}

/* One run, and one that stops on the way and goes on. */
static void goes_on_to_the_bit(void **state)
{
    (void)state;
    must("$P --output whole");
    must_hold(err, "LoRA of rank 2");
    must("$P --output part --stop-after 7 && test -f part/adapter_model.safetensors && "
         "! test -f part/model.safetensors");
    must_refuse(1, "--lora-rank is 4", "$P --output part --resume --lora-rank 4");
    must("$P --output part --resume && "
         "cmp whole/adapter_model.safetensors part/adapter_model.safetensors");
    /* the base may lie elsewhere by then */
    must("$P --output away --stop-after 7 && mv base there && "
         "$P --pretrained there --output away --resume; code=$?; mv there base; "
         "test $code = 0 && cmp whole/adapter_model.safetensors away/adapter_model.safetensors");
}

/* Beside a base in 8 bits: the files of an adapter, to the bit after a stop. */
static void base_in_8_bits(void **state)
{
    (void)state;
    must("$P --base-weights fp8 --output eight");
    must("$P --base-weights fp8 --output eight-parts --stop-after 7");
    must_refuse(1, "--base-weights is float, but the run in eight-parts was begun with fp8",
                "$P --output eight-parts --resume");
    must("$P --base-weights fp8 --output eight-parts --resume && "
         "cmp eight/adapter_model.safetensors eight-parts/adapter_model.safetensors && "
         "! test -f eight/model.safetensors");
    must("$MC generate gpt2 --pretrained eight --ids --prompt '1 4 7' --max-new-tokens 6");
    must_refuse(1, "--base-weights: --model is no adapter: expected --lora-rank",
                "$MC pretrain --model base --data train.bin --base-weights int8");
    must_refuse(2, "--base-weights: expected --lora-rank",
                "$MC pretrain --config base --data train.bin --base-weights int8");
    must_refuse(2, "--fp8 with --base-weights int8", "$P --base-weights int8 --fp8 all");
    must_refuse(2, "--fp8 with --base-weights int8",
                "$MC plan gpt2 --config base --lora-rank 2 --base-weights int8 --fp8 all");
}

/* The same with products in 8 bits: four layers in each of two blocks. Its steps are others. */
static void products_in_8_bits(void **state)
{
    (void)state;
    must("$P --base-weights fp8 --fp8 all --output products");
    must_hold(err, "fp8: 8 linear layers train in 8 bits, with their rows' scales");
    must_hold(out, "fp8_linears=8");
    must("$P --base-weights fp8 --fp8 auto --output products-parts --stop-after 7");
    must("$P --base-weights fp8 --fp8 auto --output products-parts --resume && "
         "cmp products/adapter_model.safetensors products-parts/adapter_model.safetensors && "
         "! cmp -s products/adapter_model.safetensors eight/adapter_model.safetensors");
}

/* An adapter is trained further beside a base in 8 bits, and goes on to the bit after a stop. */
static void adapter_beside_8_bits(void **state)
{
    (void)state;
    static const char *const ways[] = {"int8", "fp8", "fp8 --fp8 all"};
    must("$P --output first");
    double first = number_after(out, " loss=");
    for (int i = 0; i < 3; i++) {
        char line[1000];
        snprintf(
            line, sizeof line,
            "rm -rf more parts && A=\"$MC pretrain --model first --data train.bin --batch-size "
            "2 --seq-length 16 --lr 0.01 --steps 20 --base-weights %s\" && "
            "$A --output parts --stop-after 7 && $A --output parts --resume && "
            "$A --output more && "
            "cmp more/adapter_model.safetensors parts/adapter_model.safetensors && "
            "! cmp -s more/adapter_model.safetensors first/adapter_model.safetensors",
            ways[i]);
        must(line);
        double loss = number_after(out, " loss=");
        if (!(loss < first + 0.05)) fail_msg("%s: loss %g after %g", ways[i], loss, first);
        must_hold(err, "LoRA of rank 2");
        must("$MC generate --model more --ids --prompt '1 4 7' --max-new-tokens 6");
    }
    must("S='--data train.bin --batch-size 2 --seq-length 16 --steps 2' && "
         "$MC pretrain --model base $S --virtual-tokens 3 --output soft && "
         "$MC pretrain --model soft $S "
         "--base-weights int8 --output softer");
}

/* A base that was moved: the errors name the adapter, its key and the option that helps. */
static void base_elsewhere(void **state)
{
    (void)state;
    static const char *const commands[] = {
        "generate --model first --ids --prompt 1 --max-new-tokens 2", "inspect --model first",
        "eval --model first --data train.bin",
        "pretrain --model first --data train.bin --batch-size 2 "
        "--seq-length 16 --steps 1 --no-save",
        "convert first put --merge"};
    must("rm -rf first && $P --output first && mv base there");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        char line[400];
        snprintf(line, sizeof line, "$MC %s", commands[i]);
        must_refuse(1, "/base: cannot open this folder", line);
        must_hold(err, "looking for the base of the adapter first: \"base_model_name_or_path\" of "
                       "its adapter_config.json names it, --base gives another");
        snprintf(line, sizeof line, "$MC %s --base nowhere/at/all", commands[i]);
        must_refuse(1, "looking for the base that --base gives for the adapter first", line);
        snprintf(line, sizeof line, "$MC %s --base there", commands[i]);
        must(line);
    }
    must("A='--data train.bin --batch-size 2 --seq-length 16 --steps 4 --base there' && "
         "$MC pretrain --model first $A --output on --stop-after 2 && "
         "$MC pretrain --model first $A --output on --resume");
    must_refuse(2, "--base: expected --model, an adapter that is trained further",
                "$MC pretrain --config there --base there --data train.bin");
    must_refuse(1, "is no adapter, but its base is given",
                "$MC pretrain --model there --base there --data train.bin");
    must("mv there base");
}

static void learns(void **state)
{
    (void)state;
    must("$P --lora-targets all-linear --lora-rank 8 --steps 2");
    double first = number_after(out, "loss=");
    must("$P --lora-targets all-linear --lora-rank 8");
    if (!(number_after(out, "loss=") < first - 0.3)) fail_msg("%g, then %s", first, out);
}

static void adapters_are_models(void **state)
{
    (void)state;
    char adapted[512];
    must("$MC generate gpt2 --pretrained whole --ids --prompt '1 4 7' --max-new-tokens 6");
    snprintf(adapted, sizeof adapted, "%.500s", out);
    must("$MC convert whole merged --merge && test -f merged/model.safetensors && "
         "! test -f merged/adapter_config.json");
    must("$MC generate gpt2 --pretrained merged --ids --prompt '1 4 7' --max-new-tokens 6");
    assert_string_equal(out, adapted);
    must("$MC info whole --tensors");
    must_hold(out, "base_model.model.transformer.h.0.attn.c_attn.lora_B.weight  F32 (48, 2)");
    must_refuse(1, "expected merge", "$MC convert whole other --to hf");
    must_refuse(1, "no adapter", "$MC convert base other --merge");
    must_refuse(2, "--to or --merge", "$MC convert base other");
    must("mv base moved");
    must_refuse(1, "--base", "$MC generate gpt2 --pretrained whole --ids --prompt 1");
    must("$MC generate gpt2 --pretrained whole --base moved --ids --prompt '1 4 7' "
         "--max-new-tokens 6");
    assert_string_equal(out, adapted);
    must("mv moved base");
    must_refuse(1, "no adapter",
                "$MC generate gpt2 --pretrained base --base base --ids --prompt 1");
}

static void options_are_checked(void **state)
{
    (void)state;
    must_refuse(2, "without --lora-rank", "$P --lora-rank 0 --lora-alpha 3");
    must_refuse(2, "--lora-alpha 0", "$P --lora-alpha 0");
    must_refuse(2, "commas", "$P --lora-targets c_attn,,c_fc");
    must_refuse(2, "--lora-targets: \"c_attn\" is named twice",
                "$P --lora-targets c_attn,c_fc,c_attn");
    must_refuse(2, "--lora-save: \"score\" is named twice", "$P --lora-save score,score");
    must_refuse(1, "\"q\" is no linear layer", "$P --lora-targets c_attn,q");
    must_refuse(2, "expected --model, which gives the base",
                "$MC pretrain gpt2 --config base --data train.bin --lora-rank 2 --seq-length 16");
    must_refuse(1, "is an adapter", "$P --pretrained whole");
    must("$MC plan gpt2 --config base --lora-rank 2 --seq-length 16");
    must("$P --steps 1 --lora-targets all-linear --lora-save ln_f --lora-rslora");
}

/* A base without a language model's head: the new one is trained, saved, and there again. */
static void head_that_the_base_lacks(void **state)
{
    (void)state;
    must("$P --pretrained bare --output headed");
    must_hold(err, "bare: the model has no language model head: a new one is made");
    must("$P --pretrained bare --output halves --stop-after 7");
    must("$P --pretrained bare --output halves --resume && "
         "cmp headed/adapter_model.safetensors halves/adapter_model.safetensors");
    must("$MC info headed --tensors");
    must_hold(out, "base_model.model.lm_head.weight  F32 (61, 16)");
    must("grep -A1 modules_to_save headed/adapter_config.json | grep lm_head");
    must("$MC eval gpt2 --model headed --data train.bin --batch-size 2");
    double adapted = number_after(out, "loss=");
    must("$MC convert headed whole-headed --merge && "
         "$MC eval gpt2 --model whole-headed --data train.bin --batch-size 2");
    assert_true(fabs(number_after(out, "loss=") - adapted) < 1e-4 * adapted);
}

#define PROMPT "${P% --lora-rank*} --virtual-tokens 4 "

/* The same of virtual tokens. */
static void prompts_go_on_to_the_bit(void **state)
{
    (void)state;
    must(PROMPT "--output prompt");
    must_hold(err, "4 virtual tokens: 0.000 M parameters are trained");
    must(PROMPT "--output half --stop-after 7 && test -f half/adapter_model.safetensors && "
                "! test -f half/model.safetensors");
    must_refuse(1, "--virtual-tokens is 5", PROMPT "--output half --resume --virtual-tokens 5");
    must(PROMPT "--output half --resume && "
                "cmp prompt/adapter_model.safetensors half/adapter_model.safetensors");
}

static void prompts_are_models(void **state)
{
    (void)state;
    must(PROMPT "--steps 2");
    double first = number_after(out, "loss=");
    must(PROMPT); /* all tokens are as frequent: little is to be gained without the order */
    if (!(number_after(out, "loss=") < first)) fail_msg("%g, then %s", first, out);
    must("$MC generate gpt2 --pretrained prompt --ids --prompt '1 4 7' --max-new-tokens 6");
    must("$MC info prompt --tensors");
    must_hold(out, "prompt_embeddings  F32 (4, 16)");
    must_refuse(1, "cannot be merged", "$MC convert prompt other --merge");
    must("$MC plan gpt2 --config base --virtual-tokens 4 --seq-length 16");
}

static void prompts_are_checked(void **state)
{
    (void)state;
    must_refuse(2, "one of --lora-rank and", "$P --virtual-tokens 4");
    must_refuse(2, "without --virtual-tokens", "$P --virtual-tokens-text yes");
    must_refuse(2, "expected --model, which gives the base",
                "$MC pretrain gpt2 --config base --data train.bin "
                "--virtual-tokens 4 --seq-length 16");
    must_refuse(2, "take no virtual tokens", PROMPT "--separate-documents");
    must_refuse(1, "the model has 20 positions", PROMPT "--seq-length 21");
    must_refuse(1, "needs --tokenizer", PROMPT "--virtual-tokens-text yes");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(goes_on_to_the_bit),       cmocka_unit_test(base_in_8_bits),
        cmocka_unit_test(products_in_8_bits),       cmocka_unit_test(adapter_beside_8_bits),
        cmocka_unit_test(base_elsewhere),           cmocka_unit_test(learns),
        cmocka_unit_test(adapters_are_models),      cmocka_unit_test(options_are_checked),
        cmocka_unit_test(head_that_the_base_lacks), cmocka_unit_test(prompts_go_on_to_the_bit),
        cmocka_unit_test(prompts_are_models),       cmocka_unit_test(prompts_are_checked)};
    return cmocka_run_group_tests(tests, set_up, remove_folder);
}
