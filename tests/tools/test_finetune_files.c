/* `modelcenter finetune` and `eval` on files of one's own: each kind of task, each family that
 * fits, what is saved with the model, and the errors of options that do not fit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <cjson/cJSON.h>
#include "core/base/file_internal.h"
#include "tests/datasets/prompt_tokenizers.h"
#include "tests/tools/command_test.h"

/* ---- models and rows ------------------------------------------------------------------------- */

static void write_model(const char *name, mc_prompt_style style, const char *config)
{
    temp_folder model;
    snprintf(model.path, sizeof model.path, "%s", temp_path(&folder, name));
    assert_int_equal(mkdir(model.path, 0777), 0);
    write_text(temp_path(&model, "config.json"), config);
    if (style != MC_PROMPT_ENCODER)
        write_prompt_tokenizer(&model, style);
    else
        write_text(temp_path(&model, "vocab.txt"),
                   "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\nd\n");
}

#define CPM_CONFIG(layers)                                                                    \
    "{\"vocab_size\": 15, \"dim_model\": 16, \"num_heads\": 2, \"dim_head\": 8, \"dim_ff\": " \
    "32, " layers ", \"position_bias_num_buckets\": 8, \"position_bias_max_distance\": 16, "  \
    "\"init_std\": 0.3, \"half\": false}"

static int set_up(void **state)
{
    (void)state;
    folder = temp_folder_new();
    write_model("bert", MC_PROMPT_ENCODER,
                "{\"model_type\": \"bert\", \"vocab_size\": 9, \"hidden_size\": 16, "
                "\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"intermediate_size\": 32, "
                "\"max_position_embeddings\": 24, \"hidden_dropout_prob\": 0, "
                "\"attention_probs_dropout_prob\": 0, \"initializer_range\": 0.2}");
    write_model(
        "gpt2", MC_PROMPT_DECODER,
        "{\"model_type\": \"gpt2\", \"vocab_size\": 6, \"n_embd\": 16, \"n_layer\": 1, "
        "\"n_head\": 2, \"n_positions\": 24, \"initializer_range\": 0.2, \"resid_pdrop\": 0, "
        "\"embd_pdrop\": 0, \"attn_pdrop\": 0, \"bos_token_id\": 5, \"eos_token_id\": 5}");
    write_model(
        "gptj", MC_PROMPT_DECODER,
        "{\"model_type\": \"gptj\", \"vocab_size\": 6, \"n_embd\": 16, \"n_layer\": 1, "
        "\"n_head\": 2, \"n_positions\": 24, \"rotary_dim\": 4, \"initializer_range\": 0.2, "
        "\"bos_token_id\": 5, \"eos_token_id\": 5}");
    write_model(
        "t5", MC_PROMPT_T5,
        "{\"model_type\": \"t5\", \"vocab_size\": 8, \"d_model\": 16, \"d_ff\": 32, \"d_kv\": "
        "8, \"num_heads\": 2, \"num_layers\": 1, \"dropout_rate\": 0, "
        "\"relative_attention_num_buckets\": 8}");
    write_model("glm", MC_PROMPT_GLM,
                "{\"model_type\": \"glm\", \"vocab_size\": 9, \"dim_model\": 16, \"num_heads\": 2, "
                "\"dim_head\": 8, \"dim_ff\": 32, \"num_layers\": 1, \"position_size\": 25, "
                "\"dropout_p\": 0, \"sop_tok_id\": 6, \"eop_tok_id\": 7, \"mask_tok_id\": 8}");
    write_model("cpm1", MC_PROMPT_CPM1, CPM_CONFIG("\"num_layers\": 1"));
    write_model("cpm2", MC_PROMPT_CPM2,
                CPM_CONFIG("\"num_encoder_layers\": 1, \"num_decoder_layers\": 1"));
    return 0;
}

/* Rows of letters: the class is the first letter, the other text the second, `tags` are the letters
 * that occur, the number is how often `a` does, and the reply is the letter after the first. */
