/* What a command writes, and the rules for it:
 *
 *   - what exists is not replaced without --overwrite: a file, a log, a folder that holds a model
 *     or a run; --resume goes on with its own
 *   - nothing is ever written over an input, whatever its path (inputs.h); --run-file and
 *     standard input are inputs of every command
 *   - a file that is no model's has no name of a model's file, wherever it lies
 *   - one process at a time writes to a folder (tools/files/folder_lock.h)
 *   - what cannot be written, and a disk that has no room, is found before the work
 *
 *     output out;
 *     output_init(&out, ctx, o->overwrite);
 *     inputs_add(&out.inputs, "--data", o->data);
 *     if (!output_check_file(&out, "--output", o->output)) ...           the context has the error
 *     ...
 *     output_release(&out);                     of a folder: output_leave, which frees the context
 *
 * The checks are collective: rank 0 makes them, and its error is that of all ranks. */
#ifndef MC_TOOLS_OUTPUT_H
#define MC_TOOLS_OUTPUT_H

#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tools/options/args.h"
#include "tools/files/folder_lock.h"
#include "tools/files/inputs.h"
#include "tools/log/run_log.h"

enum { OUTPUT_PATH = 4096 };

/* --overwrite, for a command's table. */
#define OUTPUT_OVERWRITE_ROW(pointer)                                        \
    {                                                                        \
        ARGS_FLAG("overwrite", (pointer),                                    \
                  "replace what --output and log files name, if it exists"), \
            .once = true, .known_as = "force,overwrite-output-dir"           \
    }

typedef struct output {
    mc_context *ctx;
    bool overwrite;
    bool resume;              /* a log that exists is the run's own */
    bool look;                /* checks only: nothing is made, removed or locked */
    inputs inputs;            /* to be added before the checks */
    folder_lock lock;         /* of rank 0 */
    char folder[OUTPUT_PATH]; /* of the model; it goes again if it is new and stays empty: */
    size_t made;              /* see new_folders_make */
} output;

/* From now on a reader of stdout or stderr that goes away (a `tee` that is killed, `| head`) ends
 * the lines, and not the process by SIGPIPE: for what a command does beside printing. The checks
 * below call it where they make a folder, or a file that is not stdout. */
void output_outlive_readers(void);
void output_init(output *out, mc_context *ctx, bool overwrite);
/* Gives the lock back, and removes folders that were made and are empty. */
void output_release(output *out);
/* Ends a command that saves to a folder: waits for what is still being saved, releases, and leaves
 * as ranks_leave does. */
int output_leave(output *out, mc_context *ctx, int code);

/* A single file; `-` is stdout. What is no regular file may exist. */
bool output_check_file(output *out, const char *option, const char *path);
/* A folder for a model: makes it with the folders above it, and locks it until output_release.
 * `own` is a folder that a run goes on in: what it holds is not looked at. */
bool output_open_folder(output *out, run_log *log, const char *option, const char *path, bool own);
/* --log-jsonl, --log-csv and --tensorboard; any may be NULL. The folders above them may be missing:
 * they are made when the log is opened. */
bool output_check_logs(output *out, const char *jsonl, const char *csv, const char *board);
/* Makes a new folder "runs/NAME-DATE-TIME" (none with `look`), whose path is copied to `path` on
 * all ranks; `name` is the last part of a model's identifier or path. */
bool output_make_run_folder(output *out, const char *name, char path[OUTPUT_PATH]);
/* Whether the file system of a folder, which may be missing, has that many bytes free; else the
 * error names both. */
bool output_check_room(output *out, const char *folder, double bytes);

/* The forms of a file, by the ending of its name. */
typedef enum output_form {
    OUTPUT_JSONL = 1,
    OUTPUT_CSV = 2,
    OUTPUT_NPY = 4,
} output_form;
/* The form that a path asks for, of those in the set `forms`: its ending's, and JSON Lines of a
 * name without one and of stdout, pipes and devices. Else an error for the command line, and
 * *code. */
bool output_choose_form(const args_spec *spec, const char *path, unsigned forms, output_form *form,
                        int *code);
/* Whether what is written to the path goes to stdout, where no other line may then go. */
bool output_is_stdout(const char *path);

#endif
