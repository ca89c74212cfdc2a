/* Event files, read back by a reader that shares nothing with the writer but the format. */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>
#include "tools/log/tensorboard.h"

/* CRC-32C one bit at a time, straight from its polynomial. */
static uint32_t slow_crc32c(const uint8_t *data, size_t size)
{
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < 8 * size; i++) {
        uint32_t bit = (data[i / 8] >> (i % 8)) & 1;
        crc = ((crc ^ bit) & 1) ? (crc >> 1) ^ 0x82f63b78 : crc >> 1;
    }
    return crc ^ 0xffffffff;
}

static uint32_t masked(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8; }

static uint64_t little_endian(const uint8_t *p, int bytes)
{
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--) value = value << 8 | p[i];
    return value;
}

/* A part of a message still to be read. */
typedef struct part {
    const uint8_t *at, *end;
} part;

static uint64_t get_varint(part *p)
{
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        assert_true(p->at < p->end && shift < 64);
        value |= (uint64_t)(*p->at & 0x7f) << shift;
        if (!(*p->at++ & 0x80)) return value;
    }
}

/* The next field: its number, and its value as bits or as a part. */
static int get_field(part *p, uint64_t *bits, part *bytes)
{
    uint64_t key = get_varint(p), size = 0;
    switch (key & 7) {
    case 0: *bits = get_varint(p); return (int)(key >> 3);
    case 1: size = 8; break;
    case 2: size = get_varint(p); break;
    case 5: size = 4; break;
    default: fail_msg("wire type %d", (int)(key & 7));
    }
    assert_true(size <= (uint64_t)(p->end - p->at));
    *bytes = (part){p->at, p->at + size};
    if ((key & 7) != 2) *bits = little_endian(p->at, (int)size);
    p->at += size;
    return (int)(key >> 3);
}

typedef struct scalar_read {
    char tag[256];
    float value;
} scalar_read;

typedef struct event_read {
    double wall_time;
    int64_t step;
    char version[32];
    int session_status;
    scalar_read scalars[32];
    int count;
} event_read;

static void get_text(char *out, size_t room, part bytes)
{
    size_t size = (size_t)(bytes.end - bytes.at);
    assert_true(size < room);
    memcpy(out, bytes.at, size);
    out[size] = '\0';
}

static void read_value(part p, scalar_read *scalar)
{
    *scalar = (scalar_read){.value = -1};
    while (p.at < p.end) {
        uint64_t bits = 0;
        part bytes = {0};
        int field = get_field(&p, &bits, &bytes);
        uint32_t word = (uint32_t)bits;
        if (field == 1) get_text(scalar->tag, sizeof scalar->tag, bytes);
        if (field == 2) memcpy(&scalar->value, &word, sizeof word);
    }
}

static void read_event(part p, event_read *event)
{
    *event = (event_read){.session_status = -1};
    while (p.at < p.end) {
        uint64_t bits = 0, status = 0;
        part bytes = {0}, inner = {0};
        int field = get_field(&p, &bits, &bytes);
        if (field == 1) memcpy(&event->wall_time, &bits, sizeof bits);
        if (field == 2) event->step = (int64_t)bits;
        if (field == 3) get_text(event->version, sizeof event->version, bytes);
        while (field == 5 && bytes.at < bytes.end) {
            assert_int_equal(get_field(&bytes, &bits, &inner), 1);
            read_value(inner, &event->scalars[event->count++]);
        }
        if (field == 7 && get_field(&bytes, &status, &inner) == 1)
            event->session_status = (int)status;
    }
}

/* Reads a file's events; every record must be whole and its sums right. */
static int read_events(const char *path, event_read *events, int room)
{
    static uint8_t data[1 << 20];
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t size = fread(data, 1, sizeof data, file), at = 0;
    fclose(file);
    int count = 0;
    while (at < size) {
        assert_true(size - at >= 16);
        uint64_t length = little_endian(data + at, 8);
        assert_int_equal(little_endian(data + at + 8, 4), masked(slow_crc32c(data + at, 8)));
        assert_true(length <= size - at - 16);
        const uint8_t *body = data + at + 12;
        assert_int_equal(little_endian(body + length, 4), masked(slow_crc32c(body, length)));
        assert_true(count < room);
        read_event((part){body, body + length}, &events[count++]);
        at += 16 + length;
    }
    return count;
}

static char folder[128];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "%s/mc-board-XXXXXX",
             getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    char path[600];
    for (int depth = 1; depth >= 0; depth--) {
        snprintf(path, sizeof path, "%s%s", folder, depth ? "/deep" : "");
        DIR *listing = opendir(path);
        for (struct dirent *e; listing && (e = readdir(listing));) {
            char name[600];
            snprintf(name, sizeof name, "%.200s/%s", path, e->d_name);
            unlink(name);
        }
        if (listing) closedir(listing);
        rmdir(path);
    }
    return 0;
}

