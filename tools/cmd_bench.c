/* `modelcenter bench comm`: bandwidth of the collectives between the ranks it is started on. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "tools/files/append_file.h"
#include "tools/options/args.h"
#include "tools/comm_check.h"
#include "tools/commands.h"
#include "tools/files/output.h"
#include "tools/files/text.h"
#include "tools/options/train_options.h"

enum { BENCH_COMM };
static const char *const bench_names[] = {"comm", NULL};
enum { LEAST_RUNS = 3, MOST_RUNS = 1000, GPU_BATCH = 10 };

typedef struct bench_options {
    int bench, device, dtype, collective;
    int iterations;
    const char *least_text, *most_text, *log_jsonl;
    bool overwrite;
    int64_t least, most; /* bytes of the larger buffer; 0: the default */
    double seconds, comm_timeout;
} bench_options;

static const char *const collective_names[] = {
    "all", "all-gather", "reduce-scatter", "all-reduce", "broadcast", "reduce", "send-recv", NULL};

typedef struct bench {
    const bench_options *o;
    run_log log;
    mc_context *ctx;
    mc_comm *comm; /* owned by the context */
    mc_dtype dtype;
    append_file file;
    mc_tensor *src, *dst, *mark; /* dst: as large as src; mark: one element, to wait by */
    void *host;                  /* as large, of any dtype */
    comm_call call;              /* the one that is measured */
    double best[COMM_KINDS];     /* bus bandwidth, bytes/s */
} bench;

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- buffers --------------------------------------------------------------------------------- */

/* A whole number from 0 to 7 in the dtype. */
static void store(void *data, mc_dtype dtype, int64_t i, float value)
{
    static const uint16_t f16[] = {0, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600, 0x4700};
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (dtype == MC_F32)
        ((uint32_t *)data)[i] = bits;
    else
        ((uint16_t *)data)[i] = dtype == MC_F16 ? f16[(int)value] : (uint16_t)(bits >> 16);
}

static void free_buffers(bench *b)
{
    mc_tensor_free(b->src);
    mc_tensor_free(b->dst);
    b->src = b->dst = NULL;
    free(b->host);
    b->host = NULL;
}

static bool make_buffers(bench *b, int64_t count)
{
    size_t size = mc_dtype_size(b->dtype);
    b->src = mc_tensor_new(b->ctx, b->dtype, MC_SHAPE(count));
    b->dst = mc_tensor_new(b->ctx, b->dtype, MC_SHAPE(count));
    if (mc_failed(b->ctx)) return false;
    b->host = malloc((size_t)count * sizeof(float));
    if (!b->host) {
        mc_set_error(b->ctx, MC_ERR_NOMEM, "out of memory for %" PRId64 " elements", count);
        return false;
    }
    int rank = mc_rank(b->ctx);
    for (int64_t i = 0; i < count; i++) store(b->host, b->dtype, i, comm_sent(rank, i));
    mc_tensor_write(b->src, b->host, (size_t)count * size);
    return !mc_failed(b->ctx);
}

/* ---- one call -------------------------------------------------------------------------------- */

static void send_and_receive(bench *b, const void *src, void *dst)
{
    int ranks = mc_comm_count(b->comm), rank = mc_comm_rank(b->comm);
    mc_comm_group_start(b->comm);
    mc_comm_send(b->comm, src, b->call.count, b->dtype, (rank + 1) % ranks);
    mc_comm_recv(b->comm, dst, b->call.count, b->dtype, (rank + ranks - 1) % ranks);
    mc_comm_group_end(b->comm);
}

static void run_call(bench *b)
{
    const comm_call *c = &b->call;
    const void *src = mc_tensor_data(b->src);
    void *dst = mc_tensor_data(b->dst);
    int64_t share = c->count / c->ranks;
    switch (c->kind) {
    case COMM_ALL_GATHER: mc_comm_all_gather(b->comm, src, dst, share, b->dtype); break;
    case COMM_REDUCE_SCATTER:
        mc_comm_reduce_scatter(b->comm, src, dst, share, b->dtype, MC_REDUCE_SUM);
        break;
    case COMM_ALL_REDUCE:
        mc_comm_all_reduce(b->comm, src, dst, c->count, b->dtype, MC_REDUCE_SUM);
        break;
    case COMM_BROADCAST: mc_comm_broadcast(b->comm, src, dst, c->count, b->dtype, 0); break;
    case COMM_REDUCE:
        mc_comm_reduce(b->comm, src, dst, c->count, b->dtype, MC_REDUCE_SUM, 0);
        break;
    default: send_and_receive(b, src, dst);
    }
}

