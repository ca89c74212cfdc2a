/* What check_golden's files share: a folder of expected results, the model under test, and how the
 * two are compared. One file a family (golden_bert.c, ...) knows what its models take and give. */
#ifndef MC_TESTS_GOLDEN_H
#define MC_TESTS_GOLDEN_H

#include "core/checkpoint/weight_map_internal.h"
#include "core/modelcenter.h"

/* The worst error of one kind. */
typedef struct worst {
    const char *kind;
    double tolerance, error;
    char name[MC_NAME_MAX];
    int compared;
} worst;

typedef struct golden golden;

/* What a family's file provides. */
typedef struct golden_family {
    const char *model_type; /* as config.json names it */
    const mc_weight_map *map;
    const char *const *outputs;   /* names behind "out." that `check_outputs` compares; NULL ends */
    const char *const *generated; /* names behind "gen." that check_generated compares, or NULL */
    /* Loads the model of a folder, dropout off, and sets g->model, module and layers. */
    bool (*load)(golden *g, const char *folder, const mc_load_options *options);
    /* Hugging Face's loss of the batch, packed (padding not computed) or whole with a mask. */
    mc_tensor *(*loss)(golden *g, mc_tape *t, bool packed);
    void (*check_outputs)(golden *g, mc_tape *t, worst *w, bool packed);
    void (*check_generated)(golden *g, worst *w); /* NULL: nothing is generated */
} golden_family;

extern const golden_family golden_bert, golden_gpt2;

struct golden {
    mc_context *ctx;
    const golden_family *family;
    mc_safetensors *file;
    mc_dtype dtype; /* of the parameters */
    void *model;
    mc_module *module;
    int layers;
    int64_t batch, width;
    int64_t *ids, *types, *mask; /* (batch, width); types may be NULL */
    bool right_padded;           /* the mask is nothing but lengths */
    bool labels_on_padding;
};

/* The entry of prefix + name, NULL if it is not there. */
const mc_safetensors_entry *golden_find(const golden *g, const char *prefix, const char *name);
/* All values of an entry on the heap, NULL after an error. */
double *golden_read(const golden *g, const mc_safetensors_entry *entry);
/* The integers of prefix + name, NULL if it is not there; leaves the program if it has not `count`
 * elements (count < 0: any number). */
int64_t *golden_integers(golden *g, const char *prefix, const char *name, int64_t count);
/* Records one comparison. */
void golden_note(worst *w, double error, const char *name);
/* Compares a (packed or whole) tensor of the tape with out.<name>, at the tokens that count. */
void golden_check_output(golden *g, mc_tape *t, worst *w, const char *name, mc_tensor *x,
                         bool packed);
/* The lengths of the mask's rows, on the tape. */
const mc_lengths *golden_lengths(golden *g, mc_tape *t);
/* (batch, width) integers on the tape. */
mc_tensor *golden_batch(golden *g, mc_tape *t, const int64_t *values);

#endif
