/* Fairseq's numbers for the pieces of a SentencePiece model: XLM-R and CamemBERT have special
 * tokens in front, then the pieces without the model's own first ones, then <mask>.
 *
 *   id          0               1      2                3      4               5, 6, ...
 *   XLM-R       <s>             <pad>  </s>             <unk>  piece 3, 4, ...
 *   CamemBERT   <s>NOTUSED      <pad>  </s>NOTUSED      <unk>  <unk>NOTUSED    piece 1, 2, ... */
#include <string.h>
#include "tokenizers/files/parts_internal.h"
#include "tokenizers/files/settings_internal.h"

enum { UNK = 3, FRONT_MAX = 5 };

typedef struct front {
    const char *tokens[FRONT_MAX];
    size_t count;
    size_t dropped; /* pieces of the model that they stand for */
} front;

static front front_of(const mc_tokenizer *tok)
{
    if (mc_settings_class(tok) == MC_CLASS_CAMEMBERT)
        return (front){
            {"<s>NOTUSED", tok->pad_token, "</s>NOTUSED", tok->unk_token, "<unk>NOTUSED"}, 5, 1};
    return (front){{tok->bos_token, tok->pad_token, tok->eos_token, tok->unk_token}, 4, 3};
}

static mc_status check_model(const mc_tokenizer *tok, mc_error *err, const char *path,
                             const front *f)
{
    const mc_unigram *u = &tok->unigram;
    const char *class = tok->settings->class_name;
    bool first = u->unk_id == 0 && u->count > f->dropped;
    if (!*class) class = f->count == 4 ? "XLMRobertaTokenizer" : "CamembertTokenizer";
    if (u->bpe || u->by_library)
        return mc_error_set(err, MC_ERR_UNSUPPORTED,
                            "%s: a model of another type than Unigram is not supported for a %s",
                            path, class);
    for (size_t id = 1; id < f->dropped; id++) first = first && u->types[id] == MC_PIECE_CONTROL;
    if (first) return MC_OK;
    return mc_error_set(err, MC_ERR_FORMAT,
                        "%s: expected <unk>, <s> and </s> as the first pieces, after which a %s "
                        "numbers the others",
                        path, class);
}

/* Makes room: pieces move to their new ids. */
static bool move_pieces(mc_tokenizer *tok, mc_error *err, const char *path, const front *f)
{
    mc_unigram *u = &tok->unigram;
    size_t moved = tok->entry_count - f->dropped, count = f->count + moved + 1;
    if (mc_unigram_reserve(u, err, path, count)) return false;
    mc_entry *entries = mc_realloc(tok->entries, count * sizeof *entries);
    if (!entries) return false;
    tok->entries = entries;
    tok->entry_capacity = tok->entry_count = count;
    memmove(entries + f->count, entries + f->dropped, moved * sizeof *entries);
    memmove(u->scores + f->count, u->scores + f->dropped, moved * sizeof *u->scores);
    memmove(u->types + f->count, u->types + f->dropped, moved * sizeof *u->types);
    return true;
}

static bool put_token(mc_tokenizer *tok, size_t id, const char *text)
{
    tok->unigram.scores[id] = 0;
    tok->unigram.types[id] = id == UNK ? MC_PIECE_UNKNOWN : MC_PIECE_CONTROL;
    return mc_tokenizer_store(tok, text, strlen(text), &tok->entries[id]);
}

mc_status mc_fairseq_number(mc_tokenizer *tok, mc_error *err, const char *path)
{
    const front f = front_of(tok);
    if (check_model(tok, err, path, &f)) return err->status;
    bool ok = move_pieces(tok, err, path, &f);
    for (size_t id = 0; id < f.count && ok; id++) ok = put_token(tok, id, f.tokens[id]);
    ok = ok && put_token(tok, tok->entry_count - 1, tok->mask_token);
    tok->unigram.unk_id = UNK;
    tok->unigram.fairseq = true;
    return ok ? MC_OK : mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for the pieces", path);
}
