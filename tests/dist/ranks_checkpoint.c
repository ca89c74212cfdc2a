/* Checkpoints that do not tell how many ranks there were. Run by mpirun:
 *
 *     ranks_checkpoint                  all that one job can check
 *     ranks_checkpoint save FOLDER      trains, saves a run of every kind, and trains on
 *     ranks_checkpoint resume FOLDER    goes on from each of them, at every level
 *     ranks_checkpoint fail HOW FOLDER  something goes wrong on one rank; prints the error
 *
 * checkpoint_test.py saves and resumes at different numbers of ranks. Exits with 0 if all is
 * good. */
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "core/base/file_internal.h"
#include "core/dist/comm.h"
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "core/nn/module_internal.h"
#include "tests/dist/ranks_test.h"

enum { STEPS = 8, SAVED = 4, ROWS = 11, LENGTH = 9, VOCABULARY = 61, SEED = 5 };

static int failures;

#define check(good, ...) \
    if (!(good)) failures++, printf("FAILED rank %d: ", rank_of()), printf(__VA_ARGS__), puts("")

static mc_context *job, *alone;
static int rank_of(void) { return mc_rank(job); }

/* ---- a run ----------------------------------------------------------------------------------- */

/* What a run is of; its model has tied embeddings, a vocabulary that is padded, and a frozen
 * block. */
typedef struct kind {
    const char *name;
    mc_dtype dtype;
    bool sgd;
} kind;

static const kind kinds[] = {
    {"f32", MC_F32, false}, {"bf16", MC_BF16, false}, {"sgd", MC_F32, true}};
enum { KINDS = sizeof kinds / sizeof *kinds };

typedef struct run {
    mc_context *ctx;
    mc_model *gpt2;
    mc_optim_manager *optim;
    double loss[STEPS];
} run;

/* A new run, or one that goes on with the weights in `folder`. */
static run begin(mc_context *ctx, const kind *k, const char *folder)
{
    run r = {.ctx = ctx};
    mc_gpt2_config c = small_gpt2_config(32, 3, VOCABULARY, LENGTH);
    mc_load_options load = {.dtype = k->dtype};
    r.gpt2 =
        folder ? mc_gpt2_from_pretrained(ctx, folder, &load) : mc_gpt2_new(ctx, &c, NULL, &load);
    mc_module_set_trainable(mc_model_module(r.gpt2), "*.layers.1.*", false);
    mc_optimizer *o =
        k->sgd ? mc_sgd_new(ctx, &(mc_sgd_options){.lr = 0.1f, .momentum = 0.9f})
               : mc_adam_new(ctx, &(mc_adam_options){.lr = 1e-2f, .weight_decay = 0.01f});
    mc_optimizer_add(o, mc_model_module(r.gpt2));
    r.optim = mc_optim_manager_new(ctx, &(mc_optim_manager_options){.loss_scale = 64});
    mc_optim_manager_add(r.optim, o, mc_linear_decay_new(ctx, k->sgd ? 2.0 : 3e-2, 1, 20));
    return r;
}

static void end(run *r)
{
    mc_optim_manager_free(r->optim);
    mc_model_free(r->gpt2);
}

/* This rank's rows of a step's batch, packed. */
static int make_rows(int step, int rank, int ranks, int32_t *ids, int32_t *labels, int32_t *lengths,
                     int *rows)
{
    int tokens = 0;
    *rows = 0;
    uint64_t state = (uint64_t)(step + 1) * 77777;
    for (int r = 0; r < ROWS; r++) {
        int length = 2 + below(&state, LENGTH - 1), token = below(&state, VOCABULARY);
        for (int k = 0; k < length; k++) {
            int next = (token + 1 + r % 3) % VOCABULARY;
            if (r % ranks == rank) {
                ids[tokens] = token;
                labels[tokens++] = k % 4 ? next : -100;
            }
            token = next;
        }
        if (r % ranks == rank) lengths[(*rows)++] = length;
    }
    return tokens;
}

