#include "tokenizers/files/settings_internal.h"
#include "tokenizers/details.h"

#include <stdlib.h>
#include <string.h>

static void free_tokenizer(void *object)
{
    mc_tokenizer *tok = object;
    mc_bytes_release(&tok->pool);
    mc_free(tok->entries);
    mc_free(tok->added);
    char *strings[] = {tok->path,      tok->unk_token,     tok->cls_token, tok->sep_token,
                       tok->pad_token, tok->mask_token,    tok->bos_token, tok->eos_token,
                       tok->prefix,    tok->decoder_prefix};
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) mc_free(strings[i]);
    mc_free(tok->id_to_added);
    mc_settings_free(tok->settings);
    mc_bpe_release(&tok->bpe);
    mc_jieba_release(&tok->cpm.jieba);
    mc_unigram_release(&tok->unigram);
    mc_trie_release(&tok->trie);
    mc_trie_release(&tok->added_trie);
    mc_trie_release(&tok->raw.trie);
    mc_trie_release(&tok->normalized.trie);
    mc_free(tok);
}

bool mc_tokenizer_set_string(char **string, const char *value)
{
    char *copy = mc_strdup(value);
    if (!copy) return false;
    mc_free(*string);
    *string = copy;
    return true;
}

mc_tokenizer *mc_tokenizer_new(mc_context *ctx)
{
    mc_tokenizer *tok = mc_new_owned(ctx, sizeof *tok, "a tokenizer", free_tokenizer);
    if (!tok) return NULL;
    tok->ctx = ctx;
    tok->normalizer_options = (mc_normalizer_options){
        .clean_text = true, .handle_chinese_chars = true, .lowercase = true};
    tok->has_normalizer = true;
    tok->max_chars = 100;
    tok->decoder_cleanup = true;
    if (mc_tokenizer_set_string(&tok->unk_token, "[UNK]") &&
        mc_tokenizer_set_string(&tok->cls_token, "[CLS]") &&
        mc_tokenizer_set_string(&tok->sep_token, "[SEP]") &&
        mc_tokenizer_set_string(&tok->pad_token, "[PAD]") &&
        mc_tokenizer_set_string(&tok->mask_token, "[MASK]") &&
        mc_tokenizer_set_string(&tok->bos_token, "<|endoftext|>") &&
        mc_tokenizer_set_string(&tok->eos_token, "<|endoftext|>") &&
        mc_tokenizer_set_string(&tok->prefix, "##") &&
        mc_tokenizer_set_string(&tok->decoder_prefix, "##"))
        return tok;
    mc_fail_nomem(ctx, "a tokenizer");
    mc_tokenizer_free(tok);
    return NULL;
}

void mc_tokenizer_free(mc_tokenizer *tok)
{
    if (!tok) return;
    mc_disown(&tok->owned);
    free_tokenizer(tok);
}

bool mc_tokenizer_store(mc_tokenizer *tok, const char *text, size_t length, mc_entry *entry)
{
    *entry = (mc_entry){.offset = tok->pool.count, .length = (uint32_t)length};
    return mc_bytes_append(&tok->pool, text, length) && mc_bytes_append(&tok->pool, "", 1);
}

bool mc_tokenizer_add(mc_tokenizer *tok, const mc_added_token *token)
{
    if (!mc_grow(&tok->added, &tok->added_capacity, tok->added_count, sizeof *tok->added))
        return false;
    tok->added[tok->added_count++] = *token;
    return true;
}

static const uint8_t *entry_bytes(const mc_tokenizer *tok, mc_entry entry)
{
    return tok->pool.data + entry.offset;
}

static mc_status no_memory(mc_error *err, const char *path)
{
    return mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for the vocabulary", path);
}

static mc_status duplicate_entry(const mc_tokenizer *tok, mc_error *err, const char *path,
                                 bool lines, int32_t first, int32_t second)
{
    const char *text = mc_tokenizer_text(tok, tok->entries[first]);
    if (lines)
        return mc_error_set(err, MC_ERR_FORMAT, "%s:%d: entry \"%.80s\" stands on line %d already",
                            path, second + 1, text, first + 1);
    return mc_error_set(err, MC_ERR_FORMAT, "%s: entry \"%.80s\" has two ids, %d and %d", path,
                        text, first, second);
}

