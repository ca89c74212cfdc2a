#include "models/generate/prompt.h"

#include <string.h>
#include "core/base/memory_internal.h"
#include "datasets/blank_prompt_internal.h"
#include "datasets/conversation.h"
#include "models/model_internal.h"
#include "tokenizers/details.h"

typedef struct prompt_writer {
    const mc_tokenizer *tok;
    int32_t *ids;
    size_t count, capacity;
    mc_status status;
} prompt_writer;

static void add(prompt_writer *w, const int32_t *ids, size_t count)
{
    if (!w->status && count > INT32_MAX - w->count) w->status = MC_ERR_UNSUPPORTED;
    for (size_t i = 0; i < count && !w->status; i++) {
        if (!mc_grow(&w->ids, &w->capacity, w->count, sizeof *w->ids))
            w->status = MC_ERR_NOMEM;
        else
            w->ids[w->count++] = ids[i];
    }
}

static void add_token(prompt_writer *w, int32_t id) { add(w, &id, 1); }

static void add_text(prompt_writer *w, const char *text, size_t size)
{
    mc_encoding e = {0};
    if (!w->status) w->status = mc_tokenizer_append(w->tok, text, size, &e);
    if (!w->status) add(w, e.ids, e.count);
    mc_encoding_release(&e);
}

/* With what the tokenizer puts around a text. */
static void add_with_specials(prompt_writer *w, const char *text, size_t size)
{
    mc_encoding e = {0};
    if (!w->status) w->status = mc_tokenizer_encode(w->tok, text, size, NULL, 0, 0, &e);
    if (!w->status) add(w, e.ids, e.count);
    mc_encoding_release(&e);
}

/* ---- blanks of CPM-2 ------------------------------------------------------------------------- */

/* The id of the blank that the text begins with, and how long it is written; -1: with none. */
static int32_t find_blank(const mc_tokenizer *tok, const char *text, size_t size, size_t *length)
{
    char name[16];
    size_t n = 3;
    if (size < 4 || memcmp(text, "<s_", 3) != 0) return -1;
    while (n < size && n < sizeof name - 2 && text[n] >= '0' && text[n] <= '9') n++;
    if (n == 3 || n == size || text[n] != '>') return -1;
    memcpy(name, text, n + 1);
    name[n + 1] = '\0';
    *length = n + 1;
    return mc_tokenizer_token_to_id(tok, name);
}

/* Gives the sentinel after the last blank's; -1: the vocabulary has no more. */
static int32_t add_with_blanks(prompt_writer *w, const char *text, size_t size)
{
    size_t done = 0, length = 0;
    int32_t first = mc_tokenizer_token_to_id(w->tok, "<s_0>"), last = -1;
    for (size_t at = 0; at < size; at++) {
        int32_t blank = find_blank(w->tok, text + at, size - at, &length);
        if (blank < 0) continue;
        add_text(w, text + done, at - done);
        add_token(w, blank);
        if (blank > last) last = blank;
        done = at + length;
        at = done - 1;
    }
    add_text(w, text + done, size - done);
    if (last < 0) add_token(w, last = first);
    char name[24];
    snprintf(name, sizeof name, "<s_%d>", last - first + 1);
    return mc_tokenizer_token_to_id(w->tok, name);
}

/* ---- blanks of GLM --------------------------------------------------------------------------- */

static void add_with_mask(prompt_writer *w, mc_context *ctx, const char *text, size_t size)
{
    mc_encoding e = {0};
    w->status = mc_blank_prompt(&ctx->error, w->tok, text, size, 0, &e);
    if (!w->status) add(w, e.ids, e.count);
    mc_encoding_release(&e);
}

/* ---- all families ---------------------------------------------------------------------------- */

