/* `modelcenter generate` as a user runs it, on a small model of random weights: what goes to which
 * stream, in which form, and that it is what the library generates. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <cjson/cJSON.h>
#include <math.h>
#include <unistd.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tests/shared_data.h"
#include "tests/tools/command_test.h"

/* Runs `modelcenter generate --model model <arguments>`. */
static int generate(const char *arguments)
{
    char line[3000];
    snprintf(line, sizeof line, "$MC generate --model model %s", arguments);
    return run_in(&folder, "", line);
}

static int set_up(void **state)
{
    (void)state;
    folder = temp_folder_new();
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 8});
    mc_gpt2_config c = mc_gpt2_config_default();
    c.dim = 16;
    c.dim_ff = 32;
    c.layers = 2;
    c.heads = 2;
    c.positions = 40;
    c.init_std = 0.3f;
    mc_model_save(mc_gpt2_new(ctx, &c, NULL, NULL), temp_path(&folder, "model"));
    int bad = mc_print_error(ctx, stderr);
    mc_context_free(ctx);
    return bad;
}

/* Prompts and answers as ids are what the library generates. */
static void test_ids(void **state)
{
    (void)state;
    mc_context *ctx = mc_init_distributed(NULL);
    mc_model *gpt2 = mc_gpt2_from_pretrained(ctx, temp_path(&folder, "model"), NULL);
    const int32_t *prompts[] = {(int32_t[]){5, 1, 300}, (int32_t[]){50256}};
    mc_generate_options o = {.max_new_tokens = 6};
    mc_generation *g = mc_model_generate(gpt2, prompts, (int[]){3, 1}, 2, &o);
    assert_false(mc_print_error(ctx, stderr));
    char expected[256] = "", first[200] = "";
    for (int i = 0; i < 6; i++) snprintf(first + strlen(first), 16, i ? " %d" : "%d", g->ids[0][i]);
    snprintf(expected, sizeof expected, "%s\n", first);
    assert_int_equal(generate("--ids --prompt '5, 1 300' --max-new-tokens 6"), 0);
    assert_string_equal(out, expected);
    assert_string_equal(strchr(err, ';'), "; cache of 1 sequence, 16 tokens: 4.0 KiB\n");
    assert_int_equal(strncmp(err, "memory: weights 3.1 MiB", 23), 0);
    snprintf(expected, sizeof expected, "5 1 300 %s\n", first);
    assert_int_equal(generate("--ids --prompt '5 1 300' --echo --max-new-tokens 6"), 0);
    assert_string_equal(out, expected);
    /* the empty prompt begins a text, which is <|endoftext|> */
    assert_int_equal(generate("--ids --prompt '5 1 300' --prompt '' --max-new-tokens=6"), 0);
    char *line = out;
    for (int p = 0; p < 2; p++) {
        cJSON *json = cJSON_ParseWithOpts(line, (const char **)&line, false);
        assert_non_null(json);
        const cJSON *ids = cJSON_GetObjectItem(json, "ids");
        assert_int_equal(cJSON_GetArraySize(ids), 6);
        for (int i = 0; i < 6; i++)
            assert_int_equal(cJSON_GetArrayItem(ids, i)->valueint, g->ids[p][i]);
        assert_int_equal(cJSON_GetObjectItem(json, "tokens")->valueint, 6);
        assert_true(cJSON_GetObjectItem(json, "score")->valuedouble < 0);
        cJSON_Delete(json);
    }
    mc_context_free(ctx);
}

/* The same answers in batches of any size, from a file as from options, drawn by seed. */
/* --weights gives what the library generates with weights in 8 bits. */
static void test_weights(void **state)
{
    (void)state;
    mc_context *ctx = mc_init_distributed(NULL);
    mc_model *gpt2 = mc_gpt2_from_pretrained(ctx, temp_path(&folder, "model"), NULL);
    mc_model_quantize(gpt2, MC_WEIGHTS_FP8);
    const int32_t prompt[] = {5, 1, 300}, *prompts[] = {prompt};
    mc_generate_options o = {.max_new_tokens = 6};
    mc_generation *g = mc_model_generate(gpt2, prompts, (int[]){3}, 1, &o);
    assert_false(mc_print_error(ctx, stderr));
    char expected[200] = "";
    for (int i = 0; i < 6; i++)
        snprintf(expected + strlen(expected), 16, i < 5 ? "%d " : "%d\n", g->ids[0][i]);
    assert_int_equal(generate("--weights fp8 --ids --prompt '5, 1 300' --max-new-tokens 6"), 0);
    assert_string_equal(out, expected);
    assert_int_equal(generate("--weights int4 --ids --prompt 5"), 2);
    assert_non_null(strstr(err, "--weights"));
    assert_non_null(strstr(err, "fp8"));
    mc_context_free(ctx);
}

