#include "datasets/conversation.h"

#include <string.h>
#include "tokenizers/tokenizer_internal.h"

static const char *const names[] = {"",           "chatml",     "llama2", "llama3",
                                    "mistral-v1", "mistral-v3", "zephyr"};
enum { FORMATS = sizeof names / sizeof *names };
static const char all_names[] = "chatml, llama2, llama3, mistral-v1, mistral-v3 or zephyr";

const char *mc_chat_format_name(mc_chat_format format)
{
    return (int)format > 0 && (int)format < FORMATS ? names[format] : NULL;
}

const char *mc_chat_format_end(mc_chat_format format, const mc_tokenizer *tok)
{
    if (!tok || !mc_chat_format_name(format)) return NULL;
    return format == MC_CHAT_CHATML   ? "<|im_end|>"
           : format == MC_CHAT_LLAMA3 ? "<|eot_id|>"
                                      : mc_tokenizer_named(tok, "eos_token", "</s>");
}

/* ---- choosing -------------------------------------------------------------------------------- */

static mc_chat_format find_markers(const mc_tokenizer *tok, const char *template)
{
    if (strstr(template, "<|im_start|>")) return MC_CHAT_CHATML;
    if (strstr(template, "<|start_header_id|>")) return MC_CHAT_LLAMA3;
    if (strstr(template, "<<SYS>>")) return MC_CHAT_LLAMA2;
    if (strstr(template, "[INST]"))
        return mc_tokenizer_token_to_id(tok, "[INST]") >= 0 ? MC_CHAT_MISTRAL_V3
                                                            : MC_CHAT_MISTRAL_V1;
    return strstr(template, "<|user|>") ? MC_CHAT_ZEPHYR : 0;
}

mc_status mc_chat_format_choose(mc_context *ctx, const mc_tokenizer *tok, const char *name,
                                mc_chat_format *format)
{
    if (mc_failed(ctx)) return mc_error_status(ctx);
    if (!mc_given(ctx, tok) || !mc_given(ctx, format)) return mc_error_status(ctx);
    *format = 0;
    for (int i = 1; i < FORMATS && name; i++)
        if (strcmp(name, names[i]) == 0) *format = (mc_chat_format)i;
    if (*format) return MC_OK;
    if (name)
        return mc_fail(ctx, MC_ERR_ARGUMENT, "chat format \"%.40s\": expected %s", name, all_names);
    const char *path, *template = mc_tokenizer_chat_template(tok, &path);
    if (!template)
        return mc_fail(ctx, MC_ERR_NOT_FOUND,
                       "%s: there is no \"chat_template\" beside it that says how the model chats: "
                       "expected a chat format, %s",
                       tok->path, all_names);
    *format = find_markers(tok, template);
    if (!*format)
        return mc_fail(ctx, MC_ERR_UNSUPPORTED,
                       "%s: the chat template has none of the known markers: expected a chat "
                       "format, %s",
                       path, all_names);
    mc_log(ctx, MC_LOG_INFO, "%s: chat format %s, by the markers of its chat template", path,
           names[*format]);
    return MC_OK;
}

/* ---- rendering ------------------------------------------------------------------------------- */

typedef struct renderer {
    mc_chat_format format;
    const char *bos, *eos, *space; /* `space`: what stands after a special token, Mistral's */
    mc_bytes text;
    mc_chat_text *out;
    size_t span_capacity;
    bool ok; /* memory is not out */
} renderer;

static void put_bytes(renderer *r, const char *text, size_t size)
{
    r->ok = r->ok && mc_bytes_append(&r->text, text, size);
}

static void put(renderer *r, const char *text) { put_bytes(r, text, strlen(text)); }

