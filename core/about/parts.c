/* The optional parts of a build, and the libraries that they need. The dynamic linker finds the
 * libraries without their headers, so parts that are not built in are reported too. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include "core/about/about.h"
#include "core/base/library_names_internal.h"
#include "core/device/cpu/cpu_internal.h"
#include "tokenizers/cpm/jieba_internal.h"

/* ---- versions, in the ways that libraries say them ------------------------------------------- */

static void copy_line(char out[MC_ABOUT_TEXT], const char *text)
{
    int length = text ? (int)strcspn(text, "\n") : 0;
    snprintf(out, MC_ABOUT_TEXT, "%.*s", length, text ? text : "");
}

static void ask_text(void *function, char out[MC_ABOUT_TEXT])
{
    copy_line(out, ((const char *(*)(void))function)());
}

static void ask_first_word(void *function, char out[MC_ABOUT_TEXT])
{
    ask_text(function, out);
    out[strcspn(out, " ")] = '\0';
}

static void ask_openblas(void *function, char out[MC_ABOUT_TEXT])
{
    ask_text(function, out); /* "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ..." */
    char *words = strstr(out, " NO_");
    if (words) *words = '\0';
}

static void ask_openssl(void *function, char out[MC_ABOUT_TEXT])
{
    copy_line(out, ((const char *(*)(int))function)(0)); /* 0: OPENSSL_VERSION */
}

static void ask_onednn(void *function, char out[MC_ABOUT_TEXT])
{
    const int *version = ((const int *(*)(void))function)(); /* begins with three numbers */
    if (version) snprintf(out, MC_ABOUT_TEXT, "%d.%d.%d", version[0], version[1], version[2]);
}

static void ask_mpi(void *function, char out[MC_ABOUT_TEXT])
{
    char text[8192] = ""; /* MPI_MAX_LIBRARY_VERSION_STRING is 8192 at most, anywhere */
    int length;
    if (((int (*)(char *, int *))function)(text, &length) == 0) copy_line(out, text);
    out[strcspn(out, ",")] = '\0';
}

static void ask_nccl(void *function, char out[MC_ABOUT_TEXT])
{
    int v = 0; /* 21803 is 2.18.3 */
    if (((int (*)(int *))function)(&v) == 0)
        snprintf(out, MC_ABOUT_TEXT, "%d.%d.%d", v / 10000, v / 100 % 100, v % 100);
}

