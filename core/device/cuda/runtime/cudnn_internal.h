/* cuDNN's graph API without its headers: the library is loaded when it is first needed, so that one
 * build runs with and without it. A graph is built operation by operation and turned into an
 * execution plan, which is kept, also on disk. */
#ifndef MC_DEVICE_CUDA_RUNTIME_CUDNN_INTERNAL_H
#define MC_DEVICE_CUDA_RUNTIME_CUDNN_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef void *mc_cudnn_descriptor;

/* The functions used of libcudnn.so.9; its enumeration types are int here. */
#define MC_CUDNN_FUNCTIONS(X)                                                                 \
    X(size_t, cudnnGetVersion, (void))                                                        \
    X(int, cudnnCreate, (void **handle))                                                      \
    X(int, cudnnDestroy, (void *handle))                                                      \
    X(int, cudnnSetStream, (void *handle, void *stream))                                      \
    X(const char *, cudnnGetErrorString, (int status))                                        \
    X(void, cudnnGetLastErrorString, (char *text, size_t size))                               \
    X(int, cudnnBackendCreateDescriptor, (int type, mc_cudnn_descriptor *descriptor))         \
    X(int, cudnnBackendDestroyDescriptor, (mc_cudnn_descriptor descriptor))                   \
    X(int, cudnnBackendFinalize, (mc_cudnn_descriptor descriptor))                            \
    X(int, cudnnBackendSetAttribute,                                                          \
      (mc_cudnn_descriptor descriptor, int name, int type, int64_t count, const void *value)) \
    X(int, cudnnBackendGetAttribute,                                                          \
      (mc_cudnn_descriptor descriptor, int name, int type, int64_t count, int64_t *got,       \
       void *value))                                                                          \
    X(int, cudnnBackendExecute, (void *handle, mc_cudnn_descriptor plan, mc_cudnn_descriptor pack))

