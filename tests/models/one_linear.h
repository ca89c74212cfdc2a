/* A block with one linear of scale 0.5, "w", for tests of products. */
#ifndef TESTS_MODELS_ONE_LINEAR_H
#define TESTS_MODELS_ONE_LINEAR_H

#include "core/modelcenter.h"
#include <modelcenter/more.h>

typedef struct one_linear {
    mc_module block;
    mc_linear *linear;
} one_linear;

static void *one_linear_block(mc_module *parent, const char *name, int index, void *sizes)
{
    (void)index;
    const int64_t *size = sizes;
    one_linear *b = mc_module_add(parent, name, sizeof *b);
    if (b)
        b->linear =
            mc_linear_add(&b->block, "w", size[0], size[1], &(mc_linear_options){.scale = 0.5f});
    return b;
}

static mc_tensor *one_linear_run(mc_tape *t, void *block, mc_tensor *x, const mc_call *call)
{
    (void)call;
    return mc_linear_forward_activated(t, ((one_linear *)block)->linear, x, MC_ACTIVATION_NONE);
}

/* The list of the block, "blocks", from `in` to `out` columns. */
static inline mc_block_list *one_linear_new(mc_module *root, int64_t in, int64_t out)
{
    return mc_block_list_new(root, "blocks", 1, one_linear_block, one_linear_run,
                             &(mc_block_options){.config = (int64_t[]){in, out}});
}

#endif
