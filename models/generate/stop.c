#include "models/generate/stop.h"

#include <string.h>
#include "core/base/context_internal.h"
#include "core/base/memory_internal.h"
#include "tokenizers/tokenizer_internal.h"

static char *decode(const mc_stop *stop, const int32_t *ids, int count, size_t *size)
{
    const mc_decode_options options = {.skip_special = true, .skip_unknown = true};
    return mc_tokenizer_decode_sized(stop->tokenizer, ids, (size_t)count, &options, size);
}

static bool can_decode(const mc_stop *stop, const int32_t *ids, int count)
{
    if (!stop || !stop->tokenizer || mc_failed(stop->tokenizer->ctx)) return false;
    return !count || mc_given(stop->tokenizer->ctx, ids);
}

static bool at_token(const mc_stop *stop, int prompt, const int32_t *ids, int count)
{
    return stop->tokens && count && stop->tokens[prompt] == ids[count - 1];
}

/* Where the first of the texts begins; `size` where none does. */
static size_t find_text(const mc_stop *stop, const char *text, size_t size)
{
    size_t first = size;
    for (int i = 0; i < stop->text_count; i++) {
        const char *at = memmem(text, size, stop->texts[i], strlen(stop->texts[i]));
        if (at && (size_t)(at - text) < first) first = (size_t)(at - text);
    }
    return first;
}

bool mc_stop_reached(void *user, int prompt, const int32_t *ids, int count)
{
    const mc_stop *stop = user;
    if (!can_decode(stop, ids, count)) return false;
    if (at_token(stop, prompt, ids, count)) return true;
    if (!stop->text_count) return false;
    size_t size;
    char *text = decode(stop, ids, count, &size);
    bool found = !text || find_text(stop, text, size) < size;
    mc_string_free(text);
    return found;
}

char *mc_stop_text(const mc_stop *stop, int prompt, const int32_t *ids, int count, size_t *size)
{
    if (!can_decode(stop, ids, count)) return NULL;
    if (at_token(stop, prompt, ids, count)) count--;
    size_t whole, cut;
    char *text = decode(stop, ids, count, &whole);
    if (!text) return NULL;
    cut = find_text(stop, text, whole);
    text[cut] = '\0';
    if (size) *size = cut;
    return text;
}

/* ---- as it comes ----------------------------------------------------------------------------- */

struct mc_text_stream {
    const mc_stop *stop;
    int prompt;
    int32_t *ids;
    size_t count, capacity;
    char *text;   /* of all tokens */
    size_t given; /* bytes of it that were given */
};

mc_text_stream *mc_text_stream_new(const mc_stop *stop, int prompt)
{
    mc_text_stream *s = stop && stop->tokenizer ? mc_calloc(1, sizeof *s) : NULL;
    if (s)
        *s = (mc_text_stream){.stop = stop, .prompt = prompt};
    else if (stop && stop->tokenizer)
        mc_fail_nomem(stop->tokenizer->ctx, "an answer's text");
    return s;
}

void mc_text_stream_free(mc_text_stream *s)
{
    if (!s) return;
    mc_string_free(s->text);
    mc_free(s->ids);
    mc_free(s);
}

/* How many bytes at the end of a text may begin one of the texts that are looked for. */
static size_t undecided(const mc_stop *stop, const char *text, size_t size)
{
    size_t most = 0;
    for (int i = 0; i < stop->text_count; i++) {
        size_t n = strlen(stop->texts[i]) - 1;
        for (n = n < size ? n : size; n > most; n--)
            if (memcmp(text + size - n, stop->texts[i], n) == 0) most = n;
    }
    return most;
}

/* A character of which a part is there decodes as U+FFFD, which later tokens may complete. */
static size_t without_broken(const char *text, size_t size)
{
    static const char broken[] = "\xef\xbf\xbd";
    while (size >= 3 && memcmp(text + size - 3, broken, 3) == 0) size -= 3;
    return size;
}

static const char *give(mc_text_stream *s, bool last, size_t *size)
{
    size_t whole;
    mc_string_free(s->text);
    s->text = mc_stop_text(s->stop, s->prompt, s->ids, (int)s->count, &whole);
    if (!s->text) return NULL;
    size_t sure = last ? whole : without_broken(s->text, whole);
    if (!last) sure -= undecided(s->stop, s->text, sure);
    size_t from = s->given < sure ? s->given : sure;
    if (size) *size = sure - from;
    if (sure > s->given) s->given = sure;
    return s->text + from;
}

const char *mc_text_stream_add(mc_text_stream *s, int32_t token, size_t *size)
{
    if (!s) return NULL;
    if (!mc_grow(&s->ids, &s->capacity, s->count, sizeof *s->ids)) {
        mc_fail_nomem(s->stop->tokenizer->ctx, "an answer's text");
        return NULL;
    }
    s->ids[s->count++] = token;
    return give(s, false, size);
}

const char *mc_text_stream_end(mc_text_stream *s, size_t *size)
{
    return s ? give(s, true, size) : NULL;
}
