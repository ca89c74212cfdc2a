/* cuBLASLt's products, as far as they are used: computed plainly in f32, with checks of what real
 * algorithms rely on. Matrices count columns first. */
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cmath>
#include <cstring>
#include <vector>
#include "core/device/fp8_internal.h"
#include "tests/cuda_sim/simulator.h"

using namespace mc_sim;

namespace
{

struct layout {
    cudaDataType type;
    int64_t rows, columns, ld;
    int32_t batch; /* matrices, `step` elements apart */
    int64_t step;
};
static_assert(sizeof(layout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "fits");

struct operation {
    cublasComputeType_t compute;
    cudaDataType scale;
    int32_t transpose_a, transpose_b, epilogue;
    int32_t bias_type, aux_type; /* -1: that of D */
    void *bias, *aux;
    int64_t aux_ld;
    const float *a_scale, *b_scale, *d_scale; /* factors of 8-bit matrices */
    int8_t fast;
    int32_t a_mode, b_mode; /* cublasLtMatmulMatrixScale_t */
};
static_assert(sizeof(operation) <= sizeof(cublasLtMatmulDescOpaque_t), "fits");

struct preference {
    uint64_t workspace;
    uint32_t alignment[4];
};
static_assert(sizeof(preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t), "fits");

/* What lies in cublasLtMatmulAlgo_t. */
struct algorithm {
    uint64_t magic, problem, workspace;
    uint32_t alignment[4];
    int32_t tile;
    uint16_t option, cluster;
};
static_assert(sizeof(algorithm) <= sizeof(cublasLtMatmulAlgo_t), "fits");
constexpr uint64_t MAGIC = 0x6d6373696d4c7431;

template <class T, class Handle> T *get(Handle handle) { return (T *)(void *)handle->data; }

int live; /* handles and descriptors */
struct at_end {
    ~at_end()
    {
        if (!live) return;
        fprintf(stderr, "CUDA simulator: %d descriptors or handles of cuBLASLt are left\n", live);
        _Exit(98);
    }
} at_end_of_program;

/* ---- what is supported ----------------------------------------------------------------------- */

struct problem {
    operation op;
    layout a, b, c, d;
    int64_t m, n, k;
};

bool is_fp8(cudaDataType type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
int32_t size_of(cudaDataType type) { return is_fp8(type) ? 1 : type == CUDA_R_32F ? 4 : 2; }
bool is_half(cudaDataType type) { return type == CUDA_R_16F || type == CUDA_R_16BF; }

bool has_gelu(int32_t epilogue)
{
    return epilogue == CUBLASLT_EPILOGUE_GELU || epilogue == CUBLASLT_EPILOGUE_GELU_BIAS ||
           epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}
bool has_relu(int32_t epilogue)
{
    return epilogue == CUBLASLT_EPILOGUE_RELU || epilogue == CUBLASLT_EPILOGUE_RELU_BIAS;
}
bool has_bias(int32_t epilogue)
{
    return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_BIAS ||
           epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS || epilogue == CUBLASLT_EPILOGUE_RELU_BIAS;
}
bool writes_aux(int32_t epilogue)
{
    return epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}
bool has_aux(int32_t epilogue)
{
    return writes_aux(epilogue) || epilogue == CUBLASLT_EPILOGUE_DGELU;
}

/* False where the descriptors contradict each other. */
bool make_problem(cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                  cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, problem *p)
{
    const layout *ld = get<layout>(d);
    p->op = *get<operation>(op);
    p->a = *get<layout>(a);
    p->b = *get<layout>(b);
    p->c = *get<layout>(c);
    p->d = *ld;
    p->m = p->op.transpose_a == CUBLAS_OP_T ? p->a.columns : p->a.rows;
    p->k = p->op.transpose_a == CUBLAS_OP_T ? p->a.rows : p->a.columns;
    p->n = p->op.transpose_b == CUBLAS_OP_T ? p->b.rows : p->b.columns;
    int64_t k = p->op.transpose_b == CUBLAS_OP_T ? p->b.columns : p->b.rows;
    if (p->a.batch != p->c.batch || p->b.batch != p->c.batch || ld->batch != p->c.batch)
        return false;
    return k == p->k && p->c.rows == p->m && p->c.columns == p->n && ld->rows == p->m &&
           ld->columns == p->n && ld->ld == p->c.ld;
}

bool by_rows(const operation &op)
{
    return op.a_mode == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
}

/* A result in 8 bits: C and a bias in bf16, a scale, bias and GELU or ReLU. */
bool is_fp8_result_supported(const problem &p)
{
    const operation &op = p.op;
    int32_t e = op.epilogue;
    if (p.d.type != CUDA_R_8F_E4M3 || p.c.type != CUDA_R_16BF || p.d.ld % 16) return false;
    if (!op.d_scale) return false;
    if (has_bias(e) && (!op.bias || op.bias_type != CUDA_R_16BF)) return false;
    return e == CUBLASLT_EPILOGUE_DEFAULT || e == CUBLASLT_EPILOGUE_BIAS || has_relu(e) ||
           e == CUBLASLT_EPILOGUE_GELU || e == CUBLASLT_EPILOGUE_GELU_BIAS;
}

/* As Hopper has it: A transposed and B not, strides and addresses of whole 16 bytes, scales too, a
 * result in bf16 or f32 with a bias alone beside the product, or one in 8 bits. Beside factors of
 * rows there is no bias, so that the way around is taken. */
bool is_fp8_supported(const problem &p, const uint32_t *alignment)
{
    const operation &op = p.op;
    bool both_e5m2 = p.a.type == CUDA_R_8F_E5M2 && p.b.type == CUDA_R_8F_E5M2;
    bool tn = op.transpose_a == CUBLAS_OP_T && op.transpose_b == CUBLAS_OP_N;
    if (op.a_mode != op.b_mode) return false;
    if (!is_fp8(p.b.type) || both_e5m2 || !tn || !op.a_scale || !op.b_scale) return false;
    if (p.a.ld % 16 || p.b.ld % 16 || alignment[0] < 16 || alignment[1] < 16) return false;
    if (p.m % 16 || p.k % 16 || p.c.ld % 8 || alignment[2] < 16 || p.c.batch > 1) return false;
    if (is_fp8(p.d.type)) return is_fp8_result_supported(p);
    if (p.c.type != p.d.type || op.d_scale) return false;
    if (p.c.type != CUDA_R_16BF && p.c.type != CUDA_R_32F) return false;
    return op.epilogue == CUBLASLT_EPILOGUE_DEFAULT ||
           (op.epilogue == CUBLASLT_EPILOGUE_BIAS && op.bias && p.c.type == CUDA_R_16BF &&
            !by_rows(op));
}

/* Half types need addresses and strides of whole 4 bytes, gelu half types. */
bool is_supported(const problem &p, const uint32_t *alignment)
{
    const operation &op = p.op;
    cudaDataType in = p.a.type, out = p.c.type;
    int32_t e = op.epilogue;
    if (op.compute != CUBLAS_COMPUTE_32F || op.scale != CUDA_R_32F) return false;
    if (is_fp8(in)) return is_fp8_supported(p, alignment);
    if (in != p.b.type || p.d.type != out || op.d_scale) return false;
    if (in != out && out != CUDA_R_32F) return false;
    if (p.m < 1 || p.n < 1 || p.k < 1) return false;
    const layout *all[] = {&p.a, &p.b, &p.c};
    for (int i = 0; i < 3; i++) {
        if (all[i]->ld < all[i]->rows) return false;
        if (alignment[i] < (uint32_t)size_of(all[i]->type)) return false;
        if (is_half(all[i]->type) && (all[i]->ld % 2 || alignment[i] < 4)) return false;
        if (all[i]->step * size_of(all[i]->type) % alignment[i]) return false;
    }
    if (p.c.batch > 1 && (e != CUBLASLT_EPILOGUE_DEFAULT || p.c.step == 0)) return false;
    if ((has_gelu(e) || has_aux(e)) && !is_half(out)) return false;
    if (has_bias(e) && (!op.bias || (op.bias_type >= 0 && op.bias_type != out))) return false;
    if (has_aux(e))
        return op.aux && op.aux_ld >= p.m && op.aux_ld % 8 == 0 && (uintptr_t)op.aux % 16 == 0 &&
               (op.aux_type < 0 || op.aux_type == out);
    return e == CUBLASLT_EPILOGUE_DEFAULT || e == CUBLASLT_EPILOGUE_BIAS || has_gelu(e);
}

uint64_t hash_of(const problem &p)
{
    const int64_t values[] = {p.m,
                              p.n,
                              p.k,
                              p.a.ld,
                              p.b.ld,
                              p.c.ld,
                              p.op.transpose_a,
                              p.op.transpose_b,
                              p.op.epilogue,
                              p.a.type,
                              p.b.type,
                              p.op.fast,
                              p.c.type,
                              p.d.type,
                              p.c.batch,
                              p.a.step,
                              p.b.step,
                              p.c.step,
                              has_aux(p.op.epilogue) ? p.op.aux_ld : 0};
    uint64_t hash = 0xcbf29ce484222325u;
    for (int64_t v : values) hash = (hash ^ (uint64_t)v) * 0x100000001b3u;
    return hash;
}

/* ---- products -------------------------------------------------------------------------------- */

float load(const void *data, cudaDataType type, int64_t at)
{
    if (type == CUDA_R_32F) return ((const float *)data)[at];
    if (type == CUDA_R_16F) return __half2float(((const __half *)data)[at]);
    if (type == CUDA_R_8F_E4M3) return mc_from_e4m3(((const uint8_t *)data)[at]);
    if (type == CUDA_R_8F_E5M2) return mc_from_e5m2(((const uint8_t *)data)[at]);
    return __bfloat162float(((const __nv_bfloat16 *)data)[at]);
}

void store(void *data, cudaDataType type, int64_t at, float value)
{
    if (type == CUDA_R_32F)
        ((float *)data)[at] = value;
    else if (type == CUDA_R_16F)
        ((__half *)data)[at] = __float2half_rn(value);
    else if (type == CUDA_R_8F_E4M3) /* infinity becomes the largest number */
        ((uint8_t *)data)[at] = mc_to_e4m3(std::isinf(value) ? copysignf(448.0f, value) : value);
    else
        ((__nv_bfloat16 *)data)[at] = __float2bfloat16_rn(value);
}

/* Columns of `rows` elements, `stride` from one to the next. */
std::vector<float> gather(const void *data, const layout &l, bool transpose, int64_t rows,
                          int64_t columns, int64_t stride)
{
    std::vector<float> all((size_t)(stride * columns));
    for (int64_t j = 0; j < columns; j++)
        for (int64_t i = 0; i < rows; i++)
            all[(size_t)(j * stride + i)] =
                load(data, l.type, transpose ? j + i * l.ld : i + j * l.ld);
    return all;
}

float gelu(float x)
{
    return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

float gelu_slope(float x)
{
    float t = tanhf(0.7978845608f * (x + 0.044715f * x * x * x));
    return 0.5f * (1.0f + t) +
           0.5f * x * (1.0f - t * t) * 0.7978845608f * (1.0f + 3 * 0.044715f * x * x);
}

/* One element, from the sum of products (and C) to what is stored. */
float finish(const problem &p, int64_t row, int64_t column, float x)
{
    int32_t e = p.op.epilogue;
    int64_t aux_at = row + column * p.op.aux_ld;
    if (has_bias(e)) x += load(p.op.bias, p.c.type, row);
    if (writes_aux(e)) store(p.op.aux, p.c.type, aux_at, x);
    if (has_gelu(e)) x = gelu(x);
    if (has_relu(e)) x = x > 0 ? x : 0;
    if (e == CUBLASLT_EPILOGUE_DGELU) x *= gelu_slope(load(p.op.aux, p.c.type, aux_at));
    return x;
}

/* A matrix of a batch. */
template <class P> P *matrix_at(P *data, const layout &l, int32_t i)
{
    using byte = std::conditional_t<std::is_const_v<P>, const char, char>;
    return (P *)((byte *)data + i * l.step * size_of(l.type));
}

/* Rows and columns of a product that are summed at once. */
constexpr int64_t LANES = 8, TOGETHER = 4;
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));

/* to[j][i] = the sum over `terms` terms of left[l][i] right[j][l], each rounded as it comes: LANES
 * rows, whose terms are `rows` apart, by TOGETHER columns, which are `k` apart. */
void sum_products(const float *left, int64_t rows, const float *right, int64_t k, int64_t terms,
                  lanes (&to)[TOGETHER])
{
    lanes sum[TOGETHER] = {};
    for (int64_t l = 0; l < terms; l++) {
        lanes from;
        memcpy(&from, left + l * rows, sizeof from);
        for (int64_t j = 0; j < TOGETHER; j++) sum[j] += from * right[j * k + l];
    }
    memcpy(to, sum, sizeof sum);
}

/* Sums of at most PART products each in f32, and these in f64: GPUs too add up in parts. */
void multiply(const problem &p, float alpha, float beta, const void *a, const void *b,
              const void *c, void *d)
{
    constexpr int64_t PART = 256;
    int64_t rows = (p.m + LANES - 1) / LANES * LANES;
    std::vector<float> left = gather(a, p.a, p.op.transpose_a == CUBLAS_OP_T, p.m, p.k, rows);
    std::vector<float> right = gather(b, p.b, p.op.transpose_b == CUBLAS_OP_T, p.k, p.n, p.k);
    right.resize(right.size() + (size_t)(TOGETHER * p.k)); /* columns that are not stored */
    if (p.op.a_scale && !by_rows(p.op)) alpha *= *p.op.a_scale * *p.op.b_scale;
    for (int64_t column = 0; column < p.n; column += TOGETHER)
        for (int64_t row = 0; row < p.m; row += LANES) {
            double sum[TOGETHER][LANES] = {};
            for (int64_t first = 0; first < p.k; first += PART) {
                lanes part[TOGETHER];
                sum_products(&left[(size_t)(first * rows + row)], rows,
                             &right[(size_t)(column * p.k + first)], p.k,
                             std::min(PART, p.k - first), part);
                for (int64_t j = 0; j < TOGETHER; j++)
                    for (int64_t i = 0; i < LANES; i++) sum[j][i] += (double)part[j][i];
            }
            for (int64_t j = 0; j < std::min(TOGETHER, p.n - column); j++)
                for (int64_t i = 0; i < std::min(LANES, p.m - row); i++) {
                    int64_t at = row + i + (column + j) * p.c.ld;
                    float x = alpha * (float)sum[j][i];
                    if (by_rows(p.op)) x *= p.op.a_scale[row + i] * p.op.b_scale[column + j];
                    if (beta != 0.0f) x += beta * load(c, p.c.type, at);
                    x = finish(p, row + i, column + j, x);
                    store(d, p.d.type, at, p.op.d_scale ? *p.op.d_scale * x : x);
                }
        }
}

void check_matrix(const void *data, const layout &l, const char *what)
{
    int64_t elements = (l.batch - 1) * l.step + (l.columns - 1) * l.ld + l.rows;
    check_device_memory(data, (size_t)elements * (size_t)size_of(l.type), what);
}

bool is_aligned(const void *data, uint32_t alignment) { return (uintptr_t)data % alignment == 0; }

/* Scales lie at multiples of 16 bytes; others have algorithms, which do not run. */
bool are_scales_aligned(const operation &op)
{
    return is_aligned(op.a_scale, 16) && is_aligned(op.b_scale, 16) && is_aligned(op.d_scale, 16);
}

} // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = (cublasLtHandle_t)malloc(16);
    live++;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    free(handle);
    live--;
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void) { return 120900; }

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "success";
    case CUBLAS_STATUS_INVALID_VALUE: return "an invalid value";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "not supported";
    default: return "an error of the simulator";
    }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t ld)
{
    *l = new cublasLtMatrixLayoutOpaque_t{};
    *get<layout>(*l) = {type, (int64_t)rows, (int64_t)columns, ld, 1, 0};
    live++;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l,
                                                cublasLtMatrixLayoutAttribute_t name,
                                                const void *value, size_t size)
{
    layout *own = get<layout>(l);
    bool batch = name == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
    if (!batch && name != CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)
        fail("cublasLtMatrixLayoutSetAttribute: attribute %d is not simulated", (int)name);
    if (size != (batch ? sizeof own->batch : sizeof own->step)) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(batch ? (void *)&own->batch : (void *)&own->step, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    delete l;
    live--;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *op, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    *op = new cublasLtMatmulDescOpaque_t{};
    operation *o = get<operation>(*op); /* the rest is zero */
    o->compute = compute;
    o->scale = scale;
    o->transpose_a = o->transpose_b = CUBLAS_OP_N;
    o->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    o->bias_type = o->aux_type = -1;
    live++;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t op)
{
    delete op;
    live--;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t op,
                                              cublasLtMatmulDescAttributes_t name,
                                              const void *value, size_t size)
{
    operation *o = get<operation>(op);
    struct {
        cublasLtMatmulDescAttributes_t name;
        void *at;
        size_t size;
    } all[] = {
        {CUBLASLT_MATMUL_DESC_TRANSA, &o->transpose_a, 4},
        {CUBLASLT_MATMUL_DESC_TRANSB, &o->transpose_b, 4},
        {CUBLASLT_MATMUL_DESC_EPILOGUE, &o->epilogue, 4},
        {CUBLASLT_MATMUL_DESC_BIAS_POINTER, &o->bias, 8},
        {CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &o->bias_type, 4},
        {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &o->aux, 8},
        {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &o->aux_ld, 8},
        {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, &o->aux_type, 4},
        {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &o->a_scale, 8},
        {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &o->b_scale, 8},
        {CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, &o->d_scale, 8},
        {CUBLASLT_MATMUL_DESC_FAST_ACCUM, &o->fast, 1},
        {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &o->a_mode, 4},
        {CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &o->b_mode, 4},
    };
    for (auto &a : all)
        if (a.name == name) {
            if (a.size != size) return CUBLAS_STATUS_INVALID_VALUE;
            memcpy(a.at, value, size);
            return CUBLAS_STATUS_SUCCESS;
        }
    fail("cublasLtMatmulDescSetAttribute: attribute %d is not simulated", (int)name);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p)
{
    *p = new cublasLtMatmulPreferenceOpaque_t{};
    *get<preference>(*p) = {0, {256, 256, 256, 256}};
    live++;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    delete p;
    live--;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t name,
                                                    const void *value, size_t size)
{
    preference *own = get<preference>(p);
    if (name == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) /* sums are never split here */
        return size == 4 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
    int first = (int)CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, i = (int)name - first;
    bool workspace = name == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
    if (!workspace && (i < 0 || i > 3))
        fail("cublasLtMatmulPreferenceSetAttribute: attribute %d is not simulated", (int)name);
    if (size != (workspace ? 8 : 4)) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(workspace ? (void *)&own->workspace : (void *)&own->alignment[i], value, size);
    return CUBLAS_STATUS_SUCCESS;
}

/* Two proposals: one without a workspace, and one with. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t op,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference_, int most,
                                              cublasLtMatmulHeuristicResult_t *results, int *count)
{
    const preference *wish = get<preference>(preference_);
    problem p;
    *count = 0;
    if (!make_problem(op, a, b, c, d, &p)) return CUBLAS_STATUS_INVALID_VALUE;
    if (!is_supported(p, wish->alignment)) return CUBLAS_STATUS_NOT_SUPPORTED;
    for (int i = 0; i < 2 && i < most; i++) {
        uint64_t workspace = i == 0 ? 0 : (uint64_t)1 << 16;
        if (workspace > wish->workspace) break;
        algorithm found = {MAGIC,
                           hash_of(p),
                           workspace,
                           {},
                           CUBLASLT_MATMUL_TILE_128x128,
                           1,
                           CUBLASLT_CLUSTER_SHAPE_2x1x1};
        memcpy(found.alignment, wish->alignment, sizeof found.alignment);
        memset(&results[i], 0, sizeof results[i]);
        memcpy(&results[i].algo, &found, sizeof found);
        results[i].workspaceSize = workspace;
        results[i].state = CUBLAS_STATUS_SUCCESS;
        ++*count;
    }
    return CUBLAS_STATUS_SUCCESS;
}

/* Of an algorithm's configuration: its number, its tile, its option and its cluster. */
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t name,
                                                    void *value, size_t size, size_t *written)
{
    algorithm how;
    memcpy(&how, algo, sizeof how);
    int32_t number = name == CUBLASLT_ALGO_CONFIG_ID              ? 66
                     : name == CUBLASLT_ALGO_CONFIG_TILE_ID       ? how.tile
                     : name == CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION ? how.option
                                                                  : how.cluster;
    *written = name == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID ? 2 : 4;
    if (how.magic != MAGIC || size != *written) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(value, &number, size);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t name,
                                                    const void *value, size_t size)
{
    algorithm how;
    memcpy(&how, algo, sizeof how);
    int32_t number = 0;
    if (how.magic != MAGIC || size > sizeof number) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&number, value, size);
    if (name == CUBLASLT_ALGO_CONFIG_TILE_ID)
        how.tile = number;
    else if (name == CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION)
        how.option = (uint16_t)number;
    else if (name == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID)
        how.cluster = (uint16_t)number;
    else
        fail("cublasLtMatmulAlgoConfigSetAttribute: attribute %d is not simulated", (int)name);
    memcpy(algo, &how, sizeof how);
    return CUBLAS_STATUS_SUCCESS;
}