static void write_rows(const char *name, int first, int count)
{
    FILE *file = fopen(temp_path(&folder, name), "w");
    assert_non_null(file);
    fputs("id,letters,other,class,tags,number,reply\n", file);
    for (int i = first; i < first + count; i++) {
        char text[3] = {(char)('a' + i % 3), (char)('a' + i / 3 % 3), '\0'};
        bool same = text[0] == text[1];
        fprintf(file, "%d,\"%c %c\",%c,%c,%c%s%c,%d,%c\n", i, text[0], text[1], text[1], text[0],
                text[0], same ? "" : "|", same ? ' ' : text[1], (text[0] == 'a') + (text[1] == 'a'),
                text[0] + 1);
    }
    assert_int_equal(fclose(file), 0);
}

/* The value of `name=` in the result line. */
static double value_of(const char *name)
{
    char key[64];
    snprintf(key, sizeof key, " %s=", name);
    const char *found = strstr(out, key);
    if (!found) fail_msg("no %s= in: %s", name, out);
    return strtod(found + strlen(key), NULL);
}

/* The result line up to the time, kept until the next call. */
static const char *result(void)
{
    static char text[512];
    snprintf(text, sizeof text, "%.500s", out);
    char *end = strstr(text, " train_seconds");
    if (!end) fail_msg("no result in: %s", out);
    *end = '\0';
    return text;
}

/* Trains, and evaluates what was saved by the columns that were saved with it: the same result. */
static void train(const char *family, const char *columns)
{
    char line[1024], expected[512];
    snprintf(line, sizeof line,
             "rm -rf out-%s; $MC finetune %s --config %s --data train.csv --val val.csv %s "
             "--epochs 14 --batch-size 12 --lr 0.02 --output out-%s --log-every 1000",
             family, family, family, columns, family);
    must(line);
    snprintf(expected, sizeof expected, "%s", strstr(result(), " ") + strlen(" task=train.csv"));
    snprintf(line, sizeof line, "$MC eval %s --model out-%s --data val.csv --batch-size 12%s",
             family, family, strstr(columns, "--generate") ? " --generate" : "");
    must(line);
    assert_string_equal(strstr(result(), " ") + strlen(" task=val.csv"), expected);
}

static void expect_file(const char *name, const char *part)
{
    read_text(err, &folder, name);
    if (!strstr(err, part)) fail_msg("no %s in %s:\n%s", part, name, err);
}

/* ---- kinds ----------------------------------------------------------------------------------- */

static void test_classes(void **state)
{
    (void)state;
    static const char *const families[] = {"bert", "gpt2", "gptj", "t5"};
    for (int i = 0; i < 4; i++) {
        train(families[i], "--text letters --label class");
        if (value_of("accuracy") < 0.9) fail_msg("%s: %s", families[i], out);
        assert_true(value_of("n") == 18);
    }
    expect_file("out-bert/task.json", "\"labels\":\t[\"a\", \"b\", \"c\"]");
    expect_file("out-bert/task.json", "\"label\":\t\"class\"");
    expect_file("out-bert/config.json", "\"problem_type\":\t\"single_label_classification\"");
    expect_file("out-bert/config.json", "\"2\":\t\"c\"");
    write_text(temp_path(&folder, "other.csv"), "letters,class\na,a\nb,d\n");
    must_refuse(1, "other.csv:3:3: label \"d\": expected one of \"a\", \"b\", \"c\"",
                "$MC eval bert --model out-bert --data other.csv");
    must("rm out-bert/task.json && $MC eval bert --model out-bert --data val.csv --text letters "
         "--label class"); /* labels are the config's */
    assert_true(value_of("accuracy") >= 0.9);
    must_refuse(1, "out-bert: no task.json says which columns it was trained on",
                "$MC eval bert --model out-bert --data val.csv");
}

/* val_loss is the mean of minus the logarithm of the class's probability, as predict shows it. */
static void test_validation_loss(void **state)
{
    (void)state;
    train("bert", "--text letters --label class");
    double loss = value_of("val_loss"), sum = 0;
    must("$MC predict out-bert --data val.csv --output val.jsonl > none && "
         "cut -d, -f4 val.csv | sed 1d | paste - val.jsonl");
    int rows = 0;
    for (char *line = out, *end; (end = strchr(line, '\n')); line = end + 1, rows++) {
        *end = '\0';
        const char class[] = {line[0], '\0'};
        char *json = strchr(line, '{');
        assert_non_null(json);
        cJSON *row = cJSON_Parse(json);
        const cJSON *all = cJSON_GetObjectItem(row, "probabilities");
        sum -= log(cJSON_GetObjectItem(all, class)->valuedouble);
        cJSON_Delete(row);
    }
    assert_true(rows == 18 && fabs(sum / rows - loss) < 1e-4); /* printed with 4 decimals */
    train("bert", "--text letters --label tags --multi-label --metric val_loss --keep best");
    assert_true(value_of("val_loss") > 0 && value_of("val_loss") < 0.5);
}