static bool is_same_key(const mc_trie_key *a, const mc_trie_key *b)
{
    return a->length == b->length && memcmp(a->text, b->text, a->length) == 0;
}

/* Of an entry on several lines of a vocab.txt the last one counts, and the ids of the others have
 * no token. */
static void drop_repeated_lines(mc_tokenizer *tok, const char *path, mc_trie_key *keys,
                                size_t *count)
{
    size_t kept = 0;
    for (size_t i = 0; i < *count; i++) {
        mc_trie_key *last = kept ? &keys[kept - 1] : NULL;
        if (!last || !is_same_key(last, &keys[i])) {
            keys[kept++] = keys[i];
            continue;
        }
        int32_t first = last->value < keys[i].value ? last->value : keys[i].value;
        int32_t second = last->value < keys[i].value ? keys[i].value : last->value;
        mc_log(tok->ctx, MC_LOG_WARNING,
               "%s:%d: entry \"%.80s\" stands on line %d already; its id is %d", path, second + 1,
               mc_tokenizer_text(tok, tok->entries[first]), first + 1, second);
        tok->entries[first].length = 0;
        last->value = second;
    }
    *count = kept;
}

mc_status mc_tokenizer_index(mc_tokenizer *tok, mc_error *err, const char *path, bool lines)
{
    mc_status status = MC_OK;
    mc_trie_key *keys = mc_calloc(tok->entry_count, sizeof *keys);
    if (!keys) return no_memory(err, path);
    size_t count = 0;
    for (size_t i = 0; i < tok->entry_count; i++) {
        mc_entry entry = tok->entries[i];
        if (entry.length)
            keys[count++] = (mc_trie_key){entry_bytes(tok, entry), entry.length, (int32_t)i};
    }
    mc_trie_sort_keys(keys, count);
    if (lines && tok->kind == MC_TOKENIZER_WORDPIECE) drop_repeated_lines(tok, path, keys, &count);
    for (size_t i = 1; i < count && !status; i++)
        if (is_same_key(&keys[i - 1], &keys[i]))
            status = duplicate_entry(tok, err, path, lines, keys[i - 1].value, keys[i].value);
    if (!status && !mc_trie_init(&tok->trie, keys, count)) status = no_memory(err, path);
    mc_free(keys);
    if (status) return status;
    /* Hugging Face counts the pieces of a Unigram model, those that no text has too */
    tok->model_count =
        tok->kind == MC_TOKENIZER_UNIGRAM ? tok->entry_count : count + tok->has_empty;
    tok->continuing =
        mc_trie_walk(&tok->trie, MC_TRIE_ROOT, (const uint8_t *)tok->prefix, strlen(tok->prefix));
    return MC_OK;
}

/* Gives the added tokens their ids as Hugging Face does: an entry of the same text lends its id,
 * others are numbered on after the vocabulary, whatever the file says. */
static mc_status number_added(mc_tokenizer *tok, mc_error *err, const char *path)
{
    int32_t last = -1, behind = (int32_t)tok->model_count;
    for (size_t i = 0; i < tok->added_count; i++) {
        mc_added_token *token = &tok->added[i];
        const char *text = mc_tokenizer_text(tok, token->entry);
        token->id = mc_trie_find(&tok->trie, (const uint8_t *)text, token->entry.length);
        if (token->id < 0) {
            token->id = last >= behind ? last + 1 : behind;
            if (mc_tokenizer_holds(tok, (size_t)token->id))
                return mc_error_set(err, MC_ERR_FORMAT,
                                    "%s: added token \"%.80s\" would get id %d, which entry "
                                    "\"%.80s\" has already: the ids of the vocabulary have gaps",
                                    path, text, token->id,
                                    mc_tokenizer_text(tok, tok->entries[token->id]));
        }
        if (token->id >= MC_TOKENS_MAX)
            return mc_error_set(err, MC_ERR_FORMAT, "%s: more than %d tokens", path, MC_TOKENS_MAX);
        if (token->named_id >= 0 && token->named_id != token->id)
            mc_log(tok->ctx, MC_LOG_WARNING,
                   "%s: added token \"%.80s\" gets id %d, not %d as the file says, as in "
                   "transformers",
                   token->named_in ? token->named_in : path, text, token->id, token->named_id);
        if (token->id > last) last = token->id;
    }
    tok->id_end = tok->entry_count > (size_t)(last + 1) ? tok->entry_count : (size_t)(last + 1);
    tok->id_to_added = mc_malloc(tok->id_end * sizeof *tok->id_to_added);
    if (!tok->id_to_added) return no_memory(err, path);
    memset(tok->id_to_added, 0xFF, tok->id_end * sizeof *tok->id_to_added);
    for (size_t i = 0; i < tok->added_count; i++) tok->id_to_added[tok->added[i].id] = (int32_t)i;
    return MC_OK;
}

