/* `modelcenter pretrain`: a tiny GPT-2 on token files made here. It learns; a run that was stopped,
 * interrupted or killed goes on to the bit; memory is what was planned; errors name what is
 * wrong. */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>

/* $P and the like stand for the command with what runs share. */
#define COMMAND_VARIABLES                                                            \
    "G=\"$MC pretrain gpt2\" && P=\"$G --data train.bin\" && "                       \
    "U=\"$G --config tiny.json --batch-size 2 --seq-length 16 --tokens-per-step 64 " \
    "--lr 0.01 --dropout 0.2 --clip 0.5 --shuffle --seed 5\" && "                    \
    "T=\"$U --data train.bin\" && "
#include "tests/child.h"
#include "tests/tools/command_test.h"

enum { VOCABULARY = 61 };

/* ---- data ------------------------------------------------------------------------------------ */

static void write_tokens(const char *name, int count, int most, uint32_t seed)
{
    static struct {
        int32_t header[256];
        uint16_t tokens[8000];
    } file;
    memset(&file, 0, sizeof file);
    file.header[0] = 20240520;
    file.header[1] = 1;
    file.header[2] = count;
    uint32_t token = 0;
    for (int i = 0; i < count; i++) {
        seed = seed * 1664525 + 1013904223;
        token = (token * 5 + (seed >> 30 ? 1 : 2)) % (uint32_t)most;
        file.tokens[i] = (uint16_t)token;
    }
    write_bytes(temp_path(&folder, name), &file, sizeof file.header + 2 * (size_t)count);
}

static int set_up(void **state)
{
    (void)state;
    folder = temp_folder_new();
    setenv("OMP_NUM_THREADS", "1", 1);
    write_tokens("train.bin", 6000, VOCABULARY, 1);
    write_tokens("val.bin", 900, VOCABULARY, 2);
    write_tokens("other.bin", 6000, VOCABULARY, 3);
    write_tokens("large.bin", 6000, VOCABULARY + 1, 4);
    write_tokens("short.bin", 10, VOCABULARY, 5);
    write_text(temp_path(&folder, "tiny.json"),
               "{\"model_type\": \"gpt2\", \"vocab_size\": 61, \"n_embd\": 32, \"n_layer\": 2, "
               "\"n_head\": 2, \"n_positions\": 64}");
    write_text(temp_path(&folder, "wide.json"),
               "{\"model_type\": \"gpt2\", \"vocab_size\": 203, \"n_embd\": 96, \"n_layer\": 3, "
               "\"n_head\": 3, \"n_positions\": 128}");
    return 0;
}

/* ---- learning -------------------------------------------------------------------------------- */

static void test_it_learns(void **state)
{
    (void)state;
    must("$P --config tiny.json --val val.bin --batch-size 4 --seq-length 32 --steps 80 --lr 0.01 "
         "--val-every 20 --output learn --log-jsonl learn.jsonl --tensorboard board "
         "--peak-tflops 0.1");
    assert_memory_equal(out, "result model=gpt2 steps=80 tokens=10240 loss=", 45);
    assert_true(number_after(out, "val_loss=") < 2.6); /* from log 61 = 4.1 */
    assert_true(number_after(out, " loss=") < 2.6);
    assert_true(number_after(out, "mfu=") > 0 && number_after(out, "tokens_per_s=") > 0);
    must_hold(err, "\nMFU: (6 N + 12 L D T) FLOP a token = 6 x 29472 + 12 x 2 x 32 x 32");
    must_hold(err, "\nstep    1/80 | loss 4.");
    must_hold(err, "\nstep   80/80 | loss ");
    must_hold(err, "% f32 MFU | ");
    must_hold(err, "\nval    20/80 | loss ");
    must_hold(err, "\nsaved step 80 to learn (training paused for ");
    read_into(out, "learn.jsonl");
    must_hold(out, "{\"step\":1,\"loss\":4.");
    must_hold(out, "{\"step\":80,\"split\":\"val\",\"loss\":");
    must("ls board/events.out.tfevents.*");
    mc_context *ctx = mc_init_distributed(NULL);
    mc_model *gpt2 = mc_gpt2_from_pretrained(ctx, temp_path(&folder, "learn"), NULL);
    assert_false(mc_print_error(ctx, stderr));
    assert_int_equal(mc_gpt2_get_config(gpt2).vocab_size, VOCABULARY);
    mc_context_free(ctx);
    /* its weights are where the next run begins */
    must("$P --pretrained learn --val val.bin --batch-size 4 --seq-length 32 --steps 1 --lr 0 "
         "--no-save");
    assert_true(number_after(out, " loss=") < 2.8);
    assert_int_equal(run("test -e learn/optimizer.safetensors"), 1);
}

static void test_defaults(void **state)
{
    (void)state;
    must("$P --config tiny.json --no-save"); /* once over the data, no validation */
    must_hold(err, "nothing will be saved (--no-save)\n");
    must_hold(out, "result model=gpt2 steps=23 tokens=5888 ");
    assert_null(strstr(out, "val_loss=")); /* it was not measured */
    assert_null(strstr(out, "nan"));
    must_hold(err, "f32\ndata: 6000 tokens; 23 steps of 256 tokens (4 sequences of 64, 1 times)\n");
    must("$P --config tiny.json --data 'v*.bin' val.bin --seq-length 32 --batch-size 1 --no-save");
    must_hold(err, "data: 7800 tokens; 243 steps of 32 tokens"); /* 187 + 28 + 28 sequences */
    must("$P --config gpt2-base --help");
    must_hold(out, "usage: modelcenter pretrain --data PATH... [options]");
}

/* ---- resuming -------------------------------------------------------------------------------- */

