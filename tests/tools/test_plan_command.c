/* `modelcenter plan` and `modelcenter bench comm` as a user runs them, and what the second one
 * takes for right. Several ranks: tests/dist/bench_ranks.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tests/temp_folder.h"
#include "tools/comm_check.h"

static temp_folder folder;
static char out[1 << 16], err[1 << 14];

static void read_into(char *text, size_t room, const char *name)
{
    FILE *file = fopen(temp_path(&folder, name), "r");
    assert_non_null(file);
    text[fread(text, 1, room - 1, file)] = '\0';
    fclose(file);
}

static int tool(const char *arguments)
{
    char whole[3000];
    snprintf(whole, sizeof whole,
             "cd '%s' && OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive '%s' %s >out 2>err", folder.path,
             MC_TOOL, arguments);
    int status = system(whole);
    assert_true(WIFEXITED(status));
    read_into(out, sizeof out, "out");
    read_into(err, sizeof err, "err");
    return WEXITSTATUS(status);
}

/* A number of the result line. */
static double result(const char *key)
{
    char word[64];
    snprintf(word, sizeof word, " %s=", key);
    const char *line = strstr(out, "\nresult ");
    assert_non_null(line);
    const char *found = strstr(line, word);
    if (!found) fail_msg("no \"%s\" in %s", word, line);
    return strtod(found + strlen(word), NULL);
}

#define assert_close(a, b, share)                                                                \
    do {                                                                                         \
        double a_ = (a), b_ = (b);                                                               \
        if (!(fabs(a_ - b_) <= (share)*fabs(b_))) fail_msg("line %d: %g, %g", __LINE__, a_, b_); \
    } while (0)

static const char config[] =
    "{\"model_type\": \"gpt2\", \"vocab_size\": 300, \"n_embd\": 64, \"n_layer\": 2,"
    " \"n_head\": 2, \"n_positions\": 48}";

/* ---- plan ------------------------------------------------------------------------------------ */

static void test_plan(void **state)
{
    (void)state;
    write_text(temp_path(&folder, "config.json"), config);
    if (tool("plan gpt2 --config config.json --batch 2 --dtype f32")) fail_msg("%s", err);
    assert_non_null(strstr(out, "  products  "));
    assert_non_null(strstr(out, "rates: measured here"));
    assert_close(result("tokens_per_step"), 2 * 48, 0); /* the model's positions */
    assert_close(result("ranks"), 1, 0);
    double ms = result("step_ms"), mfu = result("mfu");
    assert_true(ms > 1e-3 && ms < 60e3 && mfu > 0 && mfu < 1);
    assert_close(result("tokens_per_s"), 96 / (1e-3 * ms), 1e-4);
    /* the same file by its folder, more ranks than there are, a bandwidth that is given */
    if (tool("plan gpt2 --config . --ranks 16 --bus-gbs 1 --gpus-per-node 4 --dtype f32"))
        fail_msg("%s", err);
    assert_non_null(strstr(out, "assumed: 4 ranks a host, 400 Gb/s"));
    assert_null(strstr(out, "5 GB/s"));
    assert_true(result("sent_bytes") > 0 && result("collectives") > 2);
}

/* The peaks that are told of other ways to recompute are those of plans with them. */
static void test_plan_others(void **state)
{
    (void)state;
    static const char *const names[] = {"none", "selective", "full"};
    char text[3][64], line[200];
    for (int i = 0; i < 3; i++) {
        snprintf(
            line, sizeof line,
            "plan gpt2 --config config.json --batch 2 --dtype bf16 --rates h200 --recompute %s",
            names[i]);
        if (tool(line)) fail_msg("%s", err);
        snprintf(text[i], sizeof text[i], "  %-20s %14.0f bytes", names[i], result("peak_bytes"));
        for (int k = 0; k < i; k++) assert_non_null(strstr(out, text[k]));
        assert_null(strstr(out, text[i]));
    }
}

/* Answers: keys and values in whole pages of 16, once for a prompt of a search; what does not fit,
 * and what is not of a plan of answers. */
