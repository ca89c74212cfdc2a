/* `modelcenter plan`: what a training step will take, of memory, communication and time, for one
 * rank or for thousands, without having them; or the memory that answers take. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "tools/options/args.h"
#include "tools/commands.h"
#include "tools/options/families.h"
#include "tools/options/lora_options.h"
#include "tools/options/model_options.h"
#include "tools/plan_answers.h"
#include "tools/options/train_options.h"
#include "tools/train/train_work.h"

#define TEXT_OF(number) TEXT(number)
#define TEXT(number) #number

enum { RATES_AUTO, RATES_HERE, RATES_H200 };
static const char *const rates_names[] = {"auto", "here", "h200", NULL};

typedef struct plan_options {
    model_options from;
    int rates;
    int64_t ranks, batch_size, seq_length, target_length, micro_steps, gpus_per_node;
    double dropout, network_gbps, bus_gbs, pcie_gbs, host_gbs, peak_tflops;
    bool dropout_given, bus_given;
    plan_answers_options answers;
    lora_options lora;
    train_options train;
} plan_options;

/* The step that is planned, and what came out. */
typedef struct plan {
    plan_options o;
    mc_context *ctx, *dry;
    mc_recipe recipe;
    mc_fp8_kind kinds[MC_FP8_KINDS]; /* with --fp8 auto, as measured */
    int kind_count;
    run_log log;
    train_work work;
    dry_batch batch;
    mc_memory_plan result;
    mc_time_plan time;
    char untimed[512]; /* why time is not predicted; "": it is */
} plan;

/* ---- the model ------------------------------------------------------------------------------- */

/* As it is trained: an encoder with a classifier of two labels, by `finetune`, others with their
 * language model, a decoder without dropout, by `pretrain`. */
static void make_model(plan *p)
{
    plan_options *o = &p->o;
    const char *family = o->from.family;
    bool classifies = mc_family_kind(family) == MC_MODEL_ENCODER;
    mc_load_options load = {.dtype = train_dtypes[o->train.dtype],
                            .num_labels = classifies ? 2 : 0,
                            .recompute = train_recomputes[o->train.recompute],
                            .recipe = p->recipe};
    lora_options_load(&o->lora, &load);
    p->work.model = mc_model_new(p->dry, family, o->from.config, NULL, &load);
    lora_quantize(p->dry, &o->lora, p->work.model);
    mc_model_shape shape = mc_model_get_shape(p->work.model);
    int64_t usual = shape.kind == MC_MODEL_DECODER ? 1024 : 512;
    if (shape.positions && shape.positions < usual) usual = shape.positions;
    if (mc_family_reads_images(family)) o->seq_length = shape.positions;
    if (!o->seq_length) o->seq_length = usual;
    if (o->dropout_given || shape.kind == MC_MODEL_DECODER)
        mc_model_set_dropout(p->work.model, (float)o->dropout);
}

/* Plans with another --recompute keep the choice. */
static void choose_fp8(plan *p)
{
    const plan_options *o = &p->o;
    if (p->recipe.fp8 != MC_FP8_AUTO || p->recipe.fp8_kinds) return;
    p->kind_count =
        mc_module_choose_fp8(mc_model_module(p->work.model), o->batch_size * o->seq_length,
                             (int)o->micro_steps, p->kinds);
    for (int i = 0; i < p->kind_count; i++)
        if (p->kinds[i].chosen) p->recipe.fp8_kinds |= (uint64_t)1 << i;
    if (p->kind_count && !p->recipe.fp8_kinds) p->recipe.fp8 = MC_FP8_NONE;
}

static bool make_work(plan *p)
{
    const plan_options *o = &p->o;
    mc_adam_options adam = {.no_decay_bias_norm = true};
    p->work = (train_work){.ctx = p->dry, .passes = (int)o->micro_steps};
    make_model(p);
    train_work_optimize(&p->work, &o->train, &adam, 0);
    choose_fp8(p);
    train_work_read_dry(&p->work, &p->batch, o->batch_size, o->seq_length, o->target_length, false);
    return !mc_failed(p->dry);
}