static bool same_flags(const mc_added_token *a, const mc_added_token *b)
{
    return a->special == b->special && a->normalized == b->normalized &&
           a->single_word == b->single_word && a->lstrip == b->lstrip && a->rstrip == b->rstrip;
}

/* Drops added tokens that come a second time with the same flags. */
static mc_status drop_repeated(mc_tokenizer *tok, mc_error *err, const char *path,
                               const mc_trie_key *keys, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        const mc_trie_key *a = &keys[i - 1], *b = &keys[i];
        if (a->length != b->length || memcmp(a->text, b->text, a->length) != 0) continue;
        if (!same_flags(&tok->added[a->value], &tok->added[b->value]))
            return mc_error_set(err, MC_ERR_FORMAT,
                                "%s: added token \"%.80s\" comes twice, with different settings",
                                path, (const char *)a->text);
        tok->added[b->value].entry.length = 0;
    }
    size_t kept = 0;
    for (size_t i = 0; i < tok->added_count; i++)
        if (tok->added[i].entry.length) tok->added[kept++] = tok->added[i];
    tok->added_count = kept;
    return MC_OK;
}

static size_t added_keys(const mc_tokenizer *tok, mc_trie_key *keys)
{
    for (size_t i = 0; i < tok->added_count; i++) {
        mc_entry entry = tok->added[i].entry;
        keys[i] = (mc_trie_key){entry_bytes(tok, entry), entry.length, (int32_t)i};
    }
    mc_trie_sort_keys(keys, tok->added_count);
    return tok->added_count;
}

static mc_status index_added(mc_tokenizer *tok, mc_error *err, const char *path)
{
    mc_trie_key *keys = mc_calloc(tok->added_count, sizeof *keys);
    if (!keys) return no_memory(err, path);
    mc_status status = drop_repeated(tok, err, path, keys, added_keys(tok, keys));
    if (!status && !mc_trie_init(&tok->added_trie, keys, added_keys(tok, keys)))
        status = no_memory(err, path);
    mc_free(keys);
    return status ? status : number_added(tok, err, path);
}

/* Of normalized tokens that are one in normal form the first is meant (Hugging Face leaves it to
 * chance). */
static mc_status fill_matcher(mc_matcher *matcher, mc_error *err, const char *path,
                              mc_trie_key *keys, size_t count)
{
    mc_trie_sort_keys(keys, count);
    if (!mc_trie_init(&matcher->trie, keys, count)) return no_memory(err, path);
    matcher->count = count;
    matcher->only_first = -1;
    for (size_t i = 0; i < count; i++) matcher->first[keys[i].text[0]] = true;
    if (count && keys[0].text[0] == keys[count - 1].text[0]) matcher->only_first = keys[0].text[0];
    return MC_OK;
}

static mc_status match_raw(mc_tokenizer *tok, mc_error *err, const char *path, mc_trie_key *keys)
{
    size_t count = 0;
    for (size_t i = 0; i < tok->added_count; i++) {
        const mc_added_token *token = &tok->added[i];
        if (token->normalized) continue;
        keys[count++] =
            (mc_trie_key){entry_bytes(tok, token->entry), token->entry.length, (int32_t)i};
    }
    return fill_matcher(&tok->raw, err, path, keys, count);
}

/* Finds the normal form of each added token that is looked for in it, which is also what decoding
 * shows for it, and whether decoding counts what it shows as special. */
