/* `modelcenter predict`: classes, labels, values and texts in the order of the rows, as the model
 * alone gives them for each, as JSON Lines and beside the columns of other tables; refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <cjson/cJSON.h>
#include <math.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tests/tools/command_test.h"
#include "tests/tools/small_models.h"

enum { ROWS = 100, LABELS = 3, ANSWER = 5 };

static const char quickstart[] = MC_SOURCE_DIR "/datasets/quickstart";
static const char *const names[LABELS] = {"bad", "fine", "so \"so\""};
static char texts[ROWS][400], pairs[ROWS][400];
static double logits[ROWS][LABELS]; /* of each text by the classifier */
static double pair_logits[ROWS][LABELS], value[ROWS], values[ROWS][2];
static char answers[ROWS][512];

/* Logits of one text or pair, by a forward pass of its own. */
static void classify(mc_context *ctx, mc_model *model, const mc_tokenizer *tok, int i, bool paired,
                     int labels, double *x)
{
    mc_encoding e = {0};
    float row[LABELS];
    int32_t types[64];
    const char *pair = paired ? pairs[i] : NULL;
    mc_tokenizer_encode(tok, texts[i], strlen(texts[i]), pair, pair ? strlen(pair) : 0, 64, &e);
    for (size_t k = 0; k < e.count; k++) types[k] = e.type_ids[k];
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_shape shape = MC_SHAPE(1, (int64_t)e.count);
    mc_model_input in = {.ids = mc_tape_input(t, MC_I32, shape, e.ids, false),
                         .type_ids = mc_tape_input(t, MC_I32, shape, types, false)};
    mc_model_output y = mc_model_forward(t, model, &in);
    mc_tensor_read_f32(ctx, mc_model_classify(t, model, &y), row, labels);
    mc_tape_end(t);
    for (int k = 0; k < labels; k++) x[k] = (double)row[k];
    mc_encoding_release(&e);
}

static void save(mc_model *model, const mc_tokenizer *tok, const char *name, const char *task)
{
    char path[64];
    mc_model_save(model, temp_path(&folder, name));
    mc_tokenizer_save(tok, temp_path(&folder, name));
    snprintf(path, sizeof path, "%s/task.json", name);
    if (task) write_text(temp_path(&folder, path), task);
}

static void make_classifiers(mc_context *ctx, const mc_tokenizer *tok)
{
    mc_bert_config config = small_bert();
    config.init_std = 0.5f;
    mc_model *three =
        mc_bert_new(ctx, &config, &(mc_model_heads){.pooler = true, .labels = LABELS}, NULL);
    mc_model *one = mc_bert_new(ctx, &config, &(mc_model_heads){.pooler = true, .labels = 1}, NULL);
    mc_model *two = mc_bert_new(ctx, &config, &(mc_model_heads){.pooler = true, .labels = 2}, NULL);
    mc_model_set_task(three, NULL, names);
    for (int i = 0; i < ROWS; i++) {
        classify(ctx, three, tok, i, false, LABELS, logits[i]);
        classify(ctx, three, tok, i, true, LABELS, pair_logits[i]);
        classify(ctx, one, tok, i, false, 1, &value[i]);
        classify(ctx, two, tok, i, false, 2, values[i]);
    }
    save(three, tok, "classes", NULL);
    save(three, tok, "pairs",
         "{\"kind\": \"classify\", \"text\": \"review\", \"text_pair\": \"about\"}");
    save(one, tok, "value", "{\"kind\": \"regress\", \"text\": \"review\"}");
    mc_model_set_problem_type(three, "multi_label_classification");
    save(three, tok, "labels", NULL);
    mc_model_set_task(one, "COPA", NULL);
    save(one, tok, "copa", NULL);
    save(two, tok, "unnamed", NULL);
    mc_model_set_problem_type(two, "regression");
    save(two, tok, "values", NULL);
    save(mc_bert_new(ctx, &config, &(mc_model_heads){.pooler = true}, NULL), tok, "encoder", NULL);
}