/* The enumerators used of cudnn.h: MC_CUDNN_X is CUDNN_X there; a test checks them. */
#define MC_CUDNN_CONSTANTS(X)                           \
    X(BACKEND_POINTWISE_DESCRIPTOR, 0)                  \
    X(BACKEND_ENGINE_DESCRIPTOR, 2)                     \
    X(BACKEND_ENGINECFG_DESCRIPTOR, 3)                  \
    X(BACKEND_ENGINEHEUR_DESCRIPTOR, 4)                 \
    X(BACKEND_EXECUTION_PLAN_DESCRIPTOR, 5)             \
    X(BACKEND_OPERATION_POINTWISE_DESCRIPTOR, 13)       \
    X(BACKEND_OPERATIONGRAPH_DESCRIPTOR, 15)            \
    X(BACKEND_VARIANT_PACK_DESCRIPTOR, 16)              \
    X(BACKEND_TENSOR_DESCRIPTOR, 17)                    \
    X(BACKEND_MATMUL_DESCRIPTOR, 18)                    \
    X(BACKEND_OPERATION_MATMUL_DESCRIPTOR, 19)          \
    X(BACKEND_REDUCTION_DESCRIPTOR, 21)                 \
    X(BACKEND_OPERATION_REDUCTION_DESCRIPTOR, 22)       \
    X(BACKEND_OPERATION_RESHAPE_DESCRIPTOR, 31)         \
    X(BACKEND_RNG_DESCRIPTOR, 32)                       \
    X(BACKEND_OPERATION_RNG_DESCRIPTOR, 33)             \
    X(BACKEND_DEVICEPROP_DESCRIPTOR, 38)                \
    X(ATTR_POINTWISE_MODE, 0)                           \
    X(ATTR_POINTWISE_MATH_PREC, 1)                      \
    X(ATTR_POINTWISE_AXIS, 9)                           \
    X(ATTR_ENGINEHEUR_MODE, 200)                        \
    X(ATTR_ENGINEHEUR_OPERATION_GRAPH, 201)             \
    X(ATTR_ENGINEHEUR_RESULTS, 202)                     \
    X(ATTR_ENGINEHEUR_DEVICEPROP, 204)                  \
    X(ATTR_ENGINECFG_ENGINE, 300)                       \
    X(ATTR_EXECUTION_PLAN_HANDLE, 400)                  \
    X(ATTR_EXECUTION_PLAN_ENGINE_CONFIG, 401)           \
    X(ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, 402)          \
    X(ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, 405)     \
    X(ATTR_EXECUTION_PLAN_DEVICEPROP, 407)              \
    X(ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, 750)      \
    X(ATTR_OPERATION_POINTWISE_XDESC, 751)              \
    X(ATTR_OPERATION_POINTWISE_BDESC, 752)              \
    X(ATTR_OPERATION_POINTWISE_YDESC, 753)              \
    X(ATTR_OPERATION_POINTWISE_TDESC, 758)              \
    X(ATTR_OPERATION_POINTWISE_ALPHA1, 754)             \
    X(ATTR_OPERATION_POINTWISE_ALPHA2, 755)             \
    X(ATTR_OPERATIONGRAPH_HANDLE, 800)                  \
    X(ATTR_OPERATIONGRAPH_OPS, 801)                     \
    X(ATTR_TENSOR_BYTE_ALIGNMENT, 900)                  \
    X(ATTR_TENSOR_DATA_TYPE, 901)                       \
    X(ATTR_TENSOR_DIMENSIONS, 902)                      \
    X(ATTR_TENSOR_STRIDES, 903)                         \
    X(ATTR_TENSOR_UNIQUE_ID, 906)                       \
    X(ATTR_TENSOR_IS_VIRTUAL, 907)                      \
    X(ATTR_TENSOR_IS_BY_VALUE, 908)                     \
    X(ATTR_TENSOR_RAGGED_OFFSET_DESC, 913)              \
    X(ATTR_VARIANT_PACK_UNIQUE_IDS, 1000)               \
    X(ATTR_VARIANT_PACK_DATA_POINTERS, 1001)            \
    X(ATTR_VARIANT_PACK_WORKSPACE, 1003)                \
    X(ATTR_ENGINE_GLOBAL_INDEX, 1301)                   \
    X(ATTR_MATMUL_COMP_TYPE, 1500)                      \
    X(ATTR_OPERATION_MATMUL_ADESC, 1520)                \
    X(ATTR_OPERATION_MATMUL_BDESC, 1521)                \
    X(ATTR_OPERATION_MATMUL_CDESC, 1522)                \
    X(ATTR_OPERATION_MATMUL_DESC, 1523)                 \
    X(ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, 1525) \
    X(ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, 1526) \
    X(ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, 1527) \
    X(ATTR_REDUCTION_OPERATOR, 1600)                    \
    X(ATTR_REDUCTION_COMP_TYPE, 1601)                   \
    X(ATTR_OPERATION_REDUCTION_XDESC, 1610)             \
    X(ATTR_OPERATION_REDUCTION_YDESC, 1611)             \
    X(ATTR_OPERATION_REDUCTION_DESC, 1612)              \
    X(ATTR_OPERATION_RESHAPE_XDESC, 2200)               \
    X(ATTR_OPERATION_RESHAPE_YDESC, 2201)               \
    X(ATTR_RNG_DISTRIBUTION, 2300)                      \
    X(ATTR_RNG_BERNOULLI_DIST_PROBABILITY, 2305)        \
    X(ATTR_OPERATION_RNG_YDESC, 2310)                   \
    X(ATTR_OPERATION_RNG_SEED, 2311)                    \
    X(ATTR_OPERATION_RNG_DESC, 2312)                    \
    X(ATTR_OPERATION_RNG_OFFSET_DESC, 2313)             \
    X(ATTR_DEVICEPROP_JSON_REPRESENTATION, 2702)        \
    X(TYPE_HANDLE, 0)                                   \
    X(TYPE_DATA_TYPE, 1)                                \
    X(TYPE_BOOLEAN, 2)                                  \
    X(TYPE_INT64, 3)                                    \
    X(TYPE_FLOAT, 4)                                    \
    X(TYPE_DOUBLE, 5)                                   \
    X(TYPE_VOID_PTR, 6)                                 \
    X(TYPE_HEUR_MODE, 8)                                \
    X(TYPE_POINTWISE_MODE, 14)                          \
    X(TYPE_BACKEND_DESCRIPTOR, 15)                      \
    X(TYPE_REDUCTION_OPERATOR_TYPE, 18)                 \
    X(TYPE_CHAR, 24)                                    \
    X(TYPE_RNG_DISTRIBUTION, 29)                        \
    X(DATA_FLOAT, 0)                                    \
    X(DATA_HALF, 2)                                     \
    X(DATA_INT32, 4)                                    \
    X(DATA_BFLOAT16, 9)                                 \
    X(DATA_INT64, 10)                                   \
    X(DATA_BOOLEAN, 11)                                 \
    X(POINTWISE_ADD, 0)                                 \
    X(POINTWISE_MUL, 1)                                 \
    X(POINTWISE_DIV, 6)                                 \
    X(POINTWISE_SUB, 9)                                 \
    X(POINTWISE_EXP, 13)                                \
    X(POINTWISE_LOG, 15)                                \
    X(POINTWISE_IDENTITY, 21)                           \
    X(POINTWISE_CMP_GT, 302)                            \
    X(POINTWISE_CMP_GE, 303)                            \
    X(POINTWISE_CMP_LT, 304)                            \
    X(POINTWISE_LOGICAL_AND, 400)                       \
    X(POINTWISE_GEN_INDEX, 501)                         \
    X(POINTWISE_BINARY_SELECT, 601)                     \
    X(REDUCE_TENSOR_ADD, 0)                             \
    X(REDUCE_TENSOR_MAX, 3)                             \
    X(RNG_DISTRIBUTION_BERNOULLI, 0)                    \
    X(HEUR_MODE_A, 3)