static void check_resume(const char *dtype)
{
    char line[600];
    must("rm -rf whole parts whole.jsonl parts.jsonl");
    snprintf(line, sizeof line,
             "R=\"$T --val val.bin --val-every 7 --steps 24 %s\" && "
             "$R --output whole --log-jsonl whole.jsonl && "
             "$R --output parts --log-jsonl parts.jsonl --stop-after 5 --save-every 2 && "
             "$R --output parts --log-jsonl parts.jsonl --resume --stop-after 14 && "
             "$R --output parts --log-jsonl parts.jsonl --resume",
             dtype);
    must(line);
    must_hold(err, "resumed after step 5 from parts/checkpoint-5\n");
    must_hold(err, "resumed after step 14 from parts/checkpoint-14\n");
    same_logs("whole.jsonl", "parts.jsonl");
    must("cmp whole/model.safetensors parts/model.safetensors && "
         "cmp whole/checkpoint-24/optimizer.safetensors parts/checkpoint-24/optimizer.safetensors "
         "&& test \"$(ls parts | tr '\\n' ' ')\" = "
         "'checkpoint-14 checkpoint-24 config.json model.safetensors run.json '");
}

static void test_resume_f32(void **state)
{
    (void)state;
    check_resume("");
    read_into(out, "whole.jsonl");
    double loss = number_after(out, "{\"step\":24,\"loss\":");
    double val_loss = number_after(out, "{\"step\":24,\"split\":\"val\",\"loss\":");
    must("$T --val val.bin --val-every 7 --steps 24 --output whole --resume");
    must_hold(err, "\nnothing is left to train: 24 steps are done, of 24\n");
    must_hold(out, "result model=gpt2 steps=24 ");
    assert_true(fabs(number_after(out, " loss=") - loss) < 1e-6);
    assert_true(fabs(number_after(out, " val_loss=") - val_loss) < 1e-6);
}

static void test_resume_bf16(void **state)
{
    (void)state;
    check_resume("--dtype bf16 --recompute full");
}

static void test_resume_f16(void **state)
{
    (void)state;
    check_resume("--dtype f16 --loss-scale 2e6"); /* which overflows at first */
    read_into(out, "whole.jsonl");
    must_hold(out, "\"grad_norm\":null,");
}

/* Muon's state, and a run that was begun with other options of it. */
static void test_resume_muon(void **state)
{
    (void)state;
    check_resume("--optimizer muon --lr-other 0.003 --recompute selective");
    must_refuse(1, "--optimizer is adam, but the run in whole was begun with muon",
                "$T --steps 24 --output whole --resume");
    must_refuse(1, "--lr-other is 0.01, but the run in whole was begun with 0.003",
                "$T --steps 24 --output whole --resume --optimizer muon");
    must_refuse(1, "--muon-dtype is f32, but the run in whole was begun with bf16",
                "$T --steps 24 --output whole --resume --optimizer muon --lr-other 0.003 "
                "--muon-dtype f32");
}

/* What differs is named by the option that has to change first. */
static void test_resume_names(void **state)
{
    (void)state;
    must("$T --steps 4 --output eight_bit --optimizer-state 8bit --stop-after 2");
    must_refuse(1, "--optimizer is muon, but the run in eight_bit was begun with adam",
                "$T --steps 4 --output eight_bit --optimizer muon --resume");
    write_text(temp_path(&folder, "llama.json"),
               "{\"model_type\": \"llama\", \"vocab_size\": 61, \"hidden_size\": 32, "
               "\"intermediate_size\": 64, \"num_hidden_layers\": 2, \"num_attention_heads\": 2}");
    must_refuse(1, "--resume: --config is llama, but the run in eight_bit was begun with gpt2",
                "$MC pretrain --config llama.json --data train.bin --steps 4 --output eight_bit "
                "--resume");
}

static void same_losses(const char *a, const char *b, int steps)
{
    static char first[TEXT_ROOM], second[TEXT_ROOM];
    read_into(first, a);
    read_into(second, b);
    for (int step = 1; step <= steps; step++) {
        char line[24];
        snprintf(line, sizeof line, "{\"step\":%d,", step);
        must_hold(first, line);
        must_hold(second, line);
        double x = number_after(strstr(first, line), "\"loss\":");
        double y = number_after(strstr(second, line), "\"loss\":");
        /* sums of f32 in another order, whose differences 60 steps of Adam enlarge */
        if (!(fabs(x - y) <= 2e-4 * x)) fail_msg("step %d: loss %.7g and %.7g", step, x, y);
    }
}

/* A run goes on in smaller batches of the same steps, over the ends of epochs, which stay those of
 * the batches that it was begun with: 93 sequences are 92 in batches of 4. */
static void test_resume_micro_batch(void **state)
{
    (void)state;
    static const char line[] =
        "B='--config tiny.json --seq-length 64 --tokens-per-step 256 --lr 0.003 --shuffle --seed 5 "
        "--steps 60' && ";
    char whole[1000];
    snprintf(whole, sizeof whole,
             "%s $P $B --batch-size 4 --no-save --log-jsonl large.jsonl && "
             "$P $B --batch-size 4 --stop-after 10 --output small --log-jsonl small.jsonl && "
             "$P $B --batch-size 2 --stop-after 20 --output small --log-jsonl small.jsonl --resume",
             line);
    must(whole);
    must_hold(err, "the run was begun with batch-size 4, it goes on with 2: the same up to "
                   "rounding\n");
    snprintf(whole, sizeof whole,
             "%s $P $B --batch-size 1 --output small --log-jsonl small.jsonl --resume", line);
    must(whole);
    same_losses("large.jsonl", "small.jsonl", 60);
    snprintf(whole, sizeof whole,
             "%s $P $B --batch-size 1 --stop-after 2 --output ones && "
             "$P $B --batch-size 4 --steps 23 --stop-after 3 --output ones --resume && "
             "$P $B --batch-size 4 --output ones --resume",
             line);
    must_refuse(1,
                "--batch-size is 4, but the run in ones was begun with batches that divide an "
                "epoch's 93 sequences: expected a --batch-size that on 1 rank divides them too",
                whole);
}

