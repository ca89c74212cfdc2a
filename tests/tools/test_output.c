/* What commands write: nothing that exists or is read is replaced, a model's folder is whole at
 * every instant or holds none, one process writes to a folder, pipes and devices stay. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mount.h>
#include <unistd.h>
#include <cmocka.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>

/* $F trains a model of two classes for two steps, $P asks it. */
#define COMMAND_VARIABLES                                                                     \
    "F=\"$MC finetune --family bert --data rows.csv --text text --label kind --batch-size 4 " \
    "--max-steps 2\" && P=\"$MC predict --model base --data rows.csv --text-column text\" && "
#include "tests/tools/command_test.h"

static int set_up(void **state)
{
    (void)state;
    folder = temp_folder_new();
    setenv("OMP_NUM_THREADS", "1", 1);
    assert_int_equal(run("mkdir tiny"), 0);
    write_text(temp_path(&folder, "tiny/vocab.txt"),
               "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nred\nblue\ncat\ndog\n");
    write_text(temp_path(&folder, "tiny/config.json"),
               "{\"model_type\": \"bert\", \"vocab_size\": 9, \"hidden_size\": 16,"
               " \"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"intermediate_size\": 32,"
               " \"max_position_embeddings\": 32}");
    FILE *rows = fopen(temp_path(&folder, "rows.csv"), "w");
    assert_non_null(rows);
    fputs("text,kind\n", rows);
    for (int i = 0; i < 24; i++)
        fprintf(rows, "%s %s,%s\n", i % 3 ? "red" : "blue", i % 5 ? "cat" : "dog",
                i % 3 ? "warm" : "cold");
    fclose(rows);
    must("$F --config tiny --output base && cp rows.csv saved.csv && cp -r base saved");
    return 0;
}

static void nothing_changed(void) { must("cmp rows.csv saved.csv && diff -r base saved"); }

/* ---- inputs ---------------------------------------------------------------------------------- */

/* By its path, another spelling, a link, a hard link, with --overwrite or without. */
static void test_an_input_is_never_replaced(void **state)
{
    (void)state;
    must("ln -s base link && mkdir hard && ln base/model.safetensors hard/model.safetensors && "
         "mkdir deep && mv base deep/base && ln -s deep/base base && ln rows.csv hard.csv && "
         "ln -s rows.csv soft.csv");
    static const char *const folders[] = {"base", "./base/", "link", "deep/../deep/base",
                                          "hard", "deep",    "."};
    static const char *const files[] = {"rows.csv",
                                        "./rows.csv",
                                        "hard.csv",
                                        "soft.csv",
                                        "base/model.safetensors",
                                        "hard/model.safetensors"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char line[400];
        snprintf(line, sizeof line, "$F --model base --output %s --overwrite", folders[i]);
        must_refuse(1, "an input is never replaced", line);
    }
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char line[400];
        snprintf(line, sizeof line, "$F --model base --no-save --log-jsonl %s --overwrite",
                 files[i]);
        must_refuse(1, "an input is never replaced", line);
    }
    must_refuse(1, "an input is never replaced",
                "cp rows.csv in.jsonl && $MC generate --family gpt2 --model none --prompts "
                "in.jsonl --output ./in.jsonl --overwrite");
    must("rm base link soft.csv hard.csv && mv deep/base base && rm -r hard deep");
    must_refuse(1, "is, or belongs to, standard input",
                "$MC predict --model base --output rows.csv --overwrite < rows.csv");
    nothing_changed();
}