static mc_status normalize_added(mc_tokenizer *tok, mc_error *err, const char *path)
{
    mc_bytes form = {0}, spare = {0}, before = {0};
    bool ok = true;
    for (size_t i = 0; i < tok->added_count && ok; i++) {
        mc_added_token *token = &tok->added[i];
        token->shown = token->entry;
        token->skipped = token->special;
        if (!token->normalized) continue;
        const uint8_t *text = entry_bytes(tok, token->entry);
        ok = mc_tokenizer_normalize(tok, text, token->entry.length, &form, &spare, &before) &&
             mc_tokenizer_store(tok, (const char *)form.data, form.count, &token->shown);
        int32_t same = mc_trie_find(&tok->added_trie, form.data, form.count);
        token->skipped = same >= 0 && tok->added[same].special;
    }
    mc_bytes_release(&form);
    mc_bytes_release(&spare);
    mc_bytes_release(&before);
    return ok ? MC_OK : no_memory(err, path);
}

static mc_status match_normalized(mc_tokenizer *tok, mc_error *err, const char *path,
                                  mc_trie_key *keys)
{
    size_t count = 0;
    for (size_t i = 0; i < tok->added_count; i++) {
        const mc_added_token *token = &tok->added[i];
        if (!token->normalized || !token->shown.length) continue;
        keys[count++] =
            (mc_trie_key){entry_bytes(tok, token->shown), token->shown.length, (int32_t)i};
    }
    return fill_matcher(&tok->normalized, err, path, keys, count);
}

static mc_status make_matchers(mc_tokenizer *tok, mc_error *err, const char *path)
{
    mc_trie_key *keys = mc_calloc(tok->added_count, sizeof *keys);
    if (!keys) return no_memory(err, path);
    mc_status status = normalize_added(tok, err, path);
    if (!status) status = match_raw(tok, err, path, keys);
    if (!status) status = match_normalized(tok, err, path, keys);
    mc_free(keys);
    return status;
}

static mc_status find_special(const mc_tokenizer *tok, mc_error *err, const char *path,
                              const char *token, int32_t *id)
{
    *id = mc_tokenizer_token_to_id(tok, token);
    if (*id >= 0) return MC_OK;
    return mc_error_set(err, MC_ERR_FORMAT, "%s: the vocabulary has no entry \"%.80s\"", path,
                        token);
}

/* A template's first and last special tokens are what [CLS] and [SEP] are called. */
static mc_status name_specials(mc_tokenizer *tok, mc_error *err, const char *path)
{
    const mc_template *single = &tok->single;
    const mc_template *all[] = {&tok->single, &tok->pair};
    for (int t = 0; t < 2; t++) {
        const mc_template_special *lists[] = {all[t]->prefix, all[t]->middle, all[t]->suffix};
        int counts[] = {all[t]->prefix_count, all[t]->middle_count, all[t]->suffix_count};
        for (int l = 0; l < 3; l++)
            for (int i = 0; i < counts[l]; i++)
                if (!mc_tokenizer_id_to_token(tok, lists[l][i].id))
                    return mc_error_set(err, MC_ERR_FORMAT,
                                        "%s: post_processor: there is no token of id %d", path,
                                        lists[l][i].id);
    }
    const char *cls = NULL, *sep = NULL;
    if (single->prefix_count) cls = mc_tokenizer_id_to_token(tok, single->prefix[0].id);
    if (single->suffix_count)
        sep = mc_tokenizer_id_to_token(tok, single->suffix[single->suffix_count - 1].id);
    if ((cls && !mc_tokenizer_set_string(&tok->cls_token, cls)) ||
        (sep && !mc_tokenizer_set_string(&tok->sep_token, sep)))
        return no_memory(err, path);
    return MC_OK;
}

void mc_bert_templates(mc_template *single, mc_template *pair, int32_t cls_id, int32_t sep_id)
{
    mc_template_special cls = {cls_id, 0}, first = {sep_id, 0}, second = {sep_id, 1};
    *single = (mc_template){
        .prefix_count = 1, .prefix = {cls}, .suffix_count = 1, .suffix = {first}, .type_b = 1};
    *pair = (mc_template){.prefix_count = 1,
                          .prefix = {cls},
                          .middle_count = 1,
                          .middle = {first},
                          .suffix_count = 1,
                          .suffix = {second},
                          .type_b = 1};
}

