/* Memory of the GPU: a reserved range of addresses that fills up with physical memory from the
 * front, so that the pool in it is never split into segments; and the pinned memory for uploads. */
#include <cuda.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "core/base/memory_internal.h"
#include "core/device/cuda/runtime/cuda_memory_internal.h"

/* ---- the range ------------------------------------------------------------------------------- */

/* The driver's functions are looked up at run time, so that programs start without a driver. */
#define MC_DRIVER_MAP(X)   \
    X(cuMemAddressReserve) \
    X(cuMemAddressFree) X(cuMemCreate) X(cuMemRelease) X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess)
#define MC_DRIVER_MEMBER(name) __typeof__(name) *name;
typedef struct driver {
    MC_DRIVER_MAP(MC_DRIVER_MEMBER)
} driver;

typedef struct piece {
    struct piece *next;
    CUmemGenericAllocationHandle handle;
    size_t bytes;
} piece;

struct mc_cuda_range {
    mc_device *device;
    driver cu;
    CUmemAllocationProp property;
    CUdeviceptr base;
    size_t reserved, mapped;
    piece *pieces;
};

static bool find_driver(mc_device *d, driver *cu)
{
#define MC_DRIVER_FIND(name)                              \
    *(void **)&cu->name = mc_cuda_driver_function(#name); \
    if (!cu->name) return mc_cuda_fail(d, MC_ERR_DEVICE, "the driver has no " #name) == MC_OK;
    MC_DRIVER_MAP(MC_DRIVER_FIND)
#undef MC_DRIVER_FIND
    return true;
}

/* How memory can be shared with other processes: NONE if the driver or the system cannot. */
static CUmemAllocationHandleType sharing(int ordinal)
{
    int types = 0;
    if (cudaDeviceGetAttribute(&types, cudaDevAttrMemoryPoolSupportedHandleTypes, ordinal))
        return CU_MEM_HANDLE_TYPE_NONE;
    return types & cudaMemHandleTypePosixFileDescriptor ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                                        : CU_MEM_HANDLE_TYPE_NONE;
}

mc_cuda_range *mc_cuda_range_new(mc_device *d, int ordinal, bool shared)
{
    mc_cuda_range *range = mc_calloc(1, sizeof *range);
    size_t free_bytes, total;
    if (!range || !find_driver(d, &range->cu) ||
        mc_cuda_check(d, cudaMemGetInfo(&free_bytes, &total), "cudaMemGetInfo")) {
        mc_free(range);
        return NULL;
    }
    const size_t huge = (size_t)2 << 30;
    range->device = d;
    range->property =
        (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal}};
    if (shared) range->property.requestedHandleTypes = sharing(ordinal);
    range->reserved = (total + huge) / huge * huge;
    if (range->cu.cuMemAddressReserve(&range->base, range->reserved, 0, 0, 0) == CUDA_SUCCESS)
        return range;
    mc_cuda_fail(d, MC_ERR_DEVICE, "the driver reserves no addresses");
    mc_free(range);
    return NULL;
}

void mc_cuda_range_free(mc_cuda_range *range)
{
    if (!range) return;
    if (range->mapped) range->cu.cuMemUnmap(range->base, range->mapped);
    for (piece *p = range->pieces, *next; p; p = next) {
        next = p->next;
        range->cu.cuMemRelease(p->handle);
        mc_free(p);
    }
    range->cu.cuMemAddressFree(range->base, range->reserved);
    mc_free(range);
}

bool mc_cuda_range_has(const mc_cuda_range *range, const void *data)
{
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)data;
    return at >= range->base && at < range->base + range->reserved;
}

