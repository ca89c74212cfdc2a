/* Which files of a repository are needed, whether a folder has them, and what is found without a
 * network. Downloads are tested by hub_test.py. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/hub/find_internal.h"
#include "core/hub/hub.h"
#include "core/hub/lock_internal.h"
#include "core/hub/settings_internal.h"
#include "models/files/convert.h"
#include "models/texts/embed.h"
#include "models/model.h"
#include "tests/temp_folder.h"
#include "tokenizers/tokenizer.h"

typedef struct fixture {
    temp_folder folder;
    mc_context *ctx;
    char log[1024]; /* the last line */
} fixture;

static void keep_line(void *user, mc_log_level level, const char *line)
{
    (void)level;
    snprintf(((fixture *)user)->log, sizeof((fixture *)user)->log, "%s", line);
}

static int set_up(void **state)
{
    static const char *const variables[] = {
        "HF_HUB_CACHE",
        "HUGGINGFACE_HUB_CACHE",
        "XDG_CACHE_HOME",
        "HF_ENDPOINT",
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "HF_HUB_DOWNLOAD_TIMEOUT",
        "TRANSFORMERS_OFFLINE",
        "HF_TOKEN_PATH",
    };
    fixture *f = calloc(1, sizeof *f);
    f->folder = temp_folder_new();
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) unsetenv(variables[i]);
    setenv("HF_HOME", f->folder.path, 1);
    setenv("HF_HUB_OFFLINE", "1", 1);
    f->ctx = mc_context_new(&(mc_init_options){.log = keep_line, .log_user = f});
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    mc_context_free(f->ctx);
    temp_folder_free(&f->folder);
    free(f);
    return 0;
}

static void expect_failure(fixture *f, mc_status status, const char *part)
{
    assert_int_equal(mc_error_status(f->ctx), status);
    if (!strstr(mc_error_message(f->ctx), part))
        fail_msg("\"%s\" not in: %s", part, mc_error_message(f->ctx));
    mc_clear_error(f->ctx);
}

/* ---- choosing -------------------------------------------------------------------------------- */

/* The names, with spaces between, that are wanted of a repository of `names`. */
static const char *chosen(fixture *f, mc_hub_needs needs, const char *names)
{
    static char out[1024];
    char copy[1024], *at = copy;
    mc_hub_list list = {.repository = "o/n"};
    snprintf(copy, sizeof copy, "%s", names);
    for (char *name; (name = strsep(&at, " "));)
        assert_int_equal(mc_hub_list_add(&f->ctx->error, &list, name), MC_OK);
    *out = '\0';
    if (mc_hub_choose(&f->ctx->error, &needs, &list) == MC_OK)
        for (size_t i = 0; i < list.count; i++)
            if (list.files[i].wanted)
                snprintf(out + strlen(out), sizeof out - strlen(out), "%s%s", *out ? " " : "",
                         list.files[i].name);
    if (list.index) strncat(out, " (index)", sizeof out - strlen(out) - 1);
    mc_hub_list_release(&list);
    return out;
}

static void weights_are_chosen_in_order(void **state)
{
    fixture *f = *state;
    mc_hub_needs model = {.kind = MC_HUB_MODEL}, half = {.kind = MC_HUB_MODEL, .variant = "fp16"};
#define ALL                                                                        \
    "config.json pytorch_model.pt pytorch_model.bin.index.json pytorch_model.bin " \
    "model.safetensors.index.json model.fp16.safetensors model.bf16.safetensors"
    assert_string_equal(chosen(f, model, ALL " model.safetensors"),
                        "config.json model.safetensors");
    assert_string_equal(chosen(f, model, ALL), "config.json model.safetensors.index.json (index)");
    assert_string_equal(chosen(f, half, ALL), "config.json model.fp16.safetensors");
    assert_string_equal(chosen(f, model, "config.json pytorch_model.bin pytorch_model.pt"),
                        "config.json pytorch_model.bin");
    assert_string_equal(chosen(f, model, "config.json pytorch_model.bin.index.json"),
                        "config.json pytorch_model.bin.index.json (index)");
    assert_string_equal(chosen(f, model, "pytorch_model.pt config.json generation_config.json"),
                        "pytorch_model.pt config.json generation_config.json");
    assert_string_equal(chosen(f, model, "config.json model.fp16.safetensors"),
                        "config.json model.fp16.safetensors");
    assert_string_equal(
        chosen(f, model, "config.json model.fp16.safetensors model.bf16.safetensors"), "");
    expect_failure(f, MC_ERR_NOT_FOUND, "o/n: the repository has no weights");
    assert_string_equal(chosen(f, half, "config.json model.safetensors"), "");
    expect_failure(f, MC_ERR_NOT_FOUND, "expected model.fp16.safetensors");
    assert_string_equal(chosen(f, model, "model.safetensors"), "");
    expect_failure(f, MC_ERR_NOT_FOUND, "no config.json");
}