/* Without the white space around it, as templates trim texts. */
static void put_trimmed(renderer *r, const char *text)
{
    size_t size = mc_length_without_space(text, strlen(text)), length;
    for (const uint8_t *p = (const uint8_t *)text; size; size -= length, text += length) {
        uint32_t c;
        p = (const uint8_t *)text;
        length = mc_utf8_decode(p, p + size, &c);
        if (!(mc_unicode_get(c).flags & MC_UNICODE_WHITE)) break;
    }
    put_bytes(r, text, size);
}

static void begin_span(renderer *r)
{
    mc_chat_text *out = r->out;
    r->ok = r->ok && mc_grow(&out->spans, &r->span_capacity, out->span_count, sizeof *out->spans);
    if (r->ok) out->spans[out->span_count++] = (mc_chat_span){r->text.count, r->text.count};
}

static void end_span(renderer *r)
{
    if (r->ok) r->out->spans[r->out->span_count - 1].end = r->text.count;
}

static void put_header(renderer *r, const char *role)
{
    switch (r->format) {
    case MC_CHAT_CHATML:
        put(r, "<|im_start|>");
        put(r, role);
        put(r, "\n");
        break;
    case MC_CHAT_LLAMA3:
        put(r, "<|start_header_id|>");
        put(r, role);
        put(r, "<|end_header_id|>\n\n");
        break;
    case MC_CHAT_ZEPHYR:
        put(r, "<|");
        put(r, role);
        put(r, "|>\n");
        break;
    default: break; /* the others write users and assistants otherwise */
    }
}

/* A message between its header and its end. */
static void put_headed(renderer *r, const mc_chat_message *m)
{
    bool assistant = strcmp(m->role, "assistant") == 0;
    put_header(r, m->role);
    if (assistant) begin_span(r);
    if (r->format == MC_CHAT_LLAMA3)
        put_trimmed(r, m->content);
    else
        put(r, m->content);
    put(r, r->format == MC_CHAT_CHATML   ? "<|im_end|>"
           : r->format == MC_CHAT_LLAMA3 ? "<|eot_id|>"
                                         : r->eos);
    if (assistant) end_span(r);
    if (r->format != MC_CHAT_LLAMA3) put(r, "\n");
}

/* Removes the white space at the end of what is written. */
static void trim_end(renderer *r)
{
    if (r->ok) r->text.count = mc_length_without_space((char *)r->text.data, r->text.count);
}

/* A user's message between [INST] and [/INST]; `system`: what stands before it, or NULL. */
static void put_user(renderer *r, const char *content, const char *system, bool first)
{
    bool v1 = r->format == MC_CHAT_MISTRAL_V1, llama = r->format == MC_CHAT_LLAMA2;
    if (llama || first) put(r, r->bos);
    if (v1) put(r, r->space);
    put(r, v1 || llama ? "[INST] " : "[INST]");
    if (!v1 && !llama) put(r, r->space);
    if (system && llama) put(r, "<<SYS>>\n");
    if (system) put(r, system);
    if (system) put(r, llama ? "\n<</SYS>>\n\n" : "\n\n");
    if (llama && !system)
        put_trimmed(r, content);
    else
        put(r, content);
    if (llama && system) trim_end(r); /* of both messages as one; the beginning is <<SYS>> */
    put(r, v1 || llama ? " [/INST]" : "[/INST]");
}

static void put_answer(renderer *r, const char *content)
{
    bool llama = r->format == MC_CHAT_LLAMA2;
    begin_span(r);
    put(r, r->format == MC_CHAT_MISTRAL_V3 ? r->space : " ");
    if (llama) {
        put_trimmed(r, content);
        put(r, " ");
    } else {
        put(r, content);
    }
    put(r, r->eos);
    end_span(r);
}

/* Users and assistants in turns, after what the system says, which becomes part of a user's
 * message: Mistral's v3 puts it before the last, the others before the first. */