static void test_batches(void **state)
{
    (void)state;
    static char first[sizeof out];
    write_text(temp_path(&folder, "prompts"), "1 2 3\n40000\n\n7 7 7 7 7 7 7\n9,9\n");
    const char *common = "--ids --top-k 50 --seed 4 --max-new-tokens 5";
    char arguments[400];
    for (int size = 1; size <= 6; size += 5) {
        snprintf(arguments, sizeof arguments, "%s --prompts prompts --batch-size %d", common, size);
        assert_int_equal(generate(arguments), 0);
        if (size == 1) memcpy(first, out, sizeof out);
        assert_string_equal(out, first);
    }
    snprintf(arguments, sizeof arguments, "%s --prompts - < prompts", common);
    assert_int_equal(generate(arguments), 0);
    assert_string_equal(out, first);
    snprintf(arguments, sizeof arguments,
             "%s --prompt '1 2 3' --prompt 40000 --prompt '' --prompt '7 7 7 7 7 7 7' "
             "--prompt 9,9",
             common);
    assert_int_equal(generate(arguments), 0);
    assert_string_equal(out, first);
    assert_int_equal(generate("--ids --prompts prompts --top-k 50 --seed 5 --max-new-tokens 5"), 0);
    assert_string_not_equal(out, first);
    /* A prompt that is too long is one error among the answers. */
    write_text(
        temp_path(&folder, "long"),
        "1 2 3\n1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1\n9\n");
    assert_int_equal(generate("--ids --prompts long --max-new-tokens 5"), 0);
    const char *error = strstr(out, "\"error\":");
    assert_non_null(error);
    assert_non_null(strstr(error, "38 tokens and 5 new ones, the model has 40 positions"));
    assert_true(strstr(out, "\"1 2 3\"") < error && strstr(error, "{\"prompt\":\"9\",\"ids\""));
    assert_int_equal(generate("--ids --prompt 1 --num-beams 3 --dtype bf16 --max-new-tokens 3"), 0);
    assert_int_equal(strspn(out, "0123456789 "), strlen(out) - 1);
}

static bool is_there(const char *name) { return access(temp_path(&folder, name), F_OK) == 0; }

/* Prompts under a key of JSON Lines, and answers in a file that is there when all are. */
static void test_files(void **state)
{
    (void)state;
    static char expected[sizeof out], written[TEXT_ROOM];
    write_text(temp_path(&folder, "prompts"), "1 2 3\n\n7 7 7\n");
    write_text(temp_path(&folder, "a.jsonl"),
               "{\"prompt\": \"1 2 3\"}\n\n{\"prompt\": \"\", \"id\": 2}\n{\"prompt\": \"7 7 7\"}");
    write_text(temp_path(&folder, "b.ndjson"),
               "{\"in\": {\"text\": \"1 2 3\"}}\n{\"in\": {\"text\": "
               "\"\"}}\n{\"in\": {\"text\": \"7 7 7\"}}\n");
    assert_int_equal(generate("--ids --prompts prompts --max-new-tokens 5"), 0);
    memcpy(expected, out, sizeof out);
    assert_non_null(strstr(err, "cache of 3 sequences, 48 tokens: 12.0 KiB"));
    assert_int_equal(generate("--ids --prompts a.jsonl --max-new-tokens 5"), 0);
    assert_string_equal(out, expected);
    assert_int_equal(generate("--ids --prompts b.ndjson --json-key in.text --max-new-tokens 5"), 0);
    assert_string_equal(out, expected);
    for (int beams = 0; beams < 2; beams++) {
        const char *how = beams ? "--num-beams 3 --batch-size 2" : "--batch-size 2";
        char arguments[200];
        snprintf(arguments, sizeof arguments, "--ids --prompts a.jsonl --max-new-tokens 5 %s", how);
        assert_int_equal(generate(arguments), 0);
        memcpy(expected, out, sizeof out);
        strcat(arguments, " --output answers");
        assert_int_equal(generate(arguments), 0);
        assert_string_equal(out, "");
        read_text(written, &folder, "answers");
        assert_string_equal(written, expected);
        assert_int_equal(unlink(temp_path(&folder, "answers")), 0);
    }
    assert_int_equal(generate("--ids --prompt 50257 --num-beams 2 --output no"), 1);
    assert_false(is_there("no"));
    assert_int_equal(generate("--ids --prompt 1 --output nowhere/no"), 1);
    assert_non_null(strstr(err, "--output nowhere/no: cannot write there: No such file"));
}