static void test_plan_answers(void **state)
{
    (void)state;
    const struct {
        const char *options;
        double sequences, tokens, weight;
    } right[] = {{"", 1, 32, 4},
                 {"--batch 3 --max-new-tokens 30", 3, 3 * 48, 4},
                 {"--batch 3 --max-new-tokens 8 --num-beams 4", 12, 3 * (32 + 3 * 16), 4},
                 {"--batch 2 --num-return-sequences 3", 6, 6 * 32, 4},
                 {"--batch 2 --dtype bf16 --rates h200", 2, 64, 2}};
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        char line[300];
        snprintf(line, sizeof line,
                 "plan gpt2 --config config.json --generate --prompt-length 10 "
                 "--max-new-tokens 20 %s",
                 right[i].options);
        if (tool(line)) fail_msg("%s", err);
        assert_close(result("sequences"), right[i].sequences, 0);
        assert_close(result("tokens"), right[i].tokens, 0);
        /* gaps between the small tensors of a small model */
        assert_close(result("weights_bytes"), right[i].weight * result("parameters"), 0.05);
        assert_close(result("cache_bytes"), 2 * 2 * 64 * right[i].weight * right[i].tokens, 0);
        assert_true(result("peak_bytes") > result("weights_bytes") + result("cache_bytes"));
        assert_non_null(strstr(out, " fits=yes"));
    }
    double peak = result("peak_bytes");
    if (tool("plan gpt2 --config config.json --generate --batch 2 --prompt-length 10 --dtype bf16 "
             "--max-new-tokens 20 --rates h200 --weights fp8 --gpu-memory 0.0001"))
        fail_msg("%s", err);
    assert_true(result("peak_bytes") < peak);
    assert_non_null(strstr(out, "does not fit into the 0.000 GiB given"));
    assert_non_null(strstr(out, " fits=no"));
    for (int batch = 1; batch < 3; batch++) {
        char line[200];
        snprintf(line, sizeof line,
                 "plan gpt2 --config config.json --generate --prompt-length 40 --batch %d", batch);
        assert_int_equal(tool(line), 1);
        assert_non_null(strstr(err, "40 tokens and 50 new ones, the model has 48 positions"));
    }
    static const char *const step[] = {
        "--seq-length 9",   "--fp8 all", "--optimizer muon",  "--optimizer-state 8bit",
        "--recompute full", "--offload", "--grad-dtype bf16", "--peak-tflops 1"};
    for (size_t i = 0; i < sizeof step / sizeof *step; i++) {
        char line[120];
        snprintf(line, sizeof line, "plan gpt2 --config config.json --generate %s", step[i]);
        assert_int_equal(tool(line), 2);
        snprintf(line, sizeof line, "%.*s is of a training step", (int)strcspn(step[i], " "),
                 step[i]);
        assert_non_null(strstr(err, line));
        assert_true((strstr(err, "--weights fp8") != NULL) == (i == 1));
    }
    assert_non_null(strstr(err, "of a training step"));
    assert_int_equal(tool("plan gpt2 --config config.json --num-beams 3"), 2);
    assert_non_null(strstr(err, "of --generate"));
    assert_int_equal(tool("plan bert --config bert-base --generate"), 2);
    assert_non_null(strstr(err, "bert does not generate"));
}

static void test_plan_h200(void **state)
{
    (void)state;
    if (tool("plan gpt2 --config gpt2-xl --gpus 4 --batch 16 --rates h200")) fail_msg("%s", err);
    double near = result("step_ms"), peak = result("peak_bytes");
    assert_non_null(strstr(out, "rates: of one H200"));
    assert_close(result("mfu"),
                 result("tokens_per_s") * (6 * result("parameters") + 12. * 48 * 1600 * 1024) /
                     (4 * 989e12),
                 1e-3);
    /* thinner and thinner networks between hosts; the memory of a rank falls with the ranks */
    double before = near;
    for (int gbps = 400; gbps >= 4; gbps /= 10) {
        char line[200];
        snprintf(line, sizeof line,
                 "plan gpt2 --config gpt2-xl --gpus 64 --batch 16 --rates h200 --network-gbps %d",
                 gbps);
        if (tool(line)) fail_msg("%s", err);
        assert_true(result("peak_bytes") < peak);
        assert_true(gbps == 400 || result("step_ms") > before);
        before = result("step_ms");
    }
    assert_true(before > 2 * near);
    /* 16-bit gradients are half the bytes; MFU against a peak that is given */
    if (tool("plan gpt2 --config gpt2-xl --gpus 4 --batch 16 --rates h200 --zero-level 0"))
        fail_msg("%s", err);
    double sent = result("sent_bytes"), mfu = result("mfu");
    if (tool("plan gpt2 --config gpt2-xl --gpus 4 --batch 16 --rates h200 --zero-level 0 "
             "--grad-dtype bf16 --peak-tflops 1978"))
        fail_msg("%s", err);
    assert_close(result("sent_bytes"), sent / 2, 1e-3);
    assert_true(result("mfu") < 0.55 * mfu);
    /* f32 was not measured there */
    if (tool("plan gpt2 --config gpt2-base --dtype f32 --rates h200")) fail_msg("%s", err);
    assert_non_null(strstr(out, "step time: not known, for no rates of f32"));
    assert_true(isnan(result("step_ms")) && result("peak_bytes") > 0);
}

