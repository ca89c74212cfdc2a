#include "tokenizers/tokenizer_internal.h"
#include "tokenizers/details.h"

#include <string.h>

bool mc_encoder_grow(mc_encoder *encoder)
{
    mc_encoding *out = encoder->out;
    size_t wanted = out->capacity ? out->capacity * 2 : 512;
    int32_t *ids = wanted > out->capacity && wanted <= SIZE_MAX / sizeof *ids
                       ? mc_realloc(out->ids, wanted * sizeof *ids)
                       : NULL;
    if (ids) out->ids = ids;
    uint8_t *type_ids = ids ? mc_realloc(out->type_ids, wanted) : NULL;
    if (type_ids) out->type_ids = type_ids;
    if (!type_ids) {
        mc_encoder_stop(encoder, MC_ERR_NOMEM);
        return false;
    }
    out->capacity = wanted;
    return true;
}

bool mc_encoder_reserve(mc_encoder *encoder, size_t more)
{
    while (encoder->out->capacity - encoder->out->count < more)
        if (!mc_encoder_grow(encoder)) return false;
    return true;
}

/* A place where an added token was found. */
typedef struct match {
    const uint8_t *start, *end; /* with the white space it takes in */
    const mc_added_token *token;
} match;

static bool is_word(uint32_t c) { return mc_unicode_get(c).flags & MC_UNICODE_WORD; }
static bool is_space(uint32_t c) { return mc_unicode_get(c).flags & MC_UNICODE_SPACE; }

static bool stands_alone(const uint8_t *text, const uint8_t *end, const uint8_t *from,
                         const uint8_t *to)
{
    uint32_t after;
    if (from > text && is_word(mc_utf8_decode_last(text, from))) return false;
    if (to == end) return true;
    mc_utf8_decode(to, end, &after);
    return !is_word(after);
}

static const uint8_t *skip_space_before(const uint8_t *low, const uint8_t *p)
{
    while (p > low) {
        uint8_t bytes[4];
        uint32_t c = mc_utf8_decode_last(low, p);
        if (!is_space(c)) break;
        p -= mc_utf8_encode(c, bytes);
    }
    return p;
}

static const uint8_t *skip_space_after(const uint8_t *p, const uint8_t *end)
{
    while (p < end) {
        uint32_t c;
        size_t length = mc_utf8_decode(p, end, &c);
        if (!is_space(c)) break;
        p += length;
    }
    return p;
}

/* The next place at or after p where a token can begin, or NULL. */
static const uint8_t *next_candidate(const mc_matcher *matcher, const uint8_t *p,
                                     const uint8_t *end)
{
    if (matcher->only_first >= 0)
        return p < end ? memchr(p, matcher->only_first, (size_t)(end - p)) : NULL;
    while (p < end && !matcher->first[*p]) p++;
    return p < end ? p : NULL;
}

/* Finds the next token in [*scan, end) of the text that begins at `text`. `done` is how far the
 * text has been dealt with: it lies past *scan only where a token took in white space. A token that
 * should stand alone and does not is skipped whole. */
static bool find_match(const mc_tokenizer *tok, const mc_matcher *matcher, const uint8_t *text,
                       const uint8_t *end, const uint8_t *done, const uint8_t **scan, match *found)
{
    const uint8_t *p = *scan;
    if (!matcher->count) return false;
    while ((p = next_candidate(matcher, p, end))) {
        size_t length;
        int32_t index =
            mc_trie_longest(&matcher->trie, MC_TRIE_ROOT, p, (size_t)(end - p), &length);
        if (index < 0) {
            p++;
            continue;
        }
        const mc_added_token *token = &tok->added[index];
        const uint8_t *start = p;
        p += length;
        if (token->single_word && !stands_alone(text, end, start, p)) continue;
        *scan = p;
        *found = (match){start, p, token};
        if (token->lstrip) found->start = start > done ? skip_space_before(done, start) : done;
        if (token->rstrip) found->end = skip_space_after(p > done ? p : done, end);
        return true;
    }
    return false;
}

typedef void encode_piece(mc_encoder *e, const uint8_t *text, size_t size);

