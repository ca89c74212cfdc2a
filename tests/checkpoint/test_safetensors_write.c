/* Writing safetensors: what is written reads back, and nothing that goes wrong on the way (a full
 * disk, a killed process, a failed allocation) costs the file that was there before. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include "core/base/context_internal.h"
#include "core/formats/safetensors_internal.h"
#include "core/formats/tensor_file_internal.h"
#include "tests/checkpoint/kill_points.h"
#include "tests/child.h"
#include "tests/temp_folder.h"

typedef struct fixture {
    temp_folder folder;
    mc_context *ctx;
    const char *path; /* of the file that tests write */
} fixture;

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    f->folder = temp_folder_new();
    f->path = strdup(temp_path(&f->folder, "model.safetensors"));
    f->ctx = mc_init_distributed(NULL);
    *state = f;
    return mc_failed(f->ctx) ? mc_print_error(f->ctx, stderr) : 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    mc_context_free(f->ctx);
    temp_folder_free(&f->folder);
    free((char *)f->path);
    free(f);
    return 0;
}

static void expect_good(mc_context *ctx)
{
    if (mc_failed(ctx)) fail_msg("%s", mc_error_message(ctx));
}

static void expect_error(mc_context *ctx, mc_status status, const char *part)
{
    if (!mc_failed(ctx)) fail_msg("no error, expected: %s", part);
    if (!strstr(mc_error_message(ctx), part))
        fail_msg("\"%s\" not in: %s", part, mc_error_message(ctx));
    assert_int_equal(mc_error_status(ctx), status);
    mc_clear_error(ctx);
}

/* ---- A file of many equal numbers, to tell versions apart by -------------------------------- */

enum { TENSORS = 3, ELEMENTS = 300000 };
static const int64_t version_shape[] = {ELEMENTS};
static const mc_safetensors_spec version_specs[TENSORS] = {
    {.name = "a", .dtype = MC_F32, .ndim = 1, .shape = version_shape},
    {.name = "b", .dtype = MC_F32, .ndim = 1, .shape = version_shape},
    {.name = "c", .dtype = MC_F32, .ndim = 1, .shape = version_shape},
};

/* Begins a file of that version and writes all its data. */
static mc_safetensors_writer *begin_version(mc_context *ctx, const char *path, float version)
{
    float part[1000];
    for (int i = 0; i < 1000; i++) part[i] = version;
    mc_safetensors_writer *writer =
        mc_safetensors_writer_new(ctx, path, version_specs, TENSORS, NULL, 0);
    for (int i = 0; i < TENSORS * ELEMENTS / 1000; i++)
        mc_safetensors_write(writer, part, sizeof part);
    return writer;
}

static mc_status write_version(mc_context *ctx, const char *path, float version)
{
    mc_safetensors_writer *writer = begin_version(ctx, path, version);
    mc_status status = mc_safetensors_writer_commit(writer);
    mc_safetensors_writer_free(writer);
    return status;
}

/* Reads a file and checks that it is whole and of one version, which it returns. */
static float read_version(mc_context *ctx, const char *path)
{
    mc_tensor_file *file = mc_tensor_file_open(ctx, path, NULL);
    expect_good(ctx);
    assert_int_equal(mc_tensor_file_count(file), TENSORS);
    float *values = malloc(ELEMENTS * sizeof *values), version = 0;
    for (size_t t = 0; t < TENSORS; t++) {
        mc_tensor_file_read_f32(file, mc_tensor_file_at(file, t), 0, ELEMENTS, values);
        expect_good(ctx);
        if (t == 0) version = values[0];
        for (int i = 0; i < ELEMENTS; i++) assert_true(values[i] == version);
    }
    free(values);
    mc_tensor_file_free(file);
    return version;
}

/* ---- What is written ------------------------------------------------------------------------ */

