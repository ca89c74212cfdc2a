/* `modelcenter finetune`: a tiny BERT on a task made here. A run that was stopped, interrupted or
 * killed goes on to the bit, whichever model it keeps; passes add up to the step of one batch;
 * evaluations stop a run and choose its model; errors name what is wrong. */
#include <fcntl.h>
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

/* $T stands for the command with what runs share: 74 rows, which are 10 steps of an epoch with 8
 * rows, the last one of 2. With MC_TEST_DEVICE=cuda all runs are there. */
#define COMMAND_VARIABLES                                                                \
    "F=\"$MC finetune bert --task BoolQ --data data\" && "                               \
    "D=\"--device ${MC_TEST_DEVICE:-cpu}\" && "                                          \
    "O=\"$D --batch-size 8 --epochs 3 --lr 0.02 --warmup 3 --dropout 0.2 --seed 5\" && " \
    "E=\"--dropout 0 --lr 0.002 --dtype f32\" && G=\"$MC finetune gpt2 --task BoolQ "    \
    "--data data --config words $O\" && "                                                \
    "T=\"$F --config tiny $O\" && L=\"$F --pretrained base --lora-rank 4 $O\" && "
#include "tests/child.h"
#include "tests/tools/command_test.h"

/* ---- data ------------------------------------------------------------------------------------ */

static const char *const words[] = {"red", "blue", "green", "cat", "dog", "is", "a", "not"};

/* Rows of random words; the label is whether "red" is among the first of them, sometimes wrong. */
static void write_rows(const char *name, int rows, uint32_t seed)
{
    static char text[1 << 15];
    size_t used = 0;
    for (int row = 0; row < rows; row++) {
        bool label = false;
        used += (size_t)snprintf(text + used, sizeof text - used, "{\"passage\": \"");
        int count = 2 + (int)(seed >> 16) % 9;
        for (int i = 0; i < count; i++) {
            seed = seed * 1664525 + 1013904223;
            label = label || (seed >> 29 == 0 && i < 4);
            used += (size_t)snprintf(text + used, sizeof text - used, "%s ", words[seed >> 29]);
        }
        seed = seed * 1664525 + 1013904223;
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 "\", \"question\": \"red\", \"label\": %s}\n",
                                 (seed >> 28 == 0) != label ? "true" : "false");
        assert_true(used < sizeof text);
    }
    write_text(temp_path(&folder, name), text);
}

static void write_model(const char *name, int dim)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "mkdir %s", name);
    assert_int_equal(run(path), 0);
    snprintf(path, sizeof path, "%s/vocab.txt", name);
    write_text(temp_path(&folder, path),
               "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nred\nblue\ngreen\ncat\ndog\nis\na\nnot\n");
    snprintf(path, sizeof path, "%s/config.json", name);
    snprintf(text, sizeof text,
             "{\"vocab_size\": 13, \"hidden_size\": %d, \"num_hidden_layers\": 1,"
             " \"num_attention_heads\": 2, \"intermediate_size\": %d,"
             " \"max_position_embeddings\": 32}",
             dim, 2 * dim);
    write_text(temp_path(&folder, path), text);
}

/* A GPT-2 of which " Yes" and " No" begin with tokens of their own: it answers in prompts. */
static void write_prompter(void)
{
    static const char *const tokens[] = {"\u0120", "\u0120Y", "\u0120N", "<|endoftext|>"};
    static const char letters[] = "abcdegilnorstuYN.?";
    char text[1024];
    int used = snprintf(text, sizeof text, "{"), id = 0;
    for (; id < 4; id++)
        used += snprintf(text + used, sizeof text - (size_t)used, "\"%s\":%d,", tokens[id], id);
    for (const char *c = letters; *c; c++, id++)
        used += snprintf(text + used, sizeof text - (size_t)used, "\"%c\":%d%s", *c, id,
                         c[1] ? "," : "}");
    assert_int_equal(run("mkdir words"), 0);
    write_text(temp_path(&folder, "words/vocab.json"), text);
    write_text(temp_path(&folder, "words/merges.txt"), "#version: 0.2\n\u0120 Y\n\u0120 N\n");
    snprintf(text, sizeof text,
             "{\"model_type\": \"gpt2\", \"vocab_size\": %d, \"n_embd\": 16, \"n_layer\": 1,"
             " \"n_head\": 2, \"n_positions\": 96}",
             id);
    write_text(temp_path(&folder, "words/config.json"), text);
}

