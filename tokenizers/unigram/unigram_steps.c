/* Hugging Face's normal form for Unigram: the steps that a tokenizer.json lists. */
#include <string.h>
#include "tokenizers/unicode/graphemes_internal.h"
#include "tokenizers/tokenizer_internal.h"

enum { CLUSTER_MAX = 6 }; /* clusters of fewer bytes are looked up as a whole */

static bool put_form(mc_bytes *out, const char *form)
{
    return mc_bytes_append(out, form, strlen(form));
}

/* One cluster: as a whole if it is small, else character by character. Of a whole one only the
 * shortest key that it begins with counts, and replaces all of it. */
static bool put_cluster(const mc_charsmap *map, const uint8_t *p, size_t size, mc_bytes *out)
{
    size_t matched;
    const char *form = NULL;
    if (size < CLUSTER_MAX) form = mc_charsmap_shortest(map, p, size, &matched);
    if (form) return put_form(out, form);
    for (const uint8_t *end = p + size; p < end; p += size) {
        uint32_t c;
        size = mc_utf8_decode(p, end, &c);
        form = mc_charsmap_shortest(map, p, size, &matched);
        if (form ? !put_form(out, form) : !mc_bytes_append(out, p, size)) return false;
    }
    return true;
}

static bool apply_charsmap(const mc_charsmap *map, const mc_bytes *in, mc_bytes *out)
{
    for (size_t at = 0, size; at < in->count; at += size) {
        const uint8_t *p = in->data + at;
        size = 1;
        if (*p >= 0x80 || *p == '\r' || (at + 1 < in->count && p[1] >= 0x80))
            size = mc_grapheme_size(p, in->count - at);
        if (!put_cluster(map, p, size, out)) return false;
    }
    return true;
}

static bool is_white(uint32_t c) { return mc_unicode_get(c).flags & MC_UNICODE_WHITE; }

static bool apply_strip(const mc_step *step, const mc_bytes *in, mc_bytes *out)
{
    const uint8_t *p = in->data, *end = p + in->count;
    size_t size = in->count;
    if (step->right) size = mc_length_without_space((const char *)p, size);
    end = p + size;
    while (step->left && p < end) {
        uint32_t c;
        size_t length = mc_utf8_decode(p, end, &c);
        if (!is_white(c)) break;
        p += length;
    }
    return mc_bytes_append(out, p, (size_t)(end - p));
}

/* Two spaces and more become one thing. */
static bool apply_spaces(const mc_step *step, const mc_bytes *in, mc_bytes *out)
{
    for (size_t at = 0, run; at < in->count; at += run) {
        run = 1;
        if (in->data[at] == ' ')
            while (at + run < in->count && in->data[at + run] == ' ') run++;
        bool ok = run == 1 ? mc_bytes_append(out, in->data + at, 1)
                           : put_form(out, step->symbol ? MC_SPACE_SYMBOL : " ");
        if (!ok) return false;
    }
    return true;
}

/* Bytes that are no UTF-8 become U+FFFD. */
static bool put_valid(const uint8_t *p, size_t size, mc_bytes *out)
{
    const uint8_t *end = p + size, *bad = mc_utf8_find_invalid(p, end);
    if (!mc_bytes_append(out, p, bad ? (size_t)(bad - p) : size)) return false;
    for (p = bad; p && p < end;) {
        uint32_t c;
        uint8_t bytes[4];
        p += mc_utf8_decode(p, end, &c);
        if (!mc_bytes_append(out, bytes, mc_utf8_encode(c, bytes))) return false;
    }
    return true;
}

static bool apply_form(const mc_step *step, const mc_bytes *in, mc_bytes *out)
{
    mc_bytes codes = {0};
    bool ok = mc_unicode_apply_form((mc_unicode_form)step->form, in->data, in->count, out, &codes);
    mc_bytes_release(&codes);
    return ok;
}

static bool apply_replace(const mc_step *step, const mc_bytes *in, mc_bytes *out)
{
    const uint8_t *p = in->data, *end = p + in->count;
    size_t size = strlen(step->from);
    for (const uint8_t *found; p < end; p = found + size) {
        found = memmem(p, (size_t)(end - p), step->from, size);
        if (!found) return mc_bytes_append(out, p, (size_t)(end - p));
        if (!mc_bytes_append(out, p, (size_t)(found - p)) || !put_form(out, step->to)) return false;
    }
    return true;
}

static bool apply_step(const mc_unigram *u, const mc_step *step, const mc_bytes *in, mc_bytes *out)
{
    switch (step->kind) {
    case MC_STEP_CHARSMAP: return apply_charsmap(&u->charsmap, in, out);
    case MC_STEP_STRIP: return apply_strip(step, in, out);
    case MC_STEP_SPACES: return apply_spaces(step, in, out);
    case MC_STEP_FORM: return apply_form(step, in, out);
    case MC_STEP_PREPEND:
        return put_form(out, step->to) && mc_bytes_append(out, in->data, in->count);
    case MC_STEP_REPLACE: return apply_replace(step, in, out);
    }
    return false;
}

bool mc_unigram_apply_steps(const mc_unigram *u, const uint8_t *text, size_t size, mc_bytes *out,
                            mc_bytes *spare)
{
    out->count = 0;
    if (!put_valid(text, size, out)) return false;
    for (int i = 0; i < u->step_count && out->count; i++) {
        const mc_step *step = &u->steps[i];
        spare->count = 0;
        if (!apply_step(u, step, out, spare)) return false;
        mc_bytes swapped = *out;
        *out = *spare;
        *spare = swapped;
    }
    return true;
}