enum {
#define MC_CUDNN_CONSTANT(name, value) MC_CUDNN_##name = value,
    MC_CUDNN_CONSTANTS(MC_CUDNN_CONSTANT)
#undef MC_CUDNN_CONSTANT
};

typedef struct mc_cudnn {
#define MC_CUDNN_MEMBER(result, name, parameters) result(*name) parameters;
    MC_CUDNN_FUNCTIONS(MC_CUDNN_MEMBER)
#undef MC_CUDNN_MEMBER
    void *library, *compiler; /* the compiler is NVRTC, which cuDNN's engines need */
    size_t version;           /* 91900 for 9.19.0 */
    void *handle;             /* of cudnnCreate; NULL: plans are for `properties`, and cannot run */
    mc_cudnn_descriptor properties; /* of a GPU that may be absent */
} mc_cudnn;

/* Loads the library without creating a handle. False, with the reason in `why` (size bytes), if it
 * is missing, too old, or a version known to be broken. */
bool mc_cudnn_load(mc_cudnn *cudnn, char *why, size_t size);
void mc_cudnn_unload(mc_cudnn *cudnn); /* destroys the handle too */
/* Describes a GPU by cuDNN's JSON text for it, to create plans without that GPU. */
bool mc_cudnn_describe_gpu(mc_cudnn *cudnn, const char *json, char *why, size_t size);
/* "what: status: cuDNN's message about the last failed call". */
void mc_cudnn_explain(const mc_cudnn *cudnn, const char *what, int status, char *text, size_t size);

/* ---- graphs ---------------------------------------------------------------------------------- */

typedef struct mc_cudnn_tensor {
    mc_cudnn_descriptor descriptor;
    int64_t id; /* identifies the tensor's memory in a run */
    int dtype;  /* MC_CUDNN_DATA_* */
    int64_t dim[4], stride[4];
} mc_cudnn_tensor;

enum { MC_CUDNN_MOST_TENSORS = 80, MC_CUDNN_MOST_OPERATIONS = 48, MC_CUDNN_FIRST_VIRTUAL = 100 };