/* Validation may end or begin with a part of a run, but is of the same data. */
static void test_resume_validation(void **state)
{
    (void)state;
    static const char wrong[] = "--val is not what the run in judged was begun with (6000 tokens "
                                "here, 900 there";
    must("$T --steps 2 --val val.bin --output judged");
    must_refuse(1, wrong, "$T --steps 4 --val other.bin --output judged --resume");
    must("$T --steps 4 --output judged --resume");
    must_hold(err, "the run was begun with --val, it goes on without validation");
    must_refuse(1, wrong, "$T --steps 6 --val other.bin --output judged --resume");
    must("cp val.bin moved.bin && $T --steps 6 --val moved.bin --output judged --resume "
         "--val-batches 3");
    must_hold(err, "a validation is of 6 sequences from here on, it was of 40: see --val-batches");
    must_hold(out, " val_loss=");
    must("$T --steps 2 --output unjudged && "
         "$T --steps 4 --val val.bin --output unjudged --resume");
    must_hold(out, " val_loss=");
    must_refuse(1, "--val is not what the run in unjudged was begun with",
                "$T --steps 6 --val other.bin --output unjudged --resume");
}

/* A checkpoint of commit 8984dec, before parameters lay in today's buckets and when configs had
 * their keys in another order: the run goes on as it did there. */
static void test_resume_earlier(void **state)
{
    (void)state;
    static char expected[TEXT_ROOM];
    write_tokens("few.bin", 400, 7, 9);
    must("mkdir earlier && cp -r \"" MC_SOURCE_DIR "/tests/checkpoint/earlier/\"* earlier && "
         "$G --config earlier/few.json --data few.bin --steps 8 --seq-length 4 --batch-size 4 "
         "--shuffle --lr 0.01 --clip 0.5 --dropout 0.1 --dtype bf16 --output earlier --resume "
         "--log-jsonl found.jsonl");
    must_hold(err, "resumed after step 4 from earlier/checkpoint-4\n");
    read_into(expected, "earlier/log.jsonl");
    read_into(out, "found.jsonl");
    for (int step = 5; step <= 8; step++) {
        static const char *const keys[] = {"\"loss\":", "\"grad_norm\":"};
        char line[24];
        snprintf(line, sizeof line, "{\"step\":%d,", step);
        must_hold(expected, line);
        must_hold(out, line);
        for (int k = 0; k < 2; k++) {
            double then = number_after(strstr(expected, line), keys[k]);
            double now = number_after(strstr(out, line), keys[k]);
            assert_true(fabs(now - then) <= 1e-3 * then); /* processors round differently */
        }
    }
}

static void test_resume_8bit(void **state)
{
    (void)state;
    check_resume("--optimizer-state 8bit --dtype bf16");
    must("grep -q 'exp_avg_scale.encoder.layers.1.ffn.ffn.w_out.weight' "
         "whole/checkpoint-24/optimizer.safetensors");
    must_refuse(1, "--optimizer-state is f32, but the run in whole was begun with 8bit",
                "$T --steps 24 --output whole --resume --dtype bf16");
}

static void test_interrupt(void **state)
{
    (void)state;
    must(
        "R=\"$T --steps 100000 --scheduler constant\" && { $R --output ctrl --log-jsonl ctrl.jsonl "
        "2>ctrl.err & pid=$!; until grep -q '^step *20/' ctrl.err; do sleep 0.01; done; "
        "kill -INT $pid; wait $pid; test $? = 130; }");
    must("grep -q 'go on with --resume' ctrl.err && step=$(ls ctrl | sed -n 's/checkpoint-//p') && "
         "R=\"$T --steps 100000 --scheduler constant --stop-after $((step + 5))\" && "
         "$R --output ctrl --log-jsonl ctrl.jsonl --resume && "
         "$R --log-jsonl whole.jsonl --overwrite --no-save");
    same_logs("whole.jsonl", "ctrl.jsonl");
}

/* A validation that an interrupt came before is made up for. */
static void test_interrupted_validation(void **state)
{
    (void)state;
    must("R=\"$T --steps 100000 --scheduler constant --val val.bin --val-every 1\" && { "
         "$R --output due --log-jsonl due.jsonl 2>due.err & pid=$!; "
         "until grep -q '^step *20/' due.err; do sleep 0.01; done; "
         "kill -INT $pid; wait $pid; test $? = 130; } && "
         "step=$(ls due | sed -n 's/checkpoint-//p') && "
         "test $(grep -c val due.jsonl) -ge $((step - 1)) && "
         "$R --stop-after $((step + 3)) --output due --log-jsonl due.jsonl --resume && "
         "$R --stop-after $((step + 3)) --log-jsonl undue.jsonl --no-save");
    same_logs("undue.jsonl", "due.jsonl");
}

/* The last step's validation is part of the run: interrupted in it, the run has not ended. (Of so
 * many files a validation takes far longer than the signal.) */
static void test_interrupted_at_the_end(void **state)
{
    (void)state;
    must("L=\"$T --steps 5 --output late\" && { "
         "$L --val $(yes train.bin | head -400) --val-batches 0 2>late.err & pid=$!; "
         "until grep -q '^step *5/' late.err; do sleep 0.01; done; "
         "kill -INT $pid; wait $pid; test $? = 130; } && "
         "grep -q '^interrupted at step 5; go on with --resume$' late.err");
    must("$T --steps 5 --output late --val $(yes train.bin | head -400) --val-batches 1 --resume");
    must_hold(out, " val_loss=");
}

