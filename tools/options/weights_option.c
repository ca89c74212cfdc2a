#include "tools/options/weights_option.h"

const char *const weights_names[] = {"float", "int8", "fp8", NULL};

const char *const run_dtype_names[] = {"auto", "f32", "f16", "bf16", NULL};

void saved_dtype_apply(mc_load_options *load, int dtype)
{
    static const mc_dtype dtypes[] = {MC_DTYPE_DEFAULT, MC_F32, MC_F16, MC_BF16};
    load->dtype = dtypes[dtype];
    load->saved_dtype = !load->dtype;
}

void weights_apply(mc_model *model, int weights)
{
    if (model && weights != MC_WEIGHTS_FLOAT) mc_model_quantize(model, (mc_weight_format)weights);
}
