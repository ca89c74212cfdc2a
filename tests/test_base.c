/* The ground floor: errors, the context's list of what it owns, memory, files, JSON. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include "core/base/context_internal.h"
#include "core/base/file_internal.h"
#include "core/base/json_internal.h"
#include "core/base/number_internal.h"
#include "core/base/version.h"
#include "core/tensor/tensor.h"
#include "tests/comma_locale.h"
#include "tests/temp_folder.h"

/* AddressSanitizer shall give NULL for impossible sizes, as malloc does, and not stop. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "allocator_may_return_null=1"; }

static temp_folder folder; /* made anew for each test */

static int set_up(void **state)
{
    (void)state;
    static const char *const launcher[] = {"WORLD_SIZE",
                                           "RANK",
                                           "OMPI_COMM_WORLD_SIZE",
                                           "OMPI_COMM_WORLD_RANK",
                                           "SLURM_NTASKS",
                                           "SLURM_PROCID",
                                           "PMI_SIZE",
                                           "PMI_RANK"};
    for (size_t i = 0; i < sizeof launcher / sizeof *launcher; i++) unsetenv(launcher[i]);
    folder = temp_folder_new();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    temp_folder_free(&folder);
    return 0;
}

/* Checks status and words of an error and clears it. */
static void expect_error(mc_error *err, mc_status status, const char *part)
{
    assert_int_equal(err->status, status);
    if (!strstr(err->message, part)) fail_msg("\"%s\" not in: %s", part, err->message);
    mc_error_clear(err);
    assert_int_equal(err->status, MC_OK);
}

/* ---- Errors --------------------------------------------------------------------------------- */

static void the_first_error_wins(void **state)
{
    (void)state;
    mc_error err = {0};
    mc_error_while(&err, "nothing"); /* no error, no trace */
    assert_string_equal(err.trace, "");
    assert_int_equal(mc_error_set(&err, MC_ERR_IO, "%s: first %d", "a", 1), MC_ERR_IO);
    assert_int_equal(mc_error_set(&err, MC_ERR_NOMEM, "second"), MC_ERR_NOMEM);
    assert_string_equal(err.message, "a: first 1");
    assert_non_null(strstr(err.file, "test_base.c"));
    mc_error_while(&err, "reading %s", "b");
    mc_error_while(&err, "loading c");
    assert_string_equal(err.trace, "; while reading b; while loading c");
    expect_error(&err, MC_ERR_IO, "first");
    assert_string_equal(err.trace, "");
}

static void long_messages_are_whole(void **state)
{
    (void)state;
    mc_error err = {0}, other = {0};
    char text[2000];
    for (size_t length = 250; length < 262; length++) { /* around the built-in room */
        memset(text, 'x', length);
        text[length] = '\0';
        mc_error_set(&err, MC_ERR_IO, "%s", text);
        assert_string_equal(err.message, text);
        mc_error_move(&other, &err);
        assert_int_equal(err.status, MC_OK);
        assert_string_equal(other.message, text);
        mc_error_clear(&other);
    }
    mc_error_set(&err, MC_ERR_IO, "x");
    memset(text, 't', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    for (int i = 0; i < 100; i++) mc_error_while(&err, "%s", text);
    assert_true(strlen(err.trace) < sizeof err.trace);
    mc_error_clear(&err);
}

static void errors_move_between_threads_values(void **state)
{
    (void)state;
    mc_error to = {0}, from = {0};
    mc_error_move(&to, &from); /* nothing to move */
    assert_int_equal(to.status, MC_OK);
    mc_error_set(&from, MC_ERR_FORMAT, "worker");
    mc_error_move(&to, &from);
    assert_int_equal(from.status, MC_OK);
    mc_error_set(&from, MC_ERR_IO, "later");
    mc_error_move(&to, &from);
    assert_int_equal(from.status, MC_OK);
    expect_error(&to, MC_ERR_FORMAT, "worker");
}

static void every_status_has_a_text(void **state)
{
    (void)state;
#define CHECK_TEXT(name, value, text) assert_string_equal(mc_status_text(MC_##name), text);
    MC_STATUS_MAP(CHECK_TEXT)
#undef CHECK_TEXT
    assert_string_equal(mc_status_text((mc_status)999), "unknown status");
}

/* ---- The context ---------------------------------------------------------------------------- */

static void a_null_context_has_failed(void **state)
{
    (void)state;
    assert_true(mc_failed(NULL));
    assert_int_equal(mc_error_status(NULL), MC_ERR_NOMEM);
    assert_non_null(strstr(mc_error_message(NULL), "out of memory"));
    mc_clear_error(NULL);
    mc_context_free(NULL);
    mc_print_rank(NULL, 0, "nothing");
    assert_int_equal(mc_rank(NULL), 0);
    assert_int_equal(mc_world_size(NULL), 1);
    assert_int_equal(mc_fail(NULL, MC_ERR_IO, "lost"), MC_ERR_IO);
    assert_null(mc_new_owned(NULL, sizeof(mc_owned), "x", NULL));
    FILE *stream = tmpfile();
    assert_int_equal(mc_print_error(NULL, stream), 1);
    fclose(stream);
}

static void errors_stick_to_the_context(void **state)
{
    (void)state;
    char line[512] = "";
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 42});
    assert_false(mc_failed(ctx));
    assert_int_equal(mc_seed(ctx), 42);
    assert_string_equal(mc_error_message(ctx), "");
    FILE *stream = tmpfile();
    assert_int_equal(mc_print_error(ctx, stream), 0);
    mc_fail(ctx, MC_ERR_SHAPE, "shape (%d)", 3);
    mc_fail(ctx, MC_ERR_IO, "no more");
    mc_error_while(&ctx->error, "testing");
    assert_int_equal(mc_error_status(ctx), MC_ERR_SHAPE);
    assert_int_equal(mc_print_error(ctx, stream), 1);
    rewind(stream);
    assert_non_null(fgets(line, sizeof line, stream));
    assert_non_null(strstr(line, "error: shape (3) (shape mismatch; while testing; raised at "));
    assert_null(mc_new_owned(ctx, sizeof(mc_owned), "x", NULL));
    mc_clear_error(ctx);
    assert_false(mc_failed(ctx));
    fclose(stream);
    mc_context_free(ctx);
}