static void train(run *r, int first, int last)
{
    int32_t ids[ROWS * LENGTH], labels[ROWS * LENGTH], lengths[ROWS];
    for (int step = first; step < last && !mc_failed(r->ctx); step++) {
        int rows, tokens = make_rows(step, mc_rank(r->ctx), mc_world_size(r->ctx), ids, labels,
                                     lengths, &rows);
        mc_optim_manager_zero_grad_plan(r->optim, &(mc_step_plan){.nominal_rows = ROWS * LENGTH});
        mc_tape *t = mc_tape_begin(r->ctx);
        mc_model_input in = {.ids = mc_tape_input(t, MC_I32, MC_SHAPE(tokens), ids, false),
                             .lengths = mc_tape_lengths(t, lengths, rows, 1)};
        mc_model_output out = mc_model_forward(t, r->gpt2, &in);
        mc_tensor *target = mc_tape_input(t, MC_I32, MC_SHAPE(tokens), labels, false);
        mc_optim_manager_backward(r->optim, t, mc_model_loss(t, r->gpt2, out.last_hidden, target));
        mc_tape_end(t);
        mc_optim_manager_clip_grad_norm(r->optim, 1.0f);
        mc_optim_manager_step(r->optim);
        r->loss[step] = mc_optim_manager_mean_loss(r->optim);
    }
}

static mc_status save_files(void *user, const char *folder)
{
    run *r = user;
    return mc_model_save(r->gpt2, folder);
}

static mc_status save(run *r, const char *folder, int step, bool background)
{
    mc_checkpoint_setting setting = {"step", "4"};
    mc_checkpoint_options o = {.step = step,
                               .keep = 1,
                               .optim = r->optim,
                               .save_files = save_files,
                               .user = r,
                               .settings = &setting,
                               .setting_count = 1,
                               .background = background};
    return mc_checkpoint_save(r->ctx, folder, &o);
}

/* Goes on from the newest checkpoint of a folder. */
static run resume(mc_context *ctx, const kind *k, const char *folder)
{
    mc_checkpoint *c = mc_checkpoint_open(ctx, folder);
    check(c && mc_checkpoint_step(c) == SAVED, "%s: no checkpoint of step %d", folder, SAVED);
    run r = begin(ctx, k, mc_checkpoint_folder(c));
    mc_checkpoint_restore(c, r.optim);
    check(mc_optim_manager_steps(r.optim) == SAVED, "%s: %lld steps", folder,
          (long long)mc_optim_manager_steps(r.optim));
    mc_checkpoint_free(c);
    return r;
}

static bool stop_on_error(void)
{
    if (mc_print_error(job, stdout) || mc_print_error(alone, stdout)) failures++;
    return failures;
}

/* ---- comparisons ----------------------------------------------------------------------------- */

/* The largest difference of losses from a step on. */
static double worst_loss(const run *a, const run *b, int first)
{
    double worst = 0;
    for (int i = first; i < STEPS; i++) {
        double error = fabs(a->loss[i] - b->loss[i]) / fabs(b->loss[i]);
        if (!(error <= worst)) worst = error;
    }
    return worst;
}

/* How many parameters of two models differ in any bit. Ranks do it together. */
static int different_weights(mc_module *a, mc_module *b)
{
    int different = 0;
    mc_parameter_iterator at_a = {0}, at_b = {0};
    for (mc_parameter *p, *q; (p = mc_module_next_parameter(a, &at_a));) {
        q = mc_module_next_parameter(b, &at_b);
        size_t bytes = (size_t)mc_shape_count(mc_parameter_shape(p)) * sizeof(float);
        float *x = malloc(bytes), *y = malloc(bytes);
        if (mc_parameter_read(p, x) || mc_parameter_read(q, y) || memcmp(x, y, bytes) != 0)
            different++;
        free(x);
        free(y);
    }
    return different;
}

static bool same_file(const char *a, const char *b)
{
    mc_error error = {0};
    mc_file_map x = {0}, y = {0};
    bool same = !mc_file_map_init(&error, &x, a) && !mc_file_map_init(&error, &y, b) &&
                x.size == y.size && memcmp(x.data, y.data, x.size) == 0;
    mc_file_map_release(&x);
    mc_file_map_release(&y);
    mc_error_clear(&error);
    return same;
}

/* "<folder>/<name>"; lives until the 16th call after it. */
static const char *path_in(const char *folder, const char *name)
{
    static char paths[16][MC_PATH_MAX];
    static int turn;
    mc_error error = {0};
    char *path = paths[turn = (turn + 1) % 16];
    check(mc_path_join(&error, path, folder, name) == MC_OK, "%s", error.message);
    mc_error_clear(&error);
    return path;
}

/* A folder that all ranks know, and one of this rank's own in it. */
static void make_folder(char shared[MC_PATH_MAX], char own[MC_PATH_MAX])
{
    mc_error error = {0};
    const char *parent = getenv("TMPDIR");
    double mine = getpid(), all[16];
    mc_gather_numbers(job, &mine, 1, all);
    snprintf(shared, MC_PATH_MAX, "%s/mc-ranks-%.0f", parent ? parent : P_tmpdir, all[0]);
    snprintf(own, MC_PATH_MAX, "%.4000s/rank-%d", shared, rank_of());
    check(mc_make_folders(&error, own) == MC_OK, "no folder %s", own);
}

