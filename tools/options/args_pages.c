/* A command's table as a manual page, in roff. */
#include <string.h>
#include "core/base/version.h"
#include "tools/options/args_internal.h"

/* ---- roff ------------------------------------------------------------------------------------ */

/* Characters that roff reads otherwise, or prints as others than were typed. */
static const char *roff_escape(char c)
{
    switch (c) {
    case '\\': return "\\e";
    case '-': return "\\-";
    case '\'': return "\\(aq";
    case '`': return "\\(ga";
    case '^': return "\\(ha";
    case '~': return "\\(ti";
    case '"': return "\\(dq";
    default: return NULL;
    }
}

void args_roff(FILE *out, const char *string, size_t size)
{
    if (size && *string == '.') fputs("\\&", out); /* no request */
    for (size_t i = 0; i < size && string[i]; i++) {
        const char *escape = roff_escape(string[i]);
        if (escape)
            fputs(escape, out);
        else
            fputc(string[i], out);
    }
}

static void roff_line(FILE *out, const char *string)
{
    args_roff(out, string, strlen(string));
    fputc('\n', out);
}

/* Lines that begin with a space are shown as they are, others are paragraphs. */
static void print_details(FILE *out, const char *details)
{
    bool verbatim = false, paragraph = true;
    for (const char *line = details; *line; line += *line == '\n') {
        size_t length = strcspn(line, "\n");
        if (length && (*line == ' ') != verbatim) {
            verbatim = !verbatim;
            fputs(verbatim ? ".PP\n.nf\n" : ".fi\n", out);
            paragraph = !verbatim;
        }
        if (length && paragraph) fputs(".PP\n", out);
        paragraph = !length && !verbatim;
        if (length || verbatim) {
            args_roff(out, line, length);
            fputc('\n', out);
        }
        line += length;
    }
    if (verbatim) fputs(".fi\n", out);
}

/* "Trains a tokenizer on texts." as "trains a tokenizer on texts", the first sentence. */
static void print_name_line(FILE *out, const args_spec *spec)
{
    const char *end = strstr(spec->summary, ". ");
    size_t length = end ? (size_t)(end - spec->summary) : strlen(spec->summary);
    char line[ARGS_TEXT_ROOM];
    if (length && spec->summary[length - 1] == '.') length--;
    snprintf(line, sizeof line, "%.*s", (int)length, spec->summary);
    if (*line >= 'A' && *line <= 'Z') *line = (char)(*line - 'A' + 'a');
    fprintf(out, ".SH NAME\nmodelcenter\\-%s \\- ", spec->command);
    roff_line(out, line);
}

static void print_synopsis(FILE *out, const args_spec *spec)
{
    char value[ARGS_TEXT_ROOM];
    fprintf(out, ".SH SYNOPSIS\n.B modelcenter %s\n", spec->command);
    for (const args_option *o = spec->options; args_is_row(o); o++) {
        if (!args_is_shown(o) || !(o->positional || o->required)) continue;
        text t = text_into(value, sizeof value);
        text_add(&t, o->required ? "" : "[");
        args_add_label(&t, o);
        if (!o->positional) {
            text_add(&t, " ");
            args_add_value_name(&t, o);
        }
        text_add(&t, o->required ? "" : "]");
        roff_line(out, value);
    }
    fprintf(out, "[options]\n");
}

static void print_row(FILE *out, const args_spec *spec, const args_option *o)
{
    char words[ARGS_TEXT_ROOM];
    text t = text_into(words, sizeof words);
    args_add_label(&t, o);
    fputs(".TP\n\\fB", out);
    args_roff(out, words, t.used);
    fputs("\\fR", out);
    if (!args_is_flag(o) && !o->positional) {
        t = text_into(words, sizeof words);
        args_add_value_name(&t, o);
        fputs(" \\fI", out);
        args_roff(out, words, t.used);
        fputs("\\fR", out);
    }
    t = text_into(words, sizeof words);
    args_add_explanation(&t, spec, o);
    fputc('\n', out);
    roff_line(out, words);
}

void args_print_man(FILE *out, const args_spec *spec)
{
    fprintf(out, ".TH MODELCENTER\\-");
    for (const char *p = spec->command; *p; p++)
        fputc(*p >= 'a' && *p <= 'z' ? *p - 'a' + 'A' : *p, out);
    fprintf(out, " 1 \"\" \"modelcenter %s\" \"modelcenter\"\n", MC_VERSION);
    print_name_line(out, spec);
    print_synopsis(out, spec);
    fprintf(out, ".SH DESCRIPTION\n");
    roff_line(out, spec->summary);
    if (spec->details) print_details(out, spec->details);
    fprintf(out, ".SH OPTIONS\n");
    for (const args_option *o = spec->options; args_is_row(o); o++) {
        if (o->type == ARGS_TYPE_HEADING) {
            fprintf(out, ".SS \"");
            args_roff(out, o->name, strlen(o->name));
            fprintf(out, "\"\n");
        } else if (args_is_shown(o)) {
            print_row(out, spec, o);
        }
    }
    for (const args_option *o = args_rows_of_all; args_is_row(o); o++) print_row(out, spec, o);
    fprintf(out, ".SH EXIT STATUS\n0 on success, 1 after an error, 2 for a wrong command line, 130 "
                 "when interrupted.\n.SH SEE ALSO\n.BR modelcenter (1)\n");
}
