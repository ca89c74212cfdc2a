/* Where identifiers lead: folders as they stand, then the Hugging Face cache. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/base/memory_internal.h"
#include "core/checkpoint/hub_internal.h"
#include "tests/temp_folder.h"

#define COMMIT "0123456789abcdef0123456789abcdef01234567"

static const char *const variables[] = {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME",
                                        "XDG_CACHE_HOME", "HOME"};

typedef struct fixture {
    temp_folder folder;
    mc_error err;
    char found[MC_PATH_MAX];
} fixture;

/* Every test starts with none of the variables but HOME set. */
static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    f->folder = temp_folder_new();
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) unsetenv(variables[i]);
    setenv("HOME", f->folder.path, 1);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    mc_error_clear(&f->err);
    temp_folder_free(&f->folder);
    free(f);
    return 0;
}

/* Puts a model into a cache: refs/<ref> (unless NULL) and snapshots/<commit>. */
static void add_model(fixture *f, const char *root, const char *repo, const char *ref,
                      const char *commit)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s/%s/snapshots/%s", f->folder.path, root, repo, commit);
    assert_int_equal(mc_make_folders(&f->err, path), MC_OK);
    if (!ref) return;
    snprintf(path, sizeof path, "%s/%s/%s/refs/%s", f->folder.path, root, repo, ref);
    *strrchr(path, '/') = '\0';
    assert_int_equal(mc_make_folders(&f->err, path), MC_OK);
    snprintf(path, sizeof path, "%s/%s/%s/refs/%s", f->folder.path, root, repo, ref);
    write_text(path, commit);
}

/* Finds a folder in the cache as it is, without a network. */
static mc_status resolve(fixture *f, const char *identifier)
{
    mc_hub_answer answer;
    mc_status status = mc_hub_resolve(&f->err, identifier, NULL, &answer);
    memcpy(f->found, answer.folder, sizeof f->found);
    if (status || *f->found) return status;
    return mc_hub_not_found(&f->err, MC_ERR_NOT_FOUND, identifier, &answer, "Go and get it");
}

static void expect_found(fixture *f, const char *identifier, const char *below)
{
    mc_status status = resolve(f, identifier);
    if (status) print_error("%s\n", f->err.message);
    assert_int_equal(status, MC_OK);
    assert_string_equal(f->found, temp_path(&f->folder, below));
}

static void expect_error(fixture *f, const char *identifier, mc_status status, const char *part)
{
    assert_int_equal(resolve(f, identifier), status);
    assert_int_equal(f->err.status, status);
    if (!strstr(f->err.message, part)) fail_msg("\"%s\" not in: %s", part, f->err.message);
    mc_error_clear(&f->err);
}

static void folders_are_used_as_they_stand(void **state)
{
    fixture *f = *state;
    assert_int_equal(mc_make_folders(&f->err, temp_path(&f->folder, "a/b@c")), MC_OK);
    expect_found(f, temp_path(&f->folder, "a/b@c"), "a/b@c");
    assert_int_equal(resolve(f, ".."), MC_OK);
    assert_string_equal(f->found, "..");
}

static void roots_are_tried_in_order(void **state)
{
    fixture *f = *state;
    add_model(f, ".cache/huggingface/hub", "models--o--n", "main", "c1");
    expect_found(f, "o/n", ".cache/huggingface/hub/models--o--n/snapshots/c1");
    add_model(f, "xdg/huggingface/hub", "models--o--n", "main", "c2");
    setenv("XDG_CACHE_HOME", temp_path(&f->folder, "xdg"), 1);
    expect_found(f, "o/n", "xdg/huggingface/hub/models--o--n/snapshots/c2");
    add_model(f, "hf/hub", "models--o--n", "main", "c3");
    setenv("HF_HOME", "~/hf", 1);
    expect_found(f, "o/n", "hf/hub/models--o--n/snapshots/c3");
    add_model(f, "old", "models--o--n", "main", "c4");
    setenv("HUGGINGFACE_HUB_CACHE", temp_path(&f->folder, "old"), 1);
    expect_found(f, "o/n", "old/models--o--n/snapshots/c4");
    add_model(f, "new", "models--o--n", "main", "c5");
    setenv("HF_HUB_CACHE", temp_path(&f->folder, "new"), 1);
    expect_found(f, "o/n", "new/models--o--n/snapshots/c5");
    setenv("HF_HUB_CACHE", "", 1); /* empty counts as unset */
    expect_found(f, "o/n", "old/models--o--n/snapshots/c4");
}