static void remove_folder(const char *folder)
{
    char command[MC_PATH_MAX + 16];
    mc_synchronize(job);
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (rank_of() == 0) check(system(command) == 0, "%s", command);
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Models have the same initial values at any number of ranks, and so the same files, byte by
 * byte. */
static void check_files(const char *shared, const char *own)
{
    mc_gpt2_config c = small_gpt2_config(24, 2, VOCABULARY, LENGTH);
    mc_bert_config bc = mc_bert_config_default();
    bc.vocab_size = 50;
    bc.dim = 24;
    bc.dim_ff = 40;
    bc.layers = 2;
    bc.heads = 3;
    bc.positions = 12;
    mc_model_heads heads = {.pooler = true, .lm = true, .nsp = true};
    const mc_load_options bf16 = {.dtype = MC_BF16};
    for (int untied = 0; untied < 2; untied++) {
        c.tied = !untied;
        const char *together = path_in(shared, untied ? "untied" : "tied");
        const char *single = path_in(own, untied ? "untied" : "tied");
        mc_model *a = mc_gpt2_new(job, &c, NULL, &bf16), *b = mc_gpt2_new(alone, &c, NULL, &bf16);
        mc_model_save(a, together);
        mc_model_save(b, single);
        check(
            same_file(path_in(together, "model.safetensors"), path_in(single, "model.safetensors")),
            "level %d: GPT-2's file depends on the ranks", job->zero_level);
        check(same_file(path_in(together, "config.json"), path_in(single, "config.json")),
              "config.json depends on the ranks");
        mc_model *again = mc_gpt2_from_pretrained(job, together, NULL);
        mc_model *there = mc_gpt2_from_pretrained(alone, together, NULL);
        check(different_weights(mc_model_module(again), mc_model_module(there)) == 0,
              "level %d: GPT-2 loads differently", job->zero_level);
        check(different_weights(mc_model_module(a), mc_model_module(there)) == 0,
              "level %d: GPT-2 does not load as it was", job->zero_level);
        mc_model_free(a), mc_model_free(b), mc_model_free(again), mc_model_free(there);
    }
    mc_model *a = mc_bert_new(job, &bc, &heads, NULL), *b = mc_bert_new(alone, &bc, &heads, NULL);
    mc_model_save(a, path_in(shared, "bert"));
    mc_model_save(b, path_in(own, "bert"));
    check(same_file(path_in(shared, "bert/model.safetensors"),
                    path_in(own, "bert/model.safetensors")),
          "level %d: BERT's file depends on the ranks", job->zero_level);
    mc_model *again = mc_bert_from_pretrained(job, path_in(shared, "bert"), NULL);
    check(different_weights(mc_model_module(again), mc_model_module(b)) == 0,
          "level %d: BERT does not load as it was", job->zero_level);
    mc_model_free(a), mc_model_free(b), mc_model_free(again);
}

/* A program's own module: the same file at any number of ranks, which any number reads. */
static void check_module_file(const char *shared, const char *own)
{
    mc_module *module[4];
    const char *together = path_in(shared, "mine"), *single = path_in(own, "mine");
    for (int i = 0; i < 4; i++) {
        mc_context *ctx = i % 2 ? alone : job;
        module[i] = mc_module_new(ctx, "", sizeof **module, NULL);
        mc_initializer init = mc_init_uniform((float)(i / 2), (float)(i / 2 + 1));
        mc_parameter_new(module[i], "w", MC_SHAPE(13, 7), init);
        mc_parameter_new(module[i], "b", MC_SHAPE(5), init);
    }
    for (int sharded = 1; sharded >= 0; sharded--) {
        static const char *const files[] = {"", "-00001-of-00002.safetensors",
                                            "-00002-of-00002.safetensors",
                                            ".safetensors.index.json"};
        mc_save_options o = {.max_shard_size = sharded ? 13 * 7 * 4 : 0};
        const char *ending = sharded ? ".safetensors" : "";
        char a[2][MC_PATH_MAX];
        for (int i = 0; i < 2; i++) {
            snprintf(a[i], MC_PATH_MAX, "%.4000s%s", i ? single : together, ending);
            mc_module_save_as(module[i], a[i], &o);
        }
        for (int i = sharded; i < (sharded ? 4 : 1); i++) {
            snprintf(a[0], MC_PATH_MAX, "%.4000s%s", together, files[i]);
            snprintf(a[1], MC_PATH_MAX, "%.4000s%s", single, files[i]);
            check(same_file(a[0], a[1]), "level %d: file \"mine%s\" depends on the ranks",
                  job->zero_level, files[i]);
        }
    }
    check(same_file(together, single), "level %d: a module's file depends on the ranks",
          job->zero_level);
    mc_module_load(module[2], together);
    mc_module_load(module[3], together);
    check(different_weights(module[0], module[3]) == 0, "level %d: a module loads differently",
          job->zero_level);
    check(different_weights(module[2], module[3]) == 0, "level %d: ranks load differently",
          job->zero_level);
    for (int i = 0; i < 4; i++) mc_module_free(module[i]);
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* What is saved goes on as if nothing had been: together bit for bit, alone as a single rank
 * does. */
static void check_run(const kind *k, const char *shared, bool background)
{
    char folder[MC_PATH_MAX];
    snprintf(folder, sizeof folder, "%.4000s/run-%s-%d%s", shared, k->name, job->zero_level,
             background ? "-background" : "");
    run whole = begin(alone, k, NULL), a = begin(job, k, NULL);
    train(&whole, 0, STEPS);
    train(&a, 0, SAVED);
    save(&a, folder, SAVED, background);
    if (background) train(&a, SAVED, STEPS); /* which must not be seen in what is saved */
    mc_checkpoint_wait(job);
    run b = resume(job, k, folder), c = resume(alone, k, folder);
    check(different_weights(mc_model_module(b.gpt2), mc_model_module(c.gpt2)) == 0 &&
              (background ||
               different_weights(mc_model_module(a.gpt2), mc_model_module(c.gpt2)) == 0),
          "%s: weights change by saving", folder);
    if (!background) train(&a, SAVED, STEPS);
    train(&b, SAVED, STEPS);
    train(&c, SAVED, STEPS);
    check(worst_loss(&b, &a, SAVED) == 0, "%s: resumed, off by %.1e", folder,
          worst_loss(&b, &a, SAVED));
    check(different_weights(mc_model_module(a.gpt2), mc_model_module(b.gpt2)) == 0,
          "%s: weights differ after resuming", folder);
    double limit = k->dtype == MC_F32 ? 1e-5 : 1e-2; /* bf16: roundings that fall the other way */
    check(worst_loss(&c, &whole, SAVED) <= limit, "%s: resumed alone, off by %.1e", folder,
          worst_loss(&c, &whole, SAVED));
    check(whole.loss[STEPS - 1] < 0.95 * whole.loss[0], "%s does not learn: %g, %g", folder,
          whole.loss[0], whole.loss[STEPS - 1]);
    end(&whole), end(&a), end(&b), end(&c);
}

/* Of a damaged checkpoint all ranks take the one before. */
static void check_damage(const char *shared)
{
    char folder[MC_PATH_MAX];
    snprintf(folder, sizeof folder, "%.4000s/damaged", shared);
    run a = begin(job, &kinds[0], NULL);
    train(&a, 0, SAVED);
    save(&a, folder, SAVED, true);
    save(&a, folder, SAVED + 1, false); /* and waits for the one before */
    if (rank_of() == 0)
        check(truncate(path_in(folder, "checkpoint-5/optimizer.safetensors"), 1000) == 0,
              "truncate");
    mc_synchronize(job);
    run b = resume(job, &kinds[0], folder);
    check(access(path_in(folder, "checkpoint-5.damaged"), F_OK) == 0, "it is not set aside");
    end(&a), end(&b);
}

/* ---- memory ---------------------------------------------------------------------------------- */

typedef struct sampler {
    pthread_t thread;
    atomic_bool over;
    long peak; /* bytes */
} sampler;

/* Memory of this process that is no part of a file. */
static long anonymous(void)
{
    char line[128];
    long kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "RssAnon: %ld", &kib) == 1) break;
    if (status) fclose(status);
    return kib * 1024;
}

