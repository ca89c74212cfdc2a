/* The formats of conversations and their messages: see datasets/conversation.h.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_DATASETS_CHAT_FORMAT_H
#define MC_DATASETS_CHAT_FORMAT_H

typedef enum mc_chat_format {
    MC_CHAT_CHATML = 1, /* <|im_start|>user\n...<|im_end|>\n: Qwen, SmolLM2 and others */
    MC_CHAT_LLAMA2,     /* <s>[INST] <<SYS>>\n...\n<</SYS>>\n\n... [/INST] ... </s> */
    MC_CHAT_LLAMA3,     /* <|start_header_id|>user<|end_header_id|>\n\n...<|eot_id|> */
    MC_CHAT_MISTRAL_V1, /* <s> [INST] ... [/INST] ...</s>, with [INST] as text */
    MC_CHAT_MISTRAL_V3, /* the same with tokens [INST] and [/INST] */
    MC_CHAT_ZEPHYR,     /* <|user|>\n...</s>\n */
} mc_chat_format;

typedef struct mc_chat_message {
    const char *role; /* "system", "user" or "assistant" */
    const char *content;
} mc_chat_message;

#endif
