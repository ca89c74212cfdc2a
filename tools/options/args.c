#include "tools/options/args_internal.h"

#include "tools/options/run_file.h"

#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include "tools/files/text.h"

enum { NAME_ROOM = 64 };

/* One argument of the command line, or an option with its value. */
typedef struct token {
    const char *argument;      /* as typed */
    const char *value;         /* NULL: none */
    const args_option *option; /* NULL: an unknown option */
    bool help, positional;
} token;

typedef struct cursor {
    const args_spec *spec;
    int argc, next;
    char **argv;
    bool options_ended;
} cursor;

const args_option args_rows_of_all[] = {
    {.name = "run-file",
     .type = ARGS_TYPE_PATH,
     .help = "read options by name from a JSON file, such as a run's run.json; the "
             "command line wins over it",
     .default_text = ""},
    {.name = "local-rank",
     .type = ARGS_TYPE_IGNORED,
     .help = "accepted for old launchers, and ignored",
     .default_text = ""},
    {.name = "help", .type = ARGS_TYPE_FLAG, .help = "print this and leave", .default_text = ""},
    {0},
};
static const args_option *const file_option = &args_rows_of_all[0];
static const args_option *const launcher_option = &args_rows_of_all[1];

/* A name up to a '=', '_' as '-'; "" when it is longer than any name. */
static void plain_name(char name[NAME_ROOM], const char *given)
{
    size_t length = strcspn(given, "=");
    if (length >= NAME_ROOM) length = 0;
    memcpy(name, given, length);
    name[length] = '\0';
    for (char *p = name; *p; p++)
        if (*p == '_') *p = '-';
}

/* The same of "--name=value". */
static void option_name(char name[NAME_ROOM], const char *argument)
{
    plain_name(name, argument + 2);
}

const args_option *args_find(const args_spec *spec, const char *given)
{
    char name[NAME_ROOM];
    plain_name(name, given);
    for (const args_option *o = spec->options; args_is_row(o); o++)
        if (args_is_named(o) && strcmp(o->name, name) == 0) return o;
    return args_find_same(spec, name);
}

static const args_option *find_option(const args_spec *spec, const char *argument)
{
    char name[NAME_ROOM];
    option_name(name, argument);
    if (strcmp(launcher_option->name, name) == 0) return launcher_option;
    if (strcmp(file_option->name, name) == 0) return file_option;
    return args_find(spec, name);
}

/* Whether an argument reads as `--`, `--word` or `--word=...`, and so can't be a separate value. */
static bool looks_like_option(const char *argument)
{
    if (strncmp(argument, "--", 2) != 0) return false;
    if (!argument[2]) return true;
    if (!isalpha((unsigned char)argument[2])) return false;
    for (const char *p = argument + 2; *p && *p != '='; p++)
        if (!isalnum((unsigned char)*p) && *p != '-' && *p != '_') return false;
    return true;
}

static void read_option(cursor *c, token *t)
{
    t->option = find_option(c->spec, t->argument);
    const char *equals = strchr(t->argument, '=');
    if (equals) {
        t->value = equals + 1;
    } else if (t->option && !args_is_flag(t->option) && c->next < c->argc &&
               !looks_like_option(c->argv[c->next])) {
        t->value = c->argv[c->next++];
    }
}

args_form args_help_form(const char *argument)
{
    static const char *const spellings[] = {"--help", "--help=man", "--help=bash", "--help=zsh"};
    if (strcmp(argument, "-h") == 0) return ARGS_HELP;
    for (int i = 0; i < (int)(sizeof spellings / sizeof *spellings); i++)
        if (strcmp(argument, spellings[i]) == 0) return (args_form)(ARGS_HELP + i);
    return ARGS_NO_HELP;
}

static bool next_token(cursor *c, token *t)
{
    if (!c->options_ended && c->next < c->argc && strcmp(c->argv[c->next], "--") == 0) {
        c->options_ended = true;
        c->next++;
    }
    if (c->next >= c->argc) return false;
    *t = (token){.argument = c->argv[c->next++]};
    if (c->options_ended || t->argument[0] != '-' || !t->argument[1])
        t->positional = true;
    else if (args_help_form(t->argument) != ARGS_NO_HELP)
        t->help = true;
    else if (t->argument[1] == '-')
        read_option(c, t);
    return true;
}

/* ---- errors that say what is expected ---- */