static void test_crc32c(void **state)
{
    (void)state;
    uint8_t data[300];
    assert_int_equal(tensorboard_crc32c("123456789", 9), 0xe3069283);
    assert_int_equal(tensorboard_crc32c("", 0), 0);
    memset(data, 0, sizeof data); /* the test vectors of RFC 3720 */
    assert_int_equal(tensorboard_crc32c(data, 32), 0x8a9136aa);
    memset(data, 0xff, sizeof data);
    assert_int_equal(tensorboard_crc32c(data, 32), 0x62a8ab43);
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i * 167 + i / 3);
    for (size_t size = 0; size <= sizeof data; size++) {
        assert_int_equal(tensorboard_crc32c(data, size), slow_crc32c(data, size));
        assert_int_equal(tensorboard_masked_crc32c(data, size), masked(slow_crc32c(data, size)));
    }
}

static void check_scalar(const scalar_read *scalar, const char *tag, float value)
{
    assert_string_equal(scalar->tag, tag);
    assert_memory_equal(&scalar->value, &value, sizeof value);
}

static void test_scalars(void **state)
{
    (void)state;
    char deep[200];
    snprintf(deep, sizeof deep, "%s/deep", folder);
    tensorboard board;
    assert_int_equal(tensorboard_init(&board, deep, 0), MC_OK);
    assert_non_null(strstr(board.file.path, "/deep/events.out.tfevents."));
    double before = (double)time(NULL) - 1;
    for (int64_t step = 1; step <= 300; step++) {
        const tensorboard_scalar scalars[] = {{"train/loss", 1.0 / (double)step},
                                              {"train/lr", 5e-5}};
        assert_int_equal(tensorboard_write(&board, step, scalars, 2), MC_OK);
    }
    const tensorboard_scalar odd[] = {{"a", 1e300}, {"b", -INFINITY}, {"c", -0.0}};
    assert_int_equal(tensorboard_write(&board, (int64_t)1 << 40, odd, 3), MC_OK);
    static event_read events[400];
    int count = read_events(board.file.path, events, 400); /* all is there before the release */
    assert_int_equal(count, 303);
    assert_string_equal(events[0].version, "brain.Event:2");
    assert_true(events[0].wall_time >= before && events[0].wall_time < before + 100);
    assert_int_equal(events[1].session_status, 1);
    assert_int_equal(events[1].step, 0);
    for (int i = 1; i <= 300; i++) {
        const event_read *event = &events[i + 1];
        assert_int_equal(event->step, i);
        assert_true(event->wall_time >= event[-1].wall_time);
        assert_int_equal(event->count, 2);
        check_scalar(&event->scalars[0], "train/loss", (float)(1.0 / i));
        check_scalar(&event->scalars[1], "train/lr", 5e-5f);
    }
    assert_int_equal(events[302].step, (int64_t)1 << 40);
    check_scalar(&events[302].scalars[0], "a", INFINITY);
    check_scalar(&events[302].scalars[1], "b", -INFINITY);
    check_scalar(&events[302].scalars[2], "c", -0.0f);
    assert_int_equal(tensorboard_release(&board), MC_OK);
}

static void test_nan_and_most_scalars(void **state)
{
    (void)state;
    char tag[300];
    memset(tag, 't', sizeof tag);
    tag[255] = '\0';
    tensorboard_scalar scalars[32];
    for (int i = 0; i < 32; i++) scalars[i] = (tensorboard_scalar){tag, NAN};
    tensorboard board;
    assert_int_equal(tensorboard_init(&board, folder, 0), MC_OK);
    assert_int_equal(tensorboard_write(&board, INT64_MAX, scalars, 32), MC_OK);
    event_read events[3];
    assert_int_equal(read_events(board.file.path, events, 3), 3);
    assert_int_equal(events[2].step, INT64_MAX);
    assert_int_equal(events[2].count, 32);
    assert_string_equal(events[2].scalars[31].tag, tag);
    assert_true(isnan(events[2].scalars[31].value));
    tensorboard_release(&board);
}

static void test_resumed_and_second_file(void **state)
{
    (void)state;
    tensorboard first, second;
    assert_int_equal(tensorboard_init(&first, folder, 0), MC_OK);
    assert_int_equal(tensorboard_init(&second, folder, 100), MC_OK);
    assert_string_not_equal(first.file.path, second.file.path);
    event_read events[2];
    assert_int_equal(read_events(first.file.path, events, 2), 2);
    assert_int_equal(events[1].session_status, 1);
    assert_int_equal(events[1].step, 0);
    assert_int_equal(read_events(second.file.path, events, 2), 2);
    assert_string_equal(events[0].version, "brain.Event:2");
    assert_int_equal(events[1].session_status, 1);
    assert_int_equal(events[1].step, 101);
    tensorboard_release(&first);
    tensorboard_release(&second);
}

