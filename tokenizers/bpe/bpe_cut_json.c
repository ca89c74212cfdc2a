/* The pre-tokenizer of byte-level BPE in a tokenizer.json: steps that cut texts into words. */
#include <stdio.h>
#include <string.h>
#include "tokenizers/files/parts_internal.h"

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define LETTERS "[^\\r\\n\\p{L}\\p{N}]?"
#define CAPITALS "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define SMALLS "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define SIGNS " ?[^\\s\\p{L}\\p{N}]+"

/* The patterns that are cut in C, as public tokenizer.json files write them. */
static const struct {
    mc_cut_kind kind;
    const char *pattern;
} known[] = {
    {MC_CUT_GPT2, "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+|" SIGNS "|\\s+(?!\\S)|\\s+"},
    {MC_CUT_GPT2, "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+|" SIGNS "|\\s+(?!\\S)|\\s+"},
    {MC_CUT_CL100K, CONTRACTIONS "|" LETTERS "\\p{L}+|\\p{N}{1,3}|" SIGNS "[\\r\\n]*|" SPACES},
    {MC_CUT_QWEN, CONTRACTIONS "|" LETTERS "\\p{L}+|\\p{N}|" SIGNS "[\\r\\n]*|" SPACES},
    {MC_CUT_O200K, LETTERS CAPITALS "*" SMALLS "+" CONTRACTIONS "?|" LETTERS CAPITALS "+" SMALLS
                                    "*" CONTRACTIONS "?|\\p{N}{1,3}|" SIGNS "[\\r\\n/]*|" SPACES},
    {MC_CUT_TEKKEN, LETTERS CAPITALS "*" SMALLS "+|" LETTERS CAPITALS "+" SMALLS "*|\\p{N}|" SIGNS
                                     "[\\r\\n/]*|" SPACES},
};

const char *mc_bpe_pattern(mc_cut_kind kind)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].kind == kind) return known[i].pattern;
    return NULL;
}

static mc_status no_memory(mc_error *err, const char *path)
{
    return mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for the pre-tokenizer", path);
}

static mc_status add_cut(mc_bpe *bpe, mc_error *err, const char *path, mc_cut cut)
{
    if (bpe->cut_count == MC_CUTS_MAX) {
        mc_regex_free(cut.regex);
        return mc_error_set(err, MC_ERR_UNSUPPORTED, "%s: pre_tokenizer: more than %d steps", path,
                            MC_CUTS_MAX);
    }
    bpe->cuts[bpe->cut_count++] = cut;
    return MC_OK;
}

/* A pattern for exactly this text. */
static bool quote(const char *text, mc_bytes *pattern)
{
    bool ok = true;
    for (; *text && ok; text++)
        ok = (!strchr("\\^$.[]|()?*+{}-#&~", *text) || mc_bytes_append(pattern, "\\", 1)) &&
             mc_bytes_append(pattern, text, 1);
    return ok && mc_bytes_append(pattern, "", 1);
}

/* Which matches of a Split are words, and which of what stands between them. */
static mc_status read_behavior(mc_error *err, const char *path, const cJSON *part, mc_cut *cut)
{
    const char *behavior = "Isolated";
    bool invert = false;
    if (!mc_json_get_string(err, part, path, "behavior", &behavior) ||
        !mc_json_get_bool(err, part, path, "invert", &invert))
        return err->status;
    if (strcmp(behavior, "Removed") == 0)
        *(invert ? &cut->drops_gaps : &cut->drops_matches) = true;
    else if (strcmp(behavior, "Isolated") != 0)
        return mc_error_set(err, MC_ERR_UNSUPPORTED,
                            "%s: pre_tokenizer: Split: \"behavior\" \"%.40s\" is not supported, "
                            "only Isolated and Removed are",
                            path, behavior);
    return MC_OK;
}

