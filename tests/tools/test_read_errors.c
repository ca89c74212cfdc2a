/* A disk with read errors: token files, weights and optimizer state end in an error that names the
 * file, not in a signal. The disk is a file system of this test (FUSE) with one file, whose bytes
 * cannot be read from a place on; it is skipped where none may be mounted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#define COMMAND_VARIABLES                                                                     \
    "export OMP_NUM_THREADS=1 && P=\"$MC pretrain --data tokens.bin --seq-length 16 --steps " \
    "1000\" && "
#include "tests/child.h"
#include "tests/tools/command_test.h"

enum { TOKENS = 200000, HEADER = 256, ROOT = FUSE_ROOT_ID, FILE_NODE = 2, ROOM = 1 << 18 };

/* ---- the disk -------------------------------------------------------------------------------- */

typedef struct disk {
    int fuse, file;
    uint64_t size, good; /* bytes; the first `good` can be read */
    pid_t server;
} disk;

static struct fuse_attr attributes(const disk *d, uint64_t node)
{
    bool root = node == ROOT;
    return (struct fuse_attr){.ino = node,
                              .size = root ? 0 : d->size,
                              .blocks = root ? 0 : d->size / 512 + 1,
                              .mode = root ? S_IFDIR | 0755 : S_IFREG | 0644,
                              .nlink = 1,
                              .blksize = 4096};
}

static void answer(const disk *d, uint64_t unique, int error, const void *data, size_t size)
{
    struct fuse_out_header head = {
        .len = (uint32_t)(sizeof head + size), .error = -error, .unique = unique};
    struct iovec parts[] = {{&head, sizeof head}, {(void *)(uintptr_t)data, size}};
    if (writev(d->fuse, parts, size ? 2 : 1) < 0 && errno != ENOENT) _exit(1);
}

static void answer_read(const disk *d, uint64_t unique, const struct fuse_read_in *in)
{
    static char bytes[ROOM];
    uint64_t size = in->size < ROOM ? in->size : ROOM;
    if (in->offset + size > d->size) size = in->offset < d->size ? d->size - in->offset : 0;
    ssize_t got = pread(d->file, bytes, size, (off_t)in->offset);
    if (in->offset + size > d->good || got < 0)
        answer(d, unique, EIO, NULL, 0);
    else
        answer(d, unique, 0, bytes, (size_t)got);
}

static void serve(const disk *d, const struct fuse_in_header *in)
{
    const void *body = in + 1;
    struct fuse_init_out init = {.major = FUSE_KERNEL_VERSION,
                                 .minor = FUSE_KERNEL_MINOR_VERSION,
                                 .max_write = 4096,
                                 .time_gran = 1};
    struct fuse_entry_out entry = {.nodeid = FILE_NODE,
                                   .entry_valid = 3600,
                                   .attr_valid = 3600,
                                   .attr = attributes(d, FILE_NODE)};
    struct fuse_attr_out attr = {.attr_valid = 3600, .attr = attributes(d, in->nodeid)};
    struct fuse_open_out opened = {0};
    switch (in->opcode) {
    case FUSE_INIT: answer(d, in->unique, 0, &init, sizeof init); break;
    case FUSE_LOOKUP:
        if (in->nodeid == ROOT && strcmp(body, "file") == 0)
            answer(d, in->unique, 0, &entry, sizeof entry);
        else
            answer(d, in->unique, ENOENT, NULL, 0);
        break;
    case FUSE_GETATTR: answer(d, in->unique, 0, &attr, sizeof attr); break;
    case FUSE_OPEN: answer(d, in->unique, 0, &opened, sizeof opened); break;
    case FUSE_READ: answer_read(d, in->unique, body); break;
    case FUSE_RELEASE: answer(d, in->unique, 0, NULL, 0); break;
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT: break; /* these have no answer */
    default: answer(d, in->unique, ENOSYS, NULL, 0);
    }
}

/* Mounts a folder "disk" with the file "file", which has the bytes of `path`; half of them can be
 * read. False where that is not allowed. */