static void tokenizers_are_chosen(void **state)
{
    fixture *f = *state;
    mc_hub_needs words = {.kind = MC_HUB_TOKENIZER}, any = {.kind = MC_HUB_ANY};
    mc_hub_needs some = {.kind = MC_HUB_MATCHING,
                         .patterns = (const char *const[]){"*.json", "a/", NULL}};
    assert_string_equal(chosen(f, words, "config.json spiece.model model.safetensors vocab.json"),
                        "spiece.model vocab.json");
    assert_string_equal(chosen(f, any, "vocab.txt README.md model.safetensors"), "vocab.txt");
    assert_string_equal(chosen(f, any, "vocab.txt config.json model.safetensors"),
                        "vocab.txt config.json model.safetensors");
    assert_string_equal(chosen(f, words, "config.json model.safetensors"), "");
    expect_failure(f, MC_ERR_NOT_FOUND, "o/n: the repository has no tokenizer");
    assert_string_equal(chosen(f, some, "a.json a/b.json a/c ab/c"), "a.json a/b.json a/c");
    assert_string_equal(chosen(f, some, "a.json b.txt"), "");
    expect_failure(f, MC_ERR_NOT_FOUND, "none of the repository's 2 files matches \"a/\"");
}

static void names_stay_in_their_folder(void **state)
{
    fixture *f = *state;
    static const char *const bad[] = {"",      "/a",   "a/",   "../a", "a/../b", "..",       "./a",
                                      "a/./b", "a//b", "a\\b", ".",    "a\nb",   "a/b/../.."};
    static const char *const good[] = {".gitattributes", "a/b/c", "..a", "a..", "...", "a b"};
    mc_hub_list list = {.repository = "o/n"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(mc_hub_list_add(&f->ctx->error, &list, bad[i]), MC_ERR_FORMAT);
        expect_failure(f, MC_ERR_FORMAT, "o/n: the hub's list of files has");
    }
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_int_equal(mc_hub_list_add(&f->ctx->error, &list, good[i]), MC_OK);
    assert_int_equal(list.count, sizeof good / sizeof *good);
    assert_int_equal(mc_hub_list_add(&f->ctx->error, &list, "a/b/c"), MC_ERR_FORMAT);
    expect_failure(f, MC_ERR_FORMAT, "o/n: the hub's list of files has \"a/b/c\" twice");
    mc_hub_list_release(&list);
}

/* ---- what a folder has ----------------------------------------------------------------------- */

static bool is_whole(fixture *f, mc_hub_needs needs)
{
    return mc_hub_is_whole(&needs, f->folder.path);
}

static void add_file(fixture *f, const char *name, const char *text)
{
    write_text(temp_path(&f->folder, name), text);
}

