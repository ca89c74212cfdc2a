/* Any bytes as a table: refused with a message that names the place, or rows of which each has
 * sound text in every column. The first byte chooses the form. */
#include <assert.h>
#include <stdint.h>
#include <string.h>
#include "core/base/json_internal.h"
#include "datasets/table.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_row(mc_context *ctx, mc_table *t)
{
    for (int i = 0; i < mc_table_columns(t) && !mc_failed(ctx); i++) {
        size_t length;
        const char *text = mc_table_text(t, i, &length);
        assert((text != NULL) != mc_failed(ctx));
        assert(!text ||
               (strlen(text) <= length && !text[length] && mc_utf8_is_valid(text, length)));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static mc_context *ctx;
    static const char *const names[] = {"fuzz.csv", "fuzz.tsv", "fuzz.jsonl"};
    if (!ctx) ctx = mc_init_distributed(NULL);
    if (!size) return 0;
    mc_table *t =
        mc_table_from_memory(ctx, names[data[0] % 3], (const char *)data + 1, size - 1, NULL);
    assert((t == NULL) == mc_failed(ctx));
    int64_t rows = 0, line = 0;
    for (; mc_table_next(t); rows++) {
        assert(mc_table_row(t) == rows && mc_table_line(t) >= line); /* a list has no lines */
        line = mc_table_line(t);
        check_row(ctx, t);
    }
    if (mc_failed(ctx)) assert(strncmp(mc_error_message(ctx), "fuzz.", 5) == 0);
    mc_table_free(t);
    mc_clear_error(ctx);
    return 0;
}