static void make_generator(mc_context *ctx, const mc_tokenizer *tok)
{
    mc_gpt2_config config = small_gpt2();
    config.init_std = 0.5f;
    mc_model *gpt2 = mc_gpt2_new(ctx, &config, NULL, NULL);
    save(gpt2, tok, "gpt2",
         "{\"kind\": \"generate\", \"text\": \"review\", \"target\": \"t\", "
         "\"max_target_length\": 5}");
    for (int i = 0; i < ROWS; i++) {
        mc_encoding e = {0};
        mc_tokenizer_encode(tok, texts[i], strlen(texts[i]), NULL, 0, 0, &e);
        const int32_t *ids = e.ids;
        int count = (int)e.count;
        mc_generation *g = mc_model_generate(gpt2, &ids, &count, 1,
                                             &(mc_generate_options){.max_new_tokens = ANSWER});
        if (!g) fail_msg("%s", mc_error_message(ctx));
        char *answer = mc_tokenizer_decode(tok, g->ids[0], (size_t)g->lengths[0], true);
        snprintf(answers[i], sizeof answers[i], "%s", answer);
        mc_string_free(answer);
        mc_generation_free(g);
        mc_encoding_release(&e);
    }
}

static void make_t5(mc_context *ctx, const mc_tokenizer *tok)
{
    mc_t5_config config = mc_t5_config_default();
    config.vocab_size = SMALL_VOCABULARY;
    config.dim = SMALL_DIM;
    config.dim_ff = SMALL_DIM_FF;
    config.heads = SMALL_HEADS;
    config.head_dim = 8;
    config.layers = config.decoder_layers = 1;
    config.init_factor = 5;
    save(mc_t5_new(ctx, &config, NULL, NULL), tok, "t5",
         "{\"kind\": \"generate\", \"text\": \"review\", \"target\": \"t\", "
         "\"max_target_length\": 5}");
}

static int set_up(void **state)
{
    make_folder(state);
    FILE *csv = fopen(temp_path(&folder, "rows.csv"), "w");
    assert_non_null(csv);
    fputs("id,review,about\n", csv);
    for (int i = 0; i < ROWS; i++) {
        char *at = texts[i], *other = pairs[i];
        for (int k = 0; k <= i * 7 % 20; k++)
            at += sprintf(at, "%s%s", k ? " " : "", (i + k) % 3 ? "the" : "is");
        for (int k = 0; k <= i * 5 % 9; k++) other += sprintf(other, "%sa", k ? " " : "");
        fprintf(csv, "%d,\"%s\",%s\n", i, texts[i], pairs[i]);
    }
    fclose(csv);
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 5});
    mc_tokenizer *tok = mc_tokenizer_from_pretrained(ctx, quickstart);
    make_classifiers(ctx, tok);
    make_generator(ctx, tok);
    make_t5(ctx, tok);
    assert_int_equal(mc_print_error(ctx, stderr), 0);
    mc_context_free(ctx);
    return 0;
}

/* ---- answers --------------------------------------------------------------------------------- */

static const double TOLERANCE = 1e-5; /* batches of other shapes, in f32 */

static void check_number(const cJSON *json, const char *key, double expected)
{
    double got = cJSON_GetObjectItemCaseSensitive(json, key)->valuedouble;
    if (!(fabs(got - expected) <= TOLERANCE))
        fail_msg("\"%s\": %g, expected %g", key, got, expected);
}

/* Reads the rows of a file and gives each to `check`. */
static void check_file(const char *name, void (*check)(const cJSON *row, int i))
{
    static char line[8192];
    FILE *file = fopen(temp_path(&folder, name), "r");
    assert_non_null(file);
    int rows = 0;
    for (; fgets(line, sizeof line, file); rows++) {
        cJSON *json = cJSON_Parse(line);
        assert_non_null(json);
        check(json, rows);
        cJSON_Delete(json);
    }
    fclose(file);
    assert_int_equal(rows, ROWS);
}

static void check_classes(const cJSON *row, const double *x)
{
    double sum = 0;
    int best = 0;
    for (int k = 0; k < LABELS; k++) sum += exp(x[k]);
    for (int k = 1; k < LABELS; k++)
        if (x[k] > x[best]) best = k;
    assert_string_equal(cJSON_GetObjectItem(row, "label")->valuestring, names[best]);
    check_number(row, "probability", exp(x[best]) / sum);
    const cJSON *all = cJSON_GetObjectItem(row, "probabilities");
    assert_int_equal(cJSON_GetArraySize(all), LABELS);
    for (int k = 0; k < LABELS; k++) check_number(all, names[k], exp(x[k]) / sum);
}