static void what_is_written_reads_back(void **state)
{
    fixture *f = *state;
    static const char odd_name[] = "q\"uote\\ \xc3\xa9\xe4\xb8\xad\t\x01/";
    const double wide[] = {0.1, -2};
    const float narrow[] = {1, 2, 3, 4, 5, 6}, scalar = 7;
    const uint16_t half[] = {0x3c00, 0xfc00, 1};
    const uint8_t bytes[] = {1, 0, 1};
    const mc_safetensors_spec specs[] = {
        {.name = "wide", .dtype_name = "F64", .ndim = 1, .shape = (int64_t[]){2}},
        {.name = odd_name, .ndim = 2, .shape = (int64_t[]){2, 3}},
        {.name = "", .dtype = MC_I64, .ndim = 3, .shape = (int64_t[]){4, 0, 2}},
        {.name = "scalar", .dtype = MC_F32},
        {.name = "half", .dtype = MC_F16, .ndim = 1, .shape = (int64_t[]){3}},
        {.name = "flags", .dtype = MC_BOOL, .ndim = 1, .shape = (int64_t[]){3}},
    };
    const mc_safetensors_string strings[] = {{"k\"ey", "v\nalue"}, {"empty", ""}};
    mc_safetensors_writer *writer =
        mc_safetensors_writer_new(f->ctx, f->path, specs, 6, strings, 2);
    mc_safetensors_write(writer, wide, sizeof wide);
    mc_safetensors_write(writer, narrow, 3); /* cut anywhere */
    mc_safetensors_write(writer, (const char *)narrow + 3, sizeof narrow - 3);
    mc_safetensors_write(writer, NULL, 0);
    mc_safetensors_write(writer, &scalar, sizeof scalar);
    mc_safetensors_write(writer, half, sizeof half);
    mc_safetensors_write(writer, bytes, sizeof bytes);
    assert_int_equal(mc_safetensors_writer_commit(writer), MC_OK);
    mc_safetensors_writer_free(writer);
    assert_int_equal(count_files(f->folder.path), 1);

    mc_tensor_file *file = mc_tensor_file_open(f->ctx, f->path, NULL);
    expect_good(f->ctx);
    assert_int_equal(mc_tensor_file_count(file), 6);
    const mc_tensor_entry *odd = mc_tensor_file_find(file, odd_name);
    assert_non_null(odd);
    assert_int_equal(odd->dtype, MC_F32);
    assert_int_equal(odd->shape[1], 3);
    assert_memory_equal(odd->data, narrow, sizeof narrow);
    assert_memory_equal(mc_tensor_file_find(file, "wide")->data, wide, sizeof wide);
    assert_memory_equal(mc_tensor_file_find(file, "half")->data, half, sizeof half);
    assert_memory_equal(mc_tensor_file_find(file, "flags")->data, bytes, sizeof bytes);
    assert_int_equal(mc_tensor_file_find(file, "scalar")->ndim, 0);
    assert_int_equal(mc_tensor_file_find(file, "")->ndim, 3);
    assert_int_equal((uintptr_t)mc_tensor_file_find(file, "wide")->data % 8, 0);
    assert_string_equal(mc_tensor_file_metadata(file, "format"), "pt");
    assert_string_equal(mc_tensor_file_metadata(file, "k\"ey"), "v\nalue");
    assert_string_equal(mc_tensor_file_metadata(file, "empty"), "");
}

static void no_tensors_are_a_file_too(void **state)
{
    fixture *f = *state;
    mc_safetensors_string format = {"format", "np"};
    mc_safetensors_writer *writer = mc_safetensors_writer_new(f->ctx, f->path, NULL, 0, &format, 1);
    assert_int_equal(mc_safetensors_writer_commit(writer), MC_OK);
    mc_tensor_file *file = mc_tensor_file_open(f->ctx, f->folder.path, NULL);
    expect_good(f->ctx);
    assert_int_equal(mc_tensor_file_count(file), 0);
    assert_int_equal(mc_tensor_file_metadata_count(file), 1);
    assert_string_equal(mc_tensor_file_metadata(file, "format"), "np");
}

static void sorted_specs_are_aligned(void **state)
{
    fixture *f = *state;
    static const mc_dtype dtypes[] = {MC_U8, MC_F32, MC_BOOL, MC_I64, MC_F16, MC_BF16, MC_I32};
    char names[7][2] = {"g", "f", "e", "d", "c", "b", "a"};
    const int64_t shape[] = {3};
    mc_safetensors_spec specs[7];
    for (int i = 0; i < 7; i++)
        specs[i] =
            (mc_safetensors_spec){.name = names[i], .dtype = dtypes[i], .ndim = 1, .shape = shape};
    assert_null(mc_safetensors_writer_new(f->ctx, f->path, specs, 7, NULL, 0));
    expect_error(f->ctx, MC_ERR_ARGUMENT,
                 "tensor \"f\": would start at byte 3, no multiple of its element's 4 bytes");
    mc_safetensors_sort(specs, 7);
    static const char order[] = "dafbceg";
    for (int i = 0; i < 7; i++) assert_int_equal(specs[i].name[0], order[i]);
    mc_safetensors_writer_free(mc_safetensors_writer_new(f->ctx, f->path, specs, 7, NULL, 0));
    expect_good(f->ctx);
}