/* ---- saving in the background ---------------------------------------------------------------- */

/* Each save is told when it is whole, in order, whatever is in flight when the next one comes. */
static void test_saves_overlap(void **state)
{
    (void)state;
    must("$T --steps 30 --save-every 1 --save-total-limit 3 --output often");
    const char *at = err;
    for (int step = 1; step <= 30; step++) {
        char line[80];
        snprintf(line, sizeof line, "\nsaved step %d to often (training paused for ", step);
        if (!(at = strstr(at, line))) fail_msg("no line%s in order in:\n%s", line, err);
    }
    must("test \"$(ls often | tr '\\n' ' ')\" = "
         "'checkpoint-28 checkpoint-29 checkpoint-30 config.json model.safetensors run.json ' && "
         "cmp often/model.safetensors often/checkpoint-30/model.safetensors && "
         "$T --steps 30 --output once && "
         "cmp often/checkpoint-30/optimizer.safetensors once/checkpoint-30/optimizer.safetensors");
}

/* A run whose save fails ends with what is wrong, and the checkpoint before it is good. */
static void test_failed_save(void **state)
{
    (void)state;
    must("rm -rf full && R=\"$T --steps 100000 --scheduler constant\" && "
         "$R --stop-after 5 --output full --log-jsonl full.jsonl");
    must_refuse(
        1, "full/checkpoint-10.tmp/model.safetensors: cannot write: File too large",
        "trap '' XFSZ; (ulimit -f 60; $T --steps 100000 --scheduler constant --save-every 10 "
        "--output full --log-jsonl full.jsonl --resume)");
    must_hold(err, "while saving the checkpoint of step 10 to full");
    assert_null(strstr(err, "saved step"));
    assert_string_equal(out, ""); /* no result */
    must("R=\"$T --steps 100000 --scheduler constant --stop-after 12\" && "
         "$R --output full --log-jsonl full.jsonl --resume && ! ls full | grep tmp && "
         "$R --log-jsonl unfull.jsonl --no-save");
    must_hold(err, "resumed after step 5 from full/checkpoint-5\n");
    same_logs("unfull.jsonl", "full.jsonl");
    /* a folder that cannot be written any more */
    must("rm -rf lost && $T --steps 3 --output lost && mkdir -p lost/checkpoint-2.tmp/folder");
    must_refuse(1, "lost/checkpoint-2.tmp/folder: cannot remove it",
                "$T --steps 4 --output lost --resume");
    must("rmdir lost/checkpoint-2.tmp/folder && $T --steps 4 --output lost --resume");
}

/* Signals while a save is in flight: the first waits for it and saves the last step, the second
 * kills, which leaves what was whole. */
static void test_interrupted_save(void **state)
{
    (void)state;
    must("R=\"$T --steps 100000 --scheduler constant --save-every 1\" && { "
         "$R --output term --log-jsonl term.jsonl 2>term.err & pid=$!; "
         "until grep -q '^step *20/' term.err; do sleep 0.01; done; "
         "kill -TERM $pid; wait $pid; test $? = 130; } && "
         "step=$(sed -n 's/^interrupted at step \\([0-9]*\\); go on with --resume$/\\1/p' "
         "term.err) && "
         "test -e term/checkpoint-$step/training.json && ! ls term | grep tmp && "
         "{ $R --output term --log-jsonl term.jsonl --resume 2>term.err & pid=$!; "
         "until grep -q '^step .*/100000' term.err; do sleep 0.01; done; "
         "kill -INT $pid; while kill -INT $pid 2>/dev/null; do :; done; wait $pid || true; }; "
         "step=$(ls term | sed -n 's/^checkpoint-\\([0-9]*\\)$/\\1/p' | sort -n | tail -1) && "
         "R=\"$T --steps 100000 --scheduler constant --stop-after $((step + 3))\" && "
         "$R --output term --log-jsonl term.jsonl --resume && $R --log-jsonl unterm.jsonl "
         "--no-save");
    same_logs("unterm.jsonl", "term.jsonl");
}

/* ---- options of all training commands -------------------------------------------------------- */

static void test_common_options(void **state)
{
    (void)state;
    must("$T --steps 5 --no-save --log-jsonl plain.jsonl && "
         "$T --steps 5 --no-save --log-jsonl offload.jsonl --offload --zero-level 1 --grad-dtype "
         "param "
         "--comm-timeout 30");
    same_logs("plain.jsonl", "offload.jsonl");
    must("$T --no-save --steps 2 --dtype bf16 --grad-dtype bf16 && "
         "$T --no-save --steps 2 --dtype f16 --grad-dtype param");
    must_refuse(1, "--grad-dtype is f16, expected f32 or the parameters' dtype, bf16",
                "$T --steps 2 --dtype bf16 --grad-dtype f16");
    must_refuse(1, "--grad-dtype is bf16, expected f32, the parameters' dtype",
                "$T --steps 2 --grad-dtype bf16");
    must_refuse(2, "--zero-level \"4\": expected a whole number from 0 to 3", "$T --zero-level 4");
    must_refuse(2, "--comm-timeout \"-1\": expected a number from 0", "$T --comm-timeout -1");
}

/* ---- kill -9 --------------------------------------------------------------------------------- */

