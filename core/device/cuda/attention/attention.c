/* Attention: cuDNN's kernels where they take the case, with a backward pass of our own on Hopper
 * for causal attention of one length; our own on tensor cores for a bias by distance, token marks
 * and packed keys of another batch; and our own in f32 arithmetic everywhere else. Forward and
 * backward choose by what both see alike, so that backward finds the log-sum-exp of its own
 * kind. */
#include "core/device/cuda/attention/attention_internal.h"

typedef enum choice { BEST, OWN, CUDNN, TENSOR } choice;

static mc_status read_path(mc_device *d, choice *path)
{
    int number;
    mc_status status = mc_cuda_choice(d, "MC_CUDA_ATTENTION",
                                      (const char *const[3]){"own", "cudnn", "tensor"}, &number);
    *path = (choice)number;
    return status;
}

/* cuDNN's ragged graphs with a bias or with other keys get plans, but have not been compared with
 * our kernels on a GPU: they are for whom asks for cuDNN by name. */
static bool tries_cudnn(choice path, const mc_attention_shape *shape)
{
    if (path != BEST) return path == CUDNN;
    if (shape->position_bias || shape->marks) return false;
    return (!shape->bias.data && !shape->key_lengths) || !mc_sdpa_is_ragged(shape);
}

/* Whether our kernels on tensor cores are to be used, which is an error where `path` wants them and
 * they do not take the case. By default they serve what cuDNN is not asked for or refuses. */
static mc_status find_tensor(mc_device *d, choice path, const mc_attention_shape *shape,
                             mc_matrix q, mc_matrix k, mc_matrix v, mc_matrix out, bool *use)
{
    *use = path == TENSOR || path == BEST;
    const char *why = *use ? mc_tensor_attention_refusal(d, shape, q, k, v, out) : NULL;
    if (why && path == TENSOR)
        return mc_cuda_fail(d, MC_ERR_UNSUPPORTED, "attention on tensor cores does not take %s",
                            why);
    *use = *use && !why;
    return MC_OK;
}

void mc_cuda_attention_prepare(mc_device *d, const mc_attention_shape *shape, mc_matrix q,
                               mc_matrix k, mc_matrix v, mc_matrix out, bool backward)
{
    choice path;
    if (shape->lengths->total && !read_path(d, &path) && tries_cudnn(path, shape))
        mc_cudnn_prepare(d, shape, q, k, v, out, path == CUDNN, backward);
    d->failure[0] = '\0'; /* the call itself reports it */
}

mc_status mc_cuda_attention(mc_device *d, const mc_attention_shape *shape, mc_matrix q, mc_matrix k,
                            mc_matrix v, mc_matrix out, float *log_sum_exp)
{
    choice path;
    mc_status status = read_path(d, &path);
    if (!status) status = mc_sdpa_zero_tails(d, shape, 1, &out);
    if (status || shape->lengths->total == 0) return status;
    if (tries_cudnn(path, shape)) {
        status = mc_cudnn_attention(d, shape, q, k, v, out, path == CUDNN, log_sum_exp);
        if (status != MC_ERR_UNSUPPORTED || path == CUDNN) return status;
        d->failure[0] = '\0'; /* why cuDNN does not take it is no failure of this call */
    }
    bool tensor;
    status = find_tensor(d, path, shape, q, k, v, out, &tensor);
    if (status) return status;
    if (tensor) return mc_tensor_attention(d, shape, q, k, v, out, log_sum_exp);
    return mc_own_attention(d, shape, q, k, v, out, log_sum_exp);
}

mc_status mc_cuda_attention_backward(mc_device *d, const mc_attention_shape *shape, mc_matrix q,
                                     mc_matrix k, mc_matrix v, mc_matrix out,
                                     const float *log_sum_exp, mc_matrix dout, mc_matrix dq,
                                     mc_matrix dk, mc_matrix dv)
{
    choice path;
    const mc_lengths *keys = mc_key_lengths(shape);
    mc_status status = read_path(d, &path);
    if (!status) status = mc_sdpa_zero_tails(d, shape, 3, (mc_matrix[]){dq, dk, dv});
    if (status || (shape->lengths->total == 0 && keys->total == 0)) return status;
    if (tries_cudnn(path, shape)) {
        status = mc_cudnn_attention_backward(d, shape, q, k, v, out, path == CUDNN, log_sum_exp,
                                             dout, dq, dk, dv);
        if (status != MC_ERR_UNSUPPORTED || path == CUDNN) return status;
        d->failure[0] = '\0'; /* why cuDNN does not take it is no failure of this call */
    }
    bool tensor;
    status = find_tensor(d, path, shape, q, k, v, out, &tensor);
    if (status) return status;
    if (tensor)
        return mc_tensor_attention_backward(d, shape, q, k, v, out, log_sum_exp, dout, dq, dk, dv);
    return mc_own_attention_backward(d, shape, q, k, v, out, log_sum_exp, dout, dq, dk, dv);
}
