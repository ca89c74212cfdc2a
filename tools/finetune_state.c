/* What a fine-tuning run leaves in its folder. */
#include "tools/finetune.h"

/* The tokenizer first: when the weights are there, the folder is whole. */
void finetune_save(finetune *f)
{
    if (!f->o.output || mc_failed(f->ctx)) return;
    run_log_line(&f->log, "saving to %s", f->o.output);
    if (mc_rank(f->ctx) == 0) mc_tokenizer_save(f->tokenizer, f->o.output);
    mc_save_options options = {.max_shard_size = f->o.max_shard_size};
    mc_model_save_as(f->model, f->o.output, &options);
}