static void *sample(void *user)
{
    sampler *s = user;
    while (!atomic_load(&s->over)) {
        long now = anonymous();
        if (now > s->peak) s->peak = now;
        usleep(200);
    }
    return NULL;
}

static void start(sampler *s)
{
    memset(s, 0, sizeof *s);
    pthread_create(&s->thread, NULL, sample, s);
}

static long stop(sampler *s)
{
    atomic_store(&s->over, true);
    pthread_join(s->thread, NULL);
    return s->peak;
}

/* Bytes of a model's parameters on this rank, and of its largest bucket. */
static long held_bytes(mc_module *module, long *largest)
{
    long held = 0;
    mc_module_root *root = module->root;
    *largest = 0;
    for (int i = 0; i < root->zero.bucket_count; i++) {
        const mc_bucket *b = &root->zero.buckets[i];
        long size = (long)mc_dtype_size(b->dtype);
        held += (mc_bucket_shares_values(b) ? b->share : b->count) * size;
        if (b->count * size > *largest) *largest = b->count * size;
    }
    return held;
}

/* Loading and saving at level 3: what a rank holds, a bucket, and what is read at a time. */
static void check_memory(const char *shared)
{
#ifdef __SANITIZE_ADDRESS__
    if (rank_of() == 0)
        puts("SKIPPED: memory while loading and saving (freed memory is kept here)");
    return;
#endif
    const long staging = 8L << 20, slack = 2L << 20;
    const char *folder = path_in(shared, "large");
    mc_gpt2_config c = small_gpt2_config(384, 12, 9000, LENGTH);
    sampler s;
    long largest, before, held, load, save;
    mc_model *a = rank_of() ? NULL : mc_gpt2_new(alone, &c, NULL, NULL);
    mc_model_save(a, folder);
    mc_model_free(a);
    mc_synchronize(job);
    before = anonymous();
    start(&s);
    a = mc_gpt2_from_pretrained(job, folder, NULL);
    load = stop(&s) - before;
    before = anonymous();
    start(&s);
    mc_model_save(a, folder);
    save = stop(&s) - before;
    held = held_bytes(mc_model_module(a), &largest);
    if (rank_of() == 0)
        printf("memory: %.1f MB held of %.1f, largest bucket %.1f; loading %.1f, saving %.1f\n",
               1e-6 * (double)held, 4e-6 * (double)mc_module_parameter_count(mc_model_module(a)),
               1e-6 * (double)largest, 1e-6 * (double)load, 1e-6 * (double)save);
    check(load <= held + largest + staging + slack,
          "loading took %ld bytes: %ld held, a bucket %ld", load, held, largest);
    check(save <= largest + slack, "saving took %ld bytes, a bucket has %ld", save, largest);
    mc_model_free(a);
}