/* Seconds of one of so many calls; all ranks begin together, and the device is waited for. */
static double time_calls(bench *b, int calls)
{
    float mark;
    mc_synchronize(b->ctx);
    double start = seconds_now();
    for (int i = 0; i < calls; i++) run_call(b);
    mc_tensor_read_f32(b->ctx, b->mark, &mark, 1);
    return (seconds_now() - start) / calls;
}

/* Runs the call once over memory of other contents, and looks at all that has arrived. */
static void check_data(bench *b)
{
    const comm_call *c = &b->call;
    size_t bytes = (size_t)c->count * mc_dtype_size(b->dtype);
    memset(b->host, 0x55, bytes);
    mc_tensor_write(b->dst, b->host, bytes);
    run_call(b);
    mc_tensor_read_f32(b->ctx, b->dst, b->host, c->count);
    if (mc_failed(b->ctx)) return;
    /* 16-bit sums of hundreds of ranks are rounded, at each addition in the worst case */
    float tolerance = b->dtype == MC_F32 ? 0 : 1e-4f * (float)c->ranks;
    int64_t wrong = comm_first_wrong(c, b->host, tolerance);
    if (wrong >= 0)
        mc_set_error(b->ctx, MC_ERR_STATE,
                     "%s of %zu bytes: element %" PRId64 " of rank %d is %g, expected %g",
                     comm_names[c->kind], bytes, wrong, c->rank, (double)((float *)b->host)[wrong],
                     (double)comm_expected(c, wrong));
}

/* ---- one size -------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The most of any rank's numbers, on all of them; NaN after an error. */
static double most_of(bench *b, double mine) { return -ranks_least(b->ctx, -mine); }

/* The slowest rank's median. How often it is run is agreed on: as often as was asked for, if that
 * is within the time. */
static double median_of(bench *b)
{
    const bench_options *o = b->o;
    int calls = o->device == TRAIN_CPU ? 1 : GPU_BATCH;
    time_calls(b, 1);
    double once = most_of(b, time_calls(b, calls)) * calls, seconds[MOST_RUNS];
    if (mc_failed(b->ctx)) return NAN;
    int runs = o->iterations;
    if (runs * once > o->seconds) runs = (int)(o->seconds / once);
    if (runs < LEAST_RUNS) runs = LEAST_RUNS;
    for (int i = 0; i < runs; i++) seconds[i] = time_calls(b, calls);
    qsort(seconds, (size_t)runs, sizeof *seconds, by_value);
    return most_of(b, seconds[runs / 2]);
}

static void log_object(bench *b, double bytes, double seconds, double bus)
{
    char line[512];
    text t = text_into(line, sizeof line);
    text_add(&t, "{\"collective\":\"%s\",\"dtype\":\"%s\",\"ranks\":%d,\"bytes\":%.0f,\"seconds\":",
             comm_names[b->call.kind], mc_dtype_name(b->dtype), b->call.ranks, bytes);
    text_add_json_number(&t, seconds);
    text_add(&t, ",\"algbw_gbs\":");
    text_add_json_number(&t, 1e-9 * bytes / seconds);
    text_add(&t, ",\"busbw_gbs\":");
    text_add_json_number(&t, 1e-9 * bus);
    text_add(&t, "}\n");
    if (append_file_write(&b->file, line, t.used) != MC_OK)
        mc_set_error(b->ctx, b->file.status, "%s", b->file.message);
}

static void measure(bench *b, comm_kind kind)
{
    b->call.kind = kind;
    check_data(b);
    double seconds = median_of(b);
    if (mc_failed(b->ctx)) return;
    double bytes = (double)b->call.count * (double)mc_dtype_size(b->dtype),
           bus = bytes / seconds * comm_bus_factor(kind, b->call.ranks);
    if (bus > b->best[kind]) b->best[kind] = bus;
    if (ranks_silent(b->ctx)) return;
    printf("%12.0f  %-14s %14.2f %12.3f %12.3f\n", bytes, comm_names[kind], 1e6 * seconds,
           1e-9 * bytes / seconds, 1e-9 * bus);
    fflush(stdout);
    log_object(b, bytes, seconds, bus);
}

