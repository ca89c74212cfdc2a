#include "datasets/blank_prompt_internal.h"

#include <string.h>
#include "tokenizers/details.h"

static const char mask_text[] = "[MASK]", wider_text[] = "[gMASK]";

static mc_status find_token(mc_error *err, const mc_tokenizer *tok, const char *name, int32_t *id)
{
    *id = mc_tokenizer_token_to_id(tok, name);
    if (*id >= 0) return MC_OK;
    return mc_error_set(err, MC_ERR_UNSUPPORTED,
                        "the tokenizer has no token %s, with which GLM is asked", name);
}

static mc_status append(mc_error *err, const mc_tokenizer *tok, const char *text, size_t size,
                        mc_encoding *out)
{
    mc_status status = mc_tokenizer_append(tok, text, size, out);
    return status ? mc_error_set(err, status, "encoding a prompt: %s", mc_status_text(status))
                  : MC_OK;
}

/* The place of the only mask from id `from` on; `count`: there is none. */
static mc_status find_mask(mc_error *err, const mc_encoding *e, size_t from, int32_t mask,
                           size_t *place)
{
    size_t masks = 0;
    *place = e->count;
    for (size_t i = from; i < e->count; i++) {
        if (e->ids[i] != mask) continue;
        *place = i;
        masks++;
    }
    if (masks <= 1) return MC_OK;
    return mc_error_set(err, MC_ERR_ARGUMENT, "a text with %zu %s, expected one at most", masks,
                        mask_text);
}

/* Leaves out `count` ids from `at` on; types are not asked for. */
static void cut(mc_encoding *e, size_t at, size_t count)
{
    size_t rest = e->count - at - count;
    memmove(e->ids + at, e->ids + at + count, rest * sizeof *e->ids);
    e->count -= count;
}

mc_status mc_blank_prompt(mc_error *err, const mc_tokenizer *tok, const char *text, size_t size,
                          size_t most, mc_encoding *out)
{
    int32_t first, mask, start;
    size_t begin = out->count, place;
    if (size && memmem(text, size, wider_text, sizeof wider_text - 1))
        return mc_error_set(err, MC_ERR_UNSUPPORTED, "%s is not supported: expected %s", wider_text,
                            mask_text);
    if (find_token(err, tok, "[CLS]", &first) || find_token(err, tok, mask_text, &mask) ||
        find_token(err, tok, "[S]", &start) || append(err, tok, "[CLS]", 5, out) ||
        append(err, tok, text, size, out) || find_mask(err, out, begin, mask, &place))
        return err->status;
    if (place == out->count && append(err, tok, mask_text, sizeof mask_text - 1, out))
        return err->status;
    if (append(err, tok, "[S]", 3, out)) return err->status;
    size_t count = out->count - begin, over = most && count > most ? count - most : 0;
    if (most && (most < 3 || begin + over >= place))
        return mc_error_set(err, MC_ERR_ARGUMENT,
                            "a text whose %s would be cut off at %zu tokens: expected a shorter "
                            "one, or a larger --max-length",
                            mask_text, most);
    cut(out, begin + 1, over);
    return MC_OK;
}
