/* `modelcenter doctor` and `--version`: what is there, what is missing, and that nothing stops
 * them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <cjson/cJSON.h>
#include <omp.h>
#include "core/about/machine_internal.h"
#include "core/modelcenter.h"
#include <modelcenter/more.h>
/* a home of its own, and nothing of the caller's settings */
#define COMMAND_VARIABLES                                                            \
    "export HOME=\"$PWD/home\" && unset HF_HOME HF_HUB_CACHE HUGGINGFACE_HUB_CACHE " \
    "XDG_CACHE_HOME "                                                                \
    "MC_CACHE_DIR MC_CPU_ISA HF_TOKEN HUGGING_FACE_HUB_TOKEN HF_TOKEN_PATH HF_ENDPOINT && "
#include "tests/tools/command_test.h"
#include "tools/doctor.h"

/* What the line prints, as JSON. */
static cJSON *examine(const char *line)
{
    must(line);
    cJSON *found = cJSON_Parse(out);
    if (!found) fail_msg("no JSON: %s", out);
    return found;
}

static const cJSON *get(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    if (!item) fail_msg("no \"%s\" in %s", name, out);
    return item;
}

static const char *text_of(const cJSON *object, const char *name)
{
    return cJSON_GetStringValue(get(object, name));
}

static const cJSON *part_of(const cJSON *report, const char *name)
{
    const cJSON *part;
    cJSON_ArrayForEach(part, get(report, "libraries")) if (strcmp(text_of(part, "name"), name) ==
                                                           0) return part;
    fail_msg("no library %s in %s", name, out);
    return NULL;
}

static void test_version(void **state)
{
    (void)state;
    must("$MC --version");
    must_hold(out, "modelcenter " MC_VERSION "\ncommit ");
    must_hold(out, "\nbuilt in: BLAS, cJSON");
    int lines = 0;
    for (const char *p = out; *p; p++) lines += *p == '\n';
    assert_int_equal(lines, 3);
    assert_memory_equal(out, "modelcenter ", strlen("modelcenter "));
}

static void test_report(void **state)
{
    (void)state;
    cJSON *report = examine("$MC doctor --json");
    assert_string_equal(text_of(report, "version"), MC_VERSION);
    assert_true(cJSON_IsTrue(get(report, "usable")));
    const cJSON *cpu = get(report, "cpu");
    assert_true(get(cpu, "cores")->valueint >= 1);
    assert_true(get(cpu, "memory")->valuedouble > get(cpu, "memory_free")->valuedouble);
    assert_true(strlen(text_of(cpu, "kernels")) > 0 && !*text_of(cpu, "problem"));
    assert_true(cJSON_IsTrue(get(part_of(report, "BLAS"), "found")));
    assert_true(strlen(text_of(part_of(report, "BLAS"), "path")) > 0);
    assert_string_equal(text_of(part_of(report, "cJSON"), "version"), cJSON_Version());
    assert_true(cJSON_IsFalse(get(get(report, "hub"), "token")));
    assert_true(cJSON_IsNull(get(get(report, "hub"), "reached")));
    assert_false(cJSON_IsTrue(get(get(report, "model_cache"), "exists")));
    cJSON_Delete(report);
    must("$MC doctor && test ! -e home"); /* looking makes nothing */
    must_hold(out, "\nlibraries\n");
    must_hold(out, "result usable=yes");
}

/* Folders with files, one that cannot be made, a token that is not shown, a hub that may not be
 * asked. */
static void test_folders_and_hub(void **state)
{
    (void)state;
    must("mkdir -p home/hub/models--a--b/blobs home/hub/models--c && "
         "printf 12345 >home/hub/models--a--b/blobs/x && ln -s x home/hub/models--a--b/blobs/y");
    cJSON *report = examine("HF_HUB_CACHE=~/hub MC_CACHE_DIR=/dev/null/x HF_TOKEN=hf_secret "
                            "HF_HUB_OFFLINE=1 $MC doctor --json");
    const cJSON *models = get(report, "model_cache"), *tuning = get(report, "tuning_cache");
    assert_int_equal(get(models, "models")->valueint, 2);
    assert_int_equal(get(models, "bytes")->valueint, 5);
    assert_true(cJSON_IsTrue(get(models, "writable")));
    assert_string_equal(text_of(tuning, "path"), "/dev/null/x");
    assert_false(cJSON_IsTrue(get(tuning, "writable")));
    const cJSON *hub = get(report, "hub");
    assert_true(cJSON_IsTrue(get(hub, "token")));
    assert_string_equal(text_of(hub, "token_from"), "HF_TOKEN");
    assert_string_equal(text_of(hub, "offline_by"), "HF_HUB_OFFLINE");
    if (strstr(out, "secret")) fail_msg("the token is shown: %s", out);
    cJSON_Delete(report);
    must("env -u HOME HF_HOME= MC_CACHE_DIR= HF_TOKEN='a b' $MC doctor");
    must_hold(out, "HF_TOKEN: expected a token");
    must_hold(out, "  tuning        none\n");
}