#define GO_ON "$MC finetune bert --pretrained named --val val.csv --text letters --label class "
#define LOOK "$MC predict named --data val.csv --text letters --output "

/* A trained classifier whose labels a, b, c have these names, in the order of its rows. */
static void rename_labels(const char *a, const char *b, const char *c)
{
    char line[512];
    snprintf(
        line, sizeof line,
        "rm -rf named && cp -r out-bert named && rm named/task.json && sed -i 's/\"0\":\t\"a\"/"
        "\"0\":\t\"%s\"/; s/\"1\":\t\"b\"/\"1\":\t\"%s\"/; s/\"2\":\t\"c\"/\"2\":\t\"%s\"/' "
        "named/config.json",
        a, b, c);
    must(line);
}

/* Going on with a classifier: its rows keep their names, whatever their order; other labels get a
 * new head, which is said. */
static void test_going_on(void **state)
{
    (void)state;
    train("bert", "--text letters --label class");
    rename_labels("c", "a", "b");
    must(LOOK "before.jsonl; " GO_ON "--data train.csv --lr 0 --max-steps 1 --output on; "
              "rm -r named; mv on named; " LOOK "after.jsonl; cmp before.jsonl after.jsonl");
    expect_file("named/config.json", "\"0\":\t\"c\"");
    expect_file("named/task.json", "\"labels\":\t[\"c\", \"a\", \"b\"]");
    must(GO_ON "--data train.csv --max-steps 3 --batch-size 9 --save-every 2 --output whole");
    char whole[512];
    snprintf(whole, sizeof whole, "%s", result());
    must(GO_ON "--data train.csv --max-steps 3 --batch-size 9 --save-every 2 --stop-after 2 "
               "--output parts; " GO_ON "--data train.csv --max-steps 3 --batch-size 9 "
               "--save-every 2 --output parts --resume");
    assert_string_equal(result(), whole);

    write_text(temp_path(&folder, "de.csv"), "letters,class\na,d\nb,e\na,d\nb,e\n");
    must("$MC finetune bert --pretrained named --data de.csv --text letters --label class "
         "--max-steps 1 --output two");
    must_hold(err, "the classifier of named has 3 labels (\"c\", \"a\", \"b\"), the rows need 2 "
                   "labels (\"d\", \"e\"): it is replaced by a new one");
    expect_file("two/config.json", "\"0\":\t\"d\"");
    must("$MC finetune bert --pretrained named --data train.csv --text letters --label number "
         "--regression --max-steps 1 --output one");
    must_hold(err, "the rows need 1 output: it is replaced by a new one");
    must_refuse(1, "label \"d\": expected one of \"c\", \"a\", \"b\"",
                "$MC eval bert --model named --data de.csv --text letters --label class");
}

/* Labels that are numbers mean LABEL_0, LABEL_1, ..., which are names as others are. */
static void test_numbered_labels(void **state)
{
    (void)state;
    train("bert", "--text letters --label class");
    double accuracy = value_of("accuracy");
    rename_labels("LABEL_0", "LABEL_1", "LABEL_2");
    must("awk -F, -v OFS=, 'NR > 1 { $4 = index(\"abc\", $4) - 1 } 1' val.csv > numbers.csv; "
         "$MC eval bert --model named --data numbers.csv --text letters --label class");
    assert_true(value_of("accuracy") == accuracy);
    must(LOOK
         "before.jsonl; $MC finetune bert --pretrained named --data numbers.csv --text letters "
         "--label class --lr 0 --max-steps 1 --output numbered; rm -r named; "
         "mv numbered named; " LOOK "after.jsonl; cmp before.jsonl after.jsonl");
    must("$MC eval bert --model named --data numbers.csv");
    assert_true(value_of("accuracy") == accuracy);
    must_refuse(1, "label \"a\": expected one of \"LABEL_0\"",
                "$MC eval bert --model named --data val.csv");
}

