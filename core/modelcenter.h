/* modelcenter.c: training and fine-tuning of big language models in C.
 *
 * This header includes the whole public interface; each part is documented in its own:
 *
 *   core/base/aside.h          files that take their name once they are whole
 *   core/base/context.h        contexts, errors
 *   core/base/fault.h          mapped files that become shorter
 *   core/tensor/tensor.h       tensors, packed lengths
 *   core/autograd/tape.h       the tape: recording, backward
 *   core/autograd/step.h       a training step that a GPU records and runs again
 *   core/ops/ops.h             operations and losses; general.h and losses.h what heads and losses
 *                              of one's own are composed of, custom.h operations of one's own
 *   core/ops/ranks.h           results of all ranks, waiting for one another
 *   core/ops/collectives.h     collectives on tensors, with gradients
 *   core/nn/module.h           modules and parameters; layers.h, block_list.h
 *   core/inspect/inspect.h     tables of statistics of parameters and activations
 *   core/dist/comm.h           communicators: collectives between ranks, on memory
 *   core/optim/                optimizers, schedules, OptimManager
 *   core/checkpoint/           files of tensors (tensor_file.h reads, safetensors.h writes), a
 *                              module in a file (module_file.h), what from_pretrained functions
 *                              share
 *   core/hub/hub.h             models by name: the cache, and downloads into it
 *   core/predict/step_time.h   how long a training step takes, before it is run
 *   core/about/about.h         what the build has, and the machine
 *   tokenizers/tokenizer.h     text to ids and back
 *   tokenizers/train.h         a tokenizer of one's own
 *   datasets/                  datasets, the data loader, metrics
 *   models/                    the zoo
 *
 * A program that handles signals gives its handlers a stack of their own (sigaltstack, SA_ONSTACK):
 * oneDNN's products on the CPU move the stack pointer into the heap.
 */
#ifndef MODELCENTER_H
#define MODELCENTER_H

#include "core/about/about.h"
#include "core/autograd/step.h"
#include "core/autograd/tape.h"
#include "core/base/aside.h"
#include "core/base/context.h"
#include "core/base/fault.h"
#include "core/base/version.h"
#include "core/checkpoint/model_folder.h"
#include "core/checkpoint/module_file.h"
#include "core/checkpoint/optim_state.h"
#include "core/checkpoint/pretrained.h"
#include "core/formats/safetensors.h"
#include "core/formats/tensor_file.h"
#include "core/formats/torch_writer.h"
#include "core/checkpoint/training_state.h"
#include "core/dist/comm.h"
#include "core/hub/hub.h"
#include "core/nn/block_list.h"
#include "core/nn/call.h"
#include "core/inspect/inspect.h"
#include "core/nn/layers.h"
#include "core/nn/memory_plan.h"
#include "core/nn/module.h"
#include "core/nn/sublayer.h"
#include "core/ops/collectives.h"
#include "core/ops/custom.h"
#include "core/ops/general.h"
#include "core/ops/losses.h"
#include "core/ops/ops.h"
#include "core/ops/ranks.h"
#include "core/optim/lr_scheduler.h"
#include "core/optim/optim_manager.h"
#include "core/optim/optimizer.h"
#include "core/predict/step_time.h"
#include "core/tensor/tensor.h"
#include "datasets/correlation.h"
#include "datasets/dataset.h"
#include "datasets/labels.h"
#include "datasets/lm.h"
#include "datasets/loader.h"
#include "datasets/metrics.h"
#include "datasets/objective.h"
#include "datasets/prepare.h"
#include "datasets/prompt.h"
#include "datasets/question_metrics.h"
#include "datasets/scorer.h"
#include "datasets/table.h"
#include "datasets/text_metrics.h"
#include "models/bert/bert.h"
#include "models/texts/classify_texts.h"
#include "models/files/convert.h"
#include "models/cpm/cpm.h"
#include "models/texts/embed.h"
#include "models/generate/generate.h"
#include "models/generate/generator.h"
#include "models/generate/prompt.h"
#include "models/generate/stop.h"
#include "models/gpt2/gpt2.h"
#include "models/gptj/gptj.h"
#include "models/adapters/adapter.h"
#include "models/quantize.h"
#include "models/model.h"
#include "models/pretraining.h"
#include "models/roberta/roberta.h"
#include "models/t5/t5.h"
#include "tokenizers/tokenizer.h"
#include "tokenizers/train.h"

#endif
