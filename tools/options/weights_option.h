/* --weights and --dtype, for commands that run a model and do not train it. */
#ifndef MC_TOOLS_WEIGHTS_OPTION_H
#define MC_TOOLS_WEIGHTS_OPTION_H

#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tools/options/args.h"

/* float, int8, fp8: the index is a mc_weight_format. */
extern const char *const weights_names[];

/* The row; `pointer` is an int *, the other as args_option.given. */
#define WEIGHTS_ROW(pointer) WEIGHTS_ROW_GIVEN(pointer, NULL)
#define WEIGHTS_ROW_GIVEN(pointer, given_pointer)                                      \
    {                                                                                  \
        ARGS_CHOICE("weights", pointer, weights_names,                                 \
                    "of linear layers: of the model's dtype, or in 8 bits, "           \
                    "half the memory of bf16 and faster"),                             \
            .given = (given_pointer), .known_as = "quantize,quantization,load-in-8bit" \
    }

/* Puts the model's weights into what was asked for. Errors are on its context; NULL is allowed. */
void weights_apply(mc_model *model, int weights);

/* auto, f32, f16, bf16. */
extern const char *const run_dtype_names[];

/* The row of commands that look at a model as it was saved; `pointer` is an int *. */
#define SAVED_DTYPE_ROW(pointer)                                                         \
    {                                                                                    \
        ARGS_CHOICE("dtype", pointer, run_dtype_names,                                   \
                    "dtype of weights and activations; auto: that of the saved weights") \
    }

/* Sets `dtype` or `saved_dtype` of the load options. */
void saved_dtype_apply(mc_load_options *load, int dtype);

#endif