/* ---- planning -------------------------------------------------------------------------------- */

/* Whether collectives are measured: where the job's ranks are of the kind that is planned for. */
static bool measures_bus(const plan *p)
{
    bool same = p->o.rates == RATES_HERE || p->o.train.device != TRAIN_CPU;
    return same && !p->o.bus_given && mc_world_size(p->ctx) > 1;
}

static mc_status set_time(plan *p)
{
    const plan_options *o = &p->o;
    mc_comm *job = measures_bus(p) ? mc_context_comm(p->ctx) : NULL;
    mc_time_options options = {
        .rates = o->rates == RATES_H200 ? MC_RATES_H200 : MC_RATES_HERE,
        .comm = job,
        .bus = 1e9 * o->bus_gbs,
        .ranks_per_host = (int)o->gpus_per_node,
        .network = 1e9 / 8 * o->network_gbps,
        .host_bus = 1e9 * o->pcie_gbs,
        .host_memory = 1e9 * o->host_gbs,
    };
    return mc_plan_time(p->dry, &options);
}

static bool make_dry(plan *p)
{
    plan_options *o = &p->o;
    if (mc_failed(p->ctx)) return false;
    if (!o->ranks) o->ranks = mc_world_size(p->ctx);
    p->dry = mc_plan_context_new_ranks(p->ctx, (int)o->ranks,
                                       (mc_zero_level)((int)MC_ZERO_0 + o->train.ranks.zero_level));
    return p->dry;
}

/* Without `timed` the memory alone. */
static bool make_plan(plan *p, bool timed)
{
    plan_options *o = &p->o;
    char message[256];
    if (mc_failed(p->ctx)) return false;
    if (!train_check_grad_dtype(&o->train, message, sizeof message)) {
        mc_set_error(p->ctx, MC_ERR_ARGUMENT, "%s", message);
        return false;
    }
    if (!make_dry(p)) return false;
    if ((timed && set_time(p)) || !make_work(p)) return false;
    mc_status status =
        mc_plan_run(p->dry, mc_model_module(p->work.model), train_work_step, &p->work, &p->result);
    p->time = mc_plan_seconds(p->dry);
    return status == MC_OK;
}

/* ---- showing --------------------------------------------------------------------------------- */

static void show_bytes(const char *name, uint64_t bytes)
{
    printf("%-22s %14" PRIu64 " bytes %10.3f GiB\n", name, bytes, (double)bytes / (1 << 30));
}

static void show_memory(const plan *p)
{
    const mc_memory_plan *m = &p->result;
    printf("memory of a rank\n");
    show_bytes("  parameters", m->parameters);
    show_bytes("  gradients", m->gradients);
    show_bytes("  optimizer state", m->optimizer);
    show_bytes("  inputs", m->inputs);
    show_bytes("  activations", m->activations);
    show_bytes("  logits", m->logits);
    if (p->o.rates == RATES_H200 && p->o.train.device == TRAIN_CPU)
        printf("%-22s not known: kernels report it only on a GPU\n", "  workspace");
    else
        show_bytes("  workspace", m->workspace);
    show_bytes("  peak", m->peak);
    if (m->host) show_bytes("memory of the host", m->host);
    show_bytes("sent in a step", m->sent);
}

static void show_seconds(const plan *p, const char *name, double seconds)
{
    double total = p->time.total;
    printf("%-22s %14.3f ms %12.1f %%\n", name, 1e3 * seconds,
           total > 0 ? 100 * seconds / total : 0);
}