/* Text in, text out. */
static void test_text(void **state)
{
    (void)state;
    const char *vocabulary = shared_path("data/vocab/gpt2/tokenizer.json");
    if (!vocabulary) skip();
    char command[2000];
    snprintf(command, sizeof command, "cp '%s' '%s/model/'", vocabulary, folder.path);
    assert_int_equal(system(command), 0);
    assert_int_equal(generate("--prompt 'Hello, world' --max-new-tokens 8 --json"), 0);
    cJSON *json = cJSON_Parse(out);
    assert_non_null(json);
    assert_string_equal(cJSON_GetObjectItem(json, "prompt")->valuestring, "Hello, world");
    char text[1000];
    snprintf(text, sizeof text, "%s\n", cJSON_GetObjectItem(json, "text")->valuestring);
    cJSON_Delete(json);
    assert_int_equal(generate("--prompt 'Hello, world' --max-new-tokens 8"), 0); /* streamed */
    assert_string_equal(out, text);
    assert_int_equal(generate("--prompt 'h\u00e9\u65e5\U0001f600' --max-new-tokens 1 --json"), 0);
    assert_non_null(strstr(out, "{\"prompt\":\"h\u00e9\u65e5\U0001f600\","));
    static const char *const broken[] = {"x\\377", "\\303", "\\355\\240\\200", "\\340\\200\\200"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        char arguments[100];
        snprintf(arguments, sizeof arguments, "--prompt \"$(printf '%s')\" --json", broken[i]);
        assert_int_equal(generate(arguments), 2);
        assert_non_null(strstr(err, "expected a text in UTF-8"));
    }
}

/* --chat is the prompt between the markers that the folder's chat template holds, or a name's. */
static void test_chat(void **state)
{
    (void)state;
    const char *vocabulary = shared_path("data/vocab/gpt2/tokenizer.json");
    if (!vocabulary) skip();
    char command[2000], plain[sizeof out], *ids;
    snprintf(command, sizeof command, "cp '%s' '%s/model/'", vocabulary, folder.path);
    assert_int_equal(system(command), 0);
    assert_int_equal(generate("--chat --prompt Hi"), 1);
    assert_non_null(strstr(err, "no \"chat_template\""));
    assert_non_null(strstr(err, "chatml, llama2, llama3"));
    write_text(temp_path(&folder, "model/tokenizer_config.json"),
               "{\"chat_template\": \"<|user|>\"}");
    assert_int_equal(
        generate("--json --max-new-tokens 4 --prompt '<|user|>\nHi<|endoftext|>\n<|assistant|>\n'"),
        0);
    ids = strstr(out, "\"ids\"");
    assert_non_null(ids);
    snprintf(plain, sizeof plain, "%s", ids);
    assert_int_equal(generate("--chat --prompt Hi --json --max-new-tokens 4"), 0);
    assert_string_equal(strstr(out, "\"ids\""), plain);
    assert_non_null(strstr(err, "chat format zephyr"));
    assert_int_equal(generate("--chat --chat-format zephyr --prompt Hi --json --max-new-tokens 4"),
                     0);
    assert_string_equal(strstr(out, "\"ids\""), plain);
    assert_int_equal(generate("--chat --system 'Be brief.' --prompt Hi --max-new-tokens 4"), 0);
    assert_int_equal(generate("--chat --chat-format vicuna --prompt Hi"), 1);
    assert_non_null(strstr(err, "\"vicuna\": expected chatml"));
    assert_int_equal(generate("--chat-format zephyr --prompt Hi"), 2);
    assert_non_null(strstr(err, "--chat-format: expected --chat"));
    assert_int_equal(generate("--chat --ids --prompt 5"), 2);
    assert_int_equal(unlink(temp_path(&folder, "model/tokenizer_config.json")), 0);
}