static int set_up(void **state)
{
    (void)state;
    folder = temp_folder_new();
    setenv("OMP_NUM_THREADS", "1", 1);
    assert_int_equal(run("mkdir data other"), 0);
    write_rows("data/train.jsonl", 74, 1);
    write_rows("data/val.jsonl", 21, 2);
    write_rows("other/train.jsonl", 74, 3);
    write_rows("other/val.jsonl", 21, 2);
    write_model("tiny", 16);
    write_prompter();
    return 0;
}

/* ---- resuming -------------------------------------------------------------------------------- */

/* The result line without the time. */
static const char *result(void)
{
    static char line[512];
    snprintf(line, sizeof line, "%.500s", out);
    char *at = strstr(line, " train_seconds");
    if (!at) fail_msg("no result in: %s\n%s", out, err);
    *at = '\0';
    return line;
}

/* A run in one go, and one that is stopped after each of some steps: within an epoch, at the end
 * of one, before and after the best. */
static void check_resume(const char *program, const char *weights, const char *options)
{
    static const int stops[] = {1, 10, 17, 29};
    char line[1200], whole[512], compare[200];
    must("rm -rf whole parts whole.jsonl parts.jsonl");
    snprintf(compare, sizeof compare, "cmp whole/%s parts/%s", weights, weights);
    snprintf(line, sizeof line, "%s %s --output whole --log-jsonl whole.jsonl", program, options);
    must(line);
    snprintf(whole, sizeof whole, "%s", result());
    for (size_t i = is_watched() ? 2 : 0; i < sizeof stops / sizeof *stops; i++) {
        snprintf(line, sizeof line,
                 "%s %s --output parts --log-jsonl parts.jsonl --stop-after %d --resume", program,
                 options, stops[i]);
        must(line);
        must_hold(err, "; go on with --resume");
        assert_string_equal(out, "");
        must(strcmp(program, "$G") == 0 ? "$MC eval gpt2 --task BoolQ --model parts --data data"
                                        : "$MC eval bert --task BoolQ --model parts --data data");
    }
    snprintf(line, sizeof line, "%s %s --output parts --log-jsonl parts.jsonl --resume", program,
             options);
    must(line);
    must_hold(err, "resumed after step 29 from parts/checkpoint-29\n");
    assert_string_equal(result(), whole);
    must(compare);
    same_logs("whole.jsonl", "parts.jsonl");
    must(line);
    must_hold(err, "nothing is left to train");
    assert_string_equal(result(), whole);
    must(compare);
}

static void test_resume_last(void **state)
{
    (void)state;
    check_resume("$T", "model.safetensors", "");
    must("test \"$(ls parts | tr '\\n' ' ')\" = "
         "'checkpoint-29 checkpoint-30 config.json model.safetensors run.json task.json "
         "tokenizer_config.json vocab.txt '");
}

static void test_resume_best(void **state)
{
    (void)state;
    check_resume("$T", "model.safetensors", "--keep best --eval-every 3 --dtype bf16");
    check_resume("$T", "model.safetensors",
                 "--keep best --save-every 4 --save-total-limit 1 --scheduler linear");
}

static void test_resume_passes(void **state)
{
    (void)state;
    check_resume("$T", "model.safetensors",
                 "--batch-size 3 --gradient-accumulation-steps 3 --max-steps 30 --epochs 9 "
                 "--dtype f16 --loss-scale 1e9 --eval-every 4");
}

static void test_resume_lora(void **state)
{
    (void)state;
    must("rm -rf base && $T --output base");
    check_resume("$L", "adapter_model.safetensors", "--keep best --eval-every 3");
    must_refuse(1, "--lora-rank is 2, but the run in parts was begun with 4",
                "$L --keep best --eval-every 3 --lora-rank 2 --output parts --resume");
    must_refuse(1, "--lora-rank is 0, but the run in parts was begun with 4",
                "$F --pretrained base $O --keep best --eval-every 3 --output parts --resume");
    must("rm -rf parts && $F --pretrained base $O --output parts --stop-after 2");
    must_refuse(1, "--lora-rank is 4, but the run in parts was begun with 0",
                "$L --output parts --resume");
    must_refuse(1, "--max-length is 16, but the run in parts was begun with the default",
                "$F --pretrained base $O --max-length 16 --output parts --resume");
}