static void folders_are_whole_or_not(void **state)
{
    fixture *f = *state;
    mc_hub_needs model = {.kind = MC_HUB_MODEL}, words = {.kind = MC_HUB_TOKENIZER};
    mc_hub_needs half = {.kind = MC_HUB_MODEL, .variant = "fp16"};
    mc_hub_needs some = {.kind = MC_HUB_MATCHING,
                         .patterns = (const char *const[]){"merges.txt", NULL}};
    mc_hub_needs wild = {.kind = MC_HUB_MATCHING, .patterns = (const char *const[]){"*.txt", NULL}};
    add_file(f, "model.safetensors.index.json",
             "{\"weight_map\": {\"a\": \"one\", \"b\": \"two\"}}");
    add_file(f, "one", "");
    add_file(f, "two", "");
    assert_false(is_whole(f, model));
    add_file(f, "config.json", "{}");
    assert_true(is_whole(f, model));
    assert_false(is_whole(f, half));
    remove(temp_path(&f->folder, "two"));
    assert_false(is_whole(f, model));
    add_file(f, "model.safetensors.index.json", "{\"weight_map\": 1}");
    assert_false(is_whole(f, model));
    add_file(f, "model.safetensors.index.json", "not json");
    assert_false(is_whole(f, model));
    remove(temp_path(&f->folder, "model.safetensors.index.json"));
    add_file(f, "pytorch_model.pt", "");
    assert_true(is_whole(f, model));
    add_file(f, "model.fp16.safetensors", "");
    assert_true(is_whole(f, half));
    assert_false(is_whole(f, words));
    add_file(f, "vocab.json", "");
    assert_false(is_whole(f, words));
    add_file(f, "merges.txt", "");
    assert_true(is_whole(f, words));
    assert_true(is_whole(f, some));
    assert_false(is_whole(f, wild)); /* who knows what else there is */
}

/* ---- finding without a network --------------------------------------------------------------- */

static void add_snapshot(fixture *f, const char *repository, const char *file)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/hub/%s/snapshots/c1", f->folder.path, repository);
    assert_int_equal(mc_make_folders(&f->ctx->error, path), MC_OK);
    snprintf(path, sizeof path, "%s/hub/%s/refs", f->folder.path, repository);
    assert_int_equal(mc_make_folders(&f->ctx->error, path), MC_OK);
    snprintf(path, sizeof path, "%s/hub/%s/refs/main", f->folder.path, repository);
    write_text(path, "c1");
    snprintf(path, sizeof path, "%s/hub/%s/snapshots/c1/%s", f->folder.path, repository, file);
    write_text(path, "{}");
}

static void offline_answers_are_what_is_there(void **state)
{
    fixture *f = *state;
    char folder[MC_PATH_MAX];
    mc_hub_options local = {.local_files_only = true}, other = {.cache_dir = f->folder.path};
    add_snapshot(f, "models--gpt2", "config.json");
    assert_int_equal(mc_hub_download(f->ctx, "gpt2-base", NULL, folder, sizeof folder), MC_OK);
    assert_string_equal(folder, temp_path(&f->folder, "hub/models--gpt2/snapshots/c1"));
    assert_non_null(strstr(f->log, "not all of \"gpt2\" is in the cache. HF_HUB_OFFLINE is set"));
    unsetenv("HF_HUB_OFFLINE");
    assert_int_equal(mc_hub_download(f->ctx, "gpt2", &local, folder, sizeof folder), MC_OK);
    assert_non_null(strstr(f->log, "local_files_only"));
    mc_hub_download(f->ctx, "o/n", &local, folder, sizeof folder);
    expect_failure(f, MC_ERR_NOT_FOUND, "models--o--n (not there). Only local files");
    assert_string_equal(folder, "");
    setenv("TRANSFORMERS_OFFLINE", "yes", 1);
    mc_hub_download(f->ctx, "gpt2", &other, folder, sizeof folder);
    expect_failure(f, MC_ERR_NOT_FOUND, "TRANSFORMERS_OFFLINE is set");
    unsetenv("TRANSFORMERS_OFFLINE");
#ifndef MC_HAVE_CURL
    mc_hub_download(f->ctx, "o/n", NULL, folder, sizeof folder);
    expect_failure(f, MC_ERR_UNSUPPORTED, "no libcurl (MC_ENABLE_CURL)");
#endif
}

static void a_whole_snapshot_goes_first(void **state)
{
    fixture *f = *state;
    char folder[MC_PATH_MAX];
    add_snapshot(f, "models--bert-base-cased", "config.json");
    add_snapshot(f, "models--google-bert--bert-base-cased", "config.json");
    add_snapshot(f, "models--google-bert--bert-base-cased", "model.safetensors");
    add_snapshot(f, "models--google-bert--bert-base-cased", "vocab.txt");
    assert_int_equal(mc_hub_download(f->ctx, "bert-base-cased", NULL, folder, sizeof folder),
                     MC_OK);
    assert_string_equal(folder, temp_path(&f->folder, "hub/models--google-bert--bert-base-cased/"
                                                      "snapshots/c1"));
    assert_string_equal(f->log, "");
}

