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
    c->first = c->next = read_messages(t, column, &answers);
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

/* The next answer after lines. */
static bool next_in_lines(mc_chat *c)
{
    bool good = true;
    for (bool found = false; good && !found && c->next; c->next = c->next->next) {
        int role = role_of(c->next);
        const cJSON *content = field(c->next, "content");
        found = role == ASSISTANT;
        good = (!found || take_turn(c, content)) &&
               append_message(&c->past, roles[role].title, content);
    }
    return good;
}

/* mc_chat_render, whose errors are at the row. */
static bool render(mc_table *t, int column, const mc_tokenizer *tok, mc_chat_format format,
                   const mc_chat_message *messages, size_t count, bool prompt, mc_chat_text *chat)
{
    char why[256];
    mc_status status = mc_chat_render(t->ctx, tok, format, messages, count, prompt, chat);
    if (!status || status == MC_ERR_NOMEM) return !status;
    snprintf(why, sizeof why, "%s", mc_error_message(t->ctx));
    mc_clear_error(t->ctx);
    return !mc_table_fail(t, column, "%s", why);
}

/* Renders the messages from `first` up to `end` (NULL: all). False after an error at the row. */
static bool render_list(mc_table *t, int column, const cJSON *first, const cJSON *end,
                        const mc_tokenizer *tok, mc_chat_format format, bool prompt,
                        mc_chat_text *chat)
{
    size_t count = 0;
    for (const cJSON *m = first; m != end; m = m->next) count++;
    mc_chat_message *messages = mc_calloc(count + 1, sizeof *messages);
    count = 0;
    bool good = messages || !mc_fail_nomem(t->ctx, "a conversation");
    for (const cJSON *m = first; m != end && good; m = m->next) {
        const cJSON *content = field(m, "content");
        if (strlen(content->valuestring) != mc_json_length(content))
            good = !mc_table_fail(t, column, "message %zu: a NUL character", count);
        messages[count++] = (mc_chat_message){field(m, "role")->valuestring, content->valuestring};
    }
    good = good && render(t, column, tok, format, messages, count, prompt, chat);
    mc_free(messages);
    return good;
}

/* A whole conversation, or the next answer, in the format. The rendered text is freed. */
static bool take_rendered(mc_chat *c, const cJSON *answer, mc_chat_text *chat)
{
    c->prompt.size = c->response.size = 0;
    bool good = mc_text_append(&c->prompt, chat->text, chat->size) &&
                (!answer || append_string(&c->response, field(answer, "content")));
    for (size_t i = 0; i < chat->span_count && good && !answer; i++)
        good = mc_text_append_format(&c->response, "%zu %zu ", chat->spans[i].start,
                                     chat->spans[i].end);
    mc_chat_text_release(chat);
    return good;
}

bool mc_chat_next(mc_chat *c, mc_table *t, int column, mc_data_row *row)
{
    mc_chat_text chat = {0};
    const cJSON *answer = c->next;
    while (!c->whole && answer && role_of(answer) != ASSISTANT) answer = answer->next;
    if (!answer) return false;
    bool good = true;
    if (!c->format) {
        good = next_in_lines(c);
    } else {
        const cJSON *end = c->whole ? NULL : answer;
        c->next = end ? end->next : NULL;
        if (!render_list(t, column, c->first, end, c->tok, c->format, end, &chat)) return false;
        good = take_rendered(c, end, &chat);
    }
    row->text = c->prompt.data;
    row->text_size = c->prompt.size;
    row->target = c->response.data;
    row->target_size = c->response.size;
    return good || !mc_fail_nomem(t->ctx, "a conversation");
}

bool mc_chat_ask(mc_chat *c, mc_table *t, int column, mc_data_row *row)
{
    mc_chat_text chat = {0};
    const mc_chat_message said = {"user", row->text};
    if (strlen(said.content) < row->text_size) return !mc_table_fail(t, column, "a NUL character");
    if (!render(t, column, c->tok, c->format, &said, 1, true, &chat)) return false;
    if (!take_rendered(c, NULL, &chat)) return !mc_fail_nomem(t->ctx, "a conversation");
    row->text = c->prompt.data;
    row->text_size = c->prompt.size;
    return true;
}

/* Where a conversation ends for whom is to answer: the assistant's last message is given anew. */
static const cJSON *end_of_prompt(const cJSON *first)
{
    const cJSON *last = first;
    while (last->next) last = last->next;
    return role_of(last) == ASSISTANT ? last : NULL;
}

/* Keeps a prompt in the table until the next. */
static const char *keep_prompt(mc_table *t, char *text, size_t size, size_t *length)
{
    mc_free(t->chat);
    t->chat = text;
    if (length) *length = size;
    return t->chat;
}

const char *mc_table_chat_in(mc_table *t, int column, const mc_tokenizer *tok,
                             mc_chat_format format, size_t *length)
{
    int answers;
    mc_chat_text chat = {0};
    if (!t || mc_failed(t->ctx) || !mc_given(t->ctx, tok)) return NULL;
    const cJSON *first = read_messages(t, column, &answers);
    if (!first || !render_list(t, column, first, end_of_prompt(first), tok, format, true, &chat))
        return NULL;
    mc_free(chat.spans);
    return keep_prompt(t, chat.text, chat.size, length);
}

const char *mc_table_chat(mc_table *t, int column, size_t *length)
{
    int answers;
    mc_text prompt = {0};
    if (!t || mc_failed(t->ctx)) return NULL;
    const cJSON *message = read_messages(t, column, &answers);
    if (!message) return NULL;
    bool good = true;
    for (const cJSON *end = end_of_prompt(message); message != end && good; message = message->next)
        good = append_message(&prompt, roles[role_of(message)].title, field(message, "content"));
    if (!good || !append(&prompt, roles[ASSISTANT].title)) {
        mc_text_release(&prompt);
        mc_fail_nomem(t->ctx, "a conversation");
        return NULL;
    }
    return keep_prompt(t, prompt.data, prompt.size, length);
}

void mc_chat_release(mc_chat *c)
{
    mc_text_release(&c->past);
    mc_text_release(&c->prompt);
    mc_text_release(&c->response);
}