static void launcher_variables_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *size, *rank;
        mc_status status;
        const char *message;
    } table[] = {
        {"1", "0", MC_OK, ""},
        {"2", "1", MC_ERR_UNSUPPORTED, "WORLD_SIZE=2: CPU ranks talk through MPI"},
        {"two", "0", MC_ERR_ARGUMENT, "WORLD_SIZE=\"two\": expected a whole number"},
        {"1", "-1", MC_ERR_ARGUMENT, "RANK=\"-1\""},
        {"1", "1", MC_ERR_ARGUMENT, "WORLD_SIZE=1 and RANK=1: expected a rank below the size"},
        {"99999999999999999999", "0", MC_ERR_ARGUMENT, "WORLD_SIZE"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        setenv("WORLD_SIZE", table[i].size, 1);
        setenv("RANK", table[i].rank, 1);
        mc_context *ctx = mc_init_distributed(NULL);
        assert_int_equal(mc_error_status(ctx), table[i].status);
        assert_non_null(strstr(mc_error_message(ctx), table[i].message));
        mc_context_free(ctx);
    }
}

static void count_raise(void *user) { ++*(int *)user; }

/* Whoever wants to know of an error is told once, however it comes. */
static void a_raised_error_is_told(void **state)
{
    (void)state;
    int told = 0;
    mc_error error = {.raised = count_raise, .raised_user = &told}, other = {0};
    mc_error_set(&error, MC_ERR_IO, "one");
    mc_error_set(&error, MC_ERR_IO, "two");
    assert_int_equal(told, 1);
    mc_error_clear(&error);
    mc_error_set(&other, MC_ERR_STATE, "moved");
    mc_error_move(&error, &other);
    assert_int_equal(told, 2);
    assert_string_equal(error.message, "moved");
    mc_error_move(&error, &other);
    assert_int_equal(told, 2);
    mc_error_clear(&error);
    mc_error_set(&error, MC_ERR_IO, "three");
    assert_int_equal(told, 3);
    mc_error_clear(&error);
}

typedef struct counted {
    mc_owned owned;
    int number;
} counted;

static int freed[4], freed_count;

static void free_counted(void *object)
{
    counted *c = object;
    mc_disown(&c->owned);
    freed[freed_count++] = c->number;
    mc_free(c);
}

static void a_context_frees_what_it_owns(void **state)
{
    (void)state;
    freed_count = 0;
    mc_context *ctx = mc_init_distributed(NULL);
    counted *objects[4];
    for (int i = 0; i < 4; i++) {
        objects[i] = mc_new_owned(ctx, sizeof(counted), "a test object", free_counted);
        objects[i]->number = i;
    }
    free_counted(objects[2]);
    mc_context_free(ctx); /* the newest first */
    static const int order[] = {2, 3, 1, 0};
    assert_int_equal(freed_count, 4);
    assert_memory_equal(freed, order, sizeof order);
}

static void keep_line(void *user, mc_log_level level, const char *line)
{
    assert_int_equal(level, MC_LOG_WARNING);
    snprintf(user, 4096, "%s", line);
}

static void log_lines_are_whole(void **state)
{
    (void)state;
    char got[4096] = "", text[2000];
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.log = keep_line, .log_user = got});
    mc_log(ctx, MC_LOG_WARNING, "%d things", 3);
    assert_string_equal(got, "3 things");
    memset(text, 'y', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    mc_log(ctx, MC_LOG_WARNING, "%s", text);
    assert_string_equal(got, text);
    mc_log(NULL, MC_LOG_INFO, "nobody");
    mc_context_free(ctx);
    assert_string_equal(mc_version(), MC_VERSION);
}