void mc_roberta_templates(mc_template *single, mc_template *pair, int32_t cls_id, int32_t sep_id)
{
    mc_bert_templates(single, pair, cls_id, sep_id);
    pair->middle[pair->middle_count++] = (mc_template_special){sep_id, 0};
    pair->suffix[0].type_id = 0;
    pair->type_b = 0;
}

static int compare_named_ids(const void *left, const void *right)
{
    const mc_added_token *a = left, *b = right;
    return (a->named_id > b->named_id) - (a->named_id < b->named_id);
}

void mc_tokenizer_sort_added(mc_tokenizer *tok, size_t from)
{
    size_t count = tok->added_count - from;
    if (count > 1) qsort(tok->added + from, count, sizeof *tok->added, compare_named_ids);
}

/* Models that are not given types take all of them to be 0. */
static void drop_types(mc_tokenizer *tok)
{
    mc_template *t = &tok->pair;
    mc_template_special *lists[] = {t->prefix, t->middle, t->suffix};
    const int counts[] = {t->prefix_count, t->middle_count, t->suffix_count};
    for (int l = 0; l < 3; l++)
        for (int i = 0; i < counts[l]; i++) lists[l][i].type_id = 0;
    t->type_a = t->type_b = 0;
}

static mc_status put_roberta(mc_tokenizer *tok, mc_error *err, const char *path)
{
    int32_t cls, sep;
    if (find_special(tok, err, path, tok->cls_token, &cls) ||
        find_special(tok, err, path, tok->sep_token, &sep))
        return err->status;
    mc_roberta_templates(&tok->single, &tok->pair, cls, sep);
    tok->has_templates = true;
    return MC_OK;
}

/* The first and last token around each text, whose second has type 1. */
static mc_status put_ends(mc_tokenizer *tok, mc_error *err, const char *path)
{
    mc_template *one = &tok->single, *two = &tok->pair;
    mc_template_special bos = {0}, eos = {0};
    if ((tok->puts_bos && find_special(tok, err, path, tok->bos_token, &bos.id)) ||
        (tok->puts_eos && find_special(tok, err, path, tok->eos_token, &eos.id)))
        return err->status;
    *one = *two = (mc_template){.type_b = 1};
    if (tok->puts_bos) one->prefix[one->prefix_count++] = two->prefix[two->prefix_count++] = bos;
    if (tok->puts_eos) one->suffix[one->suffix_count++] = two->middle[two->middle_count++] = eos;
    bos.type_id = eos.type_id = 1;
    if (tok->puts_bos) two->middle[two->middle_count++] = bos;
    if (tok->puts_eos) two->suffix[two->suffix_count++] = eos;
    tok->has_templates = true;
    return MC_OK;
}

static int32_t find_named(const mc_tokenizer *tok, const char *token)
{
    return *token ? mc_tokenizer_token_to_id(tok, token) : -1;
}

static mc_status resolve_specials(mc_tokenizer *tok, mc_error *err, const char *path)
{
    if (tok->ends_templates && put_ends(tok, err, path)) return err->status;
    if (tok->has_templates && name_specials(tok, err, path)) return err->status;
    tok->eos_id = find_named(tok, tok->eos_token);
    if (tok->kind == MC_TOKENIZER_CPM) return mc_cpm_finish(tok, err, path);
    if (tok->kind != MC_TOKENIZER_WORDPIECE) { /* it need not have any */
        tok->cls_id = find_named(tok, tok->cls_token);
        tok->sep_id = find_named(tok, tok->sep_token);
        tok->pad_id = find_named(tok, tok->pad_token);
        if (tok->roberta_templates && put_roberta(tok, err, path)) return err->status;
        return tok->kind == MC_TOKENIZER_UNIGRAM ? mc_unigram_finish(tok, err, path)
                                                 : mc_bpe_finish(tok, err, path);
    }
    tok->unk_id = mc_trie_find(&tok->trie, (const uint8_t *)tok->unk_token, strlen(tok->unk_token));
    if (tok->unk_id < 0)
        return mc_error_set(err, MC_ERR_FORMAT, "%s: the vocabulary has no entry \"%.80s\"", path,
                            tok->unk_token);
    if (find_special(tok, err, path, tok->cls_token, &tok->cls_id) ||
        find_special(tok, err, path, tok->sep_token, &tok->sep_id) ||
        find_special(tok, err, path, tok->pad_token, &tok->pad_id))
        return err->status;
    if (!tok->has_templates) mc_bert_templates(&tok->single, &tok->pair, tok->cls_id, tok->sep_id);
    if (tok->no_types) drop_types(tok);
    return MC_OK;
}

