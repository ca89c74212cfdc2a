/* Where a job's secret comes from: variables, files that others may read, folders of others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <sys/stat.h>
#include <unistd.h>
#include "core/dist/control/job_secret_internal.h"

static const char text[] = "MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTI=";
static char folder[200], path[300];

static int make_folder(void **state)
{
    (void)state;
    const char *parent = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%.150s/mc-secret-XXXXXX", parent ? parent : P_tmpdir);
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/secret", folder);
    return unsetenv("MC_JOB_SECRET") || unsetenv("MC_JOB_SECRET_FILE");
}

static int remove_folder(void **state)
{
    char command[256];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static void put_file(const char *name, const void *bytes, size_t size, mode_t mode)
{
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(name, mode), 0);
}

/* An error that holds the text, and no byte of the secret. */
static void assert_refused(mc_error *error, const char *expected)
{
    assert_true(mc_error_is_set(error));
    if (!strstr(error->message, expected))
        fail_msg("\"%s\", expected \"%s\"", error->message, expected);
    assert_null(strstr(error->message, "MTIz"));
    mc_error_clear(error);
}

static void refuse_given(const char *expected)
{
    mc_error error = {0};
    mc_job_secret secret;
    assert_false(mc_job_secret_given(&error, &secret));
    assert_refused(&error, expected);
}

static void accept_given(size_t size)
{
    mc_error error = {0};
    mc_job_secret secret;
    if (!mc_job_secret_given(&error, &secret)) fail_msg("%s", error.message);
    assert_int_equal(secret.size, size);
    assert_memory_equal(secret.bytes, text, size);
    mc_job_secret_wipe(&secret);
    for (size_t i = 0; i < sizeof secret; i++) assert_int_equal(((uint8_t *)&secret)[i], 0);
}

static void test_variable(void **state)
{
    (void)state;
    char longer[MC_SECRET_MAX + 2];
    accept_given(0); /* none */
    setenv("MC_JOB_SECRET", "", 1);
    accept_given(0);
    setenv("MC_JOB_SECRET", text, 1);
    accept_given(sizeof text - 1);
    setenv("MC_JOB_SECRET_FILE", "/nowhere", 1);
    refuse_given("MC_JOB_SECRET_FILE and MC_JOB_SECRET are both set");
    unsetenv("MC_JOB_SECRET_FILE");
    setenv("MC_JOB_SECRET", "MTIzNDU2", 1);
    refuse_given("MC_JOB_SECRET: a secret of less than 32 bytes, expected 32 to 256");
    memset(longer, 'x', sizeof longer);
    longer[sizeof longer - 1] = '\0';
    setenv("MC_JOB_SECRET", longer, 1);
    refuse_given("MC_JOB_SECRET: a secret of more than 256 bytes, expected 32 to 256");
    unsetenv("MC_JOB_SECRET");
}

static void test_given_file(void **state)
{
    (void)state;
    char line[sizeof text + 1], link[300];
    snprintf(line, sizeof line, "%s\n", text);
    setenv("MC_JOB_SECRET_FILE", path, 1);
    refuse_given("secret\": No such file or directory");
    put_file(path, line, sizeof line - 1, 0600);
    accept_given(sizeof text - 1); /* without the line's end */
    static const mode_t modes[] = {0640, 0604, 0660, 0610};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        char expected[80];
        chmod(path, modes[i]);
        snprintf(expected, sizeof expected, "others have rights in it: mode %04o, expected 0600",
                 (unsigned)modes[i]);
        refuse_given(expected);
    }
    assert_int_equal(chmod(path, 0400), 0);
    accept_given(sizeof text - 1);
    snprintf(link, sizeof link, "%s/link", folder); /* as secrets are mounted into containers */
    assert_int_equal(symlink(path, link), 0);
    setenv("MC_JOB_SECRET_FILE", link, 1);
    accept_given(sizeof text - 1);
    setenv("MC_JOB_SECRET_FILE", folder, 1);
    refuse_given("it is not a file");
    if (geteuid() == 0) {
        setenv("MC_JOB_SECRET_FILE", path, 1);
        assert_int_equal(chown(path, 1, 1), 0);
        refuse_given("it belongs to user 1, expected user 0");
    } else {
        printf("SKIPPED: a file of another user (needs root)\n");
    }
    unsetenv("MC_JOB_SECRET_FILE");
}