#define RENAME(a, b, c)                                                                    \
    "rm -rf named && cp -r out-bert named && sed -i 's/\"0\":\t\"a\"/\"0\":\t\"" a "\"/; " \
    "s/\"1\":\t\"b\"/\"1\":\t\"" b "\"/; s/\"2\":\t\"c\"/\"2\":\t\"" c "\"/' "             \
    "named/config.json; "

/* Where config.json and task.json disagree, eval, predict and finetune take the same names, and say
 * which: those of id2label, unless it names nothing. */
static void test_names_of_two_files(void **state)
{
    (void)state;
    train("bert", "--text letters --label class");
    double accuracy = value_of("accuracy");
    assert_null(strstr(err, "task.json"));
    must(RENAME("x", "y", "z") "$MC predict named --data val.csv --output named.csv");
    must_hold(err, "named: id2label of config.json has 3 labels (\"x\", \"y\", \"z\"), task.json 3 "
                   "labels (\"a\", \"b\", \"c\"): the names are those of config.json");
    expect_file("named.csv", "probabilities.x,probabilities.y,probabilities.z");
    must("awk -F, -v OFS=, 'NR > 1 { $4 = substr(\"xyz\", index(\"abc\", $4), 1) } 1' val.csv > "
         "renamed.csv; $MC eval --model named --data renamed.csv");
    must_hold(err, "the names are those of config.json");
    assert_true(value_of("accuracy") == accuracy);
    must_refuse(1, "val.csv:2:11: label \"a\": expected one of \"x\", \"y\", \"z\"",
                "$MC eval --model named --data val.csv");
    must(RENAME("LABEL_0", "LABEL_1", "LABEL_2") "$MC predict named --data val.csv --output "
                                                 "named.csv --overwrite");
    must_hold(err, "the names are those of task.json");
    expect_file("named.csv", "probabilities.a,probabilities.b,probabilities.c");
    must("$MC eval --model named --data val.csv");
    must_hold(err, "the names are those of task.json");
    assert_true(value_of("accuracy") == accuracy);
    must_refuse(1, "label \"LABEL_0\": expected one of \"a\", \"b\", \"c\"",
                "sed s/,a,/,LABEL_0,/ val.csv > numbers.csv; $MC eval --model named --data "
                "numbers.csv");
    must("$MC predict named --data val.csv --output before.jsonl --overwrite; " GO_ON
         "--data train.csv --lr 0 --max-steps 1 --output kept --overwrite");
    must_hold(err, "named: id2label of config.json has 3 labels (\"LABEL_0\"");
    must_hold(err, "the names are those of task.json");
    assert_null(strstr(err, "is replaced by a new one"));
    expect_file("kept/config.json", "\"0\":\t\"a\"");
    must("$MC predict kept --data val.csv --output after.jsonl --overwrite; "
         "cmp before.jsonl after.jsonl");
    assert_null(strstr(err, "task.json"));
}

static void test_values(void **state)
{
    (void)state;
    train("bert", "--text letters --text-pair other --label number --regression");
    assert_true(value_of("pearson") > 0.9 && value_of("mse") < 0.2);
    assert_true(value_of("spearman") > 0.8);
    expect_file("out-bert/config.json", "\"problem_type\":\t\"regression\"");
    expect_file("out-bert/task.json", "\"text_pair\":\t\"other\"");
    train("t5", "--text letters --label number --regression");
    assert_true(value_of("pearson") > 0.8);
    train("bert", "--text letters --label tags --multi-label --metric em --keep best");
    assert_true(value_of("f1") > 0.9 && value_of("em") > 0.8);
    expect_file("out-bert/config.json", "\"problem_type\":\t\"multi_label_classification\"");
    train("gpt2", "--text letters --label tags --multi-label");
    assert_true(value_of("f1") > 0.6);
}

static void test_texts(void **state)
{
    (void)state;
    static const char *const families[] = {"gpt2", "gptj", "t5", "cpm1", "cpm2", "glm"};
    for (int i = 0; i < 6; i++) {
        train(families[i], "--prompt letters --response reply");
        if (value_of("loss") > 0.5) /* of rows of random tokens 1.8 and more */
            fail_msg("%s: %s", families[i], out);
        assert_true(value_of("n") == 36); /* the letter and the end */
        assert_true(value_of("perplexity") >= 1);
    }
    expect_file("out-t5/task.json", "\"target\":\t\"reply\"");
    train("gpt2", "--text letters --target reply --generate --max-target-length 4");
    if (value_of("em") < 0.8 || value_of("rougeL") < 0.8) fail_msg("%s", out);
    train("t5", "--text letters --target reply --generate --max-target-length 4");
    if (value_of("em") < 0.6) fail_msg("%s", out); /* by chance a third */
}