mc_status mc_text_prompt_init(mc_text_prompt *prompt, mc_model *model,
                              const mc_tokenizer *tokenizer, const char *text, size_t size)
{
    if (prompt) *prompt = (mc_text_prompt){.end = -1};
    if (!model) return MC_ERR_ARGUMENT;
    mc_context *ctx = model->module.ctx;
    if (mc_failed(ctx) || !mc_given(ctx, prompt) || !mc_given(ctx, tokenizer) ||
        (size && !mc_given(ctx, text)))
        return mc_error_status(ctx);
    mc_prompt_style style = model->family->prompt;
    prompt_writer w = {.tok = tokenizer};
    int32_t end = -1;
    if (style == MC_PROMPT_CPM1) add_token(&w, mc_tokenizer_token_to_id(tokenizer, "<s>"));
    if (style == MC_PROMPT_CPM2)
        end = add_with_blanks(&w, text, size);
    else if (style == MC_PROMPT_CPM1)
        add_text(&w, text, size);
    else if (style == MC_PROMPT_GLM)
        add_with_mask(&w, ctx, text, size);
    else
        add_with_specials(&w, text, size);
    if (!w.status && !w.count && model->shape.bos_token >= 0)
        add_token(&w, (int32_t)model->shape.bos_token);
    if (w.status)
        mc_fail(ctx, w.status, "encoding a prompt: %s", mc_status_text(w.status));
    else if (!w.count)
        mc_fail(ctx, MC_ERR_ARGUMENT, "an empty prompt: %s has no token that begins a text",
                model->family->title);
    else
        mc_tokenizer_check_ids(tokenizer, w.ids, w.count, model->shape.vocab_size);
    if (mc_failed(ctx))
        mc_free(w.ids);
    else
        *prompt = (mc_text_prompt){.ids = w.ids, .count = (int)w.count, .end = end};
    return mc_error_status(ctx);
}

/* ---- conversations --------------------------------------------------------------------------- */

static mc_status begin_chat(mc_text_prompt *prompt, mc_model *model, const mc_tokenizer *tokenizer)
{
    if (prompt) *prompt = (mc_text_prompt){.end = -1};
    if (!model) return MC_ERR_ARGUMENT;
    mc_context *ctx = model->module.ctx;
    if (mc_failed(ctx) || !mc_given(ctx, prompt) || !mc_given(ctx, tokenizer))
        return mc_error_status(ctx);
    if (model->family->prompt == MC_PROMPT_DECODER) return MC_OK;
    return mc_fail(ctx, MC_ERR_UNSUPPORTED, "%s: conversations are for decoders such as GPT-2",
                   model->family->title);
}

/* The text has all its special tokens. */
mc_status mc_rendered_prompt_init(mc_text_prompt *prompt, mc_model *model,
                                  const mc_tokenizer *tokenizer, mc_chat_format format,
                                  const char *text, size_t size)
{
    mc_status status = begin_chat(prompt, model, tokenizer);
    if (status) return status;
    mc_context *ctx = model->module.ctx;
    if (size && !mc_given(ctx, text)) return mc_error_status(ctx);
    const char *end = mc_chat_format_end(format, tokenizer);
    if (!end)
        return mc_fail(ctx, MC_ERR_ARGUMENT, "chat format %d: expected an mc_chat_format",
                       (int)format);
    prompt_writer w = {.tok = tokenizer};
    add_text(&w, text, size);
    if (w.status) mc_fail(ctx, w.status, "encoding a conversation: %s", mc_status_text(w.status));
    mc_tokenizer_check_ids(tokenizer, w.ids, w.count, model->shape.vocab_size);
    if (mc_failed(ctx)) {
        mc_free(w.ids);
        return mc_error_status(ctx);
    }
    *prompt = (mc_text_prompt){
        .ids = w.ids, .count = (int)w.count, .end = mc_tokenizer_token_to_id(tokenizer, end)};
    return MC_OK;
}

mc_status mc_chat_prompt_init(mc_text_prompt *prompt, mc_model *model,
                              const mc_tokenizer *tokenizer, mc_chat_format format,
                              const mc_chat_message *messages, size_t count)
{
    mc_chat_text chat = {0};
    mc_status status = begin_chat(prompt, model, tokenizer);
    if (!status)
        status = mc_chat_render(model->module.ctx, tokenizer, format, messages, count, true, &chat);
    if (!status)
        status = mc_rendered_prompt_init(prompt, model, tokenizer, format, chat.text, chat.size);
    mc_chat_text_release(&chat);
    return status;
}

void mc_text_prompt_release(mc_text_prompt *p)
{
    if (!p) return;
    mc_free(p->ids);
    *p = (mc_text_prompt){.end = -1};
}
