/* What the two halves of the parser share. */
#ifndef MC_TOOLS_ARGS_INTERNAL_H
#define MC_TOOLS_ARGS_INTERNAL_H

#include "tools/options/args.h"
#include "tools/files/text.h"

enum { ARGS_TEXT_ROOM = 1024 };

static inline bool args_is_row(const args_option *o) { return o->type != ARGS_TYPE_NONE; }

static inline bool args_is_named(const args_option *o)
{
    return o->type != ARGS_TYPE_HEADING && !o->positional;
}

static inline bool args_is_flag(const args_option *o)
{
    return o->type == ARGS_TYPE_FLAG || o->type == ARGS_TYPE_FLAG_OFF;
}

/* Whether help and completion have the row. */
static inline bool args_is_shown(const args_option *o)
{
    return o->type != ARGS_TYPE_HEADING && !o->old;
}

static inline bool args_is_whole(const args_option *o)
{
    return o->type == ARGS_TYPE_INT32 || o->type == ARGS_TYPE_INT64 ||
           o->type == ARGS_TYPE_UINT64 || o->type == ARGS_TYPE_IGNORED;
}

static inline bool args_is_real(const args_option *o)
{
    return o->type == ARGS_TYPE_FLOAT || o->type == ARGS_TYPE_DOUBLE;
}

/* The options that every command takes, after its own in the help. */
extern const args_option args_rows_of_all[];

/* The bounds of a whole number, within what its target holds. */
int64_t args_lowest(const args_option *o);
int64_t args_highest(const args_option *o);

/* How errors and the help call an option: --name, or <name> for a positional one. */
void args_add_label(text *t, const args_option *o);
/* "a number from 0 to 1", "one of constant, noam": what a value has to be. */
void args_add_expected(text *t, const args_option *o);
void args_add_choices(text *t, const args_option *o, const char *separator);
/* "N", "PATH", "bf16|f32": what stands for the value in the help. */
void args_add_value_name(text *t, const args_option *o);
/* "peak learning rate (a number from 0 to 1; default 5e-05)" */
void args_add_explanation(text *t, const args_spec *spec, const args_option *o);

/* The option of a name, '_' read as '-': of the table, or one that has this name elsewhere. NULL:
 * there is none. */
const args_option *args_find(const args_spec *spec, const char *name);
/* Sets the option's target; false if the value is not what the option takes. */
bool args_set_value(const args_option *o, const char *value);
/* " (did you mean --lr?)" for an unknown "--learning-rat", where a name is near. */
void args_add_suggestion(text *t, const args_spec *spec, const char *argument);
/* The same for a value that is none of an option's choices. */
void args_add_choice_suggestion(text *t, const args_option *o, const char *value);
/* Prints an error of the command line on `err`, and returns EXIT_USAGE. */
int args_report(FILE *err, const args_spec *spec, const char *message);
/* Adds which of the options that a message names the last command line has from its --run-file
 * alone: "--lr-other needs --optimizer muon (in run.json: --lr-other)". */
void args_add_sources(const args_spec *spec, char message[ARGS_TEXT_ROOM]);

/* The option that has another name here, which is taken too. NULL: none. */
const args_option *args_find_same(const args_spec *spec, const char *name);
/* The other name of an option, for the help. NULL: none. */
const char *args_second_name(const args_spec *spec, const args_option *o);
/* Our name for an option that is called so elsewhere, for "did you mean". NULL: none is known. */
const char *args_find_elsewhere(const args_spec *spec, const char *name);
/* Our name of a choice's value that is called so elsewhere, which is taken too: float32 is f32. */
const char *args_same_value(const char *value);

void args_print_help(FILE *out, const args_spec *spec);
/* The help in another form: the command's manual page in roff, or its branch in the script by which
 * bash or zsh completes (tools/options/manual.h prints what surrounds it). */
void args_print_man(FILE *out, const args_spec *spec);
void args_print_bash(FILE *out, const args_spec *spec);
void args_print_zsh(FILE *out, const args_spec *spec);

#endif
