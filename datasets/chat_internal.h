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

/* What is read, and what was read last. The first three are set before. */
typedef struct mc_chat {
    const mc_tokenizer *tok;
    mc_chat_format format;     /* 0: lines such as those above */
    bool whole;                /* a conversation is one row */
    const cJSON *first, *next; /* next: the message that comes next; NULL: it has ended */
    mc_text past;              /* without a format: the messages before it */
    mc_text prompt, response;  /* of the row */
} mc_chat;

/* Begins with the conversation in a column of the table's current row, which stays until the row
 * goes. Errors (false), with their place: a file that is not JSON Lines; no list of objects with
 * "role" (system, user or assistant) and "content" (text), and no other key but null; no message of
 * the assistant. */
bool mc_chat_begin(mc_chat *chat, mc_table *table, int column);
/* The row of the assistant's next message, or of the whole conversation: then its text is that of
 * the conversation, its target the bounds of the assistant's messages, "12 40 51 90 ". Both are
 * the chat's until the next call. False at the end, and after an error. */
bool mc_chat_next(mc_chat *chat, mc_table *table, int column, mc_data_row *row);
/* The row's text becomes the prompt of a user who says it. False after an error. */
bool mc_chat_ask(mc_chat *chat, mc_table *table, int column, mc_data_row *row);
void mc_chat_release(mc_chat *chat);

#endif
