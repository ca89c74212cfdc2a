/* `modelcenter embed`: vectors of the texts of a table. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "tools/commands.h"
#include "tools/files/output.h"
#include "tools/files/rank_file.h"
#include "tools/tasks/task_file.h"
#include "tools/files/text.h"
#include "tools/tasks/text_job.h"

static const char *const pooling_names[] = {"auto", "mean", "cls", "max", "pooler", NULL};
static const mc_pooling poolings[] = {MC_POOLING_DEFAULT, MC_POOLING_MEAN, MC_POOLING_CLS,
                                      MC_POOLING_MAX, MC_POOLING_POOLER};
static const char *const fp8_names[] = {"none", "all", NULL};
static const char *const normalize_names[] = {"auto", "no", "yes", NULL};
static const mc_normalize normalizes[] = {MC_NORMALIZE_DEFAULT, MC_NORMALIZE_NO, MC_NORMALIZE_YES};

/* NPY format 1.0: magic, version, the header's length, and a header that ends at byte 128. */
enum { NPY_HEADER = 128, NUMBER_ROOM = 32 };

typedef struct embed {
    text_job_options job;
    int pooling, normalize, fp8;
    const char *prompt, *prompt_name;
    int64_t truncate_dim;
    bool as_npy, run;
    task_file task; /* of the model's folder; kind 0: it has none */
    mc_embedder *embedder;
    int64_t dim;
    rank_file file;
    float *vectors; /* this rank's of a chunk */
    float *written; /* those of the chunk before, which a thread writes to a .npy meanwhile */
    char *lines;
    size_t vector_room, written_room, line_room;
} embed;

/* ---- vectors --------------------------------------------------------------------------------- */

/* Room for a chunk's vectors, and `line` bytes for each of them as text. */
static bool reserve(embed *e, size_t rows, size_t line)
{
    size_t vectors = rows * (size_t)e->dim * sizeof(float);
    size_t lines = rows * line;
    if (vectors > e->vector_room || !e->vectors) {
        float *grown = realloc(e->vectors, vectors + 1);
        if (grown) e->vectors = grown;
        e->vector_room = grown ? vectors : 0;
        char *longer = realloc(e->lines, lines + 1);
        if (longer) e->lines = longer;
        e->line_room = longer ? lines + 1 : 0;
    }
    if (e->vector_room >= vectors && e->line_room > lines) return true;
    mc_set_error(e->file.ctx, MC_ERR_NOMEM, "out of memory for %zu vectors", rows);
    return false;
}

/* ---- .npy ------------------------------------------------------------------------------------ */

static mc_status write_header(embed *e, int64_t rows)
{
    char header[NPY_HEADER + 1];
    snprintf(header, sizeof header,
             "\x93NUMPY\x01%c%c%c{'descr': '<f4', 'fortran_order': False, 'shape': (%" PRId64
             ", %" PRId64 "), }",
             0, NPY_HEADER - 10, 0, rows, e->dim);
    size_t used = 10 + strlen(header + 10);
    memset(header + used, ' ', NPY_HEADER - used);
    header[NPY_HEADER - 1] = '\n';
    return rank_file_write_at(&e->file, 0, header, NPY_HEADER);
}

static bool take_npy(text_job *job, const text_part *part, void *user)
{
    embed *e = user;
    size_t row = (size_t)e->dim * sizeof(float), room = e->written_room;
    float *free_now = e->written;
    (void)job;
    bool good = reserve(e, part->count, 0) &&
                mc_embed_texts(e->embedder, part->texts, part->count, e->vectors) == MC_OK &&
                rank_file_write_later(&e->file, NPY_HEADER + part->first * (int64_t)row, e->vectors,
                                      part->count * row) == MC_OK;
    e->written = e->vectors;
    e->written_room = e->vector_room;
    e->vectors = free_now;
    e->vector_room = room;
    return good;
}

/* ---- JSON Lines ------------------------------------------------------------------------------ */

static bool take_lines(text_job *job, const text_part *part, void *user)
{
    embed *e = user;
    (void)job;
    if (!reserve(e, part->count, (size_t)e->dim * NUMBER_ROOM + 64) ||
        mc_embed_texts(e->embedder, part->texts, part->count, e->vectors))
        return false;
    text t = text_into(e->lines, e->line_room);
    for (size_t i = 0; i < part->count; i++) {
        text_add(&t, "{\"embedding\":");
        for (int64_t k = 0; k < e->dim; k++) {
            text_add(&t, k ? "," : "[");
            text_add_json_number(&t, (double)e->vectors[i * (size_t)e->dim + (size_t)k]);
        }
        text_add(&t, "]}\n");
    }
    return rank_file_append(&e->file, t.data, t.used) == MC_OK;
}

/* ---- the command ----------------------------------------------------------------------------- */

/* The column that the model was trained with, where a table has it. */
static bool read_task(embed *e, mc_context *ctx)
{
    char folder[4096];
    if (!model_find_folder(ctx, &e->job.from, folder, sizeof folder)) return false;
    if (task_file_read(ctx, folder, &e->task)) return false;
    if (e->task.kind) e->job.usual = e->task.text;
    return true;
}