static void test_what_exists_needs_overwrite(void **state)
{
    (void)state;
    must_refuse(1, "--output base holds a model, or part of one (config.json)",
                "$F --config tiny --output base");
    must_refuse(1, "holds a model", "$MC convert --model tiny --output base --to hf");
    must("mkdir own && echo mine > own/config.json");
    must_refuse(1, "--output own holds a model, or part of one", "$F --config tiny --output own");
    must("echo mine | cmp - own/config.json && $P --output p.jsonl && cp p.jsonl p");
    must_refuse(1, "--output p.jsonl exists", "$P --output p.jsonl");
    must_refuse(1, "--log-jsonl p.jsonl exists", "$F --config tiny --no-save --log-jsonl p.jsonl");
    must_refuse(1, "--log-jsonl p.jsonl exists",
                "$MC eval --model base --data rows.csv --log-jsonl p.jsonl");
    must("cmp p p.jsonl && $P --output p.jsonl --overwrite && cmp p p.jsonl");
    must("$F --config tiny --output own --overwrite && $MC info own");
    must("$F --config tiny --no-save --tensorboard board");
    must_refuse(1, "--tensorboard board holds the events of another run",
                "$F --config tiny --no-save --tensorboard board");
    must_refuse(1, "--log-jsonl l and --log-csv ./l are the same file",
                "$F --config tiny --no-save --log-jsonl l --log-csv ./l");
    must_refuse(1, "task.json is a file of a model",
                "$F --config tiny --output new --log-jsonl base/../task.json");
    must_refuse(2, "expected a name that ends in", "$P --output p.xlsx");
    must_refuse(2, "expected a name that ends in",
                "$MC embed --model base --data rows.csv "
                "--text-column text --output p.parquet");
    nothing_changed();
}

/* The options of a run are an input, whatever the command. */
static void test_run_file_is_an_input(void **state)
{
    (void)state;
    must("mkdir cfg && echo '{\"max-length\": 8}' > cfg/o.csv && ln cfg/o.csv hard.csv && "
         "ln -s cfg/o.csv soft.csv && cp cfg/o.csv kept");
    static const char *const files[] = {"cfg/o.csv", "./cfg/../cfg/o.csv", "hard.csv", "soft.csv"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char line[400];
        snprintf(line, sizeof line, "$P --run-file cfg/o.csv --overwrite --output %s", files[i]);
        must_refuse(1, "is, or belongs to, --run-file cfg/o.csv", line);
        snprintf(line, sizeof line,
                 "$F --run-file cfg/o.csv --config tiny --no-save --overwrite --log-csv %s",
                 files[i]);
        must_refuse(1, "is, or belongs to, --run-file cfg/o.csv", line);
    }
    must_refuse(1, "is or contains --run-file cfg/o.csv",
                "$F --run-file cfg/o.csv --config tiny --overwrite --output cfg");
    must_refuse(
        1, "is, or belongs to, --run-file cfg/o.csv",
        "echo '{\"json-key\": \"text\"}' > cfg/o.csv && cp cfg/o.csv kept && $MC prepare --input "
        "rows.csv --tokenizer base --run-file cfg/o.csv --overwrite --output hard.csv");
    must("cmp cfg/o.csv kept && rm -r cfg hard.csv soft.csv kept");
}

/* One rule for all: beside a model's files, but under none of their names. */
static void test_files_in_a_models_folder(void **state)
{
    (void)state;
    must("rm -rf mine && cp -r base mine && P=\"$MC predict --model mine --data rows.csv\" && "
         "$P --output mine/rows.jsonl && $P --output mine/rows.csv && "
         "$F --config tiny --no-save --log-csv mine/log && $MC info mine");
    must_refuse(1, "pytorch_model.bin is a file of a model",
                "$MC prepare --input rows.csv --tokenizer mine --output mine/pytorch_model.bin");
    must_refuse(1, "run.json is a file of a model",
                "$F --config tiny --no-save --log-jsonl new/run.json");
    must_refuse(1, "--tensorboard mine/runs is, or lies in, --model mine",
                "$F --model mine --no-save --tensorboard mine/runs");
    must_refuse(1, "--tensorboard ./mine/ is, or lies in, --model mine",
                "$F --model mine --no-save --tensorboard ./mine/ --overwrite");
    must("mkdir set && cp rows.csv set/train.csv && cp rows.csv set/val.csv && rm -r mine");
    must_refuse(1, "--tensorboard set is, or lies in, --data set",
                "$MC finetune --config tiny --data set --text text --label kind --no-save "
                "--tensorboard set");
    must("test ! -e new && rm -r set");
    nothing_changed();
}

