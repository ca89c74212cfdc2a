/* What tests of datasets share: a folder, a context, and a tokenizer whose vocabulary is single
 * letters, digits and marks, so that any plain text has as many tokens as characters.
 * Include after cmocka.h. */
#ifndef MC_TESTS_DATASETS_FIXTURE_H
#define MC_TESTS_DATASETS_FIXTURE_H

#include <stdbool.h>
#include "core/base/context_internal.h"
#include "datasets/dataset.h"
#include "tests/temp_folder.h"
#include "tokenizers/tokenizer.h"
#include "datasets/rows.h"

typedef struct fixture {
    temp_folder folder;
    mc_context *ctx;
    mc_tokenizer *tok;
} fixture;

static inline void write_vocabulary(const char *path)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n", file);
    for (int c = '!'; c <= '~'; c++) {
        if (c >= 'A' && c <= 'Z') continue;
        fprintf(file, "%c\n", c);
        if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z')) fprintf(file, "##%c\n", c);
    }
    assert_int_equal(fclose(file), 0);
}

static inline int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->folder = temp_folder_new();
    f->ctx = mc_init_distributed(&(mc_init_options){.seed = 42});
    assert_int_equal(mkdir(temp_path(&f->folder, "tok"), 0777), 0);
    write_vocabulary(temp_path(&f->folder, "tok/vocab.txt"));
    f->tok = mc_tokenizer_from_pretrained(f->ctx, temp_path(&f->folder, "tok"));
    if (mc_failed(f->ctx)) mc_print_error(f->ctx, stderr);
    assert_non_null(f->tok);
    *state = f;
    return 0;
}

static inline int tear_down(void **state)
{
    fixture *f = *state;
    mc_context_free(f->ctx);
    temp_folder_free(&f->folder);
    free(f);
    return 0;
}

/* Opens JSON Lines given as text. */
static inline mc_dataset *parse(fixture *f, const char *task, const char *split, const char *lines)
{
    return mc_dataset_from_memory(f->ctx, task, "rows.jsonl", lines, strlen(lines), split, f->tok,
                                  NULL);
}

/* The context must have failed with a message that holds `part`; clears it. */
static inline void expect_error(mc_context *ctx, mc_status status, const char *part)
{
    if (mc_error_status(ctx) != status || !strstr(mc_error_message(ctx), part))
        print_error("expected \"%s\", got \"%s\"\n", part, mc_error_message(ctx));
    assert_int_equal(mc_error_status(ctx), status);
    assert_non_null(strstr(mc_error_message(ctx), part));
    mc_clear_error(ctx);
}

/* Nothing may have failed. */
static inline void expect_ok(mc_context *ctx)
{
    if (mc_failed(ctx)) mc_print_error(ctx, stderr);
    assert_false(mc_failed(ctx));
}

#endif
