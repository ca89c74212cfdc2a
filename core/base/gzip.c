/* Decompression of gzip files with zlib, or an error in builds without zlib. */
#include "core/base/file_reader_internal.h"

#include "core/base/memory_internal.h"

#ifdef MC_HAVE_ZLIB
#include <limits.h>
#include <zlib.h>

enum { INPUT = 1 << 18, GZIP_ONLY = 16 };

struct mc_gzip {
    z_stream stream;
    bool in_member; /* inside a member that has not ended */
    bool any;       /* there was a member */
    bool ended;     /* of the file */
    uint64_t read;  /* bytes of the file that are or were in `input` */
    uint64_t lines; /* of the text so far that have ended */
    Bytef input[INPUT];
};

static voidpf take_memory(voidpf user, uInt count, uInt size)
{
    (void)user;
    return mc_calloc(count, size);
}

static void give_memory(voidpf user, voidpf memory)
{
    (void)user;
    mc_free(memory);
}

mc_gzip *mc_gzip_new(mc_error *err, const char *path)
{
    mc_gzip *gzip = mc_calloc(1, sizeof *gzip);
    if (gzip) gzip->stream = (z_stream){.zalloc = take_memory, .zfree = give_memory};
    if (gzip && inflateInit2(&gzip->stream, GZIP_ONLY + MAX_WBITS) == Z_OK) return gzip;
    mc_free(gzip);
    mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory to decompress it", path);
    return NULL;
}

void mc_gzip_free(mc_gzip *gzip)
{
    if (!gzip) return;
    inflateEnd(&gzip->stream);
    mc_free(gzip);
}

/* Reads more input if none is left, unless the file ends. */
static bool refill(mc_file_reader *reader)
{
    mc_gzip *g = reader->gzip;
    if (g->stream.avail_in) return true;
    g->stream.next_in = g->input;
    g->stream.avail_in = (uInt)mc_file_read_plain(reader, g->input, INPUT);
    g->read += g->stream.avail_in;
    return g->stream.avail_in > 0;
}

/* Names the line of the text that was reached, and the byte of the file. */
static void refuse(mc_file_reader *reader, const char *what, const char *why)
{
    const mc_gzip *g = reader->gzip;
    mc_error_set(reader->err, MC_ERR_FORMAT, "%s:%llu: %s at byte %llu: %s", reader->path,
                 (unsigned long long)g->lines + 1, what,
                 (unsigned long long)(g->read - g->stream.avail_in), why);
}

/* Goes to the next member. False at the end of the file. */
static bool begin_member(mc_file_reader *reader)
{
    mc_gzip *g = reader->gzip;
    while (refill(reader)) {
        if (!g->any || *g->stream.next_in) {
            if (g->any) inflateReset(&g->stream);
            g->any = g->in_member = true;
            return true;
        }
        g->stream.next_in++; /* padding */
        g->stream.avail_in--;
    }
    if (!g->any && !mc_error_is_set(reader->err))
        mc_error_set(reader->err, MC_ERR_FORMAT, "%s: empty, expected gzip data", reader->path);
    return false;
}

/* Decompresses into the room that the stream has. */
static void inflate_some(mc_file_reader *reader)
{
    mc_gzip *g = reader->gzip;
    if (!refill(reader)) {
        if (!mc_error_is_set(reader->err)) refuse(reader, "cut off", "its gzip data has no end");
        return;
    }
    const Bytef *from = g->stream.next_out;
    int code = inflate(&g->stream, Z_NO_FLUSH);
    for (; from < g->stream.next_out; from++) g->lines += *from == '\n';
    if (code == Z_STREAM_END)
        g->in_member = false;
    else if (code == Z_MEM_ERROR)
        mc_error_set(reader->err, MC_ERR_NOMEM, "%s: out of memory to decompress it", reader->path);
    else if (code != Z_OK && code != Z_BUF_ERROR)
        refuse(reader, "not valid gzip data",
               g->stream.msg ? g->stream.msg : "it needs a dictionary");
}

size_t mc_gzip_read(mc_file_reader *reader, void *buffer, size_t size)
{
    mc_gzip *g = reader->gzip;
    size_t done = 0;
    while (done < size && !g->ended && !mc_error_is_set(reader->err)) {
        if (!g->in_member && !begin_member(reader)) {
            g->ended = true;
            break;
        }
        size_t room = size - done < INT_MAX ? size - done : INT_MAX;
        g->stream.next_out = (Bytef *)buffer + done;
        g->stream.avail_out = (uInt)room;
        inflate_some(reader);
        done += room - g->stream.avail_out;
    }
    return mc_error_is_set(reader->err) ? 0 : done;
}

#else
struct mc_gzip {
    char nothing;
};

mc_gzip *mc_gzip_new(mc_error *err, const char *path)
{
    mc_error_set(err, MC_ERR_UNSUPPORTED,
                 "%s: this library was built without zlib, which .gz files need", path);
    return NULL;
}

void mc_gzip_free(mc_gzip *gzip) { (void)gzip; }

size_t mc_gzip_read(mc_file_reader *reader, void *buffer, size_t size)
{
    (void)reader, (void)buffer, (void)size;
    return 0;
}
#endif
