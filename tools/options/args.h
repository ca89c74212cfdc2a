/* The command line of a subcommand, as one table.
 *
 *     int64_t epochs = 1; double lr = 5e-5; const char *output = NULL; bool shuffle = true;
 *     const args_option options[] = {
 *         {ARGS_PATH("output", &output, "folder to save to"), .required = true},
 *         {ARGS_INT("epochs", &epochs, 0, 100000, "passes over the training rows")},
 *         {ARGS_REAL("lr", &lr, 0, 1, "peak learning rate")},
 *         {ARGS_FLAG_OFF("no-shuffle", &shuffle, "train in file order")},
 *         {0},
 *     };
 *     const args_spec spec = {.command = "finetune", .summary = "...", .options = options};
 *     int code;
 *     if (!args_parse(&spec, argc, argv, &code)) return code;
 *
 * The default of an option is what its target holds before parsing; --help prints it. Options are
 * written `--name value` or `--name=value`; '_' in a name reads as '-'; the last of a repeated
 * option counts; `--` ends the options. A separate value may start with '-' (a negative number) but
 * not look like an option (`--word`): then it has to be written with '='. Abbreviations are not
 * taken, but some names that an option or a value has elsewhere are (args_names.c): --model
 * where it is --pretrained here, float32 for f32. `--help` and `-h` print the usage wherever an
 * option may stand; `--help=man`, `--help=bash` and `--help=zsh` print it as a manual page and for
 * a shell's completion. `--local-rank N`, which old launchers add, is taken everywhere and ignored.
 */
#ifndef MC_TOOLS_ARGS_H
#define MC_TOOLS_ARGS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef enum args_type {
    ARGS_TYPE_NONE = 0, /* ends the table */
    ARGS_TYPE_HEADING,  /* a title in the help; name is its text */
    ARGS_TYPE_FLAG,     /* bool, set to true */
    ARGS_TYPE_FLAG_OFF, /* bool, set to false */
    ARGS_TYPE_INT32,
    ARGS_TYPE_INT64,
    ARGS_TYPE_UINT64,
    ARGS_TYPE_FLOAT,
    ARGS_TYPE_DOUBLE,
    ARGS_TYPE_BYTES, /* int64_t: bytes, or a number with KB, MB, GB or TB after it */
    ARGS_TYPE_TEXT,  /* const char *, any, also empty */
    ARGS_TYPE_TEXTS, /* args_list: the value, any; the option may be repeated */
    ARGS_TYPE_PATH,  /* const char *, not empty */
    ARGS_TYPE_PATHS, /* args_list: the value and what stands after it, up to the next option */
    ARGS_TYPE_CHOICE,
    ARGS_TYPE_IGNORED, /* a whole number that goes nowhere */
} args_type;

/* The values of an option that takes several; those of a repeated one add up. */
typedef struct args_list {
    const char **items; /* (room), the caller's, of malloc; argc are enough, and a run file that
                           lists more makes it longer */
    int count, room;
} args_list;
/* An empty list for a command line of `argc` words. NULL stands after the items, which are to be
 * freed; without memory it takes none. */
args_list args_list_new(int argc);

typedef struct args_option {
    const char *name; /* without the dashes */
    args_type type;
    void *target;               /* what it points to depends on the type: see the macros */
    const char *help;           /* one sentence, no full stop */
    int64_t low, high;          /* of whole numbers, both allowed */
    double real_low, real_high; /* of real numbers, both allowed; -INFINITY, INFINITY: no bound */
    const char *const
        *choices; /* ends in NULL; the target is an int, the index of the one chosen */
    bool (*offers)(int choice); /* whether help and errors name the choice; NULL: all are named */
    bool numbered; /* the last choice may have a number, "cuda:3": as many choices further, + 1 */
    bool above_low, below_high; /* real numbers: the bound itself is not allowed */
    bool required;
    bool positional; /* given by its place, without a name; in the order of the table */
    bool old;  /* an older form: works, is not in the help, and gets a notice on a terminal; `help`
                  is what to write now, "--model FOLDER_OR_IDENTIFIER" */
    bool once; /* is about one call and not about the run: not kept in its run.json */
    bool *given;              /* set to true when the option is on the command line; NULL: unused */
    const char *value_name;   /* in the help, e.g. "STEPS"; NULL: after the type */
    const char *default_text; /* in the help, in place of the target's value; "" for none */
    const char *known_as;     /* names it has elsewhere, for "did you mean": "learning-rate,eta" */
} args_option;

/* Each makes the fields of one row; further fields may follow: {ARGS_INT(...), .required = true}.
 * Targets: bool; int, int64_t or uint64_t; float or double; const char *; int for a choice. Texts
 * point into argv. */
#define ARGS_HEADING(title) .name = (title), .type = ARGS_TYPE_HEADING
#define ARGS_FLAG(option_name, pointer, explanation)                              \
    .name = (option_name), .type = ARGS_TYPE_FLAG, .target = (bool *){(pointer)}, \
    .help = (explanation)
#define ARGS_FLAG_OFF(option_name, pointer, explanation)                              \
    .name = (option_name), .type = ARGS_TYPE_FLAG_OFF, .target = (bool *){(pointer)}, \
    .help = (explanation)