/* Cuts the matcher's tokens out of a text and hands what lies between them to `piece`. */
static void encode_around(mc_encoder *e, const mc_matcher *matcher, const uint8_t *text,
                          size_t size, encode_piece *piece)
{
    const uint8_t *end = text + size, *done = text, *scan = text;
    match found;
    while (!e->stopped && find_match(e->tok, matcher, text, end, done, &scan, &found)) {
        if (found.start > done) piece(e, done, (size_t)(found.start - done));
        /* a token of white space may be used up by the one before it */
        if (!e->stopped && found.start < found.end) mc_encoder_push(e, found.token->id);
        done = found.end;
    }
    if (done < end && !e->stopped) piece(e, done, (size_t)(end - done));
}

static void encode_normal_piece(mc_encoder *e, const uint8_t *text, size_t size)
{
    if (e->tok->kind == MC_TOKENIZER_BYTE_BPE) {
        mc_bpe_encode(e, text, size);
    } else if (e->tok->kind == MC_TOKENIZER_UNIGRAM) {
        e->at_start = e->at_start && text == e->out->scratch->text.data;
        mc_unigram_encode_normal(e, text, size);
    } else {
        mc_wordpiece_encode(e, &e->tok->identity, text, size);
    }
}

/* Text between the tokens that are looked for in the text as it stands. */
static void encode_raw_piece(mc_encoder *e, const uint8_t *text, size_t size)
{
    const mc_tokenizer *tok = e->tok;
    if (tok->kind == MC_TOKENIZER_CPM) {
        mc_cpm_encode(e, text, size);
        return;
    }
    e->at_start = text == e->text;
    if (tok->kind == MC_TOKENIZER_BYTE_BPE && !tok->form_count) { /* as it is, it is normal */
        encode_around(e, &tok->normalized, text, size, encode_normal_piece);
        return;
    }
    if (!tok->normalized.count && !tok->form_count) {
        if (tok->kind == MC_TOKENIZER_UNIGRAM)
            mc_unigram_encode(e, text, size);
        else
            mc_wordpiece_encode(e, &tok->normalizer, text, size);
        return;
    }
    struct mc_encode_scratch *scratch = e->out->scratch;
    if (!mc_tokenizer_normalize(tok, text, size, &scratch->text, &scratch->spare,
                                &scratch->before)) {
        mc_encoder_stop(e, MC_ERR_NOMEM);
        return;
    }
    encode_around(e, &tok->normalized, scratch->text.data, scratch->text.count,
                  encode_normal_piece);
}

/* Appends the ids of one text; stops after the first word (an added token is none) with which
 * there are `most` or more of them. */
static size_t encode_text(mc_encoder *e, const char *text, size_t size, size_t most)
{
    size_t before = e->out->count;
    e->limit = most < SIZE_MAX - before ? before + most : SIZE_MAX;
    e->stopped = false;
    e->text = (const uint8_t *)text;
    encode_around(e, &e->tok->raw, (const uint8_t *)text, size, encode_raw_piece);
    return e->out->count - before;
}

/* Cuts a pair longest first, so that both end up within `room` together. Lengths are those of texts
 * that encode_text cut short already, as in Hugging Face's tokenizers 0.23.1: it decides which of
 * two long texts gets the odd id of an odd room. */
static void truncate_pair(size_t room, size_t *a, size_t *b)
{
    if (*a <= room && *b <= room - *a) return;
    bool swapped = *a > *b;
    size_t shorter = swapped ? *b : *a;
    if (shorter > room / 2) shorter = room / 2;
    *a = swapped ? room - shorter : shorter;
    *b = swapped ? shorter : room - shorter;
}

static void put_specials(mc_encoding *out, size_t *at, const mc_template_special *specials,
                         int count)
{
    for (int i = 0; i < count; i++, ++*at) {
        out->ids[*at] = specials[i].id;
        out->type_ids[*at] = specials[i].type_id;
    }
}

/* Keeps the last of the `a_had` and `b_had` ids of A and B, where truncation cuts the start. */
static void keep_ends(mc_encoding *out, size_t a, size_t a_had, size_t b_start, size_t b,
                      size_t b_had)
{
    memmove(out->ids, out->ids + (a_had - a), a * sizeof *out->ids);
    memmove(out->ids + b_start, out->ids + b_start + (b_had - b), b * sizeof *out->ids);
}