/* A program that was compiled with other headers gets a failed context, which reads no options. */
static void other_headers_are_an_error(void **state)
{
    (void)state;
    const mc_init_options *none = (const mc_init_options *)1;
    for (int i = 0; i < 2; i++) {
        mc_context *ctx = i ? mc_context_new_as(MC_API_VERSION + 1, none)
                            : mc_init_distributed_as(MC_API_VERSION - 1, none);
        assert_int_equal(mc_error_status(ctx), MC_ERR_UNSUPPORTED);
        char expected[100];
        snprintf(expected, sizeof expected,
                 "compiled with MC_API_VERSION %d, but the library (modelcenter " MC_VERSION
                 ") has %d",
                 MC_API_VERSION + (i ? 1 : -1), MC_API_VERSION);
        assert_true(strncmp(mc_error_message(ctx), expected, strlen(expected)) == 0);
        assert_null(mc_tensor_new(ctx, MC_F32, MC_SHAPE(1)));
        mc_context_free(ctx);
    }
}

/* ---- Memory --------------------------------------------------------------------------------- */

static void memory_has_its_edges(void **state)
{
    (void)state;
    void *empty = mc_malloc(0), *other = mc_calloc(0, 8);
    assert_non_null(empty);
    assert_non_null(other);
    mc_free(empty);
    mc_free(other);
    mc_free(NULL);
    volatile size_t most = SIZE_MAX; /* volatile: the compiler would warn of the size */
    assert_null(mc_calloc(most / 2, 3));
    assert_null(mc_aligned_alloc(64, most - 8));
    assert_null(mc_strndup("x", most));
    void *aligned = mc_aligned_alloc(64, 1);
    assert_int_equal((uintptr_t)aligned % 64, 0);
    mc_free(aligned);
    int *array = NULL;
    size_t capacity = 0;
    for (size_t i = 0; i < 1000; i++) {
        assert_true(mc_grow(&array, &capacity, i, sizeof *array));
        array[i] = (int)i;
    }
    for (int i = 0; i < 1000; i++) assert_int_equal(array[i], i);
    size_t huge = most / 2;
    assert_false(mc_grow(&array, &huge, huge, sizeof *array));
    mc_free(array);
}

