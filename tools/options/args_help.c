/* What options take, in words: for errors and for --help. */
#include "tools/options/args_internal.h"

#include <limits.h>
#include <math.h>
#include <string.h>

enum { HELP_WIDTH = 80, HELP_COLUMN = 26 };

int64_t args_highest(const args_option *o)
{
    return o->type == ARGS_TYPE_INT32 && o->high > INT_MAX ? INT_MAX : o->high;
}

int64_t args_lowest(const args_option *o)
{
    if (o->type == ARGS_TYPE_UINT64 && o->low < 0) return 0;
    return o->type == ARGS_TYPE_INT32 && o->low < INT_MIN ? INT_MIN : o->low;
}

void args_add_choices(text *t, const args_option *o, const char *separator)
{
    const char *before = "", *last = "";
    for (int i = 0; o->choices[i]; i++) {
        last = o->choices[i];
        if (o->offers && !o->offers(i)) continue;
        text_add(t, "%s%s", before, last);
        before = separator;
    }
    if (o->numbered) text_add(t, "%s%s:N", before, last);
}

static void add_whole_range(text *t, const args_option *o)
{
    bool has_low = args_lowest(o) > INT64_MIN, has_high = args_highest(o) < INT64_MAX;
    text_add(t, "a whole number");
    if (o->type == ARGS_TYPE_IGNORED) return;
    if (has_low)
        text_add(t, has_high ? " from %lld" : " of at least %lld", (long long)args_lowest(o));
    if (has_high) text_add(t, "%s %lld", has_low ? " to" : " up to", (long long)args_highest(o));
}

static void add_real_range(text *t, const args_option *o)
{
    bool has_low = isfinite(o->real_low), has_high = isfinite(o->real_high);
    text_add(t, "a number");
    if (has_low) {
        text_add(t, o->above_low ? " above " : has_high ? " from " : " of at least ");
        text_add_number(t, o->real_low);
    }
    if (has_high) {
        bool both = has_low && (o->above_low || o->below_high);
        const char *to = has_low && !both ? " to " : " up to ";
        text_add(t, "%s%s", both ? " and" : "", o->below_high ? " below " : to);
        text_add_number(t, o->real_high);
    }
}

void args_add_expected(text *t, const args_option *o)
{
    if (args_is_whole(o)) add_whole_range(t, o);
    if (args_is_real(o)) add_real_range(t, o);
    if (o->type == ARGS_TYPE_BYTES) text_add(t, "a size such as 500MB or 5GB");
    if (o->type == ARGS_TYPE_TEXT || o->type == ARGS_TYPE_TEXTS) text_add(t, "a text");
    if (o->type == ARGS_TYPE_PATH) text_add(t, "a path");
    if (o->type == ARGS_TYPE_PATHS) text_add(t, "one path or more");
    if (o->type == ARGS_TYPE_CHOICE) {
        text_add(t, "one of ");
        args_add_choices(t, o, ", ");
    }
}

void args_add_label(text *t, const args_option *o)
{
    text_add(t, o->positional ? "<%s>" : "--%s", o->name);
    if (args_is_flag(o) && strcmp(o->name, "help") == 0) text_add(t, ", -h");
}

/* Prints words of `string` from `column` on, wrapped at HELP_WIDTH and indented by `indent`. */
static void print_wrapped(FILE *out, const char *string, int column, int indent)
{
    while (*string) {
        int length = (int)strcspn(string, " ");
        if (column > indent && column + 1 + length > HELP_WIDTH) {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            fputc(' ', out);
            column++;
        }
        fprintf(out, "%.*s", length, string);
        column += length;
        string += length;
        string += strspn(string, " ");
    }
    fputc('\n', out);
}

void args_add_value_name(text *t, const args_option *o)
{
    char choices[ARGS_TEXT_ROOM];
    text joined = text_into(choices, sizeof choices);
    if (o->choices) args_add_choices(&joined, o, "|");
    if (o->value_name)
        text_add(t, "%s", o->value_name);
    else if (o->choices)
        text_add(t, "%s", joined.used <= 50 ? choices : "NAME");
    else
        text_add(t, "%s",
                 args_is_whole(o)             ? "N"
                 : args_is_real(o)            ? "X"
                 : o->type == ARGS_TYPE_BYTES ? "SIZE"
                 : o->type == ARGS_TYPE_PATH  ? "PATH"
                 : o->type == ARGS_TYPE_PATHS ? "PATH..."
                                              : "TEXT");
}