/* `error` has the first failure; after it all calls do nothing and return NULL. */
typedef struct mc_cudnn_graph {
    const mc_cudnn *cudnn;
    mc_cudnn_tensor tensors[MC_CUDNN_MOST_TENSORS];
    int tensor_count;
    mc_cudnn_descriptor operations[MC_CUDNN_MOST_OPERATIONS]; /* in the order of the data flow */
    mc_cudnn_descriptor details[MC_CUDNN_MOST_OPERATIONS]; /* what operations refer to, or NULL */
    int operation_count;
    char error[384];
} mc_cudnn_graph;

void mc_cudnn_graph_init(mc_cudnn_graph *graph, const mc_cudnn *cudnn);
void mc_cudnn_graph_release(mc_cudnn_graph *graph);

/* Tensors live as long as the graph. */
typedef const mc_cudnn_tensor *mc_cudnn_ref;
#define MC_CUDNN_4(a, b, c, d) ((const int64_t[4]){(a), (b), (c), (d)})

/* Memory passed to each run as `id`. `ragged`: the offset of each of dim[0], or NULL. */
mc_cudnn_ref mc_cudnn_memory(mc_cudnn_graph *g, int64_t id, int dtype, const int64_t dim[4],
                             const int64_t stride[4], mc_cudnn_ref ragged);
/* A number passed to each run by its host address. */
mc_cudnn_ref mc_cudnn_scalar(mc_cudnn_graph *g, int64_t id, int dtype);
/* A value between operations, which need not be in memory. */
mc_cudnn_ref mc_cudnn_virtual(mc_cudnn_graph *g, int dtype, const int64_t dim[4],
                              const int64_t stride[4], mc_cudnn_ref ragged);
mc_cudnn_ref mc_cudnn_like(mc_cudnn_graph *g, int dtype, mc_cudnn_ref other); /* virtual */

/* y = mode(x, b), computed in `precision`; t: the condition of a select; b, t may be NULL. */
void mc_cudnn_pointwise(mc_cudnn_graph *g, int mode, int precision, mc_cudnn_ref x, mc_cudnn_ref b,
                        mc_cudnn_ref t, mc_cudnn_ref y);
/* y = the index of each element along an axis of the shape of x. */
void mc_cudnn_index(mc_cudnn_graph *g, int precision, int64_t axis, mc_cudnn_ref x, mc_cudnn_ref y);
/* c = a b; m, n, k: tensors with the used sizes of each matrix, or NULL. */
void mc_cudnn_matmul(mc_cudnn_graph *g, mc_cudnn_ref a, mc_cudnn_ref b, mc_cudnn_ref c,
                     mc_cudnn_ref m, mc_cudnn_ref n, mc_cudnn_ref k);
void mc_cudnn_reduce(mc_cudnn_graph *g, int mode, mc_cudnn_ref x, mc_cudnn_ref y);
void mc_cudnn_reshape(mc_cudnn_graph *g, mc_cudnn_ref x, mc_cudnn_ref y);
/* y = 1 with probability `keep`, else 0. */
void mc_cudnn_bernoulli(mc_cudnn_graph *g, mc_cudnn_ref seed, mc_cudnn_ref offset, double keep,
                        mc_cudnn_ref y);

/* ---- plans ----------------------------------------------------------------------------------- */

/* The first plan of cuDNN's heuristic; NULL, with the graph's error set, if there is none. */
mc_cudnn_descriptor mc_cudnn_plan_new(mc_cudnn_graph *graph);
/* Up to `most` further plans of the engine proposed first; returns their number. */
int mc_cudnn_other_plans(mc_cudnn_graph *graph, int most, mc_cudnn_descriptor *plans);
void mc_cudnn_plan_free(const mc_cudnn *cudnn, mc_cudnn_descriptor plan);         /* NULL allowed */
int64_t mc_cudnn_plan_workspace(const mc_cudnn *cudnn, mc_cudnn_descriptor plan); /* bytes */
/* A plan in a file, with a title (one line) that identifies its purpose. Loading returns NULL if
 * there is no such file, or if it is damaged or has another title. Storing may fail: the file only
 * saves time. */
mc_cudnn_descriptor mc_cudnn_plan_load(const mc_cudnn *cudnn, const char *path, const char *title);
void mc_cudnn_plan_store(const mc_cudnn *cudnn, mc_cudnn_descriptor plan, const char *path,
                         const char *title);
