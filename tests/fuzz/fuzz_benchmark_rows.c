/* Any bytes as a benchmark's file: refused with a message that names it, or flat rows whose texts
 * are sound and whose questions count up. The first byte chooses form and split. */
#include <assert.h>
#include <string.h>
#include "datasets/tasks/rows_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static mc_context *ctx; /* one for all inputs */

static bool check_row(void *user, mc_jsonl *row, int64_t question)
{
    int64_t *last = user;
    assert(question == *last || question > *last);
    *last = question;
    assert(cJSON_IsObject(row->row) && row->row->child);
    for (const cJSON *item = row->row->child; item; item = item->next)
        if (cJSON_IsString(item))
            assert(mc_utf8_is_valid(item->valuestring, strlen(item->valuestring)));
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!ctx) ctx = mc_init_distributed(NULL);
    if (!size) return 0;
    int64_t last = -1;
    mc_row_sink sink = {
        .add = check_row, .user = &last, .train = data[0] & 8, .unlabelled = data[0] & 16};
    mc_row_form form = MC_ROWS_MULTIRC + data[0] % 8 % MC_ROWS_LCQMC;
    bool ok = mc_rows_read(ctx, form, "fuzz", (const char *)data + 1, size - 1, &sink);
    assert(ok == !mc_failed(ctx));
    assert(ok || strncmp(mc_error_message(ctx), "fuzz:", 5) == 0);
    mc_clear_error(ctx);
    return 0;
}