static void revisions_are_branches_tags_or_commits(void **state)
{
    fixture *f = *state;
    setenv("HF_HUB_CACHE", f->folder.path, 1);
    add_model(f, ".", "models--o--n", "main", COMMIT);
    add_model(f, ".", "models--o--n", "refs/pr/1", "feed");
    add_model(f, ".", "models--o--n", NULL, "beef");
    expect_found(f, "o/n", "models--o--n/snapshots/" COMMIT);
    expect_found(f, "o/n@main", "models--o--n/snapshots/" COMMIT);
    expect_found(f, "o/n@" COMMIT, "models--o--n/snapshots/" COMMIT);
    expect_found(f, "o/n@refs/pr/1", "models--o--n/snapshots/feed");
    expect_found(f, "o/n@beef", "models--o--n/snapshots/beef");
    expect_error(f, "o/n@v2", MC_ERR_NOT_FOUND, "has no refs/v2 and no snapshots/v2");
    write_text(temp_path(&f->folder, "models--o--n/refs/main"), "feed\n");
    expect_found(f, "o/n", "models--o--n/snapshots/feed");
    write_text(temp_path(&f->folder, "models--o--n/refs/main"), "gone");
    expect_error(f, "o/n", MC_ERR_NOT_FOUND, "its ref names a commit that has no snapshot");
    write_text(temp_path(&f->folder, "models--o--n/refs/main"), "../../../etc");
    expect_error(f, "o/n", MC_ERR_NOT_FOUND, "its ref holds no commit id");
    write_text(temp_path(&f->folder, "models--o--n/refs/main"), "");
    expect_error(f, "o/n", MC_ERR_NOT_FOUND, "its ref holds no commit id");
}

static void old_ids_have_two_names(void **state)
{
    fixture *f = *state;
    setenv("HF_HUB_CACHE", f->folder.path, 1);
    add_model(f, ".", "models--google-bert--bert-base-uncased", "main", "c1");
    expect_found(f, "bert-base-uncased", "models--google-bert--bert-base-uncased/snapshots/c1");
    add_model(f, ".", "models--bert-base-uncased", "main", "c2");
    expect_found(f, "bert-base-uncased", "models--bert-base-uncased/snapshots/c2");
    expect_found(f, "google-bert/bert-base-uncased",
                 "models--google-bert--bert-base-uncased/snapshots/c1");
    add_model(f, ".", "models--bert-large-cased", "main", "c3");
    expect_found(f, "google-bert/bert-large-cased", "models--bert-large-cased/snapshots/c3");
    expect_error(f, "other/bert-large-cased", MC_ERR_NOT_FOUND, "models--other--bert-large-cased");
    add_model(f, ".", "models--openai-community--gpt2", "main", "c4");
    add_model(f, ".", "models--openai-community--gpt2-xl", "main", "c5");
    expect_found(f, "gpt2", "models--openai-community--gpt2/snapshots/c4");
    expect_found(f, "gpt2-xl", "models--openai-community--gpt2-xl/snapshots/c5");
    expect_error(f, "gpt2x", MC_ERR_NOT_FOUND, "models--gpt2x (not there). Go");
}

