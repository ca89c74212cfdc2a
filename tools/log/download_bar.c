#include "tools/log/download_bar.h"

#include "tools/train/interrupt.h"

enum { MEGABYTE = 1000000 };

bool download_bar_show(void *user, const mc_download *progress)
{
    run_log *log = user;
    if (interrupt_requested()) return false;
    if (log->silent) return true;
    if (!log->bar.stream) progress_bar_init(&log->bar, log->progress ? log->progress : stderr);
    if (progress->finished)
        progress_bar_clear(&log->bar);
    else if (progress->total >= MEGABYTE)
        run_log_progress(log, "download", "MB", progress->done / MEGABYTE,
                         progress->total / MEGABYTE);
    return true;
}
