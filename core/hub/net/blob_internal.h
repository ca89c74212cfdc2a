/* The contents of one file: fetched in parts, checked, and renamed. */
#ifndef MC_HUB_BLOB_INTERNAL_H
#define MC_HUB_BLOB_INTERNAL_H

#include "core/hub/net/client_internal.h"

/* ---- checksums (digest.c, over OpenSSL's libcrypto) ------------------------------------------ */

typedef struct mc_hub_digest {
    const mc_hub_libraries *lib;
    EVP_MD_CTX *state;
} mc_hub_digest;

/* Begins a checksum of the same kind as `hash`: 64 digits are SHA-256; 40 are git's hash of a blob
 * of `size` bytes, the SHA-1 of "blob <size>", a NUL and the bytes. False if memory is out. */
bool mc_hub_digest_init(mc_hub_digest *d, const mc_hub_libraries *lib, const char *hash,
                        uint64_t size);
bool mc_hub_digest_add(mc_hub_digest *d, const void *data, size_t size);
/* Writes it in lower-case hexadecimal. */
bool mc_hub_digest_end(mc_hub_digest *d, char hash[MC_HUB_HASH_MAX + 1]);
void mc_hub_digest_release(mc_hub_digest *d);

/* ---- arrived parts (parts.c) ----------------------------------------------------------------- */

/* A file that arrives in parts, in any order. After its bytes comes a table of how much of each
 * part has been written, so that the next process can resume. The table never claims more than was
 * written, because a process may be killed at any moment. (A machine that crashes may lose pages of
 * either; then the checksum is wrong, and the file is fetched again.) */
typedef struct mc_hub_parts {
    int fd;
    bool resumed; /* bytes of an earlier call were found */
    uint64_t size, part_size;
    size_t count;
    uint64_t *done; /* (count) bytes that each part has, from its start */
    char path[MC_PATH_MAX];
} mc_hub_parts;

/* Opens or makes the file `path` for `size` bytes and reserves room for them. Errors: MC_ERR_IO, as
 * for a full disk, which names the number of bytes needed. */
mc_status mc_hub_parts_open(mc_error *err, mc_hub_parts *p, const char *path, uint64_t size);
uint64_t mc_hub_parts_start(const mc_hub_parts *p, size_t part);
uint64_t mc_hub_parts_length(const mc_hub_parts *p, size_t part);
/* Appends to a part, which must have room for it. */
mc_status mc_hub_parts_add(mc_error *err, mc_hub_parts *p, size_t part, const void *data,
                           size_t size);
/* Reads up to `size` bytes from `offset` on that have been written; 0 with the error set. */
size_t mc_hub_parts_read(mc_error *err, const mc_hub_parts *p, uint64_t offset, void *data,
                         size_t size);
/* Discards everything that has arrived. */
mc_status mc_hub_parts_restart(mc_error *err, mc_hub_parts *p);
/* The bytes from the start of the file to the first gap; and all bytes that have arrived. */
uint64_t mc_hub_parts_prefix(const mc_hub_parts *p);
uint64_t mc_hub_parts_arrived(const mc_hub_parts *p);
/* Removes the table, syncs, and renames to `path`. */
mc_status mc_hub_parts_finish(mc_error *err, mc_hub_parts *p, const char *path);
void mc_hub_parts_release(mc_hub_parts *p); /* the file stays */

/* ---- fetching (blob.c) ----------------------------------------------------------------------- */

/* Fetches a file of known hash and size to `path`, from file->content_url, or else from its URL on
 * the hub, `url`. MC_ERR_FORMAT if the checksum is wrong; then nothing is kept. */
mc_status mc_hub_blob_fetch(mc_hub_client *c, const mc_hub_file *file, const char *url,
                            const char *path);

#endif
