#include "tools/log/tensorboard.h"

#include <dirent.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    LONGEST_TAG = 255,
    MOST_SCALARS = 32,
    SCALAR_ROOM = LONGEST_TAG + 16, /* a tag with its value and lengths */
    EVENT_ROOM = MOST_SCALARS * SCALAR_ROOM + 64,
    RECORD_EXTRA = 16, /* length, its crc, the data's crc */
};

/* Seconds since 1970 that ten digits can write, as names have them. */
static const long long MOST_TIME = 9999999999;

/* Field numbers and wire types of tensorflow's event.proto and summary.proto. */
enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };
enum { EVENT_WALL_TIME = 1, EVENT_STEP = 2, EVENT_FILE_VERSION = 3 };
enum { EVENT_SUMMARY = 5, EVENT_SESSION_LOG = 7 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE_VALUE = 2 };
enum { SESSION_LOG_STATUS = 1, SESSION_LOG_START = 1 };

uint32_t tensorboard_crc32c(const void *data, size_t size)
{
    /* the remainders of the 16 values of four bits, for the reflected polynomial 0x82f63b78 */
    static const uint32_t table[16] = {
        0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
        0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
        0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
    };
    const uint8_t *bytes = data;
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < size; i++) {
        crc ^= bytes[i];
        crc = table[crc & 15] ^ (crc >> 4);
        crc = table[crc & 15] ^ (crc >> 4);
    }
    return ~crc;
}

uint32_t tensorboard_masked_crc32c(const void *data, size_t size)
{
    uint32_t crc = tensorboard_crc32c(data, size);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8;
}

/* ---- protocol buffers ---- */

/* Bytes of a message; the rooms above bound what is put in, so there is no check here. */
typedef struct message {
    uint8_t *data;
    size_t size;
} message;

static void put_little_endian(message *m, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) m->data[m->size++] = (uint8_t)(value >> (8 * i));
}

static void put_varint(message *m, uint64_t value)
{
    for (; value >= 0x80; value >>= 7) m->data[m->size++] = (uint8_t)(value | 0x80);
    m->data[m->size++] = (uint8_t)value;
}

static void put_key(message *m, int field, int wire)
{
    put_varint(m, (uint64_t)(field << 3 | wire));
}

static void put_integer(message *m, int field, int64_t value)
{
    put_key(m, field, WIRE_VARINT);
    put_varint(m, (uint64_t)value);
}

static void put_double(message *m, int field, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(m, field, WIRE_64);
    put_little_endian(m, bits, 8);
}

static void put_float(message *m, int field, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(m, field, WIRE_32);
    put_little_endian(m, bits, 4);
}

static void put_bytes(message *m, int field, const void *data, size_t size)
{
    put_key(m, field, WIRE_BYTES);
    put_varint(m, size);
    memcpy(m->data + m->size, data, size);
    m->size += size;
}

/* ---- events ---- */

