/* The machine: its processor, its memory, and its GPUs as NVIDIA's driver shows them. */
#include <dlfcn.h>
#include <omp.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "core/about/machine_internal.h"
#include "core/base/context_internal.h"
#include "core/base/file_internal.h"
#include "core/base/library_names_internal.h"
#include "core/device/cpu/cpu_internal.h"

/* ---- GPUs, through the driver's library: no toolkit is needed -------------------------------- */

typedef struct driver_api {
    int (*cuInit)(unsigned flags);
    int (*cuDriverGetVersion)(int *version);
    int (*cuDeviceGetCount)(int *count);
    int (*cuDeviceGet)(int *device, int ordinal);
    int (*cuDeviceGetName)(char *name, int size, int device);
    int (*cuDeviceTotalMem_v2)(size_t *bytes, int device);
    int (*cuDeviceGetAttribute)(int *value, int attribute, int device);
} driver_api;

enum { CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76 }; /* CUdevice_attribute */

static bool load_driver(driver_api *api)
{
    void *library = dlopen(MC_LIBRARY_CUDA_DRIVER, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) return false;
#define FIND(name)                                \
    *(void **)&api->name = dlsym(library, #name); \
    if (!api->name) return false;
    FIND(cuInit)
    FIND(cuDriverGetVersion)
    FIND(cuDeviceGetCount)
    FIND(cuDeviceGet)
    FIND(cuDeviceGetName)
    FIND(cuDeviceTotalMem_v2)
    FIND(cuDeviceGetAttribute)
#undef FIND
    return true;
}

static void describe_gpu(const driver_api *api, int ordinal, mc_gpu *gpu)
{
    int device;
    size_t bytes = 0;
    *gpu = (mc_gpu){.major = 0};
    if (api->cuDeviceGet(&device, ordinal) != 0) return;
    if (api->cuDeviceGetName(gpu->name, sizeof gpu->name, device) != 0) gpu->name[0] = '\0';
    if (api->cuDeviceTotalMem_v2(&bytes, device) == 0) gpu->memory = bytes;
    api->cuDeviceGetAttribute(&gpu->major, CAPABILITY_MAJOR, device);
    api->cuDeviceGetAttribute(&gpu->minor, CAPABILITY_MINOR, device);
}

int mc_gpus(mc_gpu *gpus, int room)
{
    driver_api api;
    int count = 0;
    if (!load_driver(&api) || api.cuInit(0) != 0 || api.cuDeviceGetCount(&count) != 0) return 0;
    for (int i = 0; i < count && i < room; i++) describe_gpu(&api, i, &gpus[i]);
    return count;
}

void mc_driver_number(const char *line, char number[MC_ABOUT_TEXT])
{
    for (*number = '\0'; *line; line += strspn(line, " \t\n")) {
        size_t length = strcspn(line, " \t\n");
        bool good = strspn(line, "0123456789.") == length && memchr(line, '.', length);
        if (good && length < MC_ABOUT_TEXT) {
            snprintf(number, MC_ABOUT_TEXT, "%.*s", (int)length, line);
            return;
        }
        line += length;
    }
}

static void read_driver(char out[MC_ABOUT_TEXT])
{
    driver_api api;
    char line[512] = "", number[MC_ABOUT_TEXT] = "";
    int cuda = 0;
    FILE *file = fopen("/proc/driver/nvidia/version", "re");
    if (file) {
        if (fgets(line, sizeof line, file)) mc_driver_number(line, number);
        fclose(file);
    }
    if (load_driver(&api) && api.cuDriverGetVersion(&cuda) != 0) cuda = 0;
    if (cuda)
        snprintf(out, MC_ABOUT_TEXT, "%.60s%s(CUDA %d.%d)", number, *number ? " " : "", cuda / 1000,
                 cuda % 1000 / 10);
    else
        snprintf(out, MC_ABOUT_TEXT, "%s", number);
}

/* ---- the processor --------------------------------------------------------------------------- */

static void read_processor(char out[MC_ABOUT_TEXT])
{
    char line[512];
    FILE *file = fopen("/proc/cpuinfo", "re");
    while (file && !*out && fgets(line, sizeof line, file)) {
        const char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !value) continue;
        value += 1 + strspn(value + 1, " \t");
        snprintf(out, MC_ABOUT_TEXT, "%.*s", (int)strcspn(value, "\n"), value);
    }
    if (file) fclose(file);
}

static int count_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    return (int)sysconf(_SC_NPROCESSORS_ONLN); /* more cores than the set holds */
}

/* Fills in what a context's CPU device has chosen. */
static void read_device(mc_machine *m)
{
    mc_context *ctx = mc_context_new(&(mc_init_options){.device = "cpu"});
    if (!ctx) {
        snprintf(m->problem, sizeof m->problem, "out of memory");
    } else if (mc_failed(ctx)) {
        snprintf(m->problem, sizeof m->problem, "%s", mc_error_message(ctx));
    } else {
        const mc_cpu_device *cpu = (const mc_cpu_device *)ctx->device;
        snprintf(m->kernels, sizeof m->kernels, "%s", cpu->isa);
        snprintf(m->products, sizeof m->products, "%s", cpu->gemm);
        m->memory_left = ctx->device->free_memory(ctx->device);
    }
    mc_context_free(ctx);
}

void mc_machine_read(mc_machine *machine)
{
    if (!machine) return;
    *machine = (mc_machine){.cores = count_cores(), .threads = omp_get_max_threads()};
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    if (pages > 0 && size > 0) machine->memory = (uint64_t)pages * (uint64_t)size;
    read_processor(machine->processor);
    read_driver(machine->driver);
    read_device(machine);
}

bool mc_cache_folder(char *path, int size)
{
    char folder[MC_PATH_MAX];
    bool found = path && mc_path_cache(folder) && size > (int)strlen(folder);
    if (path && size > 0) snprintf(path, (size_t)size, "%s", found ? folder : "");
    return found;
}