/* ids holds A at the front and B at `b_start`: moves them to their places among the specials. */
static void assemble(mc_encoding *out, const mc_template *t, size_t a, size_t b_start, size_t b)
{
    size_t a_at = (size_t)t->prefix_count, middle_at = a_at + a;
    size_t b_at = middle_at + (size_t)t->middle_count, suffix_at = b_at + b, at = 0;
    if (b_at > b_start) { /* B moves right, out of the way of A */
        memmove(out->ids + b_at, out->ids + b_start, b * sizeof *out->ids);
        memmove(out->ids + a_at, out->ids, a * sizeof *out->ids);
    } else {
        memmove(out->ids + a_at, out->ids, a * sizeof *out->ids);
        memmove(out->ids + b_at, out->ids + b_start, b * sizeof *out->ids);
    }
    memset(out->type_ids + a_at, t->type_a, a);
    memset(out->type_ids + b_at, t->type_b, b);
    put_specials(out, &at, t->prefix, t->prefix_count);
    put_specials(out, &middle_at, t->middle, t->middle_count);
    put_specials(out, &suffix_at, t->suffix, t->suffix_count);
    out->count = suffix_at;
}

static mc_status encode_template(mc_encoder *e, const mc_template *t, const char *text,
                                 size_t text_length, const char *pair, size_t pair_length,
                                 size_t max_length)
{
    mc_encoding *out = e->out;
    size_t specials = (size_t)(t->prefix_count + t->middle_count + t->suffix_count);
    size_t most = max_length && !e->tok->cuts_left ? max_length : SIZE_MAX;
    size_t room = max_length ? max_length - specials : SIZE_MAX;
    size_t a = encode_text(e, text, text_length, most), b_start = a, b = 0;
    if (pair && !e->status) b = encode_text(e, pair, pair_length, most);
    while (!e->status && (!out->ids || out->capacity < out->count + specials)) mc_encoder_grow(e);
    if (e->status) return e->status;
    size_t a_had = a, b_had = b;
    if (pair)
        truncate_pair(room, &a, &b);
    else if (a > room)
        a = room;
    if (e->tok->cuts_left && out->ids) keep_ends(out, a, a_had, b_start, b, b_had);
    assemble(out, t, a, b_start, b);
    return MC_OK;
}

static bool make_scratch(mc_encoding *encoding)
{
    if (!encoding->scratch) encoding->scratch = mc_calloc(1, sizeof *encoding->scratch);
    return encoding->scratch != NULL;
}

mc_status mc_tokenizer_encode(const mc_tokenizer *tok, const char *text, size_t text_length,
                              const char *pair, size_t pair_length, size_t max_length,
                              mc_encoding *encoding)
{
    if (!encoding) return MC_ERR_ARGUMENT;
    encoding->count = 0;
    if (!tok || (!text && text_length)) return MC_ERR_ARGUMENT;
    const mc_template *t = pair ? &tok->pair : &tok->single;
    size_t specials = (size_t)(t->prefix_count + t->middle_count + t->suffix_count);
    if (max_length && max_length < specials) return MC_ERR_ARGUMENT;
    if (!make_scratch(encoding)) return MC_ERR_NOMEM;
    mc_encoder e = {.tok = tok, .out = encoding};
    mc_status status = encode_template(&e, t, text, text_length, pair, pair_length, max_length);
    if (status) encoding->count = 0;
    return status;
}

mc_status mc_tokenizer_append(const mc_tokenizer *tok, const char *text, size_t length,
                              mc_encoding *encoding)
{
    if (!tok || !encoding || (!text && length)) return MC_ERR_ARGUMENT;
    if (!make_scratch(encoding)) return MC_ERR_NOMEM;
    mc_encoder e = {.tok = tok, .out = encoding};
    size_t before = encoding->count;
    encode_text(&e, text, length, SIZE_MAX);
    if (e.status)
        encoding->count = before;
    else if (encoding->count > before)
        memset(encoding->type_ids + before, 0, encoding->count - before);
    return e.status;
}

