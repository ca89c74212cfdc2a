/* A SentencePiece BPE model as a tokenizer.json, for transformers: its classes read every .model as
 * Unigram, whatever the model's type.
 *
 * SentencePiece joins the two neighbours that make the piece of the highest score, whatever parts
 * the piece was trained from. A tokenizer.json has pairs in an order instead: all ways to cut each
 * piece in two, the pieces by falling score. */
#include <stdlib.h>
#include "tokenizers/files/save_internal.h"

typedef struct split {
    double score; /* of the result */
    int32_t result, left, right;
} split;

typedef struct split_list {
    split *items;
    size_t count, capacity;
} split_list;

bool mc_sentencepiece_has_json(const mc_tokenizer *tok)
{
    const mc_unigram *u = &tok->unigram;
    return u->bpe && u->add_dummy_prefix && u->remove_extra_whitespaces && u->escape_whitespaces &&
           !u->whitespace_as_suffix;
}

static bool is_normal(const mc_tokenizer *tok, int64_t id)
{
    return id >= 0 && (size_t)id < tok->unigram.count && tok->unigram.types[id] == MC_PIECE_NORMAL;
}

static int64_t find_piece(const mc_tokenizer *tok, const char *text, size_t length)
{
    int64_t id = mc_trie_find(&tok->trie, (const uint8_t *)text, length);
    return is_normal(tok, id) ? id : -1;
}

/* Adds the ways to cut piece `id` in two pieces. */
static bool add_splits(const mc_tokenizer *tok, split_list *list, size_t id)
{
    const char *text = mc_tokenizer_text(tok, tok->entries[id]);
    size_t length = tok->entries[id].length;
    for (size_t at = 1; at < length; at++) {
        int64_t left = find_piece(tok, text, at);
        int64_t right = left < 0 ? -1 : find_piece(tok, text + at, length - at);
        if (right < 0) continue;
        if (!mc_grow(&list->items, &list->capacity, list->count, sizeof *list->items)) return false;
        list->items[list->count++] = (split){.score = tok->unigram.scores[id],
                                             .result = (int32_t)id,
                                             .left = (int32_t)left,
                                             .right = (int32_t)right};
    }
    return true;
}

static int by_score(const void *first, const void *second)
{
    const split *a = first, *b = second;
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    if (a->result != b->result) return a->result < b->result ? -1 : 1;
    return a->left != b->left ? (a->left < b->left ? -1 : 1)
                              : (a->right > b->right) - (a->right < b->right);
}

static void write_merges(const mc_tokenizer *tok, mc_file_writer *w)
{
    split_list list = {0};
    bool good = true;
    for (size_t id = 0; id < tok->unigram.count && good; id++)
        if (is_normal(tok, (int64_t)id)) good = add_splits(tok, &list, id);
    if (!good) mc_error_set(w->err, MC_ERR_NOMEM, "%s: out of memory for the merges", w->path);
    if (list.count) qsort(list.items, list.count, sizeof *list.items, by_score);
    for (size_t i = 0; i < list.count && good; i++) {
        mc_save_text(w, i ? ",\n    [" : "\n    [");
        mc_save_string(w, mc_tokenizer_text(tok, tok->entries[list.items[i].left]));
        mc_save_text(w, ", ");
        mc_save_string(w, mc_tokenizer_text(tok, tok->entries[list.items[i].right]));
        mc_save_text(w, "]");
    }
    mc_free(list.items);
}

static void write_model(const mc_tokenizer *tok, mc_file_writer *w)
{
    mc_save_text(w, "  \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": ");
    mc_save_string(w, mc_tokenizer_text(tok, tok->entries[tok->unigram.unk_id]));
    mc_save_format(w,
                   ", \"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, "
                   "\"fuse_unk\": true, \"byte_fallback\": %s, \"ignore_merges\": false,\n",
                   mc_save_bool(tok->unigram.byte_fallback));
    mc_save_text(w, "  \"vocab\": {");
    for (size_t id = 0, written = 0; id < tok->unigram.count; id++) {
        if (!mc_tokenizer_holds(tok, id)) continue;
        mc_save_text(w, written++ ? ",\n    " : "\n    ");
        mc_save_string(w, mc_tokenizer_text(tok, tok->entries[id]));
        mc_save_format(w, ": %zu", id);
    }
    mc_save_text(w, "},\n  \"merges\": [");
    write_merges(tok, w);
    mc_save_text(w, "]}\n");
}

static void write_base64(mc_file_writer *w, const uint8_t *bytes, size_t size)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < size; i += 3) {
        size_t here = size - i < 3 ? size - i : 3;
        uint32_t three = (uint32_t)bytes[i] << 16 | (here > 1 ? (uint32_t)bytes[i + 1] << 8 : 0) |
                         (here > 2 ? bytes[i + 2] : 0);
        char four[4] = {digits[three >> 18], digits[three >> 12 & 63], digits[three >> 6 & 63],
                        digits[three & 63]};
        for (size_t pad = here + 1; pad < 4; pad++) four[pad] = '=';
        mc_file_write(w, four, sizeof four);
    }
}

/* The table of normal forms, in the layout that mc_charsmap describes. */
static void write_charsmap(const mc_charsmap *map, mc_file_writer *w)
{
    mc_bytes all = {0};
    uint32_t size = (uint32_t)(map->unit_count * sizeof *map->units);
    uint8_t number[4];
    bool good = true;
    for (size_t i = 0; i <= map->unit_count && good; i++) {
        uint32_t unit = i ? map->units[i - 1] : size;
        for (int b = 0; b < 4; b++) number[b] = (uint8_t)(unit >> 8 * b);
        good = mc_bytes_append(&all, number, sizeof number);
    }
    good = good && mc_bytes_append(&all, map->forms, map->forms_size);
    if (!good) mc_error_set(w->err, MC_ERR_NOMEM, "%s: out of memory for the table", w->path);
    if (good) write_base64(w, all.data, all.count);
    mc_bytes_release(&all);
}

static void write_normalizer(const mc_tokenizer *tok, mc_file_writer *w)
{
    mc_save_text(w, "  \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [\n");
    if (tok->unigram.charsmap.units) {
        mc_save_text(w, "    {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"");
        write_charsmap(&tok->unigram.charsmap, w);
        mc_save_text(w, "\"},\n");
    }
    mc_save_text(w, "    {\"type\": \"Strip\", \"strip_left\": true, \"strip_right\": true},\n"
                    "    {\"type\": \"Replace\", \"pattern\": {\"Regex\": \" {2,}\"}, "
                    "\"content\": \" \"}]},\n");
}

void mc_sentencepiece_write_json(const mc_tokenizer *tok, mc_file_writer *w)
{
    static const char metaspace[] = "{\"type\": \"Metaspace\", \"replacement\": \"" MC_SPACE_SYMBOL
                                    "\", \"prepend_scheme\": \"always\", \"split\": true}";
    mc_save_text(w, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n");
    mc_save_added(tok, w);
    write_normalizer(tok, w);
    mc_save_text(w, "  \"pre_tokenizer\": ");
    mc_save_text(w, metaspace);
    mc_save_text(w, ",\n");
    mc_save_post_processor(tok, w);
    mc_save_text(w, "  \"decoder\": {\"type\": \"Sequence\", \"decoders\": [");
    if (tok->unigram.byte_fallback) mc_save_text(w, "{\"type\": \"ByteFallback\"}, ");
    mc_save_text(w, metaspace);
    mc_save_text(w, "]},\n");
    write_model(tok, w);
    mc_save_text(w, "}\n");
}
