#include "datasets/chat_internal.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *role, *title;
} roles[] = {{"system", "System:"}, {"user", "User:"}, {"assistant", "Assistant:"}};
enum { ROLES = 3, ASSISTANT = 2 };

static const cJSON *field(const cJSON *message, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(message, key);
}

/* The number of a message's role; -1: none of those. */
static int role_of(const cJSON *message)
{
    const cJSON *role = field(message, "role");
    for (int i = 0; i < ROLES && cJSON_IsString(role); i++)
        if (strcmp(role->valuestring, roles[i].role) == 0) return i;
    return -1;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* What is wrong with a message is said with its number, from 0. */
static bool check_message(mc_table *t, int column, int number, const cJSON *message)
{
    const cJSON *content = field(message, "content"), *key;
    if (!cJSON_IsObject(message))
        return !mc_table_fail(t, column, "message %d: expected an object, found %s", number,
                              mc_json_describe(message).text);
    if (role_of(message) < 0)
        return !mc_table_fail(t, column,
                              "message %d: role %s, expected \"system\", \"user\" or \"assistant\"",
                              number, mc_json_describe(field(message, "role")).text);
    if (!cJSON_IsString(content))
        return !mc_table_fail(t, column, "message %d: content %s, expected text", number,
                              mc_json_describe(content).text);
    cJSON_ArrayForEach(key, message)
    {
        bool known = strcmp(key->string, "role") == 0 || strcmp(key->string, "content") == 0;
        if (!known && !cJSON_IsNull(key))
            return !mc_table_fail(t, column,
                                  "message %d: key \"%.40s\" is not understood, expected role and "
                                  "content alone",
                                  number, key->string);
    }
    return true;
}

/* The first message of the list in a column of the current row, all of which are checked, and how
 * many the list has of the assistant; NULL after an error. */
static const cJSON *read_messages(mc_table *t, int column, int *answers)
{
    if (t->format != MC_TABLE_JSONL) {
        mc_fail(t->ctx, MC_ERR_UNSUPPORTED, "%s: conversations are read from JSON Lines alone",
                t->path);
        return NULL;
    }
    const cJSON *list = mc_table_json_value(t, column), *message;
    if (mc_failed(t->ctx)) return NULL;
    if (!cJSON_IsArray(list) || !list->child) {
        mc_table_fail(t, column, "expected a list of messages, found %s",
                      cJSON_IsArray(list) ? "an empty one" : mc_json_describe(list).text);
        return NULL;
    }
    int number = 0;
    *answers = 0;
    cJSON_ArrayForEach(message, list)
    {
        if (!check_message(t, column, number++, message)) return NULL;
        *answers += role_of(message) == ASSISTANT;
    }
    return list->child;
}

bool mc_chat_begin(mc_chat *c, mc_table *t, int column)
{
    int answers = 0;
    c->past.size = 0;
    c->next = read_messages(t, column, &answers);
    if (!c->next) return false;
    return answers || !mc_table_fail(t, column, "no message of the assistant: nothing to learn");
}

/* ---- turns ----------------------------------------------------------------------------------- */

static bool append(mc_text *to, const char *text) { return mc_text_append(to, text, strlen(text)); }

static bool append_string(mc_text *to, const cJSON *string)
{
    return mc_text_append(to, string->valuestring, mc_json_length(string));
}

/* "User: Hello\n" */
static bool append_message(mc_text *to, const char *title, const cJSON *content)
{
    return append(to, title) && append(to, " ") && append_string(to, content) && append(to, "\n");
}

/* The prompt and the response of a message of the assistant. */
static bool take_turn(mc_chat *c, const cJSON *content)
{
    c->prompt.size = c->response.size = 0;
    return mc_text_append(&c->prompt, c->past.data ? c->past.data : "", c->past.size) &&
           append(&c->prompt, roles[ASSISTANT].title) && append(&c->response, " ") &&
           append_string(&c->response, content);
}

bool mc_chat_next(mc_chat *c, mc_context *ctx)
{
    bool found = false, good = true;
    for (; good && !found && c->next; c->next = c->next->next) {
        int role = role_of(c->next);
        const cJSON *content = field(c->next, "content");
        found = role == ASSISTANT;
        good = (!found || take_turn(c, content)) &&
               append_message(&c->past, roles[role].title, content);
    }
    if (!good) mc_fail_nomem(ctx, "a conversation");
    return good && found;
}

bool mc_chat_render_whole(mc_chat *c, mc_table *t, int column, const mc_tokenizer *tok,
                          mc_chat_format format)
{
    if (!mc_chat_begin(c, t, column)) return false;
    size_t count = 0;
    for (const cJSON *m = c->next; m; m = m->next) count++;
    mc_chat_message *messages = mc_calloc(count, sizeof *messages);
    mc_chat_text chat = {0};
    count = 0;
    bool good = messages;
    for (const cJSON *m = c->next; m && good; m = m->next) {
        const cJSON *content = field(m, "content");
        if (strlen(content->valuestring) != mc_json_length(content))
            good = !mc_table_fail(t, column, "message %zu: a NUL character", count);
        messages[count++] = (mc_chat_message){field(m, "role")->valuestring, content->valuestring};
    }
    if (good && mc_chat_render(t->ctx, tok, format, messages, count, false, &chat)) {
        char why[256];
        snprintf(why, sizeof why, "%s", mc_error_message(t->ctx));
        mc_clear_error(t->ctx);
        good = !mc_table_fail(t, column, "%s", why);
    }
    c->prompt.size = c->response.size = 0;
    good = good && mc_text_append(&c->prompt, chat.text, chat.size);
    for (size_t i = 0; i < chat.span_count && good; i++)
        good =
            mc_text_append_format(&c->response, "%zu %zu ", chat.spans[i].start, chat.spans[i].end);
    mc_free(messages);
    mc_chat_text_release(&chat);
    c->next = NULL;
    if (!good && !mc_failed(t->ctx)) mc_fail_nomem(t->ctx, "a conversation");
    return good;
}

const char *mc_table_chat(mc_table *t, int column, size_t *length)
{
    int answers;
    mc_text prompt = {0};
    if (!t || mc_failed(t->ctx)) return NULL;
    const cJSON *message = read_messages(t, column, &answers);
    if (!message) return NULL;
    bool good = true;
    for (; message && good; message = message->next)
        if (message->next || role_of(message) != ASSISTANT) /* the last is to be answered anew */
            good =
                append_message(&prompt, roles[role_of(message)].title, field(message, "content"));
    if (!good || !append(&prompt, roles[ASSISTANT].title)) {
        mc_text_release(&prompt);
        mc_fail_nomem(t->ctx, "a conversation");
        return NULL;
    }
    mc_free(t->chat);
    t->chat = prompt.data;
    if (length) *length = prompt.size;
    return t->chat;
}

void mc_chat_release(mc_chat *c)
{
    mc_text_release(&c->past);
    mc_text_release(&c->prompt);
    mc_text_release(&c->response);
}