static void check_single(const cJSON *row, int i) { check_classes(row, logits[i]); }
static void check_pair(const cJSON *row, int i) { check_classes(row, pair_logits[i]); }
static void check_value(const cJSON *row, int i) { check_number(row, "value", value[i]); }

/* Outputs without names have those of `transformers`, whatever they mean. */
static void check_values(const cJSON *row, int i)
{
    const cJSON *all = cJSON_GetObjectItem(row, "values");
    assert_int_equal(cJSON_GetArraySize(all), 2);
    check_number(all, "LABEL_0", values[i][0]);
    check_number(all, "LABEL_1", values[i][1]);
}

static void check_unnamed(const cJSON *row, int i)
{
    double second = 1 / (1 + exp(values[i][0] - values[i][1]));
    check_number(cJSON_GetObjectItem(row, "probabilities"), "LABEL_1", second);
    assert_string_equal(cJSON_GetObjectItem(row, "label")->valuestring,
                        second > 0.5 ? "LABEL_1" : "LABEL_0");
}

static void check_labels(const cJSON *row, int i)
{
    const cJSON *all = cJSON_GetObjectItem(row, "probabilities");
    const cJSON *list = cJSON_GetObjectItem(row, "labels");
    int above = 0;
    for (int k = 0; k < LABELS; k++) {
        check_number(all, names[k], 1 / (1 + exp(-logits[i][k])));
        if (logits[i][k] <= 0) continue;
        assert_string_equal(cJSON_GetArrayItem(list, above)->valuestring, names[k]);
        above++;
    }
    assert_int_equal(cJSON_GetArraySize(list), above);
}

static void check_text(const cJSON *row, int i)
{
    assert_string_equal(cJSON_GetObjectItem(row, "text")->valuestring, answers[i]);
}

static void must_run(const char *line)
{
    if (run(line)) fail_msg("%s: %s", line, err);
    assert_memory_equal(out, "result rows=100 seconds=", 24);
}

static void test_classes(void **state)
{
    (void)state;
    must_run("$MC predict classes --data rows.csv --text review --output c.jsonl");
    check_file("c.jsonl", check_single);
    must_run("$MC predict classes --data rows.csv --text review --text-pair about --output c.jsonl "
             "--overwrite");
    check_file("c.jsonl", check_pair);
    must_run("$MC predict pairs --data rows.csv --output p.jsonl"); /* columns of task.json */
    check_file("p.jsonl", check_pair);
}

/* Files and patterns are one table; an empty text is an error with its place where it has no token.
 */
static void test_several_files(void **state)
{
    (void)state;
    must_run("$MC predict --model classes --data rows.csv --text review --output one.jsonl");
    must("cp rows.csv part-1.csv && cp rows.csv part-2.csv");
    must("$MC predict --model classes --data 'part-*.csv' rows.csv --text review --output "
         "all.jsonl");
    assert_memory_equal(out, "result rows=300 ", 16);
    /* batches of other rows round the last digits otherwise */
    must("cut -d, -f1 all.jsonl > firsts && cut -d, -f1 one.jsonl one.jsonl one.jsonl | cmp - "
         "firsts");
    must_run(
        "$MC predict --text review --output two.jsonl --data rows.csv classes"); /* as it was */
    must("cmp one.jsonl two.jsonl");
}