static void an_error_needs_no_memory(void **state)
{
    (void)state;
#ifdef MC_FAULT_INJECTION
    char text[2000];
    mc_error err = {0};
    memset(text, 'z', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    mc_fault_fail_at(1, true);
    assert_null(mc_malloc(1));
    assert_int_equal(errno, ENOMEM);
    mc_error_set(&err, MC_ERR_IO, "%s", text);
    assert_null(mc_init_distributed(NULL));
    assert_true(mc_fault_count() >= 3);
    mc_fault_fail_at(0, false);
    assert_true(strlen(err.message) > 200); /* cut, but there */
    mc_error_clear(&err);
#else
    printf("SKIPPED: needs a build with MC_FAULT_INJECTION\n");
    skip();
#endif
}

/* ---- Files ---------------------------------------------------------------------------------- */

static void paths_join(void **state)
{
    (void)state;
    mc_error err = {0};
    char path[MC_PATH_MAX], longest[MC_PATH_MAX + 1];
    assert_int_equal(mc_path_join(&err, path, "a", "b"), MC_OK);
    assert_string_equal(path, "a/b");
    assert_int_equal(mc_path_join(&err, path, "a/", "b"), MC_OK);
    assert_string_equal(path, "a/b");
    assert_int_equal(mc_path_join(&err, path, "", "b"), MC_OK);
    assert_string_equal(path, "b");
    memset(longest, 'p', sizeof longest);
    longest[MC_PATH_MAX - 3] = '\0';
    assert_int_equal(mc_path_join(&err, path, longest, "b"), MC_OK);
    assert_int_equal(mc_path_join(&err, path, longest, "bc"), MC_ERR_ARGUMENT);
    expect_error(&err, MC_ERR_ARGUMENT, "path too long");
}

static void folders_are_made(void **state)
{
    (void)state;
    mc_error err = {0};
    assert_int_equal(mc_make_folders(&err, temp_path(&folder, "a/b//c/")), MC_OK);
    assert_true(mc_path_is_folder(temp_path(&folder, "a/b/c")));
    assert_int_equal(mc_make_folders(&err, temp_path(&folder, "a/b")), MC_OK);
    assert_int_equal(mc_make_folders(&err, "/"), MC_OK);
    assert_int_equal(mc_make_folders(&err, "."), MC_OK);
    write_text(temp_path(&folder, "file"), "x");
    assert_true(mc_path_is_file(temp_path(&folder, "file")));
    assert_false(mc_path_is_file(folder.path));
    assert_int_equal(mc_make_folders(&err, temp_path(&folder, "file")), MC_ERR_IO);
    expect_error(&err, MC_ERR_IO, "file: exists and is not a folder");
    assert_int_equal(mc_make_folders(&err, temp_path(&folder, "file/below")), MC_ERR_IO);
    expect_error(&err, MC_ERR_IO, "Not a directory");
    assert_int_equal(mc_make_folders(&err, ""), MC_ERR_ARGUMENT);
    expect_error(&err, MC_ERR_ARGUMENT, "no folder given");
}

static void files_are_mapped_and_read(void **state)
{
    (void)state;
    mc_error err = {0};
    mc_file_map map;
    size_t size = 0;
    const char *path = temp_path(&folder, "f");
    write_text(path, "");
    assert_int_equal(mc_file_map_init(&err, &map, path), MC_OK);
    assert_null(map.data);
    mc_file_map_release(&map);
    char *text = mc_file_read(&err, path, 0, &size);
    assert_string_equal(text, "");
    mc_free(text);
    write_bytes(path, "a\0bc", 4);
    assert_int_equal(mc_file_map_init(&err, &map, path), MC_OK);
    assert_int_equal(map.size, 4);
    assert_memory_equal(map.data, "a\0bc", 4);
    mc_file_map_release(&map);
    mc_file_map_release(&map);
    text = mc_file_read(&err, path, 4, &size);
    assert_int_equal(size, 4);
    assert_memory_equal(text, "a\0bc", 5);
    mc_free(text);
    assert_null(mc_file_read(&err, path, 3, &size));
    expect_error(&err, MC_ERR_FORMAT, "f: 4 bytes, at most 3 expected");
}

static void what_is_no_file_is_named(void **state)
{
    (void)state;
    mc_error err = {0};
    mc_file_map map;
    assert_null(mc_file_read(&err, temp_path(&folder, "no"), 9, NULL));
    expect_error(&err, MC_ERR_NOT_FOUND, "no: cannot open: No such file");
    assert_null(mc_file_read(&err, folder.path, 9, NULL));
    expect_error(&err, MC_ERR_IO, "not a regular file");
    assert_int_equal(mkfifo(temp_path(&folder, "pipe"), 0600), 0); /* must not wait for a writer */
    assert_int_equal(mc_file_map_init(&err, &map, temp_path(&folder, "pipe")), MC_ERR_IO);
    expect_error(&err, MC_ERR_IO, "pipe: not a regular file");
    assert_int_equal(mc_file_map_init(&err, &map, temp_path(&folder, "no")), MC_ERR_NOT_FOUND);
    assert_null(map.data);
    expect_error(&err, MC_ERR_NOT_FOUND, "cannot open");
}

static void expect_text(const char *path, const char *expected)
{
    mc_error err = {0};
    char *text = mc_file_read(&err, path, 1 << 24, NULL);
    if (!text) fail_msg("%s", err.message);
    assert_string_equal(text, expected);
    mc_free(text);
}

static void a_file_appears_when_committed(void **state)
{
    (void)state;
    mc_error err = {0};
    mc_file_writer writer;
    const char *path = temp_path(&folder, "f");
    assert_int_equal(mc_file_writer_init(&err, &writer, path), MC_OK);
    assert_int_equal(mc_file_write(&writer, "one", 3), MC_OK);
    mc_file_writer_release(&writer);
    assert_int_equal(count_files(folder.path), 0);
    mc_file_writer_init(&err, &writer, path);
    mc_file_write(&writer, "o", 1);
    mc_file_write(&writer, NULL, 0);
    mc_file_write(&writer, "ld", 2);
    assert_int_equal(writer.written, 3);
    assert_int_equal(mc_file_commit(&writer), MC_OK);
    mc_file_writer_release(&writer);
    expect_text(path, "old");
    mc_file_writer_init(&err, &writer, path);
    mc_file_write(&writer, "new", 3);
    assert_int_equal(mc_file_sync(&writer), MC_OK);
    expect_text(path, "old");
    assert_int_equal(mc_file_rename(&writer), MC_OK);
    expect_text(path, "new");
    mc_file_writer_release(&writer);
    mc_file_writer_release(&writer);
    assert_int_equal(count_files(folder.path), 1);
}

static void a_name_alone_is_a_path_too(void **state)
{
    (void)state;
    mc_error err = {0};
    mc_file_writer writer;
    char before[4096];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(folder.path), 0);
    mc_file_writer_init(&err, &writer, "here");
    mc_file_write(&writer, "x", 1);
    mc_status status = mc_file_commit(&writer);
    mc_file_writer_release(&writer);
    assert_int_equal(chdir(before), 0);
    assert_int_equal(status, MC_OK);
    expect_text(temp_path(&folder, "here"), "x");
}

