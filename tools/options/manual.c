#include "tools/options/manual.h"

#include <string.h>
#include "core/base/version.h"

static void print_man(const command *commands, int count)
{
    printf(".TH MODELCENTER 1 \"\" \"modelcenter %s\" \"modelcenter\"\n.SH NAME\n"
           "modelcenter \\- trains big language models, and uses them\n.SH SYNOPSIS\n"
           ".B modelcenter\ncommand\n[options]\n.SH DESCRIPTION\n"
           "Each command has a page of its own and explains its options with \\fB\\-\\-help\\fR.\n"
           ".SH COMMANDS\n",
           MC_VERSION);
    for (int i = 0; i < count; i++) {
        printf(".TP\n.BR modelcenter\\-%s (1)\n", commands[i].name);
        args_roff(stdout, commands[i].summary, strlen(commands[i].summary));
        printf("\n");
    }
    printf(
        ".SH OPTIONS\n"
        ".TP\n.BR \\-\\-help , \\-h\nprint the commands and leave\n"
        ".TP\n.B \\-\\-version\nprint the version and leave\n"
        ".TP\n\\fB\\-\\-help=man\\fR, \\fB\\-\\-help=bash\\fR, \\fB\\-\\-help=zsh\\fR\n"
        "print this page in roff, or a script by which the shell completes commands and options; "
        "after a command: its page, or its part of the script\n"
        ".SH EXIT STATUS\n0 on success, 1 after an error, 2 for a wrong command line, 130 when "
        "interrupted.\n.SH SEE ALSO\n");
    for (int i = 0; i < count; i++)
        printf(".BR modelcenter\\-%s (1)%s\n", commands[i].name, i + 1 < count ? "," : "");
}

/* What each command prints of its own table. */
static int print_parts(const char *option, const command *commands, int count)
{
    int code = EXIT_OK;
    for (int i = 0; i < count && code == EXIT_OK; i++) {
        char name[32], form[32], *arguments[] = {name, form, NULL};
        snprintf(name, sizeof name, "%s", commands[i].name);
        snprintf(form, sizeof form, "%s", option);
        code = commands[i].run(2, arguments);
    }
    return code;
}

static int print_bash(const command *commands, int count)
{
    printf("# Completion of bash for modelcenter. Made when it was built, do not edit.\n"
           "_modelcenter_commands='");
    for (int i = 0; i < count; i++) printf("%s%s", i ? " " : "", commands[i].name);
    printf("'\n\n# Of a command a line an option, or an argument by its number: what it takes.\n"
           "_modelcenter_rows()\n{\n    case $1 in\n");
    int code = print_parts("--help=bash", commands, count);
    printf("    esac\n}\n\n");
    return code;
}

static int print_zsh(const command *commands, int count)
{
    printf("#compdef modelcenter\n# Made when it was built, do not edit.\n_modelcenter()\n{\n"
           "    local context state line curcontext=$curcontext\n    typeset -A opt_args\n"
           "    local -a commands=(\n");
    for (int i = 0; i < count; i++)
        printf("        '%s:", commands[i].name), args_zsh(stdout, commands[i].summary),
            printf("'\n");
    printf("    )\n    _arguments -C '(- *)'{--help,-h}'[print the commands]' "
           "'(- *)--version[print the version]' \\\n"
           "        '1:command:->command' '*::argument:->argument' && return\n"
           "    if [[ $state == command ]]; then\n"
           "        _describe command commands\n        return\n    fi\n    case $words[1] in\n");
    int code = print_parts("--help=zsh", commands, count);
    printf("    esac\n}\n_modelcenter \"$@\"\n");
    return code;
}

int manual_print(args_form form, const command *commands, int count)
{
    if (form == ARGS_HELP_BASH) return print_bash(commands, count);
    if (form == ARGS_HELP_ZSH) return print_zsh(commands, count);
    print_man(commands, count);
    return EXIT_OK;
}