static void messages_list_every_place(void **state)
{
    fixture *f = *state;
    char bare[1024], canonical[1024];
    snprintf(bare, sizeof bare, "%s/.cache/huggingface/hub/models--bert-tiny (not there)",
             f->folder.path);
    snprintf(canonical, sizeof canonical,
             "%s/.cache/huggingface/hub/models--google-bert--bert-tiny (not there)",
             f->folder.path);
    expect_error(f, "bert-tiny", MC_ERR_NOT_FOUND, bare);
    expect_error(f, "bert-tiny", MC_ERR_NOT_FOUND, canonical);
    expect_error(f, "bert-tiny", MC_ERR_NOT_FOUND, "Go and get it");
    expect_error(f, "bert-tiny", MC_ERR_NOT_FOUND, "\"bert-tiny\": no such folder");
}

static void other_texts_are_refused(void **state)
{
    fixture *f = *state;
    setenv("HF_HUB_CACHE", f->folder.path, 1);
    assert_int_equal(mc_make_folders(&f->err, temp_path(&f->folder, "models--x/snapshots/c")),
                     MC_OK);
    expect_error(f, NULL, MC_ERR_ARGUMENT, "no model given");
    expect_error(f, "", MC_ERR_ARGUMENT, "no model given");
    static const char *const bad[] = {
        "/nowhere/at/all", "./nowhere", "../nowhere",  "~/nowhere",
        "a/b/c",           "nowhere/",  "a..b",        "a/..",
        "o/../n",          "a//b",      "a--b",        "o/n@",
        "o/n@../../x",     "o/n@/etc",  "@main",       "sp ace",
        "o/n@a..b",        "new\nline", "-x",          ".hidden",
        "o/n@a/../b",      "o/n@.",     "caf\xc3\xa9",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect_error(f, bad[i], MC_ERR_NOT_FOUND, "No such file or directory");
    write_text(temp_path(&f->folder, "model.safetensors"), "x");
    expect_error(f, temp_path(&f->folder, "model.safetensors"), MC_ERR_ARGUMENT, "is a file");
    char *longest = malloc(10001);
    memset(longest, 'a', 10000);
    longest[10000] = '\0';
    expect_error(f, longest, MC_ERR_NOT_FOUND, "File name too long");
    free(longest);
}

static void a_root_may_be_too_long_or_missing(void **state)
{
    fixture *f = *state;
    char root[MC_PATH_MAX + 8];
    memset(root, 'r', sizeof root - 1);
    root[0] = '/';
    root[sizeof root - 1] = '\0';
    setenv("HF_HOME", root, 1);
    expect_error(f, "o/n", MC_ERR_ARGUMENT, "path too long");
    root[MC_PATH_MAX - 8] = '\0'; /* fits, but nothing below it does */
    setenv("HF_HUB_CACHE", root, 1);
    expect_error(f, "o/n", MC_ERR_NOT_FOUND, "path too long");
}

static void failed_allocations_are_clean(void **state)
{
#ifdef MC_FAULT_INJECTION
    fixture *f = *state;
    setenv("HF_HUB_CACHE", f->folder.path, 1);
    add_model(f, ".", "models--bert-x", "main", "c1");
    mc_fault_fail_at(1, false);
    assert_int_equal(resolve(f, "bert-x"), MC_ERR_NOMEM);
    assert_int_equal(f->err.status, MC_ERR_NOMEM);
    assert_int_equal(resolve(f, f->folder.path), MC_ERR_NOMEM);
    mc_fault_fail_at(0, false);
    mc_error_clear(&f->err);
    expect_found(f, "bert-x", "models--bert-x/snapshots/c1");
#else
    (void)state;
    printf("SKIPPED: needs a build with MC_FAULT_INJECTION\n");
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(folders_are_used_as_they_stand, set_up, tear_down),
        cmocka_unit_test_setup_teardown(roots_are_tried_in_order, set_up, tear_down),
        cmocka_unit_test_setup_teardown(revisions_are_branches_tags_or_commits, set_up, tear_down),
        cmocka_unit_test_setup_teardown(old_ids_have_two_names, set_up, tear_down),
        cmocka_unit_test_setup_teardown(messages_list_every_place, set_up, tear_down),
        cmocka_unit_test_setup_teardown(other_texts_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_root_may_be_too_long_or_missing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(failed_allocations_are_clean, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