static void test_labels_and_values(void **state)
{
    (void)state;
    must_run("$MC predict labels --data rows.csv --text review --output l.jsonl");
    check_file("l.jsonl", check_labels);
    must_run("$MC predict value --data rows.csv --output v.jsonl");
    check_file("v.jsonl", check_value);
    must_run("$MC predict values --data rows.csv --text review --output v2.jsonl");
    check_file("v2.jsonl", check_values);
    must("sed -i '/id2label/,/}/d; /label2id/,/}/d' unnamed/config.json; ! grep LABEL "
         "unnamed/*.json");
    must_run("$MC predict unnamed --data rows.csv --text review --output u.jsonl");
    check_file("u.jsonl", check_unnamed);
    assert_null(strstr(err, "id2label"));
    /* one name, where the classifier has more outputs */
    must("sed -i '1s/{/{\"id2label\": {\"0\": \"bad\"},/' unnamed/config.json");
    must_run("$MC predict unnamed --data rows.csv --text review --output u1.jsonl");
    check_file("u1.jsonl", check_unnamed);
    must_hold(err, "unnamed/config.json: key \"id2label\": expected a name for each output of the "
                   "classifier, 0 to 1: it has no effect, they are LABEL_0 to LABEL_1\n");
    must("$MC ask --model unnamed --question 'is it' --passage 'it is'");
    assert_memory_equal(out, "LABEL_", 6);
}

static void test_texts(void **state)
{
    (void)state;
    must_run("$MC predict gpt2 --data rows.csv --output t.jsonl --batch-size 7");
    check_file("t.jsonl", check_text);
}

/* A decoder of few positions has shorter answers by default, and says which prompts it cut. */
static void test_few_positions(void **state)
{
    (void)state;
    must("rm -rf few && cp -r gpt2 few && rm few/task.json && head -n 3 rows.csv > few.csv && "
         "$MC predict few --data few.csv --text review --output f.jsonl && "
         "echo \"x,$(yes the | head -n 60 | tr '\\n' ' '),x\" >> few.csv && "
         "$MC predict few --data few.csv --text review --output g.jsonl");
    must_hold(err, "1 prompt was cut at 32 tokens");
    /* nor does a length that training took leave no position for the prompt */
    must("sed 's/\"max_target_length\": *[0-9]*/\"max_target_length\":64/' gpt2/task.json > "
         "few/task.json && "
         "grep -q 64 few/task.json && $MC predict few --data few.csv --output i.jsonl && cmp "
         "g.jsonl i.jsonl");
    must("$MC predict classes --data few.csv --text review --output h.jsonl");
    must_hold(err, "texts are cut at 64 tokens, the model's positions");
}

/* Texts are cut where the tokenizer's folder says, on its side: here the last 6 words stay. */
static void test_length_of_tokenizer(void **state)
{
    (void)state;
    must("for i in left right; do cp -r classes $i && echo "
         "'{\"model_max_length\": 8, \"truncation_side\": \"'$i'\"}' > $i/tokenizer_config.json && "
         "$MC predict $i --data rows.csv --text-column review --output $i.jsonl; done");
    must("echo '{}' > right/tokenizer_config.json && $MC predict right --data rows.csv "
         "--text-column review --max-length 8 --output first.jsonl && cmp right.jsonl first.jsonl");
    must(
        "(echo text; cut -d '\"' -f 2 rows.csv | sed 1d | awk '{t = $NF; for (i = NF - 1; i > 0 && "
        "i > NF - 6; i--) t = $i \" \" t; print t}') > last.csv && $MC predict right --data "
        "last.csv "
        "--max-length 8 --output last.jsonl && cmp left.jsonl last.jsonl && ! cmp -s left.jsonl "
        "right.jsonl");
}

/* So are those that a model answers, be it a decoder or have an encoder. */
static void test_length_of_prompts(void **state)
{
    (void)state;
    must("for m in gpt2 t5; do for i in left right; do cp -r $m $m-$i && echo "
         "'{\"model_max_length\": 6, \"truncation_side\": \"'$i'\"}' > "
         "$m-$i/tokenizer_config.json && $MC predict --model $m-$i --data rows.csv --text-column "
         "review --output $m-$i.jsonl 2> $m-$i.log; grep 'prompts were cut at 6 tokens' $m-$i.log "
         "|| exit 1; done; done");
    must("for m in gpt2 t5; do cp -r $m $m-any && echo '{}' > $m-any/tokenizer_config.json && $MC "
         "predict --model $m-any --data rows.csv --text-column review --max-length 6 --output "
         "$m-6.jsonl && cmp $m-6.jsonl $m-right.jsonl || exit 1; done");
    must("cmp gpt2-left.jsonl gpt2-right.jsonl && ! cmp -s t5-left.jsonl t5-right.jsonl && $MC "
         "predict --model t5-any --data rows.csv --text-column review --output t5.jsonl");
    assert_null(strstr(err, "cut at"));
}

