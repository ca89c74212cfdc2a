/* Large inputs: rows that are many, rows that are long, odd numbers of both. References in double
 * would take minutes, so another context computes them from the same inputs in f32. */
#ifndef MC_TESTS_OP_HUGE_H
#define MC_TESTS_OP_HUGE_H

#include "tests/ops/op_rows.h"

typedef struct huge_case {
    const char *row;
    int64_t n[5];
    bool no_f16; /* not in f16 */
} huge_case;

/* More rows than 65,535, the most blocks that CUDA has in all directions but one, and sizes that no
 * vector width divides. Without a loss scale the gradients of thousands of rows of logits are
 * smaller than f16's normal numbers. */
static const huge_case huge_cases[] = {
    {"linear", {70000, 129, 17}},
    {"linear bias", {3, 70001, 17}},
    {"linear bias of tape inputs", {70000, 129, 17}},
    {"linear bias relu", {17, 33, 70001}},
    {"linear gelu", {70000, 129, 17}},
    {"linear bias gelu", {70000, 1031, 17}},
    {"linear bias gelu_new", {70000, 17, 129}},
    {"linear bias tanh", {70000, 17, 129}},
    {"norm", {1000003, 3}},
    {"norm of tape inputs", {70000, 129}},
    {"residual norm", {3, 1000003}},
    {"residual norm dropout", {70000, 1031}},
    {"stream norm of a sum, dropout", {70000, 129}},
    {"residual sum dropout", {70000, 129}},
    {"dropout", {1, 1000003}},
    {"dropout most", {70000, 129}},
    {"cast to f32", {1, 1000003}},
    {"cast to f16", {70000, 129}},
    {"cast to bf16", {1000003, 1}},
    {"scale", {1, 1000003}},
    {"gelu", {70000, 1031}},
    {"gelu_new", {1, 1000003}},
    {"relu", {1000003, 3}},
    {"tanh", {1, 1000003}},
    {"add to itself", {1, 1000003}},
    {"mul by itself", {70000, 129}},
    {"add", {EQUAL, 35000, 129}},
    {"add of a parameter", {ROW, 35000, 129}},
    {"add", {SCALAR, 1009, 1013}},
    {"mul", {ROW_FIRST, 500001, 3}},
    {"mul by a parameter", {MATRIX, 1009, 1013}},
    {"mul by a parameter", {ROW, 3, 1000003}},
    {"embed", {70000, 129, 1031}},
    {"embed i64 of a tape input", {70000, 33, 70001}},
    {"embed two tables", {1000003, 3, 70001}},
    {"embed three tables", {17, 70001, 5}},
    {"gather rows", {70000, 129, 70001}},
    {"first tokens", {MANY, 64, 129}},
    {"unpack", {MANY, 64, 129}},
    {"argmax", {70000, 129}},
    {"argmax", {3, 1000003}},
    {"attention", {MANY, 64, 3, 17}},
    {"attention", {9, 64, 2, 64}},
    {"attention causal", {9, 1, 2, 64}},
    {"attention causal", {MANY, 1, 2, 64}},
    {"attention causal masked dropout", {9, 64, 3, 33}},
    {"attention by own kernels, causal masked", {9, 64, 2, 64}},
    {"attention with a bias, a parameter", {MANY, 64, 3, 17}},
    {"cross attention", {9, 64, 2, 64}},
    {"cross attention with a bias", {MANY, 1, 2, 64}},
    {"cross entropy", {70000, 1031}},
    {"cross entropy i64 ignoring -100", {3, 1000003}},
    {"cross entropy ignoring 0, smoothed", {1000003, 3}},
    {"linear cross entropy bias ignoring", {4099, 65, 1031, 1040}, true},
    {"slice of the middle dimension", {1009, 1013, 3, 5, 1000}},
    {"concat in the last dimension", {1009, 33, 17, 40, 2}},
    {"transpose of heads and tokens", {3, 1009, 17, 33}},
    {"transpose of the outermost", {70001, 1, 3, 5}},
    {"matmul", {35000, 3, 5, 4}},
    {"matmul, b transposed", {9, 129, 257, 65}},
    {"matmul, one b", {35000, 3, 17, 9}},
    {"softmax", {70000, 129}},
    {"softmax", {3, 1000003}},
    {"log softmax", {70000, 1031}},
    {"normalize", {70000, 129}},
    {"sum over the first dimension", {70000, 33, 3}},
    {"mean over the middle dimension", {70000, 3, 33}},
    {"mean over the last dimension", {70000, 9, 129}},
    {"mean pool", {MANY, 64, 129}},
    {"mean pool", {9, 64, 65}},
    {"max pool", {9, 64, 65}},
    {"exp", {1, 1000003}},
    {"sigmoid", {1000003, 3}},
    {"sub of a parameter", {ROW, 35000, 129}},
    {"div by a parameter", {ROW, 35000, 129}},
    {"mse loss", {1000003, 3}},
    {"bce loss, weighted", {70000, 129}},
    {"cross entropy of rows", {70000, 1031}},
    {"loss from rows, counted", {70000, 129}},
};

static mc_context *reference_context;

