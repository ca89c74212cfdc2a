/* check_golden on the reference data, and on copies of it that have something wrong: what differs
 * must give exit 1, what cannot be used exit 2 with a message. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <sys/wait.h>
#include "core/base/file_internal.h"
#include "core/base/json_internal.h"
#include "core/base/memory_internal.h"
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tests/temp_folder.h"

static char output[1 << 16];

/* Runs check_golden on a folder; its exit status, with all it prints in `output`. */
static int check_golden(const char *folder)
{
    char command[2048];
    snprintf(command, sizeof command, "'%s' '%s' 2>&1", MC_CHECK_GOLDEN, folder);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t size = fread(output, 1, sizeof output - 1, pipe);
    output[size] = '\0';
    int status = pclose(pipe);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static const char *golden_folder(const char *name)
{
    static char path[1024];
    const char *shared = shared_folder();
    if (!shared) skip();
    snprintf(path, sizeof path, "%s/goldens/%s", shared, name);
    if (access(path, R_OK) == 0) return path;
    printf("SKIPPED: no %s\n", path);
    skip();
    return NULL;
}

static void expect_exit(const char *folder, int status, const char *word)
{
    int found = check_golden(folder);
    if (found != status || !strstr(output, word))
        fail_msg("exit %d, expected %d with \"%s\" in: %s", found, status, word, output);
}

/* Folders, each with one thing that has to be compared in it beside outputs. */
static const struct {
    const char *name, *compared;
} goldens[] = {
    {"bert-classification", "losses        7 compared"}, /* out.loss and train.losses */
    {"bert-pretraining", "grad."},
    {"gpt2-lm", "gen."},
    {"gptj-lm", "gen."},
    {"t5-v1.0", "gen."},
    {"t5-v1.1", "gen."},
    {"cpm1", "grad."},
    {"cpm1-flags", "grad."},
    {"cpm1-causal", "grad."},
    {"cpm2", "grad."},
    {"cpm2-flags", "grad."},
    {"mc-bert", "out."},
    {"mc-gpt2", "out."},
    {"mc-gptj", "out."},
    {"mc-t5", "out."},
    {"roberta-mlm", "grad."},
    {"xlm-roberta-mlm", "grad."},
    {"distilbert-mlm", "grad."},
    {"distilbert-classification", "grad."},
    {"electra-mlm", "grad."},
    {"electra-discriminator", "grad."},
    {"electra-classification", "grad."},
    {"mpnet-mlm", "grad."},
    {"modernbert-mlm", "grad."},
    {"modernbert-classification", "grad."},
    {"longformer-mlm", "grad."},
    {"mpnet-classification", "grad."},
    {"xlm-roberta-classification", "losses        7 compared"},
    {"llama-lm", "grad."},
    {"llama-linear-lm", "gen."},
    {"llama-yarn-lm", "gen."},
    {"llama3-lm", "gen."},
    {"llama-classification", "losses        7 compared"},
    {"mistral-lm", "gen."},
    {"qwen2-lm", "gen."},
    {"qwen2-window-lm", "gen."},
    {"qwen3-lm", "gen."},
    {"mc-llama", "grad."},
    {"opt-lm", "grad."},
    {"opt-350m-lm", "gen."},
    {"mc-opt", "grad."},
    {"mc-glm", "losses        7 compared"},
    {"vit-classification", "losses        6 compared"},
};
enum { GOLDENS = sizeof goldens / sizeof *goldens };

static void test_goldens(void **state)
{
    (void)state;
    for (int i = 0; i < GOLDENS; i++) {
        expect_exit(golden_folder(goldens[i].name), 0, "golden: passed");
        if (!strstr(output, "out.") || !strstr(output, goldens[i].compared))
            fail_msg("%s: nothing of \"%s\" was compared: %s", goldens[i].name, goldens[i].compared,
                     output);
    }
}

#ifdef MC_TEST_SANITIZED /* every folder has run in f32; the code of 16 bits needs a few */
enum { EACH = 5 };
#else
enum { EACH = 1 };
#endif

/* Parameters of 16 bits: within their own error, and not within that of f32. */
static void test_goldens_in_16_bits(void **state)
{
    (void)state;
    static const char *const dtypes[] = {"bf16", "f16"};
    for (int i = 0; i < GOLDENS; i += EACH)
        for (int d = 0; d < 2; d++) {
            char command[2048];
            snprintf(command, sizeof command, "%s' --dtype '%s' --device 'cpu",
                     golden_folder(goldens[i].name), dtypes[d]);
            expect_exit(command, 0, "golden: passed");
            double worst = strtod(strstr(output, "worst ") + 6, NULL);
            if (!(worst > 1e-4)) fail_msg("%s: worst %g in 16 bits", goldens[i].name, worst);
        }
    expect_exit("x' --dtype 'f64", 2, "usage");
    expect_exit("x' --device 'abacus", 2, "abacus");
}

/* ---- altered copies -------------------------------------------------------------------------- */

typedef struct bytes {
    uint8_t *data;
    size_t size;
} bytes;

static bytes read_whole(const char *folder, const char *name)
{
    char path[1200];
    mc_error err = {0};
    bytes b;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    b.data = (uint8_t *)mc_file_read(&err, path, 1 << 26, &b.size);
    assert_non_null(b.data);
    return b;
}

static temp_folder copy_golden(const char *name)
{
    static const char *const files[] = {"config.json", "model.safetensors", "expected.safetensors"};
    temp_folder copy = temp_folder_new();
    for (int i = 0; i < 3; i++) {
        bytes b = read_whole(golden_folder(name), files[i]);
        write_bytes(temp_path(&copy, files[i]), b.data, b.size);
        mc_free(b.data);
    }
    return copy;
}

/* Where the bytes of a tensor begin in its file. */
static size_t place_of(const char *path, const char *tensor, bool *is_double)
{
    mc_context *ctx = mc_init_distributed(NULL);
    mc_tensor_file *file = mc_tensor_file_open(ctx, path, NULL);
    const mc_tensor_entry *entry = mc_tensor_file_find(file, tensor);
    assert_non_null(entry);
    const uint8_t *first = entry->data;
    for (size_t i = 0; i < mc_tensor_file_count(file); i++)
        if ((const uint8_t *)mc_tensor_file_at(file, i)->data < first)
            first = mc_tensor_file_at(file, i)->data;
    size_t place = (size_t)((const uint8_t *)entry->data - first);
    *is_double = strcmp(entry->dtype_name, "F64") == 0;
    mc_context_free(ctx);
    return place;
}

/* Adds `by` to the first element of a tensor. */
static void change_value(const temp_folder *folder, const char *file, const char *tensor, double by)
{
    bytes b = read_whole(folder->path, file);
    bool is_double;
    uint64_t header;
    size_t place = place_of(temp_path(folder, file), tensor, &is_double);
    memcpy(&header, b.data, sizeof header);
    uint8_t *at = b.data + 8 + header + place;
    double wide;
    float narrow;
    memcpy(&wide, at, sizeof wide);
    memcpy(&narrow, at, sizeof narrow);
    wide += by;
    narrow += (float)by;
    if (is_double)
        memcpy(at, &wide, sizeof wide);
    else
        memcpy(at, &narrow, sizeof narrow);
    write_bytes(temp_path(folder, file), b.data, b.size);
    mc_free(b.data);
}

/* ---- configs as transformers 4 wrote them ---------------------------------------------------- */

/* Puts the members of "rope_parameters" where they were before transformers 5. */
static void write_older_config(const temp_folder *folder, const char *type_key)
{
    mc_error err = {0};
    const char *path = temp_path(folder, "config.json");
    cJSON *json = mc_json_read_object(&err, path, 1 << 20);
    assert_non_null(json);
    cJSON *rope = cJSON_DetachItemFromObject(json, "rope_parameters");
    cJSON_AddItemToObject(json, "rope_theta", cJSON_DetachItemFromObject(rope, "rope_theta"));
    cJSON *type = cJSON_DetachItemFromObject(rope, "rope_type");
    bool scaled = strcmp(type->valuestring, "default") != 0;
    cJSON_AddItemToObject(rope, type_key, type);
    cJSON_AddItemToObject(json, "rope_scaling", scaled ? rope : cJSON_CreateNull());
    if (!scaled) cJSON_Delete(rope);
    cJSON_AddItemToObject(json, "torch_dtype", cJSON_DetachItemFromObject(json, "dtype"));
    cJSON_DeleteItemFromObject(json, "layer_types");
    char *text = cJSON_Print(json);
    write_text(path, text);
    cJSON_free(text);
    cJSON_Delete(json);
}

static void test_older_configs(void **state)
{
    (void)state;
    static const char *const names[] = {"llama-linear-lm", "llama-yarn-lm",   "llama3-lm",
                                        "mistral-lm",      "qwen2-window-lm", "qwen3-lm"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        temp_folder copy = copy_golden(names[i]);
        write_older_config(&copy, i % 2 ? "type" : "rope_type");
        expect_exit(copy.path, 0, "golden: passed");
        temp_folder_free(&copy);
    }
}

typedef struct change {
    const char *golden, *file, *tensor;
    double by;
    int status;
    const char *word;
} change;

static const change changes[] = {
    {"bert-classification", "expected.safetensors", "out.logits", 1e-3, 1, "out.logits  FAILED"},
    {"bert-classification", "expected.safetensors", "out.logits", 1e-8, 0, "passed"},
    {"bert-classification", "expected.safetensors", "out.loss", 1e-2, 1, "out.loss  FAILED"},
    {"bert-classification", "expected.safetensors", "train.losses", 1e-2, 1,
     "train.losses[0]  FAILED"},
    {"bert-classification", "expected.safetensors", "grad.bert.pooler.dense.weight", 1, 1,
     "grad.bert.pooler.dense.weight  FAILED"},
    {"bert-classification", "expected.safetensors", "grad.classifier.bias", (double)NAN, 1,
     "FAILED"},
    {"bert-pretraining", "expected.safetensors", "out.mlm_logits", 1e-2, 1, "FAILED"},
    {"bert-pretraining", "expected.safetensors", "grad.bert.embeddings.word_embeddings.weight", 1,
     1, "FAILED"},
    {"gpt2-lm", "expected.safetensors", "out.logits", 1e-2, 1, "out.logits  FAILED"},
    {"gpt2-lm", "expected.safetensors", "grad.transformer.h.1.attn.c_attn.weight", 1, 1,
     "grad.transformer.h.1.attn.c_attn.weight  FAILED"},
    {"gpt2-lm", "expected.safetensors", "grad.transformer.wte.weight", 1, 1, "FAILED"},
    {"gpt2-lm", "expected.safetensors", "train.losses", 1e-2, 1, "train.losses[0]  FAILED"},
    {"gpt2-lm", "model.safetensors", "transformer.h.2.attn.c_attn.weight", 3, 1, "FAILED"},
    {"bert-classification", "model.safetensors", "classifier.bias", 0.5, 1, "FAILED"},
    {"bert-pretraining", "model.safetensors", "bert.encoder.layer.0.attention.self.query.bias", 3,
     1, "FAILED"},
    {"bert-classification", "model.safetensors", "bert.pooler.dense.weight", (double)NAN, 1, "NaN"},
};

/* Renames a tensor of a file to one with a name as long. */
static void rename_tensor(const temp_folder *folder, const char *file, const char *from,
                          const char *to)
{
    bytes b = read_whole(folder->path, file);
    uint8_t *at = memmem(b.data, b.size, from, strlen(from));
    assert_non_null(at);
    assert_int_equal(strlen(from), strlen(to));
    memcpy(at, to, strlen(to));
    write_bytes(temp_path(folder, file), b.data, b.size);
    mc_free(b.data);
}

/* What is expected but unknown is not passed over. */
static void test_unknown_names(void **state)
{
    (void)state;
    static const char *const names[][3] = {
        {"bert-classification", "\"out.logits\"", "\"out.logitz\""},
        {"bert-classification", "\"train.losses\"", "\"train.losers\""},
        {"bert-classification", "\"grad.classifier.bias\"", "\"grad.classifier.bios\""},
        {"gpt2-lm", "\"gen.beam4\"", "\"gen.beams\""}};
    for (int i = 0; i < 4; i++) {
        temp_folder copy = copy_golden(names[i][0]);
        rename_tensor(&copy, "expected.safetensors", names[i][1], names[i][2]);
        expect_exit(copy.path, 1, "FAILED");
        temp_folder_free(&copy);
    }
    temp_folder copy = copy_golden("bert-classification");
    rename_tensor(&copy, "model.safetensors", "\"bert.pooler.dense.bias\"",
                  "\"bert.pooler.dense.bios\"");
    expect_exit(copy.path, 2, "1 tensor is missing: \"pooler.dense.bias\""); /* a head in part */
    rename_tensor(&copy, "model.safetensors", "\"bert.pooler.dense.weight\"",
                  "\"bert.pooler.dense.weighs\"");
    expect_exit(copy.path, 1, "newly initialised: \"pooler.dense.weight\", \"pooler.dense.bias\"");
    rename_tensor(&copy, "model.safetensors", "\"bert.embeddings.LayerNorm.bias\"",
                  "\"bert.embeddings.LayerNorm.bios\"");
    expect_exit(copy.path, 2, "embeddings.LayerNorm.bias");
    temp_folder_free(&copy);
}

static void test_changed_values(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        const change *c = &changes[i];
        temp_folder copy = copy_golden(c->golden);
        change_value(&copy, c->file, c->tensor, c->by);
        expect_exit(copy.path, c->status, c->word);
        temp_folder_free(&copy);
    }
}