/* All that stops it from being of use is named; the exit code says so. */
static void test_unusable(void **state)
{
    (void)state;
    assert_int_equal(run("MC_CPU_ISA=sse9 $MC doctor"), 1);
    must_hold(out, "MC_CPU_ISA=sse9");
    must_hold(out, "result usable=no");
    assert_int_equal(run("$MC doctor --nonsense"), 2);
}

/* What doctor prints of a report. */
static const char *printed(const doctor_report *report)
{
    FILE *file = fopen(temp_path(&folder, "printed"), "w");
    assert_non_null(file);
    doctor_print(file, report);
    fclose(file);
    read_text(out, &folder, "printed");
    return out;
}

/* A machine that lacks some: packages are named once, those of GPUs only where a GPU is. */
static void test_missing(void **state)
{
    (void)state;
    static doctor_report r; /* large */
    const mc_part parts[] = {
        {.name = "BLAS", .to_build = "blas-dev", .to_run = "blas", .built = true, .found = true},
        {.name = "libcurl", .use = "downloads", .to_build = "curl-dev ssl-dev", .built = false},
        {.name = "libcrypto", .use = "sums", .to_build = "curl-dev ssl-dev", .built = false},
        {.name = "MPI", .use = "ranks", .to_build = "mpi-dev", .to_run = "mpi-bin", .built = true},
        {.name = "CUDA", .use = "GPUs", .to_build = "cuda-toolkit", .needs_gpu = true},
        {.name = "NCCL",
         .use = "several",
         .to_build = "nccl",
         .needs_gpu = true,
         .several_gpus = true},
    };
    r.version = r.commit = r.date = "v";
    r.part_count = sizeof parts / sizeof *parts;
    memcpy(r.parts, parts, sizeof parts);
    doctor_find_missing(&r);
    assert_int_equal(r.missing_count, 3);
    must_hold(printed(&r), "apt-get install curl-dev ssl-dev mpi-bin\n    scripts/install.sh\n");
    must_hold(out, "\nmissing\n  libcurl       downloads\n");
    for (r.gpu_count = 1; r.gpu_count <= 2; r.gpu_count++) {
        doctor_find_missing(&r);
        assert_int_equal(r.missing_count, 3 + r.gpu_count);
        must_hold(printed(&r),
                  r.gpu_count == 1 ? " mpi-bin cuda-toolkit\n" : "cuda-toolkit nccl\n");
        must_hold(out, "NVIDIA's package sources");
    }
    r.part_count = 1;
    doctor_find_missing(&r);
    must_hold(printed(&r), "\nnothing is missing\n");
}

static void test_driver_number(void **state)
{
    (void)state;
    static const char *const lines[][2] = {
        {"NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC "
         "2024\n",
         "550.54.15"},
        {"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n",
         "580.159.04"},
        {"NVRM version: 1.2.x, none\n", ""},
        {"", ""},
    };
    char number[MC_ABOUT_TEXT];
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        mc_driver_number(lines[i][0], number);
        assert_string_equal(number, lines[i][1]);
    }
}

/* The same from C. */
static void test_calls(void **state)
{
    (void)state;
    mc_part parts[32], one;
    int count = mc_parts(parts, 32);
    assert_in_range(count, 8, 32);
    assert_int_equal(mc_parts(&one, 1), count);
    assert_int_equal(mc_parts(NULL, 0), count);
    mc_part_look(NULL);
    for (int i = 0; i < count; i++) {
        assert_non_null(parts[i].use);
        if (strcmp(parts[i].name, "BLAS") != 0) continue;
        mc_part_look(&parts[i]);
        assert_true(parts[i].built && parts[i].found && *parts[i].path);
    }
    mc_machine machine;
    mc_machine_read(&machine);
    assert_string_equal(machine.problem, "");
    assert_int_equal(machine.threads, omp_get_max_threads());
    mc_machine_read(NULL);
    mc_hub_look(NULL);
    assert_int_equal(mc_gpus(NULL, 0), mc_gpus(NULL, 0));
    char path[4] = "abc";
    setenv("MC_CACHE_DIR", "/a/long/path", 1);
    assert_false(mc_cache_folder(path, sizeof path));
    assert_string_equal(path, "");
    assert_false(mc_cache_folder(NULL, 0));
    assert_true(strlen(mc_build_commit()) > 0 && strlen(mc_build_date()) > 0);
    assert_int_equal(mc_hub_reach(NULL), MC_ERR_NOMEM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_version),         cmocka_unit_test(test_report),
        cmocka_unit_test(test_folders_and_hub), cmocka_unit_test(test_unusable),
        cmocka_unit_test(test_missing),         cmocka_unit_test(test_driver_number),
        cmocka_unit_test(test_calls),
    };
    return cmocka_run_group_tests_name("doctor", tests, make_folder, remove_folder);
}
