/* Products of batches of matrices. */
#include "core/ops/general.h"
#include "core/ops/ops_internal.h"

/* A matrix or a batch of matrices, as an operand of a product. */
typedef struct operand {
    mc_matrix m;
    int64_t step; /* elements from one matrix to the next; 0: one matrix for all products */
    bool transpose;
} operand;

static operand operand_of(mc_tape *t, mc_tensor *x, bool saved, bool transpose)
{
    mc_matrix m = saved ? mc_saved_matrix(t, x) : mc_matrix_of(x);
    int64_t rows = x->shape.dim[x->shape.ndim - 2];
    return (operand){m, x->shape.ndim > 2 ? rows * m.stride : 0, transpose};
}

/* Whether the matrices of a batch are contiguous and form one matrix of more rows. */
static bool is_stack(operand x, bool transposed) { return x.step && x.transpose == transposed; }

/* c [+]= op(a) op(b) for the whole batch; a single matrix c gets the sum. Products with a common
 * operand or result become one larger product if the layout of the matrices allows it. */
static void multiply(mc_tape *t, int64_t batch, int64_t m, int64_t n, int64_t k, operand a,
                     operand b, operand c, bool accumulate)
{
    static const char op[] = "matmul";
    float beta = accumulate ? 1 : 0;
    if (batch == 0 && !c.step) { /* a sum of no products is zero */
        batch = 1;
        k = 0;
    }
    if (is_stack(a, false) && !b.step && c.step) {
        m *= batch;
        batch = 1;
    } else if (is_stack(a, true) && is_stack(b, false) && !c.step) {
        k *= batch;
        batch = 1;
    }
    if (batch > 1 && c.step) {
        mc_batched_gemm_call call = {.batch = batch,
                                     .transpose_a = a.transpose,
                                     .transpose_b = b.transpose,
                                     .m = m,
                                     .n = n,
                                     .k = k,
                                     .alpha = 1,
                                     .a = a.m,
                                     .b = b.m,
                                     .add = accumulate ? c.m.data : NULL,
                                     .c = c.m,
                                     .a_step = a.step,
                                     .b_step = b.step,
                                     .c_step = c.step};
        MC_KERNEL(t, op, batched_gemm, &call);
        return;
    }
    for (int64_t i = 0; i < batch; i++) {
        size_t size = mc_dtype_size(a.m.dtype);
        mc_matrix ai = a.m, bi = b.m;
        ai.data = (char *)ai.data + (size_t)(i * a.step) * size;
        bi.data = (char *)bi.data + (size_t)(i * b.step) * size;
        float old = i ? 1 : beta;
        if (!MC_KERNEL(t, op, gemm, a.transpose, b.transpose, m, n, k, 1, ai, bi, old, c.m)) return;
    }
}

typedef struct matmul_state {
    bool transpose_a, transpose_b;
    int64_t batch, m, n, k;
} matmul_state;

static operand gradient_operand(mc_tape *t, mc_tensor *x, bool *accumulate)
{
    mc_tensor *dx = mc_gradient_target(t, x, accumulate);
    return dx ? operand_of(t, dx, false, false) : (operand){{0}, 0, false};
}

/* C = A' B' with A' = op(A), B' = op(B): dA' = dC B'^T and dB' = A'^T dC, transposed if A or B is
 * stored transposed. */
static void matmul_backward(mc_tape *t, mc_node *node)
{
    const matmul_state *s = node->state;
    mc_tensor *a = node->inputs[0], *b = node->inputs[1], *dc = node->output->gradient;
    int64_t m = s->m, n = s->n, k = s->k;
    bool ta = s->transpose_a, tb = s->transpose_b, accumulate;
    operand da = gradient_operand(t, a, &accumulate);
    int64_t batch = s->batch;
    if (da.m.data && ta)
        multiply(t, batch, k, m, n, operand_of(t, b, true, tb), operand_of(t, dc, false, true), da,
                 accumulate);
    else if (da.m.data)
        multiply(t, batch, m, k, n, operand_of(t, dc, false, false), operand_of(t, b, true, !tb),
                 da, accumulate);
    operand db = gradient_operand(t, b, &accumulate);
    if (db.m.data && tb)
        multiply(t, batch, n, k, m, operand_of(t, dc, false, true), operand_of(t, a, true, ta), db,
                 accumulate);
    else if (db.m.data)
        multiply(t, batch, k, n, m, operand_of(t, a, true, !ta), operand_of(t, dc, false, false),
                 db, accumulate);
}

static const mc_op matmul_op = {.name = "matmul", .backward = matmul_backward};

/* Checks the operands' shapes and computes the result's. */
static bool check_shapes(mc_tape *t, const mc_tensor *a, const mc_tensor *b, matmul_state *s,
                         mc_shape *out)
{
    int na = a->shape.ndim, nb = b->shape.ndim;
    const mc_shape *lead = na >= nb ? &a->shape : &b->shape;
    bool fits = na >= 2 && nb >= 2 && (na == nb || na == 2 || nb == 2);
    s->batch = 1;
    for (int i = 0; fits && i < lead->ndim - 2; i++) {
        fits = na != nb || a->shape.dim[i] == b->shape.dim[i];
        s->batch *= lead->dim[i];
    }
    if (fits) {
        s->m = a->shape.dim[na - (s->transpose_a ? 1 : 2)];
        s->k = a->shape.dim[na - (s->transpose_a ? 2 : 1)];
        s->n = b->shape.dim[nb - (s->transpose_b ? 2 : 1)];
        fits = b->shape.dim[nb - (s->transpose_b ? 1 : 2)] == s->k;
    }
    if (!fits) {
        mc_fail(mc_tape_context(t), MC_ERR_SHAPE,
                "matmul: a %s%s and b %s%s, expected (..., m, k) and (..., k, n)",
                MC_SHAPE_TEXT(a->shape), s->transpose_a ? " transposed" : "",
                MC_SHAPE_TEXT(b->shape), s->transpose_b ? " transposed" : "");
        return false;
    }
    *out = *lead;
    out->dim[lead->ndim - 2] = s->m;
    out->dim[lead->ndim - 1] = s->n;
    return true;
}

mc_tensor *mc_matmul(mc_tape *t, mc_tensor *a, mc_tensor *b, bool transpose_a, bool transpose_b)
{
    matmul_state s = {.transpose_a = transpose_a, .transpose_b = transpose_b};
    mc_shape shape;
    if (!mc_op_ready(t, "matmul", a) || !mc_op_ready(t, "matmul", b) ||
        !mc_op_float(t, "matmul", "a", a) || !mc_op_same_dtype(t, "matmul", "b", b, a->dtype) ||
        !check_shapes(t, a, b, &s, &shape))
        return NULL;
    mc_tensor *y = mc_tape_tensor(t, a->dtype, shape, NULL);
    if (!y) return NULL;
    if (shape.ndim == 2 && !transpose_a) y->lengths = a->lengths;
    multiply(t, s.batch, s.m, s.n, s.k, operand_of(t, a, false, transpose_a),
             operand_of(t, b, false, transpose_b), operand_of(t, y, false, false), false);
    mc_node *node = mc_tape_record(t, &matmul_op, y, sizeof s, 2, (mc_tensor *[]){a, b});
    if (node) {
        *(matmul_state *)node->state = s;
        mc_node_save(node, a);
        mc_node_save(node, b);
    }
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}