/* The numbers after a key in a log. */
static int numbers(const char *log, const char *key, double *values, int most)
{
    static char text[TEXT_ROOM];
    int count = 0;
    read_into(text, log);
    for (const char *at = text; (at = strstr(at, key)) && count < most; at += strlen(key))
        values[count++] = strtod(at + strlen(key), NULL);
    return count;
}

/* In f32 a sum in another order differs by a few units in the last place of the largest term, and
 * a few steps carry that on: 1e-5 is a hundred of them. */
static void check_passes(const char *program, const char *options)
{
    double whole[100], parts[100];
    char line[400];
    snprintf(line, sizeof line, "%s $E --batch-size 16 --no-save --overwrite --log-jsonl one.jsonl",
             program);
    must(line);
    snprintf(line, sizeof line, "%s $E %s --no-save --overwrite --log-jsonl several.jsonl", program,
             options);
    must(line);
    for (int i = 0; i < 2; i++) {
        const char *key = i ? "\"grad_norm\":" : "\"loss\":";
        int count = numbers("one.jsonl", key, whole, 100);
        assert_int_equal(count, 15); /* three epochs of four steps with 16 rows, one with 10 */
        assert_int_equal(numbers("several.jsonl", key, parts, 100), count);
        for (int k = 0; k < count; k++)
            if (fabs(whole[k] - parts[k]) > 1e-5 * fabs(whole[k]))
                fail_msg("%s%g, expected %g in step %d", key, parts[k], whole[k], k + 1);
    }
}

/* Answers in prompts: the loss has two parts. */
static void test_resume_prompts(void **state)
{
    (void)state;
    check_resume("$G", "model.safetensors",
                 "--keep best --batch-size 4 --gradient-accumulation-steps 2 --epochs 3");
    check_passes("$G", "--batch-size 4 --rows-per-step 16");
}

/* A run without checkpoints leaves its model and its result. */
static void test_ended(void **state)
{
    (void)state;
    must("rm -rf plain && $T --keep best --output plain");
    char line[512];
    snprintf(line, sizeof line, "%.500s", out);
    must("test \"$(ls plain | tr '\\n' ' ')\" = "
         "'config.json finetune.json model.safetensors run.json task.json tokenizer_config.json "
         "vocab.txt '");
    must("$T --keep best --output plain --resume");
    assert_string_equal(out, line);
    must_hold(err, "nothing is left to train: the run in plain has ended");
    must_refuse(1, "--lr is 0.03, but the run in plain was begun with 0.02",
                "$T --keep best --output plain --resume --lr 0.03");
    must_refuse(1, "the run in plain has ended with other --epochs or --max-steps",
                "$T --keep best --output plain --resume --epochs 4");
    must("$T --output plain --overwrite --max-steps 2 && $T --output plain --resume --max-steps 2");
    must_hold(out, "result task=BoolQ accuracy=");
    /* nothing was saved yet */
    must("rm -rf new && $T --output new --resume --save-every 5");
    must_hold(err, "no checkpoint in new yet: the run begins");
    must("$T --output new --resume --epochs 4");
    must_hold(err, "the run was begun for 30 steps, it goes on to 40");
}

