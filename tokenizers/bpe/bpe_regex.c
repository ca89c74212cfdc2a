/* Patterns of pre-tokenizers through PCRE2, or the error that the library has none.
 *
 * Hugging Face's tokenizers hand a pattern to Oniguruma in Ruby's syntax. PCRE2 reads nearly all of
 * it alike with the options below; what it would read otherwise is refused. */
#include "tokenizers/bpe/bpe_internal.h"

#ifdef MC_HAVE_PCRE2

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>
#include "core/base/memory_internal.h"

struct mc_regex {
    pcre2_code *code;
};

/* What Oniguruma means by a part of a pattern and PCRE2 does not. */
static const char *find_other_meaning(const char *pattern)
{
    static const char *const parts[] = {"\\h", "\\H", "\\O", "\\y", "\\Y", "&&", "(?m", "(?~"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strstr(pattern, parts[i])) return parts[i];
    return NULL;
}

mc_regex *mc_regex_new(mc_error *err, const char *name, const char *pattern)
{
    const char *other = find_other_meaning(pattern);
    if (other) {
        mc_error_set(err, MC_ERR_UNSUPPORTED,
                     "%s: the pattern \"%.200s\": \"%s\" means something else in PCRE2 than in "
                     "tokenizers and is not supported",
                     name, pattern, other);
        return NULL;
    }
    int code;
    size_t at;
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE;
    mc_regex *regex = mc_calloc(1, sizeof *regex);
    if (!regex) {
        mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for a pattern", name);
        return NULL;
    }
    regex->code =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, options, &code, &at, NULL);
    if (regex->code) {
        pcre2_jit_compile(regex->code, PCRE2_JIT_COMPLETE); /* slower where it cannot */
        return regex;
    }
    PCRE2_UCHAR why[256] = "";
    pcre2_get_error_message(code, why, sizeof why);
    mc_error_set(err, MC_ERR_UNSUPPORTED, "%s: the pattern \"%.200s\": PCRE2 at place %zu: %s",
                 name, pattern, at, (const char *)why);
    mc_regex_free(regex);
    return NULL;
}

void mc_regex_free(mc_regex *regex)
{
    if (!regex) return;
    pcre2_code_free(regex->code);
    mc_free(regex);
}

mc_status mc_regex_find(const mc_regex *regex, void **data, const uint8_t *text, size_t size,
                        size_t from, size_t match[2])
{
    uint32_t options = PCRE2_NOTEMPTY | PCRE2_NO_UTF_CHECK;
    match[0] = match[1] = size;
    if (!*data) *data = pcre2_match_data_create(1, NULL);
    if (!*data) return MC_ERR_NOMEM;
    int found = pcre2_match(regex->code, text, size, from, options, *data, NULL);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter takes its memory from the heap */
        found = pcre2_match(regex->code, text, size, from, options | PCRE2_NO_JIT, *data, NULL);
    if (found == PCRE2_ERROR_NOMATCH) return MC_OK;
    if (found == PCRE2_ERROR_NOMEMORY) return MC_ERR_NOMEM;
    if (found < 0) return MC_ERR_UNSUPPORTED;
    memcpy(match, pcre2_get_ovector_pointer(*data), 2 * sizeof *match);
    return MC_OK;
}

void mc_regex_release_data(void *data) { pcre2_match_data_free(data); }

#else

mc_regex *mc_regex_new(mc_error *err, const char *name, const char *pattern)
{
    mc_error_set(err, MC_ERR_UNSUPPORTED,
                 "%s: the pattern \"%.200s\" takes PCRE2, and this build has none: build with "
                 "libpcre2-dev and MC_ENABLE_PCRE2",
                 name, pattern);
    return NULL;
}

void mc_regex_free(mc_regex *regex) { (void)regex; }

mc_status mc_regex_find(const mc_regex *regex, void **data, const uint8_t *text, size_t size,
                        size_t from, size_t match[2])
{
    (void)regex;
    (void)data;
    (void)text;
    (void)from;
    match[0] = match[1] = size;
    return MC_ERR_UNSUPPORTED;
}

void mc_regex_release_data(void *data) { (void)data; }

#endif