/* The line that makes one does, and the result is accepted. */
static void test_missing(void **state)
{
    (void)state;
    mc_error error = {0};
    char command[600];
    mc_job_secret_missing(&error);
    const char *line = strstr(error.message, "(umask");
    assert_non_null(line);
    assert_null(strchr(error.message, '\n'));
    snprintf(command, sizeof command,
             "HOME=%s; { %s; } && [ \"$MC_JOB_SECRET_FILE\" = %s/job-secret ]", folder, line,
             folder);
    assert_int_equal(system(command), 0);
    mc_error_clear(&error);
    mc_job_secret secret;
    snprintf(command, sizeof command, "%s/job-secret", folder);
    setenv("MC_JOB_SECRET_FILE", command, 1);
    assert_true(mc_job_secret_given(&error, &secret));
    assert_int_equal(secret.size, 44);
    unsetenv("MC_JOB_SECRET_FILE");
}

/* ---- the file of one host -------------------------------------------------------------------- */

static void test_file(void **state)
{
    (void)state;
    mc_error error = {0};
    mc_secret_file file;
    mc_job_secret written, found;
    char why[4600], full[300], other[300];
    setenv("XDG_RUNTIME_DIR", folder, 1);
    assert_true(mc_secret_file_init(&error, &file, 77, 4000));
    assert_string_equal(file.folder, folder);
    snprintf(full, sizeof full, "%s/%s", folder, file.name);
    assert_false(mc_secret_file_read(&file, &found, why, sizeof why));
    assert_non_null(strstr(why, "No such file"));
    assert_true(mc_job_secret_random(&error, &written));
    assert_true(mc_secret_file_write(&error, &file, &written));
    assert_true(mc_secret_file_read(&file, &found, why, sizeof why));
    assert_memory_equal(found.bytes, written.bytes, MC_SECRET_MIN);
    assert_true(mc_secret_file_write(&error, &file, &written)); /* that of before is replaced */

    assert_int_equal(chmod(full, 0644), 0);
    assert_false(mc_secret_file_read(&file, &found, why, sizeof why));
    assert_non_null(strstr(why, "others have rights in it: mode 0644, expected 0600"));
    assert_int_equal(chmod(full, 0600), 0);
    if (geteuid() == 0) {
        assert_int_equal(chown(full, 1, 1), 0);
        assert_false(mc_secret_file_read(&file, &found, why, sizeof why));
        assert_non_null(strstr(why, "it belongs to user 1, expected user 0"));
    }
    snprintf(other, sizeof other, "%s/other", folder);
    assert_int_equal(rename(full, other), 0);
    assert_int_equal(symlink(other, full), 0);
    assert_false(mc_secret_file_read(&file, &found, why, sizeof why));
    assert_non_null(strstr(why, "symbolic link"));
    mc_secret_file_remove(&file); /* the link, not what it leads to */
    assert_int_equal(access(other, F_OK), 0);
    assert_int_equal(mkdir(full, 0700), 0);
    assert_false(mc_secret_file_write(&error, &file, &written));
    assert_refused(&error, full);
}

/* The private folder, where XDG_RUNTIME_DIR is none. */
static void test_folder(void **state)
{
    (void)state;
    mc_error error = {0};
    mc_secret_file file;
    struct stat info;
    char own[300], shared[300], elsewhere[300];
    snprintf(own, sizeof own, "%s/modelcenter-%u", folder, (unsigned)geteuid());
    snprintf(shared, sizeof shared, "%s/shared", folder);
    snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", folder);
    setenv("TMPDIR", folder, 1);
    assert_int_equal(mkdir(shared, 0755), 0);
    assert_int_equal(chmod(shared, 0755), 0);
    static const char *const others[] = {"", "/nowhere", "shared"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        setenv("XDG_RUNTIME_DIR", strcmp(others[i], "shared") == 0 ? shared : others[i], 1);
        assert_true(mc_secret_file_init(&error, &file, 77, 4000));
        assert_string_equal(file.folder, own);
        assert_int_equal(stat(own, &info), 0);
        assert_int_equal(info.st_mode & 07777, 0700);
    }
    assert_int_equal(chmod(own, 0750), 0);
    assert_false(mc_secret_file_init(&error, &file, 77, 4000));
    assert_refused(&error, "others have rights in it: mode 0750, expected 0700");
    assert_int_equal(chmod(own, 0700), 0);
    if (geteuid() == 0) {
        assert_int_equal(chown(own, 1, 1), 0);
        assert_false(mc_secret_file_init(&error, &file, 77, 4000));
        assert_refused(&error, "it belongs to user 1, expected user 0");
    }
    assert_int_equal(rename(own, elsewhere), 0);
    assert_int_equal(symlink(elsewhere, own), 0); /* planted, before there was a folder */
    assert_false(mc_secret_file_init(&error, &file, 77, 4000));
    assert_refused(&error, own);
    setenv("TMPDIR", "/nowhere", 1);
    assert_false(mc_secret_file_init(&error, &file, 77, 4000));
    assert_refused(&error, "No such file or directory");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_variable), cmocka_unit_test(test_given_file),
        cmocka_unit_test(test_missing),  cmocka_unit_test(test_file),
        cmocka_unit_test(test_folder),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