/* The folders of logs are made, also the one that the model will lie in. */
static void test_logs_in_new_folders(void **state)
{
    (void)state;
    must("$F --config tiny --output fresh --log-jsonl fresh/a/l.jsonl --log-csv ./fresh/l.csv "
         "--tensorboard fresh/board && test $(wc -l < fresh/a/l.jsonl) -ge 3 && "
         "test $(wc -l < fresh/l.csv) -ge 4 && ls fresh/board/events.out.tfevents.* && "
         "$MC info fresh && cp -r fresh/a logs");
    must_refuse(1, "--log-jsonl fresh/a/l.jsonl exists",
                "$F --config tiny --output fresh2 --log-jsonl fresh/a/l.jsonl");
    must_refuse(1, "are the same file",
                "$F --config tiny --output fresh2 --log-jsonl fresh2/l --log-csv "
                "fresh2/x/.././l");
    must_refuse(1, "cannot write there: Not a directory",
                "$F --config tiny --output fresh2 --log-jsonl rows.csv/l");
    must_refuse(1, "cannot write there: Not a directory",
                "$F --config tiny --output fresh2 --tensorboard rows.csv");
    must_refuse(1, "cannot write there: Is a directory",
                "$F --config tiny --output fresh2 --log-jsonl fresh2/");
    must("test ! -e fresh2 && diff -r fresh/a logs && $F --config tiny --no-save --log-csv "
         "deep/er/l.csv && test -s deep/er/l.csv && rm -r fresh logs deep");
    must("$F --config tiny --output fresh --save-every 1 --stop-after 1 --log-csv fresh/l.csv && "
         "$F --config tiny --output fresh --save-every 1 --resume --log-csv fresh/l.csv && "
         "test $(grep -c '^[12],,,' fresh/l.csv) = 2 && rm -r fresh");
}

/* ---- links, pipes, devices ------------------------------------------------------------------- */

static void test_links_and_pipes(void **state)
{
    (void)state;
    must("rm -f p.jsonl && $P --output p.jsonl && mkdir -p far && ln -s far/real.jsonl to.jsonl && "
         "$P --output to.jsonl && test -L to.jsonl && cmp p.jsonl far/real.jsonl");
    must("$P --output to.jsonl --overwrite && test -L to.jsonl && ! test -L far/real.jsonl");
    must("mkfifo pipe && { cat pipe > piped & $P --output pipe && wait; } && test -p pipe && "
         "cmp p.jsonl piped");
    must("$P --output - > dash && cmp p.jsonl dash && $P --output /dev/stdout > path && "
         "cmp p.jsonl path && $P --output /dev/stdout | cmp p.jsonl && test -L /dev/stdout");
    must("$P --output /dev/null && test -c /dev/null");
    must("! ls | grep '\\.tmp-'");
}

/* A temporary of a process that died goes, that of one that lives stays. */
static void test_stale_temporaries(void **state)
{
    (void)state;
    mc_aside lives;
    assert_int_equal(mc_aside_open(&lives, temp_path(&folder, "s.jsonl")), 0);
    must("touch s.jsonl.tmp-0123456789abcdef s.jsonl.tmp-mine other.jsonl.tmp-0123456789abcdef && "
         "$P --output s.jsonl && ! test -e s.jsonl.tmp-0123456789abcdef && "
         "test -e s.jsonl.tmp-mine && test -e other.jsonl.tmp-0123456789abcdef");
    assert_int_equal(access(lives.path, F_OK), 0);
    assert_int_equal(mc_aside_rename(&lives, false), EEXIST);
    mc_aside_close(&lives);
    assert_int_not_equal(access(lives.path, F_OK), 0);
    must("rm *.tmp-*");
    /* a link of a name that could be guessed is not written through */
    must("mkdir planted && echo mine > victim && ln -s ../victim planted/run.json.tmp && "
         "$F --config tiny --output planted --overwrite && test \"$(cat victim)\" = mine && "
         "test -e planted/run.json");
}

