/* Records what a GPU does, for a timeline: a library that the CUDA driver loads into a program.
 *
 *     CUDA_INJECTION64_PATH=build/release/bench/libcuda_trace.so CUDA_TRACE=/tmp/trace program ...
 *     bench/timeline.py /tmp/trace.0
 *
 * Each process writes a file CUDA_TRACE.RANK (of RANK in the environment; 0 without) when it ends:
 * a line for each kernel, copy and memset: `start end stream name`, in ns of one clock, names in
 * full. Kernels of recorded steps (CUDA graphs) have lines of their own. Ranges of the host (NVTX,
 * see mc_range_begin) have two: `start + number name` and `end - number`. Recording costs the
 * program a few per cent; CUPTI, of the CUDA toolkit, does it. */
#define _GNU_SOURCE /* dladdr */
#include <cupti.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { BUFFER = 8 << 20, ALIGN = 8 };

static FILE *file;

static void CUPTIAPI give_buffer(uint8_t **buffer, size_t *size, size_t *most_records)
{
    *buffer = aligned_alloc(ALIGN, BUFFER);
    *size = *buffer ? BUFFER : 0;
    *most_records = 0;
}

static void print(uint64_t start, uint64_t end, uint32_t stream, const char *name)
{
    fprintf(file, "%llu %llu %u %s\n", (unsigned long long)start, (unsigned long long)end, stream,
            name ? name : "?");
}

static void print_record(const CUpti_Activity *record)
{
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
        const CUpti_ActivityKernel10 *k = (const void *)record;
        print(k->start, k->end, k->streamId, k->name);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
        const CUpti_ActivityMemcpy6 *m = (const void *)record;
        print(m->start, m->end, m->streamId, "memcpy");
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
        const CUpti_ActivityMemset4 *m = (const void *)record;
        print(m->start, m->end, m->streamId, "memset");
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MARKER) {
        const CUpti_ActivityMarker2 *m = (const void *)record;
        bool starts = m->flags & CUPTI_ACTIVITY_FLAG_MARKER_START;
        fprintf(file, "%llu %c %u %s\n", (unsigned long long)m->timestamp, "-+"[starts], m -> id,
                starts && m -> name ? m -> name : "");
    }
}

static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size,
                                 size_t filled)
{
    CUpti_Activity *record = NULL;
    (void)context, (void)stream, (void)size;
    while (cuptiActivityGetNextRecord(buffer, filled, &record) == CUPTI_SUCCESS)
        print_record(record);
    free(buffer);
}

static void finish(void)
{
    size_t dropped = 0;
    cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    cuptiActivityGetNumDroppedRecords(NULL, 0, &dropped);
    if (dropped) fprintf(stderr, "cuda_trace: %zu records were dropped\n", dropped);
    fclose(file);
}

/* NVTX hands ranges to the library that the environment names, at its first use. */
static void receive_ranges(void)
{
    Dl_info cupti;
    if (dladdr((void *)cuptiActivityEnable, &cupti))
        setenv("NVTX_INJECTION64_PATH", cupti.dli_fname, 0);
}

/* What the driver calls. */
int InitializeInjection(void);
int InitializeInjection(void)
{
    static const CUpti_ActivityKind kinds[] = {
        CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
        CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ACTIVITY_KIND_MARKER};
    const char *path = getenv("CUDA_TRACE"), *rank = getenv("RANK");
    char name[4096];
    snprintf(name, sizeof name, "%s.%s", path ? path : "cuda_trace", rank ? rank : "0");
    if (!(file = fopen(name, "w"))) {
        fprintf(stderr, "cuda_trace: cannot write %s\n", name);
        return 0;
    }
    receive_ranges();
    CUptiResult result = cuptiActivityRegisterCallbacks(give_buffer, take_buffer);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && !result; i++)
        result = cuptiActivityEnable(kinds[i]);
    if (result) {
        const char *text = "?";
        cuptiGetResultString(result, &text);
        fprintf(stderr, "cuda_trace: CUPTI: %s\n", text);
        return 0;
    }
    atexit(finish);
    return 1;
}