/* Every end token of generation_config.json ends a generated text, as in `generate`. */
static void test_further_ends(void **state)
{
    (void)state;
    const char *evaluate = "$MC eval gpt2 --data asked.csv --text letters --target reply "
                           "--generate --max-target-length 4 --model";
    char line[512];
    train("gpt2", "--text letters --target reply --generate --max-target-length 4");
    must("cp -r out-gpt2 ends");
    write_text(temp_path(&folder, "ends/generation_config.json"),
               "{\"eos_token_id\": [5, 2]}"); /* 2 is "c", see gpt2_json */
    write_text(temp_path(&folder, "asked.csv"), "letters,reply\na a,b\nb b,c\nc c,d\n");
    must("$MC generate --model out-gpt2 --prompt b --json --max-new-tokens 4");
    must_hold(out, "\"ids\":[2,");
    must("$MC generate --model ends --prompt b --json --max-new-tokens 4");
    must_hold(out, "\"ids\":[2]");
    snprintf(line, sizeof line, "%s out-gpt2", evaluate);
    must(line);
    assert_true(value_of("em") == 1);
    snprintf(line, sizeof line, "%s ends", evaluate);
    must(line); /* of "c" nothing is left */
    assert_true(fabs(value_of("em") - 2.0 / 3) < 0.01);
}

/* 48 conversations in chats.jsonl: the answer to a letter is the next one. */
static void write_chats(void)
{
    static char chats[8192];
    char *end = chats;
    for (int i = 0; i < 48; i++)
        end += snprintf(end, (size_t)(chats + sizeof chats - end),
                        "{\"m\": [{\"role\": \"user\", \"content\": \"%c\"}, {\"role\": "
                        "\"assistant\", \"content\": \"%c\"}]}\n",
                        'a' + i % 3, 'b' + i % 3);
    write_text(temp_path(&folder, "chats.jsonl"), chats);
}

/* The assistant's messages are learned, and the model's folder says which column they are in. */
static void test_conversations(void **state)
{
    (void)state;
    write_chats();
    must("$MC finetune gpt2 --config gpt2 --data chats.jsonl --messages m --epochs 20 --batch-size "
         "8 "
         "--lr 0.01 --output chat");
    expect_file("chat/task.json", "\"messages\":\t\"m\"");
    must("$MC eval gpt2 --model chat --data chats.jsonl");
    if (value_of("loss") > 0.5) fail_msg("%s", out);
    must("$MC predict chat --data chats.jsonl --output said.jsonl --max-target-length 4");
    expect_file("said.jsonl", "{\"text\":\" b\"}\n{\"text\":\" c\"}\n{\"text\":\" d\"}\n");
    write_text(temp_path(&folder, "asked.jsonl"),
               "{\"m\": [{\"role\": \"user\", \"content\": \"b\"}]}\n");
    must("$MC predict chat --data asked.jsonl --overwrite --output said.jsonl --max-target-length "
         "4");
    expect_file("said.jsonl", "{\"text\":\" c\"}\n");
    write_text(temp_path(&folder, "asked.jsonl"), "{\"text\": \"User: c\\nAssistant:\"}\n");
    must("$MC predict chat --data asked.jsonl --overwrite --output said.jsonl --max-target-length "
         "4");
    expect_file("said.jsonl", "{\"text\":\" d\"}\n");
    write_text(temp_path(&folder, "asked.jsonl"), "{\"m\": []}\n");
    must_refuse(1, "expected a list of messages, found an empty one",
                "$MC predict chat --data asked.jsonl --overwrite --output said.jsonl");
    must_refuse(2, "expected no other columns",
                "$MC finetune gpt2 --config gpt2 --data chats.jsonl --messages m --text t");
    write_text(temp_path(&folder, "asked.csv"), "q,a\nb,c\na,b\na,d\n");
    /* as what a user says in a chat format, which the model was not trained with */
    must("$MC eval gpt2 --model chat --data asked.csv --text q --target a --generate "
         "--chat-format zephyr --max-target-length 6");
    must_refuse(1, "conversations are read from JSON Lines alone",
                "$MC finetune gpt2 --config gpt2 --data train.csv --messages letters");
}

