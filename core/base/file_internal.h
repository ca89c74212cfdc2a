/* Files: mapping for reading, and writing so that a reader never sees half a file. */
#ifndef MC_BASE_FILE_INTERNAL_H
#define MC_BASE_FILE_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "core/base/aside.h"
#include "core/base/error_internal.h"

#define MC_PATH_MAX 4096

/* Joins folder and name with one '/'. Fails (MC_ERR_ARGUMENT) if it doesn't fit. */
mc_status mc_path_join(mc_error *err, char out[MC_PATH_MAX], const char *folder, const char *name);
/* Whether a name that a file gives could lead out of that file's folder: it has "..", or begins at
 * the root. */
bool mc_path_leaves(const char *name);
/* The folder for files kept between runs: MC_CACHE_DIR, else modelcenter in $XDG_CACHE_HOME or
 * ~/.cache. It may not exist yet. Returns false if MC_CACHE_DIR or HOME is empty. */
bool mc_path_cache(char out[MC_PATH_MAX]);
bool mc_path_is_file(const char *path);
bool mc_path_is_folder(const char *path);
/* mkdir -p. An error leaves none of the folders that it made. */
mc_status mc_make_folders(mc_error *err, const char *path);
/* The same, so that it can be undone: *made is the length of the first folder of `path` that was
 * missing, 0 if none was. */
mc_status mc_make_new_folders(mc_error *err, const char *path, size_t *made);
/* Removes these folders, the innermost first, as far as they are empty. */
void mc_remove_new_folders(const char *path, size_t made);
/* Calls fn with the name of each entry of a folder; stops at the first status that is not MC_OK. A
 * missing folder has no entries. */
mc_status mc_folder_each(mc_error *err, const char *folder,
                         mc_status (*fn)(void *user, const char *name), void *user);

/* Makes a rename to `path` durable: the folder's own entry has to reach the disk too. */
mc_status mc_path_sync_folder(mc_error *err, const char *path);

/* A whole file mapped read-only. `data` is NULL for an empty file. Files that are read at random,
 * or in pieces by several threads, are mapped; others are read (mc_file_read_at,
 * mc_file_reader). */
typedef struct mc_file_map {
    const uint8_t *data;
    size_t size;
} mc_file_map;

mc_status mc_file_map_init(mc_error *err, mc_file_map *map, const char *path);
/* The same, and keeps the file open for reading as *fd. The caller closes *fd, even after an error,
 * unless it is still -1. */
mc_status mc_file_map_open(mc_error *err, mc_file_map *map, const char *path, int *fd);
void mc_file_map_release(mc_file_map *map);
/* Call this after reading mapped bytes and before using them. If a part of the mapping that `data`
 * points into could not be read (core/base/fault.h), it sets the error that names the file, the
 * byte and the file's size, and replaces any error that the zeros caused. Returns err's status.
 * Does nothing else if `data` is NULL or not mapped. Costs one load while no mapping is broken. */
mc_status mc_file_check_bytes(mc_error *err, const void *data);
/* The same after checking the file's size with a system call. A file that has become shorter reads
 * as zeros, without a fault, from its end to the end of that page. */
mc_status mc_file_check_whole(mc_error *err, const void *data);
/* Maps an open file that is not empty; returns NULL with errno set. For file.c. */
const uint8_t *mc_file_map_add(int fd, size_t size, const char *path);

/* Reads `size` bytes of an open file, all or none. An error names the file, the byte and its
 * size. */
mc_status mc_file_read_at(mc_error *err, int fd, const char *path, uint64_t offset, void *to,
                          size_t size);

/* Reads a whole file into a heap buffer with a NUL added after its last byte (mc_free it). Errors
 * name the path; a file larger than `limit` bytes is MC_ERR_FORMAT. */
char *mc_file_read(mc_error *err, const char *path, size_t limit, size_t *size);

/* Writes `path` aside (core/base/aside.h). mc_file_commit syncs the file, renames it over `path`
 * and syncs the folder; mc_file_writer_release without a commit removes what was written. A target
 * that is not a regular file is written directly. The first failing call (a full disk, a read-only
 * folder) sets the error; later calls do nothing, and a file that misses a write, failed or
 * skipped, can never be committed, even after the error is cleared. */
typedef struct mc_file_writer {
    mc_error *err;
    mc_aside aside; /* pending: this process created it; release removes it unless renamed */
    bool failed;    /* a write failed or was skipped: the file must not be committed */
    char *path;
    uint8_t *buffer;
    size_t used;
    uint64_t written; /* bytes so far, buffered ones included */
} mc_file_writer;

mc_status mc_file_writer_init(mc_error *err, mc_file_writer *writer, const char *path);
mc_status mc_file_write(mc_file_writer *writer, const void *data, size_t size);
/* Overwrites `size` bytes at `offset` that were written before: a header that is known only at the
 * end. */
mc_status mc_file_patch(mc_file_writer *writer, uint64_t offset, const void *data, size_t size);
/* Opens a file that several processes write together. One process creates it with
 * mc_file_writer_init; the others join with the tag of its mc_aside. All write at offsets from the
 * file's start, each byte once. All sync; after that, the creator renames. Release does not remove
 * a joined file. */
mc_status mc_file_writer_join(mc_error *err, mc_file_writer *writer, const char *path,
                              uint64_t tag);
mc_status mc_file_write_at(mc_file_writer *writer, uint64_t offset, const void *data, size_t size);
/* Flushes and fsyncs without renaming; then mc_file_rename makes it visible. Several files that
 * belong together are all synced first and then renamed one after the other. */
mc_status mc_file_sync(mc_file_writer *writer);
mc_status mc_file_rename(mc_file_writer *writer);
mc_status mc_file_commit(mc_file_writer *writer); /* sync + rename */
void mc_file_writer_release(mc_file_writer *writer);

/* Copies a file over an older one. */
mc_status mc_file_copy(mc_error *err, const char *from, const char *to);

#endif
