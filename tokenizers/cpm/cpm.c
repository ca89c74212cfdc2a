/* CPM-1's and CPM-2's tokenizers, as ModelCenter's CPM1Tokenizer and CPM2Tokenizer define them:
 * words of jieba, and in each word the longest entries from the left. A space and a line break are
 * tokens; characters that no entry begins with are one <unk> each, words of more than 200
 * characters one as a whole. */
#include "tokenizers/tokenizer_internal.h"

#include <stdio.h>
#include <string.h>

enum { WORD_MAX = 200 }; /* characters */

/* What stands for a space and a line break where jieba sees the text: characters that it leaves
 * alone. Written in a text they are a space and a line break, too. */
static const char hidden_space[] = "\xef\xbf\xb2", hidden_line[] = "\xef\xbf\xb3";

typedef struct cpm_names {
    const char *known_by, *space, *line;
} cpm_names;

static const cpm_names variants[] = {{"</_>", "</_>", "</n>"}, {"<s_0>", "\u2582", "\u2583"}};

/* ---- Opening --------------------------------------------------------------------------------- */

static const cpm_names *find_variant(const mc_tokenizer *tok)
{
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++)
        for (size_t i = 0; i < tok->entry_count; i++)
            if (strcmp(mc_tokenizer_text(tok, tok->entries[i]), variants[v].known_by) == 0)
                return &variants[v];
    return NULL;
}

bool mc_cpm_is(const mc_tokenizer *tok) { return find_variant(tok) != NULL; }

/* Python's strip(): the lines' ends are cut already, here go their beginnings. */
static mc_status strip_entries(mc_tokenizer *tok, mc_error *err, const char *path)
{
    for (size_t i = 0; i < tok->entry_count; i++) {
        mc_entry *entry = &tok->entries[i];
        const uint8_t *start = tok->pool.data + entry->offset, *end = start + entry->length, *p;
        uint32_t c = 0;
        size_t length = 0;
        for (p = start; p < end; p += length) {
            length = mc_utf8_decode(p, end, &c);
            if (!(mc_unicode_get(c).flags & (MC_UNICODE_WHITE | MC_UNICODE_SPACE))) break;
        }
        entry->offset += (size_t)(p - start);
        entry->length -= (uint32_t)(p - start);
        if (!entry->length)
            return mc_error_set(err, MC_ERR_FORMAT, "%s:%zu: an entry of white space alone", path,
                                i + 1);
    }
    return MC_OK;
}

static bool set_names(mc_tokenizer *tok)
{
    return mc_tokenizer_set_string(&tok->unk_token, "<unk>") &&
           mc_tokenizer_set_string(&tok->cls_token, "<s>") &&
           mc_tokenizer_set_string(&tok->sep_token, "</s>") &&
           mc_tokenizer_set_string(&tok->pad_token, "<pad>") &&
           mc_tokenizer_set_string(&tok->mask_token, "<mask>") &&
           mc_tokenizer_set_string(&tok->bos_token, "<s>") &&
           mc_tokenizer_set_string(&tok->eos_token, "<eod>") &&
           mc_tokenizer_set_string(&tok->prefix, "");
}

mc_status mc_cpm_load(mc_tokenizer *tok, mc_error *err, const char *path)
{
    const cpm_names *names = find_variant(tok);
    tok->kind = MC_TOKENIZER_CPM;
    tok->cpm.space = names->space;
    tok->cpm.line = names->line;
    tok->added_count = 0; /* special tokens are not looked for in a text */
    tok->has_templates = true;
    tok->pair.type_b = 1;
    if (tok->has_empty)
        return mc_error_set(err, MC_ERR_FORMAT, "%s:%zu: empty entry", path, tok->empty_id + 1);
    if (strip_entries(tok, err, path)) return err->status;
    if (!set_names(tok))
        return mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for the vocabulary", path);
    if (mc_tokenizer_finish(tok, err, path, true)) return err->status;
    if (mc_jieba_open(err, &tok->cpm.jieba))
        mc_error_while(err, "opening %s, CPM-%d's vocabulary", path, (int)(names - variants) + 1);
    return err->status;
}

static mc_status find_entry(const mc_tokenizer *tok, mc_error *err, const char *path,
                            const char *text, int32_t *id)
{
    *id = mc_tokenizer_token_to_id(tok, text);
    if (*id >= 0) return MC_OK;
    return mc_error_set(err, MC_ERR_FORMAT, "%s: CPM's vocabulary has no entry \"%s\"", path, text);
}

static void count_sentinels(mc_tokenizer *tok)
{
    mc_cpm *cpm = &tok->cpm;
    char name[32] = "<s_0>";
    cpm->first_sentinel = mc_tokenizer_token_to_id(tok, name);
    while (cpm->first_sentinel >= 0 &&
           mc_tokenizer_token_to_id(tok, name) == cpm->first_sentinel + (int32_t)cpm->sentinels)
        snprintf(name, sizeof name, "<s_%zu>", ++cpm->sentinels);
}

