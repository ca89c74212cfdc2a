/* A folder for a test's files, and small file helpers. Failures end the test (cmocka asserts).
 * Include after cmocka.h. */
#ifndef MC_TESTS_TEMP_FOLDER_H
#define MC_TESTS_TEMP_FOLDER_H

#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct temp_folder {
    char path[512];
} temp_folder;

static inline temp_folder temp_folder_new(void)
{
    temp_folder folder;
    const char *parent = getenv("TMPDIR");
    snprintf(folder.path, sizeof folder.path, "%s/mc-test-XXXXXX", parent ? parent : P_tmpdir);
    assert_non_null(mkdtemp(folder.path));
    return folder;
}

static inline int temp_folder_remove_one(const char *path, const struct stat *info, int type,
                                         struct FTW *walk)
{
    (void)info, (void)walk;
    if (type == FTW_DP || type == FTW_D) chmod(path, 0700);
    return remove(path);
}

static inline void temp_folder_free(temp_folder *folder)
{
    nftw(folder->path, temp_folder_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* "<folder>/<name>"; the result lives until the 8th call after it. */
static inline const char *temp_path(const temp_folder *folder, const char *name)
{
    static char paths[8][1024];
    static int turn;
    char *path = paths[turn = (turn + 1) % 8];
    snprintf(path, sizeof *paths, "%s/%s", folder->path, name);
    return path;
}

static inline void write_bytes(const char *path, const void *data, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static inline void write_text(const char *path, const char *text)
{
    write_bytes(path, text, strlen(text));
}

/* How many files and folders lie in a folder. */
static inline int count_files(const char *path)
{
    int count = 0;
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (struct dirent *item; (item = readdir(dir));)
        count += strcmp(item->d_name, ".") != 0 && strcmp(item->d_name, "..") != 0;
    closedir(dir);
    return count;
}

/* Removes all files of a folder but one. */
static inline void temp_folder_keep_one(const temp_folder *folder, const char *name)
{
    DIR *dir = opendir(folder->path);
    assert_non_null(dir);
    for (struct dirent *item; (item = readdir(dir));)
        if (item->d_name[0] != '.' && strcmp(item->d_name, name) != 0)
            assert_int_equal(unlinkat(dirfd(dir), item->d_name, 0), 0);
    closedir(dir);
}

/* The folder with reference data, or NULL (having said so) if there is none. */
static inline const char *shared_folder(void)
{
    const char *shared = getenv("MC_SHARED");
    if (!shared || !*shared) shared = MC_SOURCE_DIR "/../shared";
    if (access(shared, R_OK) == 0) return shared;
    printf("SKIPPED: no reference data at %s (set MC_SHARED)\n", shared);
    return NULL;
}

#endif