/* Signals at random times, without having asked for checkpoints. */
static void test_interrupt(void **state)
{
    (void)state;
    static const char *const keeps[] = {"--keep last", "--keep best --eval-every 3"};
    for (int i = 0; i < 2; i++) {
        char line[1400];
        snprintf(line, sizeof line,
                 "rm -rf ctrl whole ctrl.jsonl whole.jsonl ctrl.err && R=\"$T %s --epochs 100000\" "
                 "&& { $R --output "
                 "ctrl --log-jsonl ctrl.jsonl 2>ctrl.err & pid=$!; i=0; "
                 "until grep -q '^step *2[3-9]/' ctrl.err || [ $i -gt 30000 ]; do sleep 0.01; "
                 "i=$((i + 1)); done; kill -%s $pid; wait $pid; test $? = 130; } && "
                 "step=$(sed -n 's/^interrupted at step \\([0-9]*\\); go on with --resume$/\\1/p' "
                 "ctrl.err) && test -e ctrl/checkpoint-$step/training.json && $MC info ctrl && "
                 "$R --stop-after $((step + 5)) --output ctrl --log-jsonl ctrl.jsonl --resume && "
                 "$R --stop-after $((step + 5)) --output whole --log-jsonl whole.jsonl && "
                 "cmp ctrl/model.safetensors whole/model.safetensors",
                 keeps[i], i ? "TERM" : "INT");
        must(line);
        same_logs("whole.jsonl", "ctrl.jsonl");
    }
}

/* Interrupted while it evaluates its last step, whose model is the best one. */
static void check_interrupted_evaluation(const char *options)
{
    char run_of[600], line[1400], whole[512];
    double losses[2];
    snprintf(run_of, sizeof run_of,
             "$MC finetune bert --task BoolQ --config tiny --data slow $O --lr 0.001 --keep "
             "best --metric val_loss --eval-every 15 %s",
             options);
    snprintf(line, sizeof line,
             "rm -rf due whole due.jsonl whole.jsonl due.err && { %s --output due --log-jsonl "
             "due.jsonl 2>due.err & pid=$!; n=0; until grep -q '^step *30/' due.err || "
             "[ $n -gt 30000 ]; do sleep 0.01; n=$((n + 1)); done; kill -TERM $pid; wait $pid; "
             "test $? = 130; } && ! grep -q '^eval *30/' due.err",
             run_of);
    must(line);
    snprintf(line, sizeof line, "%s --output whole --log-jsonl whole.jsonl", run_of);
    must(line);
    snprintf(whole, sizeof whole, "%s", result());
    assert_int_equal(numbers("whole.jsonl", "\"val_loss\":", losses, 2), 2);
    assert_true(losses[1] < losses[0]);
    snprintf(line, sizeof line, "%s --output due --log-jsonl due.jsonl --resume", run_of);
    must(line);
    assert_string_equal(result(), whole);
    must("cmp due/model.safetensors whole/model.safetensors");
    same_logs("whole.jsonl", "due.jsonl");
    must(line); /* the evaluation is done */
    if (strstr(err, "eval ")) fail_msg("a second evaluation:\n%s", err);
    assert_string_equal(result(), whole);
    same_logs("whole.jsonl", "due.jsonl");
}

static void test_interrupted_evaluation(void **state)
{
    (void)state;
    must("rm -rf slow && mkdir slow && cp data/train.jsonl slow && "
         "for i in $(seq 1500); do cat data/val.jsonl; done >slow/val.jsonl");
    check_interrupted_evaluation("");
    check_interrupted_evaluation("--save-every 4");
}

/* Progress and results go to no file of the run. */
static void test_closed_streams(void **state)
{
    (void)state;
    must("rm -rf open closed && $T --save-every 3 --save-total-limit 20 --output open && "
         "{ $T --save-every 3 --save-total-limit 20 --output closed <&- >&- 2>&-; test $? = 1; } "
         "&& test -e closed/checkpoint-30 && diff -r -x run.json -x training.json open closed");
    must_refuse(1, "cannot write", "$T --no-save >&-"); /* the result */
    must("$T --no-save 2>&-");
    must_hold(out, "result task=BoolQ");
}

/* A reader of the progress that goes away, like a `tee` that is killed, ends no run. */
static void test_lost_reader(void **state)
{
    (void)state;
    must("rm -rf open; $T --save-every 3 --output open --log-jsonl open.jsonl");
    must("{ $T --save-every 3 --output gone --log-jsonl gone.jsonl 2>&1 >said; echo $? >code; } | "
         "true; test $(cat code) = 0 && grep -q '^result task=BoolQ' said && "
         "diff -r -x run.json -x training.json open gone && "
         "test $(wc -l <gone.jsonl) = $(wc -l <open.jsonl)");
    must("{ $T --output lost 2>&1; echo $? >code; } | true; "
         "test $(cat code) = 1 && cmp lost/model.safetensors open/model.safetensors");
    must("{ $MC convert --model open --output made --to hf 2>&1; echo $? >code; } | true; "
         "test -e made/config.json");
    must("{ $MC eval --model open --task BoolQ --data data; echo $? >code; } | true; "
         "test $(cat code) = 141"); /* which only prints */
}

