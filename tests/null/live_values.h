/* Live arguments for the generated calls of test_null_calls.c: for each type a value that most
 * functions accept, made when it is first asked for, in the process of the one call. Where
 * functions require another value of the type, the name of the function or of the argument chooses
 * it. */
#ifndef MC_TESTS_LIVE_VALUES_H
#define MC_TESTS_LIVE_VALUES_H

#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tests/models/family_test.h"

/* Rows and columns of the matrices: so small that any two of them can be multiplied. */
enum { SIDE = 8, LIST = 8, BYTES = 1 << 16 };

static temp_folder live_folder; /* of all calls: each writes under a name of its own process */

static bool is(const char *a, const char *b) { return strcmp(a, b) == 0; }
static bool begins(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

/* A new path in the folder of the test. */
static const char *new_path(const char *name)
{
    static int count;
    char path[1024];
    snprintf(path, sizeof path, "%s/%ld-%d-%s", live_folder.path, (long)getpid(), count++, name);
    const char *kept = strdup(path);
    assert_non_null(kept);
    return kept;
}

/* ---- plain values ---------------------------------------------------------------------------- */

/* Rows of BoolQ. */
#define QUESTIONS                                                  \
    "{\"question\": \"a\", \"passage\": \"b\", \"label\": true}\n" \
    "{\"question\": \"b\", \"passage\": \"a\", \"label\": false}\n"

static const struct {
    const char *function, *argument;
    int64_t value;
} integers[] = {
    {"mc_linear_cross_entropy", "classes", SIDE},
    {NULL, "dtype", MC_F32},
    {"mc_model_folder_begin", "room", BYTES},
    {NULL, "round_to", 1},
    {NULL, "op", MC_REDUCE_SUM},
    {NULL, "capacity", SIDE},
    {"mc_tensor_size", "dim", 0},
    {"mc_slice", "dim", 0},
    {"mc_concat", "dim", 0},
    {"mc_sum", "dim", 0},
    {"mc_mean", "dim", 0},
    {NULL, "dim", SIDE},
    {NULL, "stored_rows", SIDE},
    {"mc_module_new", "size", 256},
    {"mc_module_add", "size", 256},
    {"mc_safetensors_write", "size", SIDE *SIDE * 4},
    {"mc_torch_write", "size", SIDE *SIDE * 4},
    {"mc_model_set_problem_type", "size", 0},
    {"mc_dataset_from_rows", "count", 2},
    {"mc_token_file_open_list", "count", 1},
    {"mc_spearman", "n", 4},
    {"mc_pearson", "n", 4},
    {"mc_transpose", "dim_a", 0},
    {NULL, "root", 0},
    {NULL, "rank", 0},
    {NULL, "peer", 0},
    {NULL, "colour", 0},
    {NULL, "row", 0},
    {NULL, "i", 0},
    {NULL, "index", 0},
    {NULL, "choice", 0},
    {"mc_table_chat", "column", 1},
    {"mc_table_chat_in", "column", 1},
    {NULL, "column", 0},
    {NULL, "shard", 0},
    {"mc_token_positions", "limit", SIDE},
    {"mc_token_positions", "first", 1},
    {"mc_find_blanks", "limit", SIDE},
    {"mc_find_blanks", "start", 1},
    {"mc_find_blanks", "mask", 2},
    {NULL, "first", 0},
    {NULL, "late", 0},
    {NULL, "in", SIDE},
    {NULL, "out", SIDE},
    {NULL, "dim_ff", SIDE},
    {"mc_set_error_at", "status", MC_ERR_STATE},
    {"mc_tensor_write", "bytes", SIDE *SIDE * 4},
    {"mc_tensor_read_f32", "count", SIDE *SIDE},
    {"mc_optimizer_new", "settings_size", 4},
    {"mc_lr_scheduler_at", "n", 1},
    {"mc_linear_decay_new", "end", 10},
    {"mc_cosine_new", "end", 10},
    {"mc_tokenizer_encode", "max_length", SIDE},
    {"mc_tokenizer_encode_batch", "max_length", SIDE},
    {"mc_tokenizer_check_ids", "vocabulary", 10},
    {"mc_token_file_read_within", "vocabulary", 10},
    {"mc_hub_cached", "room", BYTES},
    {"mc_hub_download", "room", BYTES},
    {"mc_model_config_text", "room", BYTES},
    {"mc_dataset_from_memory", "size", sizeof QUESTIONS - 1},
    {"mc_table_from_memory", "size", sizeof QUESTIONS - 1},
};

static int64_t live_integer(const char *function, const char *argument)
{
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++)
        if (is(integers[i].argument, argument) &&
            (!integers[i].function || is(integers[i].function, function)))
            return integers[i].value;
    return 1;
}

static double live_real(const char *function, const char *argument)
{
    (void)function;
    return is(argument, "dropout") || is(argument, "p") ? 0.1 : 0.5;
}

