/* All public headers that are not part of the promised interface: they may change in any release
 * (docs/api.md).
 *
 *   core/about/about.h         what the build has, and the machine
 *   core/base/aside.h          files that get their name only when complete
 *   core/checkpoint/model_folder.h  folders of models
 *   core/dist/comm.h           communicators: collectives between ranks, on memory
 *   core/formats/              files of tensors: tensor_file.h reads, the others write
 *   core/hub/hub.h             models by name: the cache, and downloads into it
 *   core/inspect/inspect.h     tables of statistics of parameters and activations
 *   core/nn/                   how parameters are stored, parts of transformers, memory plans
 *   core/ops/                  attention, fused operations, collectives on tensors, custom
 *                              operations (custom.h)
 *   core/predict/step_time.h   how long a training step takes, before it is run
 *   datasets/                  rows, tables, token files, objectives of pretraining, scores
 *   models/                    families by name, running batches (generate/generator.h), conversion
 *   tokenizers/                details of a vocabulary, training a tokenizer
 */
#ifndef MODELCENTER_MORE_H
#define MODELCENTER_MORE_H

#include "core/about/about.h"
#include "core/base/aside.h"
#include "core/checkpoint/model_folder.h"
#include "core/dist/comm.h"
#include "core/formats/safetensors.h"
#include "core/formats/tensor_file.h"
#include "core/formats/torch_writer.h"
#include "core/hub/hub.h"
#include "core/inspect/inspect.h"
#include "core/nn/memory_plan.h"
#include "core/nn/stored.h"
#include "core/nn/sublayer.h"
#include "core/nn/transformer.h"
#include "core/ops/attention.h"
#include "core/ops/collectives.h"
#include "core/ops/custom.h"
#include "core/ops/fused.h"
#include "core/predict/step_time.h"
#include "datasets/conversation.h"
#include "datasets/correlation.h"
#include "datasets/labels.h"
#include "datasets/objective.h"
#include "datasets/prepare.h"
#include "datasets/question_metrics.h"
#include "datasets/rows.h"
#include "datasets/scorer.h"
#include "datasets/table.h"
#include "datasets/text_metrics.h"
#include "datasets/token_files.h"
#include "models/details.h"
#include "models/files/convert.h"
#include "models/generate/generator.h"
#include "models/pretraining.h"
#include "tokenizers/details.h"
#include "tokenizers/train.h"

#endif
