/* Live objects for the generated calls of test_null_calls.c: what live_values.h is for plain
 * values. */
#ifndef MC_TESTS_LIVE_OBJECTS_H
#define MC_TESTS_LIVE_OBJECTS_H

#include "tests/null/live_values.h"

/* An object that is made once in a process, by the expression that ends the macro. */
#define MADE(type, ...)                                                  \
    static type *live_##type(const char *function, const char *argument) \
    {                                                                    \
        (void)function, (void)argument;                                  \
        static type *made;                                               \
        if (!made) made = (__VA_ARGS__);                                 \
        assert_non_null(made);                                           \
        return made;                                                     \
    }

/* The same for the objects' own use. */
#define THE(type) live_##type("", "")

static mc_context *the_context(void)
{
    static mc_context *ctx;
    if (!ctx) ctx = mc_context_new(&(mc_init_options){.seed = 3});
    assert_non_null(ctx);
    return ctx;
}

static mc_context *the_dry_context(void)
{
    static mc_context *dry;
    if (!dry) dry = mc_plan_context_new(the_context());
    assert_non_null(dry);
    return dry;
}

/* The name of a family's smallest named shape. */
static const char *shape_name(const char *function)
{
    return mc_family_shape_name(family_of(function), 0);
}

static mc_context *live_mc_context(const char *function, const char *argument)
{
    (void)function;
    return is(argument, "dry") ? the_dry_context() : the_context();
}

MADE(mc_tape, mc_tape_begin(the_context()))

/* ---- models ---------------------------------------------------------------------------------- */

/* The family in a function's name, or one that does what the function is for. */
static const char *family_of(const char *function)
{
    static const char *const names[] = {
        "roberta", "distilbert", "modernbert", "longformer", "electra", "mpnet", "bert",
        "gpt2",    "gptj",       "t5",         "cpm1",       "cpm2",    "llama"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strstr(function, names[i])) return names[i];
    if (strstr(function, "mc_opt_")) return "opt";
    if (strstr(function, "mc_glm_")) return "glm";
    if (strstr(function, "mc_vit_") || is(function, "mc_classify_images")) return "vit";
    if (is(function, "mc_model_shift_right")) return "t5";
    bool decodes = strstr(function, "generat") || strstr(function, "text_prompt") ||
                   strstr(function, "text_stream") || strstr(function, "stop") ||
                   strstr(function, "chat_prompt") || strstr(function, "rendered_prompt");
    return decodes ? "gpt2" : "bert";
}

static mc_model *live_mc_model(const char *function, const char *argument)
{
    static mc_model *made;
    (void)argument;
    if (made) return made;
    const char *family = family_of(function);
    mc_model_heads heads = {.pooler = is(family, "bert"),
                            .lm = !is(family, "vit"),
                            .nsp = is(family, "bert"),
                            .labels = is(family, "bert") || is(family, "vit") ? 2 : 0};
    made = model_of(the_context(), family, tiny(family)->config, &heads, NULL);
    if (strstr(function, "lora_merge") || strstr(function, "quantize_base"))
        mc_lora_add(made, &(mc_lora_options){.rank = 2});
    if (strstr(function, "soft_prompt_set"))
        mc_soft_prompt_add(made, &(mc_soft_prompt_options){.tokens = 2});
    assert_good(the_context());
    return made;
}

/* A family's small config. */
#define CONFIG(family)                                                           \
    static mc_##family##_config *live_mc_##family##_config(const char *function, \
                                                           const char *argument) \
    {                                                                            \
        (void)function, (void)argument;                                          \
        static mc_##family##_config config;                                      \
        mc_##family##_config_read(the_context(), live_config(#family), &config); \
        assert_good(the_context());                                              \
        return &config;                                                          \
    }
CONFIG(bert)
CONFIG(roberta)
CONFIG(distilbert)
CONFIG(electra)
CONFIG(mpnet)
CONFIG(modernbert)
CONFIG(longformer)
CONFIG(gpt2)
CONFIG(gptj)
CONFIG(t5)
CONFIG(cpm1)
CONFIG(cpm2)
CONFIG(llama)
CONFIG(opt)
CONFIG(glm)
CONFIG(vit)