int args_report(FILE *err, const args_spec *spec, const char *message)
{
    fprintf(err, "modelcenter %s: %s\n(see: modelcenter %s --help)\n", spec->command, message,
            spec->command);
    return EXIT_USAGE;
}

static const char *given_file;         /* --run-file of the last command line */
static bool from_file[ARGS_MOST_ROWS]; /* rows that it alone gave */

const char *args_run_file(void) { return given_file; }

/* Whether a message names the option: "--lr", but not the beginning of "--lr-other". */
static bool names(const char *message, const char *option)
{
    size_t length = strlen(option);
    for (const char *at = message; (at = strstr(at, "--")); at += 2) {
        char after = strncmp(at + 2, option, length) == 0 ? at[2 + length] : 'x';
        if (!isalnum((unsigned char)after) && after != '-') return true;
    }
    return false;
}

void args_add_sources(const args_spec *spec, char message[ARGS_TEXT_ROOM])
{
    char found[ARGS_TEXT_ROOM];
    text t = text_into(found, sizeof found);
    for (int i = 0; i < ARGS_MOST_ROWS && args_is_row(&spec->options[i]); i++) {
        const char *name = spec->options[i].name;
        if (!from_file[i] || spec->options[i].positional || !names(message, name)) continue;
        text_add(&t, "%s--%s", t.used ? ", " : "", name);
    }
    size_t used = strlen(message);
    if (t.used)
        snprintf(message + used, ARGS_TEXT_ROOM - used, " (in %.300s: %s)", given_file, found);
}

int args_error(const args_spec *spec, const char *format, ...)
{
    char message[ARGS_TEXT_ROOM];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    args_add_sources(spec, message);
    return args_report(stderr, spec, message);
}

/* The smallest distance of `name` to the option's name, 0 for a name it has elsewhere. */
static size_t option_distance(const args_option *o, const char *name)
{
    size_t length = strlen(name);
    for (const char *p = o->known_as; p && *p; p += strcspn(p, ","), p += *p == ',')
        if (strcspn(p, ",") == length && memcmp(p, name, length) == 0) return 0;
    if (length >= 3 && strncmp(o->name, name, length) == 0) return 1; /* an abbreviation */
    if (strncmp(o->name, "no-", 3) == 0 && strcmp(o->name + 3, name) == 0) return 1;
    return text_distance(o->name, name);
}

void args_add_suggestion(text *t, const args_spec *spec, const char *argument)
{
    char name[NAME_ROOM];
    option_name(name, argument);
    const char *suggestion = args_find_elsewhere(spec, name);
    size_t best = suggestion ? 0 : text_distance("help", name);
    if (!suggestion) suggestion = "help";
    for (const args_option *o = spec->options; args_is_row(o); o++) {
        size_t distance = args_is_named(o) && !o->old ? option_distance(o, name) : SIZE_MAX;
        if (distance < best) {
            best = distance;
            suggestion = o->name;
        }
    }
    if (best == 0 || text_is_near(name, best)) text_add(t, " (did you mean --%s?)", suggestion);
}

void args_add_choice_suggestion(text *t, const args_option *o, const char *value)
{
    const char *suggestion = NULL;
    size_t best = SIZE_MAX;
    for (int i = 0; o->choices[i]; i++) {
        if (o->offers && !o->offers(i)) continue;
        size_t distance =
            strcasecmp(o->choices[i], value) ? text_distance(o->choices[i], value) : 0;
        if (distance < best) {
            best = distance;
            suggestion = o->choices[i];
        }
    }
    if (suggestion && text_is_near(value, best)) text_add(t, " (did you mean %s?)", suggestion);
}

static bool is_text(const args_option *o)
{
    return o->type == ARGS_TYPE_TEXT || o->type == ARGS_TYPE_TEXTS;
}

/* Digits that only the range of the option's integers excludes, of which its text says nothing. */
static bool is_too_large(const args_option *o, const char *value)
{
    bool whole = o->type == ARGS_TYPE_INT64 || o->type == ARGS_TYPE_UINT64;
    return whole && args_highest(o) == INT64_MAX && *value && !value[strspn(value, "0123456789")];
}