/* What was not measured. */
static void show_assumptions(const plan *p)
{
    const plan_options *o = &p->o;
    bool here = o->rates == RATES_HERE, measured = measures_bus(p);
    if (here)
        printf("  rates: measured here, now%s\n", measured ? ", collectives too" : "");
    else
        printf("  rates: of one H200 (CUDA 13.0, 2026-11-20), %s\n",
               measured       ? "collectives measured here, now"
               : o->bus_given ? "bus bandwidth as given"
                              : "and of NVLink between four");
    if (p->result.host)
        printf(
            "  assumed: %g GB/s between host and device each way, %g GB/s of the host's memory\n",
            o->pcie_gbs, o->host_gbs);
    if (o->ranks < 2) return;
    int64_t on_host = o->ranks < o->gpus_per_node ? o->ranks : o->gpus_per_node;
    if (here && !measured && !o->bus_given)
        printf("  assumed: 5 GB/s of bus bandwidth (start it under mpirun to measure, or give "
               "--bus-gbs)\n");
    if (o->ranks > on_host)
        printf("  assumed: %" PRId64
               " ranks a host, %g Gb/s from each to other hosts, 5 us a step of "
               "a ring between hosts\n",
               on_host, o->network_gbps);
}

static void show_time(const plan *p)
{
    const mc_time_plan *t = &p->time;
    if (*p->untimed) {
        printf("step time: not known: %s\n", p->untimed);
        return;
    }
    if (!isfinite(t->total)) {
        printf("step time: not known, for no rates of %s were measured on an H200\n",
               train_dtype_names[p->o.train.dtype]);
        return;
    }
    printf("step time, predicted\n");
    show_seconds(p, "  products", t->products);
    show_seconds(p, "  attention", t->attention);
    show_seconds(p, "  norms, elementwise", t->elementwise);
    show_seconds(p, "  loss", t->loss);
    show_seconds(p, "  optimizer", t->optimizer);
    show_seconds(p, "  waiting for ranks", t->exposed);
    if (p->o.train.offload) show_seconds(p, "  waiting for the host", t->offload);
    show_seconds(p, "  step", t->total);
    if (p->o.ranks > 1)
        printf("  communication takes %.3f ms, of which %.3f ms are hidden\n",
               1e3 * t->communication, 1e3 * fmax(t->communication - t->exposed, 0));
    show_assumptions(p);
}

/* The same step with what is computed again in backward chosen otherwise. Its time by tables alone:
 * measuring takes a while. */
static void show_other(const plan *p, int recompute)
{
    bool timed = p->o.rates == RATES_H200 && !measures_bus(p) && isfinite(p->time.total);
    plan other = {.o = p->o, .ctx = p->ctx, .recipe = p->recipe};
    other.o.train.recompute = recompute;
    if (make_plan(&other, timed)) {
        printf("  %-20s %14" PRIu64 " bytes %10.3f GiB", train_recompute_names[recompute],
               other.result.peak, (double)other.result.peak / (1 << 30));
        if (timed) printf(" %14.3f ms", 1e3 * other.time.total);
        printf("\n");
    }
    mc_print_error(other.dry, stderr);
    mc_context_free(other.dry);
}

static void show_others(const plan *p)
{
    printf("peak with another --recompute\n");
    for (int i = 0; train_recompute_names[i]; i++)
        if (i != p->o.train.recompute) show_other(p, i);
}

/* FLOP/s of all ranks that MFU is counted against, and what it is. */
static double peak_of(const plan *p, const char **what)
{
    const plan_options *o = &p->o;
    double rate = mc_device_peak_rate(p->ctx, train_dtypes[o->train.dtype]);
    *what = "given";
    if (o->peak_tflops > 0) return 1e12 * o->peak_tflops * (double)o->ranks;
    *what = "the device's by its datasheet";
    if (o->rates == RATES_H200) rate = 989e12; /* dense f16 and bf16 */
    if (rate > 0) return rate * (double)o->ranks;
    *what = "the fastest product of the step";
    return p->time.product_rate * (double)o->ranks;
}

/* Of a token of the encoder, where there are two stacks. */
static double flops_of(const plan *p)
{
    const plan_options *o = &p->o;
    if (mc_model_get_shape(p->work.model).kind != MC_MODEL_ENCODER_DECODER)
        return mc_model_flops(p->work.model, o->seq_length);
    mc_sequence_work work = {.length = o->seq_length, .target_length = o->target_length};
    return mc_model_sequence_flops(p->work.model, &work) / (double)o->seq_length;
}