static bool work(text_job *job, void *user)
{
    embed *e = user;
    mc_recipe recipe = {.fp8 = e->fp8 ? MC_FP8_ALL : MC_FP8_NONE,
                        .scaling = e->fp8 ? MC_FP8_STATIC : MC_FP8_DELAYED};
    e->embedder = mc_embedder_open(job->ctx, e->job.from.model,
                                   &(mc_embed_options){.load = {.dtype = text_job_dtype(&e->job),
                                                                .revision = e->job.from.revision,
                                                                .recipe = recipe,
                                                                .base = e->job.from.base},
                                                       .tokenizer = e->job.from.tokenizer,
                                                       .pooling = poolings[e->pooling],
                                                       .normalize = normalizes[e->normalize],
                                                       .max_length = e->job.max_length,
                                                       .truncate_dim = e->truncate_dim,
                                                       .prompt = e->prompt,
                                                       .prompt_name = e->prompt_name});
    e->dim = mc_embedder_dim(e->embedder);
    if (!read_task(e, job->ctx)) return false;
    rank_file_init(&e->file, job->ctx, e->job.output, e->job.overwrite);
    bool good = text_job_run(job, e->as_npy ? take_npy : take_lines, e);
    double end = progress_bar_now();
    good = rank_file_wait(&e->file) == MC_OK && good;
    job->seconds += progress_bar_now() - end;
    if (good && e->as_npy && mc_rank(job->ctx) == 0) write_header(e, job->rows);
    good = good && rank_file_finish(&e->file) == MC_OK;
    rank_file_release(&e->file);
    if (!good) return false;
    double rate = job->seconds > 0 ? (double)job->rows / job->seconds : 0;
    return run_log_result_line(
               &job->log, "result rows=%" PRId64 " dim=%" PRId64 " seconds=%.3f rows_per_s=%.1f",
               job->rows, e->dim, job->seconds, rate) == MC_OK;
}

static const char details[] =
    "OUTPUT.npy is a float32 array for numpy.load, with a row for each row of the table;\n"
    "OUTPUT.jsonl has an object for each row, {\"embedding\": [...]}. It appears when it is\n"
    "complete. A folder of sentence-transformers has the settings of its vectors; for other\n"
    "encoders a vector is the mean of the last hidden states. Texts come from --data, from "
    "--text,\n"
    "or from a pipe. A pipe is read as JSON if its first line is an object or begins a list of\n"
    "objects, as a table if it names the text column, else as one text per line. The last line on\n"
    "stdout (on stderr if OUTPUT is stdout) is\n"
    "`result rows=... dim=... seconds=... rows_per_s=...`.\n\n"
    "  modelcenter embed --model sentence-transformers/all-MiniLM-L6-v2 --data reviews.csv \\\n"
    "      --text-column review --output reviews.npy\n"
    "  modelcenter embed --model sentence-transformers/all-MiniLM-L6-v2 --text 'What a film!'\n";

/* Reads the command line; e->run: the command should run. */
static int check(const args_spec *spec, embed *e, int ways, int argc, char **argv)
{
    int code;
    output_form form;
    if (!args_parse(spec, argc, argv, &code)) return code;
    code = model_check(spec, &e->job.from, ways, false);
    if (code == EXIT_OK) code = text_job_check(spec, &e->job);
    if (code != EXIT_OK) return code;
    if (!output_choose_form(spec, e->job.output, OUTPUT_JSONL | OUTPUT_NPY, &form, &code))
        return code;
    if (e->fp8 && text_job_dtype(&e->job) == MC_F16)
        return args_error(spec, "--fp8 with --dtype f16: expected --dtype bf16 or f32");
    if (e->prompt && e->prompt_name)
        return args_error(spec, "expected --prompt or --prompt-name, not both");
    e->as_npy = form == OUTPUT_NPY;
    e->run = true;
    return EXIT_OK;
}

int cmd_embed(int argc, char **argv)
{
    embed e = {.file = {.aside = {.fd = -1}}};
    args_table table = {.count = 0};
    const int ways = MODEL_WAY_ADAPTER | MODEL_WAY_OLD_MODEL | MODEL_WAY_ANY | MODEL_WAY_TOKENIZER;
    text_job_options_init(&e.job, argc);
    text_job_add_rows(&table, &e.job, ways);
    ARGS_ADD(
        &table,
        {ARGS_CHOICE("pooling", &e.pooling, pooling_names,
                     "which vector of a text's tokens; auto: as the folder says, else mean"),
         .known_as = "pooling-mode"},
        {ARGS_CHOICE("normalize", &e.normalize, normalize_names,
                     "whether vectors get the length 1; auto: as the folder says, else no"),
         .known_as = "normalize-embeddings"},
        {ARGS_CHOICE("fp8", &e.fp8, fp8_names,
                     "all: linear layers multiply in 8 bits, scaled by the first 1,000 texts")},
        {ARGS_INT("truncate-dim", &e.truncate_dim, 1, INT32_MAX,
                  "how many numbers of a vector are kept, the first ones"),
         .default_text = "as many as the folder says, else all", .known_as = "dimensions"},
        {ARGS_TEXT("prompt", &e.prompt, "a text before each text"),
         .default_text = "the folder's default"},
        {ARGS_TEXT("prompt-name", &e.prompt_name, "the folder's prompt of this name")});
    text_job_add_machine_rows(&table, &e.job);
    const args_spec spec = {.command = "embed",
                            .summary = "Computes a vector of each text.",
                            .details = details,
                            .options = table.rows};
    int code = check(&spec, &e, ways, argc, argv);
    if (code == EXIT_OK && e.run) {
        text_job job = {.o = &e.job, .name = "embed"};
        code = text_job_start(&job, work, &e);
    }
    text_job_options_release(&e.job);
    task_file_release(&e.task);
    free(e.vectors);
    free(e.written);
    free(e.lines);
    return code;
}