static void ask_cudnn(void *function, char out[MC_ABOUT_TEXT])
{
    size_t v = ((size_t(*)(void))function)(); /* 90100 is 9.1.0 */
    snprintf(out, MC_ABOUT_TEXT, "%zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
}

/* ---- the parts ------------------------------------------------------------------------------- */

#ifdef MC_HAVE_ONEDNN
#define BUILT_ONEDNN true
#else
#define BUILT_ONEDNN false
#endif
#ifdef MC_HAVE_CURL
#define BUILT_CURL true
#else
#define BUILT_CURL false
#endif
#ifdef MC_HAVE_ZLIB
#define BUILT_ZLIB true
#else
#define BUILT_ZLIB false
#endif
#ifdef MC_HAVE_MPI
#define BUILT_MPI true
#else
#define BUILT_MPI false
#endif
#ifdef MC_HAVE_SENTENCEPIECE
#define BUILT_SENTENCEPIECE true
#else
#define BUILT_SENTENCEPIECE false
#endif
#ifdef MC_HAVE_CUDA
#define BUILT_CUDA true
#else
#define BUILT_CUDA false
#endif
#ifdef MC_HAVE_PNG
#define BUILT_PNG true
#else
#define BUILT_PNG false
#endif
#ifdef MC_HAVE_JPEG
#define BUILT_JPEG true
#else
#define BUILT_JPEG false
#endif
#ifdef MC_HAVE_PCRE2
#define BUILT_PCRE2 true
#else
#define BUILT_PCRE2 false
#endif
#ifdef MC_HAVE_NCCL
#define BUILT_NCCL true
#else
#define BUILT_NCCL false
#endif

typedef struct part_row {
    const char *name, *use, *to_build, *to_run;
    bool built, needs_gpu, several_gpus;
    bool products; /* a library of matrix products, which needs address space (mc_cpu_sgemm) */
    const char *libraries[3]; /* names to try; the first NULL: linked into the program */
    const char *symbol;       /* that the library must have */
    const char *version;      /* the function that returns its version; NULL: none */
    void (*ask)(void *function, char out[MC_ABOUT_TEXT]);
} part_row;

static const part_row rows[] = {
    {"BLAS", "matrix products", "libopenblas-openmp-dev", "libopenblas0-openmp", true,
#ifdef MC_LIBRARY_CBLAS
     .libraries = {MC_LIBRARY_CBLAS}, .products = true,
#endif
     .symbol = "cblas_sgemm", .version = "openblas_get_config", .ask = ask_openblas},
    {"cJSON", "configs and tables", "libcjson-dev", "libcjson1", true,
     .symbol = "cJSON_ParseWithLengthOpts", .version = "cJSON_Version", .ask = ask_text},
    {"oneDNN", "faster matrix products on x86", "libdnnl-dev", "libdnnl2", BUILT_ONEDNN,
#ifdef MC_LIBRARY_ONEDNN
     .libraries = {MC_LIBRARY_ONEDNN}, .products = true,
#endif
     .symbol = "dnnl_sgemm", .version = "dnnl_version", .ask = ask_onednn},
    {"zlib", ".gz files", "zlib1g-dev", "zlib1g", BUILT_ZLIB, .symbol = "inflate",
     .version = "zlibVersion", .ask = ask_text},
    {"libpng", "PNG images", "libpng-dev", "libpng16-16", BUILT_PNG, .symbol = "png_read_image"},
    {"libjpeg-turbo", "JPEG images", "libjpeg62-turbo-dev", "libjpeg62-turbo", BUILT_JPEG,
     .symbol = "jpeg_read_scanlines"},
    {"PCRE2", "tokenizers' own patterns", "libpcre2-dev", "libpcre2-8-0", BUILT_PCRE2,
     .symbol = "pcre2_match_8"},
    {"libcurl", "downloads", "libcurl4-openssl-dev libssl-dev", "libcurl4", BUILT_CURL,
     .libraries = {MC_LIBRARY_CURL}, .symbol = "curl_multi_poll", .version = "curl_version",
     .ask = ask_first_word},
    {"libcrypto", "checksums of downloads, proofs of ranks", "", "libssl3", true,
     .libraries = {MC_LIBRARY_CRYPTO}, .symbol = "EVP_DigestInit_ex", .version = "OpenSSL_version",
     .ask = ask_openssl},
    {"MPI", "several ranks on CPUs", "libopenmpi-dev openmpi-bin", "openmpi-bin", BUILT_MPI,
     .symbol = "MPI_Init_thread", .version = "MPI_Get_library_version", .ask = ask_mpi},
    {"SentencePiece", "training tokenizers", "libsentencepiece-dev", "libsentencepiece0",
     BUILT_SENTENCEPIECE, .symbol = "_ZN13sentencepiece22SentencePieceProcessorC1Ev"},
    {"jieba", "CPM's tokenizers", "python3-jieba", "python3-jieba", false}, /* see look_for_jieba */
    {"CUDA", "NVIDIA GPUs", "cuda-toolkit", "cuda-drivers", BUILT_CUDA, .needs_gpu = true,
     .libraries = {MC_LIBRARY_CUDA_DRIVER}, .symbol = "cuDeviceGetCount"},
    {"NCCL", "several GPUs", "libnccl-dev", "libnccl2", BUILT_NCCL, .needs_gpu = true,
     .several_gpus = true, .libraries = {MC_LIBRARY_NCCL}, .symbol = "ncclGroupStart",
     .version = "ncclGetVersion", .ask = ask_nccl},
    {"cuDNN", "faster attention on GPUs", "", "cudnn", BUILT_CUDA, .needs_gpu = true,
     .libraries = {MC_LIBRARY_CUDNN}, .symbol = "cudnnCreate", .version = "cudnnGetVersion",
     .ask = ask_cudnn},
};

enum { ROW_COUNT = sizeof rows / sizeof *rows };

static void *open_library(const part_row *row)
{
    if (!row->libraries[0]) return RTLD_DEFAULT;
    void *library = NULL;
    char why[512];
    for (int i = 0; i < 3 && row->libraries[i] && !library; i++) {
        if (row->products && !mc_cpu_library_has_space(row->libraries[i], why, sizeof why)) break;
        library = dlopen(row->libraries[i], RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
    }
    return library;
}

static void look_for_library(mc_part *part, const part_row *row)
{
    void *library = open_library(row);
    if (!library && row->libraries[0]) return;
    void *symbol = dlsym(library, row->symbol);
    if (!symbol) return;
    part->found = true;
    Dl_info where;
    if (dladdr(symbol, &where) && where.dli_fname)
        snprintf(part->path, sizeof part->path, "%s", where.dli_fname);
    void *version = row->version ? dlsym(library, row->version) : NULL;
    if (version) row->ask(version, part->version);
}

/* jieba is a file that the build may create. */
static void look_for_jieba(mc_part *part)
{
    mc_error err = {0};
    mc_jieba jieba;
    part->found = part->built = mc_jieba_open(&err, &jieba) == MC_OK;
    if (part->found) mc_jieba_release(&jieba);
    mc_error_clear(&err);
}

int mc_parts(mc_part *parts, int room)
{
    for (int i = 0; parts && i < ROW_COUNT && i < room; i++) {
        const part_row *row = &rows[i];
        parts[i] = (mc_part){.name = row->name,
                             .use = row->use,
                             .to_build = row->to_build,
                             .to_run = row->to_run,
                             .built = row->built,
                             .needs_gpu = row->needs_gpu,
                             .several_gpus = row->several_gpus};
        if (!row->symbol) look_for_jieba(&parts[i]);
    }
    return ROW_COUNT;
}

void mc_part_look(mc_part *part)
{
    for (int i = 0; part && part->name && i < ROW_COUNT; i++)
        if (rows[i].symbol && strcmp(rows[i].name, part->name) == 0)
            look_for_library(part, &rows[i]);
}
