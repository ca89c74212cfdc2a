/* Any bytes as the rows of a task: refused with a message that names the line, or a dataset whose
 * rows are sound and can be packed into batches. The first byte chooses task and split. */
#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/base/json_internal.h"
#include "datasets/pack_internal.h"
#include "datasets/rows.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static mc_context *ctx; /* one for all inputs */
static mc_tokenizer *tok;

/* Makes the context and a tokenizer of a few entries. */
static void start(void)
{
    const char *parent = getenv("TMPDIR");
    char folder[512], path[544];
    snprintf(folder, sizeof folder, "%s/mc-fuzz-XXXXXX", parent ? parent : P_tmpdir);
    assert(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/vocab.txt", folder);
    FILE *file = fopen(path, "w");
    assert(file);
    fputs("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##a\nthe\nb\n.\n,\n?\n\"\n", file);
    assert(fclose(file) == 0);
    ctx = mc_init_distributed(NULL);
    tok = mc_tokenizer_from_pretrained(ctx, folder);
    assert(tok);
    unlink(path);
    rmdir(folder);
}

static void check_rows(const mc_dataset *d)
{
    for (int64_t row = 0; row < mc_dataset_rows(d); row++) {
        int32_t label = mc_dataset_label(d, row);
        assert(label == MC_NO_LABEL || (label >= 0 && label < mc_dataset_labels(d)));
        assert(mc_dataset_line(d, row) > 0);
        for (int choice = 0; choice < mc_dataset_choices(d); choice++) {
            const char *text = mc_dataset_text(d, row, choice);
            const char *pair = mc_dataset_pair(d, row, choice);
            assert(mc_utf8_is_valid(text, strlen(text)));
            assert(!pair || mc_utf8_is_valid(pair, strlen(pair)));
        }
    }
}

/* Packs up to four rows. */
static void pack_rows(const mc_dataset *d)
{
    int rows = mc_dataset_rows(d) < 4 ? (int)mc_dataset_rows(d) : 4;
    const mc_pack_limits limits = {.rows = rows, .round_to = 8, .tokens = {8}};
    mc_packed packed;
    mc_example example = {0};
    mc_error err = {0};
    assert(mc_packed_init(&err, &packed, &limits, d) == MC_OK);
    mc_status status =
        mc_pack(&err, &packed, &limits, d, (int32_t[]){0, 1, 2, 3}, 1, rows, &example);
    const mc_lengths *lengths = &packed.stack[MC_READER].lengths;
    assert(status == MC_OK && lengths->count == rows * mc_dataset_choices(d));
    assert(lengths->longest <= mc_dataset_max_length(d) && lengths->capacity % 8 == 0);
    mc_example_release(&example);
    mc_packed_release(&packed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const splits[] = {"train", "val", "test"};
    if (!ctx) start();
    if (!size) return 0;
    mc_dataset *d = mc_dataset_from_memory(
        ctx, mc_task_name(data[0] % 6), "fuzz", (const char *)data + 1, size - 1,
        splits[data[0] / 6 % 3], tok, &(mc_dataset_options){.max_length = 24});
    assert((d == NULL) == mc_failed(ctx));
    if (d) {
        assert(mc_dataset_rows(d) > 0);
        check_rows(d);
        pack_rows(d);
    } else {
        assert(strncmp(mc_error_message(ctx), "fuzz:", 5) == 0);
    }
    mc_dataset_free(d);
    mc_clear_error(ctx);
    return 0;
}
