/* A stand-in for libcuda.so.1, the GPU's driver: just what cuDNN asks of it to finish a plan on a
 * machine that has none. Nothing can be run with it. */
enum { SUCCESS = 0, INVALID_HANDLE = 34 };

#define GIVES_A_HANDLE(name)  \
    int name(void **handle);  \
    int name(void **handle)   \
    {                         \
        *handle = (void *)16; \
        return SUCCESS;       \
    }
#define FAILS(name) \
    int name(void); \
    int name(void) { return INVALID_HANDLE; }

GIVES_A_HANDLE(cuLibraryLoadData)
GIVES_A_HANDLE(cuLibraryGetKernel)

int cuLibraryUnload(void *library);
int cuLibraryUnload(void *library)
{
    (void)library;
    return SUCCESS;
}

FAILS(cuCtxGetCurrent)
FAILS(cuCtxGetLimit)
FAILS(cuCtxPopCurrent)
FAILS(cuCtxPushCurrent)
FAILS(cuDeviceGet)
FAILS(cuDeviceGetCount)
FAILS(cuDriverGetVersion)
FAILS(cuGetErrorName)
FAILS(cuGetErrorString)
FAILS(cuKernelGetAttribute)
FAILS(cuKernelSetAttribute)
FAILS(cuLaunchCooperativeKernel)
FAILS(cuLaunchKernel)
FAILS(cuLaunchKernelEx)
FAILS(cuLibraryLoadFromFile)
FAILS(cuLinkAddData)
FAILS(cuLinkComplete)
FAILS(cuLinkCreate)
FAILS(cuLinkDestroy)
FAILS(cuOccupancyMaxPotentialClusterSize)
FAILS(cuStreamGetCtx)