static int report_bad_value(FILE *err, const args_spec *spec, const args_option *o,
                            const char *value)
{
    char message[ARGS_TEXT_ROOM];
    text t = text_into(message, sizeof message);
    args_add_label(&t, o);
    text_add(&t, " \"%.200s\": expected ", value);
    args_add_expected(&t, o);
    if (o->type == ARGS_TYPE_CHOICE) args_add_choice_suggestion(&t, o, value);
    if (is_text(o)) text_add(&t, " in UTF-8");
    if (is_too_large(o, value)) text_add(&t, ", up to %lld", (long long)INT64_MAX);
    if (o->old) text_add(&t, " (an older form; now %s)", o->help);
    return args_report(err, spec, message);
}

static int report_missing_value(FILE *err, const cursor *c, const token *t)
{
    char message[ARGS_TEXT_ROOM];
    text m = text_into(message, sizeof message);
    text_add(&m, "--%s: the value is missing: expected ", t->option->name);
    args_add_expected(&m, t->option);
    if (c->next < c->argc)
        text_add(&m, ", found \"%.100s\" (write --%s=%.100s if that is the value)",
                 c->argv[c->next], t->option->name, c->argv[c->next]);
    return args_report(err, c->spec, message);
}

static int report_unknown(FILE *err, const args_spec *spec, const char *argument)
{
    char message[ARGS_TEXT_ROOM];
    text t = text_into(message, sizeof message);
    text_add(&t, "unknown option \"%.200s\"", argument);
    if (argument[1] == '-') args_add_suggestion(&t, spec, argument);
    return args_report(err, spec, message);
}

/* ---- values ---- */

static bool set_whole(const args_option *o, const char *string)
{
    int64_t value;
    if (!text_parse_whole(string, &value)) return false;
    if (o->type == ARGS_TYPE_IGNORED) return true;
    if (value < args_lowest(o) || value > args_highest(o)) return false;
    if (o->type == ARGS_TYPE_INT32) *(int *)o->target = (int)value;
    if (o->type == ARGS_TYPE_INT64) *(int64_t *)o->target = value;
    if (o->type == ARGS_TYPE_UINT64) *(uint64_t *)o->target = (uint64_t)value;
    return true;
}

static bool is_within(const args_option *o, double value)
{
    if (value < o->real_low || (o->above_low && value == o->real_low)) return false;
    if (value > o->real_high || (o->below_high && value == o->real_high)) return false;
    return isfinite(value);
}

static bool set_real(const args_option *o, const char *string)
{
    double value;
    if (!text_parse_real(string, &value) || !is_within(o, value)) return false;
    /* 1e-50 is above 0, but the 0 that it rounds to is not */
    if (o->type == ARGS_TYPE_FLOAT && !is_within(o, (double)(float)value)) return false;
    if (o->type == ARGS_TYPE_FLOAT)
        *(float *)o->target = (float)value;
    else
        *(double *)o->target = value;
    return true;
}

/* "cuda:3", where "cuda" is the last of the choices, `count` of them. */
static bool set_numbered(const args_option *o, int count, const char *string)
{
    const char *name = o->choices[count - 1];
    size_t length = strlen(name);
    int64_t number;
    if (strncmp(string, name, length) != 0 || string[length] != ':') return false;
    const char *digits = string + length + 1;
    if (*digits < '0' || *digits > '9' || !text_parse_whole(digits, &number)) return false;
    if (number > INT_MAX - count) return false;
    *(int *)o->target = count + (int)number;
    return true;
}

static bool set_choice(const args_option *o, const char *string)
{
    int count = 0;
    const char *same = args_same_value(string);
    for (; o->choices[count]; count++) {
        const char *choice = o->choices[count];
        if (strcmp(choice, string) != 0 && !(same && strcmp(choice, same) == 0)) continue;
        *(int *)o->target = count;
        return true;
    }
    return o->numbered && set_numbered(o, count, string);
}

static bool add_to_list(args_list *list, const char *string)
{
    if (list->count == list->room) return false;
    list->items[list->count++] = string;
    return true;
}

bool args_set_value(const args_option *o, const char *string)
{
    if (args_is_whole(o)) return set_whole(o, string);
    if (args_is_real(o)) return set_real(o, string);
    if (o->type == ARGS_TYPE_BYTES) return text_parse_bytes(string, o->target);
    if (o->type == ARGS_TYPE_CHOICE) return set_choice(o, string);
    if (is_text(o) && !is_utf8(string, strlen(string))) return false;
    if (o->type == ARGS_TYPE_TEXTS) return add_to_list(o->target, string);
    if (o->type == ARGS_TYPE_PATHS) return *string && add_to_list(o->target, string);
    if (o->type == ARGS_TYPE_PATH && !*string) return false;
    *(const char **)o->target = string;
    return true;
}

