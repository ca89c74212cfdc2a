/* What the tests of commands share: a folder, running a shell line in it, and looking at what it
 * printed. Include after cmocka.h; COMMAND_VARIABLES may be defined before, as run_in's. */
#ifndef MC_TESTS_COMMAND_TEST_H
#define MC_TESTS_COMMAND_TEST_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include "tests/temp_folder.h"
#include "tests/test_part.h"

#ifndef COMMAND_VARIABLES
#define COMMAND_VARIABLES ""
#endif

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
    int length =
        snprintf(whole, sizeof whole, "cd '%s' && MC='%s' && %s{ %s\n} </dev/null >out 2>err",
                 where->path, MC_TOOL, variables, line);
    assert_true(length < (int)sizeof whole);
    int status = system(whole);
    assert_true(WIFEXITED(status));
    read_text(out, where, "out");
    read_text(err, where, "err");
    return WEXITSTATUS(status);
}

/* The same in the tests' folder, with their variables. */
static inline int run(const char *line) { return run_in(&folder, COMMAND_VARIABLES, line); }

static inline void must(const char *line)
{
    int code = run(line);
    if (code) fail_msg("exit %d of: %s\n%.3000s", code, line, err);
}

/* The line has to fail with that exit code, and that text in its error. */
static inline void must_refuse(int code, const char *what, const char *line)
{
    int found = run(line);
    if (found != code || !strstr(err, what))
        fail_msg("exit %d, expected %d with \"%s\", of: %s\n%.3000s", found, code, what, line, err);
}

static inline void must_hold(const char *where, const char *what)
{
    if (!strstr(where, what)) fail_msg("no \"%s\" in:\n%s", what, where);
}

static inline double number_after(const char *text, const char *key)
{
    const char *at = strstr(text, key);
    if (!at) fail_msg("no %s in: %s", key, text);
    return atof(at + strlen(key));
}

static inline void read_into(char text[TEXT_ROOM], const char *name)
{
    read_text(text, &folder, name);
}

/* ---- runs that go on ------------------------------------------------------------------------- */

/* Leaves of each line of a log what does not depend on the clock. */
static inline void without_times(char *text)
{
    char *to = text;
    for (char *line = text; *line;) {
        char *end = strchr(line, '\n'), *times = strstr(line, ",\"ms\"");
        assert_non_null(end);
        char *stop = times && times < end ? times : end;
        memmove(to, line, (size_t)(stop - line));
        to += stop - line;
        *to++ = '\n';
        line = end + 1;
    }
    *to = '\0';
}

static inline void same_logs(const char *a, const char *b)
{
    static char first[TEXT_ROOM], second[TEXT_ROOM];
    read_into(first, a);
    read_into(second, b);
    without_times(first);
    without_times(second);
    assert_string_equal(first, second);
}

static inline void sleep_ms(int ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&time, NULL);
}

#endif