/* Adds "default 5e-05", or nothing where the target holds no default. */
static void add_default(text *t, const args_option *o)
{
    const char *before = "; default ";
    if (o->default_text) {
        if (*o->default_text) text_add(t, "%s%s", before, o->default_text);
        return;
    }
    if (o->type == ARGS_TYPE_TEXT || o->type == ARGS_TYPE_PATH) {
        const char *value = *(const char **)o->target;
        if (value) text_add(t, "%s%s", before, *value ? value : "empty");
        return;
    }
    if (o->type == ARGS_TYPE_PATHS || o->type == ARGS_TYPE_TEXTS) return; /* its list is empty */
    if (o->type == ARGS_TYPE_CHOICE) {
        int chosen = *(int *)o->target;
        if (chosen >= 0) text_add(t, "%s%s", before, o->choices[chosen]);
        return;
    }
    text_add(t, "%s", before);
    if (args_is_flag(o))
        text_add(t, *(bool *)o->target == (o->type == ARGS_TYPE_FLAG) ? "on" : "off");
    if (o->type == ARGS_TYPE_INT32) text_add(t, "%d", *(int *)o->target);
    if (o->type == ARGS_TYPE_INT64 || o->type == ARGS_TYPE_BYTES)
        text_add(t, "%lld", (long long)*(int64_t *)o->target);
    if (o->type == ARGS_TYPE_UINT64)
        text_add(t, "%llu", (unsigned long long)*(uint64_t *)o->target);
    if (o->type == ARGS_TYPE_FLOAT) text_add_number(t, *(float *)o->target);
    if (o->type == ARGS_TYPE_DOUBLE) text_add_number(t, *(double *)o->target);
}

void args_add_explanation(text *t, const args_spec *spec, const args_option *o)
{
    const char *second = args_second_name(spec, o);
    text_add(t, "%s (", o->help);
    if (second) text_add(t, "also --%s; ", second);
    if (args_is_flag(o))
        text_add(t, "a flag");
    else
        args_add_expected(t, o);
    if (o->required)
        text_add(t, "; required");
    else
        add_default(t, o);
    text_add(t, ")");
}

/* "  --lr X      peak learning rate (a number from 0 to 1; default 5e-05)" */
static void print_option(FILE *out, const args_spec *spec, const args_option *o)
{
    char left[ARGS_TEXT_ROOM], right[ARGS_TEXT_ROOM];
    text l = text_into(left, sizeof left), r = text_into(right, sizeof right);
    text_add(&l, "  ");
    args_add_label(&l, o);
    if (!args_is_flag(o) && !o->positional) {
        text_add(&l, " ");
        args_add_value_name(&l, o);
    }
    args_add_explanation(&r, spec, o);
    if (l.used + 1 >= HELP_COLUMN)
        fprintf(out, "%s\n%*s", left, HELP_COLUMN, "");
    else
        fprintf(out, "%-*s", HELP_COLUMN, left);
    print_wrapped(out, right, HELP_COLUMN, HELP_COLUMN);
}

static void print_usage_line(FILE *out, const args_spec *spec)
{
    char line[4 * ARGS_TEXT_ROOM];
    text t = text_into(line, sizeof line);
    text_add(&t, "usage: modelcenter %s", spec->command);
    for (const args_option *o = spec->options; args_is_row(o); o++)
        if (o->positional && !o->old) text_add(&t, o->required ? " <%s>" : " [<%s>]", o->name);
    for (const args_option *o = spec->options; args_is_row(o); o++) {
        if (!args_is_named(o) || !o->required || o->old) continue;
        text_add(&t, " --%s ", o->name);
        args_add_value_name(&t, o);
    }
    text_add(&t, " [options]");
    print_wrapped(out, line, 0, 0);
}

void args_print_help(FILE *out, const args_spec *spec)
{
    print_usage_line(out, spec);
    fprintf(out, "\n%s\n\n", spec->summary);
    for (const args_option *o = spec->options; args_is_row(o); o++) {
        if (o->old) continue;
        if (o->type == ARGS_TYPE_HEADING)
            fprintf(out, "%s%s:\n", o == spec->options ? "" : "\n", o->name);
        else
            print_option(out, spec, o);
    }
    fprintf(out, "\n");
    for (const args_option *o = args_rows_of_all; args_is_row(o); o++) print_option(out, spec, o);
    if (spec->details) fprintf(out, "\n%s", spec->details);
    fflush(out);
}