static mc_status read_split(mc_bpe *bpe, mc_error *err, const char *path, const cJSON *part)
{
    mc_cut cut = {.kind = MC_CUT_REGEX};
    const cJSON *pattern = mc_tokenizer_part(part, "pattern");
    const cJSON *regex = mc_tokenizer_part(pattern, "Regex");
    const cJSON *string = mc_tokenizer_part(pattern, "String");
    char name[MC_PATH_MAX + 64];
    snprintf(name, sizeof name, "%s: pre_tokenizer: Split", path);
    if (!cJSON_IsString(regex ? regex : string))
        return mc_error_set(err, MC_ERR_FORMAT, "%s: expected a \"pattern\", Regex or String",
                            name);
    if (read_behavior(err, path, part, &cut)) return err->status;
    for (size_t i = 0; regex && i < sizeof known / sizeof *known; i++)
        if (!cut.drops_matches && strcmp(regex->valuestring, known[i].pattern) == 0)
            cut.kind = known[i].kind; /* which leaves no gaps */
    if (cut.kind != MC_CUT_REGEX) return add_cut(bpe, err, path, cut);
    mc_bytes quoted = {0};
    if (regex)
        cut.regex = mc_regex_new(err, name, regex->valuestring);
    else if (quote(string->valuestring, &quoted))
        cut.regex = mc_regex_new(err, name, (const char *)quoted.data);
    else
        no_memory(err, path);
    mc_bytes_release(&quoted);
    return cut.regex ? add_cut(bpe, err, path, cut) : err->status;
}

static mc_status read_digits(mc_bpe *bpe, mc_error *err, const char *path, const cJSON *part)
{
    bool each = false;
    mc_cut cut = {.kind = MC_CUT_DIGITS};
    if (!mc_json_get_bool(err, part, path, "individual_digits", &each)) return err->status;
    if (!each) {
        cut.kind = MC_CUT_REGEX;
        cut.regex = mc_regex_new(err, path, "\\p{N}+");
        if (!cut.regex) return err->status;
    }
    return add_cut(bpe, err, path, cut);
}

static mc_status read_byte_level(mc_tokenizer *tok, mc_error *err, const char *path,
                                 const cJSON *part)
{
    mc_bpe *bpe = &tok->bpe;
    bool regex = true;
    if (!mc_tokenizer_part(part, "add_prefix_space"))
        return mc_error_set(err, MC_ERR_FORMAT, "%s: pre_tokenizer: expected \"add_prefix_space\"",
                            path);
    if (!mc_json_get_bool(err, part, path, "add_prefix_space", &bpe->add_prefix_space) ||
        !mc_json_get_bool(err, part, path, "use_regex", &regex))
        return err->status;
    if (bpe->add_prefix_space && bpe->cut_count)
        return mc_error_set(err, MC_ERR_UNSUPPORTED,
                            "%s: pre_tokenizer: a ByteLevel with \"add_prefix_space\" after other "
                            "steps is not supported",
                            path);
    return regex ? add_cut(bpe, err, path, (mc_cut){.kind = MC_CUT_GPT2}) : MC_OK;
}

static mc_status read_step(mc_tokenizer *tok, mc_error *err, const char *path, const cJSON *part,
                           bool last)
{
    const char *type = part ? mc_tokenizer_part_type(part, "?") : "null";
    if (last && strcmp(type, "ByteLevel") == 0) return read_byte_level(tok, err, path, part);
    if (!last && strcmp(type, "Split") == 0) return read_split(&tok->bpe, err, path, part);
    if (!last && strcmp(type, "Digits") == 0) return read_digits(&tok->bpe, err, path, part);
    return mc_tokenizer_unsupported(err, path, "pre_tokenizer", type,
                                    "ByteLevel, after Split and Digits,");
}

mc_status mc_bpe_read_cuts(mc_tokenizer *tok, mc_error *err, const char *path, const cJSON *part)
{
    const cJSON *list = mc_tokenizer_part(part, "pretokenizers"), *item;
    bool sequence = strcmp(mc_tokenizer_part_type(part, "?"), "Sequence") == 0;
    mc_bpe *bpe = &tok->bpe;
    bpe->has_cuts = true;
    if (!sequence || !cJSON_IsArray(list) || !list->child) {
        if (read_step(tok, err, path, part, true)) return err->status;
    } else {
        cJSON_ArrayForEach(item, list)
        {
            if (read_step(tok, err, path, item, !item->next)) return err->status;
        }
    }
    if (bpe->cut_count == 1 && bpe->cuts[0].kind == MC_CUT_GPT2) return MC_OK;
    char *text = cJSON_PrintUnformatted(part);
    bpe->cuts_json = text ? mc_strdup(text) : NULL;
    cJSON_free(text);
    return bpe->cuts_json ? MC_OK : no_memory(err, path);
}
