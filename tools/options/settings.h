/* The settings of a training run, which are kept with its checkpoints: the options that decide its
 * course, and where it stands. A run that goes on compares the first with its own.
 *
 *     settings *list = settings_new(ctx);
 *     settings_add_model(list, model);
 *     settings_add_real(list, "lr", o->lr);
 *     settings_end_fixed(list);
 *     settings_add(list, "device", "cpu");
 *     settings_end_rounding(list);
 *     settings_add_whole(list, "data.epoch", epoch);
 *     ... mc_checkpoint_save with list->items, list->count ...
 *     free(list);
 *
 * and in the process that goes on
 *
 *     if (!settings_same(list, NULL, checkpoint, folder, message, sizeof message)) refuse ...
 *     settings_tell_changes(list, checkpoint, &log);
 *     epoch = settings_whole_of(checkpoint, "data.epoch");
 */
#ifndef MC_TOOLS_SETTINGS_H
#define MC_TOOLS_SETTINGS_H

#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tools/log/run_log.h"
#include "tools/options/train_options.h"

enum { SETTINGS_MOST = 128, SETTINGS_TEXT = 2048 };

typedef struct settings {
    mc_checkpoint_setting items[SETTINGS_MOST];
    char text[SETTINGS_MOST][SETTINGS_TEXT];
    int count;
    int fixed;    /* the first so many are options that a run that goes on must have too, */
    int rounding; /* and the next, up to here, may round differently; the rest is the run's own */
} settings;

/* An empty list, to be freed with free. Out of memory: NULL, and the context has the error. */
settings *settings_new(mc_context *ctx);

/* ---- adding, under names that are unique: options have theirs ---- */

void settings_add(settings *list, const char *name, const char *value);
/* Nothing for NULL and "". Under "NAME.content" stands the content of what the setting NAME names
 * (files/content.h): a run that goes on may have the same content at another path. */
void settings_add_given(settings *list, const char *name, const char *value);
void settings_add_whole(settings *list, const char *name, int64_t value);
void settings_add_u64(settings *list, const char *name, uint64_t value);
void settings_add_real(settings *list, const char *name, double value);
void settings_add_flag(settings *list, const char *name, bool value);
/* "config": family and config as a text; without dropout, which is an option of its own, and set by
 * the model's too. */
void settings_add_model(settings *list, const mc_model *model);
/* Learning rate, weight decay, clipping; dtypes. */
void settings_add_course(settings *list, const train_options *o);
/* What may round differently: device, offload, ZeRO level. */
void settings_add_machine(settings *list, const train_options *o);
void settings_end_fixed(settings *list);
void settings_end_rounding(settings *list);

/* ---- reading; "" and 0 if there is none ---- */

const char *settings_text_of(const mc_checkpoint *then, const char *name);
int64_t settings_whole_of(const mc_checkpoint *then, const char *name);
uint64_t settings_u64_of(const mc_checkpoint *then, const char *name);
/* The index of the setting among names that end in NULL; `otherwise` where it is none of them. */
int settings_choice_of(const mc_checkpoint *then, const char *name, const char *const *names,
                       int otherwise);
/* "ranks", at least 1. */
int settings_ranks_of(const mc_checkpoint *then);

/* ---- fields of a struct, written once for adding and reading ---- */

typedef enum settings_type {
    SETTINGS_WHOLE, /* int64_t */
    SETTINGS_U64,
    SETTINGS_REAL,  /* double */
    SETTINGS_FLAG,  /* bool */
    SETTINGS_STRING /* char[SETTINGS_STRING_SIZE] */
} settings_type;
enum { SETTINGS_STRING_SIZE = 512 };

typedef struct settings_field {
    const char *name; /* NULL after the last */
    settings_type type;
    size_t at; /* offsetof */
} settings_field;

void settings_add_fields(settings *list, const settings_field *fields, const void *from);
/* Fields that an older checkpoint lacks stay as they are. */
void settings_read_fields(const mc_checkpoint *then, const settings_field *fields, void *to);

/* ---- comparing ---- */

/* How a setting of the run that was begun is found: "" if there is none. */
typedef const char *(*settings_find_fn)(const void *then, const char *name);

/* Whether the fixed settings are those that the run in `folder` was begun with, which `find` finds
 * (NULL: in a mc_checkpoint). Else writes "--resume: --lr is 0.02, but the run in ... was begun
 * with 0.01" to `message`. */
bool settings_same(const settings *now, settings_find_fn find, const void *then, const char *folder,
                   char *message, size_t room);
/* Says what may change the last bits: settings that round differently, and the number of ranks. */
void settings_tell_changes(const settings *now, const mc_checkpoint *then, mc_context *ctx,
                           run_log *log);
/* Says that the number of steps differs from `then`'s "steps". */
void settings_tell_steps(const mc_checkpoint *then, int64_t steps, const train_options *o,
                         run_log *log);

#endif