static void large_writes_keep_their_order(void **state)
{
    (void)state;
    enum { SIZE = 5 << 20 };
    mc_error err = {0};
    mc_file_writer writer;
    mc_file_map map;
    const char *path = temp_path(&folder, "f");
    uint8_t *data = malloc(SIZE);
    for (size_t i = 0; i < SIZE; i++) data[i] = (uint8_t)(i * 2654435761u >> 13);
    mc_file_writer_init(&err, &writer, path);
    size_t at = 0; /* pieces below, at and above the size of the buffer */
    static const size_t pieces[] = {7, (1 << 20) - 7, 1, 1 << 20, (1 << 20) + 1, 100, 2 << 20};
    for (size_t i = 0; at < SIZE; i = (i + 1) % 7) {
        size_t size = pieces[i] < SIZE - at ? pieces[i] : SIZE - at;
        assert_int_equal(mc_file_write(&writer, data + at, size), MC_OK);
        at += size;
    }
    assert_int_equal(mc_file_commit(&writer), MC_OK);
    mc_file_writer_release(&writer);
    assert_int_equal(mc_file_map_init(&err, &map, path), MC_OK);
    assert_int_equal(map.size, SIZE);
    assert_memory_equal(map.data, data, SIZE);
    mc_file_map_release(&map);
    free(data);
}

/* Stops writes of this process at so many bytes a file, as a full disk does. */
static struct rlimit limit_file_size(rlim_t bytes)
{
    struct rlimit before, limit;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    return before;
}

static void a_failed_write_leaves_the_old_file(void **state)
{
    (void)state;
    mc_error err = {0};
    mc_file_writer writer;
    static const char block[64 << 10];
    const char *path = temp_path(&folder, "f");
    write_text(path, "old");
    mc_file_writer_init(&err, &writer, path);
    struct rlimit before = limit_file_size(100000);
    for (int i = 0; i < 100; i++) mc_file_write(&writer, block, sizeof block);
    mc_status status = mc_file_commit(&writer);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(status, MC_ERR_IO);
    expect_error(&err, MC_ERR_IO, "f: cannot write: File too large");
    /* clearing the error doesn't make the file whole */
    assert_int_equal(mc_file_write(&writer, block, 1), MC_ERR_STATE);
    expect_error(&err, MC_ERR_STATE, "f: an earlier write to it failed");
    assert_int_equal(mc_file_commit(&writer), MC_ERR_STATE);
    mc_error_clear(&err);
    mc_file_writer_release(&writer);
    expect_text(path, "old");
    assert_int_equal(count_files(folder.path), 1);
}

/* The last bytes are still in the buffer when the file is committed. */
static void a_failed_flush_leaves_the_old_file(void **state)
{
    (void)state;
    mc_error err = {0};
    mc_file_writer writer;
    const char *path = temp_path(&folder, "f");
    write_text(path, "old");
    mc_file_writer_init(&err, &writer, path);
    assert_int_equal(mc_file_write(&writer, "much too much", 13), MC_OK);
    struct rlimit before = limit_file_size(5);
    mc_status status = mc_file_commit(&writer);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(status, MC_ERR_IO);
    expect_error(&err, MC_ERR_IO, "f: cannot write");
    mc_file_writer_release(&writer);
    expect_text(path, "old");
    assert_int_equal(count_files(folder.path), 1);
}

static void a_skipped_write_cannot_be_committed(void **state)
{
    (void)state;
    mc_error err = {0};
    mc_file_writer writer;
    mc_file_writer_init(&err, &writer, temp_path(&folder, "f"));
    mc_error_set(&err, MC_ERR_SHAPE, "elsewhere");
    assert_int_equal(mc_file_write(&writer, "x", 1), MC_ERR_SHAPE);
    mc_error_clear(&err);
    assert_int_equal(mc_file_commit(&writer), MC_ERR_STATE);
    mc_error_clear(&err);
    mc_file_writer_release(&writer);
    assert_int_equal(count_files(folder.path), 0);
}

static void a_read_only_folder_is_an_error(void **state)
{
    (void)state;
    mc_error err = {0};
    mc_file_writer writer;
    assert_int_equal(mkdir(temp_path(&folder, "locked"), 0555), 0);
    chmod(folder.path, 0755);
    bool root = geteuid() == 0; /* who may write anywhere */
    if (root) assert_int_equal(seteuid(65534), 0);
    mc_status made = mc_make_folders(&err, temp_path(&folder, "locked/below"));
    mc_error_clear(&err);
    mc_status opened = mc_file_writer_init(&err, &writer, temp_path(&folder, "locked/f"));
    mc_file_writer_release(&writer);
    if (root) assert_int_equal(seteuid(0), 0);
    assert_int_equal(made, MC_ERR_IO);
    assert_int_equal(opened, MC_ERR_IO);
    expect_error(&err, MC_ERR_IO, "locked/f: cannot create: Permission denied");
    assert_int_equal(mc_file_writer_init(&err, &writer, temp_path(&folder, "no/f")),
                     MC_ERR_NOT_FOUND);
    assert_int_equal(mc_file_write(&writer, "x", 1), MC_ERR_NOT_FOUND);
    mc_error_clear(&err);
    assert_int_equal(mc_file_write(&writer, "x", 1), MC_ERR_STATE); /* there is no file */
    mc_error_clear(&err);
    mc_file_writer_release(&writer);
}

/* ---- JSON ----------------------------------------------------------------------------------- */