/* An end of an answer that is several tokens is a stop text, beside those of --stop. */
static void test_chat_end(void **state)
{
    (void)state;
    if (!shared_path("data/vocab/gpt2/tokenizer.json")) skip();
    static const char talk[] = "{\"m\": [{\"role\": \"user\", \"content\": \"Hi\"}, "
                               "{\"role\": \"assistant\", \"content\": \"Hello\"}]}\n";
    char rows[4 * sizeof talk] = "";
    for (int i = 0; i < 4; i++) strcat(rows, talk);
    write_text(temp_path(&folder, "talk.jsonl"), rows);
    if (run_in(&folder, "",
               "$MC finetune gpt2 --model model --data talk.jsonl --val talk.jsonl --messages m "
               "--chat-format chatml --epochs 40 --batch-size 4 --lr 0.02 --output talked"))
        fail_msg("%s", err);
    for (int i = 0; i < 2; i++) {
        char line[200];
        snprintf(line, sizeof line,
                 "$MC generate --model talked --chat --chat-format chatml --prompt Hi "
                 "--max-new-tokens 11 %s",
                 i ? "--stop zz" : "");
        if (run_in(&folder, "", line)) fail_msg("%s", err);
        assert_string_equal(out, "Hello\n");
    }
}

/* Ends where the text does, which is looked for over all tokens; streamed, whole and by beams. */
static void test_stop(void **state)
{
    (void)state;
    const char *vocabulary = shared_path("data/vocab/gpt2/tokenizer.json");
    if (!vocabulary) skip();
    char command[2000], stop[8], arguments[200];
    snprintf(command, sizeof command, "cp '%s' '%s/model/'", vocabulary, folder.path);
    assert_int_equal(system(command), 0);
    for (int beams = 1; beams <= 2; beams++) {
        const char *how = beams == 1 ? "" : "--num-beams 2 --length-penalty 0";
        snprintf(arguments, sizeof arguments, "--prompt Hello --max-new-tokens 12 %s", how);
        assert_int_equal(generate(arguments), 0);
        static char whole[sizeof out];
        memcpy(whole, out, sizeof whole);
        size_t at = 4; /* three letters somewhere in the answer */
        while (strspn(whole + at, "abcdefghijklmnopqrstuvwxyz") < 3) assert_true(whole[++at]);
        snprintf(stop, sizeof stop, "%.3s", whole + at);
        snprintf(arguments, sizeof arguments,
                 "--prompt Hello --max-new-tokens 12 --stop %s --stop '\n\n\n' %s", stop, how);
        assert_int_equal(generate(arguments), 0);
        char *first = strstr(whole, stop);
        if (beams == 1) {
            assert_int_equal(strlen(out), first - whole + 1);
            assert_memory_equal(out, whole, (size_t)(first - whole));
        }
        assert_null(strstr(out, stop));
        strcat(arguments, " --json --log-probs");
        static char streamed[sizeof out];
        snprintf(streamed, sizeof streamed, "%.*s", (int)strcspn(out, "\n"), out);
        bool one_line = strlen(out) == strlen(streamed) + 1;
        assert_int_equal(generate(arguments), 0);
        cJSON *json = cJSON_Parse(out);
        assert_non_null(json);
        if (one_line) assert_string_equal(cJSON_GetObjectItem(json, "text")->valuestring, streamed);
        const cJSON *x, *log_probs = cJSON_GetObjectItem(json, "log_probs");
        int tokens = cJSON_GetObjectItem(json, "tokens")->valueint;
        double sum = 0;
        assert_int_equal(cJSON_GetArraySize(log_probs), tokens);
        cJSON_ArrayForEach(x, log_probs) sum += x->valuedouble;
        double score = cJSON_GetObjectItem(json, "score")->valuedouble;
        assert_true(fabs(sum - score) < 1e-3 * fabs(score));
        if (beams == 1) assert_true(tokens < 12);
        cJSON_Delete(json);
    }
}

