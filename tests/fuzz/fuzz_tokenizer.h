/* What fuzz targets of tokenizers share: the first byte is the kind of file, the rest its bytes or
 * a text. A program that includes this says how a tokenizer is opened and used. */
#ifndef MC_TESTS_FUZZ_TOKENIZER_H
#define MC_TESTS_FUZZ_TOKENIZER_H

#include <assert.h>
#include <stdint.h>
#include <string.h>
#include "tokenizers/files/parts_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Reads a file of the kind, 0 <= kind < kinds, called "fuzz" in errors. */
static mc_status load(mc_tokenizer *tok, mc_error *err, int kind, const char *text, size_t size);
static void use(const mc_tokenizer *tok, const uint8_t *data, size_t size);

/* What opens is used; what does not is an error that names the file, but for one of the status
 * `unnamed` (MC_OK: there is none). */
static int fuzz_tokenizer(const uint8_t *data, size_t size, int kinds, mc_status unnamed)
{
    if (!size) return 0;
    mc_context *ctx = mc_init_distributed(NULL);
    mc_tokenizer *tok = ctx ? mc_tokenizer_new(ctx) : NULL;
    if (!tok) {
        mc_context_free(ctx);
        return 0;
    }
    int kind = *data++ % kinds;
    size--;
    mc_status status = load(tok, &ctx->error, kind, (const char *)data, size);
    assert(status == ctx->error.status);
    if (status)
        assert(strstr(mc_error_message(ctx), "fuzz") || status == unnamed);
    else
        use(tok, data, size);
    mc_context_free(ctx);
    return 0;
}

#endif