static const struct {
    const char *text, *message; /* NULL: it is good */
} texts[] = {
    {"{}", NULL},
    {" [1, 2]\r\n\t ", NULL},
    {"\"caf\\u00e9 \xe4\xb8\xad \xf0\x9f\x98\x80\"", NULL},
    {"\xef\xbb\xbf{}", NULL}, /* a byte order mark */
    {"", "x.json:5: malformed JSON"},
    {"  ", "malformed JSON"},
    {"{\"a\":1", "malformed JSON"},
    {"{\"a\":1}\n}", "x.json:6: malformed JSON at \"}\""},
    {"{\n\n\"a\": oops}", "x.json:7: malformed JSON at \"oops}\""},
    {"{'a':1}", "malformed JSON"},
    {"NaN", "malformed JSON"},
    {"{\n\"\xff\":1}", "x.json:6: malformed JSON: not UTF-8"},
    {"{\n\"a\":\"\\u12G4\"}", "x.json:6: malformed JSON: \\u without four hexadecimal digits"},
    {"{\n\n\"\\u12\":1}", "x.json:7: malformed JSON: \\u without four hexadecimal digits"},
    {"\"\xc0\x80\"", "not UTF-8"},
    {"\"\xed\xa0\x80\"", "not UTF-8"},
    {"\"\xf4\x90\x80\x80\"", "not UTF-8"},
    {"\"\xe4\xb8", "not UTF-8"},
    {"\"a\\u0000b\"", "a NUL character"},
    {"\"a\\\\u0000b\"", NULL}, /* a backslash and five letters */
    {"\"a\tb\"", "a control character"},
    {"{}\x01", "a control character"},
    {"\"\\ud800\"", "half of a surrogate pair"},
    {"\"\\ud83d\\ude00\\/\\b\\f\\n\\r\\t\\\"\\\\\"", NULL},
    {"\"\\ud83d\\u0041\"", "half of a surrogate pair"},
    {"\"\\x41\"", "malformed JSON at \"\\x41"},
    {"\"abc", "a string that does not end"},
    {"[1,]", "malformed JSON at \"]\""},
    {"[01]", "malformed JSON at \"01]\""},
    {"[1.]", "malformed JSON"},
    {"[1.5e-3, -0, 1E+2, 0.25]", NULL},
    {"[+1]", "malformed JSON"},
    {"{\"a\" 1}", "malformed JSON at \"1}\""},
    {"[tru]", "malformed JSON at \"tru]\""},
};

static void texts_are_parsed_strictly(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        mc_error err = {0};
        size_t size = strlen(texts[i].text);
        char *exact = malloc(size ? size : 1); /* not terminated */
        memcpy(exact, texts[i].text, size);
        cJSON *value = mc_json_parse(&err, exact, size, "x.json", 5);
        if (!value && !texts[i].message) fail_msg("%s", err.message);
        if (texts[i].message)
            expect_error(&err, MC_ERR_FORMAT, texts[i].message);
        else
            assert_int_equal(err.status, MC_OK);
        assert_true(!value == !!texts[i].message);
        cJSON_Delete(value);
        free(exact);
    }
}

static void terminators_and_depth_are_bounded(void **state)
{
    (void)state;
    mc_error err = {0};
    char deep[200];
    cJSON *value = mc_json_parse(&err, "{}", 3, "x", 1); /* the NUL counted in */
    assert_non_null(value);
    cJSON_Delete(value);
    assert_null(mc_json_parse(&err, "{}\0\0", 4, "x", 1));
    expect_error(&err, MC_ERR_FORMAT, "a control character");
    for (int depth = 64; depth <= 65; depth++) {
        memset(deep, '[', 100);
        memset(deep + depth, ']', 100);
        value = mc_json_parse(&err, deep, 2 * (size_t)depth, "x", 1);
        assert_true(!value == (depth == 65));
        cJSON_Delete(value);
    }
    expect_error(&err, MC_ERR_FORMAT, "nested deeper than 64");
    assert_null(mc_json_read_object(&err, temp_path(&folder, "no.json"), 99));
    expect_error(&err, MC_ERR_NOT_FOUND, "no.json");
    write_text(temp_path(&folder, "list.json"), "[]");
    assert_null(mc_json_read_object(&err, temp_path(&folder, "list.json"), 99));
    expect_error(&err, MC_ERR_FORMAT, "list.json: expected a JSON object at the top level");
}

static cJSON *parse(const char *text)
{
    mc_error err = {0};
    cJSON *value = mc_json_parse(&err, text, strlen(text), "x", 1);
    assert_non_null(value);
    return value;
}