/* ---- whole folders --------------------------------------------------------------------------- */

/* Killed at any moment, the folder holds the model from before, the new one, or none. */
static void test_kill(void **state)
{
    (void)state;
    must("rm -rf two && $F --config tiny --output two && cp -r two before");
    for (int i = 0; i < 12; i++) {
        char line[600];
        snprintf(
            line, sizeof line,
            "sed 's/warm/hot/' rows.csv > hot.csv; "
            "$MC finetune --family bert --data hot.csv --text text --label kind --batch-size 4 "
            "--epochs 2 --eval-every 1 --keep best --config tiny --output two --overwrite "
            ">&- 2>&- & pid=$!; sleep 0.%02d; kill -9 $pid; wait $pid; "
            "test ! -e two/config.json || { $MC info two && "
            "{ grep -q hot two/task.json && grep -q hot two/config.json || "
            "{ diff -r -x model.tmp -x .modelcenter.lock -x finetune.json two before; }; }; }",
            3 * i + 1);
        must(line);
    }
    must("$F --config tiny --output two --overwrite && $MC info two && ! test -e two/model.tmp");
}

/* The second of two runs is refused, by name, and the first goes on. */
static void test_lock(void **state)
{
    (void)state;
    must("{ $MC finetune --family bert --config tiny --data rows.csv --text text --label kind "
         "--batch-size 4 --epochs 100000 --output held 2>held.err & pid=$!; "
         "until grep -q '^step ' held.err; do sleep 0.01; done; "
         "! $F --config tiny --output held --overwrite 2>second.err; "
         "grep -q \"process $pid on host $(uname -n) writes to this folder\" second.err; code=$?; "
         "kill -9 $pid; wait $pid; test $code = 0; }");
    must("{ $F --config tiny --output held --overwrite --epochs 100000 --max-steps 0 2>look.err & "
         "pid=$!; until grep -q '^step ' look.err; do sleep 0.01; done; "
         "! $F --config tiny --output held --overwrite --dry-run 2>second.err; "
         "grep -q \"process $pid on host \" second.err; code=$?; kill -9 $pid; wait $pid; "
         "test $code = 0; }");
    must("$F --config tiny --output held --overwrite --dry-run");
    must("$F --config tiny --output held --overwrite && test ! -e held/.modelcenter.lock");
}

/* ---- without --output ------------------------------------------------------------------------ */

static void test_run_folder(void **state)
{
    (void)state;
    must("rm -rf runs && $F --config tiny && $F --config tiny && "
         "test $(ls -d runs/tiny-2*-* | wc -l) = 2 && for r in runs/*; do $MC info $r; done");
    must("rm -rf runs && $F --config tiny 2>said && "
         "grep -q \"^the final weights will be saved to $(ls -d runs/*) \" said");
    must("rm -rf runs && $F --config tiny --no-save && test ! -e runs");
    must_hold(err, "nothing will be saved (--no-save)\n");
    must_refuse(2, "--resume goes on with the run that is there, --overwrite replaces it",
                "$F --config tiny --output base --resume --overwrite");
    must_refuse(2, "--no-save saves nothing", "$F --config tiny --no-save --output x");
    must("rm -rf runs; ! $F --config tiny --data none.csv && test ! -e runs");
    must_refuse(1, "cannot write there", "touch file && $F --config tiny --output file/run");
}