#define ARGS_INT(option_name, pointer, lowest, highest, explanation) \
    .name = (option_name),                                                                         \
    .type = _Generic((pointer),                                                                    \
        int *: ARGS_TYPE_INT32,                                                                    \
        int64_t *: ARGS_TYPE_INT64,                                                                \
        uint64_t *: ARGS_TYPE_UINT64),                                                             \
    .target = (pointer), .low = (lowest), .high = (highest), .help = (explanation)
#define ARGS_REAL(option_name, pointer, lowest, highest, explanation) \
    .name = (option_name),                                                                         \
    .type = _Generic((pointer), float *: ARGS_TYPE_FLOAT, double *: ARGS_TYPE_DOUBLE),             \
    .target = (pointer), .real_low = (lowest), .real_high = (highest), .help = (explanation)
#define ARGS_BYTES(option_name, pointer, explanation)                                 \
    .name = (option_name), .type = ARGS_TYPE_BYTES, .target = (int64_t *){(pointer)}, \
    .help = (explanation)
#define ARGS_TEXT(option_name, pointer, explanation)                                     \
    .name = (option_name), .type = ARGS_TYPE_TEXT, .target = (const char **){(pointer)}, \
    .help = (explanation)
#define ARGS_TEXTS(option_name, pointer, explanation)                                   \
    .name = (option_name), .type = ARGS_TYPE_TEXTS, .target = (args_list *){(pointer)}, \
    .help = (explanation)
#define ARGS_PATH(option_name, pointer, explanation)                                     \
    .name = (option_name), .type = ARGS_TYPE_PATH, .target = (const char **){(pointer)}, \
    .help = (explanation)
#define ARGS_PATHS(option_name, pointer, explanation)                                   \
    .name = (option_name), .type = ARGS_TYPE_PATHS, .target = (args_list *){(pointer)}, \
    .help = (explanation)
#define ARGS_CHOICE(option_name, pointer, names, explanation)                      \
    .name = (option_name), .type = ARGS_TYPE_CHOICE, .target = (int *){(pointer)}, \
    .choices = (names), .help = (explanation)

/* A table that is put together, so that commands can share parts of it:
 *
 *     args_table table = {.count = 0};
 *     ARGS_ADD(&table, {ARGS_INT(...)}, {ARGS_REAL(...), .required = true});
 *     train_add_log_rows(&table, &o.train);
 *     const args_spec spec = {..., .options = table.rows};
 *
 * What does not fit is left out, which the tests of --help would see. */
enum { ARGS_MOST_ROWS = 128 };
typedef struct args_table {
    args_option rows[ARGS_MOST_ROWS + 1]; /* always ends in a row of zeros */
    int count;
} args_table;
/* Adds copies of the rows before the one of zeros. */
void args_table_add(args_table *table, const args_option *rows);
#define ARGS_ADD(table, ...) args_table_add(table, (args_option[]){__VA_ARGS__, {0}})

typedef struct args_spec {
    const char *command; /* the subcommand's name */
    const char *summary; /* one line */
    const char *details; /* printed as it is below the options; NULL: nothing */
    const args_option *options;
    bool *seen;            /* (ARGS_MOST_ROWS): set for rows that were given; NULL: not needed */
    const char **run_file; /* set to the path of --run-file, if one was given; NULL: not needed */
} args_spec;

/* What a command returns to its shell. */
enum { EXIT_OK = 0, EXIT_RUN_FAILED = 1, EXIT_USAGE = 2, EXIT_INTERRUPTED = 130 };

/* Reads argv[1 .. argc) into the targets. Returns true when the command should run. Otherwise *code
 * is what it should return: EXIT_OK after --help (printed on stdout), EXIT_USAGE after an error on
 * stderr that names the option, its value, and what was expected; required options that miss are
 * named all at once. Targets may have changed after an error. */
bool args_parse(const args_spec *spec, int argc, char **argv, int *code);
/* The same, to other streams than stdout and stderr. */
bool args_parse_to(const args_spec *spec, int argc, char **argv, int *code, FILE *out, FILE *err);

/* The forms of help, in the order of their spellings. */
typedef enum args_form {
    ARGS_NO_HELP,
    ARGS_HELP,      /* --help, -h */
    ARGS_HELP_MAN,  /* --help=man */
    ARGS_HELP_BASH, /* --help=bash */
    ARGS_HELP_ZSH,  /* --help=zsh */
} args_form;
/* Which of them an argument asks for. */
args_form args_help_form(const char *argument);
/* Prints `size` bytes of a text, up to its NUL, for roff: as they are typed, nothing a request. */
void args_roff(FILE *out, const char *string, size_t size);
/* Prints a text for zsh within single quotes, in an argument of _arguments or _describe. */
void args_zsh(FILE *out, const char *string);

/* The path of the --run-file that the last command line gave, an input as any other; NULL: none. */
const char *args_run_file(void);

/* An error in the same form, for what a table can't say ("--text or --file, not both"). Prints it
 * on stderr and returns EXIT_USAGE. */
int args_error(const args_spec *spec, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The notice about an older form, for what a row's `old` can't say: "--text COLUMN", and what to
 * write now. On a terminal alone, and unless there was one. */
void args_old_form(const args_spec *spec, const char *what, const char *now);

#endif