static void put_turns(renderer *r, const mc_chat_message *m, size_t count)
{
    const char *system = strcmp(m->role, "system") == 0 ? m->content : NULL;
    size_t first = system != NULL, with = first;
    for (size_t i = first; i < count; i += 2)
        if (r->format == MC_CHAT_MISTRAL_V3) with = i;
    for (size_t i = first; i < count; i++)
        if ((i - first) % 2)
            put_answer(r, m[i].content);
        else
            put_user(r, m[i].content, i == with ? system : NULL, i == first);
}

static bool has_turns(mc_chat_format format)
{
    return format == MC_CHAT_LLAMA2 || format == MC_CHAT_MISTRAL_V1 || format == MC_CHAT_MISTRAL_V3;
}

static mc_status check_messages(mc_context *ctx, mc_chat_format format, const mc_chat_message *m,
                                size_t count)
{
    size_t first = 0;
    if (!count) return mc_fail(ctx, MC_ERR_ARGUMENT, "a conversation without messages to answer");
    for (size_t i = 0; i < count; i++) {
        if (!m[i].role || !m[i].content)
            return mc_fail(ctx, MC_ERR_ARGUMENT, "message %zu: its role or content is NULL", i);
        bool system = strcmp(m[i].role, "system") == 0, user = strcmp(m[i].role, "user") == 0;
        if (!system && !user && strcmp(m[i].role, "assistant") != 0)
            return mc_fail(ctx, MC_ERR_FORMAT,
                           "message %zu: role \"%.40s\", expected system, user or assistant", i,
                           m[i].role);
        if (system && i)
            return mc_fail(ctx, MC_ERR_FORMAT,
                           "message %zu: role system, expected it of the first message alone", i);
        if (system) first = 1;
        bool turn = (i - first) % 2 == 0;
        if (has_turns(format) && !system && user != turn)
            return mc_fail(ctx, MC_ERR_FORMAT,
                           "message %zu: role %s, expected %s: in format %s users and assistants "
                           "speak in turns",
                           i, m[i].role, turn ? "user" : "assistant", names[format]);
    }
    if (first == count && has_turns(format))
        return mc_fail(ctx, MC_ERR_FORMAT, "a conversation without a message of a user");
    return MC_OK;
}

mc_status mc_chat_render(mc_context *ctx, const mc_tokenizer *tok, mc_chat_format format,
                         const mc_chat_message *messages, size_t count, bool prompt,
                         mc_chat_text *out)
{
    mc_chat_text_release(out);
    if (mc_failed(ctx)) return mc_error_status(ctx);
    if (!mc_given(ctx, tok) || !mc_given(ctx, out) || (count && !mc_given(ctx, messages)))
        return mc_error_status(ctx);
    if (!mc_chat_format_name(format))
        return mc_fail(ctx, MC_ERR_ARGUMENT, "chat format %d: expected an mc_chat_format",
                       (int)format);
    if (check_messages(ctx, format, messages, count)) return mc_error_status(ctx);
    bool llama3 = format == MC_CHAT_LLAMA3;
    renderer r = {.format = format,
                  .bos = mc_tokenizer_named(tok, "bos_token", llama3 ? "<|begin_of_text|>" : "<s>"),
                  .eos = mc_tokenizer_named(tok, "eos_token", "</s>"),
                  .space = mc_tokenizer_puts_spaces(tok) ? "" : " ",
                  .out = out,
                  .ok = true};
    if (has_turns(format)) {
        put_turns(&r, messages, count);
    } else {
        if (llama3) put(&r, r.bos);
        for (size_t i = 0; i < count; i++) put_headed(&r, &messages[i]);
        if (prompt) put_header(&r, "assistant");
    }
    size_t size = r.text.count;
    put_bytes(&r, "", 1);
    out->text = (char *)r.text.data;
    out->size = size;
    if (r.ok) return MC_OK;
    mc_chat_text_release(out);
    return mc_fail_nomem(ctx, "a conversation");
}

void mc_chat_text_release(mc_chat_text *chat)
{
    if (!chat) return;
    mc_free(chat->text);
    mc_free(chat->spans);
    *chat = (mc_chat_text){0};
}
