/* A locale whose numbers have a comma, as a program may set: "1,5". Include after cmocka.h. */
#ifndef MC_TESTS_COMMA_LOCALE_H
#define MC_TESTS_COMMA_LOCALE_H

#include <locale.h>
#include "tests/temp_folder.h"

/* Compiles German's from the sources that Debian's package `locales` installs, and sets it. Without
 * them the test is skipped. */
static inline void begin_comma_locale(void)
{
    temp_folder folder = temp_folder_new();
    char line[1200];
    snprintf(line, sizeof line, "localedef -i de_DE -f UTF-8 '%s/de_DE.UTF-8' >/dev/null 2>&1",
             folder.path);
    int code = system(line);
    setenv("LOCPATH", folder.path, 1);
    const char *set = code == 0 ? setlocale(LC_NUMERIC, "de_DE.UTF-8") : NULL;
    unsetenv("LOCPATH");
    temp_folder_free(&folder); /* the locale is in memory */
    if (!set) skip();
    assert_string_equal(localeconv()->decimal_point, ",");
}

static inline void end_comma_locale(void) { setlocale(LC_NUMERIC, "C"); }

#endif
