/* cuDNN: loading the library, graphs, and plans, which are built from graphs or read. */
#include "core/device/cuda/runtime/cudnn_internal.h"

#include <cuda_runtime_api.h> /* CUDART_VERSION */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "core/base/file_internal.h"
#include "core/base/hash_internal.h"
#include "core/base/library_names_internal.h"
#include "core/base/memory_internal.h"

/* ---- the library ----------------------------------------------------------------------------- */

enum { CUDART_MAJOR = CUDART_VERSION / 1000 };

static bool find_functions(mc_cudnn *c, char *why, size_t size)
{
#define FIND(result, name, parameters)                               \
    *(void **)&c->name = dlsym(c->library, #name);                   \
    if (!c->name) {                                                  \
        snprintf(why, size, "libcudnn.so.9 has no function " #name); \
        return false;                                                \
    }
    MC_CUDNN_FUNCTIONS(FIND)
#undef FIND
    return true;
}

/* After NVRTC was loaded once by its soname, cuDNN finds it under that name too, wherever it is. */
static void load_compiler(mc_cudnn *c)
{
    char name[32];
    snprintf(name, sizeof name, "libnvrtc.so.%d", CUDART_MAJOR);
    c->compiler = dlopen(name, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
}

bool mc_cudnn_load(mc_cudnn *c, char *why, size_t size)
{
    *c = (mc_cudnn){0};
    load_compiler(c);
    c->library = dlopen(MC_LIBRARY_CUDNN, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!c->library) {
        const char *text = dlerror();
        snprintf(why, size, "%s", text ? text : "libcudnn.so.9 cannot be loaded");
    } else if (find_functions(c, why, size)) {
        c->version = c->cudnnGetVersion();
        /* 9.10.0 and 9.10.1 compute attention incorrectly according to cuDNN's own frontend, and
         * earlier versions need padding masked twice. */
        if (c->version >= 91002) return true;
        snprintf(why, size, "cuDNN %zu is too old, expected 9.10.2 or later", c->version);
    }
    mc_cudnn_unload(c);
    return false;
}

void mc_cudnn_unload(mc_cudnn *c)
{
    if (c->properties) c->cudnnBackendDestroyDescriptor(c->properties);
    if (c->handle) c->cudnnDestroy(c->handle);
    if (c->library) dlclose(c->library);
    if (c->compiler) dlclose(c->compiler);
    *c = (mc_cudnn){0};
}

void mc_cudnn_explain(const mc_cudnn *c, const char *what, int status, char *text, size_t size)
{
    char more[320] = "";
    c->cudnnGetLastErrorString(more, sizeof more);
    snprintf(text, size, "%s: %s%s%s", what, c->cudnnGetErrorString(status), *more ? ": " : "",
             more);
    for (char *p = text; *p; p++)
        if (*p == '\n') *p = ' ';
}

bool mc_cudnn_describe_gpu(mc_cudnn *c, const char *json, char *why, size_t size)
{
    mc_cudnn_descriptor d = NULL;
    int status = c->cudnnBackendCreateDescriptor(MC_CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &d);
    if (!status)
        status = c->cudnnBackendSetAttribute(d, MC_CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                             MC_CUDNN_TYPE_CHAR, (int64_t)strlen(json), json);
    if (!status) status = c->cudnnBackendFinalize(d);
    c->properties = d;
    if (status) mc_cudnn_explain(c, "device properties", status, why, size);
    return !status;
}

/* ---- descriptors ----------------------------------------------------------------------------- */

static void check(mc_cudnn_graph *g, int status, const char *what)
{
    if (status && !g->error[0]) mc_cudnn_explain(g->cudnn, what, status, g->error, sizeof g->error);
}

static mc_cudnn_descriptor create(mc_cudnn_graph *g, int type)
{
    mc_cudnn_descriptor d = NULL;
    if (!g->error[0]) check(g, g->cudnn->cudnnBackendCreateDescriptor(type, &d), "descriptor");
    return d;
}

static void set_value(mc_cudnn_graph *g, mc_cudnn_descriptor d, int name, int type, int64_t count,
                      const void *value, const char *what)
{
    if (!g->error[0])
        check(g, g->cudnn->cudnnBackendSetAttribute(d, name, type, count, value), what);
}
#define SET(g, d, name, type, count, value) \
    set_value(g, d, MC_CUDNN_ATTR_##name, MC_CUDNN_TYPE_##type, count, value, #name)
#define SET_DESCRIPTOR(g, d, name, value) SET(g, d, name, BACKEND_DESCRIPTOR, 1, value)

/* Sets the attribute unless there is no tensor. */
static void set_tensor(mc_cudnn_graph *g, mc_cudnn_descriptor d, int name, mc_cudnn_ref t,
                       const char *what)
{
    if (t) set_value(g, d, name, MC_CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &t->descriptor, what);
}
#define SET_TENSOR(g, d, name, t) set_tensor(g, d, MC_CUDNN_ATTR_##name, t, #name)

static void finalize(mc_cudnn_graph *g, mc_cudnn_descriptor d, const char *what)
{
    if (!g->error[0]) check(g, g->cudnn->cudnnBackendFinalize(d), what);
}

/* ---- graphs ---------------------------------------------------------------------------------- */

void mc_cudnn_graph_init(mc_cudnn_graph *g, const mc_cudnn *cudnn)
{
    *g = (mc_cudnn_graph){.cudnn = cudnn};
}

static void destroy(const mc_cudnn *c, mc_cudnn_descriptor d)
{
    if (d) c->cudnnBackendDestroyDescriptor(d);
}

void mc_cudnn_graph_release(mc_cudnn_graph *g)
{
    for (int i = 0; i < g->operation_count; i++) {
        destroy(g->cudnn, g->operations[i]);
        destroy(g->cudnn, g->details[i]);
    }
    for (int i = 0; i < g->tensor_count; i++) destroy(g->cudnn, g->tensors[i].descriptor);
    g->operation_count = g->tensor_count = 0;
}

typedef enum tensor_kind { MEMORY, VIRTUAL, SCALAR } tensor_kind;

static mc_cudnn_ref tensor(mc_cudnn_graph *g, tensor_kind kind, int64_t id, int dtype,
                           const int64_t dim[4], const int64_t stride[4], mc_cudnn_ref ragged)
{
    if (g->error[0]) return NULL;
    if (g->tensor_count == MC_CUDNN_MOST_TENSORS) {
        snprintf(g->error, sizeof g->error, "a graph of more than %d tensors", g->tensor_count);
        return NULL;
    }
    mc_cudnn_tensor *t = &g->tensors[g->tensor_count];
    const int64_t alignment = 16;
    const bool yes = true;
    *t =
        (mc_cudnn_tensor){.id = id ? id : MC_CUDNN_FIRST_VIRTUAL + g->tensor_count, .dtype = dtype};
    memcpy(t->dim, dim, sizeof t->dim);
    memcpy(t->stride, stride, sizeof t->stride);
    g->tensor_count++;
    mc_cudnn_descriptor d = t->descriptor = create(g, MC_CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    SET(g, d, TENSOR_DATA_TYPE, DATA_TYPE, 1, &dtype);
    SET(g, d, TENSOR_DIMENSIONS, INT64, 4, t->dim);
    SET(g, d, TENSOR_STRIDES, INT64, 4, t->stride);
    SET(g, d, TENSOR_UNIQUE_ID, INT64, 1, &t->id);
    SET(g, d, TENSOR_BYTE_ALIGNMENT, INT64, 1, &alignment);
    if (kind == VIRTUAL) SET(g, d, TENSOR_IS_VIRTUAL, BOOLEAN, 1, &yes);
    if (kind == SCALAR) SET(g, d, TENSOR_IS_BY_VALUE, BOOLEAN, 1, &yes);
    SET_TENSOR(g, d, TENSOR_RAGGED_OFFSET_DESC, ragged);
    finalize(g, d, "tensor");
    return t;
}

mc_cudnn_ref mc_cudnn_memory(mc_cudnn_graph *g, int64_t id, int dtype, const int64_t dim[4],
                             const int64_t stride[4], mc_cudnn_ref ragged)
{
    return tensor(g, MEMORY, id, dtype, dim, stride, ragged);
}

mc_cudnn_ref mc_cudnn_scalar(mc_cudnn_graph *g, int64_t id, int dtype)
{
    const int64_t *one = MC_CUDNN_4(1, 1, 1, 1);
    return tensor(g, SCALAR, id, dtype, one, one, NULL);
}

mc_cudnn_ref mc_cudnn_virtual(mc_cudnn_graph *g, int dtype, const int64_t dim[4],
                              const int64_t stride[4], mc_cudnn_ref ragged)
{
    return tensor(g, VIRTUAL, 0, dtype, dim, stride, ragged);
}

mc_cudnn_ref mc_cudnn_like(mc_cudnn_graph *g, int dtype, mc_cudnn_ref other)
{
    return other ? mc_cudnn_virtual(g, dtype, other->dim, other->stride, NULL) : NULL;
}

/* Keeps an operation and what it refers to; finalizes it. */
static void add_operation(mc_cudnn_graph *g, mc_cudnn_descriptor detail,
                          mc_cudnn_descriptor operation, const char *what)
{
    finalize(g, operation, what);
    if (g->operation_count == MC_CUDNN_MOST_OPERATIONS) {
        if (!g->error[0]) snprintf(g->error, sizeof g->error, "a graph of too many operations");
        destroy(g->cudnn, operation);
        destroy(g->cudnn, detail);
        return;
    }
    g->details[g->operation_count] = detail;
    g->operations[g->operation_count++] = operation;
}

static void add_pointwise(mc_cudnn_graph *g, mc_cudnn_descriptor detail, mc_cudnn_ref x,
                          mc_cudnn_ref b, mc_cudnn_ref t, mc_cudnn_ref y)
{
    const float one = 1.0f;
    finalize(g, detail, "pointwise");
    mc_cudnn_descriptor d = create(g, MC_CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    SET_DESCRIPTOR(g, d, OPERATION_POINTWISE_PW_DESCRIPTOR, &detail);
    SET_TENSOR(g, d, OPERATION_POINTWISE_XDESC, x);
    SET_TENSOR(g, d, OPERATION_POINTWISE_YDESC, y);
    SET_TENSOR(g, d, OPERATION_POINTWISE_BDESC, b);
    SET_TENSOR(g, d, OPERATION_POINTWISE_TDESC, t);
    SET(g, d, OPERATION_POINTWISE_ALPHA1, FLOAT, 1, &one);
    SET(g, d, OPERATION_POINTWISE_ALPHA2, FLOAT, 1, &one);
    add_operation(g, detail, d, "pointwise operation");
}

void mc_cudnn_pointwise(mc_cudnn_graph *g, int mode, int precision, mc_cudnn_ref x, mc_cudnn_ref b,
                        mc_cudnn_ref t, mc_cudnn_ref y)
{
    mc_cudnn_descriptor d = create(g, MC_CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    SET(g, d, POINTWISE_MODE, POINTWISE_MODE, 1, &mode);
    SET(g, d, POINTWISE_MATH_PREC, DATA_TYPE, 1, &precision);
    add_pointwise(g, d, x, b, t, y);
}

void mc_cudnn_index(mc_cudnn_graph *g, int precision, int64_t axis, mc_cudnn_ref x, mc_cudnn_ref y)
{
    const int mode = MC_CUDNN_POINTWISE_GEN_INDEX;
    mc_cudnn_descriptor d = create(g, MC_CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    SET(g, d, POINTWISE_MODE, POINTWISE_MODE, 1, &mode);
    SET(g, d, POINTWISE_MATH_PREC, DATA_TYPE, 1, &precision);
    SET(g, d, POINTWISE_AXIS, INT64, 1, &axis);
    add_pointwise(g, d, x, NULL, NULL, y);
}

void mc_cudnn_matmul(mc_cudnn_graph *g, mc_cudnn_ref a, mc_cudnn_ref b, mc_cudnn_ref c,
                     mc_cudnn_ref m, mc_cudnn_ref n, mc_cudnn_ref k)
{
    const int precision = MC_CUDNN_DATA_FLOAT;
    mc_cudnn_descriptor detail = create(g, MC_CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    SET(g, detail, MATMUL_COMP_TYPE, DATA_TYPE, 1, &precision);
    finalize(g, detail, "matmul");
    mc_cudnn_descriptor d = create(g, MC_CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    SET_TENSOR(g, d, OPERATION_MATMUL_ADESC, a);
    SET_TENSOR(g, d, OPERATION_MATMUL_BDESC, b);
    SET_TENSOR(g, d, OPERATION_MATMUL_CDESC, c);
    SET_DESCRIPTOR(g, d, OPERATION_MATMUL_DESC, &detail);
    SET_TENSOR(g, d, OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, m);
    SET_TENSOR(g, d, OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, n);
    SET_TENSOR(g, d, OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, k);
    add_operation(g, detail, d, "matmul operation");
}

void mc_cudnn_reduce(mc_cudnn_graph *g, int mode, mc_cudnn_ref x, mc_cudnn_ref y)
{
    const int precision = MC_CUDNN_DATA_FLOAT;
    mc_cudnn_descriptor detail = create(g, MC_CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    SET(g, detail, REDUCTION_COMP_TYPE, DATA_TYPE, 1, &precision);
    set_value(g, detail, MC_CUDNN_ATTR_REDUCTION_OPERATOR, MC_CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1,
              &mode, "REDUCTION_OPERATOR");
    finalize(g, detail, "reduction");
    mc_cudnn_descriptor d = create(g, MC_CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    SET_DESCRIPTOR(g, d, OPERATION_REDUCTION_DESC, &detail);
    SET_TENSOR(g, d, OPERATION_REDUCTION_XDESC, x);
    SET_TENSOR(g, d, OPERATION_REDUCTION_YDESC, y);
    add_operation(g, detail, d, "reduction operation");
}

void mc_cudnn_reshape(mc_cudnn_graph *g, mc_cudnn_ref x, mc_cudnn_ref y)
{
    mc_cudnn_descriptor d = create(g, MC_CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    SET_TENSOR(g, d, OPERATION_RESHAPE_XDESC, x);
    SET_TENSOR(g, d, OPERATION_RESHAPE_YDESC, y);
    add_operation(g, NULL, d, "reshape operation");
}

void mc_cudnn_bernoulli(mc_cudnn_graph *g, mc_cudnn_ref seed, mc_cudnn_ref offset, double keep,
                        mc_cudnn_ref y)
{
    const int distribution = MC_CUDNN_RNG_DISTRIBUTION_BERNOULLI;
    mc_cudnn_descriptor detail = create(g, MC_CUDNN_BACKEND_RNG_DESCRIPTOR);
    SET(g, detail, RNG_DISTRIBUTION, RNG_DISTRIBUTION, 1, &distribution);
    SET(g, detail, RNG_BERNOULLI_DIST_PROBABILITY, DOUBLE, 1, &keep);
    finalize(g, detail, "rng");
    mc_cudnn_descriptor d = create(g, MC_CUDNN_BACKEND_OPERATION_RNG_DESCRIPTOR);
    SET_TENSOR(g, d, OPERATION_RNG_YDESC, y);
    SET_DESCRIPTOR(g, d, OPERATION_RNG_DESC, &detail);
    SET_TENSOR(g, d, OPERATION_RNG_SEED, seed);
    SET_TENSOR(g, d, OPERATION_RNG_OFFSET_DESC, offset);
    add_operation(g, detail, d, "rng operation");
}

/* ---- plans ----------------------------------------------------------------------------------- */

enum { MOST_CONFIGURATIONS = 16 };

typedef struct heuristic {
    mc_cudnn_descriptor graph, results;
    mc_cudnn_descriptor configurations[MOST_CONFIGURATIONS];
    int64_t created, got; /* configurations; there may be fewer than announced */
} heuristic;

static void heuristic_release(heuristic *h, const mc_cudnn *c)
{
    for (int i = 0; i < h->created; i++) destroy(c, h->configurations[i]);
    destroy(c, h->results);
    destroy(c, h->graph);
}

static void heuristic_init(heuristic *h, mc_cudnn_graph *g)
{
    const mc_cudnn *c = g->cudnn;
    const int mode = MC_CUDNN_HEUR_MODE_A;
    *h = (heuristic){.graph = create(g, MC_CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)};
    SET(g, h->graph, OPERATIONGRAPH_OPS, BACKEND_DESCRIPTOR, g->operation_count, g->operations);
    if (c->handle) SET(g, h->graph, OPERATIONGRAPH_HANDLE, HANDLE, 1, &c->handle);
    finalize(g, h->graph, "operation graph");
    h->results = create(g, MC_CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    SET_DESCRIPTOR(g, h->results, ENGINEHEUR_OPERATION_GRAPH, &h->graph);
    SET(g, h->results, ENGINEHEUR_MODE, HEUR_MODE, 1, &mode);
    if (c->properties) SET_DESCRIPTOR(g, h->results, ENGINEHEUR_DEVICEPROP, &c->properties);
    finalize(g, h->results, "heuristic");
    int64_t count = 0;
    if (!g->error[0])
        check(g,
              c->cudnnBackendGetAttribute(h->results, MC_CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                          MC_CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, NULL),
              "number of engines");
    if (count > MOST_CONFIGURATIONS) count = MOST_CONFIGURATIONS;
    for (; h->created < count; h->created++)
        h->configurations[h->created] = create(g, MC_CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (count && !g->error[0])
        check(g,
              c->cudnnBackendGetAttribute(h->results, MC_CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                          MC_CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &h->got,
                                          h->configurations),
              "engines");
}

/* A plan of one engine; NULL, with the graph's error set, if it refuses. */
static mc_cudnn_descriptor plan_of(mc_cudnn_graph *g, mc_cudnn_descriptor configuration)
{
    const mc_cudnn *c = g->cudnn;
    mc_cudnn_descriptor d = create(g, MC_CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    if (c->handle) SET(g, d, EXECUTION_PLAN_HANDLE, HANDLE, 1, &c->handle);
    SET_DESCRIPTOR(g, d, EXECUTION_PLAN_ENGINE_CONFIG, &configuration);
    if (c->properties) SET_DESCRIPTOR(g, d, EXECUTION_PLAN_DEVICEPROP, &c->properties);
    finalize(g, d, "plan");
    if (!g->error[0]) return d;
    destroy(c, d);
    return NULL;
}

mc_cudnn_descriptor mc_cudnn_plan_new(mc_cudnn_graph *g)
{
    heuristic h;
    heuristic_init(&h, g);
    if (!g->error[0] && h.got == 0)
        snprintf(g->error, sizeof g->error, "cuDNN %zu has no engine for it%s", g->cudnn->version,
                 g->cudnn->compiler ? "" : " (the library NVRTC was not found)");
    if (g->error[0]) h.got = 0;
    mc_cudnn_descriptor plan = NULL;
    for (int i = 0; i < h.got && !plan; i++) {
        if (i) g->error[0] = '\0'; /* of the previous engine */
        plan = plan_of(g, h.configurations[i]);
    }
    heuristic_release(&h, g->cudnn);
    return plan;
}

/* The number of a configuration's engine; -1: unknown. */
static int64_t engine_of(const mc_cudnn *c, mc_cudnn_descriptor configuration)
{
    int64_t number = -1, got = 0;
    mc_cudnn_descriptor engine = NULL;
    bool good = !c->cudnnBackendCreateDescriptor(MC_CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine) &&
                !c->cudnnBackendGetAttribute(configuration, MC_CUDNN_ATTR_ENGINECFG_ENGINE,
                                             MC_CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &got, &engine) &&
                !c->cudnnBackendGetAttribute(engine, MC_CUDNN_ATTR_ENGINE_GLOBAL_INDEX,
                                             MC_CUDNN_TYPE_INT64, 1, &got, &number);
    destroy(c, engine);
    return good ? number : -1;
}

int mc_cudnn_other_plans(mc_cudnn_graph *g, int most, mc_cudnn_descriptor *plans)
{
    heuristic h;
    heuristic_init(&h, g);
    int count = 0;
    int64_t first = !g->error[0] && h.got > 1 ? engine_of(g->cudnn, h.configurations[0]) : -1;
    for (int i = 1; i < h.got && first >= 0 && count < most; i++) {
        if (engine_of(g->cudnn, h.configurations[i]) != first) continue;
        g->error[0] = '\0'; /* of the previous one */
        plans[count] = plan_of(g, h.configurations[i]);
        if (plans[count]) count++;
    }
    heuristic_release(&h, g->cudnn);
    return count;
}

void mc_cudnn_plan_free(const mc_cudnn *c, mc_cudnn_descriptor plan) { destroy(c, plan); }

int64_t mc_cudnn_plan_workspace(const mc_cudnn *c, mc_cudnn_descriptor plan)
{
    int64_t bytes = 0, count = 0;
    c->cudnnBackendGetAttribute(plan, MC_CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                MC_CUDNN_TYPE_INT64, 1, &count, &bytes);
    return bytes;
}

/* Creates a variant pack for each run: that takes a microsecond, and addresses change. */
int mc_cudnn_plan_run(const mc_cudnn *c, mc_cudnn_descriptor plan, int count, const int64_t *ids,
                      void *const *pointers, void *workspace)
{
    mc_cudnn_descriptor d = NULL;
    int status = c->cudnnBackendCreateDescriptor(MC_CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &d);
    if (!status)
        status = c->cudnnBackendSetAttribute(d, MC_CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS,
                                             MC_CUDNN_TYPE_INT64, count, ids);
    if (!status)
        status = c->cudnnBackendSetAttribute(d, MC_CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                                             MC_CUDNN_TYPE_VOID_PTR, count, pointers);
    if (!status)
        status = c->cudnnBackendSetAttribute(d, MC_CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
                                             MC_CUDNN_TYPE_VOID_PTR, 1, &workspace);
    if (!status) status = c->cudnnBackendFinalize(d);
    if (!status) status = c->cudnnBackendExecute(c->handle, plan, d);
    destroy(c, d);
    return status;
}

/* ---- plans in files: a title, a checksum, and the JSON with the kernel in it ----------------- */

enum { LARGEST_PLAN = 64 << 20 };

static mc_cudnn_descriptor plan_from_json(const mc_cudnn *c, const char *json, size_t size)
{
    mc_cudnn_graph g;
    mc_cudnn_graph_init(&g, c);
    mc_cudnn_descriptor d = create(&g, MC_CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    if (c->handle) SET(&g, d, EXECUTION_PLAN_HANDLE, HANDLE, 1, &c->handle);
    SET(&g, d, EXECUTION_PLAN_JSON_REPRESENTATION, CHAR, (int64_t)size, json);
    if (c->properties) SET_DESCRIPTOR(&g, d, EXECUTION_PLAN_DEVICEPROP, &c->properties);
    finalize(&g, d, "plan");
    if (!g.error[0]) return d;
    destroy(c, d);
    return NULL;
}

mc_cudnn_descriptor mc_cudnn_plan_load(const mc_cudnn *c, const char *path, const char *title)
{
    mc_error err = {0};
    size_t size = 0, title_size = strlen(title);
    char *text = mc_path_is_file(path) ? mc_file_read(&err, path, LARGEST_PLAN, &size) : NULL;
    mc_error_clear(&err);
    if (!text) return NULL;
    mc_cudnn_descriptor plan = NULL;
    const size_t sum_size = 17; /* sixteen digits and a newline */
    if (size > title_size + 1 + sum_size && !memcmp(text, title, title_size) &&
        text[title_size] == '\n') {
        const char *json = text + title_size + 1 + sum_size;
        size_t json_size = size - (title_size + 1 + sum_size);
        char expected[24];
        snprintf(expected, sizeof expected, "%016llx\n",
                 (unsigned long long)mc_hash(MC_HASH_START, json, json_size));
        if (!memcmp(json - sum_size, expected, sum_size)) plan = plan_from_json(c, json, json_size);
    }
    mc_free(text);
    return plan;
}

/* The JSON of a plan; mc_free it. NULL if cuDNN has none. */
static char *plan_json(const mc_cudnn *c, mc_cudnn_descriptor plan, size_t *size)
{
    int64_t count = 0, got = 0;
    const int name = MC_CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION;
    if (c->cudnnBackendGetAttribute(plan, name, MC_CUDNN_TYPE_CHAR, 0, &count, NULL) ||
        count <= 0 || count > LARGEST_PLAN)
        return NULL;
    char *json = mc_malloc((size_t)count + 1);
    if (!json) return NULL;
    if (c->cudnnBackendGetAttribute(plan, name, MC_CUDNN_TYPE_CHAR, count, &got, json) ||
        got <= 0 || got > count) {
        mc_free(json);
        return NULL;
    }
    *size = (size_t)got;
    return json;
}

void mc_cudnn_plan_store(const mc_cudnn *c, mc_cudnn_descriptor plan, const char *path,
                         const char *title)
{
    size_t size = 0;
    char *json = plan_json(c, plan, &size), sum[24];
    if (!json) return;
    mc_error err = {0};
    mc_file_writer writer;
    snprintf(sum, sizeof sum, "\n%016llx\n",
             (unsigned long long)mc_hash(MC_HASH_START, json, size));
    if (!mc_file_writer_init(&err, &writer, path)) {
        mc_file_write(&writer, title, strlen(title));
        mc_file_write(&writer, sum, strlen(sum));
        mc_file_write(&writer, json, size);
        mc_file_commit(&writer);
    }
    mc_file_writer_release(&writer);
    mc_error_clear(&err);
    mc_free(json);
}