static void measure_size(bench *b, int64_t bytes)
{
    int ranks = mc_comm_count(b->comm);
    int64_t share = bytes / (int64_t)mc_dtype_size(b->dtype) / ranks;
    b->call = (comm_call){
        .ranks = ranks, .rank = mc_comm_rank(b->comm), .count = (share > 1 ? share : 1) * ranks};
    if (make_buffers(b, b->call.count)) {
        for (int kind = 0; kind < COMM_KINDS && !mc_failed(b->ctx); kind++)
            if (!b->o->collective || b->o->collective == kind + 1) measure(b, (comm_kind)kind);
    }
    free_buffers(b);
}

/* ---- all of them ----------------------------------------------------------------------------- */

/* The largest power of two of bytes that fits, twice, into what every rank has free. */
static int64_t most_bytes(bench *b)
{
    if (b->o->most) return b->o->most;
    int64_t most = b->o->device == TRAIN_CPU ? 8 << 20 : (int64_t)2 << 30;
    mc_memory_use use = mc_memory(b->ctx);
    double available = ranks_least(b->ctx, use.available ? (double)use.available : INFINITY);
    while (most > b->o->least && 3 * (double)most > available) most /= 2;
    return most;
}

static void head(const bench *b)
{
    if (ranks_silent(b->ctx)) return;
    int ranks = mc_comm_count(b->comm);
    printf("# collectives of %d rank%s on %s, %s; bytes: of the larger buffer; times: medians of "
           "the slowest rank\n",
           ranks, ranks == 1 ? "" : "s", train_device_of(b->o->device).name,
           mc_dtype_name(b->dtype));
    if (ranks == 1)
        printf("# one rank talks to nobody: these are copies within its memory, and no bus is "
               "used\n");
    printf("#%11s  %-14s %14s %12s %12s\n", "bytes", "collective", "us", "algbw GB/s",
           "busbw GB/s");
}

static void result(const bench *b)
{
    static const char *const keys[] = {"all_gather", "reduce_scatter", "all_reduce",
                                       "broadcast",  "reduce",         "send_recv"};
    if (ranks_silent(b->ctx)) return;
    printf("result bench=comm ranks=%d device=%s dtype=%s", mc_comm_count(b->comm),
           train_device_of(b->o->device).name, mc_dtype_name(b->dtype));
    for (int k = 0; k < COMM_KINDS; k++)
        if (!b->o->collective || b->o->collective == k + 1)
            printf(" %s_busbw_gbs=%.4g", keys[k], 1e-9 * b->best[k]);
    printf("\n");
}

static void set_up(bench *b)
{
    const bench_options *o = b->o;
    b->comm = mc_context_comm(b->ctx);
    b->mark = mc_tensor_new(b->ctx, MC_F32, MC_SHAPE(1));
    output out;
    output_init(&out, b->ctx, o->overwrite);
    output_check_logs(&out, o->log_jsonl, NULL, NULL);
    output_release(&out);
    if (o->log_jsonl && !mc_failed(b->ctx) && !ranks_silent(b->ctx) &&
        append_file_init(&b->file, o->log_jsonl, APPEND_FILE_ANEW) != MC_OK)
        mc_set_error(b->ctx, b->file.status, "%s", b->file.message);
}

static int run(const bench_options *o)
{
    bench b = {.o = o, .dtype = train_dtypes[o->dtype]};
    ranks_options ranks = {.zero_level = 0, .comm_timeout = o->comm_timeout};
    b.ctx = ranks_start(&ranks, 0, train_device_of(o->device).name, &b.log);
    set_up(&b);
    int64_t most = mc_failed(b.ctx) ? 0 : most_bytes(&b);
    if (!mc_failed(b.ctx)) head(&b);
    for (int64_t bytes = o->least; bytes <= most && !mc_failed(b.ctx); bytes *= 2)
        measure_size(&b, bytes);
    if (append_file_release(&b.file) != MC_OK)
        mc_set_error(b.ctx, b.file.status, "%s", b.file.message);
    if (!mc_failed(b.ctx)) result(&b);
    return ranks_leave(b.ctx, mc_print_error(b.ctx, stderr) ? EXIT_RUN_FAILED : EXIT_OK);
}