static void make_normalizers(mc_tokenizer *tok)
{
    /* without a normalizer text is still made UTF-8, so it is not the identity */
    static const mc_normalizer_options none = {.strip_accents = MC_STRIP_NO};
    mc_normalizer_init(&tok->normalizer, tok->has_normalizer ? &tok->normalizer_options : &none);
    mc_normalizer_init(&tok->identity, NULL);
    for (int c = 0; c < 128; c++) {
        uint8_t byte = (uint8_t)c;
        int32_t id = tok->max_chars ? mc_trie_find(&tok->trie, &byte, 1) : -1;
        tok->ascii_ids[c] = id >= 0 ? id : tok->unk_id;
    }
}

mc_status mc_tokenizer_finish(mc_tokenizer *tok, mc_error *err, const char *path, bool lines)
{
    if (!mc_tokenizer_set_string(&tok->path, path)) return no_memory(err, path);
    if ((!tok->trie.nodes && mc_tokenizer_index(tok, err, path, lines)) ||
        index_added(tok, err, path) || resolve_specials(tok, err, path))
        return err->status;
    make_normalizers(tok);
    return make_matchers(tok, err, path);
}

/* Names in brackets, like [SEP] and <S>, say nothing about case. */
static bool is_bracketed(const uint8_t *text, size_t length)
{
    return length > 2 && ((text[0] == '[' && text[length - 1] == ']') ||
                          (text[0] == '<' && text[length - 1] == '>'));
}

bool mc_tokenizer_looks_cased(const mc_tokenizer *tok)
{
    for (size_t i = 0; i < tok->entry_count; i++) {
        const uint8_t *p = entry_bytes(tok, tok->entries[i]), *end = p + tok->entries[i].length;
        if (is_bracketed(p, (size_t)(end - p))) continue;
        while (p < end) {
            uint32_t c;
            p += mc_utf8_decode(p, end, &c);
            if (mc_unicode_get(c).flags & MC_UNICODE_LOWERS) return true;
        }
    }
    return false;
}

int mc_tokenizer_vocab_size(const mc_tokenizer *tok) { return tok ? (int)tok->id_end : 0; }

int32_t mc_tokenizer_token_to_id(const mc_tokenizer *tok, const char *token)
{
    if (!tok || !token) return -1;
    size_t length = strlen(token);
    if (!length) return tok->has_empty ? (int32_t)tok->empty_id : -1;
    int32_t added = mc_trie_find(&tok->added_trie, (const uint8_t *)token, length);
    if (added >= 0) return tok->added[added].id;
    return mc_trie_find(&tok->trie, (const uint8_t *)token, length);
}

const char *mc_tokenizer_id_to_token(const mc_tokenizer *tok, int32_t id)
{
    if (!tok || id < 0 || (size_t)id >= tok->id_end) return NULL;
    if (tok->id_to_added[id] >= 0)
        return mc_tokenizer_text(tok, tok->added[tok->id_to_added[id]].entry);
    return mc_tokenizer_holds(tok, (size_t)id) ? mc_tokenizer_text(tok, tok->entries[id]) : NULL;
}

int64_t mc_tokenizer_max_length(const mc_tokenizer *tok) { return tok ? tok->max_length : 0; }
bool mc_tokenizer_cuts_start(const mc_tokenizer *tok) { return tok && tok->cuts_left; }

int32_t mc_tokenizer_pad_id(const mc_tokenizer *tok) { return tok ? tok->pad_id : -1; }
int32_t mc_tokenizer_cls_id(const mc_tokenizer *tok) { return tok ? tok->cls_id : -1; }
int32_t mc_tokenizer_sep_id(const mc_tokenizer *tok) { return tok ? tok->sep_id : -1; }
int32_t mc_tokenizer_mask_id(const mc_tokenizer *tok)
{
    return tok ? find_named(tok, tok->mask_token) : -1;
}
int32_t mc_tokenizer_end_of_text_id(const mc_tokenizer *tok) { return tok ? tok->eos_id : -1; }