static const char *formula_of(const plan *p)
{
    if (mc_model_get_shape(p->work.model).kind == MC_MODEL_ENCODER_DECODER) return "both stacks";
    return lora_options_given(&p->o.lora) ? "(4 N + 12 L D T)" : "(6 N + 12 L D T)";
}

static void show_fp8(const plan *p)
{
    char line[TRAIN_FP8_LINE];
    if (p->o.train.fp8 != MC_FP8_AUTO) return;
    for (int i = 0; i < p->kind_count; i++)
        printf("%s\n", train_fp8_line(&p->o.train, &p->kinds[i], line));
    if (p->o.lora.weights)
        printf("fp8: the base in 8 bits multiplies in 8 bits\n");
    else if (!mc_module_fp8_linears(mc_model_module(p->work.model)) && !p->kind_count)
        printf("fp8: " TRAIN_NO_FP8_LAYER ": planned without 8 bits\n");
    else if (!p->kind_count)
        printf("fp8: products in 8 bits cannot be measured here (a GPU of compute capability 9.0 "
               "can): "
               "planned with all layers in 8 bits\n");
}

/* What Muon multiplies beside the model, by the model's own products. */
static void show_muon(const plan *p, double step_flops)
{
    if (p->o.train.optimizer != TRAIN_MUON) return;
    double flops = mc_muon_flops(p->work.optimizer);
    printf("Muon: %.4g FLOP an update, %.2f %% of a step's (about 4 x dim / tokens)\n", flops,
           100 * flops / step_flops);
}

static void report(const plan *p)
{
    const plan_options *o = &p->o;
    const mc_memory_plan *m = &p->result;
    int64_t parameters = mc_module_parameter_count(mc_model_module(p->work.model)),
            tokens = o->ranks * o->batch_size * o->seq_length * o->micro_steps;
    double per_s = (double)tokens / p->time.total;
    const char *what;
    double peak = peak_of(p, &what), each = flops_of(p), mfu = per_s * each / peak;
    show_memory(p);
    show_time(p);
    show_others(p);
    show_fp8(p);
    show_muon(p, each * (double)tokens);
    if (isfinite(mfu))
        printf("%.1f tokens/s, %.1f %% MFU: %s = %.4g FLOP a token against %.4g TFLOP/s, %s\n",
               per_s, 100 * mfu, formula_of(p), each, 1e-12 * peak, what);
    printf("result model=%s ranks=%" PRId64 " zero_level=%d parameters=%" PRId64
           " tokens_per_step=%" PRId64 " peak_bytes=%" PRIu64 " sent_bytes=%" PRIu64
           " host_bytes=%" PRIu64 " collectives=%" PRIu64
           " step_ms=%.6g tokens_per_s=%.6g mfu=%.4g\n",
           o->from.family, o->ranks, o->train.ranks.zero_level, parameters, tokens, m->peak,
           m->sent, m->host, m->collectives, 1e3 * p->time.total, per_s, mfu);
}

/* ---- answers --------------------------------------------------------------------------------- */

/* What answers have to fit into. */
static uint64_t available(const plan *p, const char **what)
{
    static const double gib = 1 << 30, h200 = 139.8;
    mc_memory_use use = mc_memory(p->ctx);
    *what = "given";
    if (p->o.answers.gpu_memory > 0) return (uint64_t)(p->o.answers.gpu_memory * gib);
    bool elsewhere = p->o.rates == RATES_H200 && p->o.train.device == TRAIN_CPU;
    *what = elsewhere ? "of an H200" : "that are free here";
    if (elsewhere) return (uint64_t)(h200 * gib);
    return use.available ? use.available + use.touched : 0;
}

