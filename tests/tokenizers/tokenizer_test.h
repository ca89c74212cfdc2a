/* What the tests of tokenizers share: a folder, a context, and what the ids of a text have to be.
 * Include after cmocka.h. */
#ifndef MC_TESTS_TOKENIZER_TEST_H
#define MC_TESTS_TOKENIZER_TEST_H

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "core/base/context_internal.h"
#include "tests/temp_folder.h"
#include "tokenizers/tokenizer_internal.h"

static temp_folder folder;
static mc_context *ctx;
static mc_encoding encoding;

static inline uint32_t random_below(uint32_t n)
{
    static uint64_t random_state = 1;
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % n);
}

static inline int set_up(void **state)
{
    (void)state;
    folder = temp_folder_new();
    ctx = mc_init_distributed(NULL);
    return ctx ? 0 : -1;
}

static inline int tear_down(void **state)
{
    (void)state;
    mc_encoding_release(&encoding);
    mc_context_free(ctx);
    temp_folder_free(&folder);
    return 0;
}

/* The tokenizer of the folder's files. */
static inline mc_tokenizer *open_folder(void)
{
    mc_tokenizer *tok = mc_tokenizer_from_pretrained(ctx, folder.path);
    if (!tok) fail_msg("%s", mc_error_message(ctx));
    return tok;
}

/* They make none. */
static inline void expect_failure(mc_status status, const char *part)
{
    assert_null(mc_tokenizer_from_pretrained(ctx, folder.path));
    if (mc_error_status(ctx) != status || !strstr(mc_error_message(ctx), part))
        fail_msg("\"%s\" not in: %s", part, mc_error_message(ctx));
    mc_clear_error(ctx);
}

/* `...`: the ids expected, ended by -1. */
static inline void expect_ids_of(const mc_tokenizer *tok, const char *text, size_t length,
                                 va_list args)
{
    assert_int_equal(mc_tokenizer_encode(tok, text, length, NULL, 0, 0, &encoding), MC_OK);
    for (size_t i = 0;; i++) {
        int32_t expected = va_arg(args, int);
        int32_t got = i < encoding.count ? encoding.ids[i] : -1;
        if (expected != got) fail_msg("\"%s\": id %zu is %d, expected %d", text, i, got, expected);
        if (expected < 0) return;
        assert_int_equal(encoding.type_ids[i], 0);
    }
}

static inline void expect_ids(const mc_tokenizer *tok, const char *text, ...)
{
    va_list args;
    va_start(args, text);
    expect_ids_of(tok, text, strlen(text), args);
    va_end(args);
}

/* Runs check_tokenizer, which lies beside this program; its exit status. What it prints is in the
 * folder's file `output`. */
static inline int check(const char *vocab, const char *records)
{
    char self[2048], command[8192];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(length > 0);
    self[length] = '\0';
    *strrchr(self, '/') = '\0';
    snprintf(command, sizeof command, "'%s/check_tokenizer' '%s' '%s' > '%s' 2>&1", self, vocab,
             records, temp_path(&folder, "output"));
    int status = system(command);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static inline void expect_output(const char *part)
{
    size_t size;
    char *output = mc_file_read(&ctx->error, temp_path(&folder, "output"), 1 << 20, &size);
    assert_non_null(output);
    if (!strstr(output, part)) fail_msg("\"%s\" not in: %s", part, output);
    mc_free(output);
}

/* The recorded results of a vocabulary, both by their names in the shared folder. */
static inline void check_recorded(const char *shared, const char *vocab, const char *records)
{
    char vocab_path[2048], records_path[2048];
    snprintf(vocab_path, sizeof vocab_path, "%s/data/vocab/%s", shared, vocab);
    snprintf(records_path, sizeof records_path, "%s/goldens/tokenizers/%s.jsonl", shared, records);
    int result = check(vocab_path, records_path);
    expect_output(" exact\n");
    if (result != 0) fail_msg("%s: check_tokenizer returned %d", records, result);
}

/* ---- one tokenizer in several threads -------------------------------------------------------- */

typedef struct encoder {
    const mc_tokenizer *tok;
    const char *text;
    const int32_t *ids; /* expected, (count) */
    size_t count;
    bool same;
} encoder;

static inline void *encode_often(void *argument)
{
    encoder *e = argument;
    mc_encoding own = {0};
    e->same = true;
    for (int i = 0; i < 2000 && e->same; i++) {
        mc_status status = mc_tokenizer_encode(e->tok, e->text, strlen(e->text), NULL, 0, 0, &own);
        e->same = !status && own.count == e->count &&
                  memcmp(own.ids, e->ids, e->count * sizeof *e->ids) == 0;
    }
    mc_encoding_release(&own);
    return NULL;
}

static inline void check_threads(const mc_tokenizer *tok, const char *text, const int32_t *ids,
                                 size_t count)
{
    pthread_t threads[4];
    encoder encoders[4];
    for (int i = 0; i < 4; i++) {
        encoders[i] = (encoder){.tok = tok, .text = text, .ids = ids, .count = count};
        assert_int_equal(pthread_create(&threads[i], NULL, encode_often, &encoders[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_true(encoders[i].same);
    }
}

#endif