MADE(mc_tokenizer, mc_tokenizer_from_pretrained(the_context(), tokenizer_folder()))
MADE(mc_embedder, mc_embedder_new(live_mc_model("bert", ""), THE(mc_tokenizer), NULL))
MADE(mc_text_classifier, mc_text_classifier_new(live_mc_model("bert", ""), THE(mc_tokenizer), NULL))
MADE(mc_generation, mc_model_generate(live_mc_model("gpt2", ""), live_list_int32_t("", ""),
                                      (int[]){2}, 1, THE(mc_generate_options)))
SET(mc_stop, .tokenizer = THE(mc_tokenizer))
MADE(mc_text_stream, mc_text_stream_new(THE(mc_stop), 0))

/* mc_generator_next and mc_generator_log_probs are for prompts that are answered together. */
static mc_generator *live_mc_generator(const char *function, const char *argument)
{
    (void)argument;
    mc_model *model = live_mc_model("gpt2", "");
    bool together = is(function, "mc_generator_next") || is(function, "mc_generator_log_probs");
    mc_generator *made = together ? mc_model_generator_new(model, live_list_int32_t("", ""),
                                                           (int[]){2}, 1, THE(mc_generate_options))
                                  : mc_model_generator_open(model, THE(mc_generator_options));
    assert_non_null(made);
    if (is(function, "mc_generator_wait")) mc_generator_close(made); /* else it waits for work */
    if (is(function, "mc_generator_log_probs")) mc_generator_next(made, live_bytes());
    return made;
}

/* ---- tensors --------------------------------------------------------------------------------- */

MADE(mc_linear, mc_linear_new(the_context(), SIDE, SIDE, NULL))

static const mc_lengths *two_sequences(void)
{
    static const mc_lengths *made;
    static const int32_t lengths[] = {SIDE / 2, SIDE / 2};
    if (!made) made = mc_tape_lengths(THE(mc_tape), lengths, 2, 1);
    return made;
}

static mc_lengths *live_mc_lengths(const char *function, const char *argument)
{
    (void)argument;
    if (is(function, "mc_with_lengths")) return (mc_lengths *)two_sequences();
    return mc_lengths_new(the_context(), 2, SIDE);
}

static mc_tensor *reals(mc_shape shape)
{
    mc_tensor *x = mc_tape_input(THE(mc_tape), MC_F32, shape, live_bytes(), true);
    assert_non_null(x);
    if (shape.dim[0] == SIDE) x->lengths = two_sequences();
    return x;
}

static mc_tensor *given(mc_shape shape)
{
    mc_tensor *x = mc_tape_input(THE(mc_tape), MC_F32, shape, live_bytes(), false);
    assert_non_null(x);
    return x;
}

static mc_tensor *ones(mc_shape shape)
{
    mc_tensor *x =
        mc_tape_input(THE(mc_tape), MC_I32, shape, live_integers("", "", sizeof(int32_t)), false);
    assert_non_null(x);
    return x;
}

SET(mc_rotary_options, .heads = 1, .head_dim = SIDE, .positions = ones(MC_SHAPE(SIDE)))

static mc_tensor *a_loss(void)
{
    return mc_cross_entropy(THE(mc_tape), reals(MC_SHAPE(SIDE, SIDE)), ones(MC_SHAPE(SIDE)), NULL);
}

static mc_model_input *live_mc_model_input(const char *function, const char *argument)
{
    static mc_model_input input;
    (void)function, (void)argument;
    input = (mc_model_input){.ids = ones(MC_SHAPE(SIDE)), .lengths = two_sequences()};
    return &input;
}

static mc_model_output *live_mc_model_output(const char *function, const char *argument)
{
    static mc_model_output output;
    (void)argument;
    output =
        mc_model_forward(THE(mc_tape), live_mc_model(function, ""), live_mc_model_input("", ""));
    return &output;
}