/* What AdamOffload keeps on the host, 16 bytes an element, the GPU need not; and the other way. */
static void test_plan_offload(void **state)
{
    (void)state;
    double host[3], peak[3];
    for (int i = 0; i < 3; i++) {
        char line[200];
        snprintf(line, sizeof line,
                 "plan gpt2 --config gpt2-base --rates h200 --offload --gpu-share %g", i / 2.0);
        if (tool(line)) fail_msg("%s", err);
        host[i] = result("host_bytes");
        peak[i] = result("peak_bytes");
    }
    assert_true(host[0] >= 16 * result("parameters") && host[0] < 17 * result("parameters"));
    assert_true(host[1] > 0.5 * host[0] && host[1] < 0.7 * host[0]); /* whole blocks only */
    assert_true(host[2] == 0 && peak[0] < peak[1] && peak[1] < peak[2]);
    assert_int_equal(tool("plan gpt2 --config gpt2-base --offload --gpu-share 1.5"), 2);
}

/* Muon keeps one number for a matrix's element where Adam keeps two, and multiplies more. */
static void test_plan_muon(void **state)
{
    (void)state;
    /* as pretrain takes them; the factor of updates costs nothing */
    if (tool("plan gpt2 --config gpt2-base --batch 8 --rates h200 --optimizer muon "
             "--muon-scale shape"))
        fail_msg("%s", err);
    double ms = result("step_ms"), peak = result("peak_bytes");
    if (tool("plan gpt2 --config gpt2-base --batch 8 --rates h200 --optimizer muon"))
        fail_msg("%s", err);
    assert_true(result("step_ms") == ms && result("peak_bytes") == peak);
    /* a layer's 4 (768, 768) and 2 (3072, 768), each 5 (4 n^2 larger + 2 n^3), but of the two
     * products that are symmetric 2/3 */
    double n = 768, flops = 12 * 5 * 2 * n * n * n * (4 * (4 / 3.0 + 1) + 2 * (10 / 3.0 + 4));
    const char *line = strstr(out, "Muon: ");
    assert_non_null(line);
    assert_close(atof(line + 6), flops, 1e-3);
    assert_non_null(strstr(line, " % of a step's (about 4 x dim / tokens)"));
    assert_int_equal(tool("plan gpt2 --config gpt2-base --optimizer muon --offload"), 2);
    assert_int_equal(tool("plan gpt2 --config gpt2-base --muon-scale shape"), 2);
    assert_non_null(strstr(err, "--muon-scale needs --optimizer muon"));
}

/* In 8 bits products take less time and casts some; the casts of weights that are kept are among
 * the parameters: 2 bytes an element of 24 blocks' 12 x 1024 x 1024. */
static void test_plan_fp8(void **state)
{
    (void)state;
    double ms[2], parameters[2];
    for (int i = 0; i < 2; i++) {
        if (tool(i ? "plan gpt2 --config gpt2-medium --batch 16 --rates h200 --fp8 auto"
                   : "plan gpt2 --config gpt2-medium --batch 16 --rates h200"))
            fail_msg("%s", err);
        ms[i] = result("step_ms");
        const char *line = strstr(out, "  parameters");
        assert_non_null(line);
        parameters[i] = strtod(line + strlen("  parameters"), NULL);
    }
    assert_non_null(strstr(out, "\nfp8: products in 8 bits cannot be measured here"));
    assert_close(parameters[1] - parameters[0], 2.0 * 24 * 12 * 1024 * 1024, 0);
    if (!(ms[1] > 0.6 * ms[0] && ms[1] < 0.95 * ms[0])) fail_msg("%g, %g ms", ms[0], ms[1]);
    assert_int_equal(tool("plan --config gpt2 --dtype f16 --fp8 auto"), 2);
    assert_non_null(strstr(err, "--fp8 with --dtype f16: expected --dtype bf16 or f32"));
}

