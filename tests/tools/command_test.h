/* What the tests of commands share: a folder, and running a shell line in it. Include after
 * cmocka.h. */
#ifndef MC_TESTS_COMMAND_TEST_H
#define MC_TESTS_COMMAND_TEST_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include "tests/temp_folder.h"

enum { TEXT_ROOM = 1 << 18 };

static temp_folder folder; /* of most tests */

static inline int make_folder(void **state)
{
    (void)state;
    folder = temp_folder_new();
    return 0;
}

static inline int remove_folder(void **state)
{
    (void)state;
    temp_folder_free(&folder);
    return 0;
}

/* Of the last line that was run: what it printed. */
static char out[TEXT_ROOM], err[TEXT_ROOM];

static inline void read_text(char text[TEXT_ROOM], const temp_folder *where, const char *name)
{
    FILE *file = fopen(temp_path(where, name), "r");
    assert_non_null(file);
    text[fread(text, 1, TEXT_ROOM - 1, file)] = '\0';
    fclose(file);
}

/* The exit code of a shell line in the folder; `variables` are assignments for it, "" or ending in
 * " && ", to which $MC is the command. */
static inline int run_in(const temp_folder *where, const char *variables, const char *line)
{
    char whole[4096];
    int length = snprintf(whole, sizeof whole, "cd '%s' && MC='%s' && %s{ %s\n} >out 2>err",
                          where->path, MC_TOOL, variables, line);
    assert_true(length < (int)sizeof whole);
    int status = system(whole);
    assert_true(WIFEXITED(status));
    read_text(out, where, "out");
    read_text(err, where, "err");
    return WEXITSTATUS(status);
}

#endif