/* Runs a plan on the handle's stream with memory `pointers[i]` for tensor `ids[i]`. Returns cuDNN's
 * status, 0 for success; mc_cudnn_explain describes it. */
int mc_cudnn_plan_run(const mc_cudnn *cudnn, mc_cudnn_descriptor plan, int count,
                      const int64_t *ids, void *const *pointers, void *workspace);

/* ---- attention ------------------------------------------------------------------------------- */

/* The tensors of the attention graphs. */
enum {
    MC_SDPA_Q = 1,
    MC_SDPA_K,
    MC_SDPA_V,
    MC_SDPA_OUT,
    MC_SDPA_STATS, /* log sum exp */
    MC_SDPA_DOUT,
    MC_SDPA_DQ,
    MC_SDPA_DK,
    MC_SDPA_DV,
    MC_SDPA_DELTA,    /* sum of out * dout, scratch */
    MC_SDPA_DQ_SUM,   /* dq in f32, scratch */
    MC_SDPA_DK_HEADS, /* grouped heads: dk and dv of each query head, scratch */
    MC_SDPA_DV_HEADS,
    MC_SDPA_QUERY_LENGTHS,
    MC_SDPA_KEY_LENGTHS, /* may be the same memory */
    MC_SDPA_SEED,
    MC_SDPA_OFFSET,
    MC_SDPA_Q_STARTS,  /* where each sequence begins, in elements */
    MC_SDPA_KV_STARTS, /* the same for k and v, if they differ from q's */
    MC_SDPA_OUT_STARTS,
    MC_SDPA_STATS_STARTS,
    MC_SDPA_BIAS,  /* (heads, length, key_length) */
    MC_SDPA_DBIAS, /* the same */
    MC_SDPA_SCALE, /* from here: scalars */
    MC_SDPA_PADDING,
    MC_SDPA_FUTURE,
    MC_SDPA_PAST,
    MC_SDPA_LEFT,    /* of a window: f32, but i32 where `bottom_right` is ragged */
    MC_SDPA_RIGHT,   /* i32, as the two below */
    MC_SDPA_QUERIES, /* of a sequence, where `bottom_right` is not ragged */
    MC_SDPA_KEYS,
    MC_SDPA_DELTA_FACTOR,
    MC_SDPA_KEEP_FACTOR, /* 1 / (1 - p) */
    MC_SDPA_IDS
};

/* Everything that a plan depends on. With equal lengths: `batch` sequences of `length` queries and
 * `key_length` keys; stats are (batch, heads, length). Ragged: up to `batch` sequences, up to as
 * long, contiguous; stats are (tokens, heads). */
typedef struct mc_sdpa_key {
    int32_t backward, causal, ragged;
    int32_t left, right;   /* whether a window limits that side; right: 0 if causal */
    int32_t bottom_right;  /* the last query is at the last key, not at its own index */
    int32_t bias;          /* backward: with its gradient, which needs `deterministic` */
    int32_t apart;         /* ragged: k and v have lengths or a stride of their own */
    int32_t deterministic; /* backward only: no MC_SDPA_DQ_SUM, a larger workspace */
    int32_t packed_sum;    /* backward, ragged: MC_SDPA_DQ_SUM has dq's layout, not a dense one */
    int32_t dtype;         /* MC_CUDNN_DATA_HALF or MC_CUDNN_DATA_BFLOAT16 */
    int32_t batch, heads, length, key_length, head_dim;
    int32_t key_heads; /* a divisor of heads */
    float dropout;
    int64_t q_stride, kv_stride, out_stride; /* elements from token to token, gradients alike */
} mc_sdpa_key;                               /* without gaps: keys are compared as bytes */

/* Builds the graph; an error is in graph->error. */
void mc_sdpa_graph(mc_cudnn_graph *graph, const mc_sdpa_key *key);
/* The ids in the key's graph for which a run must pass memory; returns their number. */
int mc_sdpa_ids(const mc_sdpa_key *key, int64_t ids[MC_SDPA_IDS]);

#endif