typedef enum tensor_kind {
    MATRIX,
    VECTOR,
    GIVEN_MATRIX, /* that takes no gradient */
    GIVEN_VECTOR,
    WEIGHT, /* of the linear layer */
    BIAS,
    INTEGERS,
    PAIR, /* keys and values, side by side */
    QKV,
    LOSS,
    HIDDEN,
    POOLED,
    STORED,
} tensor_kind;

static const struct {
    const char *function, *argument;
    tensor_kind kind;
} tensors[] = {
    {NULL, "labels", INTEGERS},
    {NULL, "index", INTEGERS},
    {NULL, "ids", INTEGERS},
    {NULL, "predictions", INTEGERS},
    {NULL, "bias", VECTOR},
    {"mc_residual_norm", "weight", VECTOR},
    {"mc_stream_norm", "weight", VECTOR},
    {"mc_bce_loss", "pos_weight", GIVEN_VECTOR},
    {"mc_loss_from_rows", "rows", VECTOR},
    {"mc_loss_from_rows", "counts", GIVEN_VECTOR},
    {NULL, "target", GIVEN_MATRIX},
    {NULL, "targets", GIVEN_MATRIX},
    {"mc_sdpa_cross", "kv", PAIR},
    {"mc_sdpa_probabilities", "kv", PAIR},
    {"mc_linear_cross_entropy", "weight", WEIGHT},
    {"mc_linear_cross_entropy", "bias", BIAS},
    {"mc_sdpa", "qkv", QKV},
    {NULL, "loss", LOSS},
    {"mc_loss_add", NULL, LOSS},
    {"mc_loss_add_ratio", NULL, LOSS},
    {"mc_tape_backward", "y", LOSS},
    {"mc_tape_backward", "dy", LOSS},
    {NULL, "hidden", HIDDEN},
    {NULL, "pooled", POOLED},
    {"mc_model_loss_of_rows", "rows", INTEGERS},
    {"mc_tensor_write", "tensor", STORED},
    {"mc_tensor_free", "tensor", STORED},
    {"mc_tensor_copy", NULL, STORED},
};

static mc_tensor *parameter_of(mc_module *module, const char *name)
{
    return mc_parameter_tensor(THE(mc_tape), mc_module_find_parameter(module, name));
}

static mc_tensor *tensor_of(tensor_kind kind, const char *function)
{
    mc_module *linear = mc_linear_module(THE(mc_linear));
    switch (kind) {
    case VECTOR: return reals(MC_SHAPE(SIDE));
    case GIVEN_VECTOR: return given(MC_SHAPE(SIDE));
    case GIVEN_MATRIX: return given(MC_SHAPE(SIDE, SIDE));
    case WEIGHT: return parameter_of(linear, "weight");
    case BIAS: return parameter_of(linear, "bias");
    case PAIR: return reals(MC_SHAPE(SIDE, 2 * SIDE));
    case INTEGERS: return ones(MC_SHAPE(SIDE));
    case QKV: return reals(MC_SHAPE(SIDE, 3 * SIDE));
    case LOSS: return a_loss();
    case HIDDEN: return live_mc_model_output(function, "")->last_hidden;
    case POOLED: return live_mc_model_output(function, "")->pooled;
    case STORED: return mc_tensor_new(the_context(), MC_F32, MC_SHAPE(SIDE, SIDE));
    default: return reals(MC_SHAPE(SIDE, SIDE));
    }
}

static mc_tensor *live_mc_tensor(const char *function, const char *argument)
{
    tensor_kind kind = MATRIX;
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        bool named = !tensors[i].function || is(tensors[i].function, function);
        bool in_place = !tensors[i].argument || is(tensors[i].argument, argument);
        if (named && in_place) kind = tensors[i].kind;
    }
    mc_tensor *made = tensor_of(kind, function);
    assert_non_null(made);
    return made;
}

static mc_tensor *const *live_list_mc_tensor(const char *function, const char *argument)
{
    mc_tensor **list = live_bytes();
    if (is(function, "mc_model_pretraining_loss")) {
        list[MC_FIELD_IDS] = ones(MC_SHAPE(SIDE));
        list[MC_FIELD_TARGETS] = ones(MC_SHAPE(SIDE));
        list[MC_FIELD_IDS]->lengths = two_sequences();
        return list;
    }
    for (int i = 0; i < LIST; i++) list[i] = live_mc_tensor(function, argument);
    return list;
}

