/* The `modelcenter` command: finds the subcommand and runs it. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/about/about.h"
#include "core/base/context.h"
#include "core/base/fault.h"
#include "core/base/version.h"
#include "tools/options/args.h"
#include "tools/commands.h"
#include "tools/options/manual.h"
#include "tools/files/text.h"

#define MC_COMMAND_ROW(name, summary) {#name, summary, cmd_##name},
static const command commands[] = {MC_COMMANDS(MC_COMMAND_ROW)};
#undef MC_COMMAND_ROW

enum { COMMAND_COUNT = sizeof commands / sizeof *commands, MOST_PARTS = 32 };

static const command *find_command(const char *name)
{
    for (int i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(commands[i].name, name) == 0) return &commands[i];
    return NULL;
}

static void print_usage(FILE *out)
{
    fprintf(out, "usage: modelcenter <command> [options]\n\n"
                 "Trains big language models, and uses them.\n\ncommands:\n");
    for (int i = 0; i < COMMAND_COUNT; i++)
        fprintf(out, "  %-12s %s\n", commands[i].name, commands[i].summary);
    fprintf(out, "\n`modelcenter <command> --help` explains a command's options.\n"
                 "`modelcenter --version` prints the version.\n");
}

static int print_version(void)
{
    mc_part parts[MOST_PARTS];
    int count = mc_parts(parts, MOST_PARTS);
    printf("modelcenter %s\ncommit %s of %s\nbuilt in:", mc_version(), mc_build_commit(),
           mc_build_date());
    const char *before = " ";
    for (int i = 0; i < count && i < MOST_PARTS; i++) {
        if (!parts[i].built) continue;
        printf("%s%s", before, parts[i].name);
        before = ", ";
    }
    printf("\n");
    if (strcmp(mc_version(), MC_VERSION) != 0)
        fprintf(stderr, "warning: built for version %s of the library\n", MC_VERSION);
    return EXIT_OK;
}

/* What is called otherwise elsewhere. */
static const char *other_name(const char *name)
{
    static const char *const names[][2] = {
        {"train", "finetune or pretrain"},
        {"fit", "finetune"},
        {"evaluate", "eval"},
        {"test", "eval"},
        {"classify", "predict"},
        {"infer", "predict"},
        {"inference", "predict"},
        {"encode", "embed"},
        {"embeddings", "embed"},
        {"chat", "generate"},
        {"run", "generate"},
        {"export", "convert"},
        {"merge", "convert --merge"},
        {"pull", "download"},
        {"preprocess", "prepare"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i][0], name) == 0) return names[i][1];
    return NULL;
}

static int report_unknown(const char *name)
{
    const char *nearest = NULL;
    size_t best = SIZE_MAX;
    for (int i = 0; i < COMMAND_COUNT; i++) {
        size_t distance = text_distance(commands[i].name, name);
        if (distance < best) {
            best = distance;
            nearest = commands[i].name;
        }
    }
    const char *other = other_name(name);
    bool near = other || (nearest && text_is_near(name, best));
    if (other) nearest = other;
    fprintf(stderr, "modelcenter: unknown %s \"%s\"%s%s%s\n(see: modelcenter --help)\n",
            name[0] == '-' ? "option" : "command", name, near ? " (did you mean " : "",
            near ? nearest : "", near ? "?)" : "");
    return EXIT_USAGE;
}

/* `modelcenter help [command]` */
static int help(int argc, char **argv)
{
    if (argc < 2) {
        print_usage(stdout);
        return EXIT_OK;
    }
    const command *c = find_command(argv[1]);
    if (!c) return report_unknown(argv[1]);
    char option[] = "--help", *arguments[] = {argv[1], option, NULL};
    return c->run(2, arguments);
}

static bool is_one_of(const char *word, const char *a, const char *b)
{
    return strcmp(word, a) == 0 || strcmp(word, b) == 0;
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        print_usage(stderr);
        return EXIT_USAGE;
    }
    const char *word = argv[1];
    if (is_one_of(word, "--version", "version")) return print_version();
    if (is_one_of(word, "--help", "-h")) return help(1, argv + 1);
    args_form form = args_help_form(word);
    if (form > ARGS_HELP) return manual_print(form, commands, COMMAND_COUNT);
    if (strcmp(word, "help") == 0) return help(argc - 1, argv + 1);
    const command *c = find_command(word);
    return c ? c->run(argc - 1, argv + 1) : report_unknown(word);
}

/* Lets idle threads sleep instead of spinning. GNU's OpenMP spins by default, which costs little on
 * a dedicated machine, but a factor of ten and more as soon as another process wants one of the
 * cores; sleeping costs microseconds a loop. It reads its settings when it is loaded, so the
 * program starts itself once more; a policy that the user has chosen stays. */
static void settle_threads(char **argv)
{
    bool chosen = getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT");
    if (!chosen && setenv("OMP_WAIT_POLICY", "passive", 1) == 0) execv("/proc/self/exe", argv);
    /* where that is not to be had, the run is merely slower */
}

/* A stream that is closed when the program starts would be the next file that it opens: a model's
 * weights, to which the progress then goes. Nothing comes from a closed stdin; what is printed to a
 * closed stdout is lost, which is an error; nobody reads a closed stderr. */
static bool hold_closed_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) != -1) continue;
        if (open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY) != fd) return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    if (!hold_closed_streams()) return EXIT_RUN_FAILED;
    signal(SIGXFSZ, SIG_IGN); /* a file over the limit (ulimit -f) is an error of its write */
    settle_threads(argv);
    mc_install_fault_handler(); /* a file that becomes shorter is an error, not the end */
    setvbuf(stderr, NULL, _IOLBF, BUFSIZ); /* whole lines, where several ranks write them */
    int code = dispatch(argc, argv);
    /* an answer that didn't arrive is a failure, e.g. on a full disk */
    errno = 0;
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == EXIT_OK) {
        fprintf(stderr, "modelcenter: cannot write to stdout%s%s\n", errno ? ": " : "",
                errno ? strerror(errno) : "");
        code = EXIT_RUN_FAILED;
    }
    return code;
}