/* ---- CSV ------------------------------------------------------------------------------------- */

static mc_table *open_csv(mc_context *ctx, const char *name, const char *header)
{
    read_into(out, name);
    if (strncmp(out, header, strlen(header)) != 0 || out[strlen(header)] != '\n')
        fail_msg("%s begins %.200s, expected %s", name, out, header);
    return mc_table_open(ctx, temp_path(&folder, name), NULL);
}

static double cell_number(mc_table *t, int column)
{
    const char *cell = mc_table_text(t, column, NULL);
    assert_non_null(cell);
    return atof(cell);
}

static void check_cell(mc_table *t, int column, const char *expected)
{
    const char *cell = mc_table_text(t, column, NULL);
    assert_non_null(cell);
    assert_string_equal(cell, expected);
}

/* Gives each row of a file of CSV to `check`; its first columns have to be the input's. */
static void check_csv(const char *name, const char *header, const char *input, int kept,
                      void (*check)(mc_table *t, int column, int i))
{
    mc_context *ctx = mc_context_new(NULL);
    mc_table *t = open_csv(ctx, name, header);
    mc_table *from = mc_table_open(ctx, temp_path(&folder, input), NULL);
    int rows = 0;
    for (; mc_table_next(t); rows++) {
        assert_true(mc_table_next(from));
        for (int k = 0; k < kept; k++) check_cell(t, k, mc_table_text(from, k, NULL));
        check(t, kept, rows);
    }
    assert_int_equal(rows, ROWS);
    assert_int_equal(mc_print_error(ctx, stderr), 0);
    mc_context_free(ctx);
}

static void check_csv_class(mc_table *t, int column, int i)
{
    double sum = 0;
    int best = 0;
    for (int k = 0; k < LABELS; k++) sum += exp(logits[i][k]);
    for (int k = 1; k < LABELS; k++)
        if (logits[i][k] > logits[i][best]) best = k;
    check_cell(t, column, names[best]);
    assert_true(fabs(cell_number(t, column + 1) - exp(logits[i][best]) / sum) <= TOLERANCE);
    for (int k = 0; k < LABELS; k++)
        assert_true(fabs(cell_number(t, column + 2 + k) - exp(logits[i][k]) / sum) <= TOLERANCE);
}

static void check_csv_labels(mc_table *t, int column, int i)
{
    char list[64] = "";
    for (int k = 0; k < LABELS; k++) {
        double p = 1 / (1 + exp(-logits[i][k]));
        assert_true(fabs(cell_number(t, column + 1 + k) - p) <= TOLERANCE);
        if (logits[i][k] <= 0) continue;
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", *list ? "|" : "",
                 names[k]);
    }
    check_cell(t, column, list);
}

static void check_csv_value(mc_table *t, int column, int i)
{
    assert_true(fabs(cell_number(t, column) - value[i]) <= TOLERANCE);
}

static void check_csv_values(mc_table *t, int column, int i)
{
    for (int k = 0; k < 2; k++)
        assert_true(fabs(cell_number(t, column + k) - values[i][k]) <= TOLERANCE);
}

static void check_csv_text(mc_table *t, int column, int i) { check_cell(t, column, answers[i]); }

/* All kinds of prediction; the input has quotes, separators, line breaks and names that predictions
 * have too. */