/* ---- the parse ---- */

static const args_option *nth_positional(const args_spec *spec, int n)
{
    for (const args_option *o = spec->options; args_is_row(o); o++)
        if (o->positional && n-- == 0) return o;
    return NULL;
}

/* What has been parsed so far. */
typedef struct progress {
    const args_option *last; /* the option that came last */
    const args_option *old;  /* the first of an old form */
    const args_option *list; /* one that took values without a name */
    int positionals;
    bool own[ARGS_MOST_ROWS];   /* room for spec->seen */
    bool *seen;                 /* on the command line or in a run file */
    bool typed[ARGS_MOST_ROWS]; /* on the command line */
    const char *run_file;       /* NULL: none */
} progress;

static int apply_positional(const cursor *c, token *t, progress *p, FILE *err)
{
    bool listed = p->last && p->last->type == ARGS_TYPE_PATHS;
    if (listed) p->list = p->last;
    t->option = listed ? p->last : nth_positional(c->spec, p->positionals++);
    t->value = t->argument;
    if (t->option) return EXIT_OK;
    char message[ARGS_TEXT_ROOM];
    snprintf(message, sizeof message, "unexpected argument \"%.200s\"", t->argument);
    return args_report(err, c->spec, message);
}

static int apply_flag(const cursor *c, const token *t, FILE *err)
{
    const args_option *o = t->option;
    *(bool *)o->target = o->type == ARGS_TYPE_FLAG;
    if (!t->value) return EXIT_OK;
    char message[ARGS_TEXT_ROOM];
    snprintf(message, sizeof message, "--%s \"%.200s\": a flag, expected no value", o->name,
             t->value);
    return args_report(err, c->spec, message);
}

/* Notes that a row was given, on the command line. */
static void note(const cursor *c, const args_option *o, progress *p)
{
    if (o->given) *o->given = true;
    if (o->old && !p->old) p->old = o;
    p->last = o;
    if (o == launcher_option) return;
    p->seen[o - c->spec->options] = p->typed[o - c->spec->options] = true;
}

/* A list of the run file gives way to that of the command line. */
static void begin_list(const cursor *c, const args_option *o, progress *p)
{
    if (o->type != ARGS_TYPE_PATHS && o->type != ARGS_TYPE_TEXTS) return;
    if (!p->typed[o - c->spec->options]) ((args_list *)o->target)->count = 0;
}

/* Applies one token; EXIT_OK or EXIT_USAGE. */
static int apply(const cursor *c, token *t, progress *p, FILE *err)
{
    int code = t->positional ? apply_positional(c, t, p, err) : EXIT_OK;
    const args_option *o = t->option;
    if (code != EXIT_OK) return code;
    if (!o) return report_unknown(err, c->spec, t->argument);
    if (!args_is_flag(o) && !t->value) return report_missing_value(err, c, t);
    if (o == file_option) {
        p->last = o; /* it was read before the command line */
        return EXIT_OK;
    }
    begin_list(c, o, p);
    if (args_is_flag(o))
        code = apply_flag(c, t, err);
    else if (!args_set_value(o, t->value))
        return report_bad_value(err, c->spec, o, t->value);
    if (code == EXIT_OK) note(c, o, p);
    return code;
}

/* Whether a model that may stand without a name was given by one. */
static bool is_named(const args_spec *spec, const args_option *positional, const bool *seen)
{
    for (const args_option *o = spec->options; args_is_row(o); o++)
        if (!o->positional && seen[o - spec->options] &&
            (strcmp(o->name, positional->name) == 0 || o->old))
            return true;
    return false;
}

/* A list takes all that stands after its option. Where an argument without a name is missing then,
 * the list's last value is it: `predict --data rows.csv MODEL`, `eval --data rows.csv bert`. */
static void give_back(const args_spec *spec, progress *p)
{
    args_list *list = p->list ? p->list->target : NULL;
    const args_option *o = nth_positional(spec, p->positionals);
    if (!list || list->count < 2 || !o || p->seen[o - spec->options]) return;
    if (o->type != ARGS_TYPE_CHOICE && is_named(spec, o, p->seen)) return;
    if (!(o->required || o->old) || !args_set_value(o, list->items[list->count - 1])) return;
    list->count--;
    p->seen[o - spec->options] = p->typed[o - spec->options] = true;
    if (o->given) *o->given = true;
    if (o->old && !p->old) p->old = o;
}