static void impossible_specs_are_refused(void **state)
{
    fixture *f = *state;
    static const int64_t two[] = {2}, negative[] = {-1}, huge[] = {INT64_MAX / 4, 2};
    static const struct {
        mc_safetensors_spec specs[2];
        const char *message;
    } table[] = {
        {{{.name = NULL}}, "tensor \"\": not a name"},
        {{{.name = "__metadata__"}}, "not a name"},
        {{{.name = "\xff"}}, "not a name"},
        {{{.name = "a", .dtype_name = "F128"}}, "tensor \"a\": no dtype \"F128\""},
        {{{.name = "a", .dtype = 99}}, "tensor \"a\": no dtype"},
        {{{.name = "a", .ndim = -1}}, "-1 dimensions"},
        {{{.name = "a", .ndim = 1}}, "dimension 0: expected a number from 0 up"},
        {{{.name = "a", .ndim = 1, .shape = negative}}, "dimension 0: expected"},
        {{{.name = "a", .ndim = 2, .shape = huge}}, "too many"},
        {{{.name = "a", .dtype_name = "F4"}}, "no whole bytes"},
        {{{.name = "b", .ndim = 1, .shape = two}, {.name = "b"}}, "\"b\" is declared twice"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        size_t count = table[i].specs[1].name ? 2 : 1;
        assert_null(mc_safetensors_writer_new(f->ctx, f->path, table[i].specs, count, NULL, 0));
        expect_error(f->ctx, MC_ERR_ARGUMENT, table[i].message);
    }
    mc_safetensors_string bad[] = {{"k", NULL}}, twice[] = {{"k", "1"}, {"k", "2"}};
    assert_null(mc_safetensors_writer_new(f->ctx, f->path, NULL, 0, bad, 1));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "metadata string 0");
    assert_null(mc_safetensors_writer_new(f->ctx, f->path, NULL, 0, twice, 2));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "\"k\" is declared twice");
    assert_null(mc_safetensors_writer_new(f->ctx, NULL, NULL, 0, NULL, 0));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "mc_safetensors_writer_new: path is NULL");
    assert_null(mc_safetensors_writer_new(NULL, f->path, NULL, 0, NULL, 0));
    assert_int_equal(count_files(f->folder.path), 0);
}

static void bytes_are_counted(void **state)
{
    fixture *f = *state;
    float values[3] = {1, 2, 3};
    mc_safetensors_spec spec = {.name = "a", .ndim = 1, .shape = (int64_t[]){2}};
    mc_safetensors_writer *writer = mc_safetensors_writer_new(f->ctx, f->path, &spec, 1, NULL, 0);
    mc_safetensors_write(writer, values, 4);
    mc_safetensors_writer_commit(writer);
    expect_error(f->ctx, MC_ERR_STATE, "not all tensors were written (4 of 8 bytes)");
    mc_safetensors_write(writer, values, 8);
    expect_error(f->ctx, MC_ERR_ARGUMENT, "8 bytes given where 4 are left of the 8 declared");
    mc_safetensors_writer_rename(writer);
    expect_error(f->ctx, MC_ERR_STATE, "not synced yet");
    assert_int_equal(mc_safetensors_write(writer, values + 1, 4), MC_OK);
    assert_int_equal(mc_safetensors_writer_commit(writer), MC_OK);
    mc_safetensors_write(writer, values, 0);
    expect_error(f->ctx, MC_ERR_STATE, "finished already");
    mc_safetensors_writer_commit(writer);
    expect_error(f->ctx, MC_ERR_STATE, "finished already");
    mc_safetensors_writer_rename(writer);
    expect_error(f->ctx, MC_ERR_STATE, "renamed already");
    mc_safetensors_writer_free(NULL);
    assert_int_equal(mc_safetensors_write(NULL, values, 4), MC_ERR_ARGUMENT);
    assert_int_equal(mc_safetensors_writer_commit(NULL), MC_ERR_ARGUMENT);
}