static void test_csv(void **state)
{
    (void)state;
    FILE *csv = fopen(temp_path(&folder, "hard.csv"), "w");
    assert_non_null(csv);
    fputs("label,review,\"a \"\"b\"\", c\",predicted_label,text\r\n", csv);
    for (int i = 0; i < ROWS; i++)
        fprintf(csv, "%d,\"%s\",\"x, \"\"%d\"\"\nand\r\n\",, '%d \r\n", i, texts[i], i, i);
    fclose(csv);
#define KEPT "label,review,\"a \"\"b\"\", c\",predicted_label,text,"
    must_run("$MC predict classes --data hard.csv --text-column review --output c.csv");
    check_csv("c.csv",
              KEPT "predicted_predicted_label,probability,probabilities.bad,probabilities.fine,"
                   "\"probabilities.so \"\"so\"\"\"",
              "hard.csv", 5, check_csv_class);
    must_run("$MC predict labels --data hard.csv --text-column review --output l.csv");
    check_csv("l.csv",
              KEPT "labels,probabilities.bad,probabilities.fine,\"probabilities.so \"\"so\"\"\"",
              "hard.csv", 5, check_csv_labels);
    must_run("$MC predict value --data hard.csv --output v.csv");
    check_csv("v.csv", KEPT "value", "hard.csv", 5, check_csv_value);
    must_run("$MC predict values --data hard.csv --text-column review --output v2.csv");
    check_csv("v2.csv", KEPT "values.LABEL_0,values.LABEL_1", "hard.csv", 5, check_csv_values);
    must_run("$MC predict gpt2 --data hard.csv --output t.csv --batch-size 7");
    check_csv("t.csv", KEPT "predicted_text", "hard.csv", 5, check_csv_text);
#undef KEPT
}

/* What is no CSV: each input's columns, to the byte. The value itself is looked at elsewhere. */
static void must_write(const char *input, const char *line, const char *expected)
{
    char whole[512];
    if (input) write_text(temp_path(&folder, "input"), input);
    must("rm -f any.csv");
    must(line);
    snprintf(whole, sizeof whole, "sed -E 's/,-?[0-9.]+(e-[0-9]+)?$/,N/' any.csv");
    must(whole);
    assert_string_equal(out, expected);
}

static void test_csv_of_other_inputs(void **state)
{
    (void)state;
    must_write("text\tother\nthe \"is\" the\ta, b\nis\t\n",
               "cp input in.tsv && $MC predict value --text-column text --data in.tsv --output "
               "any.csv",
               "text,other,value\n\"the \"\"is\"\" the\",\"a, b\",N\nis,,N\n");
    must_write("{\"text\": \"is\", \"n\": 12345678901234567890, \"x\": [1, {\"a\": \"\\u00e9\"}], "
               "\"ok\": true, \"o\": {\"k\" :2}}\n"
               "{\"n\": -0.5, \"text\": \"the,\\n\\\"is\\\"\", \"x\": null}\n",
               "cp input in.jsonl && $MC predict value --text-column text --data in.jsonl "
               "--output any.csv",
               "text,n,x,ok,o,value\n"
               "is,12345678901234567890,\"[1, {\"\"a\"\": \"\"\\u00e9\"\"}]\",true,\"{\"\"k\"\" "
               ":2}\",N\n\"the,\n\"\"is\"\"\",-0.5,,,,N\n");
    must_write("[{\"a\": [\"]}:\"],\n \"text\": \"is\"} ,\n {\"text\": \"the\", \"a\": {}}]\n",
               "cp input in.json && $MC predict value --text-column text --data in.json --output "
               "any.csv",
               "a,text,value\n\"[\"\"]}:\"\"]\",is,N\n{},the,N\n");
    must_write("the; is\nis, \"the\"\n", "$MC predict value --output any.csv < input",
               "text,value\nthe; is,N\n\"is, \"\"the\"\"\",N\n");
    must_write(NULL, "$MC predict value --text 'a, b' --text is --output any.csv",
               "text,value\n\"a, b\",N\nis,N\n");
    must_write("text\n",
               "cp input none.csv && $MC predict value --text-column text --data none.csv "
               "--output any.csv",
               "text,value\n");
}