/* How many terms of f32 a result or a gradient may be the sum of; 1 where few. */
static inline double terms_of(const op_call *c, const op_input *in)
{
    double most = c->lengths.longest;
    bool loss = c->out_dtype == MC_F32 && mc_shape_equal(c->out_shape, MC_SHAPE(2));
    bool shared = in && in->count < c->out_count;
    if (in && c->lengths.length && in->kind != PARAMETER) return most > 1 ? most : 1;
    if (!(in ? in->kind == PARAMETER || shared : loss)) return 1;
    for (int i = 0; i < 5; i++) most = fmax(most, (double)c->n[i]);
    return shared ? fmax(most, (double)c->out_count / (double)in->count) : most;
}

/* The row's tolerance, that of the reference, and what a long sum in f32 adds: n additions, each
 * rounded by at most 2^-24 of a partial sum, in random directions. */
static inline double huge_tolerance(const op_call *c, const op_input *in)
{
    double base = tolerance_of(c, in != NULL), own = c->row->tolerance ? c->row->tolerance : 1e-6;
    double terms = terms_of(c, in);
    if (base == 0) return 0;
    return base + own + (terms > 1 ? sqrt(terms) * 0x1p-24 : 0);
}

typedef struct huge_result {
    double *y, *gradient[MOST_INPUTS];
} huge_result;

static inline huge_result run_huge(op_call *c, const double *dy)
{
    huge_result r = {0};
    c->ctx->rng_offset = 77;
    mc_tape *t = mc_tape_begin(c->ctx);
    put_inputs(t, c);
    mc_tensor *y = c->row->run(t, c);
    check_context(c);
    r.y = read_tensor(c->ctx, y, c->out_count);
    if (!c->row->no_gradient) {
        mc_tensor *d = c->row->seeded ? NULL : put_values(t, c->out_dtype, c->out_shape, dy);
        mc_tape_backward(t, y, d);
        check_context(c);
        for (int k = 0; k < c->inputs; k++)
            if (has_gradient(&c->in[k])) r.gradient[k] = found_gradient(c, &c->in[k]);
    }
    mc_tape_end(t);
    check_context(c);
    return r;
}

static inline void free_huge(huge_result *r)
{
    free(r->y);
    for (int k = 0; k < MOST_INPUTS; k++) free(r->gradient[k]);
}

static inline void compare_huge(op_call *c, const double *dy, const huge_result *expected)
{
    huge_result got = run_huge(c, dy);
    compare_within(c, "y", got.y, expected->y, c->out_count, 1e-3, false, huge_tolerance(c, NULL));
    for (int k = 0; k < c->inputs && !c->row->no_gradient; k++) {
        const op_input *in = &c->in[k];
        char what[32];
        if (!has_gradient(in)) continue;
        /* sums of n random terms are of the size of sqrt(n) terms, however small they come out */
        double least =
            0.1 * sqrt(terms_of(c, in)) * (c->row->seeded ? 0 : largest_of(dy, c->out_count));
        snprintf(what, sizeof what, "gradient of input %d", k);
        compare_within(c, what, got.gradient[k], expected->gradient[k], in->count, least, true,
                       huge_tolerance(c, in));
    }
    free_huge(&got);
}

static inline double *huge_output_gradient(const op_call *c)
{
    double *dy = doubles(c->out_count);
    bool loss = c->out_dtype == MC_F32 && mc_shape_equal(c->out_shape, MC_SHAPE(2));
    if (c->row->no_gradient) return dy;
    random_values(c->out_dtype, dy, c->out_count, -1, 1, 0.1);
    if (loss) dy[1] = 0;
    return dy;
}

static inline const op_row *row_named(const char *name)
{
    for (int i = 0; i < ROW_COUNT; i++)
        if (strcmp(rows[i].name, name) == 0) return &rows[i];
    fail_msg("no row is called \"%s\"", name);
    return NULL;
}

static inline void huge_row(void **state)
{
    const huge_case *h = *state;
    const op_row *row = row_named(h->row);
    if (!context_count) skip();
    value_period = 200003;
    for (int type = 0; type < 3; type++) {
        op_call c, reference;
        if (h->no_f16 && float_types[type] == MC_F16) continue;
        random_state = 88172645463325252u;
        call_begin(&c, row, h->n, float_types[type], float_types[type]);
        random_state = 88172645463325252u;
        call_begin(&reference, row, h->n, MC_F32, float_types[type]);
        double *dy = huge_output_gradient(&c);
        reference.ctx = reference_context;
        reference.on = "the reference";
        huge_result expected = run_huge(&reference, dy);
        for (int i = 0; i < context_count; i++) {
            choose_context(&c, i);
            if (c.ctx != reference_context || type) compare_huge(&c, dy, &expected);
        }
        free_huge(&expected);
        call_end(&reference);
        call_end(&c);
        free(dy);
    }
    value_period = INT64_MAX;
}

static inline void add_huge(test_list *l, const op_arguments *a)
{
    if (a->mode && strcmp(a->mode, "huge") != 0) return;
    if (getenv("MC_CUDA_SIMULATED") && !a->mode) {
        printf("LEFT OUT: huge inputs: the GPU is simulated\n");
        return;
    }
    for (size_t i = 0; i < sizeof huge_cases / sizeof *huge_cases; i++) {
        const huge_case *h = &huge_cases[i];
        char name[80];
        if (a->op && !strstr(h->row, a->op)) continue;
        snprintf(name, sizeof name, "%s (%lld %lld %lld %lld)", h->row, (long long)h->n[0],
                 (long long)h->n[1], (long long)h->n[2], (long long)h->n[3]);
        add_test(l, "huge", name, huge_row, h);
    }
}

#endif