static void report_answers(const plan *p, const plan_answers *made)
{
    const char *what;
    uint64_t room = available(p, &what);
    bool known = p->o.rates != RATES_H200 || p->o.train.device != TRAIN_CPU;
    plan_answers_show(&p->o.answers, made, room, what, known);
    printf("result model=%s ranks=%" PRId64 " parameters=%" PRId64 " sequences=%d tokens=%" PRId64
           " weights_bytes=%" PRIu64 " cache_bytes=%zu peak_bytes=%" PRIu64 " fits=%s\n",
           p->o.from.family, p->o.ranks, mc_module_parameter_count(mc_model_module(p->work.model)),
           made->cache.sequences, made->cache.tokens, made->weights, made->cache.bytes, made->peak,
           !room                ? "unknown"
           : made->peak <= room ? "yes"
                                : "no");
}

static bool plan_generation(plan *p)
{
    plan_answers made;
    if (!make_dry(p)) return false;
    if (p->o.rates == RATES_H200 && p->o.train.device == TRAIN_CPU &&
        mc_plan_time(p->dry, &(mc_time_options){.rates = MC_RATES_H200}))
        return false;
    mc_load_options load = {.dtype = train_dtypes[p->o.train.dtype]};
    lora_options_load(&p->o.lora, &load);
    p->work.model = mc_model_new(p->dry, p->o.from.family, p->o.from.config, NULL, &load);
    if (!p->work.model ||
        !plan_answers_make(&p->o.answers, p->work.model, (int)p->o.batch_size, &made))
        return false;
    if (!ranks_silent(p->ctx)) report_answers(p, &made);
    return true;
}

/* The family, and the config of --model, of which no more is downloaded. */
static bool find_shape(plan *p)
{
    static char folder[4096];
    static const char *const config[] = {"config.json", NULL};
    model_options *from = &p->o.from;
    mc_hub_options options = {.revision = from->revision, .include = config};
    if (mc_failed(p->ctx)) return false;
    if (!from->config) {
        mc_hub_download(p->ctx, from->model, &options, folder, sizeof folder);
        from->config = folder;
    }
    if (!model_find_family(p->ctx, from)) return false;
    if (!p->o.answers.generate || mc_family_kind(from->family) != MC_MODEL_ENCODER) return true;
    mc_set_error(p->ctx, MC_ERR_UNSUPPORTED, "%s does not generate text: expected one of %s",
                 from->family, families_that_generate());
    return false;
}

/* The plan of a step. Where what it is measured with does not load, or has no memory here, the
 * memory alone. */
static bool plan_training(plan *p)
{
    bool measured = p->o.rates == RATES_HERE;
    bool ready = !measured || mc_failed(p->ctx) || mc_device_prepare(p->ctx) == MC_OK;
    if (ready && make_plan(p, true)) return true;
    const mc_context *failed = p->dry && mc_failed(p->dry) ? p->dry : p->ctx;
    mc_status status = mc_error_status(failed);
    if (!measured || (status != MC_ERR_NOMEM && status != MC_ERR_DEVICE)) return false;
    snprintf(p->untimed, sizeof p->untimed, "%s", mc_error_message(failed));
    mc_clear_error(p->ctx);
    mc_context_free(p->dry);
    p->dry = NULL;
    bool good = make_plan(p, false);
    p->time.total = NAN;
    return good;
}

static int run(const plan_options *o)
{
    plan p = {.o = *o, .recipe = train_recipe(&o->train)};
    if (p.o.rates == RATES_AUTO)
        p.o.rates = p.o.train.device == TRAIN_CPU ? RATES_HERE : RATES_H200;
    bool gpu = p.o.rates == RATES_H200 || p.o.train.device != TRAIN_CPU;
    if (p.o.train.dtype == TRAIN_UNSET) p.o.train.dtype = gpu ? 2 : 0; /* bf16, f32 */
    p.ctx = train_start(&p.o.train, 0, &p.log);
    bool good = find_shape(&p) && (o->answers.generate ? plan_generation(&p) : plan_training(&p));
    if (good && !o->answers.generate && !ranks_silent(p.ctx)) report(&p);
    if (!mc_print_error(p.ctx, stderr) && p.dry) mc_print_error(p.dry, stderr);
    mc_context_free(p.dry);
    return ranks_leave(p.ctx, good ? EXIT_OK : EXIT_RUN_FAILED);
}

