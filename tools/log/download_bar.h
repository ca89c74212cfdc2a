/* What the commands that take models by name share: the option --revision, and a bar while one is
 * downloaded. */
#ifndef MC_TOOLS_DOWNLOAD_BAR_H
#define MC_TOOLS_DOWNLOAD_BAR_H

#include "core/base/context.h"
#include "tools/options/args.h"
#include "tools/log/run_log.h"

/* The row of --revision; `pointer` is a const char **. */
#define DOWNLOAD_REVISION_ROW(pointer)                                       \
    {                                                                        \
        ARGS_TEXT("revision", pointer,                                       \
                  "branch, tag or commit on the hub, where it is looked up " \
                  "by an identifier"),                                       \
            .default_text = "main", .known_as = "branch,tag,commit"          \
    }

/* mc_init_options.download; `user` is a run_log, whose bar it draws: nothing where that is off or
 * the log silent. Ends the download when Ctrl-C has come (interrupt.h). */
bool download_bar_show(void *user, const mc_download *progress);

#endif