/* Several answers, an object each; temperature 0 draws nothing. */
static void test_several_answers(void **state)
{
    (void)state;
    const char *sampled = "--ids --prompt 1 --prompt 2 --seed 3 --max-new-tokens 4 "
                          "--num-return-sequences 3 --sample";
    assert_int_equal(generate(sampled), 0);
    int lines = 0;
    for (const char *c = out; *c; c++) lines += *c == '\n';
    assert_int_equal(lines, 6);
    static char first[sizeof out];
    memcpy(first, out, sizeof first);
    char again[300];
    snprintf(again, sizeof again, "%s --batch-size 1", sampled);
    assert_int_equal(generate(again), 0);
    assert_string_equal(out, first);
    assert_int_equal(generate("--ids --prompt 1 --max-new-tokens 4"), 0);
    memcpy(first, out, sizeof first);
    assert_int_equal(generate("--ids --prompt 1 --max-new-tokens 4 --temperature 0 --top-k 9"), 0);
    assert_string_equal(out, first);
    assert_int_equal(generate("--ids --prompt 1 --max-new-tokens 4 --temperature 0 --num-beams 2"),
                     0);
    assert_int_equal(
        generate("--ids --prompt 1 --max-new-tokens 4 --num-beams 3 --num-return-sequences 3"), 0);
    assert_non_null(strstr(out, "\"score\""));
}

/* Searches for several prompts find in a running batch what each finds alone; what is wrong with
 * one is told once. */
static void test_several_searches(void **state)
{
    (void)state;
    static const char *const prompts[] = {"1", "7 7 7", "5", "50257", "2 9"};
    static char each[sizeof out];
    char arguments[500], all[300] = "";
    const char *how = "--max-new-tokens 5 --num-beams 3 --num-return-sequences 2 --json --ids";
    *each = '\0';
    for (int i = 0; i < 5; i++) {
        snprintf(arguments, sizeof arguments, "--prompt '%s' %s", prompts[i], how);
        assert_int_equal(generate(arguments), i == 3);
        strcat(each, out);
        snprintf(all + strlen(all), sizeof all - strlen(all), "--prompt '%s' ", prompts[i]);
    }
    for (int size = 1; size <= 5; size += 2) {
        snprintf(arguments, sizeof arguments, "%s %s --batch-size %d", all, how, size);
        assert_int_equal(generate(arguments), 0);
        char *bad = strstr(out, "{\"prompt\":\"50257\",\"error\":"), *end = strchr(bad, '\n');
        assert_non_null(bad);
        memmove(bad, end + 1, strlen(end + 1) + 1);
        assert_string_equal(out, each);
    }
}

static void write_config(const char *text)
{
    write_text(temp_path(&folder, "model/generation_config.json"), text);
}

/* The file of the model's folder gives defaults; what the command line says wins. */
static void test_generation_config(void **state)
{
    (void)state;
    assert_int_equal(generate("--ids --prompt 1 --max-new-tokens 3"), 0);
    static char greedy[sizeof out], drawn[sizeof out];
    memcpy(greedy, out, sizeof greedy);
    assert_int_equal(generate("--ids --prompt 1 --max-new-tokens 3 --top-k 9 --seed 5 "
                              "--temperature 3"),
                     0);
    memcpy(drawn, out, sizeof drawn);
    write_config("{\"do_sample\": true, \"temperature\": 3.0, \"top_k\": 9, "
                 "\"max_new_tokens\": 3}");
    assert_int_equal(generate("--ids --prompt 1 --seed 5"), 0);
    assert_string_equal(out, drawn);
    assert_int_equal(generate("--ids --prompt 1 --temperature 0"), 0);
    assert_string_equal(out, greedy);
    assert_int_equal(generate("--ids --prompt 1 --ignore-generation-config --max-new-tokens 3"), 0);
    assert_string_equal(out, greedy);
    assert_int_equal(generate("--ids --prompt 1 --num-beams 2"), 0); /* in place of drawing */
    write_config("{\"max_length\": 4}");
    assert_int_equal(generate("--ids --prompt 1"), 0);
    assert_string_equal(out, greedy);
    write_config("{\"no_repeat_ngram_size\": 2}");
    assert_int_equal(generate("--ids --prompt 1"), 1);
    assert_non_null(strstr(err, "model/generation_config.json: key \"no_repeat_ngram_size\": 2"));
    assert_int_equal(generate("--ids --prompt 1 --ignore-generation-config --max-new-tokens 2"), 0);
    assert_int_equal(unlink(temp_path(&folder, "model/generation_config.json")), 0);
}

