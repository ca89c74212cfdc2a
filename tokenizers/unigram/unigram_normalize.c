/* SentencePiece's normal form: characters replaced by its table, white space squeezed, and each
 * space written as a symbol. */
#include <string.h>
#include "core/base/json_internal.h"
#include "tokenizers/tokenizer_internal.h"

/* The normal form of what a text begins with, and how many bytes of it that takes. */
static size_t normalize_prefix(const mc_unigram *u, const uint8_t *p, const uint8_t *end,
                               const char **form, size_t *form_size)
{
    size_t room = (size_t)(end - p), taken;
    if (u->has_symbols && mc_trie_longest(&u->symbols, MC_TRIE_ROOT, p, room, &taken) >= 0) {
        *form = (const char *)p;
        *form_size = taken;
        return taken;
    }
    const char *found = mc_charsmap_longest(&u->charsmap, p, room, &taken);
    if (found) {
        *form = found;
        *form_size = strlen(found);
        return taken;
    }
    if (*p >= 0x80 && mc_utf8_length((const char *)p, room) == 0) {
        *form = "\xEF\xBF\xBD";
        *form_size = 3;
        return 1;
    }
    taken = *p < 0x80 ? 1 : mc_utf8_length((const char *)p, room);
    *form = (const char *)p;
    *form_size = taken;
    return taken;
}

/* Appends a form with its spaces as symbols. */
static bool put_form(const mc_unigram *u, mc_bytes *out, const char *form, size_t size)
{
    if (!mc_bytes_reserve(out, MC_SPACE_SIZE * size)) return false;
    uint8_t *p = out->data + out->count;
    for (size_t i = 0; i < size; i++) {
        if (form[i] == ' ' && u->escape_whitespaces) {
            memcpy(p, MC_SPACE_SYMBOL, MC_SPACE_SIZE);
            p += MC_SPACE_SIZE;
        } else {
            *p++ = (uint8_t)form[i];
        }
    }
    out->count = (size_t)(p - out->data);
    return true;
}

static const uint8_t *skip_spaces(const mc_unigram *u, const uint8_t *p, const uint8_t *end)
{
    const char *form;
    size_t size;
    while (p < end) {
        size_t taken = normalize_prefix(u, p, end, &form, &size);
        if (size != 1 || *form != ' ') break;
        p += taken;
    }
    return p;
}

static void drop_spaces(const mc_unigram *u, mc_bytes *out, size_t start)
{
    const char *symbol = u->escape_whitespaces ? MC_SPACE_SYMBOL : " ";
    size_t size = strlen(symbol);
    while (out->count - start >= size && !memcmp(out->data + out->count - size, symbol, size))
        out->count -= size;
}

bool mc_unigram_normalize(const mc_unigram *u, const uint8_t *text, size_t size, bool at_start,
                          mc_bytes *out)
{
    const uint8_t *p = text, *end = text + size;
    size_t start = out->count;
    bool dummy = u->add_dummy_prefix && (at_start || !u->prefix_first), after_space;
    bool prefix = dummy && !u->whitespace_as_suffix;
    if (u->remove_extra_whitespaces) p = skip_spaces(u, p, end);
    if (p == end) return true;
    if (prefix && !put_form(u, out, " ", 1)) return false;
    after_space = u->remove_extra_whitespaces;
    while (p < end) {
        const char *form;
        size_t form_size;
        p += normalize_prefix(u, p, end, &form, &form_size);
        for (; after_space && form_size && *form == ' '; form++) form_size--;
        if (!form_size) continue;
        if (!put_form(u, out, form, form_size)) return false;
        after_space = u->remove_extra_whitespaces && form[form_size - 1] == ' ';
    }
    if (u->remove_extra_whitespaces) drop_spaces(u, out, start);
    return !u->whitespace_as_suffix || !dummy || put_form(u, out, " ", 1);
}

bool mc_unigram_normalize_part(const mc_unigram *u, const uint8_t *text, size_t size, mc_bytes *out)
{
    const uint8_t *p = text, *end = text + size;
    bool begun = false, after_space = true;
    while (p < end) {
        const char *form;
        size_t form_size;
        p += normalize_prefix(u, p, end, &form, &form_size);
        for (; after_space && form_size && *form == ' '; form++) form_size--;
        if (!form_size) continue;
        if (!begun && !put_form(u, out, " ", 1)) return false;
        begun = true;
        if (!put_form(u, out, form, form_size)) return false;
        after_space = form[form_size - 1] == ' ';
    }
    if (begun && after_space) out->count -= MC_SPACE_SIZE;
    return true;
}