mc_status mc_tokenizer_check(const mc_tokenizer *tok, mc_error *err, const int32_t *ids,
                             size_t count, int64_t vocabulary)
{
    for (size_t i = 0; i < count; i++) {
        if (ids[i] >= 0 && ids[i] < vocabulary) continue;
        const char *token = mc_tokenizer_id_to_token(tok, ids[i]);
        return mc_error_set(err, MC_ERR_ARGUMENT,
                            "%s: token \"%.80s\" has id %d, but the model has %lld tokens where "
                            "the tokenizer has %d",
                            tok->path, token ? token : "", ids[i], (long long)vocabulary,
                            mc_tokenizer_vocab_size(tok));
    }
    return MC_OK;
}

mc_status mc_tokenizer_check_ids(const mc_tokenizer *tok, const int32_t *ids, size_t count,
                                 int64_t vocabulary)
{
    if (!tok) return MC_ERR_ARGUMENT;
    if (mc_failed(tok->ctx)) return mc_error_status(tok->ctx);
    if (!ids && count)
        return mc_fail(tok->ctx, MC_ERR_ARGUMENT, "checking %zu ids: they are NULL", count);
    return mc_tokenizer_check(tok, &tok->ctx->error, ids, count, vocabulary);
}

static bool holds_white_space(const mc_tokenizer *tok, mc_entry entry)
{
    const uint8_t *p = tok->pool.data + entry.offset, *end = p + entry.length;
    while (p < end) {
        uint32_t c;
        p += mc_utf8_decode(p, end, &c);
        if (mc_unicode_get(c).flags & (MC_UNICODE_WHITE | MC_UNICODE_SPACE)) return true;
    }
    return false;
}

/* Whether a text can be cut in front of white space without cutting an added token, or what one
 * takes in. */
static bool allows_cuts(const mc_tokenizer *tok)
{
    if (tok->whole_texts) return false;
    for (size_t i = 0; i < tok->added_count; i++) {
        const mc_added_token *token = &tok->added[i];
        if (token->rstrip || holds_white_space(tok, token->entry) ||
            holds_white_space(tok, token->shown))
            return false;
    }
    return true;
}

size_t mc_tokenizer_cut(const mc_tokenizer *tok, const char *text, size_t length, size_t from)
{
    const uint8_t *start = (const uint8_t *)text, *end = start + length;
    if (!tok || !text || from >= length || tok->form_count || !allows_cuts(tok)) return length;
    bool unigram = tok->kind == MC_TOKENIZER_UNIGRAM;
    if (unigram && !mc_unigram_allows_cuts(tok)) return length;
    bool bytes = tok->kind == MC_TOKENIZER_BYTE_BPE,
         line = !bytes || mc_bpe_allows_cuts(&tok->bpe, true);
    if (bytes && !mc_bpe_allows_cuts(&tok->bpe, false)) return length;
    for (const uint8_t *p = start + (from ? from : 1); p < end; p++) {
        /* a text that begins with a line break may get a space in front, one with a space never */
        if (*p != ' ' && (*p != '\n' || !line || tok->bpe.add_prefix_space)) continue;
        if (unigram && !mc_unigram_cuts_before(&tok->unigram, start, p, end)) continue;
        uint16_t before = mc_unicode_get(mc_utf8_decode_last(start, p)).flags;
        if (!(before & (MC_UNICODE_WHITE | MC_UNICODE_SPACE))) return (size_t)(p - start);
    }
    return length;
}

void mc_encoding_release(mc_encoding *encoding)
{
    if (!encoding) return;
    if (encoding->scratch) {
        mc_bpe_scratch_release(&encoding->scratch->bpe);
        mc_jieba_scratch_release(&encoding->scratch->jieba);
        mc_unigram_scratch_release(&encoding->scratch->unigram);
        mc_bytes_release(&encoding->scratch->word);
        mc_bytes_release(&encoding->scratch->text);
        mc_bytes_release(&encoding->scratch->spare);
        mc_bytes_release(&encoding->scratch->before);
    }
    mc_free(encoding->scratch);
    mc_free(encoding->ids);
    mc_free(encoding->type_ids);
    *encoding = (mc_encoding){0};
}