/* A model that says but one token: every logit is 0, but that of the token is above. */
static void save_repeater(const char *name, int32_t token)
{
    static float words[50257 * 4];
    mc_context *ctx = mc_init_distributed(NULL);
    mc_gpt2_config c = mc_gpt2_config_default();
    c.dim = c.dim_ff = 4;
    c.layers = 0;
    c.heads = 1;
    c.positions = 8;
    mc_model *gpt2 = mc_gpt2_new(ctx, &c, NULL, NULL);
    mc_module *m = mc_model_module(gpt2);
    for (int i = 0; i < 4; i++) words[token * 4 + i] = 1;
    mc_parameter_write(mc_module_find_parameter(m, "input_embedding.weight"), words);
    mc_parameter_write(mc_module_find_parameter(m, "encoder.output_layernorm.bias"),
                       (float[]){1, 1, 1, 1});
    mc_model_save(gpt2, temp_path(&folder, name));
    assert_false(mc_print_error(ctx, stderr));
    mc_context_free(ctx);
}

/* The byte 0 is a token like any other: no text ends there. */
static void test_nul(void **state)
{
    (void)state;
    const char *vocabulary = shared_path("data/vocab/gpt2/tokenizer.json");
    if (!vocabulary) skip();
    save_repeater("zeros", 188);
    char command[2000];
    snprintf(command, sizeof command, "cp '%s' '%s/zeros/'", vocabulary, folder.path);
    assert_int_equal(system(command), 0);
    assert_int_equal(generate("--model zeros --prompt 'a' --max-new-tokens 3 --json"), 0);
    assert_non_null(strstr(out, "\"text\":\"\\u0000\\u0000\\u0000\",\"ids\":[188,188,188]"));
    assert_int_equal(generate("--model zeros --prompt 'a' --max-new-tokens 3 | tr '\\0' x"), 0);
    assert_string_equal(out, "xxx\n");
    write_text(temp_path(&folder, "nul.json"), "[{\"prompt\": \"a\\u0000b\"}, {\"prompt\": \"\"}]");
    assert_int_equal(generate("--model zeros --prompts nul.json --max-new-tokens 1"), 0);
    assert_non_null(strstr(out, "{\"prompt\":\"a\\u0000b\",\"text\":\"\\u0000\",\"ids\":[188]"));
    assert_non_null(strstr(out, "{\"prompt\":\"\",\"text\":"));
    assert_int_equal(generate("--ids --prompts nul.json"), 1);
    assert_non_null(strstr(err, "--ids: a NUL character, expected token ids"));
}

/* A list of objects on stdin is prompts where its objects have the key, else its lines are. */
static void test_list_on_stdin(void **state)
{
    (void)state;
    static char expected[sizeof out];
    assert_int_equal(generate("--ids --prompt '1 2' --prompt 7 --max-new-tokens 3"), 0);
    memcpy(expected, out, sizeof out);
    write_text(temp_path(&folder, "list"), "[\n{\"prompt\": \"1 2\"},\n {\"prompt\": \"7\"}\n]\n");
    assert_int_equal(generate("--ids --max-new-tokens 3 < list"), 0);
    assert_string_equal(out, expected);
    assert_int_equal(generate("--ids --max-new-tokens 3 --json-key q < list"), 1);
    assert_non_null(strstr(err, "--ids: \"[\": expected token ids"));
}

/* So is the token 0, where nothing says that it ends an answer. */
static void test_token_0(void **state)
{
    (void)state;
    save_repeater("first", 0);
    assert_int_equal(generate("--model first --ids --prompt 5 --max-new-tokens 3"), 0);
    assert_string_equal(out, "0 0 0\n");
    assert_int_equal(generate("--model first --ids --prompt 5 --max-new-tokens 3 --num-beams 2"),
                     0);
    assert_string_equal(out, "0 0 0\n");
}

