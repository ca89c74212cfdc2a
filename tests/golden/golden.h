/* What check_golden's files share: a folder of expected results, the model under test, and how the
 * two are compared. golden_model.c runs the model on the inputs that the folder has. */
#ifndef MC_TESTS_GOLDEN_H
#define MC_TESTS_GOLDEN_H

#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "models/family_internal.h"

/* The worst error of one kind. */
typedef struct worst {
    const char *kind;
    double tolerance, error;
    char name[MC_NAME_MAX];
    int compared;
} worst;

/* A batch of rows of ids: (batch, width), of which the mask says what counts. */
typedef struct golden_rows {
    int64_t batch, width;
    int64_t *ids, *mask; /* (batch, width); mask 1 or 0 */
    bool right_padded;   /* the mask is nothing but lengths */
} golden_rows;

typedef struct golden {
    mc_context *ctx;
    const char *folder;
    mc_tensor_file *file;
    mc_dtype dtype; /* of the parameters */
    mc_model *model;
    mc_module *module;
    int layers;
    bool mc_form; /* the folder is ModelCenter's: labels stand beside what predicts them */
    golden_rows encoder, decoder; /* decoder: of an encoder-decoder, else no ids */
    int64_t *types, *context, *span, *globals, *labels; /* as the rows they belong to, or NULL */
    int64_t label_count;
    float *pixels; /* of a model of images, in place of the encoder's ids; else NULL */
    mc_shape pixels_shape;
    bool labels_on_padding;
} golden;

/* The entry of prefix + name, NULL if it is not there. */
const mc_tensor_entry *golden_find(const golden *g, const char *prefix, const char *name);
/* All values of an entry on the heap, NULL after an error. */
double *golden_read(const golden *g, const mc_tensor_entry *entry);
/* The integers of prefix + name, NULL if it is not there; leaves the program if it has not `count`
 * elements (count < 0: any number). */
int64_t *golden_integers(golden *g, const char *prefix, const char *name, int64_t count);
/* Records one comparison. */
void golden_note(worst *w, double error, const char *name);
/* Compares a (packed or whole) tensor of the tape with out.<name>, at the tokens that count; `rows`
 * NULL: it is no tensor of tokens. `valid_only`: also where padding was computed. */
void golden_check_output(golden *g, mc_tape *t, worst *w, const char *name, mc_tensor *x,
                         const golden_rows *rows, bool valid_only);

/* ---- golden_model.c ---- */

/* Reads in.*; false after a word about what is missing. */
bool golden_read_inputs(golden *g);
void golden_release_inputs(golden *g);
/* The reference's loss of the batch, packed (padding not computed) or whole with a mask. */
mc_tensor *golden_loss(golden *g, mc_tape *t, bool packed);
void golden_check_outputs(golden *g, mc_tape *t, worst *w, bool packed);
/* Names after "out." that golden_check_outputs compares; NULL ends. */
extern const char *const golden_outputs[];

/* ---- golden_generation.c ---- */

void golden_check_generated(golden *g, worst *w);
/* Names after "gen." that it reads; NULL ends. */
extern const char *const golden_generated[];

#endif