static void cut_file(const temp_folder *folder, const char *name, size_t size)
{
    assert_int_equal(truncate(temp_path(folder, name), (off_t)size), 0);
}

static void test_unusable_folders(void **state)
{
    (void)state;
    static const char *const files[] = {"model.safetensors", "expected.safetensors", "config.json"};
    for (int i = 0; i < 3; i++)
        for (int how = 0; how < 3; how++) {
            temp_folder copy = copy_golden("bert-classification");
            if (how == 0)
                cut_file(&copy, files[i], 100);
            else if (how == 1)
                cut_file(&copy, files[i], 0);
            else
                unlink(temp_path(&copy, files[i]));
            bool is_weights = i == 0 && how == 2; /* the message names the folder then */
            expect_exit(copy.path, 2, is_weights ? copy.path : files[i]);
            assert_non_null(strstr(output, "error: "));
            temp_folder_free(&copy);
        }
    temp_folder copy = copy_golden("bert-classification");
    bytes b = read_whole(copy.path, "model.safetensors");
    cut_file(&copy, "model.safetensors", b.size - 1);
    mc_free(b.data);
    expect_exit(copy.path, 2, "model.safetensors");
    expect_exit(temp_path(&copy, "nowhere"), 2, "nowhere");
    temp_folder_free(&copy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),          cmocka_unit_test(test_goldens_in_16_bits),
        cmocka_unit_test(test_changed_values),   cmocka_unit_test(test_unknown_names),
        cmocka_unit_test(test_unusable_folders), cmocka_unit_test(test_older_configs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
