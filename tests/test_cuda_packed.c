/* Recorded steps over packed batches whose lengths change from step to step: a small BERT on the
 * GPU, its steps recorded and not, against the CPU with the same rounding and with none. Skipped
 * where there is no GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/autograd/step.h"
#include "core/device/device_internal.h"
#include "tests/datasets/fixture.h"
#include "tests/device_choice.h"
#include "tests/optim/optim_test.h"

enum { VOCABULARY = 120, LABELS = 3, SEQUENCES = 7, LONGEST = 40, STEPS = 40, SEED = 5 };
enum { UNIT = 48, CAPACITIES = 6, CLASSES = 2, KEYS = CAPACITIES * CLASSES, SAMPLES = 20 };

typedef enum rounding { ROUNDED, EXACT } rounding;

typedef struct run_options {
    const char *device;
    mc_dtype dtype;
    float dropout;
    rounding rounding;
    mc_recompute recompute;
} run_options;

/* A batch on the host. */
typedef struct sample {
    int count, total;
    int32_t length[SEQUENCES], ids[SEQUENCES * LONGEST], types[SEQUENCES * LONGEST];
    int32_t labels[SEQUENCES];
} sample;

typedef struct run {
    run_options o;
    mc_context *ctx;
    mc_model *bert;
    mc_optim_manager *optim;
    mc_lengths *lengths;
    mc_tensor *ids, *types, *labels; /* with room for any batch */
    mc_tensor *logits;               /* of evaluation */
    sample sample;
    mc_batch *batch; /* of a loader, in those tests */
    int calls, key;
    bool seen[KEYS], unpacks, looks; /* looks: at attention probabilities */
} run;

/* ---- a run ----------------------------------------------------------------------------------- */

static void add_model(run *r, int positions)
{
    mc_bert_config config = mc_bert_config_default();
    config.vocab_size = VOCABULARY;
    config.dim = 32;
    config.dim_ff = 80;
    config.layers = 2;
    config.heads = 2;
    config.positions = positions;
    config.types = 2;
    config.init_std = config.embedding_std = config.ffn_std = 0.1f;
    r->bert = mc_bert_new(r->ctx, &config, &(mc_model_heads){.pooler = true, .labels = LABELS},
                          &(mc_load_options){.dtype = r->o.dtype, .recompute = r->o.recompute});
    mc_model_set_dropout(r->bert, r->o.dropout);
    mc_optimizer *adam = mc_adam_new(r->ctx, &(mc_adam_options){.lr = 5e-3f});
    r->optim = mc_optim_manager_new(
        r->ctx, &(mc_optim_manager_options){.loss_scale = r->o.dtype == MC_F16 ? 1024 : 0,
                                            .max_grad_norm = 1});
    mc_optimizer_add(adam, mc_model_module(r->bert));
    mc_optim_manager_add(r->optim, adam, NULL);
    assert_good(r->ctx);
}

/* A run as the options say; skips the test where there is no such device. */
static run run_begin(run_options o)
{
    run r = {.o = o, .ctx = context_on(o.device, SEED)};
    if (!r.ctx) skip();
    add_model(&r, LONGEST);
    r.ids = mc_tensor_new(r.ctx, MC_I32, MC_SHAPE(CAPACITIES * UNIT));
    r.types = mc_tensor_new(r.ctx, MC_I32, MC_SHAPE(CAPACITIES * UNIT));
    r.labels = mc_tensor_new(r.ctx, MC_I32, MC_SHAPE(SEQUENCES));
    r.lengths = mc_lengths_new(r.ctx, SEQUENCES, CAPACITIES * UNIT);
    assert_good(r.ctx);
    return r;
}

static void run_end(run *r)
{
    assert_good(r->ctx);
    mc_context_free(r->ctx);
}

static unsigned draw(uint64_t *state, unsigned below)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(*state >> 33) % below;
}

/* Sentences of any length, whose label is that of their second token; every third batch is short of
 * some. */
