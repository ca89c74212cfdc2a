/* Runs a fuzz target without a fuzzer, as a quick regression in the test suite: once on each file
 * of its corpus and once on each of a fixed number of mutations of these, always the same ones.
 *
 *     regression_<target> CORPUS_FOLDER [MUTATIONS_A_FILE] */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FILE_MAX = 1 << 20 };

static uint64_t random_state;

static uint32_t next_random(uint32_t below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % below);
}

/* Changes a few bytes in place, or repeats, cuts or drops a stretch. Returns the new size, at most
 * room. */
static size_t mutate(uint8_t *data, size_t size, size_t room)
{
    static const uint8_t telling[] = "\0\1\x7f\x80\xff\"\\{}[],:-.019eu \n";
    for (uint32_t edits = 1 + next_random(3); edits > 0 && size > 0; edits--) {
        size_t at = next_random((uint32_t)size);
        size_t length = 1 + next_random((uint32_t)(size - at < 32 ? size - at : 32));
        switch (next_random(6)) {
        case 0: data[at] ^= (uint8_t)(1u << next_random(8)); break;
        case 1: data[at] = (uint8_t)next_random(256); break;
        case 2: data[at] = telling[next_random(sizeof telling - 1)]; break;
        case 3:
            if (next_random(4) == 0) size = at;
            break;
        case 4:
            memmove(data + at, data + at + length, size - at - length);
            size -= length;
            break;
        default:
            if (size + length > room) break;
            memmove(data + at + length, data + at, size - at);
            size += length;
        }
    }
    return size;
}

/* Runs on a copy of exactly that size, so that a sanitizer sees every read past its end. */
static void run_on(const uint8_t *data, size_t size)
{
    uint8_t *exact = malloc(size ? size : 1);
    if (!exact) return;
    if (size) memcpy(exact, data, size);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
}

static int run_file(const char *path, long mutations)
{
    uint8_t *data = malloc(FILE_MAX), *changed = malloc(2 * FILE_MAX);
    FILE *file = fopen(path, "rb");
    size_t size = file && data ? fread(data, 1, FILE_MAX, file) : 0;
    int good = file && data && changed && !ferror(file);
    if (!good) fprintf(stderr, "%s: cannot read\n", path);
    random_state = 1;
    if (good) run_on(data, size);
    for (long i = 0; good && i < mutations; i++) {
        memcpy(changed, data, size);
        run_on(changed, mutate(changed, size, 2 * FILE_MAX));
    }
    if (file) fclose(file);
    free(data);
    free(changed);
    return good;
}

int main(int argc, char **argv)
{
    long mutations = argc > 2 ? strtol(argv[2], NULL, 10) : 20000;
    int files = 0;
    DIR *dir = argc > 1 ? opendir(argv[1]) : NULL;
    if (!dir) {
        fprintf(stderr, "usage: %s CORPUS_FOLDER [MUTATIONS_A_FILE]\n", argv[0]);
        return 2;
    }
    for (struct dirent *item; (item = readdir(dir));) {
        char path[4096];
        if (item->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", argv[1], item->d_name);
        if (!run_file(path, mutations)) return 1;
        files++;
    }
    closedir(dir);
    printf("%d files, %ld mutations of each: ok\n", files, mutations);
    return files > 0 ? 0 : 1;
}