/* Names are keys and columns: of labels with one name each but the first gets a number. */
static void test_repeated_names(void **state)
{
    (void)state;
    must("cp -r classes same && sed -i 's/\"0\":[[:space:]]*\"bad\"/\"0\":\"fine\"/' "
         "same/config.json && "
         "grep -q '\"0\":\"fine\"' same/config.json && "
         "$MC predict --model same --text 'is the' > same.jsonl");
    must_hold(err, "warning: id2label has the name \"fine\" twice: label 1 is written as "
                   "\"fine#2\"\n");
    must("grep -q '\"probabilities\":{\"fine\":[0-9.e-]*,\"fine#2\":[0-9.e-]*,\"so ' same.jsonl");
    must("$MC predict --model same --text 'is the' --output same.csv && "
         "grep -q '^text,label,probability,probabilities.fine,probabilities.fine#2,\"prob' "
         "same.csv");
    must(
        "$MC predict --model classes --text 'is the' | sed 's/.*probabilities//;s/[^0-9.,]//g' > a "
        "&& sed 's/fine#2//;s/.*probabilities//;s/[^0-9.,]//g' same.jsonl | cmp - a");
    must("sed -i 's/\"so [^,}]*\"/\"fine#2\"/' same/config.json && "
         "$MC predict --model same --text 'is the' | "
         "grep -q '{\"fine\":[0-9.e-]*,\"fine#3\":[0-9.e-]*,\"fine#2\":'");
    must("$MC convert --model same --output again --to hf && $MC predict --model again --text is | "
         "grep -q '\"fine#3\"'");
}

/* RFC 4180 has no escape for a NUL character: it is written as it is, as Python's csv reads it. */
static void test_nul_in_csv(void **state)
{
    (void)state;
    must("printf '{\"text\": \"is\", \"a\": \"x\\\\u0000,y\"}\\n' > nul.jsonl && "
         "$MC predict --model classes --text-column text --data nul.jsonl --output nul.csv && "
         "tr '\\0' @ < nul.csv | grep -q '^is,\"x@,y\",'");
    must_refuse(1, "nul.csv:2:6: a NUL character",
                "$MC predict --model classes --text-column text --data nul.csv");
}

/* A key that the first row does not have is no column. */
static void test_csv_of_other_keys(void **state)
{
    (void)state;
    write_text(temp_path(&folder, "keys.jsonl"),
               "{\"text\": \"is\"}\n{\"text\": \"a\", \"b\": 1}\n");
    must_refuse(1, "keys.jsonl:2: key \"b\", which the first row does not have",
                "$MC predict value --text-column text --data keys.jsonl --output keys.csv");
    must("! ls | grep keys.csv && $MC predict value --text-column text --data keys.jsonl --output "
         "keys-too.jsonl");
}

static void must_fail(const char *line, int code, const char *message)
{
    int got = run(line);
    if (got != code || !strstr(err, message))
        fail_msg("%s: %d, \"%s\", expected \"%s\"", line, got, err, message);
}

static void test_refusals(void **state)
{
    (void)state;
    must_fail("$MC predict encoder --data rows.csv --text review --output w.jsonl", 1,
              "encoder: a bert without a classifier");
    must_fail("$MC predict copa --data rows.csv --text review --output w.jsonl", 1,
              "chooses between the inputs of COPA");
    must_fail("$MC predict classes --data rows.csv --output w.jsonl", 1, "no column \"text\"");
    must_fail("$MC predict classes", 2, "required and missing: --data FILE");
    write_text(temp_path(&folder, "other.csv"), "review,place\nx,y\n");
    must_fail("$MC predict classes --data rows.csv other.csv --text review --output w.jsonl", 1,
              "other.csv: no column \"");
    must_fail("$MC predict classes --data rows.xlsx --text review --output w.jsonl", 1,
              "pandas.read_excel('rows.xlsx')");
    write_text(temp_path(&folder, "bad.jsonl"),
               "{\"text\": \"a\"}\n{\"text\": 3, \"text\": 4}\n{\n");
    must_fail("$MC predict classes --data bad.jsonl --output w.jsonl", 1, "bad.jsonl:");
    assert_int_not_equal(access(temp_path(&folder, "w.jsonl"), F_OK), 0);
    must("! ls | grep '\\.tmp-'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_classes),
        cmocka_unit_test(test_several_files),
        cmocka_unit_test(test_labels_and_values),
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_few_positions),
        cmocka_unit_test(test_length_of_tokenizer),
        cmocka_unit_test(test_length_of_prompts),
        cmocka_unit_test(test_csv),
        cmocka_unit_test(test_csv_of_other_inputs),
        cmocka_unit_test(test_csv_of_other_keys),
        cmocka_unit_test(test_repeated_names),
        cmocka_unit_test(test_nul_in_csv),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, set_up, remove_folder);
}
