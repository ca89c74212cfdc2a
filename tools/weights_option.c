#include "tools/weights_option.h"

const char *const weights_names[] = {"float", "int8", "fp8", NULL};

void weights_apply(mc_model *model, int weights)
{
    if (model && weights != MC_WEIGHTS_FLOAT) mc_model_quantize(model, (mc_weight_format)weights);
}
