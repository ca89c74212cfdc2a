/* `modelcenter embed`: vectors in the order of the rows, in both forms, and refusals. */
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

enum { ROWS = 150, DIM = SMALL_DIM };

static const char quickstart[] = MC_SOURCE_DIR "/datasets/quickstart";
static char texts[ROWS][512];
static float expected[ROWS][DIM];

/* A shell line in the folder. */
/* A small BERT in bert/, and rows.csv and rows.jsonl. */
static void make_rows(void)
{
    FILE *csv = fopen(temp_path(&folder, "rows.csv"), "w");
    FILE *jsonl = fopen(temp_path(&folder, "rows.jsonl"), "w");
    assert_true(csv && jsonl);
    fputs("id,review\r\n", csv);
    for (int i = 0; i < ROWS; i++) {
        char *at = texts[i];
        for (int k = 0; k <= i * 7 % 40; k++)
            at += sprintf(at, "%s%s", k ? " " : "", (i + k) % 3 ? "the" : "is");
        fprintf(csv, "%d,\"%s\"\r\n", i, texts[i]);
        fprintf(jsonl, "{\"a\": {\"b\": \"%s\"}}\n", texts[i]);
    }
    fclose(csv);
    fclose(jsonl);
}

static int set_up(void **state)
{
    make_folder(state);
    mc_bert_config config = small_bert();
    config.positions = 32;
    mc_context *ctx = mc_init_distributed(NULL);
    mc_model *model = mc_bert_new(ctx, &config, &(mc_model_heads){.pooler = true}, NULL);
    mc_tokenizer *tok = mc_tokenizer_from_pretrained(ctx, quickstart);
    mc_model_save(model, temp_path(&folder, "bert"));
    mc_tokenizer_save(tok, temp_path(&folder, "bert"));
    make_rows();
    mc_embedder *e = mc_embedder_new(model, tok, NULL);
    for (int i = 0; i < ROWS; i++)
        mc_embed_texts(e, &(mc_text_span){texts[i], strlen(texts[i])}, 1, expected[i]);
    assert_int_equal(mc_print_error(ctx, stderr), 0);
    mc_context_free(ctx);
    return 0;
}

static void check_row(int i, const float *row)
{
    for (int c = 0; c < DIM; c++)
        if (!(fabsf(row[c] - expected[i][c]) <= 1e-5f))
            fail_msg("row %d, column %d: %g, expected %g", i, c, (double)row[c],
                     (double)expected[i][c]);
}

/* A row of products in 8 bits: near the one in f32, and another one. */
static void check_row_in_8_bits(int i, const float *row)
{
    double dot = 0, own = 0, other = 0;
    for (int c = 0; c < DIM; c++) {
        dot += (double)row[c] * (double)expected[i][c];
        own += (double)row[c] * (double)row[c];
        other += (double)expected[i][c] * (double)expected[i][c];
    }
    double cosine = dot / sqrt(own * other);
    if (!(cosine > 0.995)) fail_msg("row %d: cosine %.6f, expected more than 0.995", i, cosine);
    if (memcmp(row, expected[i], sizeof expected[i]) == 0) fail_msg("row %d: not in 8 bits", i);
}

/* Reads the file as NPY 1.0 says: magic, version, the header's length, a header, rows. */
static void check_npy(const char *name, void (*check)(int i, const float *row))
{
    static unsigned char data[128 + sizeof expected + 1];
    FILE *file = fopen(temp_path(&folder, name), "rb");
    assert_non_null(file);
    size_t size = fread(data, 1, sizeof data, file);
    fclose(file);
    assert_int_equal(size, 128 + sizeof expected);
    assert_memory_equal(data, "\x93NUMPY\x01\x00", 8);
    size_t header = data[8] | (size_t)data[9] << 8;
    assert_int_equal((10 + header) % 64, 0);
    assert_int_equal(data[10 + header - 1], '\n');
    static const char start[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (150, 16), } ";
    assert_memory_equal(data + 10, start, sizeof start - 1);
    for (int i = 0; i < ROWS; i++) {
        float row[DIM];
        memcpy(row, data + 10 + header + (size_t)i * sizeof row, sizeof row);
        check(i, row);
    }
    must("! ls | grep '\\.tmp-'");
}

static void test_npy(void **state)
{
    (void)state;
    if (run("$MC embed bert --data rows.csv --text review --output v.npy")) fail_msg("%s", err);
    assert_memory_equal(out, "result rows=150 dim=16 seconds=", 31);
    check_npy("v.npy", check_row);
    if (run("gzip -k rows.csv && $MC embed bert --data rows.csv.gz --text review --output z.npy "
            "--pooling mean --normalize no"))
        fail_msg("%s", err);
    check_npy("z.npy", check_row);
}

static void test_fp8(void **state)
{
    (void)state;
    must("$MC embed bert --data rows.csv --text review --output 8.npy --fp8 all");
    check_npy("8.npy", check_row_in_8_bits);
    must_refuse(2, "--fp8",
                "$MC embed bert --data rows.csv --text review --output 8.npy --fp8 e4m3");
    must_refuse(
        2, "--fp8 with --dtype f16: expected --dtype bf16 or f32",
        "$MC embed bert --data rows.csv --text review --output x.npy --fp8 all --dtype f16");
}