/* A tokenizer may have more tokens than the model has, as long as no prompt needs them. */
static void test_larger_tokenizer(void **state)
{
    (void)state;
    mc_context *ctx = mc_init_distributed(NULL);
    mc_gpt2_config c = mc_gpt2_config_default();
    c.vocab_size = 6;
    c.dim = c.dim_ff = 4;
    c.layers = c.heads = 1;
    c.positions = 8;
    c.bos_token_id = c.eos_token_id = -1;
    mc_model *gpt2 = mc_gpt2_new(ctx, &c, NULL, NULL);
    mc_model_save(gpt2, temp_path(&folder, "few"));
    assert_false(mc_print_error(ctx, stderr));
    mc_context_free(ctx);
    write_text(temp_path(&folder, "few/vocab.txt"), "[PAD]\n[UNK]\n[CLS]\n[SEP]\n.\na\nb\nc\n");
    assert_int_equal(generate("--model few --prompt a --max-new-tokens 2"), 0);
    assert_int_equal(generate("--model few --prompt 'a b' --max-new-tokens 2"), 1);
    assert_non_null(strstr(err, "few/vocab.txt: token \"b\" has id 6, but the model has 6 tokens "
                                "where the tokenizer has 8"));
}

static void test_what_is_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *arguments;
        int code;
        const char *words[2];
    } bad[] = {
        {"", 2, {"--prompt", "--prompts"}},
        {"--ids --prompt 1 --top-p 1e-50", 2, {"--top-p", "above 0"}},
        {"--ids --prompts nul", 1, {"nul:3: a NUL byte", "expected a prompt"}},
        {"--ids --prompts latin", 1, {"latin:2: not UTF-8", "expected a prompt"}},
        {"--ids --prompt 1 --top-p 2", 2, {"--top-p", "2"}},
        {"--ids --prompt 1 --temperature -1", 2, {"--temperature", "-1"}},
        {"--ids --prompt 1 --stop x", 2, {"--stop x", "--ids"}},
        {"--prompt 1 --stop ''", 2, {"--stop", "not empty"}},
        {"--ids --prompt 1 --num-return-sequences 2", 1, {"num_return_sequences 2", "sample"}},
        {"--ids --prompt 1 --num-return-sequences 3 --num-beams 2", 1, {"3", "num_beams"}},
        {"--ids --prompt 1 --prompt 2 --num-return-sequences 3", 1, {"3", "sample"}},
        {"--ids --prompt 1 --num-beams 2 --top-k 3", 2, {"--num-beams", "--top-k"}},
        {"--ids --prompt 1 --dtype f64", 2, {"--dtype", "f64"}},
        {"--ids --prompt one", 1, {"--ids", "one"}},
        {"--ids --prompt '1 -2'", 1, {"--ids", "-2"}},
        {"--ids --prompt 50257 --max-new-tokens 4", 1, {"50257", "0 to 50256"}},
        {"--ids --prompt 1 --max-new-tokens 41", 1, {"41 new ones", "40 positions"}},
        {"--ids --prompts bad.jsonl", 1, {"bad.jsonl:2", "key \"prompt\""}},
        {"--ids --prompts bad.jsonl --json-key x", 1, {"bad.jsonl", "\"x\""}},
        {"--ids --prompts nul --json-key x", 2, {"--json-key x", "JSON Lines"}},
        {"--ids --prompt 1 --json-key x", 2, {"--json-key x", "--prompts"}},
        {"--ids --prompts nowhere", 1, {"nowhere", "No such file"}},
        {"--ids --prompts /dev/null", 1, {"/dev/null", "no prompt"}},
        {"--ids --prompt 1 --model nothing", 1, {"nothing", "error"}}};
    write_bytes(temp_path(&folder, "nul"), "1\n\n2\0003\n4", 9);
    write_text(temp_path(&folder, "bad.jsonl"), "{\"prompt\": \"1\"}\n{\"other\": 2}\n");
    write_bytes(temp_path(&folder, "latin"), "1\n\xe9\n", 4);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int code = generate(bad[i].arguments);
        if (code != bad[i].code || *out || !strstr(err, bad[i].words[0]) ||
            !strstr(err, bad[i].words[1]))
            fail_msg("%s: exit %d, out \"%s\", err \"%s\"", bad[i].arguments, code, out, err);
    }
    assert_int_equal(generate("--ids --prompt 1 --max-new-tokens 4 >/dev/full 2>err #"), 1);
    assert_non_null(strstr(err, "stdout"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_chat),
        cmocka_unit_test(test_chat_end),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_several_answers),
        cmocka_unit_test(test_several_searches),
        cmocka_unit_test(test_generation_config),
        cmocka_unit_test(test_nul),
        cmocka_unit_test(test_list_on_stdin),
        cmocka_unit_test(test_token_0),
        cmocka_unit_test(test_larger_tokenizer),
        cmocka_unit_test(test_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, set_up, remove_folder);
}