static void whole_numbers_are_checked(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t low, high, expected;
        const char *message;
    } table[] = {
        {"{}", 1, 9, 77, NULL},
        {"{\"k\":null}", 1, 9, 77, NULL},
        {"{\"k\":9}", 1, 9, 9, NULL},
        {"{\"k\":-3.0}", -3, 9, -3, NULL},
        {"{\"k\":1e3}", 1, 1000, 1000, NULL},
        {"{\"k\":10}", 1, 9, 0, "x: key \"k\": expected a whole number from 1 to 9, found 10"},
        {"{\"k\":0}", 1, 9, 0, "found 0"},
        {"{\"k\":1.5}", 1, 9, 0, "found 1.5"},
        {"{\"k\":\"2\"}", 1, 9, 0, "found \"2\""},
        {"{\"k\":true}", 1, 9, 0, "found true"},
        {"{\"k\":[2]}", 1, 9, 0, "found a list or object"},
        {"{\"k\":1e999}", 1, INT64_MAX, 0, "found inf"},
        {"{\"k\":9223372036854775808}", 1, INT64_MAX, 0, "found 9223372036854775808"},
        {"{\"k\":-9223372036854775808}", INT64_MIN, 0, INT64_MIN, NULL},
        {"{\"k\":9007199254740993}", 1, INT64_MAX, 9007199254740993, NULL}, /* no double */
        {"{\"k\":9007199254740993}", 1, 9007199254740992, 0, "found 9007199254740993"},
        {"{\"k\":12345678901234567890123}", 1, INT64_MAX, 0, "found 12345678901234567890123"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        mc_error err = {0};
        int64_t value = 77;
        cJSON *object = parse(table[i].text);
        bool good = mc_json_get_int(&err, object, "x", "k", table[i].low, table[i].high, &value);
        assert_true(good == !table[i].message);
        assert_int_equal(value, good ? table[i].expected : 77);
        if (!good) expect_error(&err, MC_ERR_FORMAT, table[i].message);
        cJSON_Delete(object);
    }
}

static void other_fields_are_checked(void **state)
{
    (void)state;
    mc_error err = {0};
    double number = 0;
    bool flag = false;
    const char *string = "default";
    cJSON *object = parse("{\"n\":1e-12,\"big\":1e999,\"b\":true,\"s\":\"gelu\"}");
    assert_true(mc_json_get_number(&err, object, "x", "n", 0, 1, &number));
    assert_true(number == 1e-12);
    assert_false(mc_json_get_number(&err, object, "x", "big", 0, 1e300, &number));
    expect_error(&err, MC_ERR_FORMAT, "key \"big\": expected a number from 0 to 1e+300, found inf");
    assert_false(mc_json_get_number(&err, object, "x", "s", 0, 1, &number));
    expect_error(&err, MC_ERR_FORMAT, "found \"gelu\"");
    assert_true(mc_json_get_bool(&err, object, "x", "b", &flag));
    assert_true(flag);
    assert_false(mc_json_get_bool(&err, object, "x", "n", &flag));
    expect_error(&err, MC_ERR_FORMAT, "expected true or false, found 1e-12");
    assert_true(mc_json_get_string(&err, object, "x", "absent", &string));
    assert_string_equal(string, "default");
    assert_true(mc_json_get_string(&err, object, "x", "s", &string));
    assert_string_equal(string, "gelu");
    assert_false(mc_json_get_string(&err, object, "x", "b", &string));
    expect_error(&err, MC_ERR_FORMAT, "expected a string, found true");
    cJSON_Delete(object);
}

/* Rows keep what doubles and C strings lose. */
static void rows_keep_nul_and_digits(void **state)
{
    (void)state;
    static const char text[] = "{\"s\": \"a\\u0000b\\u00e9\", \"e\": \"\", \"n\": "
                               "[9007199254740993, -18446744073709551617, "
                               "7, 0.1, 1e300, 100.0]}";
    static const char *const numbers[] = {
        "9007199254740993", "-18446744073709551617", "7", "0.1", "1e+300", "100"};
    mc_error err = {0};
    char room[MC_JSON_NUMBER_ROOM];
    cJSON *row = mc_json_parse_row(&err, text, sizeof text - 1, "x", 1, true);
    assert_non_null(row);
    const cJSON *s = cJSON_GetObjectItem(row, "s"), *n = cJSON_GetObjectItem(row, "n");
    assert_int_equal(mc_json_length(s), 5);
    assert_memory_equal(s->valuestring, "a\0b\xC3\xA9", 6);
    assert_int_equal(mc_json_length(cJSON_GetObjectItem(row, "e")), 0);
    assert_int_equal(cJSON_GetArraySize(n), 6);
    for (int i = 0; i < 6; i++)
        assert_string_equal(mc_json_number(cJSON_GetArrayItem(n, i), room), numbers[i]);
    cJSON_Delete(row);
    assert_null(mc_json_parse_row(&err, "{\"a\\u0000\": 1}", 15, "x", 1, true));
    expect_error(&err, MC_ERR_FORMAT, "a NUL character");
}

static void json_out_of_memory_is_named(void **state)
{
    (void)state;
#ifdef MC_FAULT_INJECTION
    static const char text[] = "{\"a\":[1,\"two\",{\"three\":null}],\"b\":\"four\"}";
    cJSON_InitHooks(&(cJSON_Hooks){mc_malloc, mc_free});
    cJSON *value = NULL;
    long nth = 0;
    while (!value) {
        mc_error err = {0};
        mc_fault_fail_at(++nth, false);
        value = mc_json_parse(&err, text, sizeof text - 1, "x", 1);
        mc_fault_fail_at(0, false);
        if (!value) expect_error(&err, MC_ERR_NOMEM, "x: out of memory for its JSON");
    }
    cJSON_Delete(value);
    cJSON_InitHooks(NULL);
    assert_true(nth > 8);
#else
    printf("SKIPPED: needs a build with MC_FAULT_INJECTION\n");
    skip();
#endif
}