/* ---- command line ---------------------------------------------------------------------------- */

static const char details[] =
    "Memory is that of one rank, planned by running two steps on a device that computes nothing;\n"
    "scratch memory is that of the kernels of --device. `Sent` is the bytes that a rank sends to\n"
    "others: the least that any algorithm needs.\n\n"
    "The time of a step is the sum of its kernels and collectives, except those that overlap.\n"
    "Rates are measured here, in about a second (--rates here, the default of --device cpu), or\n"
    "come from a table of an H200 (--rates h200, the default of --device cuda; with --device cpu\n"
    "it plans for GPUs on a machine without one). Under mpirun or torchrun the collectives are\n"
    "measured too. They are assumed to be rings over all ranks; between hosts there are as many\n"
    "rings as ranks on a host. The plan leaves out the slowdown of ranks that share a processor,\n"
    "and of kernels beside collectives. Decoders are trained as by `pretrain`, encoders as by\n"
    "`finetune`, with all sequences of full length.\n\n"
    "With --generate it plans the memory of generation: weights, keys and values, the memory of\n"
    "a step, and whether they fit. It runs the generation on the same device.\n\n"
    "  modelcenter plan --config gpt2-xl --gpus 4 --batch 16 --rates h200\n"
    "  modelcenter plan --config gptj-6b --generate --batch 32 --prompt-length 128 \\\n"
    "      --max-new-tokens 512 --weights int8 --rates h200\n";

enum { WAYS = MODEL_WAY_NEW | MODEL_WAY_OLD_FAMILY | MODEL_WAY_SHAPE };

static void add_step_rows(args_table *table, plan_options *o)
{
    model_add_rows(table, &o->from, WAYS, "folder or identifier of a model with the planned shape");
    ARGS_ADD(table,
             {ARGS_INT("ranks", &o->ranks, 1, 65536, "ranks of the job"),
              .default_text = "those that were started", .known_as = "world-size"},
             {ARGS_INT("gpus", &o->ranks, 1, 65536, "the same"), .default_text = ""},
             {ARGS_INT("batch-size", &o->batch_size, 1, 1 << 20, "sequences of a pass, per rank")},
             {ARGS_INT("batch", &o->batch_size, 1, 1 << 20, "the same"), .default_text = ""},
             {ARGS_INT("seq-length", &o->seq_length, 1, 1 << 20, "tokens of a sequence"),
              .default_text = "1024 of decoders, else 512, or the model's positions",
              .known_as = "sequence-length,block-size"},
             {ARGS_INT("target-length", &o->target_length, 1, 1 << 20,
                       "tokens of a target, of encoder-decoders")},
             {ARGS_INT("micro-steps", &o->micro_steps, 1, 1 << 16, "passes a step"),
              .known_as = "gradient-accumulation-steps"},
             {ARGS_REAL("dropout", &o->dropout, 0, 1, "all dropout probabilities"),
              .below_high = true, .given = &o->dropout_given,
              .default_text = "none of decoders, else the config's"});
}