/* A base in 8 bits: of 12 blocks' 12 x 768 x 768 elements one of two bytes is left, and 4 more for
 * each of 6,912 rows. */
static void test_plan_base(void **state)
{
    (void)state;
    double bytes[2], elements = 12.0 * 12 * 768 * 768;
    for (int i = 0; i < 2; i++) {
        char line[200];
        snprintf(line, sizeof line, "plan gpt2 --config gpt2-base --lora-rank 8 --rates h200 %s",
                 i ? "--base-weights fp8" : "");
        if (tool(line)) fail_msg("%s", err);
        const char *row = strstr(out, "  parameters");
        assert_non_null(row);
        bytes[i] = strtod(row + strlen("  parameters"), NULL);
    }
    assert_close(bytes[0] - bytes[1], elements - 4.0 * 12 * 6912, 1e-4);
}

/* With products in 8 bits the base has the same parameters, and a step takes less time. */
static void test_plan_base_fp8(void **state)
{
    (void)state;
    double ms[3], bytes[3];
    static const char *const ways[] = {"", "--base-weights fp8", "--base-weights fp8 --fp8 auto"};
    for (int i = 0; i < 3; i++) {
        char line[200];
        snprintf(line, sizeof line,
                 "plan gptj --config gptj-6b --lora-rank 8 --batch 4 --seq-length 1024 "
                 "--dtype bf16 --rates h200 %s",
                 ways[i]);
        if (tool(line)) fail_msg("%s", err);
        const char *row = strstr(out, "  parameters");
        assert_non_null(row);
        bytes[i] = strtod(row + strlen("  parameters"), NULL);
        ms[i] = result("step_ms");
    }
    assert_non_null(strstr(out, "\nfp8: the base in 8 bits multiplies in 8 bits"));
    assert_true(bytes[2] == bytes[1]);
    if (!(ms[2] < 0.85 * ms[0] && ms[2] < ms[1])) fail_msg("%g, %g, %g ms", ms[0], ms[1], ms[2]);
}

/* State of the blocks' matrices, 12 of 768 x 768 in each of 12: 8 bytes an element, 4, or 2 and 8
 * of each 256. */
static void test_plan_states(void **state)
{
    (void)state;
    static const char *const ways[] = {"", "--optimizer muon", "--optimizer-state 8bit"};
    double bytes[3], matrices = 12.0 * 12 * 768 * 768;
    for (int i = 0; i < 3; i++) {
        char line[200];
        snprintf(line, sizeof line, "plan gpt2 --config gpt2-base --batch 1 --rates h200 %s",
                 ways[i]);
        if (tool(line)) fail_msg("%s", err);
        const char *row = strstr(out, "  optimizer state ");
        assert_non_null(row);
        bytes[i] = atof(row + 18);
    }
    assert_close(bytes[0] - bytes[1], 4 * matrices, 1e-3);
    assert_close(bytes[0] - bytes[2], (6 - 8 / 256.0) * matrices, 1e-3);
}

static void test_plan_bert(void **state)
{
    (void)state;
    if (tool("plan bert --config bert-base --batch 64 --rates h200")) fail_msg("%s", err);
    assert_close(result("parameters"), 109483778, 0); /* bert-base with two labels */
    assert_close(result("tokens_per_step"), 64 * 512, 0);
    double ms = result("step_ms");
    if (tool("plan bert --config bert-large --batch 64 --rates h200")) fail_msg("%s", err);
    assert_close(result("parameters"), 335143938, 0);
    assert_true(result("step_ms") > 2.5 * ms && result("step_ms") < 4 * ms);
    assert_int_equal(tool("plan bert --config bert-huge"), 1);
    assert_non_null(
        strstr(err, "no BERT config is called \"bert-huge\", expected one of: bert-base-uncased"));
}

