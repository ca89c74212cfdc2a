#include <string.h>
#include "core/base/json_internal.h"
#include "tokenizers/tokenizer_internal.h"

/* Text that is being put together from pieces. */
typedef struct joiner {
    const mc_unigram *u;
    const mc_decode_options *options;
    mc_bytes *text;
    mc_bytes bytes; /* of pieces that stand for one byte each */
    bool at_start;  /* SentencePiece's rules: the symbol of the text's first space is left out */
    size_t number;  /* Hugging Face's: of the token */
} joiner;

/* Appends a piece with spaces for their symbols, without its first `dropped` ones. */
static bool put_piece(mc_bytes *text, const char *piece, size_t size, size_t dropped)
{
    const char *end = piece + size;
    while (piece < end) {
        const char *symbol = memmem(piece, (size_t)(end - piece), MC_SPACE_SYMBOL, MC_SPACE_SIZE);
        const char *stop = symbol ? symbol : end;
        if (!mc_bytes_append(text, piece, (size_t)(stop - piece))) return false;
        if (!symbol) break;
        piece = symbol + MC_SPACE_SIZE;
        if (dropped)
            dropped--;
        else if (!mc_bytes_append(text, " ", 1))
            return false;
    }
    return true;
}

/* Appends the bytes that have come together, U+FFFD for each that is no part of a character. */
static bool put_bytes(joiner *j)
{
    bool ok = true;
    for (size_t at = 0, size; at < j->bytes.count && ok; at += size) {
        const char *p = (const char *)j->bytes.data + at;
        size = mc_utf8_length(p, j->bytes.count - at);
        if (size || j->options->raw_bytes) {
            size = size ? size : 1;
            ok = mc_bytes_append(j->text, p, size);
        } else {
            size = 1;
            ok = mc_bytes_append(j->text, "\xEF\xBF\xBD", 3);
        }
    }
    j->bytes.count = 0;
    return ok;
}

/* Appends them as Hugging Face does: U+FFFD for each of all of them where one is no part of a
 * character. */
static bool put_whole_bytes(joiner *j)
{
    const char *p = (const char *)j->bytes.data;
    bool ok = true, good = !j->bytes.count || mc_utf8_is_valid(p, j->bytes.count);
    if (good || j->options->raw_bytes)
        ok = mc_bytes_append(j->text, p, j->bytes.count);
    else
        for (size_t i = 0; i < j->bytes.count && ok; i++)
            ok = mc_bytes_append(j->text, "\xEF\xBF\xBD", 3);
    j->bytes.count = 0;
    return ok;
}

static bool is_hex(char c)
{
    return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f');
}

static bool is_byte(const char *piece)
{
    return strncmp(piece, "<0x", 3) == 0 && is_hex(piece[3]) && is_hex(piece[4]) &&
           strcmp(piece + 5, ">") == 0;
}

/* Of a byte's piece, "<0x41>". */
static uint8_t byte_of(const char *piece)
{
    unsigned byte = 0;
    for (int i = 3; i < 5; i++) {
        char c = piece[i];
        byte = byte << 4 | (unsigned)(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return (uint8_t)byte;
}

static bool put_by_sentencepiece(joiner *j, const mc_tokenizer *tok, int32_t id)
{
    const mc_unigram *u = j->u;
    bool piece = (size_t)id < u->count;
    int type = piece ? u->types[id] : MC_PIECE_CONTROL;
    const char *text = mc_tokenizer_id_to_token(tok, id);
    if (type == MC_PIECE_BYTE) {
        uint8_t byte = byte_of(text);
        return mc_bytes_append(&j->bytes, &byte, 1);
    }
    if (!put_bytes(j)) return false;
    if (j->text->count) j->at_start = false;
    if (type == MC_PIECE_UNKNOWN)
        return mc_bytes_append(j->text, u->unk_surface, strlen(u->unk_surface));
    int32_t added = tok->id_to_added[id];
    if (added >= 0 && tok->added[added].skipped && j->options->skip_special) return true;
    if (type == MC_PIECE_CONTROL) return mc_bytes_append(j->text, text, strlen(text));
    bool drops = j->at_start && (u->add_dummy_prefix || u->remove_extra_whitespaces) &&
                 !strncmp(text, MC_SPACE_SYMBOL, MC_SPACE_SIZE);
    /* where white space is squeezed, more of it may stand at the start, all of which goes */
    if (drops && !u->remove_extra_whitespaces) j->at_start = false;
    return put_piece(j->text, text, strlen(text), drops);
}

static bool put_by_metaspace(joiner *j, const mc_tokenizer *tok, int32_t id)
{
    const mc_unigram *u = j->u;
    int32_t added = tok->id_to_added[id];
    if (added >= 0 && tok->added[added].skipped && j->options->skip_special) return true;
    const char *text = added >= 0 ? mc_tokenizer_text(tok, tok->added[added].shown)
                                  : mc_tokenizer_id_to_token(tok, id);
    if (u->fuses && u->joins_bytes && is_byte(text)) {
        uint8_t byte = byte_of(text);
        return mc_bytes_append(&j->bytes, &byte, 1);
    }
    if (!put_whole_bytes(j)) return false;
    if (u->fuses) return put_piece(j->text, text, strlen(text), 0);
    bool first = j->number++ == 0;
    if (u->joins_plain) return mc_bytes_append(j->text, text, strlen(text));
    if (u->joins_spaces)
        return (first || mc_bytes_append(j->text, " ", 1)) &&
               mc_bytes_append(j->text, text, strlen(text));
    size_t dropped = first && u->decoder_prepend != MC_PREPEND_NEVER ? SIZE_MAX : 0;
    return put_piece(j->text, text, strlen(text), dropped);
}

bool mc_unigram_decode(const mc_tokenizer *tok, const int32_t *ids, size_t count,
                       const mc_decode_options *options, mc_bytes *text)
{
    const mc_unigram *u = &tok->unigram;
    joiner j = {.u = u, .options = options, .text = text, .at_start = true};
    bool ok = true;
    for (size_t i = 0; i < count && ok; i++) {
        if (!mc_tokenizer_id_to_token(tok, ids[i])) continue;
        ok = u->single ? put_by_sentencepiece(&j, tok, ids[i]) : put_by_metaspace(&j, tok, ids[i]);
    }
    ok = ok && (u->single ? put_bytes(&j) : put_whole_bytes(&j));
    mc_bytes_release(&j.bytes);
    size_t spaces = 0;
    while (ok && (int64_t)spaces < u->strips && spaces < text->count && text->data[spaces] == ' ')
        spaces++;
    if (spaces) memmove(text->data, text->data + spaces, text->count -= spaces);
    return ok;
}