/* A limit of files' sizes (ulimit -f, 4 KB here) is an error that names the file. */
static void test_size_limit(void **state)
{
    (void)state;
    must_refuse(1, "model.safetensors: cannot write: File too large",
                "rm -rf big; ulimit -f 8; $T --log-every 100 --output big");
    must("! ls big | grep -q config.json && $T --output big --overwrite");
}

/* With fewer --max-steps a run ends where it is, and is evaluated there. */
static void test_fewer_steps(void **state)
{
    (void)state;
    must("rm -rf fewer && $T --output fewer --stop-after 7 && "
         "$T --output fewer --resume --max-steps 7");
    must_hold(err, "nothing is left to train: 7 steps are done, of 7");
    must_hold(out, "result task=BoolQ accuracy=");
    must("$T --output fewer --resume --max-steps 5");
    if (strstr(err, "eval ")) fail_msg("a second evaluation:\n%s", err);
    must_hold(out, "result task=BoolQ accuracy=");
    must("rm -rf fewer && $T --output fewer --stop-after 7 && "
         "$T --output fewer --resume --max-steps 5");
    must_hold(out, "result task=BoolQ accuracy=");
}

/* ---- kill -9 --------------------------------------------------------------------------------- */

/* Starts the run, and kills it `ms` after its first step; ms < 0: lets it end. Nobody reads its
 * lines meanwhile, and the pipe holds few of them, so that it can't end however fast it is. Returns
 * whether it ended. */
static bool start_and_kill(const char *options, int ms)
{
    char line[2000];
    snprintf(line, sizeof line,
             "cd '%s' && exec '%s' finetune bert --task BoolQ --config tiny --data data "
             "--device ${MC_TEST_DEVICE:-cpu} --batch-size 8 --lr 0.02 --warmup 3 --dropout 0.2 "
             "--seed 5 "
             "%s --output killed "
             "--log-jsonl killed.jsonl --resume >killed.out",
             folder.path, MC_TOOL, options);
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    assert_true(fcntl(ends[1], F_SETPIPE_SZ, 4096) >= 4096);
    pid_t child = fork_child();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    FILE *lines = fdopen(ends[0], "r");
    for (*err = 0; fgets(line, sizeof line, lines);) {
        if (strlen(err) + strlen(line) < sizeof err) strcat(err, line);
        if (ms >= 0 && strncmp(line, "step ", 5) == 0) {
            sleep_ms(ms);
            kill(child, SIGKILL);
            break;
        }
    }
    fclose(lines);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status)) return false;
    if (WEXITSTATUS(status)) fail_msg("exit %d:\n%s", WEXITSTATUS(status), err);
    return true;
}

static void check_kills(const char *options)
{
    char line[800];
    int kills = 0;
    uint32_t seed = 9;
    must("rm -rf killed killed.jsonl");
    for (bool ended = false; !ended; kills++) {
        seed = seed * 1664525 + 1013904223;
        ended = start_and_kill(options, kills < 12 ? (int)(seed >> 27) : -1);
        if (ended) continue;
        if (run("test -e killed/config.json && $MC info killed") == 0) continue;
        must("test ! -e killed/config.json"); /* what is there loads as a model */
    }
    if (kills < 4) fail_msg("the run ended after %d kills", kills - 1);
    must("! ls killed | grep -q tmp");
    snprintf(
        line, sizeof line,
        "rm -rf unkilled unkilled.jsonl && $T %s --output unkilled --log-jsonl unkilled.jsonl && "
        "cmp killed/model.safetensors unkilled/model.safetensors",
        options);
    must(line);
    same_logs("unkilled.jsonl", "killed.jsonl");
    char whole[512];
    snprintf(whole, sizeof whole, "%s", result());
    read_into(out, "killed.out");
    assert_string_equal(result(), whole);
}