/* Writes the steps after `resume_step` as a run does that is killed. */
static void write_steps(const char *path, int64_t resume_step, int64_t last)
{
    tensorboard board;
    assert_int_equal(tensorboard_init(&board, path, resume_step), MC_OK);
    for (int64_t step = resume_step + 1; step <= last; step++)
        assert_int_equal(tensorboard_write(&board, step, &(tensorboard_scalar){"train/loss", 1}, 1),
                         MC_OK);
    tensorboard_release(&board);
}

static int in_order(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* What TensorBoard keeps of a folder: it reads the files in the order of their names, and a start
 * drops the steps from its own on, but not the first start that it sees. */
static void read_kept(const char *path, int times[], int room)
{
    struct dirent **files;
    int count = scandir(path, &files, NULL, in_order);
    bool started = false;
    for (int i = 0; i < count; free(files[i++])) {
        static event_read events[64];
        char name[600];
        if (!strstr(files[i]->d_name, "tfevents")) continue;
        snprintf(name, sizeof name, "%.250s/%.300s", path, files[i]->d_name);
        int read = read_events(name, events, 64);
        for (int e = 0; e < read; e++) {
            bool start = events[e].session_status == 1;
            for (int64_t step = events[e].step; start && started && step < room; step++)
                times[step] = 0;
            started |= start;
            if (events[e].count) times[events[e].step]++;
        }
    }
    free(files);
}

/* Runs that are killed and go on from a checkpoint before that, one by a clock far ahead. */
static void test_each_step_once(void **state)
{
    (void)state;
    char deep[200], ahead[300];
    snprintf(deep, sizeof deep, "%s/deep", folder);
    remove_folder(state);
    assert_int_equal(mkdir(folder, 0700), 0);
    write_steps(deep, 0, 12);
    write_steps(deep, 5, 9);
    tensorboard board;
    assert_int_equal(tensorboard_init(&board, deep, 7), MC_OK);
    tensorboard_release(&board);
    snprintf(ahead, sizeof ahead, "%s/events.out.tfevents.4000000000.host.1", deep);
    assert_int_equal(rename(board.file.path, ahead), 0);
    write_steps(deep, 7, 15);
    int times[20] = {0};
    read_kept(deep, times, 20);
    for (int step = 1; step <= 15; step++) assert_int_equal(times[step], 1);
    for (int step = 16; step < 20; step++) assert_int_equal(times[step], 0);
}

static void test_unusable_folder(void **state)
{
    (void)state;
    tensorboard board;
    char path[5000];
    assert_int_equal(tensorboard_init(&board, "/dev/null/board", 0), MC_ERR_IO);
    assert_non_null(strstr(board.file.message, "/dev/null"));
    assert_int_equal(tensorboard_release(&board), MC_ERR_IO);
    memset(path, 'x', sizeof path - 1);
    path[sizeof path - 1] = '\0';
    assert_int_equal(tensorboard_init(&board, path, 0), MC_ERR_ARGUMENT);
    tensorboard_release(&board);
}

/* A file that may not grow stands for a full disk: what fits of the last record is taken back. */
static void test_full_disk(void **state)
{
    (void)state;
    struct rlimit old, small;
    getrlimit(RLIMIT_FSIZE, &old);
    small = (struct rlimit){.rlim_cur = 500, .rlim_max = old.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    tensorboard board;
    assert_int_equal(tensorboard_init(&board, folder, 0), MC_OK);
    setrlimit(RLIMIT_FSIZE, &small);
    const tensorboard_scalar scalar = {"train/loss", 1};
    int64_t written = 0;
    while (written < 1000 && tensorboard_write(&board, written + 1, &scalar, 1) == MC_OK) written++;
    setrlimit(RLIMIT_FSIZE, &old);
    assert_true(written > 3 && written < 20);
    assert_int_equal(tensorboard_write(&board, 1, &scalar, 1), MC_ERR_IO);
    assert_non_null(strstr(board.file.message, "cannot write"));
    assert_non_null(strstr(board.file.message, board.file.path));
    event_read events[32];
    assert_int_equal(read_events(board.file.path, events, 32), 2 + written);
    assert_int_equal(tensorboard_release(&board), MC_ERR_IO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crc32c),
        cmocka_unit_test(test_scalars),
        cmocka_unit_test(test_nan_and_most_scalars),
        cmocka_unit_test(test_resumed_and_second_file),
        cmocka_unit_test(test_each_step_once),
        cmocka_unit_test(test_unusable_folder),
        cmocka_unit_test(test_full_disk),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
