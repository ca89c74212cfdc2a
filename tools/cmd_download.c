/* `modelcenter download`: a model's files into the Hugging Face cache. */
#include <stdio.h>
#include <stdlib.h>
#include "core/base/context.h"
#include "core/hub/hub.h"
#include "tools/options/args.h"
#include "tools/commands.h"
#include "tools/log/download_bar.h"
#include "tools/train/interrupt.h"
#include "tools/options/model_options.h"

enum { PATH_ROOM = 4096, WAYS = MODEL_WAY_OLD_MODEL | MODEL_WAY_ANY };

typedef struct download_options {
    model_options from;
    const char *cache_dir;
    bool verify;
    args_list include;
} download_options;

static const char details[] =
    "Prints the path of the folder with the files on stdout. Files that are in the cache are\n"
    "not requested again. Without --include, the files are those that loading the model and its\n"
    "tokenizer needs. Ctrl-C keeps what has arrived; the same command continues there. Gated\n"
    "and private repositories need a token, in HF_TOKEN or in the file $HF_HOME/token.\n\n"
    "  modelcenter download --model bert-base-uncased\n"
    "  modelcenter download --model google/flan-t5-small --revision main \\\n"
    "      --include '*.json'\n";

static int run(const download_options *o)
{
    run_log log = {0};
    char folder[PATH_ROOM];
    interrupt_init();
    mc_context *ctx = mc_context_new(&(mc_init_options){.log = run_log_library_line,
                                                        .log_user = &log,
                                                        .download = download_bar_show,
                                                        .download_user = &log});
    mc_hub_options options = {.revision = o->from.revision,
                              .cache_dir = o->cache_dir,
                              .verify = o->verify,
                              .include = o->include.count ? o->include.items : NULL};
    mc_hub_download(ctx, o->from.model, &options, folder, sizeof folder);
    bool interrupted = mc_error_status(ctx) == MC_ERR_INTERRUPTED;
    int code = interrupted ? EXIT_INTERRUPTED : mc_failed(ctx) ? EXIT_RUN_FAILED : EXIT_OK;
    if (!mc_print_error(ctx, stderr)) printf("%s\n", folder);
    interrupt_release();
    mc_context_free(ctx);
    return code;
}

int cmd_download(int argc, char **argv)
{
    download_options o = {0};
    o.include = args_list_new(argc);
    args_table table = {.count = 0};
    model_add_rows(&table, &o.from, WAYS, "identifier of the model on the hub");
    ARGS_ADD(&table,
             {ARGS_TEXTS("include", &o.include,
                         "files to download: a pattern with * and ?; may be repeated"),
              .default_text = "what loading takes", .known_as = "pattern,files"},
             {ARGS_PATH("cache-dir", &o.cache_dir, "the cache"),
              .default_text = "HF_HUB_CACHE, else $HF_HOME/hub"},
             {ARGS_FLAG("verify", &o.verify,
                        "hash the cached files, and download again those whose hash is wrong")});
    const args_spec spec = {.command = "download",
                            .summary = "Downloads a model into the Hugging Face cache.",
                            .details = details,
                            .options = table.rows};
    int code;
    if (args_parse(&spec, argc, argv, &code)) {
        code = model_check(&spec, &o.from, WAYS, false);
        if (code == EXIT_OK) code = run(&o);
    }
    free(o.include.items);
    return code;
}
