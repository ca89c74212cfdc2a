#include "core/dist/control/control_parts_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "core/base/memory_internal.h"

static const uint32_t magic = 0x3263434du; /* "MCc2" */

static void put(uint8_t *to, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) to[i] = (uint8_t)(value >> 8 * i);
}

static uint64_t get(const uint8_t *from, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++) value |= (uint64_t)from[i] << 8 * i;
    return value;
}

void mc_frame_put_bytes(mc_frame *f, const void *data, size_t size)
{
    if (size > sizeof f->data - f->size) {
        f->bad = true;
        return;
    }
    if (size) memcpy(f->data + f->size, data, size);
    f->size += size;
}

void mc_frame_put(mc_frame *f, uint64_t value, size_t bytes)
{
    uint8_t number[8];
    put(number, value, bytes);
    mc_frame_put_bytes(f, number, bytes);
}

uint64_t mc_frame_get(mc_frame *f, size_t bytes)
{
    if (bytes > f->size - f->at) {
        f->bad = true;
        return 0;
    }
    f->at += bytes;
    return get(f->data + f->at - bytes, bytes);
}

void mc_frame_get_bytes(mc_frame *f, char *text, size_t room)
{
    if (room > f->size - f->at) {
        f->bad = true;
        memset(text, 0, room);
        return;
    }
    memcpy(text, f->data + f->at, room);
    text[room - 1] = '\0';
    for (size_t i = 0; i < room; i++)
        if ((unsigned char)text[i] < ' ' && text[i]) text[i] = ' ';
    f->at += room;
}

void mc_frame_get_text(mc_frame *f, char *text, size_t room)
{
    size_t length = f->size - f->at;
    if (length >= room) length = room - 1;
    memcpy(text, f->data + f->at, length);
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)text[i] < ' ') text[i] = ' ';
    text[length] = '\0';
    f->at = f->size;
}

mc_conn *mc_conn_new(int fd)
{
    mc_conn *conn = mc_malloc(sizeof *conn);
    if (!conn) {
        close(fd);
        return NULL;
    }
    memset(conn, 0, offsetof(mc_conn, in));
    conn->fd = fd;
    conn->rank = MC_NO_RANK;
    conn->since = conn->heard = mc_control_now();
    mc_control_name_peer(conn->name, fd);
    return conn;
}

void mc_conn_free(mc_conn *conn)
{
    if (!conn) return;
    close(conn->fd);
    mc_free(conn);
}

static void breaks(mc_conn *conn, const char *why)
{
    if (conn->broken) return;
    conn->broken = true;
    conn->out_used = 0;
    snprintf(conn->why, sizeof conn->why, "%s", why);
}

void mc_conn_flush(mc_conn *conn)
{
    while (conn->out_used && !conn->broken) {
        ssize_t sent = send(conn->fd, conn->out, conn->out_used, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (sent < 0) {
            /* Data that the peer sent earlier is still read, then its end. */
            conn->out_used = 0;
            conn->closing = conn->shut = true;
            snprintf(conn->why, sizeof conn->why, "%s", strerror(errno));
            return;
        }
        conn->out_used -= (size_t)sent;
        memmove(conn->out, conn->out + sent, conn->out_used);
    }
    if (conn->closing && !conn->shut && !conn->broken) {
        shutdown(conn->fd, SHUT_WR);
        conn->shut = true;
    }
}

/* Where to append bytes to send; NULL: no room, or nothing is sent any more. */
static uint8_t *take_room(mc_conn *conn, size_t size)
{
    if (conn->closing || conn->broken) return NULL;
    if (size > sizeof conn->out - conn->out_used) {
        breaks(conn, "it does not read what it is sent");
        return NULL;
    }
    conn->out_used += size;
    return conn->out + conn->out_used - size;
}

void mc_conn_send(mc_conn *conn, const mc_frame *f)
{
    if (conn->proof.state != MC_PROOF_DONE || f->bad) return;
    uint8_t *to = take_room(conn, MC_FRAME_HEADER + f->size);
    if (!to) return;
    put(to, magic, 4);
    put(to + 4, f->type, 2);
    put(to + 6, f->size, 2);
    memcpy(to + MC_FRAME_HEADER, f->data, f->size);
    mc_conn_flush(conn);
}

void mc_conn_send_bytes(mc_conn *conn, const void *bytes, size_t size)
{
    uint8_t *to = take_room(conn, size);
    if (!to) return;
    memcpy(to, bytes, size);
    mc_conn_flush(conn);
}

bool mc_conn_take_bytes(mc_conn *conn, void *bytes, size_t size)
{
    if (conn->in_used < size) return false;
    memcpy(bytes, conn->in, size);
    conn->in_used -= size;
    memmove(conn->in, conn->in + size, conn->in_used);
    return true;
}

void mc_conn_receive(mc_conn *conn)
{
    if (conn->broken || conn->in_used == sizeof conn->in) return;
    ssize_t got;
    do
        got =
            recv(conn->fd, conn->in + conn->in_used, sizeof conn->in - conn->in_used, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got > 0)
        conn->in_used += (size_t)got;
    else if (got == 0)
        breaks(conn, conn->why[0] ? conn->why : "its connection closed");
    else if (errno != EAGAIN && errno != EWOULDBLOCK)
        breaks(conn, strerror(errno));
}

bool mc_conn_next(mc_conn *conn, mc_frame *f, double now)
{
    if (conn->proof.state != MC_PROOF_DONE) return false;
    size_t size = conn->in_used >= MC_FRAME_HEADER ? get(conn->in + 6, 2) : 0;
    size_t known = conn->in_used < 4 ? conn->in_used : 4;
    uint8_t wanted[4];
    put(wanted, magic, 4);
    if (memcmp(conn->in, wanted, known) != 0 || size > MC_FRAME_PAYLOAD_MAX) {
        conn->in_used = 0;
        breaks(conn, "it does not speak our protocol");
        return false;
    }
    if (conn->in_used < MC_FRAME_HEADER + size) return false;
    f->type = (mc_frame_type)get(conn->in + 4, 2);
    f->size = size;
    f->at = 0;
    f->bad = false;
    memcpy(f->data, conn->in + MC_FRAME_HEADER, size);
    conn->in_used -= MC_FRAME_HEADER + size;
    memmove(conn->in, conn->in + MC_FRAME_HEADER + size, conn->in_used);
    conn->heard = now;
    return true;
}

short mc_conn_events(const mc_conn *conn)
{
    return (short)(POLLIN | (conn->out_used ? POLLOUT : 0));
}