static void test_plan_errors(void **state)
{
    (void)state;
    static const char *const lines[][2] = {
        {"plan", "required and missing"},
        {"plan gpt3 --config gpt2-base",
         "expected one of bert, gpt2, t5, gptj, cpm1, cpm2, roberta, llama, distilbert, electra, "
         "mpnet, opt, modernbert, longformer, glm, vit"},
        {"plan gpt2", "required and missing: --config"},
        {"plan gpt2 --config gpt2-base --gpus 0", "--gpus"},
        {"plan gpt2 --config gpt2-base --gpus 65537", "--gpus"},
        {"plan gpt2 --config gpt2-base --rates h100", "--rates"},
        {"plan gpt2 --config gpt2-base --network-gbps 0", "--network-gbps"},
        {"plan gpt2 --config gpt2-base --network-gbps -1", "--network-gbps"},
        {"plan gpt2 --config gpt2-base --gpus-per-node 0", "--gpus-per-node"},
        {"plan gpt2 --config gpt2-base --bus-gbs 0", "--bus-gbs"},
        {"plan gpt2 --config gpt2-base --zero-level 4", "--zero-level"},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        assert_int_equal(tool(lines[i][0]), 2);
        if (!strstr(err, lines[i][1])) fail_msg("%s: %s", lines[i][0], err);
        assert_string_equal(out, "");
    }
    assert_int_equal(tool("plan gpt2 --config gpt2-tiny"), 1);
    assert_non_null(strstr(err, "gpt2-tiny"));
    assert_int_equal(tool("plan gpt2 --config ./missing.json"), 1);
    assert_non_null(strstr(err, "missing.json"));
    assert_int_equal(tool("plan gpt2 --config gpt2-base --grad-dtype f16"), 1);
    assert_non_null(strstr(err, "--grad-dtype is f16"));
    write_text(temp_path(&folder, "config.json"), config);
    assert_int_equal(tool("plan gpt2 --config . --seq-length 49"), 1); /* more than positions */
    assert_non_null(strstr(err, "48"));
    assert_string_equal(out, "");
}

/* ---- bench comm ------------------------------------------------------------------------------ */

static void test_bench(void **state)
{
    (void)state;
    if (tool("bench comm --min-bytes 4K --max-bytes 16K --dtype bf16 --log-jsonl rows.jsonl"))
        fail_msg("%s", err);
    assert_non_null(strstr(out, "# one rank talks to nobody"));
    assert_close(result("all_gather_busbw_gbs"), 0, 0);
    static char rows[1 << 14];
    read_into(rows, sizeof rows, "rows.jsonl");
    int count = 0;
    for (char *line = strtok(rows, "\n"); line; line = strtok(NULL, "\n"), count++) {
        cJSON *row = cJSON_Parse(line);
        assert_non_null(row);
        double bytes = cJSON_GetNumberValue(cJSON_GetObjectItem(row, "bytes"));
        assert_close(bytes, 4096 << (count / COMM_KINDS), 0);
        assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(row, "collective")),
                            comm_names[count % COMM_KINDS]);
        double seconds = cJSON_GetNumberValue(cJSON_GetObjectItem(row, "seconds"));
        assert_true(seconds > 0);
        assert_close(cJSON_GetNumberValue(cJSON_GetObjectItem(row, "algbw_gbs")),
                     1e-9 * bytes / seconds, 1e-6);
        cJSON_Delete(row);
    }
    assert_int_equal(count, 3 * COMM_KINDS);
    if (tool("bench comm --collective broadcast --min-bytes 1 --max-bytes 1")) fail_msg("%s", err);
    assert_non_null(strstr(out, "\n           4  broadcast "));
    assert_null(strstr(out, "all-gather"));
}

static void test_bench_errors(void **state)
{
    (void)state;
    static const char *const lines[][2] = {
        {"bench", "required and missing"},
        {"bench disk", "expected one of comm"},
        {"bench comm --min-bytes 0", "--min-bytes: expected a number of bytes"},
        {"bench comm --min-bytes K", "found \"K\""},
        {"bench comm --min-bytes 1T", "found \"1T\""},
        {"bench comm --min-bytes -4", "--min-bytes"},
        {"bench comm --max-bytes 9999999G", "found \"9999999G\""},
        {"bench comm --max-bytes 99999999999999999999999999999", "--max-bytes"},
        {"bench comm --max-bytes 512", "--max-bytes is less than --min-bytes"},
        {"bench comm --iterations 2", "--iterations"},
        {"bench comm --dtype i32", "--dtype"},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        assert_int_equal(tool(lines[i][0]), 2);
        if (!strstr(err, lines[i][1])) fail_msg("%s: %s", lines[i][0], err);
    }
    assert_int_equal(tool("bench comm --max-bytes 1K --log-jsonl /dev/null/rows.jsonl"), 1);
    assert_non_null(strstr(err, "rows.jsonl"));
}

