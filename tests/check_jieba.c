/* Prints how texts are cut into Chinese words:  check_jieba < TEXTS
 *
 * Each text ends with a NUL; for each a line comes out with the sizes of its words in bytes. The
 * dictionary is that of CPM's tokenizers (MC_JIEBA_DIR names another). compare_jieba.py compares
 * them with Python's jieba. Returns 0, or 2 with an error message. */
#include <stdio.h>
#include <stdlib.h>
#include "tokenizers/cpm/jieba_internal.h"

static bool print_size(void *user, const uint8_t *word, size_t size, size_t chars)
{
    bool *first = user;
    (void)word;
    (void)chars;
    printf(*first ? "%zu" : " %zu", size);
    *first = false;
    return true;
}

int main(int argc, char **argv)
{
    mc_error err = {0};
    mc_jieba jieba;
    mc_jieba_scratch scratch = {0};
    char *text = NULL;
    size_t capacity = 0;
    ssize_t length;
    mc_status status = MC_OK;
    (void)argv;
    if (argc > 1) {
        fputs("usage: check_jieba < TEXTS\n", stderr);
        return 2;
    }
    mc_jieba_open(&err, &jieba);
    while (!mc_error_is_set(&err) && !status &&
           (length = getdelim(&text, &capacity, 0, stdin)) > 0) {
        bool first = true;
        size_t size = (size_t)length - (text[length - 1] == '\0');
        status = mc_jieba_cut(&jieba, &scratch, (const uint8_t *)text, size, print_size, &first);
        putchar('\n');
    }
    if (status) mc_error_set(&err, status, "a text cannot be cut: %s", mc_status_text(status));
    if (mc_error_is_set(&err)) fprintf(stderr, "error: %s\n", err.message);
    int result = mc_error_is_set(&err) ? 2 : 0;
    free(text);
    mc_jieba_scratch_release(&scratch);
    mc_jieba_release(&jieba);
    mc_error_clear(&err);
    return result;
}