static double wall_time(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static mc_status write_record(append_file *file, const message *event)
{
    uint8_t bytes[EVENT_ROOM + RECORD_EXTRA];
    message record = {.data = bytes};
    put_little_endian(&record, event->size, 8);
    put_little_endian(&record, tensorboard_masked_crc32c(bytes, 8), 4);
    memcpy(bytes + record.size, event->data, event->size);
    record.size += event->size;
    put_little_endian(&record, tensorboard_masked_crc32c(event->data, event->size), 4);
    return append_file_write(file, bytes, record.size);
}

static mc_status write_file_version(append_file *file)
{
    static const char version[] = "brain.Event:2";
    uint8_t bytes[64];
    message event = {.data = bytes};
    put_double(&event, EVENT_WALL_TIME, wall_time());
    put_bytes(&event, EVENT_FILE_VERSION, version, sizeof version - 1);
    return write_record(file, &event);
}

/* A session's start at a step makes TensorBoard drop the folder's older events from there on, if
 * their file begins with a session's start as well. */
static mc_status write_session_start(append_file *file, int64_t first_step)
{
    uint8_t log_bytes[16], bytes[64];
    message log = {.data = log_bytes}, event = {.data = bytes};
    put_integer(&log, SESSION_LOG_STATUS, SESSION_LOG_START);
    put_double(&event, EVENT_WALL_TIME, wall_time());
    put_integer(&event, EVENT_STEP, first_step);
    put_bytes(&event, EVENT_SESSION_LOG, log.data, log.size);
    return write_record(file, &event);
}

/* The present time, or more: readers take a folder's files in the order of their names, in which
 * the time comes first, so that it has to be later than that of every file there. */
static long long time_of_name(const char *folder)
{
    static const char prefix[] = "events.out.tfevents.";
    long long newest = (long long)time(NULL);
    DIR *files = opendir(folder);
    if (!files) return newest;
    for (struct dirent *file; (file = readdir(files));) {
        if (strncmp(file->d_name, prefix, sizeof prefix - 1) != 0) continue;
        long long stamp = strtoll(file->d_name + sizeof prefix - 1, NULL, 10);
        if (stamp >= newest && stamp < MOST_TIME) newest = stamp + 1;
    }
    closedir(files);
    return newest;
}

static mc_status open_new_file(append_file *file, const char *folder)
{
    char host[256] = "", path[APPEND_FILE_PATH + 1];
    long long stamp = time_of_name(folder);
    if (gethostname(host, sizeof host - 1) != 0 || !*host)
        memcpy(host, "localhost", sizeof "localhost");
    mc_status status = MC_ERR_STATE;
    /* a number after the usual name, should another process have taken it just now */
    for (int i = 0; status == MC_ERR_STATE && i < 1000; i++) {
        int length = snprintf(path, sizeof path, "%s/events.out.tfevents.%010lld.%s.%ld", folder,
                              stamp, host, (long)getpid());
        if (i && length > 0 && (size_t)length < sizeof path)
            snprintf(path + length, sizeof path - (size_t)length, ".%d", i);
        status = append_file_init(file, path, APPEND_FILE_EXCLUSIVE);
    }
    return status;
}

mc_status tensorboard_init(tensorboard *board, const char *folder, int64_t resume_step)
{
    mc_status status = open_new_file(&board->file, folder);
    if (!status) status = write_file_version(&board->file);
    int64_t first_step = resume_step > 0 ? resume_step + 1 : 0;
    if (!status) status = write_session_start(&board->file, first_step);
    return status;
}

/* What no float holds becomes infinite; a plain conversion of it would be undefined. */
static float to_float(double value)
{
    return fabs(value) > FLT_MAX ? copysignf(INFINITY, value < 0 ? -1.0f : 1.0f) : (float)value;
}

static void put_scalar(message *summary, const tensorboard_scalar *scalar)
{
    uint8_t bytes[SCALAR_ROOM];
    message value = {.data = bytes};
    size_t length = strlen(scalar->tag);
    put_bytes(&value, VALUE_TAG, scalar->tag, length < LONGEST_TAG ? length : LONGEST_TAG);
    put_float(&value, VALUE_SIMPLE_VALUE, to_float(scalar->value));
    put_bytes(summary, SUMMARY_VALUE, value.data, value.size);
}

mc_status tensorboard_write(tensorboard *board, int64_t step, const tensorboard_scalar *scalars,
                            size_t count)
{
    uint8_t summary_bytes[EVENT_ROOM], bytes[EVENT_ROOM];
    message summary = {.data = summary_bytes}, event = {.data = bytes};
    if (!board->file.open || count == 0) return board->file.status;
    for (size_t i = 0; i < count && i < MOST_SCALARS; i++) put_scalar(&summary, &scalars[i]);
    put_double(&event, EVENT_WALL_TIME, wall_time());
    put_integer(&event, EVENT_STEP, step);
    put_bytes(&event, EVENT_SUMMARY, summary.data, summary.size);
    return write_record(&board->file, &event);
}

mc_status tensorboard_release(tensorboard *board) { return append_file_release(&board->file); }
