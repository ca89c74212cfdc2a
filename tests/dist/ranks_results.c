/* What ranks see of one another's results: run by mpirun, at any number of ranks. Prints a line for
 * each thing that is wrong; exits with 0 if there is none. `ranks_results misfit` has to fail. */
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tests/dist/ranks_test.h"

static mc_context *ctx;
static int rank, ranks, wrong;

static void check(bool good, const char *what)
{
    if (good && !mc_failed(ctx)) return;
    wrong++;
    printf("FAILED on rank %d of %d: %s %s\n", rank, ranks, what, mc_error_message(ctx));
}

/* Rank r brings r rows, the first none. */
static void check_rows(mc_dtype dtype)
{
    float values[64], all[64 * 4];
    int32_t whole[64];
    int64_t count = 0;
    for (int i = 0; i < rank * 3; i++) values[i] = (float)(whole[i] = 100 * rank + i);
    bool floating = dtype == MC_F32;
    const void *data = floating ? (const void *)values : (const void *)whole;
    mc_tensor *x = mc_tensor_from(ctx, dtype, MC_SHAPE(rank, 3), data);
    mc_tensor *y = mc_gather_result(ctx, x);
    for (int r = 0; r < ranks; r++) count += r;
    check(mc_tensor_size(y, 0) == count && mc_tensor_size(y, 1) == 3, "gathered shape");
    check(mc_tensor_dtype(y) == dtype, "gathered dtype");
    mc_tensor_read_f32(ctx, y, all, 3 * count);
    const float *at = all;
    bool same = true;
    for (int r = 0; r < ranks; r++)
        for (int i = 0; i < 3 * r; i++) same = same && *at++ == (float)(100 * r + i);
    check(same, "gathered rows");
    mc_tensor_free(x);
    mc_tensor_free(y);
}

/* A number without dimensions is a row. */
static void check_scalars(void)
{
    float mine = (float)(rank + 1), all[64] = {0};
    mc_tensor *x = mc_tensor_from(ctx, MC_F32, (mc_shape){.ndim = 0}, &mine);
    mc_tensor *y = mc_gather_result(ctx, x);
    check(mc_tensor_count(y) == ranks && mc_tensor_size(y, 0) == ranks, "gathered numbers' shape");
    mc_tensor_read_f32(ctx, y, all, ranks);
    for (int r = 0; r < ranks; r++) check(all[r] == (float)(r + 1), "gathered numbers");
    mc_tensor_free(x);
    mc_tensor_free(y);
}

/* Rank r counts r rows whose loss is r each; the last rank counts none. */
static void check_losses(void)
{
    float count = (float)(rank == ranks - 1 && ranks > 1 ? 0 : rank + 1), each = (float)(rank + 1);
    float loss[2] = {each * count, count};
    mc_tensor *x = mc_tensor_from(ctx, MC_F32, MC_SHAPE(2), loss);
    double sum = 0, counts = 0, means = 0;
    for (int r = 0; r < ranks; r++) {
        if (r == ranks - 1 && ranks > 1) continue;
        sum += (r + 1.0) * (r + 1.0);
        counts += r + 1.0;
        means += r + 1.0;
    }
    check(fabs(mc_global_mean_loss(ctx, x) - sum / counts) < 1e-12, "the global mean");
    check(fabs(mc_mean_rank_loss(ctx, x) - means / ranks) < 1e-12, "BMTrain's sum_loss");
    check(mc_mean_loss(ctx, x) == (count > 0 ? each : 0), "this rank's mean");
    mc_tensor_free(x);
}

/* Every rank labels rank + 1 rows as class 1; the even ones are right. */
static void check_accuracy(void)
{
    int32_t label[64], answer[64];
    for (int i = 0; i <= rank; i++) {
        label[i] = 1;
        answer[i] = rank % 2 == 0;
    }
    mc_tensor *labels = mc_tensor_from(ctx, MC_I32, MC_SHAPE(rank + 1), label);
    mc_tensor *answers = mc_tensor_from(ctx, MC_I32, MC_SHAPE(rank + 1), answer);
    mc_accuracy a = {.classes = 2};
    mc_accuracy_add(&a, answers, labels);
    double share = mc_accuracy_gather(ctx, &a);
    int64_t count = 0, correct = 0;
    for (int r = 0; r < ranks; r++) {
        count += r + 1;
        if (r % 2 == 0) correct += r + 1;
    }
    check(a.count == count && a.correct == correct, "counts of all ranks");
    check(share == (double)correct / (double)count, "accuracy over all ranks");
    check(a.confusion[1][1] == correct && a.confusion[1][0] == count - correct, "confusion");
    mc_tensor_free(labels);
    mc_tensor_free(answers);
}