static void make_sample(int step, sample *s)
{
    uint64_t state = (uint64_t)step * 977 + 3;
    unsigned most = draw(&state, 4) ? LONGEST : LONGEST / 4;
    for (int i = 0; i < 5; i++) draw(&state, 2);
    *s = (sample){.count = step % 3 == 2 ? 1 + (int)draw(&state, SEQUENCES) : SEQUENCES};
    for (int i = 0; i < s->count; i++) {
        s->length[i] = 2 + (int32_t)draw(&state, most - 1);
        for (int k = 0; k < s->length[i]; k++, s->total++) {
            s->ids[s->total] = (int32_t)draw(&state, VOCABULARY);
            s->types[s->total] = k > s->length[i] / 2;
            if (k == 1) s->labels[i] = s->ids[s->total] % LABELS;
        }
    }
    for (int i = s->count; i < SEQUENCES; i++) s->labels[i] = -100;
}

/* Writes what `sample` holds to where the steps find it. Behind the last token lie old ones. */
static void write_sample(run *r)
{
    const sample *s = &r->sample;
    int capacity = (s->total + UNIT - 1) / UNIT, longest = 0;
    for (int i = 0; i < s->count; i++)
        if (s->length[i] > longest) longest = s->length[i];
    longest = longest <= LONGEST / 4 ? LONGEST / 4 : LONGEST;
    size_t bytes = (size_t)s->total * sizeof *s->ids;
    r->key = (capacity - 1) * CLASSES + (longest == LONGEST);
    r->seen[r->key] = true;
    mc_tensor_write(r->ids, s->ids, bytes);
    mc_tensor_write(r->types, s->types, bytes);
    mc_tensor_write(r->labels, s->labels, sizeof s->labels);
    mc_lengths_write(r->lengths, s->length, s->count, capacity * UNIT, longest);
}

static mc_model_input input_of(run *r, mc_tape *t)
{
    const sample *s = &r->sample;
    if (r->o.rounding == ROUNDED)
        return (mc_model_input){.ids = r->ids, .type_ids = r->types, .lengths = r->lengths};
    return (mc_model_input){.ids = mc_tape_input(t, MC_I32, MC_SHAPE(s->total), s->ids, false),
                            .type_ids =
                                mc_tape_input(t, MC_I32, MC_SHAPE(s->total), s->types, false),
                            .lengths = mc_tape_lengths(t, s->length, s->count, 1)};
}

static void step(mc_context *ctx, void *user)
{
    run *r = user;
    r->calls++;
    mc_optim_manager_zero_grad(r->optim);
    mc_tape *t = mc_tape_begin(ctx);
    mc_model_input input = input_of(r, t);
    mc_model_output out = mc_model_forward(t, r->bert, &input);
    if (r->unpacks) mc_unpack(t, out.last_hidden);
    if (r->looks)
        mc_sdpa_probabilities(t, out.last_hidden, out.last_hidden,
                              &(mc_sdpa_options){.heads = 2, .key_heads = 1});
    mc_tensor *logits = mc_model_classify(t, r->bert, &out);
    mc_tensor *labels = r->labels;
    if (r->o.rounding == EXACT)
        labels = mc_tape_input(t, MC_I32, MC_SHAPE(r->sample.count), r->sample.labels, false);
    mc_optim_manager_backward(r->optim, t, mc_cross_entropy(t, logits, labels, NULL));
    mc_tape_end(t);
    mc_optim_manager_step(r->optim);
}

static void take_step(run *r, int number)
{
    make_sample(number, &r->sample);
    if (r->o.rounding == ROUNDED) write_sample(r);
    mc_step_run(r->ctx, (uint64_t)r->key, step, r);
}

/* Trains from the beginning; the report of each step. The same batches come again and again. */
static void train(run *r, int steps, mc_step_report *reports)
{
    for (int i = 0; i < steps; i++) {
        take_step(r, i % SAMPLES);
        assert_good(r->ctx);
        assert_true(mc_optim_manager_report(r->optim, 0, &reports[i]));
    }
}