/* ---- command line ---------------------------------------------------------------------------- */

/* "64", "64K", "1M", "2G": times 1024. NULL leaves *bytes. */
static bool read_bytes(const args_spec *spec, const char *option, const char *given, int64_t *bytes,
                       int *code)
{
    static const char suffixes[] = "KMG";
    char digits[24];
    int64_t number = 0;
    if (!given) return true;
    size_t length = strlen(given);
    const char *suffix = length ? strchr(suffixes, given[length - 1]) : NULL;
    bool good = length && length < sizeof digits;
    if (good) {
        memcpy(digits, given, length + 1);
        if (suffix) digits[length - 1] = '\0';
        int shift = suffix ? 10 * (int)(suffix - suffixes + 1) : 0;
        good = text_parse_whole(digits, &number) && number >= 1 && number <= (int64_t)1 << 40 &&
               number << shift <= (int64_t)1 << 40;
        *bytes = good ? number << shift : *bytes;
    }
    if (good) return true;
    *code = args_error(
        spec, "--%s: expected a number of bytes from 1 to 1024G, such as 64K, found \"%s\"", option,
        given);
    return false;
}

static bool check(const args_spec *spec, bench_options *o, int *code)
{
    o->least = 1 << 10;
    if (!read_bytes(spec, "min-bytes", o->least_text, &o->least, code) ||
        !read_bytes(spec, "max-bytes", o->most_text, &o->most, code))
        return false;
    if (!o->most || o->most >= o->least) return true;
    *code = args_error(spec, "--max-bytes is less than --min-bytes");
    return false;
}

static const char details[] =
    "Started by mpirun, srun or torchrun, on the ranks to be measured. Sizes double from\n"
    "--min-bytes on. Bus bandwidth is algorithm bandwidth times the bytes that a link has to\n"
    "carry for each byte of the result, as in nccl-tests: 2 (n-1)/n for all-reduce, (n-1)/n for\n"
    "all-gather and reduce-scatter, else 1. The data that arrives is checked once for each\n"
    "size; a wrong number is an error. Rank 0 prints; the last line is `result bench=comm ...`\n"
    "with the best bus bandwidth of each.\n\n"
    "  mpirun -np 4 modelcenter bench comm\n"
    "  torchrun --no-python --nproc_per_node 4 modelcenter bench comm --device cuda --dtype bf16\n";

int cmd_bench(int argc, char **argv)
{
    bench_options o = {.iterations = 20, .seconds = 0.1};
    const args_option options[] = {
        {ARGS_CHOICE("what", &o.bench, bench_names, "what to measure"), .required = true,
         .positional = true},
        {ARGS_CHOICE("collective", &o.collective, collective_names, "the collective to measure")},
        {ARGS_TEXT("min-bytes", &o.least_text, "the smallest size, also with K, M or G"),
         .default_text = "1K", .known_as = "minbytes,b"},
        {ARGS_TEXT("max-bytes", &o.most_text, "the largest size"),
         .default_text = "8M on the CPU, else 2G, or what fits", .known_as = "maxbytes,e"},
        {ARGS_INT("iterations", &o.iterations, LEAST_RUNS, MOST_RUNS,
                  "runs, whose median is reported"),
         .known_as = "iters,n"},
        {ARGS_REAL("seconds", &o.seconds, 0, 3600,
                   "time for each collective and size; at least 3 runs"),
         .known_as = "time-limit"},
        {ARGS_CHOICE("dtype", &o.dtype, train_dtype_names, "of the elements")},
        {ARGS_CHOICE("device", &o.device, train_device_names, "where to run"), .numbered = true},
        {ARGS_REAL("comm-timeout", &o.comm_timeout, 0, 1e7,
                   "seconds until a rank that waits for others gives up"),
         .default_text = "MC_COMM_TIMEOUT, else 300"},
        {ARGS_PATH("log-jsonl", &o.log_jsonl, "write an object a row to this file")},
        OUTPUT_OVERWRITE_ROW(&o.overwrite),
        {0},
    };
    const args_spec spec = {.command = "bench",
                            .summary = "Measures the collectives between ranks.",
                            .details = details,
                            .options = options};
    int code;
    if (!args_parse(&spec, argc, argv, &code) || !check(&spec, &o, &code)) return code;
    return run(&o);
}
