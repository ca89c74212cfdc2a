/* A command's table as its branch in the scripts by which bash and zsh complete. */
#include <string.h>
#include "tools/args_internal.h"

/* ---- bash: a line a row, which the script's functions read ----------------------------------- */

/* "flag", "choice bert gpt2", "file", "files" (one or more), "value". */
static void print_kind(FILE *out, const args_option *o)
{
    char words[ARGS_TEXT_ROOM];
    text t = text_into(words, sizeof words);
    if (o->type == ARGS_TYPE_CHOICE) args_add_choices(&t, o, " ");
    fprintf(out, "%s%s%s\n",
            args_is_flag(o)               ? "flag"
            : o->type == ARGS_TYPE_CHOICE ? "choice"
            : o->type == ARGS_TYPE_PATH   ? "file"
            : o->type == ARGS_TYPE_PATHS  ? "files"
                                          : "value",
            t.used ? " " : "", words);
}

void args_print_bash(FILE *out, const args_spec *spec)
{
    int place = 0;
    fprintf(out, "    %s) cat <<'END' ;;\n", spec->command);
    for (const args_option *o = spec->options; args_is_row(o); o++) {
        if (!args_is_shown(o)) continue;
        if (o->positional)
            fprintf(out, "%d ", ++place);
        else
            fprintf(out, "--%s ", o->name);
        print_kind(out, o);
    }
    fprintf(out, "--help flag\nEND\n");
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
        args_add_choices(&t, o, " ");
        fputc('(', out);
        args_zsh(out, words);
        fputc(')', out);
    } else if (o->type == ARGS_TYPE_PATH || o->type == ARGS_TYPE_PATHS) {
        fputs("_files", out);
    }
}

void args_print_zsh(FILE *out, const args_spec *spec)
{
    int place = 0;
    fprintf(out, "    %s) _arguments", spec->command);
    for (const args_option *o = spec->options; args_is_row(o); o++) {
        if (!args_is_shown(o)) continue;
        fprintf(out, " \\\n        '");
        bool several = o->type == ARGS_TYPE_PATHS || o->type == ARGS_TYPE_TEXTS;
        if (o->positional) {
            fprintf(out, "%d:%s:", ++place, o->name);
        } else {
            fprintf(out, "%s--%s%s[", several ? "*" : "", o->name, args_is_flag(o) ? "" : "=");
            args_zsh(out, o->help);
            fprintf(out, "]%s", args_is_flag(o) ? "" : o->type == ARGS_TYPE_PATHS ? ":*--*:" : ":");
            if (!args_is_flag(o)) fprintf(out, "%s:", o->name);
        }
        print_action(out, o);
        fputc('\'', out);
    }
    fprintf(out, " \\\n        '(- *)'{--help,-h}'[print the options and leave]' ;;\n");
}