static void test_json_lines(void **state)
{
    (void)state;
    if (run("$MC embed bert --data rows.jsonl --text a.b --output v.jsonl")) fail_msg("%s", err);
    FILE *file = fopen(temp_path(&folder, "v.jsonl"), "r");
    static char line[DIM * 32 + 64];
    int rows = 0;
    for (; fgets(line, sizeof line, file); rows++) {
        cJSON *json = cJSON_ParseWithOpts(line, NULL, false);
        cJSON *list = cJSON_GetObjectItem(json, "embedding");
        float row[DIM];
        assert_int_equal(cJSON_GetArraySize(list), DIM);
        for (int c = 0; c < DIM; c++) row[c] = (float)cJSON_GetArrayItem(list, c)->valuedouble;
        check_row(rows, row);
        cJSON_Delete(json);
    }
    fclose(file);
    assert_int_equal(rows, ROWS);
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
    must_fail("$MC embed bert --data rows.csv --output v.txt", 2, "ends in .jsonl or .npy");
    must_fail("$MC embed bert --data rows.csv --output no/v.npy", 1,
              "--output no/v.npy: cannot write there: No such file");
    must_fail("$MC embed bert --data rows.csv --output w.npy", 1,
              "no column \"text\": expected one of \"id\", \"review\"");
    must_fail("$MC embed bert --data rows.csv --text review --output w.npy --max-length 99", 1,
              "32 positions");
    must_fail("$MC embed bert --data rows.csv --text review --output w.npy --pooling median", 2,
              "--pooling \"median\": expected one of auto, mean, cls, max, pooler");
    must_fail("$MC embed bert --data rows.csv --text review --output w.npy --prompt a "
              "--prompt-name b",
              2, "not both");
    must_fail("$MC embed bert --data rows.csv --text review --output w.npy --prompt-name b", 1,
              "no prompt is called \"b\": expected none");
    write_text(temp_path(&folder, "bad.csv"), "text\nfine\n\"open\n");
    must_fail("$MC embed bert --data bad.csv --output w.npy", 1, "bad.csv:3:1: ");
    assert_int_not_equal(access(temp_path(&folder, "w.npy"), F_OK), 0);
    must("! ls | grep '\\.tmp-'");
}

/* The thread that writes vectors has no room for them. */
static void test_full(void **state)
{
    (void)state;
    must_fail("trap '' XFSZ; ulimit -f 4; $MC embed bert --data rows.csv --text review "
              "--output full.npy",
              1, "full.npy: cannot write it: File too large");
    must("! ls | grep 'full.npy'");
}

/* SIGINT: the command leaves with its code, and nothing is left of the file. */
static void test_interrupt(void **state)
{
    (void)state;
    FILE *many = fopen(temp_path(&folder, "many.csv"), "w");
    assert_non_null(many);
    fputs("text\n", many);
    for (int i = 0; i < 300000; i++) fprintf(many, "the the the the the the the %d\n", i);
    fclose(many);
    int code = run("$MC embed bert --data many.csv --output m.npy & p=$!\n"
                   "while kill -0 $p 2>&- && ! ls | grep -q m.npy.tmp-; do sleep 0.05; done\n"
                   "kill -INT $p; wait $p");
    if (code != 130) fail_msg("%d, %s", code, err);
    assert_string_equal(out, "");
    assert_int_not_equal(access(temp_path(&folder, "m.npy"), F_OK), 0);
    must("! ls | grep '\\.tmp-'");
}

/* Weights and tokenizer may lie in folders of their own. */
static void test_tokenizer(void **state)
{
    (void)state;
    must(
        "mkdir bare words && cp bert/config.json bert/model.safetensors bare && cp bert/* words && "
        "rm words/config.json words/model.safetensors && "
        "$MC embed bare --tokenizer words --data rows.csv --text review --output apart.npy");
    check_npy("apart.npy", check_row);
    assert_int_equal(run("$MC embed bare --data rows.csv --text review --output none.npy"), 1);
    must("test ! -e none.npy");
}

/* A GGUF file has model and tokenizer inside. */
static void test_gguf(void **state)
{
    (void)state;
    must("$MC convert bert bert.gguf --to gguf --dtype f32 && $MC embed bert.gguf --data rows.csv "
         "--text review --output inside.npy");
    check_npy("inside.npy", check_row);
}

/* Of two commands that write one file the last one's is there, whole; or one of them is refused. */
static void test_two_at_once(void **state)
{
    (void)state;
    must("head -20 rows.csv > few.csv && $MC embed bert --data rows.csv --text review --output "
         "a.npy "
         "&& $MC embed bert --data few.csv --text review --output b.npy && ! cmp -s a.npy b.npy");
    for (int i = 0; i < 8; i++)
        must("$MC embed bert --data rows.csv --text review --output t.npy --overwrite & p=$!\n"
             "$MC embed bert --data few.csv --text review --output t.npy --overwrite; q=$?\n"
             "wait $p; r=$?; { cmp -s t.npy a.npy || cmp -s t.npy b.npy; } && test $q$r != 11 && "
             "! ls | grep '\\.tmp-'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_npy),        cmocka_unit_test(test_fp8),
        cmocka_unit_test(test_json_lines), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_interrupt),  cmocka_unit_test(test_two_at_once),
        cmocka_unit_test(test_tokenizer),  cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_full),
    };
    return cmocka_run_group_tests(tests, set_up, remove_folder);
}