/* ---- modules --------------------------------------------------------------------------------- */

MADE(mc_layernorm, mc_layernorm_new(the_context(), SIDE, 0))
MADE(mc_embedding, mc_embedding_new(the_context(), SIDE, SIDE, 0))

/* One that more can be added to, or one that is whole. */
static mc_module *live_mc_module(const char *function, const char *argument)
{
    bool grows = is(argument, "parent") || begins(function, "mc_parameter_new");
    if (is(function, "mc_plan_run"))
        return mc_linear_module(mc_linear_new(the_dry_context(), SIDE, SIDE, NULL));
    if (!grows) return mc_linear_module(THE(mc_linear));
    static mc_module *root;
    if (!root) root = mc_module_new(the_context(), "root", sizeof *root, NULL);
    assert_non_null(root);
    return root;
}

static mc_parameter *live_mc_parameter(const char *function, const char *argument)
{
    mc_parameter_iterator it = {0};
    return mc_module_next_parameter(live_mc_module(function, argument), &it);
}

MADE(mc_attention, mc_attention_add(live_mc_module("", "parent"), "attention", SIDE, 2, NULL))
MADE(mc_feed_forward, mc_feed_forward_add(live_mc_module("", "parent"), "ffn", SIDE, SIDE, NULL))

static mc_branch value_mc_branch(const char *function, const char *argument)
{
    return mc_feed_forward_branch(live_mc_feed_forward(function, argument));
}

static void *new_block(mc_module *list, const char *name, int index, void *config)
{
    (void)index, (void)config;
    return mc_linear_add(list, name, SIDE, SIDE, NULL);
}

static mc_tensor *run_block(mc_tape *t, void *block, mc_tensor *x, const mc_call *call)
{
    (void)call;
    return mc_linear_forward(t, block, x);
}

static mc_block_new_fn live_mc_block_new_fn(void) { return new_block; }
static mc_block_forward_fn live_mc_block_forward_fn(void) { return run_block; }

MADE(mc_block_list,
     mc_block_list_new(live_mc_module("", "parent"), "blocks", 2, new_block, run_block, NULL))
MADE(mc_inspection, mc_inspect(live_mc_module("", ""), "*"))

static mc_comm *live_mc_comm(const char *function, const char *argument)
{
    static mc_comm *made;
    (void)argument;
    if (made) return made;
    made = mc_context_comm(the_context());
    bool in_group = is(function, "mc_comm_send") || is(function, "mc_comm_recv");
    if (in_group || is(function, "mc_comm_group_end")) mc_comm_group_start(made);
    assert_good(the_context());
    return made;
}

/* ---- training -------------------------------------------------------------------------------- */

static mc_optimizer *live_mc_optimizer(const char *function, const char *argument)
{
    static mc_optimizer *made;
    (void)argument;
    if (made) return made;
    made = mc_adam_new(the_context(), NULL);
    if (!begins(function, "mc_optimizer_add")) mc_optimizer_add(made, live_mc_module("", ""));
    assert_good(the_context());
    return made;
}

MADE(mc_lr_scheduler, mc_noam_new(the_context(), 1e-3, 10))

static mc_optim_manager *live_mc_optim_manager(const char *function, const char *argument)
{
    static mc_optim_manager *made;
    (void)argument;
    if (made) return made;
    made = mc_optim_manager_new(the_context(), NULL);
    if (!is(function, "mc_optim_manager_add"))
        mc_optim_manager_add(made, THE(mc_optimizer), THE(mc_lr_scheduler));
    if (is(function, "mc_optim_manager_step")) mc_optim_manager_zero_grad(made);
    assert_good(the_context());
    return made;
}

static double constant_lr(void *user, int64_t n)
{
    (void)user, (void)n;
    return 1e-3;
}
static mc_lr_fn live_mc_lr_fn(void) { return constant_lr; }

static void fill_nothing(void *user, uint64_t seed, int64_t first, int64_t count, float *out)
{
    (void)user, (void)seed, (void)first, (void)count, (void)out;
}
static mc_init_fn live_mc_init_fn(void) { return fill_nothing; }