static void check_all(void)
{
    char shared[MC_PATH_MAX], own[MC_PATH_MAX];
    make_folder(shared, own);
    check_memory(shared);
    for (int level = 0; level <= 3 && !stop_on_error(); level++) {
        job->zero_level = level;
        check_files(shared, own);
        check_module_file(shared, own);
        for (int i = 0; i < 2 * KINDS; i++) check_run(&kinds[i / 2], shared, i % 2);
    }
    check_damage(shared);
    remove_folder(shared);
}

/* ---- jobs of different sizes ----------------------------------------------------------------- */

static const char *name_of(const char *folder, const kind *k, int level)
{
    char name[64];
    snprintf(name, sizeof name, "%s-%d", k->name, level);
    return path_in(folder, name);
}

/* The run that was saved goes on, and leaves its losses beside the checkpoint. */
static void save_all(const char *folder)
{
    for (int level = 0; level <= 3; level++)
        for (int i = 0; i < KINDS && !stop_on_error(); i++) {
            job->zero_level = level;
            const char *name = name_of(folder, &kinds[i], level);
            run r = begin(job, &kinds[i], NULL);
            train(&r, 0, SAVED);
            save(&r, name, SAVED, i % 2);
            train(&r, SAVED, STEPS);
            FILE *file = rank_of() ? NULL : fopen(path_in(name, "losses"), "wb");
            if (rank_of() == 0)
                check(file && fwrite(r.loss, sizeof r.loss, 1, file) == 1 && fclose(file) == 0,
                      "%s: cannot write losses", name);
            end(&r);
        }
}

/* How far a run that goes on is from what the saved one went on to. */
typedef struct distance {
    double next, later; /* of its first loss, and of all */
} distance;

static distance resume_one(const kind *k, const char *name, const run *alone_all)
{
    run saved = {0};
    FILE *file = fopen(path_in(name, "losses"), "rb");
    check(file && fread(saved.loss, sizeof saved.loss, 1, file) == 1, "%s: no losses", name);
    if (file) fclose(file);
    run r = resume(job, k, name);
    train(&r, SAVED, STEPS);
    distance d = {fabs(r.loss[SAVED] - saved.loss[SAVED]) / saved.loss[SAVED],
                  worst_loss(&r, k->dtype == MC_F32 ? alone_all : &saved, SAVED)};
    end(&r);
    return d;
}