/* In the chat format of a template: whole conversations are rows. */
static void test_chat_format(void **state)
{
    (void)state;
    write_chats();
    write_text(temp_path(&folder, "gpt2/chat_template.jinja"), "<|user|>");
    must("$MC finetune gpt2 --config gpt2 --data chats.jsonl --messages m "
         "--epochs 20 --batch-size 8 --lr 0.01 --output zephyr");
    expect_file("zephyr/task.json", "\"chat_format\":\t\"zephyr\"");
    must("$MC eval gpt2 --model zephyr --data chats.jsonl");
    if (value_of("loss") > 0.5) fail_msg("%s", out);
    /* the folder keeps the template */
    must("$MC generate --model zephyr --chat --prompt b --max-new-tokens 6");
    assert_string_equal(out, "c\n");
    /* predict answers at the end of a conversation, or a text as what a user says */
    write_text(temp_path(&folder, "asked.jsonl"),
               "{\"m\": [{\"role\": \"user\", \"content\": \"b\"}]}\n");
    must("$MC predict zephyr --data asked.jsonl --overwrite --output said.jsonl "
         "--max-target-length 6");
    expect_file("said.jsonl", "{\"text\":\"c\"}\n");
    must("$MC predict zephyr --text b --overwrite --output said.csv --max-target-length 6");
    expect_file("said.csv", "text,predicted_text\nb,c\n");
    write_text(temp_path(&folder, "asked.jsonl"), "{\"m\": [{\"role\": \"user\", \"content\": "
                                                  "\"b\"}, {\"role\": \"system\", \"content\": "
                                                  "\"c\"}]}\n");
    must_refuse(1, "asked.jsonl:1: key \"m\": message 1: role system",
                "$MC predict zephyr --data asked.jsonl --overwrite --output said.jsonl");
    must_refuse(1, "answers of conversations in chat format zephyr are not scored: expected `eval",
                "$MC finetune gpt2 --config gpt2 --data chats.jsonl --messages m --generate");
    /* each answer after what precedes it, and a text as what a user says */
    must("$MC eval gpt2 --model zephyr --data chats.jsonl --generate --max-target-length 6");
    assert_true(value_of("em") == 1 && value_of("n") == 48);
    write_text(temp_path(&folder, "asked.csv"), "q,a\nb,c\na,b\na,d\n");
    must("$MC eval gpt2 --model zephyr --data asked.csv --text q --target a --generate "
         "--max-target-length 6");
    assert_true(fabs(value_of("em") - 2.0 / 3) < 0.01);
    must_refuse(1, "\"vicuna\": expected chatml",
                "$MC finetune gpt2 --config gpt2 --data chats.jsonl --messages m --chat-format "
                "vicuna --output no");
    must_refuse(2, "--chat-format: expected --messages",
                "$MC finetune gpt2 --config gpt2 --data train.csv --text letters --target reply "
                "--chat-format zephyr --output no");
}

/* Without --val a tenth is held back, the same each time; the seed chooses which. */
static void test_fraction(void **state)
{
    (void)state;
    static char first[512];
    const char *line = "$MC finetune bert --config bert --data train.csv --text letters --label "
                       "class --max-steps 3 --seed 4";
    must(line);
    snprintf(first, sizeof first, "%s", result());
    assert_true(value_of("n") == 5);
    must(line);
    assert_string_equal(result(), first);
    must(
        "$MC finetune bert --config bert --data train.csv --text letters --label class --max-steps "
        "3 --val-fraction 0.5");
    assert_true(value_of("n") == 27);
}