static int keys_seen(const run *r)
{
    int n = 0;
    for (int i = 0; i < KEYS; i++) n += r->seen[i];
    return n;
}

/* ---- comparing ------------------------------------------------------------------------------- */

static void assert_same_run(const mc_step_report *a, const mc_step_report *b, int steps)
{
    for (int i = 0; i < steps; i++)
        if (a[i].loss != b[i].loss || a[i].grad_norm != b[i].grad_norm)
            fail_msg("step %d: losses %.17g and %.17g, norms %.17g and %.17g", i, a[i].loss,
                     b[i].loss, a[i].grad_norm, b[i].grad_norm);
}

/* Over the batches, once each. */
static double mean_loss(const mc_step_report *r)
{
    double sum = 0;
    for (int i = 0; i < SAMPLES; i++) sum += r[i].loss / SAMPLES;
    return sum;
}

static void assert_like_run(const mc_step_report *a, const mc_step_report *b, int steps)
{
    double worst = 0;
    for (int i = 0; i < steps; i++) {
        worst = fmax(worst, fabs(a[i].loss - b[i].loss));
        assert_near(a[i].loss, b[i].loss, 1e-4);
        assert_near(a[i].grad_norm, b[i].grad_norm, 1e-3 * b[i].grad_norm);
    }
    print_message("largest difference of losses: %.2g\n", worst);
}

static void assert_same_weights(run *a, run *b)
{
    mc_parameter_iterator it = {0}, jt = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(mc_model_module(a->bert), &it));) {
        mc_parameter *q = mc_module_next_parameter(mc_model_module(b->bert), &jt);
        size_t bytes = (size_t)mc_shape_count(p->shape) * sizeof(float);
        float *x = malloc(2 * bytes), *y = x + bytes / sizeof *x;
        assert_non_null(x);
        assert_int_equal(mc_parameter_read(p, x), MC_OK);
        assert_int_equal(mc_parameter_read(q, y), MC_OK);
        assert_memory_equal(x, y, bytes);
        free(x);
    }
}

static const mc_dtype dtypes[] = {MC_F32, MC_F16, MC_BF16};

