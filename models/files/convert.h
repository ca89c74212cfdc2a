/* Converting a model's folder to another form.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_MODELS_CONVERT_H
#define MC_MODELS_CONVERT_H

#include "models/model.h"

typedef struct mc_convert_options {
    mc_save_options save; /* the form, and the size of files */
    /* of the weights; default: the narrowest that represents all the files' dtypes */
    mc_dtype dtype;
    const char *family;   /* "t5": another family's folder is an error; NULL: any */
    bool merge;           /* an adapter (models/adapters/adapter.h) and its base as one model */
    const char *base;     /* of an adapter: see mc_load_options */
    const char *revision; /* of an identifier: the same */
    /* "f32", "f16", "bf16" or "q8_0": one GGUF file of llama.cpp, with matrices of this type.
     * Rows that q8_0 cannot hold are f16, and vectors are f32. NULL: a folder. */
    const char *gguf;
} mc_convert_options;

/* Reads the model `identifier` as mc_model_from_pretrained does, with the heads in its files, and
 * writes it into another folder (created if needed) as mc_model_save_as does; in ModelCenter's form
 * as pytorch_model.pt, the only file that ModelCenter reads. The other files of the folder are
 * copied unchanged: tokenizer, generation_config.json, task.json, modules of sentence-transformers;
 * an adapter without such a file gets its base's. `options` may be NULL. Errors: those of loading
 * and saving (MC_ERR_UNSUPPORTED if the form cannot express the model); MC_ERR_ARGUMENT for input
 * and output in the same folder, an adapter without `merge`, and `merge` without an adapter. Ranks
 * call it together.
 *
 * With `gguf`, `folder` is the path of a file, which receives the model, its config and its
 * tokenizer under llama.cpp's names. docs/files.md lists the families and models that such a file
 * can express; any other is MC_ERR_UNSUPPORTED. `identifier` may also be such a file: its tokenizer
 * is written into the folder. */
MC_API mc_status mc_model_convert(mc_context *ctx, const char *identifier, const char *folder,
                                  const mc_convert_options *options);

#endif
