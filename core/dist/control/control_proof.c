/* How the two ends of a connection prove to each other that they know the job's secret. Everything
 * else that a peer sends is read only after that.
 *
 *     rank 0                                         another process
 *
 *     challenge: "MCp1", 32 random bytes S   ---->   both at once
 *                                            <----   challenge: "MCp1", 32 random bytes C
 *                                            <----   proof: HMAC(secret, "client" S C)
 *     proof: HMAC(secret, "server" S C)      ---->
 *                                            <--->   frames (control_internal.h)
 *
 * A challenge has 36 bytes and a proof 32; HMAC is HMAC-SHA256 (RFC 2104). Rank 0 proves itself
 * only to a peer that has proven itself, and a process that finds a stranger in rank 0's place
 * sends it no frame. Each end's check includes its own random bytes, so replaying a proof fails;
 * the words "client" and "server" prevent reflecting an end's own proof to it. A peer that fails
 * gets no answer, and a moment later the connection is closed.
 *
 * This protects against strangers who connect to the port, not against those who read or change the
 * traffic.
 *
 * HMAC is libcrypto's. Without libcrypto, ranks meet only on loopback addresses (control_state.c),
 * which no other host can read, and a proof is one half of the secret itself. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include "core/base/library_internal.h"
#include "core/base/library_names_internal.h"
#include "core/dist/control/control_parts_internal.h"

enum { MAGIC = 4, CHALLENGE = MC_PROOF_RANDOM, PROOF = MC_PROOF_SIZE, WORD = 6 };

static const char magic[MAGIC + 1] = "MCp1";

void mc_hmac_load(mc_hmac *h)
{
    static const char *const names[] = {MC_LIBRARY_CRYPTO, NULL};
    void *library = mc_library_open(names);
    *h = (mc_hmac){0};
    if (!library) return;
    *(void **)&h->sha256 = dlsym(library, "EVP_sha256");
    *(void **)&h->hmac = dlsym(library, "HMAC");
    if (!h->sha256) h->hmac = NULL;
}

/* The proof of one end, "client" or "server"; false: libcrypto fails. */
static bool compute(const mc_hmac *h, const mc_job_secret *secret, const mc_proof *p, bool server,
                    uint8_t out[PROOF])
{
    uint8_t text[WORD + 2 * CHALLENGE];
    unsigned size = 0;
    if (!h->hmac) {
        memset(out, 0, PROOF);
        memcpy(out, secret->bytes + (server ? PROOF / 2 : 0), PROOF / 2);
        return true;
    }
    memcpy(text, server ? "server" : "client", WORD);
    memcpy(text + WORD, p->server ? p->mine : p->theirs, CHALLENGE);
    memcpy(text + WORD + CHALLENGE, p->server ? p->theirs : p->mine, CHALLENGE);
    return h->hmac(h->sha256(), secret->bytes, (int)secret->size, text, sizeof text, out, &size) &&
           size == PROOF;
}

/* Compares in constant time. */
static bool are_equal(const uint8_t *a, const uint8_t *b, size_t size)
{
    unsigned different = 0;
    for (size_t i = 0; i < size; i++) different |= a[i] ^ b[i];
    return different == 0;
}

static void refuse(mc_conn *conn, const char *why)
{
    conn->proof.state = MC_PROOF_REFUSED;
    snprintf(conn->why, sizeof conn->why, "%s", why);
}

static bool send_proof(mc_conn *conn, const mc_hmac *h, const mc_job_secret *secret)
{
    uint8_t own[PROOF];
    bool made = compute(h, secret, &conn->proof, conn->proof.server, own);
    if (made) mc_conn_send_bytes(conn, own, sizeof own);
    if (!made) refuse(conn, "libcrypto computes no HMAC-SHA256");
    return made;
}

void mc_proof_begin(mc_conn *conn, bool server)
{
    conn->proof = (mc_proof){.state = MC_PROOF_CHALLENGED, .server = server};
    if (getrandom(conn->proof.mine, CHALLENGE, 0) != CHALLENGE) {
        refuse(conn, "the system gives no random numbers for a challenge");
        return;
    }
    mc_conn_send_bytes(conn, magic, MAGIC);
    mc_conn_send_bytes(conn, conn->proof.mine, CHALLENGE);
}

static void take_challenge(mc_conn *conn, const mc_hmac *h, const mc_job_secret *secret)
{
    uint8_t challenge[MAGIC + CHALLENGE];
    if (memcmp(conn->in, magic, conn->in_used < MAGIC ? conn->in_used : MAGIC) != 0) {
        refuse(conn, "it does not speak our protocol");
    } else if (mc_conn_take_bytes(conn, challenge, sizeof challenge)) {
        memcpy(conn->proof.theirs, challenge + MAGIC, CHALLENGE);
        if (conn->proof.server || send_proof(conn, h, secret))
            conn->proof.state = MC_PROOF_EXPECTED;
    }
}

static void take_proof(mc_conn *conn, const mc_hmac *h, const mc_job_secret *secret)
{
    uint8_t theirs[PROOF], expected[PROOF];
    if (!mc_conn_take_bytes(conn, theirs, sizeof theirs)) return;
    bool made = compute(h, secret, &conn->proof, !conn->proof.server, expected);
    if (!made || !are_equal(theirs, expected, PROOF))
        refuse(conn, "it does not know the job's secret");
    else if (!conn->proof.server || send_proof(conn, h, secret))
        conn->proof.state = MC_PROOF_DONE;
}

mc_proof_state mc_proof_go_on(mc_conn *conn, const mc_hmac *h, const mc_job_secret *secret)
{
    if (conn->proof.state == MC_PROOF_CHALLENGED) take_challenge(conn, h, secret);
    if (conn->proof.state == MC_PROOF_EXPECTED) take_proof(conn, h, secret);
    return conn->proof.state;
}