static int check_required(const args_spec *spec, const bool *seen, FILE *err)
{
    char message[ARGS_TEXT_ROOM];
    text t = text_into(message, sizeof message);
    for (int i = 0; i < ARGS_MOST_ROWS && args_is_row(&spec->options[i]); i++) {
        if (!spec->options[i].required || seen[i]) continue;
        text_add(&t, t.used ? ", " : "required and missing: ");
        args_add_label(&t, &spec->options[i]);
    }
    return t.used ? args_report(err, spec, message) : EXIT_OK;
}

static bool noticed; /* a notice was printed */

/* On a terminal alone: scripts get what they always got. */
static void notice(FILE *err, const args_spec *spec, const char *what, const char *now)
{
    int fd = fileno(err);
    if (fd < 0 || !isatty(fd)) return;
    noticed = true;
    fprintf(err, "modelcenter %s: note: %s is an older form, which works through 0.x; now %s\n",
            spec->command, what, now);
}

static void notice_row(const args_spec *spec, const args_option *o, FILE *err)
{
    char name[NAME_ROOM + 2];
    snprintf(name, sizeof name, "--%.60s", o->name);
    notice(err, spec, o->positional ? "a model by its place" : name, o->help);
}

void args_old_form(const args_spec *spec, const char *what, const char *now)
{
    if (!noticed) notice(stderr, spec, what, now);
}

/* Reads --run-file, the last of them. */
static int apply_file(const cursor *start, progress *p, FILE *err)
{
    token t;
    for (cursor c = *start; next_token(&c, &t);)
        if (t.option == file_option && t.value) p->run_file = t.value;
    given_file = p->run_file;
    if (!p->run_file) return EXIT_OK;
    if (start->spec->run_file) *start->spec->run_file = p->run_file;
    return run_file_read(start->spec, p->run_file, p->seen, err);
}

static int parse_line(const cursor *start, FILE *err)
{
    token t;
    progress p = {.last = NULL};
    const args_spec *spec = start->spec;
    p.seen = spec->seen ? spec->seen : p.own;
    int code = apply_file(start, &p, err);
    for (cursor c = *start; code == EXIT_OK && next_token(&c, &t);) code = apply(&c, &t, &p, err);
    if (code == EXIT_OK) give_back(spec, &p);
    for (int i = 0; i < ARGS_MOST_ROWS; i++) from_file[i] = p.seen[i] && !p.typed[i];
    if (code == EXIT_OK) code = check_required(spec, p.seen, err);
    if (code == EXIT_OK && p.run_file) code = run_file_check(spec, p.run_file, p.typed, err);
    if (code == EXIT_OK && p.old) notice_row(spec, p.old, err);
    return code;
}

static void print_form(FILE *out, const args_spec *spec, args_form form)
{
    switch (form) {
    case ARGS_HELP_MAN: args_print_man(out, spec); break;
    case ARGS_HELP_BASH: args_print_bash(out, spec); break;
    case ARGS_HELP_ZSH: args_print_zsh(out, spec); break;
    default: args_print_help(out, spec);
    }
}

bool args_parse_to(const args_spec *spec, int argc, char **argv, int *code, FILE *out, FILE *err)
{
    const cursor start = {.spec = spec, .argc = argc, .argv = argv, .next = 1};
    token t;
    *code = EXIT_OK;
    /* Help first: the targets still hold the defaults then. */
    for (cursor c = start; next_token(&c, &t);) {
        if (!t.help) continue;
        print_form(out, spec, args_help_form(t.argument));
        return false;
    }
    *code = parse_line(&start, err);
    return *code == EXIT_OK;
}

args_list args_list_new(int argc)
{
    args_list list = {.items = calloc((size_t)argc + 1, sizeof *list.items)};
    list.room = list.items ? argc : 0;
    return list;
}

void args_table_add(args_table *table, const args_option *rows)
{
    for (; args_is_row(rows) && table->count < ARGS_MOST_ROWS; rows++)
        table->rows[table->count++] = *rows;
}

bool args_parse(const args_spec *spec, int argc, char **argv, int *code)
{
    return args_parse_to(spec, argc, argv, code, stdout, stderr);
}