static int leave_modes(void **state)
{
    (void)state;
    return unsetenv("MC_DETERMINISTIC") | unsetenv("MC_CUDA_GRAPHS");
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* A simulated GPU has no time for f16: test_cuda_training takes such steps in it. */
static bool is_in_time(mc_dtype dtype) { return dtype != MC_F16 || !getenv("MC_CUDA_SIMULATED"); }

/* Steps that are compared: a simulated GPU has time for each batch once, and four again. */
static int most_steps(void) { return getenv("MC_CUDA_SIMULATED") ? SAMPLES + 4 : STEPS; }

static void test_recorded_equals_eager(void **state)
{
    (void)state;
    int steps = most_steps();
    setenv("MC_DETERMINISTIC", "1", 1);
    for (int d = 0; d < 3; d++) {
        if (!is_in_time(dtypes[d])) continue;
        mc_step_report expected[STEPS], got[STEPS];
        run_options o = {.device = "cuda", .dtype = dtypes[d], .dropout = 0.1f};
        run eager = run_begin(o), recorded = run_begin(o);
        setenv("MC_CUDA_GRAPHS", "0", 1);
        train(&eager, steps, expected);
        unsetenv("MC_CUDA_GRAPHS");
        train(&recorded, steps, got);
        assert_same_run(got, expected, steps);
        assert_same_weights(&eager, &recorded);
        assert_int_equal(eager.calls, steps);
        assert_true(recorded.calls < steps);
        assert_in_range(keys_seen(&recorded), 6, KEYS);
        assert_true(recorded.calls <= 2 * keys_seen(&recorded)); /* each once, and once recorded */
        run_end(&eager);
        run_end(&recorded);
    }
}

/* Activations are computed again in backward from lengths that are still there. */
static void test_recompute(void **state)
{
    (void)state;
    setenv("MC_DETERMINISTIC", "1", 1);
    mc_step_report expected[12], got[12];
    run_options o = {.device = "cuda", .dtype = MC_BF16, .dropout = 0.1f};
    run kept = run_begin(o);
    train(&kept, 12, expected);
    o.recompute = MC_RECOMPUTE_FULL;
    run again = run_begin(o);
    train(&again, 12, got);
    assert_same_run(got, expected, 12);
    run_end(&kept);
    run_end(&again);
}

/* With the same rounding the CPU drops the same elements. */
static void test_losses_of_the_cpu(void **state)
{
    (void)state;
    mc_step_report expected[STEPS], got[STEPS];
    run_options o = {.device = "cuda", .dropout = 0.1f};
    run gpu = run_begin(o);
    o.device = "cpu";
    run cpu = run_begin(o);
    int steps = most_steps();
    train(&gpu, steps, got);
    train(&cpu, steps, expected);
    assert_like_run(got, expected, steps);
    run_end(&cpu);
    run_end(&gpu);
}

/* Rounding adds nothing that counts. */
static void test_losses_without_rounding(void **state)
{
    (void)state;
    mc_step_report expected[STEPS], got[STEPS];
    run exact = run_begin((run_options){.device = "cpu", .rounding = EXACT});
    train(&exact, STEPS, expected);
    assert_true(mean_loss(expected + STEPS - SAMPLES) < 0.97 * mean_loss(expected)); /* it learns */
    for (int i = 0; i < 2; i++) {
        run rounded = run_begin((run_options){.device = i ? "cuda" : "cpu"});
        int steps = i ? most_steps() : STEPS;
        train(&rounded, steps, got);
        assert_like_run(got, expected, steps);
        run_end(&rounded);
    }
    run_end(&exact);
}

/* Once every key was recorded nothing is taken from the system, and nothing waited for. */
static void test_steady_state(void **state)
{
    (void)state;
    for (int d = getenv("MC_CUDA_SIMULATED") ? 2 : 0; d < 3; d += 2) {
        run r = run_begin((run_options){.device = "cuda", .dtype = dtypes[d], .dropout = 0.1f});
        const mc_device *device = r.ctx->device;
        uint64_t system_calls = 0, waits = 0;
        size_t in_use = 0;
        for (int i = 0; i < 4 * SAMPLES; i++) {
            if (i == 3 * SAMPLES) {
                system_calls = device->memory.system_calls;
                waits = device->waits;
                in_use = device->memory.in_use;
                r.calls = 0;
            }
            take_step(&r, i % SAMPLES);
            mc_step_report report;
            assert_int_equal(mc_optim_manager_report(r.optim, 1, &report), i > 0);
        }
        assert_int_equal(r.calls, 0);
        assert_int_equal(device->memory.system_calls, system_calls);
        assert_int_equal(device->waits, waits);
        assert_int_equal(device->memory.in_use, in_use);
        run_end(&r);
    }
}

/* ---- errors ---------------------------------------------------------------------------------- */

/* A replayed step checks what it was refilled with. */
static void test_bad_index(void **state)
{
    (void)state;
    setenv("MC_DETERMINISTIC", "1", 1);
    mc_step_report expected[12], got[12];
    run_options o = {.device = "cuda", .dropout = 0.1f};
    run good = run_begin(o), bad = run_begin(o);
    train(&good, 12, expected);
    for (int i = 0; i < 12; i++) {
        make_sample(i, &bad.sample);
        bad.sample.ids[3] = VOCABULARY;
        write_sample(&bad);
        assert_int_equal(mc_step_run(bad.ctx, (uint64_t)bad.key, step, &bad), MC_ERR_ARGUMENT);
        assert_error(bad.ctx, MC_ERR_ARGUMENT, "ids[3] = 120, expected 0 to 119");
        take_step(&bad, i);
        assert_good(bad.ctx);
        assert_true(mc_optim_manager_report(bad.optim, 0, &got[i]));
    }
    assert_same_run(got, expected, 12);
    run_end(&good);
    run_end(&bad);
}

/* Operations that read lengths on the host return an error while recording. */
static void test_host_lengths(void **state)
{
    (void)state;
    run r = run_begin((run_options){.device = "cuda"});
    r.unpacks = true;
    take_step(&r, 0);
    assert_good(r.ctx);
    take_step(&r, 0);
    assert_error(r.ctx, MC_ERR_STATE, "unpack: reads lengths on the host");
    r.unpacks = false;
    r.looks = true;
    take_step(&r, 0);
    assert_error(r.ctx, MC_ERR_STATE, "attention probabilities: reads lengths on the host");
    r.looks = false;
    take_step(&r, 0);
    run_end(&r);
}

/* ---- batches of a loader --------------------------------------------------------------------- */

static void loader_step(mc_context *ctx, void *user)
{
    run *r = user;
    const mc_batch *b = r->batch;
    r->calls++;
    mc_optim_manager_zero_grad(r->optim);
    mc_tape *t = mc_tape_begin(ctx);
    mc_model_input input = {.ids = b->ids, .lengths = b->lengths, .type_ids = b->type_ids};
    mc_model_output out = mc_model_forward(t, r->bert, &input);
    mc_tensor *logits = mc_model_classify(t, r->bert, &out);
    mc_optim_manager_backward(r->optim, t, mc_cross_entropy(t, logits, b->labels, NULL));
    mc_tape_end(t);
    mc_optim_manager_step(r->optim);
}

/* Rows of any length, the shorter ones more often. */
static mc_dataset *make_rows(mc_context *ctx, mc_tokenizer *tok, int rows)
{
    char *lines = malloc((size_t)rows * 400), *at = lines;
    uint64_t state = 1;
    assert_non_null(lines);
    for (int i = 0; i < rows; i++) {
        unsigned n = 1 + draw(&state, 1 + draw(&state, 100));
        at += sprintf(at, "{\"label\": %s, \"question\": \"q\", \"passage\": \"",
                      n % 3 ? "true" : "false");
        for (unsigned k = 0; k < n; k++) at += sprintf(at, "%c ", 'a' + (int)draw(&state, 26));
        at += sprintf(at, "\"}\n");
    }
    mc_dataset *d = mc_dataset_from_memory(ctx, "BoolQ", "rows.jsonl", lines, strlen(lines),
                                           "train", tok, &(mc_dataset_options){.max_length = 90});
    free(lines);
    return d;
}

enum { ROWS = 125, BATCH = 8, EPOCHS = 3, BATCHES = (ROWS + BATCH - 1) / BATCH };

/* A simulated GPU has time for two: the second has batches of the same sizes as the first. */
static int most_epochs(void) { return getenv("MC_CUDA_SIMULATED") ? 2 : EPOCHS; }

/* Trains over the loader's batches; the losses, and how often the step was called. */
static int train_on_rows(const char *device, int sizes, double losses[EPOCHS * BATCHES],
                         float dropout)
{
    run r = {.o = {.device = device, .dropout = dropout}, .ctx = context_on(device, SEED)};
    if (!r.ctx) skip();
    add_model(&r, 90);
    temp_folder folder = temp_folder_new();
    write_vocabulary(temp_path(&folder, "vocab.txt"));
    mc_tokenizer *tok = mc_tokenizer_from_pretrained(r.ctx, temp_path(&folder, "."));
    mc_dataloader *l = mc_dataloader_new(
        make_rows(r.ctx, tok, ROWS),
        &(mc_dataloader_options){.batch_size = BATCH, .shuffle = true, .sizes = sizes});
    assert_good(r.ctx);
    int n = 0;
    for (int epoch = 0; epoch < most_epochs(); epoch++)
        while ((r.batch = mc_dataloader_next(l))) {
            mc_step_report report;
            mc_step_run(r.ctx, r.batch->key, loader_step, &r);
            assert_good(r.ctx);
            assert_true(mc_optim_manager_report(r.optim, 0, &report));
            losses[n++] = report.loss;
        }
    assert_int_equal(n, most_epochs() * BATCHES);
    int calls = r.calls;
    run_end(&r);
    temp_folder_free(&folder);
    return calls;
}

static void test_loader(void **state)
{
    (void)state;
    setenv("MC_DETERMINISTIC", "1", 1);
    static double recorded[EPOCHS * BATCHES], eager[EPOCHS * BATCHES], plain[EPOCHS * BATCHES];
    int calls = train_on_rows("cuda", 5, recorded, 0.1f), steps = most_epochs() * BATCHES;
    assert_in_range(calls, 5, 2 * 5);
    setenv("MC_CUDA_GRAPHS", "0", 1);
    assert_int_equal(train_on_rows("cuda", 5, eager, 0.1f), steps);
    assert_memory_equal(recorded, eager, (size_t)steps * sizeof *eager);
    unsetenv("MC_CUDA_GRAPHS");
    /* what the CPU makes of the same rows */
    train_on_rows("cpu", 5, plain, 0.1f);
    for (int i = 0; i < steps; i++) assert_near(recorded[i], plain[i], 2e-4);
    calls = train_on_rows("cuda", 16, recorded, 0);
    assert_in_range(calls, 8, 2 * 16);
    train_on_rows("cpu", 0, plain, 0);
    for (int i = 0; i < steps; i++) assert_near(recorded[i], plain[i], 2e-4);
}

/* ---- results --------------------------------------------------------------------------------- */

static void answer(mc_context *ctx, void *user)
{
    run *r = user;
    r->calls++;
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_model_input input = input_of(r, t);
    mc_model_output out = mc_model_forward(t, r->bert, &input);
    mc_tensor_copy(r->logits, mc_model_classify(t, r->bert, &out));
    mc_tape_end(t);
}

/* Logits of recorded evaluation are those of the CPU, between steps of training too. */
static void test_results(void **state)
{
    (void)state;
    float got[SEQUENCES * LABELS], expected[SEQUENCES * LABELS];
    run gpu = run_begin((run_options){.device = "cuda"});
    run cpu = run_begin((run_options){.device = "cpu"});
    gpu.logits = mc_tensor_new(gpu.ctx, MC_F32, MC_SHAPE(SEQUENCES, LABELS));
    cpu.logits = mc_tensor_new(cpu.ctx, MC_F32, MC_SHAPE(SEQUENCES, LABELS));
    for (int i = 0; i < 2 * SAMPLES; i++) {
        take_step(&gpu, i % SAMPLES);
        take_step(&cpu, i % SAMPLES);
        gpu.calls = 0;
        mc_step_run(gpu.ctx, (uint64_t)gpu.key, answer, &gpu);
        mc_step_run(cpu.ctx, (uint64_t)cpu.key, answer, &cpu);
        if (i >= SAMPLES) assert_in_range(gpu.calls, 0, 1); /* replayed, or recorded now */
        mc_tensor_read_f32(gpu.ctx, gpu.logits, got, SEQUENCES * LABELS);
        mc_tensor_read_f32(cpu.ctx, cpu.logits, expected, SEQUENCES * LABELS);
        for (int k = 0; k < gpu.sample.count * LABELS; k++) assert_near(got[k], expected[k], 1e-3);
    }
    assert_int_equal(gpu.calls, 0);
    run_end(&cpu);
    run_end(&gpu);
}

int main(void)
{
    setenv("MC_CACHE_DIR", "", 0); /* a test leaves nothing after for others */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_recorded_equals_eager, leave_modes),
        cmocka_unit_test_teardown(test_recompute, leave_modes),
        cmocka_unit_test(test_losses_of_the_cpu),
        cmocka_unit_test(test_losses_without_rounding),
        cmocka_unit_test(test_steady_state),
        cmocka_unit_test_teardown(test_bad_index, leave_modes),
        cmocka_unit_test(test_host_lengths),
        cmocka_unit_test(test_results),
        cmocka_unit_test_teardown(test_loader, leave_modes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