/* Tiles of 128 x 160 are there for 16-bit operands, other ones are not. */
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t op,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *result)
{
    algorithm how;
    problem p;
    memcpy(&how, algo, sizeof how);
    if (!make_problem(op, a, b, c, d, &p)) return CUBLAS_STATUS_INVALID_VALUE;
    if (how.tile != CUBLASLT_MATMUL_TILE_128x160 || !is_half(p.a.type))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    memset(result, 0, sizeof *result);
    result->algo = *algo;
    result->workspaceSize = how.workspace;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t op, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t la, const void *b,
                              cublasLtMatrixLayout_t lb, const void *beta, const void *c,
                              cublasLtMatrixLayout_t lc, void *d, cublasLtMatrixLayout_t ld,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t bytes,
                              cudaStream_t stream)
{
    problem p;
    algorithm how;
    float alpha_value = *(const float *)alpha, beta_value = *(const float *)beta;
    if (!make_problem(op, la, lb, lc, ld, &p)) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&how, algo, sizeof how);
    if (how.magic != MAGIC || how.problem != hash_of(p) || how.workspace > bytes ||
        !is_supported(p, how.alignment) || !are_scales_aligned(p.op))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (c == d && p.c.type != p.d.type) return CUBLAS_STATUS_INVALID_VALUE; /* in place */
    if (!c && beta_value != 0.0f) return CUBLAS_STATUS_INVALID_VALUE;
    if (!is_aligned(a, how.alignment[0]) || !is_aligned(b, how.alignment[1]) ||
        !is_aligned(c, how.alignment[2]) || !is_aligned(d, how.alignment[3]))
        fail("cublasLtMatmul: operands are not aligned as was promised");
    check_matrix(a, p.a, "cublasLtMatmul's A");
    check_matrix(b, p.b, "cublasLtMatmul's B");
    check_matrix(d, p.d, "cublasLtMatmul's D");
    if (beta_value != 0.0f) check_matrix(c, p.c, "cublasLtMatmul's C");
    if (has_aux(p.op.epilogue))
        check_matrix(p.op.aux, {p.c.type, p.m, p.n, p.op.aux_ld, 1, 0}, "cublasLtMatmul's aux");
    if (has_bias(p.op.epilogue))
        check_device_memory(p.op.bias, (size_t)(p.m * size_of(p.c.type)), "cublasLtMatmul's bias");
    if (by_rows(p.op)) {
        check_device_memory(p.op.a_scale, (size_t)p.m * sizeof(float), "cublasLtMatmul's A scale");
        check_device_memory(p.op.b_scale, (size_t)p.n * sizeof(float), "cublasLtMatmul's B scale");
    }
    if (how.workspace) check_device_memory(workspace, how.workspace, "cublasLtMatmul's workspace");
    enqueue(stream, "cublasLtMatmul", [=] {
        if (how.workspace) memset(workspace, 0xff, how.workspace);
        for (int32_t i = 0; i < p.c.batch; i++)
            multiply(p, alpha_value, beta_value, matrix_at(a, p.a, i), matrix_at(b, p.b, i),
                     matrix_at(c, p.c, i), matrix_at(d, p.d, i));
    });
    return CUBLAS_STATUS_SUCCESS;
}

} // extern "C"