static void test_kill(void **state)
{
    (void)state;
    if (!is_watched()) check_kills("--epochs 20 --save-every 1 --save-total-limit 1");
    check_kills("--epochs 20 --save-every 3 --keep best --eval-every 2 --dtype bf16");
}

/* A base that lies elsewhere now is known by its content; another one is refused. */
static void test_base_moved(void **state)
{
    (void)state;
    must("rm -rf moved whole copy && $F --pretrained base $O --output whole && "
         "$F --pretrained base $O --output moved --stop-after 4 && cp -r base copy && "
         "$F --pretrained copy $O --output moved --resume && "
         "cmp moved/model.safetensors whole/model.safetensors");
    must("$F --pretrained copy $O --output moved --resume"); /* it has ended */
    must_hold(err, "nothing is left to train");
    must("rm -rf part && $L --output part --stop-after 4 && mv base away && "
         "$F --pretrained copy --lora-rank 4 $O --output part --resume --stop-after 8; code=$?; "
         "mv away base; exit $code");
    must("rm -rf moved && $F --pretrained base $O --output moved --stop-after 4 && "
         "echo bird >> copy/vocab.txt");
    must_refuse(1, "--model is copy, but the run in moved was begun with base",
                "$F --pretrained copy $O --output moved --resume");
}

/* ---- passes ---------------------------------------------------------------------------------- */

static void test_passes(void **state)
{
    (void)state;
    check_passes("$T", "--batch-size 8 --gradient-accumulation-steps 2");
    check_passes("$T", "--batch-size 2 --rows-per-step 16");
    /* of an epoch's last step some have no row */
    check_passes("$T", "--batch-size 1 --gradient-accumulation-steps 16");
    must_refuse(1,
                "--rows-per-step is 20, expected --batch-size times "
                "--gradient-accumulation-steps, a multiple of 8 x 1",
                "$T --rows-per-step 20");
    must_refuse(1,
                "--rows-per-step is 32, expected --batch-size times "
                "--gradient-accumulation-steps, 8 x 2 x 1 = 16",
                "$T --rows-per-step 32 --gradient-accumulation-steps 2");
    must("rm -rf rows && $T --rows-per-step 8 --batch-size 4 --stop-after 12 --output rows && "
         "$T --batch-size 2 --rows-per-step 8 --output rows --resume");
    must_hold(err,
              "the run was begun with batch-size 4, it goes on with 2: the same up to rounding");
    must_refuse(1, "--rows-per-step is 16, but the run in rows was begun with 8",
                "$T --batch-size 16 --output rows --resume");
}

/* ---- evaluations ----------------------------------------------------------------------------- */

static int count_of(const char *text, const char *what)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, what)); at += strlen(what)) count++;
    return count;
}

static void test_early_stopping(void **state)
{
    (void)state;
    /* nothing is learned: the first evaluation is never beaten */
    must("$T --lr 0 --eval-every 4 --early-stopping-patience 3 --log-jsonl early.jsonl --no-save");
    must_hold(err, "stopping early at step 16: no improvement in the last 3 evaluations; the best "
                   "was after step 4");
    assert_int_equal(count_of(err, "| val accuracy"), 4);
    assert_int_equal(count_of(err, "\nstep "), 16);
    must("rm -rf early && $T --lr 0 --eval-every 4 --early-stopping-patience 3 --output early "
         "--stop-after 9 && "
         "$T --lr 0 --eval-every 4 --early-stopping-patience 3 --output early --resume");
    must_hold(err, "stopping early at step 16");
    char line[512];
    snprintf(line, sizeof line, "%.500s", out);
    must("$T --lr 0 --eval-every 4 --early-stopping-patience 3 --output early --resume");
    must_hold(err, "nothing is left to train");
    assert_string_equal(out, line);
    /* whatever is no more than the threshold better is no improvement */
    must("$T --eval-every 4 --early-stopping-patience 2 --early-stopping-threshold 1 --no-save");
    must_hold(err, "stopping early at step 12");
    must("$T --eval-every 7 --max-steps 9 --no-save");
    assert_int_equal(count_of(err, "| val accuracy"), 2);
}