/* What is written at places, in any order, is the same file; by one rank, a shared one too. */
static void bytes_find_their_places(void **state)
{
    fixture *f = *state;
    const float values[5] = {1, 2, 3, 4, 5};
    mc_safetensors_spec specs[] = {{.name = "a", .ndim = 1, .shape = (int64_t[]){2}},
                                   {.name = "b", .ndim = 1, .shape = (int64_t[]){3}}};
    mc_safetensors_writer *writer = mc_safetensors_writer_new_shared(f->ctx, f->path, specs, 2);
    mc_safetensors_write_at(writer, 8, values + 2, 12);
    mc_safetensors_writer_sync(writer);
    expect_error(f->ctx, MC_ERR_STATE, "not all tensors were written (12 of 20 bytes)");
    mc_safetensors_write_at(writer, 16, values, 8);
    expect_error(f->ctx, MC_ERR_ARGUMENT, "8 bytes given at 16 of the 20 declared");
    mc_safetensors_write_at(writer, 21, values, 0);
    expect_error(f->ctx, MC_ERR_ARGUMENT, "0 bytes given at 21 of the 20 declared");
    assert_int_equal(mc_safetensors_write_at(writer, 0, values, 8), MC_OK);
    assert_int_equal(mc_safetensors_writer_commit(writer), MC_OK);
    mc_safetensors_write_at(writer, 0, values, 8);
    expect_error(f->ctx, MC_ERR_STATE, "finished already");
    mc_tensor_file *file = mc_tensor_file_open(f->ctx, f->path, NULL);
    float found[5];
    mc_tensor_file_read_f32(file, mc_tensor_file_find(file, "a"), 0, 2, found);
    mc_tensor_file_read_f32(file, mc_tensor_file_find(file, "b"), 0, 3, found + 2);
    expect_good(f->ctx);
    assert_memory_equal(found, values, sizeof values);
    assert_int_equal(mc_safetensors_write_at(NULL, 0, values, 4), MC_ERR_ARGUMENT);
}

/* ---- What must survive ---------------------------------------------------------------------- */

static void nothing_shows_before_the_commit(void **state)
{
    fixture *f = *state;
    mc_safetensors_writer_free(begin_version(f->ctx, f->path, 1));
    assert_int_equal(count_files(f->folder.path), 0);
    assert_int_equal(write_version(f->ctx, f->path, 1), MC_OK);
    mc_tensor_file *old = mc_tensor_file_open(f->ctx, f->path, NULL);
    mc_safetensors_writer *writer = begin_version(f->ctx, f->path, 2);
    assert_true(read_version(f->ctx, f->path) == 1);
    assert_int_equal(mc_safetensors_writer_sync(writer), MC_OK);
    assert_true(read_version(f->ctx, f->path) == 1);
    assert_int_equal(mc_safetensors_writer_rename(writer), MC_OK);
    assert_true(read_version(f->ctx, f->path) == 2);
    float value; /* the replaced file stays readable where it is open */
    mc_tensor_file_read_f32(old, mc_tensor_file_at(old, 2), ELEMENTS - 1, 1, &value);
    assert_true(value == 1);
    mc_safetensors_writer_free(writer);
    begin_version(f->ctx, f->path, 3); /* the context frees it, and with it what was written */
    mc_context_free(f->ctx);
    f->ctx = mc_init_distributed(NULL);
    assert_true(read_version(f->ctx, f->path) == 2);
    assert_int_equal(count_files(f->folder.path), 1);
}

static void an_error_stops_the_file(void **state)
{
    fixture *f = *state;
    assert_int_equal(write_version(f->ctx, f->path, 1), MC_OK);
    mc_safetensors_writer *writer = begin_version(f->ctx, f->path, 2);
    mc_fail(f->ctx, MC_ERR_STATE, "something else went wrong");
    assert_int_equal(mc_safetensors_writer_commit(writer), MC_ERR_STATE);
    assert_int_equal(mc_safetensors_write(writer, NULL, 0), MC_ERR_STATE);
    mc_safetensors_writer_free(writer);
    mc_clear_error(f->ctx);
    assert_true(read_version(f->ctx, f->path) == 1);
    assert_int_equal(count_files(f->folder.path), 1);
}

/* In a process that is going to be killed. */
static void save_second_version(void *user)
{
    const fixture *f = user;
    assert_int_equal(write_version(f->ctx, f->path, 2), MC_OK);
}

