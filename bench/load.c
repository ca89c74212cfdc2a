/* How long a model takes to load, and where the time goes.
 *
 *     bench/load make FAMILY SHAPE DTYPE FOLDER       writes a model with random weights
 *     bench/load time FAMILY FOLDER DTYPE DEVICE      opens the device, loads it, makes one token
 *
 *     bench/load make gpt2 gpt2-xl bf16 /dev/shm/xl
 *     bench/load time gpt2 /dev/shm/xl bf16 cuda
 *
 * Times count from the start of the process, which is known to 10 ms. The second of two runs has
 * what can be cached: the file's pages and the plans of products. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>

static double started;

static double clock_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Milliseconds from boot to the start of this process: field 22 of its stat file. */
static double process_start(void)
{
    char text[1024] = "", *at;
    FILE *file = fopen("/proc/self/stat", "r");
    if (file) text[fread(text, 1, sizeof text - 1, file)] = '\0';
    if (file) fclose(file);
    at = strrchr(text, ')');
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
    return at ? strtod(at, NULL) * 1e3 / (double)sysconf(_SC_CLK_TCK) : clock_ms();
}

static void report(const char *what, double *since)
{
    double now = clock_ms();
    printf("%-28s %8.1f ms, at %8.1f\n", what, now - *since, now - started);
    *since = now;
}

static mc_dtype dtype_of(const char *name)
{
    return strcmp(name, "bf16") == 0 ? MC_BF16 : strcmp(name, "f16") == 0 ? MC_F16 : MC_F32;
}

/* The most memory that the process has had, in GB. */
static double most_memory(void)
{
    char line[256];
    double kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "VmHWM:", 6) == 0) kib = strtod(line + 6, NULL);
    if (file) fclose(file);
    return kib * 1024e-9;
}

/* The bytes of the weights of a folder in one file. */
static double weight_bytes(const char *folder)
{
    char path[4096];
    struct stat info;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    return stat(path, &info) == 0 ? (double)info.st_size : 0;
}

static void make(mc_context *ctx, char **a)
{
    mc_model *m = mc_model_new(ctx, a[0], a[1], NULL, &(mc_load_options){.dtype = dtype_of(a[2])});
    if (m) mc_model_save(m, a[3]);
    mc_model_free(m);
}

static void measure(mc_context *ctx, char **a, double since)
{
    const int32_t prompt[] = {1, 2, 3, 4}, *prompts[] = {prompt};
    int length = 4;
    report("context and device", &since);
    double before = since;
    mc_model *m =
        mc_model_from_pretrained_of(ctx, a[0], a[1], &(mc_load_options){.dtype = dtype_of(a[2])});
    report("from_pretrained", &since);
    printf("%28s %8.2f GB at %.2f GB/s, at most %.2f GB resident\n", "", weight_bytes(a[1]) * 1e-9,
           weight_bytes(a[1]) * 1e-6 / (since - before), most_memory());
    mc_generation *g =
        m ? mc_model_generate(m, prompts, &length, 1,
                              &(mc_generate_options){.max_new_tokens = 1, .ignore_eos = true})
          : NULL;
    if (g) report("first token", &since);
    mc_generation_free(g);
    mc_model_free(m);
}

int main(int argc, char **argv)
{
    double since = clock_ms();
    started = process_start();
    if (argc != 6 || (strcmp(argv[1], "make") != 0 && strcmp(argv[1], "time") != 0)) {
        fprintf(stderr, "expected: load make FAMILY SHAPE DTYPE FOLDER\n"
                        "      or: load time FAMILY FOLDER DTYPE DEVICE\n");
        return 2;
    }
    bool makes = argv[1][0] == 'm';
    mc_context *ctx =
        mc_init_distributed(&(mc_init_options){.device = makes ? "cpu" : argv[5], .seed = 1});
    if (makes)
        make(ctx, argv + 2);
    else
        measure(ctx, argv + 2, since);
    int code = mc_print_error(ctx, stderr) ? 1 : 0;
    mc_context_free(ctx);
    return code;
}