static void arguments_are_checked(void **state)
{
    fixture *f = *state;
    char folder[MC_PATH_MAX];
    const char *const none[] = {NULL};
    assert_int_equal(mc_hub_download(NULL, "gpt2", NULL, folder, sizeof folder), MC_ERR_NOMEM);
    mc_hub_download(f->ctx, NULL, NULL, folder, sizeof folder);
    expect_failure(f, MC_ERR_ARGUMENT, "no model given");
    mc_hub_download(f->ctx, "", NULL, folder, sizeof folder);
    expect_failure(f, MC_ERR_ARGUMENT, "no model given");
    mc_hub_download(f->ctx, "gpt2", NULL, NULL, 0);
    expect_failure(f, MC_ERR_ARGUMENT, "no room");
    mc_hub_download(f->ctx, "gpt2", &(mc_hub_options){.include = none}, folder, sizeof folder);
    expect_failure(f, MC_ERR_ARGUMENT, "empty list of patterns");
    mc_hub_download(f->ctx, f->folder.path, NULL, folder, 4);
    expect_failure(f, MC_ERR_ARGUMENT, "expected room for a path");
    mc_hub_download(f->ctx, "cpm1-large", NULL, folder, sizeof folder);
    expect_failure(f, MC_ERR_NOT_FOUND,
                   "\"cpm1-large\": no such folder, and the name of a model of ModelCenter's");
    mc_hub_download(f->ctx, "gpt2", &(mc_hub_options){.revision = "a/../b"}, folder, sizeof folder);
    expect_failure(f, MC_ERR_ARGUMENT, "a/../b");
}

static void names_of_modelcenter(void **state)
{
    (void)state;
    char room[2 * MC_HUB_NAME_MAX];
    assert_string_equal(mc_hub_repository_of("gpt2-base", room), "gpt2");
    assert_string_equal(mc_hub_repository_of("gpt2-base@v1", room), "gpt2@v1");
    assert_string_equal(mc_hub_repository_of("gpt2-xl", room), "gpt2-xl");
    assert_string_equal(mc_hub_repository_of("gptj-6b", room), "EleutherAI/gpt-j-6b");
    assert_string_equal(mc_hub_repository_of("opt-125m@main", room), "facebook/opt-125m@main");
    assert_string_equal(mc_hub_repository_of("qwen3-0.6b", room), "Qwen/Qwen3-0.6B");
    assert_string_equal(mc_hub_repository_of("electra-small-generator", room),
                        "google/electra-small-generator");
    assert_string_equal(mc_hub_repository_of("modernbert-base", room),
                        "answerdotai/ModernBERT-base");
    assert_string_equal(mc_hub_repository_of("smollm2-135m@x", room),
                        "HuggingFaceTB/SmolLM2-135M@x");
    assert_string_equal(mc_hub_repository_of("flan-t5-xl@a", room), "google/flan-t5-xl@a");
    assert_string_equal(mc_hub_repository_of("google/flan-t5-xl", room), "google/flan-t5-xl");
    assert_string_equal(mc_hub_repository_of("mt5-", room), "mt5-");
    assert_null(mc_hub_repository_of("cpm1-large", room));
    assert_null(mc_hub_repository_of("cpm2-large@main", room));
    assert_null(mc_hub_repository_of("glm-10b-zh", room));
    assert_string_equal(mc_hub_repository_of("vit-base-patch16-224", room),
                        "google/vit-base-patch16-224");
    assert_string_equal(mc_hub_repository_of("me/cpm1-large", room), "me/cpm1-large");
}

/* The first words of an error about a name that nothing has say that there is no such folder. */
static void names_that_nothing_has(void **state)
{
    fixture *f = *state;
    static const char *const names[] = {"my-model", "bert-tiny", "cpm1-large"};
    char begin[64];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(begin, sizeof begin, "\"%s\": no such folder", names[i]);
        assert_null(mc_model_from_pretrained(f->ctx, names[i], NULL));
        assert_int_equal(strncmp(mc_error_message(f->ctx), begin, strlen(begin)), 0);
        mc_clear_error(f->ctx);
        assert_null(mc_tokenizer_from_pretrained(f->ctx, names[i]));
        expect_failure(f, MC_ERR_NOT_FOUND, begin);
    }
}