/* Wherever it is killed, the file is of one version: the old one until the new one has its name. */
static void a_killed_process_loses_nothing(void **state)
{
    fixture *f = *state;
    int old = 0, leftovers = 0, kills = 0;
    assert_int_equal(write_version(f->ctx, f->path, 1), MC_OK);
    while (killed_at(kills + 1, save_second_version, f)) {
        float version = read_version(f->ctx, f->path);
        assert_true(version == 1 || version == 2);
        assert_true(version == 2 || old == kills);
        old += version == 1;
        kills++;
        leftovers += count_files(f->folder.path) > 1;
        temp_folder_keep_one(&f->folder, "model.safetensors");
    }
    print_message("%d kills: %d left the old file, %d something beside it\n", kills, old,
                  leftovers);
    assert_true(read_version(f->ctx, f->path) == 2);
    assert_true(old >= 3 && kills > old && leftovers >= old - 1); /* in data, sync, rename, sync */
}

static void a_file_size_limit_is_an_error(void **state)
{
    fixture *f = *state;
    struct rlimit before, small;
    assert_int_equal(write_version(f->ctx, f->path, 1), MC_OK);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    signal(SIGXFSZ, SIG_IGN); /* so that the limit is an error and no signal */
    for (rlim_t limit = 100; limit < TENSORS * ELEMENTS * 4; limit = limit * 3 + 1) {
        small.rlim_cur = limit;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        mc_status status = write_version(f->ctx, f->path, 2);
        setrlimit(RLIMIT_FSIZE, &before);
        assert_int_equal(status, MC_ERR_IO);
        expect_error(f->ctx, MC_ERR_IO, "model.safetensors: cannot write: File too large");
        assert_true(read_version(f->ctx, f->path) == 1);
        assert_int_equal(count_files(f->folder.path), 1);
    }
    signal(SIGXFSZ, SIG_DFL);
}

/* A write that failed is not made good by clearing the error and going on. */
static void a_failed_write_is_never_committed(void **state)
{
    fixture *f = *state;
    struct rlimit before, small;
    static const float part[ELEMENTS];
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 100000;
    signal(SIGXFSZ, SIG_IGN);
    mc_safetensors_writer *writer =
        mc_safetensors_writer_new(f->ctx, f->path, version_specs, TENSORS, NULL, 0);
    setrlimit(RLIMIT_FSIZE, &small);
    while (mc_safetensors_write(writer, part, sizeof part) == MC_OK) continue;
    setrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_DFL);
    expect_error(f->ctx, MC_ERR_IO, "cannot write");
    assert_int_equal(mc_safetensors_write(writer, part, sizeof part), MC_ERR_STATE);
    expect_error(f->ctx, MC_ERR_STATE, "an earlier write to it failed");
    mc_safetensors_writer_free(writer);
    assert_int_equal(count_files(f->folder.path), 0);
}

static void a_full_disk_is_an_error(void **state)
{
    fixture *f = *state;
    char small[600];
    snprintf(small, sizeof small, "%s/small", f->folder.path);
    assert_int_equal(mkdir(small, 0777), 0);
    pid_t child = fork_child();
    if (child == 0) { /* a mount of its own, gone with the process */
        if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) _exit(77);
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
        if (mount("tmpfs", small, "tmpfs", 0, "size=6m") != 0) _exit(77);
        char path[700];
        snprintf(path, sizeof path, "%s/model.safetensors", small);
        assert_int_equal(write_version(f->ctx, path, 1), MC_OK); /* 3.6 MB; no room for another */
        assert_int_equal(write_version(f->ctx, path, 2), MC_ERR_IO);
        expect_error(f->ctx, MC_ERR_IO, "model.safetensors: cannot write: No space left on device");
        assert_true(read_version(f->ctx, path) == 1);
        assert_int_equal(count_files(small), 1);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        printf("SKIPPED: mounting a small file system is not permitted here\n");
        skip();
    }
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void a_read_only_folder_is_an_error(void **state)
{
    fixture *f = *state;
    assert_int_equal(write_version(f->ctx, f->path, 1), MC_OK);
    assert_int_equal(chmod(f->path, 0644), 0);
    assert_int_equal(chmod(f->folder.path, 0555), 0);
    bool root = geteuid() == 0; /* who may write anywhere */
    if (root) assert_int_equal(seteuid(65534), 0);
    write_version(f->ctx, f->path, 2);
    if (root) assert_int_equal(seteuid(0), 0);
    expect_error(f->ctx, MC_ERR_IO, "model.safetensors: cannot create: Permission denied");
    assert_true(read_version(f->ctx, f->path) == 1);
    chmod(f->folder.path, 0755);
    assert_int_equal(count_files(f->folder.path), 1);
    write_version(f->ctx, temp_path(&f->folder, "no/m.safetensors"), 2);
    expect_error(f->ctx, MC_ERR_NOT_FOUND, "no/m.safetensors: cannot create: No such file");
    assert_int_equal(mkdir(temp_path(&f->folder, "taken"), 0777), 0);
    write_version(f->ctx, temp_path(&f->folder, "taken"), 2);
    expect_error(f->ctx, MC_ERR_IO, "taken: cannot create: Is a directory");
    assert_int_equal(count_files(f->folder.path), 2);
}