static void check_numbers(void)
{
    double mine[2] = {rank + 0.1, -1e300}, all[2 * 64];
    mc_gather_numbers(ctx, mine, 2, all);
    for (int r = 0; r < ranks; r++)
        check(all[2 * r] == r + 0.1 && all[2 * r + 1] == -1e300, "gathered numbers");
    double sums[2] = {rank + 0.5, 1}, right = 0;
    for (int r = 0; r < ranks; r++) right += r + 0.5;
    check(mc_sum_numbers(ctx, sums, 2) == MC_OK, "sums of numbers");
    check(sums[0] == right && sums[1] == mc_data_size(ctx), "summed numbers");
    char text[100] = "";
    if (rank == 0) snprintf(text, sizeof text, "rank 0's text");
    check(mc_share_bytes(ctx, text, sizeof text) == MC_OK, "bytes");
    check(strcmp(text, "rank 0's text") == 0, "rank 0's bytes");
    for (int i = 0; i < 100; i++) check(mc_synchronize(ctx) == MC_OK, "synchronize");
}

/* Rank r computes rows r, r + ranks, ...; afterwards every rank has all of them. */
static void check_merged(void)
{
    enum { ROWS = 101 };
    float value[ROWS] = {0};
    for (int i = rank; i < ROWS; i += ranks) value[i] = (float)i + 0.1F;
    check(mc_merge_results(ctx, value, ROWS) == MC_OK, "results of rows");
    for (int i = 0; i < ROWS; i++) check(value[i] == (float)i + 0.1F, "results of all ranks' rows");
}

/* Each rank drops other elements; the first one those that a single rank drops. */
static void check_dropout(mc_context *alone)
{
    enum { N = 256 };
    float ones[N], mine[N], single[N], all[64 * N];
    for (int i = 0; i < N; i++) ones[i] = 1;
    mc_tape *t = mc_tape_begin(ctx), *u = mc_tape_begin(alone);
    mc_tensor *x = mc_dropout(t, mc_tape_input(t, MC_F32, MC_SHAPE(1, N), ones, false), 0.5f);
    mc_tensor *y = mc_dropout(u, mc_tape_input(u, MC_F32, MC_SHAPE(1, N), ones, false), 0.5f);
    mc_tensor_read_f32(ctx, x, mine, N);
    mc_tensor_read_f32(alone, y, single, N);
    mc_tensor *gathered = mc_gather_result(ctx, x);
    mc_tensor_read_f32(ctx, gathered, all, ranks * N);
    check((memcmp(mine, single, sizeof mine) == 0) == (rank == 0), "dropout of the first rank");
    for (int r = 0; r < ranks; r++)
        check((memcmp(mine, all + r * N, sizeof mine) == 0) == (r == rank), "dropout by rank");
    mc_tensor_free(gathered);
    mc_tape_end(t);
    mc_tape_end(u);
}

/* Ranks share their cores out where they are asked to, unless the user has said how many threads
 * there are to be; `before` is how many there were before the ranks met. */
static void check_threads(bool shared, int before)
{
    const char *chosen = getenv("OMP_NUM_THREADS");
    int threads = omp_get_max_threads();
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (!shared || (chosen && *chosen))
        check(threads == before, "the user's number of threads");
    else
        check(threads >= 1 && (threads == 1 || threads * ranks <= cores),
              "threads for one's cores");
}

/* One rank's rows are of another size. Among several ranks an error is for good, so this is a run
 * of its own: every rank has to fail, and say why. */
static int gather_misfit(void)
{
    mc_tensor *x = mc_tensor_new(ctx, MC_F32, MC_SHAPE(2, rank == ranks - 1 ? 4 : 3));
    mc_gather_result(ctx, x);
    int failed = mc_print_error(ctx, stderr);
    mc_context_free(ctx);
    return failed;
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        unsetenv("OMP_NUM_THREADS");
        omp_set_num_threads(64);
    }
    int threads = omp_get_max_threads();
    bool shared = argc > 1 && strcmp(argv[1], "own") != 0;
    ctx = mc_init_distributed(&(mc_init_options){.seed = 5,
                                                 .device = ranks_device(),
                                                 .comm_timeout = 60,
                                                 .threads = shared ? MC_THREADS_SHARED : 0});
    mc_context *alone = mc_context_new(&(mc_init_options){.seed = 5, .device = ranks_device()});
    if (mc_print_error(ctx, stderr) || mc_print_error(alone, stderr)) return 2;
    rank = mc_rank(ctx);
    ranks = mc_world_size(ctx);
    if (argc > 1 && strcmp(argv[1], "misfit") == 0) return gather_misfit();
    if (ranks > 1 && !ranks_device()) check_threads(shared, threads); /* CPU ranks do */
    check_rows(MC_F32);
    check_rows(MC_I32);
    check_scalars();
    check_losses();
    check_accuracy();
    check_numbers();
    check_merged();
    check_dropout(alone);
    mc_context_free(ctx);
    mc_context_free(alone);
    return wrong != 0;
}