/* ---- what arrives ---------------------------------------------------------------------------- */

enum { RANKS = 3, COUNT = 24, SHARE = COUNT / RANKS };

/* Element i of what a rank gets, from the definitions. */
static float arrives(comm_kind kind, int rank, int64_t i)
{
    float sent[RANKS][COUNT], sum[COUNT] = {0};
    for (int r = 0; r < RANKS; r++) {
        for (int64_t k = 0; k < COUNT; k++) {
            sent[r][k] = comm_sent(r, k);
            sum[k] += sent[r][k];
        }
    }
    switch (kind) {
    case COMM_ALL_GATHER: return sent[i / SHARE][i % SHARE];
    case COMM_REDUCE_SCATTER: return sum[rank * SHARE + i];
    case COMM_BROADCAST: return sent[0][i];
    case COMM_SEND_RECV: return sent[(rank + RANKS - 1) % RANKS][i];
    default: return sum[i];
    }
}

static void test_what_is_right(void **state)
{
    (void)state;
    for (int kind = 0; kind < COMM_KINDS; kind++) {
        for (int rank = 0; rank < RANKS; rank++) {
            comm_call call = {(comm_kind)kind, RANKS, rank, COUNT};
            int64_t count = comm_arriving(&call);
            bool nothing = kind == COMM_REDUCE && rank;
            assert_int_equal(count, nothing ? 0 : kind == COMM_REDUCE_SCATTER ? SHARE : COUNT);
            float values[COUNT];
            for (int64_t i = 0; i < count; i++) values[i] = arrives((comm_kind)kind, rank, i);
            assert_int_equal(comm_first_wrong(&call, values, 0), -1);
            for (int64_t i = 0; i < count; i++) {
                float right = values[i];
                values[i] = right + 1;
                assert_int_equal(comm_first_wrong(&call, values, 1e-3f), i);
                values[i] = NAN;
                assert_int_equal(comm_first_wrong(&call, values, 1e-3f), i);
                values[i] = right;
            }
        }
    }
}

static void test_bus_factors(void **state)
{
    (void)state;
    assert_close(comm_bus_factor(COMM_ALL_REDUCE, 4), 1.5, 1e-12);
    assert_close(comm_bus_factor(COMM_ALL_GATHER, 4), 0.75, 1e-12);
    assert_close(comm_bus_factor(COMM_REDUCE_SCATTER, 2), 0.5, 1e-12);
    assert_close(comm_bus_factor(COMM_BROADCAST, 4), 1, 0);
    assert_close(comm_bus_factor(COMM_REDUCE, 4), 1, 0);
    assert_close(comm_bus_factor(COMM_SEND_RECV, 2), 1, 0);
    for (int kind = 0; kind < COMM_KINDS; kind++)
        assert_close(comm_bus_factor((comm_kind)kind, 1), 0, 0);
}

static int make_folder(void **state)
{
    (void)state;
    folder = temp_folder_new();
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    temp_folder_free(&folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan),         cmocka_unit_test(test_plan_others),
        cmocka_unit_test(test_plan_answers), cmocka_unit_test(test_plan_h200),
        cmocka_unit_test(test_plan_offload), cmocka_unit_test(test_plan_bert),
        cmocka_unit_test(test_plan_base),    cmocka_unit_test(test_plan_base_fp8),
        cmocka_unit_test(test_plan_muon),    cmocka_unit_test(test_plan_states),
        cmocka_unit_test(test_plan_errors),  cmocka_unit_test(test_bench),
        cmocka_unit_test(test_bench_errors), cmocka_unit_test(test_what_is_right),
        cmocka_unit_test(test_bus_factors),  cmocka_unit_test(test_plan_fp8),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