static void failed_allocations_are_clean(void **state)
{
#ifdef MC_FAULT_INJECTION
    fixture *f = *state;
    char text[2000]; /* long enough that the header's buffer grows several times */
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    const mc_safetensors_string string = {"key", text};
    assert_int_equal(write_version(f->ctx, f->path, 1), MC_OK);
    bool done = false;
    long nth = 0;
    while (!done) {
        float values[2] = {1, 2};
        const mc_safetensors_spec specs[] = {{.name = "a"}, {.name = "b"}};
        mc_fault_fail_at(++nth, false);
        mc_safetensors_writer *writer =
            mc_safetensors_writer_new(f->ctx, f->path, specs, 2, &string, 1);
        mc_safetensors_write(writer, values, sizeof values);
        done = mc_safetensors_writer_commit(writer) == MC_OK;
        mc_fault_fail_at(0, false);
        mc_safetensors_writer_free(writer);
        assert_int_equal(count_files(f->folder.path), 1);
        if (done) break;
        assert_int_equal(mc_error_status(f->ctx), MC_ERR_NOMEM);
        mc_clear_error(f->ctx);
        assert_true(read_version(f->ctx, f->path) == 1);
    }
    assert_true(nth > 8);
#else
    (void)state;
    printf("SKIPPED: needs a build with MC_FAULT_INJECTION\n");
    skip();
#endif
}

/* Copies a real file tensor by tensor; all of it must come back. */
static void a_real_file_survives_a_copy(void **state)
{
    fixture *f = *state;
    char path[1024];
    const char *shared = shared_folder();
    if (!shared) skip();
    snprintf(path, sizeof path, "%s/goldens/loader-formats/expected.safetensors", shared);
    mc_tensor_file *from = mc_tensor_file_open(f->ctx, path, NULL);
    expect_good(f->ctx);
    size_t count = mc_tensor_file_count(from);
    mc_safetensors_spec *specs = calloc(count, sizeof *specs);
    for (size_t i = 0; i < count; i++) {
        const mc_tensor_entry *entry = mc_tensor_file_at(from, i);
        specs[i] = (mc_safetensors_spec){.name = entry->name,
                                         .dtype_name = entry->dtype_name,
                                         .ndim = entry->ndim,
                                         .shape = entry->shape};
    }
    mc_safetensors_sort(specs, count);
    mc_safetensors_writer *writer =
        mc_safetensors_writer_new(f->ctx, f->path, specs, count, NULL, 0);
    for (size_t i = 0; i < count; i++) {
        const mc_tensor_entry *entry = mc_tensor_file_find(from, specs[i].name);
        mc_safetensors_write(writer, entry->data, entry->size);
    }
    mc_safetensors_writer_commit(writer);
    mc_tensor_file *to = mc_tensor_file_open(f->ctx, f->path, NULL);
    expect_good(f->ctx);
    assert_int_equal(mc_tensor_file_count(to), count);
    for (size_t i = 0; i < count; i++) {
        const mc_tensor_entry *a = mc_tensor_file_at(from, i), *b = mc_tensor_file_at(to, i);
        assert_string_equal(a->name, b->name);
        assert_string_equal(a->dtype_name, b->dtype_name);
        assert_int_equal(a->size, b->size);
        assert_memory_equal(a->data, b->data, a->size);
    }
    free(specs);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_is_written_reads_back),
        TEST(no_tensors_are_a_file_too),
        TEST(sorted_specs_are_aligned),
        TEST(impossible_specs_are_refused),
        TEST(bytes_are_counted),
        TEST(bytes_find_their_places),
        TEST(nothing_shows_before_the_commit),
        TEST(an_error_stops_the_file),
        TEST(a_killed_process_loses_nothing),
        TEST(a_file_size_limit_is_an_error),
        TEST(a_failed_write_is_never_committed),
        TEST(a_full_disk_is_an_error),
        TEST(a_read_only_folder_is_an_error),
        TEST(failed_allocations_are_clean),
        TEST(a_real_file_survives_a_copy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
