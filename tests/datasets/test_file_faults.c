/* Mapped files that become shorter while they are in use: an error that names the file with the
 * handler of core/base/fault.h, SIGBUS without it; what is no mapping of the library's is passed
 * on. Files are cut at points of the program, so nothing depends on time. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "core/base/fault.h"
#include "core/base/file_internal.h"
#include "core/base/file_reader_internal.h"
#include "core/formats/safetensors.h"
#include "core/formats/tensor_file.h"
#include "datasets/prepare.h"
#include "tests/child.h"
#include "tests/datasets/lm_test.h"
#include "datasets/token_files.h"

enum { TOKENS = 100000, THREADS = 4, ROUNDS = 50 };

static sigjmp_buf back;
static int own_calls;

static void own_handler(int number)
{
    (void)number;
    own_calls++;
    siglongjmp(back, 1);
}

/* ---- without a handler ----------------------------------------------------------------------- */

/* The first test: a handler stays. */
static void test_without(void **state)
{
    fixture *f = *state;
    const char *path = temp_path(&f->folder, "a.bin");
    write_u16_shard(path, TOKENS, 0);
    pid_t child = fork_child();
    if (child == 0) {
        signal(SIGBUS, SIG_DFL); /* not that of a sanitizer */
        int32_t tokens[8];
        mc_token_file *file = mc_token_file_open(f->ctx, path);
        if (truncate(path, 0) == 0) mc_token_file_read(file, TOKENS - 8, 8, tokens);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
}

/* What is read and not mapped needs no handler. */
static void test_read(void **state)
{
    fixture *f = *state;
    const char *path = temp_path(&f->folder, "r");
    uint8_t bytes[100] = {0};
    mc_error err = {0};
    write_bytes(path, bytes, 40);
    int fd = open(path, O_RDONLY);
    assert_int_equal(mc_file_read_at(&err, fd, path, 10, bytes, 30), MC_OK);
    assert_int_equal(mc_file_read_at(&err, fd, path, 10, bytes, 90), MC_ERR_IO);
    assert_non_null(
        strstr(err.message, "/r: cannot read byte 40: the file is 40 bytes, expected "));
    mc_error_clear(&err);
    close(fd);
}

/* Of a file that is read from front to back the end is an error if it comes too early. */
static void test_reader(void **state)
{
    fixture *f = *state;
    const char *path = temp_path(&f->folder, "t.csv");
    char bytes[64] = {0};
    mc_error err = {0};
    mc_file_reader reader;
    write_bytes(path, bytes, 60);
    assert_int_equal(mc_file_reader_init(&err, &reader, path), MC_OK);
    assert_int_equal(mc_file_read_next(&reader, bytes, 20), 20);
    assert_int_equal(truncate(path, 50), 0);
    assert_int_equal(mc_file_read_next(&reader, bytes, sizeof bytes), 0);
    assert_non_null(strstr(err.message, "t.csv: cannot read byte 50: the file is 50 bytes, "));
    mc_file_reader_release(&reader);
    mc_error_clear(&err);
}

/* ---- with it --------------------------------------------------------------------------------- */

static void install(void)
{
    assert_int_equal(mc_install_fault_handler(), MC_OK);
    assert_int_equal(mc_install_fault_handler(), MC_OK);
}

/* The rest of an error's text, which names the file. */
#define SHORTER "become shorter while it was in use"

static void test_tokens(void **state)
{
    fixture *f = *state;
    int32_t tokens[8];
    install();
    write_u16_shard(temp_path(&f->folder, "a.bin"), TOKENS, 0);
    mc_token_file *file = mc_token_file_open(f->ctx, temp_path(&f->folder, "a.bin"));
    assert_int_equal(mc_token_file_read(file, TOKENS - 8, 8, tokens), MC_OK);
    assert_int_equal(truncate(temp_path(&f->folder, "a.bin"), 1024), 0);
    assert_int_equal(mc_token_file_read(file, TOKENS - 8, 8, tokens), MC_ERR_IO);
    expect_error(f->ctx, MC_ERR_IO,
                 "a.bin: cannot read byte 201008: the file is 1024 bytes, "
                 "expected 201024");
    /* it stays broken: nothing that is read of it counts */
    assert_int_equal(mc_token_file_read(file, 0, 8, tokens), MC_ERR_IO);
    expect_error(f->ctx, MC_ERR_IO, SHORTER);
    mc_token_file_free(file);
    /* zeros after the end, in the last page, need no handler */
    write_u16_shard(temp_path(&f->folder, "a.bin"), TOKENS, 0);
    file = mc_token_file_open(f->ctx, temp_path(&f->folder, "a.bin"));
    assert_int_equal(truncate(temp_path(&f->folder, "a.bin"), 1024), 0);
    assert_int_equal(mc_token_file_read(file, 0, 8, tokens), MC_ERR_IO);
    expect_error(f->ctx, MC_ERR_IO, "a.bin: cannot read byte 1024: the file is 1024 bytes");
    mc_token_file_free(file);
    /* another file is not */
    write_u16_shard(temp_path(&f->folder, "b.bin"), TOKENS, 0);
    file = mc_token_file_open(f->ctx, temp_path(&f->folder, "b.bin"));
    assert_int_equal(mc_token_file_read(file, 0, 8, tokens), MC_OK);
    expect_ok(f->ctx);
    mc_token_file_free(file);
}

/* In the middle of training, with a loader. */
static void test_loader(void **state)
{
    fixture *f = *state;
    install();
    write_u16_shard(temp_path(&f->folder, "l.bin"), TOKENS, 0);
    mc_token_file *file = mc_token_file_open(f->ctx, temp_path(&f->folder, "l.bin"));
    mc_lm_loader *loader = mc_lm_loader_new(
        file, &(mc_lm_loader_options){.batch_size = 4, .seq_length = 100, .shuffle = true});
    assert_non_null(mc_lm_loader_next(loader));
    assert_int_equal(truncate(temp_path(&f->folder, "l.bin"), 0), 0);
    assert_null(mc_lm_loader_next(loader));
    expect_error(f->ctx, MC_ERR_IO, SHORTER);
    mc_lm_loader_free(loader);
    mc_token_file_free(file);
}

static void test_index(void **state)
{
    fixture *f = *state;
    static const int32_t lengths[] = {3, 2};
    static const int64_t pointers[] = {0, 6}, documents[] = {0, 1, 2};
    static const uint16_t tokens[] = {1, 2, 3, 4, 5};
    int64_t first, count;
    install();
    write_bytes(temp_path(&f->folder, "m.bin"), tokens, sizeof tokens);
    write_index(temp_path(&f->folder, "m.idx"),
                &(index_parts){.type = 8,
                               .sequences = 2,
                               .bounds = 3,
                               .lengths = lengths,
                               .pointers = pointers,
                               .documents = documents},
                2, 3);
    mc_token_file *file = mc_token_file_open(f->ctx, temp_path(&f->folder, "m.bin"));
    assert_true(mc_token_file_document(file, 1, &first, &count));
    assert_int_equal(truncate(temp_path(&f->folder, "m.idx"), 0), 0);
    assert_false(mc_token_file_document(file, 1, &first, &count));
    expect_error(f->ctx, MC_ERR_IO, "m.idx: cannot read byte ");
    mc_token_file_free(file);
}

static void test_weights(void **state)
{
    fixture *f = *state;
    static const int64_t shape[] = {100};
    float values[100] = {0};
    install();
    mc_safetensors_spec spec = {.name = "w", .ndim = 1, .shape = shape};
    const char *path = temp_path(&f->folder, "w.safetensors");
    mc_safetensors_writer *out = mc_safetensors_writer_new(f->ctx, path, &spec, 1, NULL, 0);
    mc_safetensors_write(out, values, sizeof values);
    mc_safetensors_writer_commit(out);
    mc_safetensors_writer_free(out);
    mc_tensor_file *file = mc_tensor_file_open(f->ctx, path, NULL);
    expect_ok(f->ctx);
    assert_int_equal(mc_tensor_file_check(file), MC_OK);
    assert_int_equal(truncate(temp_path(&f->folder, "w.safetensors"), 0), 0);
    const mc_tensor_entry *w = mc_tensor_file_find(file, "w");
    assert_int_equal(mc_tensor_file_read_f32(file, w, 0, 100, values), MC_ERR_IO);
    expect_error(f->ctx, MC_ERR_IO, "w.safetensors: cannot read byte ");
    assert_int_equal(mc_tensor_file_check(file), MC_ERR_IO);
    expect_error(f->ctx, MC_ERR_IO, SHORTER);
    mc_tensor_file_free(file);
    assert_int_equal(mc_tensor_file_check(NULL), MC_ERR_ARGUMENT);
}

/* ---- prepare --------------------------------------------------------------------------------- */

static bool cut_input(void *user, const mc_prepare_result *done)
{
    (void)done;
    assert_int_equal(truncate(user, 0), 0);
    return true;
}

static void test_prepare(void **state)
{
    fixture *f = *state;
    enum { LINES = 400000 };
    char path[4096], output[4096];
    install();
    snprintf(path, sizeof path, "%s", temp_path(&f->folder, "t.txt"));
    snprintf(output, sizeof output, "%s", temp_path(&f->folder, "t.bin"));
    FILE *file = fopen(path, "w");
    for (int i = 0; i < LINES; i++) fputs("the cat sat on the mat\n", file);
    assert_int_equal(fclose(file), 0);
    const char *inputs[] = {path};
    mc_prepare_options options = {.threads = 2, .progress = cut_input, .progress_user = path};
    mc_status status = mc_prepare_tokens(f->ctx, f->tok, inputs, 1, output, &options, NULL);
    assert_int_equal(status, MC_ERR_IO);
    expect_error(f->ctx, MC_ERR_IO, "t.txt: cannot read byte ");
    assert_false(mc_path_is_file(output));
}

/* ---- threads --------------------------------------------------------------------------------- */

typedef struct reader {
    char path[4096];
    int wrong;
} reader;

/* Its own file breaks over and over, while others are mapped, break and are released beside it. */
static void *read_broken(void *user)
{
    reader *r = user;
    static const size_t size = 3 << 12;
    for (int i = 0; i < ROUNDS; i++) {
        mc_error err = {0};
        mc_file_map map;
        unsigned sum = 0;
        FILE *file = fopen(r->path, "w");
        for (size_t k = 0; k < size; k++) fputc(1, file);
        fclose(file);
        if (mc_file_map_init(&err, &map, r->path)) return NULL;
        r->wrong += mc_file_check_bytes(&err, map.data) != MC_OK || truncate(r->path, 1 << 12) != 0;
        for (size_t k = 0; k < size; k++) sum += ((const volatile uint8_t *)map.data)[k];
        r->wrong += sum != 1 << 12 || mc_file_check_bytes(&err, map.data) != MC_ERR_IO;
        mc_error_clear(&err);
        mc_file_map_release(&map);
    }
    return NULL;
}

static void test_threads(void **state)
{
    fixture *f = *state;
    static reader readers[THREADS];
    pthread_t threads[THREADS];
    install();
    for (int i = 0; i < THREADS; i++) {
        char name[] = {'t', (char)('0' + i), 0};
        snprintf(readers[i].path, sizeof readers[i].path, "%s", temp_path(&f->folder, name));
        assert_int_equal(pthread_create(&threads[i], NULL, read_broken, &readers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(readers[i].wrong, 0);
    }
}

/* More mappings than the registry has at first. */
static void test_many(void **state)
{
    fixture *f = *state;
    enum { MANY = 200 };
    static mc_file_map maps[MANY];
    mc_error err = {0};
    install();
    write_text(temp_path(&f->folder, "many"), "many");
    for (int i = 0; i < MANY; i++)
        assert_int_equal(mc_file_map_init(&err, &maps[i], temp_path(&f->folder, "many")), MC_OK);
    assert_int_equal(truncate(temp_path(&f->folder, "many"), 0), 0);
    assert_int_equal(((const volatile uint8_t *)maps[MANY - 1].data)[1], 0);
    assert_int_equal(mc_file_check_bytes(&err, maps[0].data), MC_OK);
    assert_int_equal(mc_file_check_bytes(&err, maps[MANY - 1].data), MC_ERR_IO);
    mc_error_clear(&err);
    for (int i = 0; i < MANY; i++) mc_file_map_release(&maps[i]);
}

/* ---- the program's own handler --------------------------------------------------------------- */

static void test_chain(void **state)
{
    fixture *f = *state;
    int32_t tokens[8];
    struct sigaction own = {.sa_handler = own_handler, .sa_flags = SA_NODEFER};
    assert_int_equal(sigaction(SIGBUS, &own, NULL), 0);
    install();
    /* a mapping of the program's own */
    write_text(temp_path(&f->folder, "own"), "own");
    int fd = open(temp_path(&f->folder, "own"), O_RDONLY);
    const volatile char *data = mmap(NULL, 3, PROT_READ, MAP_PRIVATE, fd, 0);
    assert_int_equal(truncate(temp_path(&f->folder, "own"), 0), 0);
    if (!sigsetjmp(back, 1)) assert_int_equal(data[0], -1);
    assert_int_equal(own_calls, 1);
    munmap((void *)data, 3);
    close(fd);
    /* a signal that was sent */
    if (!sigsetjmp(back, 1)) raise(SIGBUS);
    assert_int_equal(own_calls, 2);
    /* the library's */
    write_u16_shard(temp_path(&f->folder, "a.bin"), TOKENS, 0);
    mc_token_file *file = mc_token_file_open(f->ctx, temp_path(&f->folder, "a.bin"));
    assert_int_equal(truncate(temp_path(&f->folder, "a.bin"), 0), 0);
    assert_int_equal(mc_token_file_read(file, TOKENS - 8, 8, tokens), MC_ERR_IO);
    expect_error(f->ctx, MC_ERR_IO, SHORTER);
    mc_token_file_free(file);
    assert_int_equal(own_calls, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_without, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_reader, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_tokens, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_loader, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_index, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_weights, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_prepare, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_threads, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_many, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_chain, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