/* A disk without room for all of a model's folder is found before the first step. */
static void check_full_disk(const char *options)
{
    must("mkdir -p small");
    if (mount("tmpfs", temp_path(&folder, "small"), "tmpfs", 0, options) != 0) {
        printf("SKIPPED: a full disk: no file system may be mounted here\n");
        skip();
    }
    int code = run("$F --config tiny --output small/run");
    assert_int_equal(umount(temp_path(&folder, "small")), 0);
    assert_int_equal(code, 1);
    must_hold(err, "small/run: saving needs ");
    must_hold(err, " free: the run is not begun");
    assert_null(strstr(err, "\nstep "));
}

static void test_full_disk(void **state)
{
    (void)state;
    check_full_disk("size=16k");
    check_full_disk("size=40k"); /* room for the weights alone */
}

/* Nothing stays of a command that could write nothing. */
static void test_no_room_for_a_lock(void **state)
{
    (void)state;
    must("mkdir -p small");
    if (mount("tmpfs", temp_path(&folder, "small"), "tmpfs", 0, "size=4k") != 0) {
        printf("SKIPPED: a full disk: no file system may be mounted here\n");
        skip();
    }
    int filled = run("head -c 4096 /dev/zero > small/full");
    int code = run("$MC convert --model base --output small/run --to hf");
    bool gone = access(temp_path(&folder, "small/run"), F_OK) != 0;
    assert_int_equal(umount(temp_path(&folder, "small")), 0);
    assert_int_equal(filled, 0);
    assert_int_equal(code, 1);
    must_hold(err, "small/run/.modelcenter.lock: cannot write there: No space left on device");
    assert_true(gone);
}

/* Of a failed command no folder stays that it made, and each that was there. */
static void test_new_folders(void **state)
{
    (void)state;
    must("! $F --config tiny --data none.csv --output a/b/run && test ! -e a");
    must("mkdir -p a/b; ! $F --config tiny --data none.csv --output a/b/run && test -d a/b && "
         "test ! -e a/b/run");
    must("mkdir a/b/run; ! $F --config tiny --data none.csv --output a/b/run && test -d a/b/run");
    must("rm -r a; trap '' XFSZ; ! (ulimit -f 4; $MC convert --model base --output a/b --to hf) "
         "&& test ! -e a");
    must("mkdir a; trap '' XFSZ; ! (ulimit -f 4; $MC convert --model base --output a --to hf) && "
         "test -d a && test -z \"$(ls -A a)\"");
    must(
        "rmdir a; ln -s no/such/folder dangling; "
        "! $F --config tiny --no-save --log-jsonl dangling && test ! -e no && "
        "! $F --config tiny --no-save --log-jsonl new/$(printf %300s | tr ' ' x) && test ! -e new");
}

/* A disk that gets full while the model is saved (here a limit of bytes a file, which the weights
 * exceed and the vocabulary does not) leaves no vocabulary without a model. */
static void test_disk_fills_up(void **state)
{
    (void)state;
    int code = run("trap '' XFSZ; ulimit -f 16; $F --config tiny --output fills");
    assert_int_equal(code, 1);
    must_hold(err, "model.safetensors: cannot ");
    must("! ls fills/* 2>&- | grep -v 'run.json\\|finetune.json'");
    must(
        "$F --config tiny --output fills --overwrite && test -e fills/vocab.txt && $MC info fills");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_input_is_never_replaced),
        cmocka_unit_test(test_what_exists_needs_overwrite),
        cmocka_unit_test(test_run_file_is_an_input),
        cmocka_unit_test(test_files_in_a_models_folder),
        cmocka_unit_test(test_logs_in_new_folders),
        cmocka_unit_test(test_links_and_pipes),
        cmocka_unit_test(test_stale_temporaries),
        cmocka_unit_test(test_kill),
        cmocka_unit_test(test_lock),
        cmocka_unit_test(test_run_folder),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_new_folders),
        cmocka_unit_test(test_no_room_for_a_lock),
        cmocka_unit_test(test_disk_fills_up),
    };
    return cmocka_run_group_tests(tests, set_up, remove_folder);
}