/* Texts of files do not reach a terminal as commands to it. */
static void control_characters_are_shown(void **state)
{
    (void)state;
    char *shown = NULL;
    size_t size;
    FILE *stream = open_memstream(&shown, &size);
    mc_context *own = mc_context_new(NULL);
    mc_print_text(stream, "a\033[31mb\tc\nd\r\177\302\233e \303\251\342\202\254\302");
    mc_print_text(stream, NULL);
    mc_print_text(stream, "\007|");
    mc_set_error(own, MC_ERR_FORMAT, "label \"%s\"", "x\033]0;y");
    mc_print_error(own, stream);
    mc_print_text(NULL, "nowhere");
    fclose(stream);
    const char *expected = "a\\x1b[31mb\tc\nd\\x0d\\x7f\\x9be \303\251\342\202\254\302"
                           "\\x07|error: label \"x\\x1b]0;y\" (";
    assert_int_equal(strncmp(shown, expected, strlen(expected)), 0);
    free(shown);
    mc_context_free(own);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

static void check_numbers(void)
{
    static const char *const bad[] = {"",     " 1",   "1 ",  "0x10", "inf", "nan", "1e999", "1,5",
                                      "1.5x", "1..5", "+-1", "e5",   ".",   "-",   "1_0",   "1e"};
    static const struct {
        const char *text;
        double value;
    } good[] = {
        {"0", 0},        {"-1.5", -1.5},
        {"+2", 2},       {".5", 0.5},
        {"5.", 5},       {"1e-5", 1e-5},
        {"2.5E3", 2500}, {"0.1", 0.1},
        {"1e-999", 0},   {"123456789012345678901234567890.5", 123456789012345678901234567890.5}};
    char text[MC_NUMBER_ROOM];
    double number = 7;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (mc_number_parse(bad[i], &number) || number != 7) fail_msg("\"%s\" is read", bad[i]);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(mc_number_parse(good[i].text, &number));
        assert_true(number == good[i].value);
    }
    assert_string_equal(mc_number_print(text, 6, -1.5e-7), "-1.5e-07");
    assert_string_equal(mc_number_print(text, 17, 0.1), "0.10000000000000001");
    assert_string_equal(mc_number_print(text, 6, 1e300), "1e+300");
    assert_string_equal(mc_number_print_float(text, 1, 0.1f), "0.1");
    assert_string_equal(mc_number_print_float(text, 6, 1e-12f), "1e-12");
    assert_string_equal(mc_number_print_float(text, 1, 16777217), "16777216");
}

static void numbers_have_a_point(void **state)
{
    (void)state;
    check_numbers();
    begin_comma_locale();
    check_numbers();
    mc_error err = {0};
    cJSON *value = mc_json_parse(&err, "[1.5, -2.5e3]", 13, "x.json", 1);
    assert_non_null(value);
    assert_true(value->child->valuedouble == 1.5 && value->child->next->valuedouble == -2500);
    char room[MC_JSON_NUMBER_ROOM];
    assert_string_equal(mc_json_number(value->child, room), "1.5");
    cJSON_Delete(value);
    end_comma_locale();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(other_headers_are_an_error),
        TEST(the_first_error_wins),
        TEST(long_messages_are_whole),
        TEST(errors_move_between_threads_values),
        TEST(every_status_has_a_text),
        TEST(a_null_context_has_failed),
        TEST(errors_stick_to_the_context),
        TEST(a_raised_error_is_told),
        TEST(control_characters_are_shown),
        TEST(launcher_variables_are_read),
        TEST(a_context_frees_what_it_owns),
        TEST(log_lines_are_whole),
        TEST(memory_has_its_edges),
        TEST(an_error_needs_no_memory),
        TEST(paths_join),
        TEST(folders_are_made),
        TEST(files_are_mapped_and_read),
        TEST(what_is_no_file_is_named),
        TEST(a_file_appears_when_committed),
        TEST(a_name_alone_is_a_path_too),
        TEST(large_writes_keep_their_order),
        TEST(a_failed_write_leaves_the_old_file),
        TEST(a_failed_flush_leaves_the_old_file),
        TEST(a_skipped_write_cannot_be_committed),
        TEST(a_read_only_folder_is_an_error),
        TEST(texts_are_parsed_strictly),
        TEST(terminators_and_depth_are_bounded),
        TEST(whole_numbers_are_checked),
        TEST(other_fields_are_checked),
        TEST(rows_keep_nul_and_digits),
        TEST(json_out_of_memory_is_named),
        TEST(numbers_have_a_point),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
