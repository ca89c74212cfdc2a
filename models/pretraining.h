/* What a family is pretrained to do, and the loss of it.
 *
 *     mc_tensor *field[MC_FIELDS] = { ... tensors of the arrays of an mc_objective_batch ... };
 *     mc_tensor *loss = mc_model_pretraining_loss(t, model, field);
 *     mc_optim_manager_backward(optim, t, loss);
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_MODELS_PRETRAINING_H
#define MC_MODELS_PRETRAINING_H

#include "datasets/objective.h"
#include "models/model.h"

/* The objective of a family ("bert"); NULL for an unknown name. */
MC_API const mc_objective_style *mc_family_objective(const char *family);

/* The ids that the model's config knows itself, which its objective needs: what the decoder begins
 * with and what ends a text, where the style names no token and the tokenizer did not say. */
MC_API void mc_model_objective_tokens(const mc_model *model, mc_objective_tokens *tokens);

/* The heads that a new model is pretrained with: the language model, and what next_sentence takes
 * (a pooler and its head). */
MC_API mc_model_heads mc_objective_heads(const mc_objective_style *style);

/* The loss of a batch: `field` has the arrays of an mc_objective_batch as i32 tensors (sequences,
 * width), NULL for those that it does not have. All sequences are whole. It is the mean over all
 * targets that count, and with labels the mean of the next sentence's loss added to it (in several
 * passes or ranks weighted by the targets of each, which are as many unless whole words did not
 * fit). Reads nothing on the host, so that steps can be recorded. Errors: as of mc_model_forward
 * and mc_model_loss; labels for a model without a next sentence head. */
MC_API mc_tensor *mc_model_pretraining_loss(mc_tape *t, mc_model *model,
                                            mc_tensor *const field[MC_FIELDS]);

/* What a training step takes of one sequence. */
typedef struct mc_sequence_work {
    int64_t length;        /* tokens, of an encoder-decoder its encoder's */
    int64_t target_length; /* of the decoder; 0 for a model of one stack */
    int64_t targets;       /* rows of the language model's head; 0: one for each token that the
                              decoder, or the only stack, gives */
} mc_sequence_work;

/* FLOP of a training step of one sequence: 6 for each parameter (4 for a frozen one) and row that
 * is multiplied with it, and attention's 12 T D of a layer for each row of width D that attends to
 * T others. Of a decoder length times mc_model_flops, with all N parameters. Else tables of
 * positions and types, which are looked up, count nothing, words count for the head's rows, and an
 * encoder-decoder's stacks for the rows of each: keys and values of attention between them for the
 * encoder's. 0 for a NULL model. */
MC_API double mc_model_sequence_flops(mc_model *model, const mc_sequence_work *work);

#endif