mc_status mc_cpm_finish(mc_tokenizer *tok, mc_error *err, const char *path)
{
    mc_cpm *cpm = &tok->cpm;
    if (find_entry(tok, err, path, tok->unk_token, &tok->unk_id) ||
        find_entry(tok, err, path, tok->pad_token, &tok->pad_id) ||
        find_entry(tok, err, path, tok->eos_token, &tok->eos_id) ||
        find_entry(tok, err, path, cpm->space, &cpm->space_id) ||
        find_entry(tok, err, path, cpm->line, &cpm->line_id))
        return err->status;
    if (mc_tokenizer_token_to_id(tok, hidden_space) >= 0 ||
        mc_tokenizer_token_to_id(tok, hidden_line) >= 0)
        return mc_error_set(err, MC_ERR_FORMAT,
                            "%s: U+FFF2 or U+FFF3 is an entry, which CPM keeps for spaces", path);
    tok->cls_id = mc_tokenizer_token_to_id(tok, tok->cls_token);
    tok->sep_id = mc_tokenizer_token_to_id(tok, tok->sep_token);
    count_sentinels(tok);
    const char *stops[] = {" ", "\n", hidden_space, hidden_line, cpm->space, cpm->line};
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) cpm->stops[(uint8_t)*stops[i]] = true;
    return MC_OK;
}

/* ---- Encoding -------------------------------------------------------------------------------- */

static bool begins_with(const uint8_t *text, size_t size, const char *token)
{
    size_t length = strlen(token);
    return size >= length && memcmp(text, token, length) == 0;
}

static bool encode_word(void *user, const uint8_t *word, size_t size, size_t chars)
{
    mc_encoder *e = user;
    const mc_tokenizer *tok = e->tok;
    if (chars > WORD_MAX) {
        mc_encoder_push(e, tok->unk_id);
        size = 0;
    }
    while (size && !e->stopped) {
        size_t matched = 1;
        int32_t id = mc_trie_longest(&tok->trie, MC_TRIE_ROOT, word, size, &matched);
        if (id < 0)
            for (matched = 1; matched < size && (word[matched] & 0xC0) == 0x80;) matched++;
        mc_encoder_push(e, id < 0 ? tok->unk_id : id);
        word += matched;
        size -= matched;
    }
    if (e->out->count >= e->limit) e->stopped = true;
    return !e->stopped;
}

/* How many bytes of a space, a line break or a token for one begin the text; 0: none do. */
static size_t match_break(const mc_cpm *cpm, const uint8_t *text, size_t size, int32_t *id)
{
    const char *spaces[] = {" ", cpm->space, hidden_space},
               *lines[] = {"\n", cpm->line, hidden_line};
    for (size_t i = 0; i < 3; i++) {
        *id = cpm->space_id;
        if (begins_with(text, size, spaces[i])) return strlen(spaces[i]);
        *id = cpm->line_id;
        if (begins_with(text, size, lines[i])) return strlen(lines[i]);
    }
    return 0;
}

/* jieba cuts at spaces and line breaks in any case, so they need not be hidden from it: it gets
 * what is between them. */
void mc_cpm_encode(mc_encoder *e, const uint8_t *text, size_t size)
{
    const mc_cpm *cpm = &e->tok->cpm;
    const uint8_t *end = text + size;
    while (text < end && !e->stopped) {
        const uint8_t *p = text;
        size_t length = 0;
        int32_t id = -1;
        for (; p < end; p++) {
            if (!cpm->stops[*p]) continue;
            length = match_break(cpm, p, (size_t)(end - p), &id);
            if (length) break;
        }
        mc_status status = mc_jieba_cut(&cpm->jieba, &e->out->scratch->jieba, text,
                                        (size_t)(p - text), encode_word, e);
        if (status) mc_encoder_stop(e, status);
        if (length && !e->stopped) {
            mc_encoder_push(e, id);
            if (e->out->count >= e->limit) e->stopped = true;
        }
        text = p + length;
    }
}

/* ---- Decoding -------------------------------------------------------------------------------- */

/* Whether an id stands for no text; <unk> does. */
static bool is_special(const mc_tokenizer *tok, int32_t id)
{
    static const char *const names[] = {"<pad>", "<s>", "</s>", "<sep>", "<eod>", "<mask>"};
    const mc_cpm *cpm = &tok->cpm;
    if (cpm->first_sentinel >= 0 && id >= cpm->first_sentinel &&
        (size_t)(id - cpm->first_sentinel) < cpm->sentinels)
        return true;
    const char *token = mc_tokenizer_id_to_token(tok, id);
    for (size_t i = 0; *token == '<' && i < sizeof names / sizeof *names; i++)
        if (strcmp(token, names[i]) == 0) return true;
    return false;
}

/* Tokens for spaces and line breaks are looked for in the text of all: ModelCenter finds them where
 * several pieces make one up, too. */
static void show_breaks(const mc_cpm *cpm, mc_bytes *text)
{
    size_t out = 0;
    for (size_t in = 0, length; in < text->count; in += length) {
        int32_t id = -1;
        length = cpm->stops[text->data[in]]
                     ? match_break(cpm, text->data + in, text->count - in, &id)
                     : 0;
        text->data[out++] = !length ? text->data[in] : id == cpm->space_id ? ' ' : '\n';
        if (!length) length = 1;
    }
    text->count = out;
}

bool mc_cpm_decode(const mc_tokenizer *tok, const int32_t *ids, size_t count, bool skip_special,
                   mc_bytes *text)
{
    for (size_t i = 0; i < count; i++) {
        const char *token = mc_tokenizer_id_to_token(tok, ids[i]);
        if (!token || (skip_special && is_special(tok, ids[i]))) continue;
        if (!mc_bytes_append(text, token, strlen(token))) return false;
    }
    show_breaks(&tok->cpm, text);
    return true;
}