/* Starts the run that saves after every step, and kills it some time after it has begun to. */
static void start_and_kill(int ms)
{
    pid_t child = fork_child();
    if (child == 0) {
        char line[2000];
        snprintf(line, sizeof line,
                 "cd '%s' && exec '%s' pretrain gpt2 --data train.bin --config tiny.json "
                 "--batch-size 2 --seq-length 16 --tokens-per-step 64 --lr 0.01 --dropout 0.2 "
                 "--clip 0.5 --shuffle --seed 5 --steps 5000 --scheduler constant --dtype bf16 "
                 "--output killed --save-every 1 --log-jsonl killed.jsonl --resume 2>killed.err",
                 folder.path, MC_TOOL);
        execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(127);
    }
    int status;
    for (*err = 0; !strstr(err, "\nsaved step"); sleep_ms(2)) {
        assert_int_equal(waitpid(child, &status, WNOHANG), 0); /* it goes on */
        if (access(temp_path(&folder, "killed.err"), R_OK) == 0) read_into(err, "killed.err");
    }
    sleep_ms(ms);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFSIGNALED(status)) {
        read_into(err, "killed.err");
        fail_msg("the run ended by itself:\n%s", err);
    }
}

static void test_kill(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        unlink(temp_path(&folder, "killed.err"));
        start_and_kill(i * 7 % 13);
        mc_context *ctx = mc_init_distributed(NULL);
        mc_checkpoint *last = mc_checkpoint_open(ctx, temp_path(&folder, "killed"));
        assert_non_null(last);
        mc_gpt2_from_pretrained(ctx, temp_path(&folder, "killed"), NULL);
        assert_false(mc_print_error(ctx, stderr));
        mc_context_free(ctx);
    }
    must("step=$(ls killed | sed -n 's/^checkpoint-\\([0-9]*\\)$/\\1/p' | sort -n | tail -1) && "
         "R=\"$T --steps 5000 --scheduler constant --dtype bf16 --stop-after $((step + 3))\" && "
         "$R --output killed --log-jsonl killed.jsonl --resume && "
         "$R --output unkilled --log-jsonl unkilled.jsonl && "
         "cmp killed/model.safetensors unkilled/model.safetensors && ! ls killed | grep -q tmp");
    same_logs("unkilled.jsonl", "killed.jsonl");
}

