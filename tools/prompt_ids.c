#include "tools/prompt_ids.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

typedef struct ids {
    int32_t *items;
    size_t count, capacity;
    mc_status status;
} ids;

static void add(ids *out, const int32_t *items, size_t count)
{
    if (out->status || !count) return;
    if (count > INT_MAX - out->count) {
        out->status = MC_ERR_UNSUPPORTED;
        return;
    }
    if (out->count + count > out->capacity) {
        size_t wanted = 2 * (out->count + count);
        int32_t *grown = realloc(out->items, wanted * sizeof *grown);
        if (!grown) {
            out->status = MC_ERR_NOMEM;
            return;
        }
        out->items = grown;
        out->capacity = wanted;
    }
    memcpy(out->items + out->count, items, count * sizeof *items);
    out->count += count;
}

static void add_text(ids *out, const mc_tokenizer *tok, const char *text, size_t length)
{
    mc_encoding e = {0};
    if (!out->status) out->status = mc_tokenizer_append(tok, text, length, &e);
    if (!out->status) add(out, e.ids, e.count);
    mc_encoding_release(&e);
}

/* With what the tokenizer puts around a text. */
static void add_with_specials(ids *out, const mc_tokenizer *tok, const char *text)
{
    mc_encoding e = {0};
    if (!out->status) out->status = mc_tokenizer_encode(tok, text, strlen(text), NULL, 0, 0, &e);
    if (!out->status) add(out, e.ids, e.count);
    mc_encoding_release(&e);
}

/* The id of the blank that the text begins with, and how long it is written; -1: with none. */
static int32_t find_blank(const mc_tokenizer *tok, const char *text, size_t *length)
{
    char name[16];
    if (strncmp(text, "<s_", 3) != 0) return -1;
    *length = 3 + strspn(text + 3, "0123456789") + 1;
    if (*length >= sizeof name || text[*length - 1] != '>') return -1;
    memcpy(name, text, *length);
    name[*length] = '\0';
    return mc_tokenizer_token_to_id(tok, name);
}

static void add_with_blanks(ids *out, const mc_tokenizer *tok, const char *text)
{
    const char *done = text;
    size_t blanks = 0;
    for (const char *p = text; *p;) {
        size_t length = 0;
        int32_t blank = find_blank(tok, p, &length);
        if (blank < 0) {
            p++;
            continue;
        }
        add_text(out, tok, done, (size_t)(p - done));
        add(out, &blank, 1);
        blanks++;
        done = p += length;
    }
    add_text(out, tok, done, strlen(done));
    int32_t first = mc_tokenizer_token_to_id(tok, "<s_0>");
    if (!blanks) add(out, &first, 1);
}

int32_t *prompt_ids(const mc_tokenizer *tok, const char *family, const char *text, int *count,
                    mc_status *status)
{
    enum { ROOM = 16 };
    ids out = {.items = malloc(ROOM * sizeof *out.items), .capacity = ROOM};
    int32_t begin = mc_tokenizer_token_to_id(tok, "<s>");
    if (!out.items) out.status = MC_ERR_NOMEM;
    if (strcmp(family, "cpm2") == 0) {
        add_with_blanks(&out, tok, text);
    } else if (strcmp(family, "cpm1") == 0) {
        add(&out, &begin, 1);
        add_text(&out, tok, text, strlen(text));
    } else {
        add_with_specials(&out, tok, text);
    }
    *status = out.status;
    *count = (int)out.count;
    if (!out.status) return out.items;
    free(out.items);
    return NULL;
}
