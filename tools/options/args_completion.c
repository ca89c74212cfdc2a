/* A command's table as its branch in the scripts by which bash and zsh complete. */
#include <string.h>
#include "tools/options/args_internal.h"

/* The values of a choice; "cuda:N" stands for many, none of which is offered. */
static void add_values(text *t, const args_option *o)
{
    args_option plain = *o;
    plain.numbered = false;
    args_add_choices(t, &plain, " ");
}

/* ---- bash: a line a row, which the script's functions read ----------------------------------- */

/* "flag", "choice bert gpt2", "file", "files" (one or more), "value". */
static void print_kind(FILE *out, const args_option *o)
{
    char words[ARGS_TEXT_ROOM];
    text t = text_into(words, sizeof words);
    if (o->type == ARGS_TYPE_CHOICE) add_values(&t, o);
    fprintf(out, "%s%s%s\n",
            args_is_flag(o)               ? "flag"
            : o->type == ARGS_TYPE_CHOICE ? "choice"
            : o->type == ARGS_TYPE_PATH   ? "file"
            : o->type == ARGS_TYPE_PATHS  ? "files"
                                          : "value",
            t.used ? " " : "", words);
}

/* The rows from `o` on; `place` counts the arguments. */
static void print_bash_rows(FILE *out, const args_option *o)
{
    for (int place = 0; args_is_row(o); o++) {
        place += o->positional;
        if (!args_is_shown(o)) continue;
        if (o->positional)
            fprintf(out, "%d ", place);
        else
            fprintf(out, "--%s ", o->name);
        print_kind(out, o);
    }
}

void args_print_bash(FILE *out, const args_spec *spec)
{
    fprintf(out, "    %s) cat <<'END' ;;\n", spec->command);
    print_bash_rows(out, spec->options);
    print_bash_rows(out, args_rows_of_all);
    fprintf(out, "END\n");
}

/* ---- zsh: an argument of _arguments a row ---------------------------------------------------- */

void args_zsh(FILE *out, const char *string)
{
    for (; *string; string++) {
        if (*string == '\'')
            fputs("'\\''", out);
        else if (strchr("[]:\\", *string))
            fprintf(out, "\\%c", *string);
        else
            fputc(*string, out);
    }
}

static void print_action(FILE *out, const args_option *o)
{
    char words[ARGS_TEXT_ROOM];
    text t = text_into(words, sizeof words);
    if (o->type == ARGS_TYPE_CHOICE) {
        add_values(&t, o);
        fputc('(', out);
        args_zsh(out, words);
        fputc(')', out);
    } else if (o->type == ARGS_TYPE_PATH || o->type == ARGS_TYPE_PATHS) {
        fputs("_files", out);
    }
}

static void print_zsh_row(FILE *out, const args_option *o, int place)
{
    bool several = o->type == ARGS_TYPE_PATHS || o->type == ARGS_TYPE_TEXTS;
    fprintf(out, " \\\n        '");
    if (o->positional) {
        fprintf(out, "%d:%s:", place, o->name);
    } else {
        fprintf(out, "%s--%s%s[", several ? "*" : "", o->name, args_is_flag(o) ? "" : "=");
        args_zsh(out, o->help);
        fprintf(out, "]%s", args_is_flag(o) ? "" : o->type == ARGS_TYPE_PATHS ? ":*--*:" : ":");
        if (!args_is_flag(o)) fprintf(out, "%s:", o->name);
    }
    print_action(out, o);
    fputc('\'', out);
}

static void print_zsh_rows(FILE *out, const args_option *o)
{
    for (int place = 0; args_is_row(o); o++) {
        place += o->positional;
        if (args_is_shown(o)) print_zsh_row(out, o, place);
    }
}

void args_print_zsh(FILE *out, const args_spec *spec)
{
    fprintf(out, "    %s) _arguments", spec->command);
    print_zsh_rows(out, spec->options);
    print_zsh_rows(out, args_rows_of_all);
    fprintf(out, " ;;\n");
}