static void do_nothing(mc_context *ctx, void *user) { (void)ctx, (void)user; }
static mc_step_fn live_mc_step_fn(void) { return do_nothing; }
static mc_step_fn live_mc_plan_run_step(void) { return do_nothing; }

static mc_status custom_step(mc_context *ctx, const void *settings, const mc_optimizer_range *range)
{
    (void)ctx, (void)settings, (void)range;
    return MC_OK;
}
SET(mc_optimizer_kind, .name = "still", .step = custom_step)

static mc_status custom_forward(void *user, const mc_custom_call *call)
{
    (void)user, (void)call;
    return MC_OK;
}
SET(mc_custom_op_spec, .name = "custom", .forward = custom_forward, .backward = custom_forward)

/* ---- data ------------------------------------------------------------------------------------ */

static bool no_row(void *user, int64_t i, mc_data_row *row)
{
    (void)user;
    *row = (mc_data_row){.text = "a", .label = i ? "one" : "two"};
    return i < 2;
}
static mc_data_row *live_mc_data_row(const char *function, const char *argument)
{
    static mc_data_row rows[2];
    (void)function, (void)argument;
    for (int i = 0; i < 2; i++) no_row(NULL, i, &rows[i]);
    return rows;
}
static mc_data_fn live_mc_data_fn(void) { return no_row; }

static void no_answer(void *user, const mc_answer_event *event) { (void)user, (void)event; }
static mc_answer_fn live_mc_answer_fn(void) { return no_answer; }

static bool read_ones(void *user, int64_t first, int64_t count, int32_t *out)
{
    (void)user, (void)first;
    for (int64_t i = 0; i < count; i++) out[i] = 1;
    return true;
}
SET(mc_token_source, .name = "ones", .count = 100, .read = read_ones)

MADE(mc_dataset, mc_dataset_from_source(the_context(), "rows", no_row, NULL, THE(mc_data_columns),
                                        THE(mc_tokenizer), NULL))
MADE(mc_dataloader, mc_dataloader_new(THE(mc_dataset), THE(mc_dataloader_options)))
MADE(mc_scorer, mc_scorer_new(THE(mc_dataset)))
static mc_data_position *live_mc_data_position(const char *function, const char *argument)
{
    static mc_data_position position;
    position = mc_dataloader_position(live_mc_dataloader(function, argument));
    return &position;
}
MADE(mc_token_file, mc_token_file_from_source(the_context(), THE(mc_token_source)))
SET(mc_lm_source, .file = THE(mc_token_file), .weight = 1)
MADE(mc_lm_lengths, mc_lm_lengths_new(the_context(), 1, 1, 4))

static mc_table *live_mc_table(const char *function, const char *argument)
{
    static mc_table *made;
    static const char rows[] = "text,label\na,1\nb,2\n";
    static const char talk[] =
        "{\"a\": 1, \"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n";
    (void)function, (void)argument;
    if (made) return made;
    bool chat = is(function, "mc_table_chat") || is(function, "mc_table_chat_in");
    made = chat ? mc_table_from_memory(the_context(), "rows.jsonl", talk, sizeof talk - 1, NULL)
                : mc_table_from_memory(the_context(), "rows.csv", rows, sizeof rows - 1, NULL);
    if (!is(function, "mc_table_next")) mc_table_next(made);
    assert_good(the_context());
    return made;
}

static mc_objective_style *live_mc_objective_style(const char *function, const char *argument)
{
    static mc_objective_style style;
    (void)function, (void)argument;
    style = *mc_family_objective("bert");
    return &style;
}

static mc_objective_options *live_mc_objective_options(const char *function, const char *argument)
{
    static mc_objective_options o;
    o = (mc_objective_options){.style = *live_mc_objective_style(function, argument),
                               .seq_length = SIDE,
                               .vocabulary = 13,
                               .mask_probability = 0,
                               .tokens = {.begin = 2, .separator = 3, .mask = 4}};
    return &o;
}

