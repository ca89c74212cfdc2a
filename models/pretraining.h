/* The pretraining objective of each family, and its loss.
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

/* Sets ids that the objective needs from the model's config: the decoder's start token and the
 * end-of-text token, if the style names no token and the tokenizer did not set them. */
MC_API void mc_model_objective_tokens(const mc_model *model, mc_objective_tokens *tokens);

/* The heads of a new model for pretraining: the language model's, and for next_sentence a pooler
 * and its head. */
MC_API mc_model_heads mc_objective_heads(const mc_objective_style *style);

/* The loss of a batch: `field` has the arrays of an mc_objective_batch as i32 tensors (sequences,
 * width), NULL for missing ones. All sequences have full length. The loss is the mean over all
 * targets that count, plus, with labels, the mean of the next-sentence loss (weighted over several
 * passes or ranks by their numbers of targets, which are equal unless whole words did not fit).
 * Reads nothing on the host, so steps can be recorded. Errors: those of mc_model_forward and
 * mc_model_loss; labels for a model without a next-sentence head. */
MC_API mc_tensor *mc_model_pretraining_loss(mc_tape *t, mc_model *model,
                                            mc_tensor *const field[MC_FIELDS]);

/* The size of one sequence in a training step. */
typedef struct mc_sequence_work {
    int64_t length;        /* tokens; for an encoder-decoder the encoder's */
    int64_t target_length; /* of the decoder; 0 for a model of one stack */
    int64_t targets;       /* rows of the language model's head; 0: one for each token of the
                              decoder or the only stack */
} mc_sequence_work;

/* FLOP of a training step for one sequence: 6 for each parameter (4 for a frozen one) and each row
 * multiplied by it, plus attention's 12 T D per layer for each row of width D that attends to T
 * others. For a decoder this is length times mc_model_flops, with all N parameters. For other
 * models, tables of positions and types count nothing, because they are only looked up; the word
 * table counts for the rows of the head; each stack counts for its own rows, and keys and values of
 * cross-attention count for the encoder's rows. 0 for a NULL model. */
MC_API double mc_model_sequence_flops(mc_model *model, const mc_sequence_work *work);

#endif