/* An array of ones: ids, lengths, counts, indices. */
static void *live_integers(const char *function, const char *argument, size_t size)
{
    (void)argument;
    char *array = calloc(1, BYTES);
    assert_non_null(array);
    bool order = is(function, "mc_model_order_labels"); /* 0, 1, ... */
    for (size_t i = 0; i + size <= BYTES; i += size) array[i] = order ? (char)(i / size % 100) : 1;
    return array;
}

static void *live_reals(const char *function, const char *argument, size_t size)
{
    (void)function, (void)argument, (void)size;
    void *array = calloc(1, BYTES);
    assert_non_null(array);
    return array;
}

/* Memory of malloc: room for a result, or a string to free. */
static void *live_bytes(void)
{
    void *bytes = calloc(1, BYTES);
    assert_non_null(bytes);
    return bytes;
}

static void *live_out(void) { return live_bytes(); }

static FILE *live_FILE(const char *function, const char *argument)
{
    (void)function, (void)argument;
    return stdout; /* which goes to /dev/null */
}

/* ---- texts ----------------------------------------------------------------------------------- */

static const char *tokenizer_folder(void)
{
    static const char *folder;
    if (folder) return folder;
    folder = new_path("tokenizer");
    assert_int_equal(mkdir(folder, 0777), 0);
    char path[1024];
    snprintf(path, sizeof path, "%s/vocab.txt", folder);
    write_text(path, "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\nd\n##a\n##b\n##c\n##d\n");
    return folder;
}

static const char *live_config(const char *family)
{
    const char *path = new_path("config.json");
    write_text(path, tiny(family)->config);
    return path;
}

static const char *family_of(const char *function);
static mc_model *live_mc_model(const char *function, const char *argument);
static mc_tokenizer *live_mc_tokenizer(const char *function, const char *argument);

static const char *model_folder(const char *function)
{
    static const char *folder;
    if (folder) return folder;
    folder = new_path("model");
    assert_int_equal(mc_model_save(live_mc_model(function, "model"), folder), MC_OK);
    assert_int_equal(mc_tokenizer_save(live_mc_tokenizer(function, "tok"), folder), MC_OK);
    return folder;
}

static const char *text_file(void)
{
    const char *path = new_path("text.csv");
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "text,label\n");
    for (int i = 0; i < 200; i++)
        fprintf(file, "a %d few words and others %d,%d\n", i, i * i, i % 2);
    fclose(file);
    return path;
}

static const char *checkpoint_folder(void);
static const char *shape_name(const char *function);
static const char *begun_folder(void);

static const char *data_folder(void)
{
    const char *folder = new_path("data");
    char path[1024];
    assert_int_equal(mkdir(folder, 0777), 0);
    snprintf(path, sizeof path, "%s/train.jsonl", folder);
    write_text(path, QUESTIONS);
    return folder;
}
static const char *tensor_path(void);
static const char *optim_path(void);
static const char *token_path(void);

static const char image_path[] = MC_SOURCE_DIR "/tests/datasets/images/rgb.png";

/* A path or a folder that the function reads; NULL: it writes there. */
static const char *path_to_read(const char *function)
{
    if (is(function, "mc_module_load") || is(function, "mc_tensor_file_open")) return tensor_path();
    if (is(function, "mc_optim_manager_load")) return optim_path();
    if (is(function, "mc_checkpoint_exists") || is(function, "mc_checkpoint_open"))
        return checkpoint_folder();
    if (strstr(function, "_config_read")) return live_config(family_of(function));
    if (is(function, "mc_table_open") || is(function, "mc_dataset_from_file")) return text_file();
    if (is(function, "mc_image_read")) return image_path;
    return NULL;
}

static const char *live_text(const char *function, const char *argument)
{
    if (is(argument, "identifier"))
        return begins(function, "mc_tokenizer") ? tokenizer_folder() : model_folder(function);
    if (is(argument, "folder") && is(function, "mc_dataset_open")) return data_folder();
    if (is(function, "mc_model_folder_commit")) return begun_folder();
    if (is(argument, "path") || is(argument, "folder")) {
        const char *path = path_to_read(function);
        return path ? path : new_path("written");
    }
    if (is(argument, "output")) return new_path("written");
    if (is(argument, "family")) return "bert";
    if (is(argument, "config")) return live_config("bert");
    if (is(function, "mc_token_file_open")) return token_path();
    if (is(argument, "pattern")) return "*";
    if (is(argument, "data")) return QUESTIONS;
    if (is(argument, "task")) return "BoolQ";
    if (is(argument, "name") && strstr(function, "from_memory")) return "rows.jsonl";
    if (is(function, "mc_chat_format_choose")) return "chatml";
    if (is(argument, "name") && strstr(function, "config_named")) return shape_name(function);
    if (is(function, "mc_table_column")) return "label";
    if (is(argument, "split")) return "train";
    if (is(argument, "type")) return "regression";
    return "a b";
}

static const char *const *live_list_char(const char *function, const char *argument)
{
    (void)argument;
    static const char *list[LIST];
    for (int i = 0; i < LIST; i++)
        list[i] = is(function, "mc_model_set_task")         ? "label"
                  : is(function, "mc_token_file_open_list") ? token_path()
                                                            : text_file();
    return list;
}

