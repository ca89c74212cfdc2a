#include "tokenizers/tokenizer_internal.h"

#include <string.h>

/* The most bytes that one source code point can add: four decomposed ones, each lowercased to two,
 * between two spaces. */
enum { LONGEST = 4 * 2 * 4 + 2 };

/* Normal form under construction. Marks are stripped before they are put into canonical order here,
 * which gives the same as after, as long as a mark of class 0 still ends a run when it is
 * stripped. */
typedef struct writer {
    const mc_normalizer *normalizer;
    mc_bytes *out, *spare;
    size_t run;    /* where the current run of combining marks begins in `out` */
    uint8_t class; /* of the run's last mark; 0: the run is empty */
    bool unsorted;
} writer;

static uint8_t byte_class(const mc_normalizer *normalizer, uint8_t byte)
{
    if (byte >= 0x80) return MC_BYTE_OTHER;
    uint16_t flags = mc_unicode_get(byte).flags;
    if (normalizer->clean && flags & MC_UNICODE_OTHER) return MC_BYTE_OTHER;
    if (flags & MC_UNICODE_SPACE) return MC_BYTE_SPACE;
    if (flags & MC_UNICODE_PUNCT) return MC_BYTE_PUNCT;
    if (byte < ' ') return MC_BYTE_OTHER; /* may be part of a word, but collides with the classes */
    return normalizer->lower && byte >= 'A' && byte <= 'Z' ? byte + ('a' - 'A') : byte;
}

void mc_normalizer_init(mc_normalizer *normalizer, const mc_normalizer_options *options)
{
    *normalizer = (mc_normalizer){.identity = !options};
    if (options) {
        normalizer->clean = options->clean_text;
        normalizer->chinese = options->handle_chinese_chars;
        normalizer->lower = options->lowercase;
        normalizer->strip = options->strip_accents == MC_STRIP_YES ||
                            (options->strip_accents == MC_STRIP_AS_LOWERCASE && options->lowercase);
    }
    if (normalizer->clean) normalizer->attention |= MC_UNICODE_OTHER | MC_UNICODE_SPACE;
    if (normalizer->chinese) normalizer->attention |= MC_UNICODE_CJK;
    if (normalizer->lower) normalizer->attention |= MC_UNICODE_LOWERS;
    if (normalizer->strip)
        normalizer->attention |= MC_UNICODE_DECOMPOSES | MC_UNICODE_MARK | MC_UNICODE_COMBINES;
    for (int byte = 0; byte < 256; byte++)
        normalizer->bytes[byte] = byte_class(normalizer, (uint8_t)byte);
}

/* Stable sort of the run by combining class: one pass for each class that occurs. */
static bool sort_run(writer *w)
{
    mc_bytes *out = w->out, *spare = w->spare;
    const uint8_t *end;
    bool present[256] = {false};
    uint32_t c;
    spare->count = 0;
    if (!mc_bytes_append(spare, out->data + w->run, out->count - w->run)) return false;
    end = spare->data + spare->count;
    for (const uint8_t *p = spare->data; p < end;) {
        p += mc_utf8_decode(p, end, &c);
        present[mc_unicode_get(c).combining] = true;
    }
    out->count = w->run;
    for (int class = 1; class < 256; class ++) {
        if (!present[class]) continue;
        for (const uint8_t *p = spare->data; p < end;) {
            size_t length = mc_utf8_decode(p, end, &c);
            if (mc_unicode_get(c).combining == class) {
                memcpy(out->data + out->count, p, length);
                out->count += length;
            }
            p += length;
        }
    }
    return true;
}

static bool end_run(writer *w)
{
    bool ok = !w->unsorted || sort_run(w);
    w->class = 0;
    w->unsorted = false;
    return ok;
}

static void put(writer *w, uint32_t c)
{
    w->out->count += mc_utf8_encode(c, w->out->data + w->out->count);
}