static bool insert(disk *d, const char *path)
{
    static char request[ROOM];
    char options[128];
    struct stat info;
    *d = (disk){.fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC),
                .file = open(temp_path(&folder, path), O_RDONLY | O_CLOEXEC)};
    assert_int_equal(fstat(d->file, &info), 0);
    d->size = (uint64_t)info.st_size;
    d->good = d->size / 2;
    mkdir(temp_path(&folder, "disk"), 0777);
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=%d,group_id=%d", d->fuse,
             (int)getuid(), (int)getgid());
    if (d->fuse < 0 || mount("test", temp_path(&folder, "disk"), "fuse", MS_RDONLY, options) != 0) {
        print_message("SKIPPED: no FUSE file system may be mounted here\n");
        return false;
    }
    d->server = fork_child();
    if (d->server > 0) return true;
    for (;;) {
        ssize_t got = read(d->fuse, request, sizeof request);
        if (got < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOENT)) continue;
        if (got < 0) _exit(0); /* unmounted */
        serve(d, (const void *)request);
    }
}

static void eject(disk *d)
{
    assert_int_equal(umount2(temp_path(&folder, "disk"), MNT_DETACH), 0);
    close(d->fuse);
    close(d->file);
    kill(d->server, SIGKILL);
    waitpid(d->server, NULL, 0);
}

/* ---- the tests ------------------------------------------------------------------------------- */

static int make_files(void **state)
{
    static uint16_t tokens[TOKENS];
    int32_t header[HEADER] = {20240520, 1, TOKENS};
    make_folder(state);
    for (int i = 0; i < TOKENS; i++) tokens[i] = (uint16_t)(1 + i * 7919 % 60);
    FILE *file = fopen(temp_path(&folder, "tokens.bin"), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(header, sizeof header, 1, file), 1);
    assert_int_equal(fwrite(tokens, sizeof tokens, 1, file), 1);
    assert_int_equal(fclose(file), 0);
    write_text(temp_path(&folder, "shape.json"),
               "{\"model_type\": \"gpt2\", \"vocab_size\": 64, \"n_positions\": 16, "
               "\"n_embd\": 256, \"n_layer\": 1, \"n_head\": 2}");
    must("$P --family gpt2 --config shape.json --stop-after 2 --output run");
    return 0;
}

/* The line ends in an error that holds the text while the file is on the disk. */
static void must_fail_on_disk(const char *name, const char *text, const char *line)
{
    disk d;
    char path[4096], kept[4096], on_disk[4096];
    snprintf(path, sizeof path, "%s", temp_path(&folder, name));
    snprintf(kept, sizeof kept, "%s", temp_path(&folder, "kept"));
    snprintf(on_disk, sizeof on_disk, "%s", temp_path(&folder, "disk/file"));
    if (!insert(&d, name)) skip();
    assert_int_equal(rename(path, kept), 0);
    assert_int_equal(symlink(on_disk, path), 0);
    int code = run(line);
    eject(&d);
    assert_int_equal(rename(kept, path), 0);
    if (code != 1 || !strstr(err, text))
        fail_msg("exit %d, expected 1 with \"%s\", of: %s\n%.3000s", code, text, line, err);
}

static void test_tokens(void **state)
{
    (void)state;
    must_fail_on_disk("tokens.bin", "tokens.bin: cannot read byte ",
                      "$P --family gpt2 --config shape.json --no-save --shuffle");
    must_hold(err, "a read error of the file system");
}

static void test_weights(void **state)
{
    (void)state;
    must_fail_on_disk("run/checkpoint-2/model.safetensors", "model.safetensors: cannot read",
                      "$P --no-save --model run/checkpoint-2");
}

static void test_optimizer_state(void **state)
{
    (void)state;
    must_fail_on_disk("run/checkpoint-2/optimizer.safetensors",
                      "optimizer.safetensors: cannot read", "$P --output run --resume");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_optimizer_state),
    };
    return cmocka_run_group_tests(tests, make_files, remove_folder);
}
