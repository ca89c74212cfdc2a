/* Conversations as rows: a list of messages becomes, for each message of the assistant, a prompt
 * (all that comes before it) and the response (what it says).
 *
 *     [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"},
 *      {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "Bye"}, ...]
 *
 * The prompt of "Hi" is "System: Be brief.\nUser: Hello\nAssistant:", and the response " Hi". In
 * later prompts of the conversation it stands as "Assistant: Hi\n". */
#ifndef MC_DATASETS_CHAT_INTERNAL_H
#define MC_DATASETS_CHAT_INTERNAL_H

#include "datasets/conversation.h"
#include "datasets/dataset_internal.h"
#include "datasets/table/table_internal.h"

/* Starts as { 0 }. */
typedef struct mc_chat {
    const cJSON *next; /* the message that comes next; NULL: the conversation has ended */
    mc_text past;      /* the messages before it */
    mc_text prompt, response;
} mc_chat;

/* Begins with the conversation in a column of the table's current row, which stays until the row
 * goes. Errors (false), with their place: a file that is not JSON Lines; no list of objects with
 * "role" (system, user or assistant) and "content" (text), and no other key but null; no message of
 * the assistant. */
bool mc_chat_begin(mc_chat *chat, mc_table *table, int column);
/* The next message of the assistant, as chat->prompt and chat->response. False at the end, and
 * where memory is out, which is the context's error. */
bool mc_chat_next(mc_chat *chat, mc_context *ctx);
/* A whole conversation in a format: chat->prompt is the text, chat->response the bounds of the
 * assistant's messages as text, "12 40 51 90 ". False after an error. */
bool mc_chat_render_whole(mc_chat *chat, mc_table *table, int column, const mc_tokenizer *tok,
                          mc_chat_format format);
void mc_chat_release(mc_chat *chat);

#endif