/* One code point of a decomposition: stripped if it is an accent, else into its run or after
 * it. */
static bool put_decomposed(writer *w, uint32_t c, mc_unicode_record record)
{
    if (record.combining == 0 && w->class && !end_run(w)) return false;
    if (record.flags & MC_UNICODE_MARK) return true;
    if (record.combining) {
        if (!w->class) w->run = w->out->count;
        if (record.combining < w->class) w->unsorted = true;
        w->class = record.combining;
    }
    uint32_t lowered[4] = {c};
    int count = 1;
    if (w->normalizer->lower && record.flags & MC_UNICODE_LOWERS)
        count = mc_unicode_to_lower(c, lowered);
    for (int i = 0; i < count; i++) put(w, lowered[i]);
    return true;
}

/* A source code point that the settings change. Room for it is there. */
static bool put_changed(writer *w, uint32_t c, mc_unicode_record record)
{
    const mc_normalizer *n = w->normalizer;
    if (n->clean) {
        if (record.flags & MC_UNICODE_OTHER) return true;
        if (record.flags & MC_UNICODE_SPACE) return put_decomposed(w, ' ', mc_unicode_get(' '));
    }
    bool apart = n->chinese && record.flags & MC_UNICODE_CJK;
    if (apart && w->class && !end_run(w)) return false;
    if (apart) put(w, ' ');
    uint32_t codes[4] = {c};
    int count = 1;
    if (n->strip && record.flags & MC_UNICODE_DECOMPOSES) count = mc_unicode_decompose(c, codes);
    for (int i = 0; i < count; i++) {
        mc_unicode_record part = mc_unicode_get(codes[i]);
        if (!n->strip) part = (mc_unicode_record){.flags = part.flags & MC_UNICODE_LOWERS};
        if (!put_decomposed(w, codes[i], part)) return false;
    }
    if (apart) put(w, ' ');
    return true;
}

bool mc_normalizer_run(const mc_normalizer *normalizer, const uint8_t *text, size_t size,
                       mc_bytes *out, mc_bytes *spare)
{
    writer w = {.normalizer = normalizer, .out = out, .spare = spare};
    const uint8_t *end = text + size;
    while (text < end) {
        uint32_t c;
        uint8_t byte = normalizer->bytes[*text];
        if (!mc_bytes_reserve(out, LONGEST)) return false;
        if (byte >= MC_BYTE_WORD) {
            if (w.class && !end_run(&w)) return false;
            out->data[out->count++] = byte;
            text++;
            continue;
        }
        text += mc_utf8_decode(text, end, &c);
        mc_unicode_record record = mc_unicode_get(c);
        if (record.flags & normalizer->attention) {
            if (!put_changed(&w, c, record)) return false;
        } else {
            if (w.class && !end_run(&w)) return false;
            put(&w, c);
        }
    }
    return end_run(&w);
}

static void swap(mc_bytes *a, mc_bytes *b)
{
    mc_bytes was = *a;
    *a = *b;
    *b = was;
}

bool mc_tokenizer_normalize(const mc_tokenizer *tok, const uint8_t *text, size_t size,
                            mc_bytes *out, mc_bytes *spare, mc_bytes *before)
{
    if (tok->kind == MC_TOKENIZER_UNIGRAM)
        return mc_unigram_apply_steps(&tok->unigram, text, size, out, spare);
    out->count = 0;
    for (int i = 0; i < tok->form_count; i++) {
        swap(out, before);
        out->count = 0;
        if (!mc_unicode_apply_form(tok->forms[i], i ? before->data : text, i ? before->count : size,
                                   out, spare))
            return false;
    }
    if (tok->form_count && !tok->has_normalizer) return true;
    if (!tok->form_count) return mc_normalizer_run(&tok->normalizer, text, size, out, spare);
    swap(out, before);
    out->count = 0;
    return mc_normalizer_run(&tok->normalizer, before->data, before->count, out, spare);
}