/* From every level to every level. In f32 losses are those of a single rank that was never
 * interrupted. In bf16 products of other shapes round some values the other way: only the first
 * loss, from the very weights that were saved, is as near. */
static void resume_all(const char *folder)
{
    for (int i = 0; i < KINDS; i++) {
        run whole = begin(alone, &kinds[i], NULL);
        train(&whole, 0, STEPS);
        distance worst = {0, 0};
        for (int from = 0; from <= 3; from++)
            for (int to = 0; to <= 3 && !stop_on_error(); to++) {
                job->zero_level = to;
                distance d = resume_one(&kinds[i], name_of(folder, &kinds[i], from), &whole);
                if (!(d.next <= worst.next)) worst.next = d.next;
                if (!(d.later <= worst.later)) worst.later = d.later;
            }
        if (rank_of() == 0)
            printf("%s resumed at %d ranks: next loss off by %.1e, later ones by %.1e\n",
                   kinds[i].name, mc_world_size(job), worst.next, worst.later);
        check(worst.next <= 1e-5 && worst.later <= (kinds[i].dtype == MC_F32 ? 1e-5 : 1e-2),
              "%s: losses off by %.1e, then %.1e", kinds[i].name, worst.next, worst.later);
        end(&whole);
    }
}

/* ---- what goes wrong ------------------------------------------------------------------------- */

static void limit_files(int rank)
{
    signal(SIGXFSZ, SIG_IGN);
    if (rank_of() == rank) setrlimit(RLIMIT_FSIZE, &(struct rlimit){20000, RLIM_INFINITY});
}

typedef struct failing {
    const char *how;
    int rank;
} failing;

/* On one rank: says that it failed without saying how, or dies. */
static mc_status save_nothing(void *user, const char *folder)
{
    const failing *f = user;
    (void)folder;
    if (rank_of() != f->rank) return MC_OK;
    if (strcmp(f->how, "killed") == 0) raise(SIGKILL);
    return MC_ERR_INTERRUPTED;
}

/* Each prints what became of it; checkpoint_test.py reads that. */
static void fail(const char *how, const char *folder)
{
    failing f = {how, mc_world_size(job) - 1};
    bool mine = rank_of() == f.rank, missing = strcmp(how, "missing") == 0;
    mc_checkpoint_options nothing = {.step = 5, .save_files = save_nothing, .user = &f};
    run r = begin(job, &kinds[0], NULL);
    nothing.optim = r.optim;
    train(&r, 0, 1);
    if (strcmp(how, "full-first") == 0) limit_files(0);
    if (strcmp(how, "full-last") == 0 || strcmp(how, "later-last") == 0) limit_files(f.rank);
    if (strcmp(how, "later-first") == 0) limit_files(0);
    if (strcmp(how, "refused") == 0 || strcmp(how, "killed") == 0)
        mc_checkpoint_save(job, folder, &nothing);
    else if (missing)
        mc_gpt2_from_pretrained(job, mine ? "/absent" : folder, NULL);
    else
        save(&r, folder, SAVED + 1, strncmp(how, "later", 5) == 0);
    mc_checkpoint_wait(job);
    printf("rank %d: status %d: %s\n", rank_of(), (int)mc_error_status(job), mc_error_message(job));
    fflush(stdout);
    sleep(1); /* mpirun ends the others when one is gone */
}

int main(int argc, char **argv)
{
    ranks_compare_bits();
    job = mc_init_distributed(
        &(mc_init_options){.seed = SEED, .device = ranks_device(), .comm_timeout = 60});
    alone = mc_context_new(&(mc_init_options){.seed = SEED, .device = ranks_device()});
    if (mc_print_error(job, stderr) || mc_print_error(alone, stderr)) return 2;
    bool may_fail = argc == 4 && strcmp(argv[1], "fail") == 0;
    if (argc == 1)
        check_all();
    else if (argc == 3 && strcmp(argv[1], "save") == 0)
        save_all(argv[2]);
    else if (argc == 3 && strcmp(argv[1], "resume") == 0)
        resume_all(argv[2]);
    else if (may_fail)
        fail(argv[2], argv[3]);
    else
        check(false, "unknown arguments");
    if (!may_fail) stop_on_error();
    mc_context_free(job);
    mc_context_free(alone);
    return failures != 0;
}