/* A local folder goes before an identifier of the same name: where it lacks something, the error
 * says both. Of another folder it says the one. */
static void folders_hide_names(void **state)
{
    fixture *f = *state;
    char before[1024];
    mc_embed_options options = {.threads = 1};
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(mkdir(temp_path(&f->folder, "tiny-bert"), 0777), 0);
    assert_int_equal(chdir(f->folder.path), 0);
    static const char hides[] =
        "the local folder \"tiny-bert\" hides the hub's identifier of that name: tiny-bert";
    assert_null(mc_model_from_pretrained(f->ctx, "tiny-bert", NULL));
    assert_non_null(strstr(mc_error_message(f->ctx), "tiny-bert/config.json"));
    expect_failure(f, MC_ERR_NOT_FOUND, hides);
    assert_null(mc_tokenizer_from_pretrained(f->ctx, "tiny-bert"));
    assert_non_null(strstr(mc_error_message(f->ctx), "neither tokenizer.json"));
    expect_failure(f, MC_ERR_NOT_FOUND, hides);
    assert_null(mc_embedder_open(f->ctx, "tiny-bert", &options));
    expect_failure(f, MC_ERR_NOT_FOUND, hides);
    mc_model_convert(f->ctx, "tiny-bert", "out", NULL);
    expect_failure(f, MC_ERR_NOT_FOUND, hides);
    write_text("tiny-bert/config.json", "{\"model_type\": \"bert\"}");
    assert_null(mc_model_from_pretrained(f->ctx, "tiny-bert", NULL));
    assert_non_null(strstr(mc_error_message(f->ctx), "no weights"));
    expect_failure(f, MC_ERR_NOT_FOUND, hides);
    assert_null(mc_model_from_pretrained(f->ctx, "./tiny-bert", NULL));
    assert_null(strstr(mc_error_message(f->ctx), "hides"));
    mc_clear_error(f->ctx);
    assert_int_equal(chdir(before), 0);
}

/* What the commit does not have is not missing. */
static void absent_files_are_remembered(void **state)
{
    fixture *f = *state;
    static const char *const names[] = {
        "tokenizer.json", "vocab.txt",       "vocab.json",  "sentencepiece.bpe.model",
        "spiece.model",   "tokenizer.model", "vocab.model", "cog-pretrain.model"};
    enum { NAMES = sizeof names / sizeof *names };
    mc_hub_needs any = {.kind = MC_HUB_ANY};
    char path[1024];
    add_snapshot(f, "models--o--n", "config.json");
    add_snapshot(f, "models--o--n", "pytorch_model.bin");
    const char *snapshot = temp_path(&f->folder, "hub/models--o--n/snapshots/c1");
    snprintf(path, sizeof path, "%s/hub/models--o--n/.no_exist/c1", f->folder.path);
    assert_int_equal(mc_make_folders(&f->ctx->error, path), MC_OK);
    for (int i = 0; i < NAMES; i++) {
        assert_false(mc_hub_is_whole(&any, snapshot));
        snprintf(path, sizeof path, "%s/hub/models--o--n/.no_exist/c1/%s", f->folder.path,
                 names[i]);
        write_text(path, "");
    }
    assert_true(mc_hub_is_whole(&any, snapshot));
}