static void test_damage(void **state)
{
    (void)state;
    must("rm -rf hurt && $T --steps 6 --save-every 2 --keep 2 --output hurt && "
         "test \"$(ls -d hurt/checkpoint-* | wc -l)\" = 3 && "
         "printf x | dd of=hurt/checkpoint-6/optimizer.safetensors bs=1 seek=3000 conv=notrunc && "
         "rm hurt/checkpoint-4/model.safetensors && "
         "$T --steps 6 --output hurt --resume && cmp hurt/model.safetensors "
         "hurt/checkpoint-6/model.safetensors && test ! -e hurt/checkpoint-4 && test -e "
         "hurt/checkpoint-2 && "
         "test -e hurt/checkpoint-4.damaged && test -e hurt/checkpoint-6.damaged");
    must_hold(err, "checkpoint-6/optimizer.safetensors: damaged: its checksum is not the one in "
                   "training.json: the checkpoint before it is taken");
    must_hold(err, "resumed after step 2 from hurt/checkpoint-2\n");
    must("rm -rf hurt && $T --steps 2 --output hurt && rm hurt/checkpoint-2/optimizer.safetensors");
    must_refuse(1, "hurt/checkpoint-2/optimizer.safetensors: cannot open: No such file",
                "$T --steps 2 --output hurt --resume");
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void test_plan_is_right(void **state)
{
    (void)state;
    static const char *const dtypes[] = {"f32", "bf16"};
    static const char *const recomputes[] = {"none", "selective", "full"};
    static const char *const shapes[] = {
        "--config tiny.json --batch-size 3 --seq-length 17 --tokens-per-step 153",
        "--config wide.json --batch-size 5 --seq-length 100",
        "--config wide.json --batch-size 6 --seq-length 64 --tokens-per-step 768"};
    double peaks[3];
    for (int dtype = 0; dtype < 2; dtype++)
        for (int shape = 0; shape < 3; shape++) {
            for (int r = 0; r < 3; r++) {
                char line[400];
                snprintf(line, sizeof line,
                         "$P %s --dtype %s --recompute %s --steps 2 "
                         "--dropout 0.1",
                         shapes[shape], dtypes[dtype], recomputes[r]);
                must(line);
                double real = number_after(out, "peak_bytes="),
                       planned = number_after(out, "planned_bytes=");
                if (planned < 0.98 * real || planned > 1.02 * real)
                    fail_msg("planned %.0f, was %.0f: %s", planned, real, line);
                peaks[r] = planned;
            }
            assert_true(shape == 0 || (peaks[0] > peaks[1] && peaks[1] > peaks[2]));
        }
}

static void test_largest_batch(void **state)
{
    (void)state;
    char line[200];
    must("$P --config wide.json --batch auto --memory 0.05 --seq-length 64 --steps 1 --no-save");
    double peak = number_after(out, "peak_bytes="), limit = 0.05 * 1024 * 1024 * 1024;
    int batch = (int)(number_after(out, "tokens=") / 64);
    assert_true(batch > 4 && peak <= limit && peak > 0.8 * limit);
    must_hold(err, "\n  activations ");
    snprintf(line, sizeof line, "$P --config wide.json --batch-size %d --seq-length 64 --steps 1",
             batch + 1);
    must(line);
    assert_true(number_after(out, "planned_bytes=") > limit);
    /* a divisor of the step's sequences */
    must("$P --config wide.json --batch-size auto --memory 0.025 --seq-length 64 --steps 1 "
         "--tokens-per-step 1408"); /* 22 sequences */
    must_hold(err, "(11 sequences of 64, 2 times)");
    /* all the data */
    must("$P --config tiny.json --batch-size auto --seq-length 64 --steps 1 --no-save");
    must_hold(err, "(93 sequences of 64, 1 times)");
    must_refuse(1, "not even a batch of 1 fits into 0.00 GiB",
                "$P --config wide.json --batch-size auto --memory 0.001");
}

/* ---- samples --------------------------------------------------------------------------------- */

static void test_samples(void **state)
{
    (void)state;
    must(
        "mkdir -p tok && printf '{\"a\":0,\"b\":1,\"c\":2,\"<|endoftext|>\":3}' >tok/vocab.json && "
        "printf '#version: 0.2\\n' >tok/merges.txt");
    must("$T --steps 4 --sample-every 2 --sample-length 5 --prompt abc --tokenizer tok "
         "--output sampled --log-jsonl sampled.jsonl && test -s sampled/vocab.json");
    must_hold(err, "\ntext    2 | abc");
    must_hold(err, "\ntext    4 | abc");
    read_into(out, "sampled.jsonl");
    must_hold(out, "{\"step\":2,\"sample\":\"abc");
    must("$T --steps 2 --sample-every 2 --tokenizer tok --sample-length 3 --no-save");
    must_refuse(1, "--sample-length 62 and a prompt of 3 tokens are more than the model's 64",
                "$T --steps 2 --sample-every 2 --sample-length 62 --prompt abc --tokenizer tok");
    must_refuse(1, "--prompt: expected a text of at least one token",
                "$T --steps 2 --sample-every 2 --prompt '' --tokenizer tok");
    must_refuse(2, "--sample-every needs --tokenizer", "$T --steps 2 --sample-every 2");
    must_refuse(2, "--prompt needs --sample-every", "$T --steps 2 --prompt abc --tokenizer tok");
}

/* ---- errors ---------------------------------------------------------------------------------- */

/* What `generate` opens has a tokenizer: the given one, that of --model, or that of the run. */
static void test_tokenizer_is_kept(void **state)
{
    (void)state;
    must("mkdir words && printf '%s\\n' '[PAD]' '[UNK]' '[CLS]' '[SEP]' a b c > words/vocab.txt");
    must("$T --steps 2 --output none");
    must_hold(err, "no tokenizer is saved with the model, which `generate` needs: give "
                   "--tokenizer here, or to `generate`\n");
    must_refuse(1, "tokenizer.model): give one with --tokenizer FOLDER",
                "$MC generate --model none --prompt a");
    must("$MC generate --model none --prompt a --tokenizer words");
    must_refuse(1, "tokenizer.model): give one with --tokenizer FOLDER",
                "$MC predict --model none --text a");
    must("$MC predict --model none --text a --tokenizer words");
    must_refuse(1, "error: --tokenizer many has 70 tokens, the model only 61",
                "mkdir many && (cat words/vocab.txt; seq 63) > many/vocab.txt && "
                "$T --steps 2 --tokenizer many --output too");
    must("! ls none | grep vocab && $T --steps 2 --tokenizer words --output kept");
    assert_null(strstr(err, "no tokenizer"));
    must("cmp kept/vocab.txt words/vocab.txt && $T --steps 3 --output kept --resume && "
         "cmp kept/vocab.txt words/vocab.txt && $MC generate --model kept --prompt a");
    must("$MC pretrain --model kept --data train.bin --batch-size 2 --seq-length 16 --steps 2 "
         "--output on && cmp on/vocab.txt words/vocab.txt");
    must("$T --steps 2 --no-save");
    assert_null(strstr(err, "no tokenizer"));
    must("mkdir shape && cp tiny.json shape/config.json && cp words/vocab.txt shape && for c in "
         "shape shape/config.json; do $P --config $c --batch-size 2 --seq-length 16 --steps 2 "
         "--output of-shape --overwrite && cmp of-shape/vocab.txt words/vocab.txt || exit 1; done");
    must("{ cat words/vocab.txt; seq 93; } > shape/vocab.txt && $P --config shape --batch-size 2 "
         "--seq-length 16 --steps 2 --output of-shape --overwrite && ! test -e of-shape/vocab.txt");
    must_hold(err, "give --tokenizer here, or to `generate`; that of shape has 100 tokens, the "
                   "model 61\n");
}

/* Tokens that a config does not name are the tokenizer's, never a class's beyond the vocabulary. */
static void test_tokens_of_texts(void **state)
{
    (void)state;
    must("mkdir end && printf '{\"a\":0,\"b\":1,\"c\":2,\"<|endoftext|>\":3}' > end/vocab.json && "
         "printf '#version: 0.2\\n' > end/merges.txt && $T --steps 2 --tokenizer end --output ends "
         "&& grep -E '\"(bos|eos)_token_id\":[[:space:]]*3,' ends/config.json | wc -l | grep 2");
    must("$T --steps 2 --output endless && ! grep 50256 endless/config.json && "
         "grep -E '\"eos_token_id\":[[:space:]]*null' endless/config.json");
    must("sed 's/}/, \"eos_token_id\": 1}/' tiny.json > one.json && $G --config one.json --data "
         "train.bin --batch-size 2 --seq-length 16 --steps 2 --tokenizer end --output own && "
         "grep -E '\"eos_token_id\":[[:space:]]*1,' own/config.json");
    must_refuse(
        1, "far.json: key \"eos_token_id\": 50256 is no token of the vocabulary of 61",
        "sed 's/}/, \"eos_token_id\": 50256}/' tiny.json > far.json && $G --config far.json "
        "--data train.bin --batch-size 2 --seq-length 16 --steps 2 --output f");
    /* weights with such a config load, as in transformers, but it is not saved again */
    must(
        "sed -i 's/\"eos_token_id\":[[:space:]]*3/\"eos_token_id\": [50256, 3, 61]/' "
        "ends/config.json && "
        "$G --model ends --data train.bin --batch-size 2 --seq-length 16 --steps 2 --output again");
    must_hold(err, "ends/config.json: key \"eos_token_id\": 50256 is no token of the vocabulary");
    must_hold(err, "ends/config.json: key \"eos_token_id\": 61 is no token of the vocabulary");
    must(
        "grep -E '\"eos_token_id\":[[:space:]]*3,' again/config.json && ! grep 50256 again/*.json");
}

static void test_errors(void **state)
{
    (void)state;
    must_refuse(2, "required and missing: --model FOLDER_OR_IDENTIFIER, or --config SHAPE", "$P");
    must_refuse(2, "not both", "$P --config tiny.json --pretrained x");
    must_refuse(2, "--resume needs --output", "$T --resume");
    must_refuse(2, "--save-every needs --output", "$T --save-every 1");
    must_refuse(2,
                "--batch-size: expected a whole number from 1 to 1048576 or auto, found \"many\"",
                "$T --batch-size many");
    must_refuse(2, "--scheduler", "$T --scheduler sometimes");
    must_refuse(2, "--optimizer", "$T --optimizer lion");
    must_refuse(2, "--lr-other needs --optimizer muon", "$T --lr-other 0.1");
    must_refuse(2, "--muon-scale needs --optimizer muon", "$T --muon-scale shape");
    must_refuse(2, "--muon-dtype needs --optimizer muon", "$T --muon-dtype f32");
    must_refuse(2, "--offload: the host updates for --optimizer adam alone",
                "$T --optimizer muon --offload");
    must_refuse(2, "--optimizer-state 8bit needs --optimizer adam",
                "$T --optimizer muon --optimizer-state 8bit");
    must_refuse(2, "--optimizer-state 8bit: --offload keeps f32 state",
                "$T --offload --optimizer-state 8bit");
    must_refuse(2, "--lr-other: expected an --lr above 0",
                "$T --optimizer muon --lr 0 --lr-other 0.1");
    must_refuse(1,
                "--tokens-per-step is 100, expected a multiple of --batch-size times "
                "--seq-length, 2 x 16 = 32",
                "$T --tokens-per-step 100");
    must_refuse(1, "--seq-length is 65, the model has 64 positions", "$T --seq-length 65");
    must_refuse(1, "gpt2-basic", "$P --config gpt2-basic");
    must_refuse(1, "absent.json", "$P --config absent.json");
    must_refuse(1, "absent.bin", "$U --data absent.bin");
    must_refuse(1, "tiny.json", "$U --data tiny.json");
    must_refuse(1, "--data short.bin: 10 tokens, expected more than --seq-length 16",
                "$U --data short.bin");
    must_refuse(1, "short.bin", "$T --val short.bin");
    must_refuse(1, "large.bin", "$U --data large.bin --steps 90");
    must_refuse(1, "cannot write there", "touch file && $T --output file/run");
    must_refuse(1, "file/log.jsonl", "$T --log-jsonl file/log.jsonl");
}

static void test_resume_errors(void **state)
{
    (void)state;
    must("rm -rf run && $T --steps 4 --output run");
    must_refuse(1, "--output run holds a checkpoint of a run: go on with --resume, choose another",
                "$T --steps 4 --output run");
    must("mkdir -p plain && cp run/model.safetensors run/config.json plain");
    must_refuse(1, "--output plain holds a model, or part of one (config.json)",
                "$T --steps 4 --output plain");
    static const char *const changes[][2] = {
        {"--seq-length 32", "--seq-length is 32, but the run in run was begun with 16"},
        {"--tokens-per-step 128", "--tokens-per-step is 128, but the run in run was begun with 64"},
        {"--lr 0.02", "--lr is 0.02, but the run in run was begun with 0.01"},
        {"--scheduler noam", "--scheduler is noam, but the run in run was begun with cosine"},
        {"--warmup 2", "--warmup is 2, but the run in run was begun with 0"},
        {"--weight-decay 0", "--weight-decay is 0, but the run in run was begun with 0.1"},
        {"--beta2 0.999", "--beta2 is 0.999, but the run in run was begun with 0.95"},
        {"--clip 1", "--clip is 1, but the run in run was begun with 0.5"},
        {"--dropout 0", "--dropout is 0, but the run in run was begun with 0.2"},
        {"--seed 6", "--seed is 6, but the run in run was begun with 5"},
        {"--dtype bf16", "--dtype is bf16, but the run in run was begun with f32"},
        {"--config wide.json",
         "--config is gpt2 {\"vocab_size\":203, but the run in run was begun with "
         "gpt2 {\"vocab_size\":61"},
        {"--data other.bin", "--data is not what the run in run was begun with"},
        {"--data val.bin", "--data is not what the run in run was begun with"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        char line[200];
        snprintf(line, sizeof line, "$U %s --steps 8 --output run --resume %s",
                 strstr(changes[i][0], "--data") ? "" : "--data train.bin", changes[i][0]);
        must_refuse(1, changes[i][1], line);
    }
    must("cp -r run other && $T --steps 8 --output other --resume --batch-size 4");
    must_hold(err, "the run was begun with batch-size 2, it goes on with 4: the same up to "
                   "rounding and dropout's random numbers");
    /* what was not given is as it was; more steps may follow */
    must(
        "$P --output run --resume --steps 6 --lr 0.01 --dropout 0.2 --clip 0.5 --shuffle --seed 5");
    must_hold(err,
              "the run was begun for 4 steps, it goes on to 6: the learning rate takes another "
              "course from here on");
    must_hold(out, "result model=gpt2 steps=6 tokens=384 ");
    must("$T --steps 6 --output run --resume --offload --zero-level 1");
    must_hold(err, "the run was begun with offload false, it goes on with true: the same up to "
                   "rounding\nthe run was begun with zero-level 3, it goes on with 1: ");
}

/* ---- training in 8 bits ---------------------------------------------------------------------- */

/* It learns, and a run that was stopped goes on to the bit: with the scales that it had. */
static void test_fp8(void **state)
{
    (void)state;
    must("$T --fp8 all --dtype bf16 --steps 30 --output eight --log-jsonl eight.jsonl");
    must_hold(err, "\nfp8: 8 linear layers train in 8 bits, with delayed scales\n");
    must_hold(out, " fp8_linears=8\n");
    assert_true(number_after(out, " loss=") < 3.6); /* from log 61 = 4.1 */
    double loss = number_after(out, " loss=");
    must("tail -n 1 eight.jsonl");
    must_hold(out, "\"fp8_saturated\":");
    assert_true(number_after(out, "\"fp8_saturated\":") < 0.01);
    must("$T --fp8 all --dtype bf16 --steps 30 --output fp8_parts --stop-after 11");
    must("$T --fp8 all --dtype bf16 --steps 30 --output fp8_parts --resume");
    assert_true(number_after(out, " loss=") == loss);
    must("cmp eight/model.safetensors fp8_parts/model.safetensors");
    must("$T --fp8 all --dtype bf16 --steps 30 --output fp8_parts --stop-after 5 --overwrite");
    must_refuse(1, "--fp8 is none, but the run in fp8_parts was begun with all",
                "$T --dtype bf16 --steps 30 --output fp8_parts --resume");
    must("$T --fp8 auto --fp8-scaling current --dtype bf16 --steps 2 --no-save --log-csv fp8.csv");
    must_hold(err, "with current scales");
    must(
        "awk -F, 'NR == 1 { print $(NF - 1), $NF } END { exit !($(NF - 1) < 0.01 && $NF != \"\") }'"
        " fp8.csv");
    must_hold(out, "fp8_saturated fp8_vanished\n");
    /* what was chosen is the run's: here all layers */
    must("$T --fp8 auto --dtype bf16 --steps 4 --output fp8_auto --stop-after 2 && "
         "grep -rq 'fp8.kinds.*18446744073709551615' fp8_auto");
    must("$T --fp8 auto --dtype bf16 --steps 4 --output fp8_auto --resume");
    must_hold(out, " fp8_linears=8\n");
    must_refuse(2, "--fp8 with --dtype f16: expected --dtype bf16 or f32",
                "$T --fp8 all --dtype f16 --steps 2 --no-save");
    must("$T --dtype f16 --steps 4 --output half --stop-after 2");
    must_refuse(1, "--fp8 with --dtype f16: expected --dtype bf16 or f32",
                "$T --fp8 all --steps 4 --output half --resume");
}

/* Layers of other sizes: named, or with auto left as they are. */
static void test_fp8_sizes(void **state)
{
    (void)state;
    must("sed 's/: 32/: 24/' tiny.json > narrow.json");
    must_refuse(
        1, "multiples of 16: the first, \"",
        "$P --config narrow.json --seq-length 16 --batch-size 8 --steps 2 --no-save --fp8 all");
    must_hold(err, "(72, 24)");
    must("$P --config narrow.json --seq-length 16 --batch-size 8 --steps 2 --no-save --fp8 auto");
    must_hold(err, "\nfp8: no linear layer of a block has sizes that are multiples of 16: training "
                   "without 8 bits\n");
    assert_null(strstr(out, "fp8_linears"));
}

/* Options that mean something beside others alone. */
static void test_useless_options(void **state)
{
    (void)state;
    must_refuse(2, "--fp8-scaling needs --fp8 auto or all", "$T --fp8-scaling delayed");
    must_refuse(2, "--gpu-share needs --offload", "$T --gpu-share 0.5");
    must_refuse(2, "--gamma needs --scheduler exponential", "$T --gamma 0.5 --scheduler linear");
    must_refuse(2, "--loss-scale needs --dtype f16", "$T --loss-scale 8 --dtype bf16");
    must_refuse(1, "--loss-scale needs --dtype f16", "$T --loss-scale 8 --no-save --steps 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_learns),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_resume_f32),
        cmocka_unit_test(test_resume_bf16),
        cmocka_unit_test(test_resume_f16),
        cmocka_unit_test(test_resume_names),
        cmocka_unit_test(test_resume_muon),
        cmocka_unit_test(test_resume_earlier),
        cmocka_unit_test(test_resume_micro_batch),
        cmocka_unit_test(test_resume_validation),
        cmocka_unit_test(test_resume_8bit),
        cmocka_unit_test(test_fp8),
        cmocka_unit_test(test_fp8_sizes),
        cmocka_unit_test(test_useless_options),
        cmocka_unit_test(test_interrupt),
        cmocka_unit_test(test_interrupted_validation),
        cmocka_unit_test(test_interrupted_at_the_end),
        cmocka_unit_test(test_kill),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_plan_is_right),
        cmocka_unit_test(test_largest_batch),
        cmocka_unit_test(test_saves_overlap),
        cmocka_unit_test(test_failed_save),
        cmocka_unit_test(test_interrupted_save),
        cmocka_unit_test(test_common_options),
        cmocka_unit_test(test_samples),
        cmocka_unit_test(test_tokenizer_is_kept),
        cmocka_unit_test(test_tokens_of_texts),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_resume_errors),
    };
    return cmocka_run_group_tests(tests, set_up, remove_folder);
}
