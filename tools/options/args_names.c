/* Names that options and values have elsewhere: in transformers, llm.c, nanoGPT, Megatron and
 * ModelCenter. They are written with '-', as '_' reads here. */
#include "tools/options/args_internal.h"

#include <string.h>

/* Two names of one option, whichever of them a command has. */
static const struct {
    const char *name, *other;
    bool whole; /* only where it takes a whole number */
} same_options[] = {
    {"model", "pretrained", false},
    {"pretrained", "model", false},
    {"text", "prompt", false},
    {"max-encoder-length", "max-length", true},
    {"max-decoder-length", "max-target-length", true},
    {"max-encoder-length", "seq-length", true},
    {"max-decoder-length", "target-length", true},
    {"max-target-length", "target-length", true},
};

/* Names of values of a choice that mean another one. */
static const char *const same_values[][2] = {
    {"bfloat16", "bf16"}, {"float16", "f16"}, {"fp16", "f16"}, {"float32", "f32"}, {"fp32", "f32"},
};

/* A name elsewhere, and ours: the first of them that the command has is suggested. */
static const char *const elsewhere[][2] = {
    {"adam-epsilon", "eps"},
    {"adam-eps", "eps"},
    {"bf16", "dtype"},
    {"block-size", "seq-length,max-length"},
    {"checkpoint-path", "pretrained,model"},
    {"config-name", "config"},
    {"data-path", "data"},
    {"dataset", "data"},
    {"dataset-name", "data"},
    {"do-eval", "val,val-every"},
    {"epochs", "steps"},
    {"eval-batch-size", "batch-size"},
    {"eval-every", "val-every"},
    {"eval-interval", "val-every"},
    {"eval-steps", "val-every,val-batches"},
    {"evaluation-strategy", "val-every"},
    {"fp16", "dtype"},
    {"global-batch-size", "tokens-per-step,batch-size"},
    {"grad-clip", "clip"},
    {"gradient-accumulation-steps", "tokens-per-step,micro-steps"},
    {"gradient-checkpointing", "recompute"},
    {"input-bin", "data"},
    {"input-file", "data,input"},
    {"input-val-bin", "val"},
    {"label-column", "label"},
    {"label-column-name", "label"},
    {"learning-rate", "lr"},
    {"learning-rate-decay-frac", "scheduler"},
    {"load", "pretrained,model"},
    {"load-best-model-at-end", "keep"},
    {"log-dir", "tensorboard,log-jsonl"},
    {"log-gpu-every", "log-every"},
    {"log-interval", "log-every"},
    {"logging-dir", "tensorboard"},
    {"logging-steps", "log-every"},
    {"lr-decay-iters", "steps"},
    {"lr-decay-style", "scheduler"},
    {"lr-scheduler-type", "scheduler"},
    {"max-epochs", "epochs,steps"},
    {"max-grad-norm", "clip"},
    {"max-iters", "steps,max-steps"},
    {"max-length", "seq-length"},
    {"max-seq-length", "max-length,seq-length"},
    {"max-steps", "steps"},
    {"micro-batch-size", "batch-size"},
    {"min-lr", "scheduler"},
    {"model-config", "config"},
    {"model-name", "pretrained,model"},
    {"model-name-or-path", "pretrained,model"},
    {"model-path", "pretrained,model"},
    {"num-epochs", "epochs,steps"},
    {"num-iterations", "steps,max-steps"},
    {"num-return-sequences", "num-beams"},
    {"num-train-epochs", "epochs,steps"},
    {"out-dir", "output"},
    {"output-dir", "output"},
    {"overwrite-output-dir", "output"},
    {"per-device-eval-batch-size", "batch-size"},
    {"per-device-train-batch-size", "batch-size"},
    {"per-gpu-train-batch-size", "batch-size"},
    {"report-to", "tensorboard"},
    {"resume-from-checkpoint", "resume"},
    {"sample-len", "sample-length"},
    {"save", "output"},
    {"save-dir", "output"},
    {"save-interval", "save-every"},
    {"save-iters", "save-every"},
    {"save-path", "output"},
    {"save-steps", "save-every"},
    {"sequence-length", "seq-length,max-length"},
    {"target-column", "target"},
    {"task-name", "task"},
    {"text-column-name", "text"},
    {"tokenizer-name", "tokenizer"},
    {"tokenizer-path", "tokenizer"},
    {"torch-dtype", "dtype"},
    {"total-batch-size", "tokens-per-step"},
    {"train-batch-size", "batch-size"},
    {"train-data", "data"},
    {"train-file", "data"},
    {"train-iters", "steps,max-steps"},
    {"train-steps", "steps,max-steps"},
    {"val-data", "val"},
    {"val-loss-every", "val-every"},
    {"val-max-steps", "val-batches"},
    {"validation-file", "val"},
    {"vocab-file", "tokenizer"},
    {"warmup-iters", "warmup"},
    {"warmup-ratio", "warmup"},
    {"warmup-steps", "warmup"},
    {"zero-stage", "zero-level"},
};

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

/* The option whose name is these `length` bytes. */
static const args_option *option_named(const args_spec *spec, const char *name, size_t length)
{
    for (const args_option *o = spec->options; args_is_row(o); o++)
        if (args_is_named(o) && strlen(o->name) == length && memcmp(o->name, name, length) == 0)
            return o;
    return NULL;
}

const args_option *args_find_same(const args_spec *spec, const char *name)
{
    for (size_t i = 0; i < COUNT_OF(same_options); i++) {
        if (strcmp(same_options[i].name, name) != 0) continue;
        const char *other = same_options[i].other;
        const args_option *o = option_named(spec, other, strlen(other));
        if (o && (!same_options[i].whole || args_is_whole(o))) return o;
    }
    return NULL;
}

const char *args_second_name(const args_spec *spec, const args_option *o)
{
    for (size_t i = 0; args_is_named(o) && i < COUNT_OF(same_options); i++) {
        const char *name = same_options[i].name;
        bool taken = option_named(spec, name, strlen(name)) != NULL;
        if (!taken && args_find_same(spec, name) == o) return name;
    }
    return NULL;
}

const char *args_find_elsewhere(const args_spec *spec, const char *name)
{
    for (size_t i = 0; i < COUNT_OF(elsewhere); i++) {
        if (strcmp(elsewhere[i][0], name) != 0) continue;
        for (const char *p = elsewhere[i][1]; *p; p += strcspn(p, ","), p += *p == ',') {
            const args_option *o = option_named(spec, p, strcspn(p, ","));
            if (o) return o->name;
        }
    }
    return NULL;
}

const char *args_same_value(const char *value)
{
    for (size_t i = 0; i < COUNT_OF(same_values); i++)
        if (strcmp(same_values[i][0], value) == 0) return same_values[i][1];
    return NULL;
}