/* mc_load_options and mc_tokenizer_options say where to look. */
static void options_reach_the_cache(void **state)
{
    fixture *f = *state;
    static const char vocabulary[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\n";
    unsetenv("HF_HUB_OFFLINE");
    add_snapshot(f, "models--o--words", "vocab.txt");
    write_text(temp_path(&f->folder, "hub/models--o--words/snapshots/c1/vocab.txt"), vocabulary);
    rename(temp_path(&f->folder, "hub/models--o--words/refs/main"),
           temp_path(&f->folder, "hub/models--o--words/refs/v1"));
    rename(temp_path(&f->folder, "hub"), temp_path(&f->folder, "elsewhere"));
    mc_tokenizer_options there = {.cache_dir = temp_path(&f->folder, "elsewhere"),
                                  .revision = "v1",
                                  .local_files_only = true};
    assert_non_null(mc_tokenizer_open(f->ctx, "o/words", &there));
    there.revision = NULL;
    assert_null(mc_tokenizer_open(f->ctx, "o/words", &there));
    expect_failure(f, MC_ERR_NOT_FOUND, "has no refs/main");
    mc_load_options load = {.local_files_only = true, .revision = "v7"};
    assert_null(mc_model_from_pretrained(f->ctx, "o/words", &load));
    expect_failure(f, MC_ERR_NOT_FOUND, "hub/models--o--words (not there). Only local files");
    load.cache_dir = there.cache_dir;
    assert_null(mc_model_from_pretrained(f->ctx, "o/words", &load));
    expect_failure(f, MC_ERR_NOT_FOUND, "elsewhere/models--o--words (has no refs/v7");
}

/* ---- settings, locks ------------------------------------------------------------------------- */

static void settings_come_from_the_environment(void **state)
{
    fixture *f = *state;
    mc_hub_settings s;
    assert_int_equal(mc_hub_settings_read(&f->ctx->error, &s), MC_OK);
    assert_string_equal(s.endpoint, "https://huggingface.co");
    assert_string_equal(s.token, "");
    assert_string_equal(s.token_path, temp_path(&f->folder, "token"));
    add_file(f, "token", " hf_file\n");
    setenv("HF_ENDPOINT", "http://mirror:8080//", 1);
    setenv("HF_HUB_DOWNLOAD_TIMEOUT", "2.5", 1);
    assert_int_equal(mc_hub_settings_read(&f->ctx->error, &s), MC_OK);
    assert_string_equal(s.endpoint, "http://mirror:8080");
    assert_string_equal(s.token, "hf_file");
    assert_true(s.timeout == 2.5);
    setenv("HF_TOKEN", "hf_env", 1);
    assert_int_equal(mc_hub_settings_read(&f->ctx->error, &s), MC_OK);
    assert_string_equal(s.token, "hf_env");
    setenv("HF_TOKEN", "a\nb", 1);
    mc_hub_settings_read(&f->ctx->error, &s);
    expect_failure(f, MC_ERR_ARGUMENT, "HF_TOKEN: expected a token");
    setenv("HF_TOKEN", "x", 1);
    setenv("HF_HUB_DOWNLOAD_TIMEOUT", "soon", 1);
    mc_hub_settings_read(&f->ctx->error, &s);
    expect_failure(f, MC_ERR_ARGUMENT, "HF_HUB_DOWNLOAD_TIMEOUT is \"soon\"");
    setenv("HF_ENDPOINT", "file:///etc", 1);
    mc_hub_settings_read(&f->ctx->error, &s);
    expect_failure(f, MC_ERR_ARGUMENT, "HF_ENDPOINT is \"file:///etc\"");
}

static mc_status give_up(void *asked) { return ++*(int *)asked < 3 ? MC_OK : MC_ERR_INTERRUPTED; }

static void a_lock_has_one_owner(void **state)
{
    fixture *f = *state;
    int asked = 0;
    const char *path = temp_path(&f->folder, "a/b/lock");
    int first = mc_hub_lock(&f->ctx->error, f->folder.path, path, give_up, &asked);
    assert_true(first >= 0);
    assert_int_equal(mc_hub_lock(&f->ctx->error, f->folder.path, path, give_up, &asked), -1);
    assert_int_equal(asked, 3);
    mc_hub_unlock(first);
    int second = mc_hub_lock(&f->ctx->error, f->folder.path, path, give_up, &asked);
    assert_true(second >= 0 && asked == 3);
    mc_hub_unlock(second);
    assert_int_equal(mc_hub_lock(&f->ctx->error, "/proc", "/proc/lock", give_up, &asked), -1);
    expect_failure(f, MC_ERR_IO, "/proc/lock: cannot open the lock");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(weights_are_chosen_in_order),
        TEST(tokenizers_are_chosen),
        TEST(names_stay_in_their_folder),
        TEST(folders_are_whole_or_not),
        TEST(offline_answers_are_what_is_there),
        TEST(a_whole_snapshot_goes_first),
        TEST(arguments_are_checked),
        TEST(names_of_modelcenter),
        TEST(names_that_nothing_has),
        TEST(folders_hide_names),
        TEST(absent_files_are_remembered),
        TEST(options_reach_the_cache),
        TEST(settings_come_from_the_environment),
        TEST(a_lock_has_one_owner),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