static bool map_piece(mc_cuda_range *range, piece *p)
{
    CUmemAccessDesc access = {.location = range->property.location,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr at = range->base + range->mapped;
    if (range->mapped + p->bytes > range->reserved) return false;
    if (range->cu.cuMemCreate(&p->handle, p->bytes, &range->property, 0)) return false;
    if (range->cu.cuMemMap(at, p->bytes, 0, p->handle, 0) == CUDA_SUCCESS) {
        if (range->cu.cuMemSetAccess(at, p->bytes, &access, 1) == CUDA_SUCCESS) return true;
        range->cu.cuMemUnmap(at, p->bytes);
    }
    range->cu.cuMemRelease(p->handle);
    return false;
}

static void *range_take(void *user, size_t bytes)
{
    mc_cuda_range *range = user;
    piece *p = mc_malloc(sizeof *p);
    if (!p) return NULL;
    *p = (piece){.next = range->pieces, .bytes = bytes};
    if (!map_piece(range, p)) {
        size_t free_bytes = 0, total = 0;
        cudaMemGetInfo(&free_bytes, &total);
        mc_cuda_fail(range->device, MC_ERR_NOMEM,
                     "the GPU has %zu of %zu MiB left, %zu more are needed", free_bytes >> 20,
                     total >> 20, bytes >> 20);
        mc_free(p);
        return NULL;
    }
    range->pieces = p;
    void *data = (void *)(uintptr_t)(range->base + range->mapped);
    range->mapped += bytes;
    return data;
}

static void range_give_back(void *user, void *data, size_t bytes)
{
    (void)user, (void)data, (void)bytes; /* freed with the range */
}

mc_pool_source mc_cuda_range_source(mc_cuda_range *range)
{
    return (mc_pool_source){
        .take = range_take, .give_back = range_give_back, .user = range, .contiguous = true};
}

/* ---- uploads --------------------------------------------------------------------------------- */

enum { SLOTS = 8, SLOT_BYTES = 4 << 20 };

/* Slots of pinned memory, filled in turn. A slot is reused when the copies from it are done, which
 * in training was long ago. */
struct mc_cuda_staging {
    char *memory;
    cudaEvent_t copied[SLOTS];
    bool pending[SLOTS];
    int slot;
    size_t used; /* of the slot */
};

mc_cuda_staging *mc_cuda_staging_new(mc_device *d)
{
    mc_cuda_staging *s = mc_calloc(1, sizeof *s);
    if (!s) return NULL;
    cudaError_t error = cudaMallocHost((void **)&s->memory, (size_t)SLOTS * SLOT_BYTES);
    for (int i = 0; !error && i < SLOTS; i++)
        error = cudaEventCreateWithFlags(&s->copied[i], cudaEventDisableTiming);
    if (!mc_cuda_check(d, error, "pinned memory for uploads")) return s;
    mc_cuda_staging_free(s);
    return NULL;
}

void mc_cuda_staging_free(mc_cuda_staging *s)
{
    if (!s) return;
    for (int i = 0; i < SLOTS; i++)
        if (s->copied[i]) cudaEventDestroy(s->copied[i]);
    cudaFreeHost(s->memory);
    mc_free(s);
}

/* Goes on to the next slot. */
static cudaError_t turn(mc_cuda_staging *s, cudaStream_t stream)
{
    cudaError_t error = cudaEventRecord(s->copied[s->slot], stream);
    s->pending[s->slot] = true;
    s->slot = (s->slot + 1) % SLOTS;
    s->used = 0;
    if (!error && s->pending[s->slot]) error = cudaEventSynchronize(s->copied[s->slot]);
    s->pending[s->slot] = false;
    return error;
}

cudaError_t mc_cuda_upload(mc_cuda_staging *s, cudaStream_t stream, void *device, const void *host,
                           size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        if (s->used == SLOT_BYTES) {
            cudaError_t error = turn(s, stream);
            if (error) return error;
        }
        size_t part = bytes - done, room = SLOT_BYTES - s->used;
        if (part > room) part = room;
        char *from = s->memory + (size_t)s->slot * SLOT_BYTES + s->used;
        memcpy(from, (const char *)host + done, part);
        cudaError_t error =
            cudaMemcpyAsync((char *)device + done, from, part, cudaMemcpyHostToDevice, stream);
        if (error) return error;
        s->used += (part + 63) / 64 * 64;
        done += part;
    }
    return cudaSuccess;
}