/* The model that is kept is the one whose evaluation was the best. */
static void test_best(void **state)
{
    (void)state;
    must("rm -rf best && $T --epochs 8 --lr 0.3 --eval-every 2 --keep best --output best "
         "--log-jsonl best.jsonl");
    double values[100], most = 0;
    int count = numbers("best.jsonl", "\"accuracy\":", values, 100);
    assert_int_equal(count, 40);
    for (int i = 0; i < count; i++) most = values[i] > most ? values[i] : most;
    assert_true(values[count - 1] < most || most == 1);
    char line[512];
    snprintf(line, sizeof line, "%s", result());
    double kept = strtod(strstr(line, "accuracy=") + strlen("accuracy="), NULL);
    assert_true(fabs(kept - most) < 1e-4);
    must("$MC eval bert --task BoolQ --model best --data data");
    assert_string_equal(result(), line);
    must("$T --keep best --metric f1 --no-save");
    must_refuse(1, "--metric \"bleu\": expected one of accuracy, f1", "$T --metric bleu");
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void test_errors(void **state)
{
    (void)state;
    must_refuse(2, "--resume needs --output", "$T --resume");
    must_refuse(2, "--save-every needs --output", "$T --save-every 2");
    must_refuse(2, "expected one of --model and --config, not both", "$T --pretrained tiny");
    must_refuse(2, "required and missing: --model FOLDER_OR_IDENTIFIER, or --config SHAPE",
                "$MC finetune bert --task BoolQ --data data");
    must_refuse(1, "expected one of --model and --config",
                "$MC finetune bert --task BoolQ --data data --output none --resume");
    must_refuse(1, "cannot write there", "touch file && $T --output file/run");
    must("rm -rf run && $T --output run --stop-after 4 --save-every 2");
    must_refuse(1, "--output run holds a checkpoint of a run: go on with --resume, choose another",
                "$T --output run");
    static const char *const changes[][2] = {
        {"--lr 0.01", "--lr is 0.01, but the run in run was begun with 0.02"},
        {"--keep best", "--keep is best, but the run in run was begun with last"},
        {"--eval-every 5", "--eval-every is 5, but the run in run was begun with 0"},
        {"--max-length 20", "--max-length is 20, but the run in run was begun with the default"},
        {"--batch-size 4", "--rows-per-step is 4, but the run in run was begun with 8"},
        {"--no-shuffle", "--shuffle is false, but the run in run was begun with true"},
        {"--seed 6", "--seed is 6, but the run in run was begun with 5"},
        {"--dropout 0", "--dropout is 0, but the run in run was begun with 0.2"},
        {"--dtype bf16", "--dtype is bf16, but the run in run was begun with f32"},
        {"--metric f1", "--metric is f1, but the run in run was begun with the task's own"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        char line[200];
        snprintf(line, sizeof line, "$T --output run --resume %s", changes[i][0]);
        must_refuse(1, changes[i][1], line);
    }
    must_refuse(
        1, "--data is not what the run in run was begun with",
        "$MC finetune bert --task BoolQ --data other --config tiny $O --output run --resume");
    must_refuse(2, "--data: expected one folder with --task", "$T --data other");
    must("$T --output run --resume --zero-level 1");
    must_hold(err,
              "the run was begun with zero-level 3, it goes on with 1: the same up to rounding");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resume_last),    cmocka_unit_test(test_resume_best),
        cmocka_unit_test(test_resume_passes),  cmocka_unit_test(test_resume_lora),
        cmocka_unit_test(test_resume_prompts), cmocka_unit_test(test_ended),
        cmocka_unit_test(test_interrupt),      cmocka_unit_test(test_interrupted_evaluation),
        cmocka_unit_test(test_closed_streams), cmocka_unit_test(test_size_limit),
        cmocka_unit_test(test_lost_reader),    cmocka_unit_test(test_fewer_steps),
        cmocka_unit_test(test_kill),           cmocka_unit_test(test_base_moved),
        cmocka_unit_test(test_passes),         cmocka_unit_test(test_early_stopping),
        cmocka_unit_test(test_best),           cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, set_up, remove_folder);
}