static void add_time_rows(args_table *table, plan_options *o)
{
    ARGS_ADD(
        table, {ARGS_HEADING("Time")},
        {ARGS_CHOICE("rates", &o->rates, rates_names,
                     "speed of kernels: measured here, or an H200's"),
         .default_text = "here on the CPU, else h200"},
        {ARGS_INT("gpus-per-node", &o->gpus_per_node, 1, 65536, "ranks of a host"),
         .known_as = "ranks-per-host,ranks-per-node"},
        {ARGS_REAL("network-gbps", &o->network_gbps, 0, 1e6, "Gb/s from each rank to other hosts"),
         .above_low = true, .default_text = "400"},
        {ARGS_REAL("bus-gbs", &o->bus_gbs, 0, 1e6,
                   "GB/s of bus bandwidth between the ranks of a host"),
         .above_low = true, .given = &o->bus_given, .default_text = "measured, or assumed"},
        {ARGS_REAL("pcie-gbs", &o->pcie_gbs, 0, 1e6,
                   "GB/s between host and device, each way, for --offload"),
         .above_low = true, .default_text = "50"},
        {ARGS_REAL("host-gbs", &o->host_gbs, 0, 1e6,
                   "GB/s of a rank's cores to the host's memory, for --offload"),
         .above_low = true, .default_text = TEXT_OF(MC_PLAN_HOST_GBS)},
        {ARGS_REAL("peak-tflops", &o->peak_tflops, 0, 1e9,
                   "peak of a rank that MFU is counted against; 0: the device's")});
}

/* What --generate does not take. */
static int refuse_step(const args_spec *spec)
{
    static const char step_alone[] =
        " seq-length target-length micro-steps dropout optimizer optimizer-state muon-scale "
        "muon-dtype loss-scale recompute fp8 fp8-scaling offload gpu-share grad-dtype lora-dropout "
        "base-weights gpus-per-node network-gbps bus-gbs pcie-gbs host-gbs peak-tflops ";
    for (int i = 0; spec->options[i].type; i++) {
        const char *name = spec->options[i].name;
        char word[64];
        if (!spec->seen[i] || snprintf(word, sizeof word, " %s ", name) >= (int)sizeof word ||
            !strstr(step_alone, word))
            continue;
        bool eight = strncmp(name, "fp8", 3) == 0 || strcmp(name, "base-weights") == 0;
        return args_error(spec, "--generate: --%s is of a training step%s", name,
                          eight ? ", expected --weights fp8 for answers in 8 bits" : "");
    }
    return EXIT_OK;
}

int cmd_plan(int argc, char **argv)
{
    plan_options o = {
        .batch_size = 1,
        .target_length = 128,
        .micro_steps = 1,
        .gpus_per_node = 8,
        .network_gbps = 400,
        .pcie_gbs = 50,
        .host_gbs = MC_PLAN_HOST_GBS,
        .answers = PLAN_ANSWERS_DEFAULTS,
        .lora = LORA_DEFAULTS,
        .train = {.dtype = TRAIN_UNSET, .clip = 1, .loss_scale = 65536, .ranks = RANKS_DEFAULTS}};
    bool seen[ARGS_MOST_ROWS] = {false};
    args_table table = {.count = 0};
    add_step_rows(&table, &o);
    plan_answers_add_rows(&table, &o.answers);
    train_add_optimizer_rows(&table, &o.train);
    train_add_machine_rows(&table, &o.train);
    train_add_rank_rows(&table, &o.train);
    lora_add_rows(&table, &o.lora);
    add_time_rows(&table, &o);
    const args_spec spec = {
        .command = "plan",
        .summary = "Predicts the memory and time of a training step, or the memory of answers.",
        .details = details,
        .options = table.rows,
        .seen = seen};
    int code;
    if (!args_parse(&spec, argc, argv, &code)) return code;
    code = model_check(&spec, &o.from, WAYS, false);
    if (code != EXIT_OK) return code;
    const char *wrong = lora_options_check(&o.lora, false);
    if (!wrong) wrong = train_check_pairs(&o.train);
    if (!wrong) wrong = train_check_optimizer(&o.train);
    if (!wrong) wrong = lora_check_fp8(&o.lora, o.train.fp8);
    if (wrong) return args_error(&spec, "%s", wrong);
    bool generates = o.answers.generate;
    if (generates && (code = refuse_step(&spec))) return code;
    if (!generates && o.answers.given)
        return args_error(&spec, "--prompt-length, --max-new-tokens, --num-beams, "
                                 "--num-return-sequences, --weights and --gpu-memory are of "
                                 "--generate");
    if (generates && !family_can_generate(&spec, o.from.family)) return EXIT_USAGE;
    return run(&o);
}