static void test_errors(void **state)
{
    (void)state;
    static const char *const lines[][2] = {
        {"expected --task, or --text with a column", "bert --config bert --data train.csv"},
        {"expected --label with a column", "bert --config bert --data train.csv --text letters"},
        {"expected one of --regression and --multi-label",
         "bert --config bert --data train.csv --text a --label b --regression --multi-label"},
        {"--label: \"number\" is named twice",
         "bert --config bert --data train.csv --text letters --label number,number --multi-label"},
        {"expected either --target or --label",
         "t5 --config t5 --data train.csv --text a --label b --target c"},
        {"expected either --task or the columns",
         "bert --config bert --data . --task BoolQ --text letters"},
        {"expected one of --val and --val-fraction",
         "bert --config bert --data a --val b --val-fraction 0.5 --text a --label b"},
        {"bert is an encoder, which does not generate text",
         "bert --config bert --data train.csv --text letters --target reply"},
        {"cpm1 has no classification head: expected --target",
         "cpm1 --config cpm1 --data train.csv --text letters --label class"},
        {"--text-pair: a text is generated from one text",
         "t5 --config t5 --data train.csv --text a --text-pair b --target c"},
        {"expected one of --prompt and --text",
         "t5 --config t5 --data train.csv --text a --prompt b --response c"},
        {"expected --task with --classifier",
         "t5 --config t5 --data train.csv --text a --label c --classifier"},
    };
    char line[512];
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        snprintf(line, sizeof line, "$MC finetune %s", lines[i][1]);
        must_refuse(2, lines[i][0], line);
    }
    must_refuse(1, "train.csv: no column \"letter\": expected one of \"id\", \"letters\"",
                "$MC finetune bert --config bert --data train.csv --text letter --label class");
    must_refuse(1, "train.csv:2:3: expected a number, found \"a a\"",
                "$MC finetune bert --config bert --data train.csv --text class --label letters "
                "--regression");
    write_text(temp_path(&folder, "open.csv"), "letters,class\na,a\n\"b,b\n");
    must_refuse(1, "open.csv:3:1: this quote is never closed",
                "$MC finetune bert --config bert --data open.csv --text letters --label class");
    must_refuse(1, "--metric \"accuracy\": expected one of pearson, spearman, mse",
                "$MC finetune bert --config bert --data train.csv --text letters --label number "
                "--regression --metric accuracy");
}

/* ---- lengths --------------------------------------------------------------------------------- */

/* What the tokenizer's folder says is the default, and eval's too where no task.json says more: the
 * last two of four letters decide, which are all of the rows beside. */
static void test_lengths_of_tokenizer(void **state)
{
    (void)state;
    must("cp -r bert short && "
         "echo '{\"model_max_length\": 4, \"truncation_side\": \"left\"}' "
         "> short/tokenizer_config.json && "
         "echo letters,class | tee last.csv > long.csv && for i in 1 2 3 4; do "
         "printf 'a b c d,x\\nd c b a,y\\na d,x\\n' >> long.csv; "
         "printf 'c d,x\\nb a,y\\na d,x\\n' >> last.csv; done");
    must("$MC finetune --config short --text letters --label class --data long.csv --val long.csv "
         "--dry-run");
    must_hold(err, "8 of 12 are cut at 4");
    must_hold(err, "first row: 4 tokens: [CLS] c d [SEP]");
    must("$MC finetune --config short --text letters --label class --data long.csv --val long.csv "
         "--epochs 2 --batch-size 4 --lr 0.02 --output cut");
    must_hold(err, "8 of 12 are cut at 4");
    double loss = value_of("val_loss");
    must("rm cut/task.json && $MC eval --model cut --text letters --label class --data long.csv");
    assert_true(value_of("val_loss") == loss);
    must("$MC eval --model cut --text letters --label class --data long.csv --max-length 6");
    assert_true(value_of("val_loss") != loss);
    must("echo '{}' > cut/tokenizer_config.json && "
         "$MC eval --model cut --text letters --label class --data last.csv");
    assert_true(value_of("val_loss") == loss);
    must("$MC eval --model cut --text letters --label class --data long.csv --max-length 4");
    assert_true(value_of("val_loss") != loss); /* the first two */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_classes),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_validation_loss),
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_going_on),
        cmocka_unit_test(test_numbered_labels),
        cmocka_unit_test(test_names_of_two_files),
        cmocka_unit_test(test_fraction),
        cmocka_unit_test(test_further_ends),
        cmocka_unit_test(test_conversations),
        cmocka_unit_test(test_chat_format),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_lengths_of_tokenizer),
    };
    set_up(NULL);
    write_rows("train.csv", 0, 54);
    write_rows("val.csv", 9, 18);
    int failed = cmocka_run_group_tests_name("finetune on files", tests, NULL, remove_folder);
    return failed;
}