static const int32_t *const *live_list_int32_t(const char *function, const char *argument)
{
    static const int32_t *list[LIST];
    for (int i = 0; i < LIST; i++) list[i] = live_integers(function, argument, sizeof **list);
    return list;
}

/* ---- structs that are plain ------------------------------------------------------------------ */

static const mc_chat_message *live_mc_chat_message(const char *function, const char *argument)
{
    static const mc_chat_message message = {"user", "a"};
    (void)function, (void)argument;
    return &message;
}

/* Options whose zeros are their defaults, and results that a function fills in. */
#define ZEROED(type)                                                     \
    static type *live_##type(const char *function, const char *argument) \
    {                                                                    \
        (void)function, (void)argument;                                  \
        return live_bytes();                                             \
    }
ZEROED(mc_accuracy)
ZEROED(mc_adam_options)
ZEROED(mc_muon_options)
ZEROED(mc_batch_encoding)
ZEROED(mc_block_options)
ZEROED(mc_cache_plan)
ZEROED(mc_call)
ZEROED(mc_comm_id)
ZEROED(mc_comm_options)
ZEROED(mc_convert_options)
ZEROED(mc_cross_entropy_options)
ZEROED(mc_dataset_options)
ZEROED(mc_decode_options)
ZEROED(mc_embed_options)
ZEROED(mc_encoding)
ZEROED(mc_feed_forward_options)
ZEROED(mc_attention_options)
ZEROED(mc_hub_options)
ZEROED(mc_init_options)
ZEROED(mc_linear_options)
ZEROED(mc_load_options)
ZEROED(mc_lora_options)
ZEROED(mc_fp8_kind)
ZEROED(mc_memory_plan)
ZEROED(mc_module_options)
ZEROED(mc_objective_tokens)
ZEROED(mc_optim_manager_options)
ZEROED(mc_optimizer_options)
ZEROED(mc_param_group)
ZEROED(mc_parameter_iterator)
ZEROED(mc_prepare_options)
ZEROED(mc_prepare_result)
ZEROED(mc_rouge_score)
ZEROED(mc_recipe)
ZEROED(mc_save_options)
ZEROED(mc_score)
ZEROED(mc_sgd_options)
ZEROED(mc_step_plan)
ZEROED(mc_step_report)
ZEROED(mc_table_options)
ZEROED(mc_tensor_file_options)
ZEROED(mc_text_classifier_options)
ZEROED(mc_text_prompt)
ZEROED(mc_chat_format)
ZEROED(mc_chat_text)
ZEROED(mc_text_score)
ZEROED(mc_time_options)
ZEROED(mc_tokenizer_options)
ZEROED(mc_model_heads)
ZEROED(mc_gpu)
ZEROED(mc_hub_state)
ZEROED(mc_machine)
ZEROED(mc_model_labels)
ZEROED(mc_part)
ZEROED(mc_tensor_checksums)
ZEROED(uint32_t)

/* The same with some fields set. */
#define SET(type, ...)                                                   \
    static type *live_##type(const char *function, const char *argument) \
    {                                                                    \
        (void)function, (void)argument;                                  \
        static type value;                                               \
        value = (type){__VA_ARGS__};                                     \
        return &value;                                                   \
    }
SET(mc_sdpa_options, .heads = 2)
SET(mc_position_bias_options, .length = SIDE, .max_distance = SIDE)
SET(mc_train_tokenizer_options, .vocab_size = 30, .threads = 1)
SET(mc_generate_options, .max_new_tokens = 2)
SET(mc_generator_options, .sequences = 2, .longest = 16)
SET(mc_lm_loader_options, .batch_size = 1, .seq_length = 4)
SET(mc_dataloader_options, .batch_size = 1)
SET(mc_data_columns, .text = "text", .label = "label")
SET(mc_soft_prompt_options, .tokens = 2)
SET(mc_image_form, .size = 2, .resize = true, .filter = MC_IMAGE_BILINEAR, .factor = 1,
    .std = {1, 1, 1})

static mc_text_span *live_mc_text_span(const char *function, const char *argument)
{
    static mc_text_span span;
    (void)argument;
    span = is(function, "mc_classify_images")
               ? (mc_text_span){.data = image_path, .size = sizeof image_path - 1}
               : (mc_text_span){.data = "a b", .size = 3};
    return &span;
}

SET(mc_sequence_work, .length = 4, .targets = 2)
SET(mc_safetensors_string, .key = "key", .value = "value")
SET(mc_parameter_part, .name = "part", .rows = 1)

static const int64_t side[] = {SIDE, SIDE};
SET(mc_safetensors_spec, .name = "w", .dtype = MC_F32, .ndim = 2, .shape = side)

static mc_shape value_mc_shape(const char *function, const char *argument)
{
    (void)argument;
    return is(function, "mc_parameter_new_stacked") ? MC_SHAPE(SIDE) : MC_SHAPE(SIDE, SIDE);
}

static mc_initializer value_mc_initializer(const char *function, const char *argument)
{
    (void)function, (void)argument;
    return mc_init_zeros();
}

#endif