static mc_lm_loader *live_mc_lm_loader(const char *function, const char *argument)
{
    mc_lm_loader_options o = {.batch_size = 1, .seq_length = 4};
    if (begins(function, "mc_objective"))
        o.seq_length = mc_objective_window(the_context(), live_mc_objective_options("", ""));
    o.seed = is(argument, "elsewhere");
    mc_lm_loader *made = mc_lm_loader_new(THE(mc_token_file), &o);
    assert_non_null(made);
    return made;
}

static mc_lm_position *live_mc_lm_position(const char *function, const char *argument)
{
    static mc_lm_position position;
    position = mc_lm_loader_position(live_mc_lm_loader(function, argument));
    return &position;
}

static const mc_lm_batch *live_mc_lm_batch(const char *function, const char *argument)
{
    return mc_lm_loader_next(live_mc_lm_loader(function, argument));
}

MADE(mc_objective, mc_objective_new(live_mc_lm_loader("mc_objective_new", ""),
                                    live_mc_lm_loader("mc_objective_new", "elsewhere"),
                                    live_mc_objective_options("", "")))

/* ---- files ----------------------------------------------------------------------------------- */

static const char *tensor_path(void)
{
    const char *path = new_path("module.safetensors");
    mc_module_save(live_mc_module("", ""), path);
    assert_good(the_context());
    return path;
}

static const char *optim_path(void)
{
    const char *path = new_path("optim.safetensors");
    mc_optim_manager_save(THE(mc_optim_manager), path);
    assert_good(the_context());
    return path;
}

static mc_status save_no_files(void *user, const char *folder)
{
    (void)user, (void)folder;
    return MC_OK;
}

SET(mc_checkpoint_options, .step = 1, .optim = THE(mc_optim_manager), .save_files = save_no_files)

static const char *checkpoint_folder(void)
{
    const char *path = new_path("checkpoints");
    mc_checkpoint_save(the_context(), path, THE(mc_checkpoint_options));
    assert_good(the_context());
    return path;
}

static const char *token_path(void)
{
    const char *path = new_path("tokens"), *input = text_file();
    mc_prepare_tokens(the_context(), THE(mc_tokenizer), &input, 1, path, NULL, NULL);
    assert_good(the_context());
    return path;
}

MADE(mc_tensor_file, mc_tensor_file_open(the_context(), tensor_path(), NULL))
MADE(mc_checkpoint, mc_checkpoint_open(the_context(), checkpoint_folder()))

static const char *begun_folder(void)
{
    const char *folder = new_path("begun");
    char aside[1024];
    mc_model_folder_begin(the_context(), folder, aside, sizeof aside);
    assert_good(the_context());
    return folder;
}

static mc_aside *live_mc_aside(const char *function, const char *argument)
{
    static mc_aside aside;
    (void)argument;
    if (!is(function, "mc_aside_open"))
        assert_int_equal(mc_aside_open(&aside, new_path("aside")), 0);
    return &aside;
}

/* A writer of one tensor, which only the functions that write still lack. */
static mc_safetensors_writer *live_mc_safetensors_writer(const char *function, const char *argument)
{
    mc_safetensors_writer *w = mc_safetensors_writer_new(the_context(), new_path("w.safetensors"),
                                                         THE(mc_safetensors_spec), 1, NULL, 0);
    (void)argument;
    if (!is(function, "mc_safetensors_write"))
        mc_safetensors_write(w, live_bytes(), SIDE * SIDE * 4);
    if (is(function, "mc_safetensors_writer_rename")) mc_safetensors_writer_sync(w);
    assert_good(the_context());
    return w;
}

static mc_torch_writer *live_mc_torch_writer(const char *function, const char *argument)
{
    mc_torch_writer *w =
        mc_torch_writer_new(the_context(), new_path("w.bin"), THE(mc_safetensors_spec), 1);
    (void)argument;
    if (!is(function, "mc_torch_write")) mc_torch_write(w, live_bytes(), SIDE * SIDE * 4);
    assert_good(the_context());
    return w;
}

static const mc_tensor_entry *live_mc_tensor_entry(const char *function, const char *argument)
{
    return mc_tensor_file_at(live_mc_tensor_file(function, argument), 0);
}

#endif
