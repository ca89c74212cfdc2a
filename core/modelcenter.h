/* modelcenter.c: training and fine-tuning of big language models in C.
 *
 * This header includes the promised interface, which changes only as docs/api.md says. What may
 * change in any release is in <modelcenter/more.h>. Each part is documented in its own header:
 *
 *   core/base/context.h        contexts, errors, options
 *   core/tensor/tensor.h       tensors, packed lengths
 *   core/autograd/tape.h       the tape: recording, backward; step.h: a step that a GPU records
 *   core/ops/ops.h             operations and losses; general.h and losses.h: building blocks of
 *                              custom heads and losses; ranks.h: results of all ranks
 *   core/nn/module.h           modules and parameters; layers.h, block_list.h; recipe.h: training
 *                              in 8 bits
 *   core/optim/                optimizers, schedules, OptimManager
 *   core/checkpoint/           a module in a file, the state of a training, options of loading
 *   tokenizers/tokenizer.h     text to ids and back
 *   datasets/                  datasets, token files, the data loaders, accuracy
 *   models/model.h             a model of any family; a header for each family; adapters/, texts/,
 *                              generate/
 *
 * Compile and link a program with
 *
 *     cc program.c -o program $(pkg-config --cflags --libs modelcenter)
 *
 * To train: a context, a tokenizer and a model (models/model.h), an optimizer for the model's
 * module (core/optim/optimizer.h), an OptimManager, and a loop as at the top of
 * core/optim/optim_manager.h. To generate: models/generate/generate.h. examples/ has whole
 * programs.
 *
 * A program that handles signals must run its handlers on an alternate stack (sigaltstack,
 * SA_ONSTACK), because oneDNN's matrix products on the CPU move the stack pointer into the heap.
 */
#ifndef MODELCENTER_H
#define MODELCENTER_H

#include "core/autograd/step.h"
#include "core/autograd/tape.h"
#include "core/base/context.h"
#include "core/base/fault.h"
#include "core/base/version.h"
#include "core/checkpoint/module_file.h"
#include "core/checkpoint/optim_state.h"
#include "core/checkpoint/pretrained.h"
#include "core/checkpoint/training_state.h"
#include "core/nn/block_list.h"
#include "core/nn/call.h"
#include "core/nn/layers.h"
#include "core/nn/module.h"
#include "core/nn/recipe.h"
#include "core/ops/general.h"
#include "core/ops/losses.h"
#include "core/ops/ops.h"
#include "core/ops/ranks.h"
#include "core/ops/rope.h"
#include "core/optim/lr_scheduler.h"
#include "core/optim/optim_manager.h"
#include "core/optim/optimizer.h"
#include "core/tensor/tensor.h"
#include "datasets/dataset.h"
#include "datasets/image/image.h"
#include "datasets/lm.h"
#include "datasets/loader.h"
#include "datasets/metrics.h"
#include "models/adapters/adapter.h"
#include "models/bert/bert.h"
#include "models/cpm/cpm.h"
#include "models/distilbert/distilbert.h"
#include "models/electra/electra.h"
#include "models/generate/generate.h"
#include "models/generate/prompt.h"
#include "models/generate/stop.h"
#include "models/glm/glm.h"
#include "models/gpt2/gpt2.h"
#include "models/gptj/gptj.h"
#include "models/llama/llama.h"
#include "models/longformer/longformer.h"
#include "models/model.h"
#include "models/modernbert/modernbert.h"
#include "models/mpnet/mpnet.h"
#include "models/opt/opt.h"
#include "models/quantize.h"
#include "models/roberta/roberta.h"
#include "models/t5/t5.h"
#include "models/vit/vit.h"
#include "models/texts/classify_images.h"
#include "models/texts/classify_texts.h"
#include "models/texts/embed.h"
#include "tokenizers/tokenizer.h"

#endif
