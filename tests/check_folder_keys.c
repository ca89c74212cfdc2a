/* Prints the tables of keys that the JSON files of a model's folder may have, a row a line:
 *
 *     tokenizer_config.json<TAB>do_lower_case<TAB>followed<TAB>[true]
 *
 * for check_folder_keys.py. The last column is empty where every value is allowed. */
#include <stdio.h>
#include "models/files/keys_internal.h"
#include "tokenizers/files/keys_internal.h"

static const mc_key_table *const tables[] = {
    &mc_keys_tokenizer_config,    &mc_keys_special_tokens_map,
    &mc_keys_tokenizer_json,      &mc_keys_generation_config,
    &mc_keys_preprocessor_config, &mc_keys_sentence_bert_config,
    &mc_keys_pooling_config,      &mc_keys_sentence_transformers_config,
    &mc_keys_lora_config,         &mc_keys_prompt_tuning_config,
};

int main(void)
{
    static const char *const meanings[] = {
        [MC_KEY_NO_EFFECT] = "no effect",
        [MC_KEY_FOLLOWED] = "followed",
        [MC_KEY_ONLY] = "only",
        [MC_KEY_WARNED] = "warned",
    };
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (const mc_key_row *row = tables[t]->rows; row->key; row++)
            printf("%s\t%s\t%s\t%s\n", tables[t]->file, row->key, meanings[row->meaning],
                   row->harmless ? row->harmless : "");
    return 0;
}
