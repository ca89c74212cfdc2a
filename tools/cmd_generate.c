/* `modelcenter generate`: continues texts with a language model. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "core/modelcenter.h"
#include "tools/answer_options.h"
#include "tools/args.h"
#include "tools/commands.h"
#include "tools/download_bar.h"
#include "tools/families.h"
#include "tools/lora_options.h"
#include "tools/ranks.h"
#include "tools/run_log.h"
#include "tools/running_batch.h"
#include "tools/text.h"
#include "tools/train_options.h"
#include "tools/weights_option.h"

static const char *const dtype_names[] = {"auto", "f32", "f16", "bf16", NULL};
static const mc_dtype dtypes[] = {MC_DTYPE_DEFAULT, MC_F32, MC_F16, MC_BF16};

typedef struct generate_options {
    int model, device, dtype, weights;
    const char *pretrained, *revision, *base, *prompts_file;
    args_list prompts;
    bool ids, echo, json, log_probs, any_length;
    int64_t batch_size;
    int max_new_tokens, num_return_sequences;
    bool any_sequences;
    ranks_options ranks;
    answer_options answer;
} generate_options;

/* A prompt as text and as ids. */
typedef struct prompt {
    const char *text;
    mc_text_prompt made; /* of the text; empty with --ids */
    int32_t *ids;
    int count;
} prompt;

typedef struct generation {
    const generate_options *o;
    mc_context *ctx;
    bool silent; /* every rank computes the answers, one prints them */
    mc_model *model;
    mc_tokenizer *tokenizer; /* NULL with --ids */
    mc_generate_options how;
    char **lines; /* of --prompts */
    size_t line_count;
    prompt *prompts;
    size_t count;
} generation;

static bool fail(const char *where, const char *what)
{
    fprintf(stderr, "error: %s: %s\n", where, what);
    return false;
}

/* ---- UTF-8 ----------------------------------------------------------------------------------- */

/* How many bytes the character that begins with this byte has; 0: none does. */
static int character_length(unsigned char first)
{
    if (first < 0x80) return 1;
    if (first >= 0xc2 && first < 0xe0) return 2;
    if (first >= 0xe0 && first < 0xf0) return 3;
    return first >= 0xf0 && first < 0xf5 ? 4 : 0;
}

/* Whether `next` may stand at place `at` of a character that begins with `first`. */
static bool continues_character(unsigned char first, int at, unsigned char next)
{
    if (at == 1 && first == 0xe0 && next < 0xa0) return false; /* could be shorter */
    if (at == 1 && first == 0xed && next > 0x9f) return false; /* a surrogate */
    if (at == 1 && first == 0xf0 && next < 0x90) return false;
    if (at == 1 && first == 0xf4 && next > 0x8f) return false; /* beyond U+10FFFF */
    return (next & 0xc0) == 0x80;
}

static bool is_utf8(const char *string)
{
    while (*string) {
        unsigned char first = (unsigned char)*string;
        int length = character_length(first), at = 1;
        while (at < length && continues_character(first, at, (unsigned char)string[at])) at++;
        if (length == 0 || at < length) return false;
        string += length;
    }
    return true;
}

/* ---- prompts --------------------------------------------------------------------------------- */

static bool check_line(const char *path, size_t number, const char *line, size_t length)
{
    const char *bad = strlen(line) < length ? "a NUL byte" : is_utf8(line) ? NULL : "not UTF-8";
    if (bad) fprintf(stderr, "error: %s:%zu: %s, expected a prompt a line\n", path, number, bad);
    return !bad;
}

/* Each line of the file is a prompt. */
static bool read_lines(generation *g, const char *path)
{
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
    if (!file) return fail(path, strerror(errno));
    size_t room = 0, most = 0;
    char *line = NULL;
    ssize_t length;
    bool good = true, readable = true;
    errno = 0;
    while (good && readable && (length = getline(&line, &room, file)) >= 0) {
        if (length && line[length - 1] == '\n') line[--length] = '\0';
        if (length && line[length - 1] == '\r') line[--length] = '\0';
        readable = check_line(path, g->line_count + 1, line, (size_t)length);
        if (g->line_count == most) {
            most = 2 * most + 16;
            char **grown = realloc(g->lines, most * sizeof *grown);
            if (grown) g->lines = grown;
            good = grown;
        }
        if (good) good = (g->lines[g->line_count] = line);
        if (good) g->line_count++;
        line = NULL; /* the list's now */
        room = 0;
    }
    if (!good)
        fail(path, "out of memory");
    else if (readable && !feof(file))
        good = fail(path, errno ? strerror(errno) : "cannot read");
    free(line);
    if (file != stdin) fclose(file);
    return good && readable;
}

/* "12, 7 99" as ids. */
static bool parse_ids(prompt *p)
{
    size_t room = strlen(p->text) / 2 + 1;
    if (!(p->ids = malloc(room * sizeof *p->ids))) return fail("--ids", "out of memory");
    for (const char *at = p->text; *(at += strspn(at, " ,\t"));) {
        char *end;
        errno = 0;
        long id = strtol(at, &end, 10);
        if (end == at || errno || id < 0 || id > INT_MAX || (*end && !strchr(" ,\t", *end))) {
            fprintf(stderr, "error: --ids: \"%.100s\": expected token ids, found \"%.20s\"\n",
                    p->text, at);
            return false;
        }
        p->ids[p->count++] = (int32_t)id;
        at = end;
    }
    return true;
}

static bool encode(generation *g, prompt *p)
{
    if (!is_utf8(p->text)) return fail("--prompt", "not UTF-8");
    if (mc_text_prompt_init(&p->made, g->model, g->tokenizer, p->text, strlen(p->text)))
        return false;
    p->ids = p->made.ids;
    p->count = p->made.count;
    return true;
}

/* An empty prompt begins a new text. */
static bool begin_text(generation *g, prompt *p)
{
    int64_t begin = mc_model_get_shape(g->model).bos_token;
    if (p->count) return true;
    if (begin < 0) return fail("an empty prompt", "the model has no token that begins a text");
    p->ids[p->count++] = (int32_t)begin;
    return true;
}

static bool make_prompts(generation *g)
{
    const generate_options *o = g->o;
    size_t given = (size_t)o->prompts.count;
    if (o->prompts_file && !read_lines(g, o->prompts_file)) return false;
    g->prompts = calloc(given + g->line_count + 1, sizeof *g->prompts);
    if (!g->prompts) return fail("the prompts", "out of memory");
    for (g->count = 0; g->count < given + g->line_count; g->count++) {
        prompt *p = &g->prompts[g->count];
        p->made.end = -1;
        p->text = g->count < given ? o->prompts.items[g->count] : g->lines[g->count - given];
        if (!(o->ids ? parse_ids(p) : encode(g, p)) || !begin_text(g, p)) {
            g->count++; /* to be freed with the others */
            return false;
        }
    }
    return g->count || fail(o->prompts_file, "it holds no prompt");
}

/* ---- how ------------------------------------------------------------------------------------- */

/* By the command line, else by the model's generation_config.json, else by the command's own. */
static bool choose_how(generation *g)
{
    enum { NEW_TOKENS = 50 };
    const generate_options *o = g->o;
    mc_generate_options *how = &g->how;
    if (!answer_options_resolve(&o->answer, g->model, how)) return false;
    if (o->any_length || (!how->max_new_tokens && !how->max_length))
        how->max_new_tokens = o->max_new_tokens;
    if (o->any_sequences) how->num_return_sequences = o->num_return_sequences;
    return true;
}

/* With what ends answers. */
static mc_generate_options how_to_answer(const generation *g, mc_stop *stop)
{
    mc_generate_options how = g->how;
    how.stop = mc_stop_reached;
    how.stop_user = stop;
    return how;
}

/* ---- a text as it comes ---------------------------------------------------------------------- */

static void print_id(int32_t token, bool first) { printf(first ? "%d" : " %d", token); }

/* Prints what an answer's tokens make certain of its text. */
static bool print_piece(const generation *g, const char *piece, size_t size)
{
    if (piece && !g->silent) fwrite(piece, 1, size, stdout);
    fflush(stdout);
    if (!ferror(stdout)) return piece;
    ranks_refuse(g->ctx, "cannot write to stdout");
    return fail("stdout", "cannot write");
}

static bool stream_ids(const generation *g, mc_generator *generator)
{
    bool first = !g->o->echo || !*g->prompts[0].text;
    for (int32_t token; mc_generator_next(generator, &token); first = false) {
        if (!g->silent) print_id(token, first);
        if (!print_piece(g, "", 0)) return false;
    }
    return true;
}

static bool stream_text(const generation *g, mc_generator *generator, const mc_stop *stop)
{
    mc_text_stream *words = mc_text_stream_new(stop, 0);
    size_t size = 0;
    bool good = words;
    for (int32_t token; good && mc_generator_next(generator, &token);) {
        const char *piece = mc_text_stream_add(words, token, &size);
        good = print_piece(g, piece, size);
    }
    if (good) {
        const char *rest = mc_text_stream_end(words, &size);
        good = print_piece(g, rest, size);
    }
    mc_text_stream_free(words);
    return good;
}

static bool stream(generation *g)
{
    const prompt *p = &g->prompts[0];
    const int32_t *ids = p->ids;
    mc_stop stop = answer_stop(&g->o->answer, g->tokenizer, &p->made.end);
    mc_generate_options how = how_to_answer(g, &stop);
    mc_generator *generator = mc_model_generator_new(g->model, &ids, &p->count, 1, &how);
    if (generator && g->o->echo && !g->silent) fputs(p->text, stdout);
    bool good =
        generator && (g->tokenizer ? stream_text(g, generator, &stop) : stream_ids(g, generator));
    if (good && !g->silent) fputc('\n', stdout);
    mc_generator_free(generator);
    return good && !mc_failed(g->ctx);
}

/* ---- whole answers --------------------------------------------------------------------------- */

static bool add_ids(cJSON *json, const char *key, const int32_t *ids, int count)
{
    cJSON *list = cJSON_CreateIntArray(ids, count);
    if (list && cJSON_AddItemToObject(json, key, list)) return true;
    cJSON_Delete(list);
    return false;
}

/* As many digits as a float has. */
static cJSON *json_number(float x)
{
    char number[32];
    snprintf(number, sizeof number, "%.6g", (double)x);
    return cJSON_CreateRaw(isfinite(x) ? number : "null");
}

static bool add_number(cJSON *json, const char *key, float x)
{
    cJSON *number = json_number(x);
    if (number && cJSON_AddItemToObject(json, key, number)) return true;
    cJSON_Delete(number);
    return false;
}

static bool add_log_probs(cJSON *json, const float *x, int count)
{
    cJSON *list = cJSON_AddArrayToObject(json, "log_probs");
    for (int i = 0; list && i < count; i++) {
        cJSON *number = json_number(x[i]);
        if (number && cJSON_AddItemToArray(list, number)) continue;
        cJSON_Delete(number);
        return false;
    }
    return list;
}

/* A text as JSON writes it, NULL when memory is out. It may hold NULs, which strings of cJSON may
 * not. */
static char *json_text(const char *plain, size_t size)
{
    char *json = plain ? malloc(6 * size + 3) : NULL;
    if (json) {
        text t = text_into(json, 6 * size + 3);
        text_add_json_bytes(&t, plain, size);
    }
    return json;
}

/* An answer; `plain` is its text of `size` bytes, NULL with --ids. */
typedef struct answer {
    const int32_t *ids;
    int count;
    float score;
    const float *log_probs;
    const char *plain;
    size_t size;
} answer;

/* {"prompt": ..., "text": ..., "ids": [...], "tokens": n, "score": x, "log_probs": [...]} */
static bool print_json(const generation *g, const prompt *p, const answer *a)
{
    if (g->silent) return true;
    cJSON *json = cJSON_CreateObject();
    char *written = g->tokenizer ? json_text(a->plain, a->size) : NULL;
    bool good =
        json && (!g->tokenizer || written) && cJSON_AddStringToObject(json, "prompt", p->text) &&
        (!written || cJSON_AddRawToObject(json, "text", written)) &&
        add_ids(json, "ids", a->ids, a->count) &&
        cJSON_AddNumberToObject(json, "tokens", a->count) && add_number(json, "score", a->score) &&
        (!g->o->log_probs || add_log_probs(json, a->log_probs, a->count));
    char *line = good ? cJSON_PrintUnformatted(json) : NULL;
    if (line) puts(line);
    cJSON_free(line);
    cJSON_Delete(json);
    free(written);
    return line || fail("an answer", "out of memory");
}

/* One answer of a beam search, as text. */
static bool print_text(const generation *g, const prompt *p, const answer *a)
{
    if (g->silent) return true;
    if (g->o->echo) fputs(p->text, stdout);
    for (int i = 0; i < a->count && !g->tokenizer; i++)
        print_id(a->ids[i], i == 0 && (!g->o->echo || !*p->text));
    if (g->tokenizer) fwrite(a->plain, 1, a->size, stdout);
    fputc('\n', stdout);
    return true;
}

static bool print_answer(const generation *g, const mc_generation *out, int i, size_t first,
                         const mc_stop *stop, bool json)
{
    int number = i / (g->how.num_return_sequences ? g->how.num_return_sequences : 1);
    const prompt *p = &g->prompts[first + (size_t)number];
    answer a = {out->ids[i], out->lengths[i], out->scores[i], out->log_probs[i], NULL, 0};
    char *plain = NULL;
    if (g->tokenizer && !(plain = mc_stop_text(stop, number, a.ids, a.count, &a.size)))
        return false;
    a.plain = plain;
    bool good = json ? print_json(g, p, &a) : print_text(g, p, &a);
    mc_string_free(plain);
    return good;
}

/* Answers prompts first .. first + count. */
static bool answer_batch(generation *g, size_t first, size_t count, bool json)
{
    const int32_t **ids = calloc(count, sizeof *ids);
    int *lengths = calloc(count, sizeof *lengths);
    int32_t *ends = calloc(count, sizeof *ends);
    bool good = (ids && lengths && ends) || fail("the prompts", "out of memory");
    for (size_t i = 0; good && i < count; i++) {
        ids[i] = g->prompts[first + i].ids;
        lengths[i] = g->prompts[first + i].count;
        ends[i] = g->prompts[first + i].made.end;
    }
    mc_stop stop = answer_stop(&g->o->answer, g->tokenizer, ends);
    mc_generate_options how = how_to_answer(g, &stop);
    how.first_prompt = (int64_t)first;
    mc_generation *out = good ? mc_model_generate(g->model, ids, lengths, (int)count, &how) : NULL;
    good = out;
    for (int i = 0; good && i < out->count; i++) good = print_answer(g, out, i, first, &stop, json);
    fflush(stdout);
    mc_generation_free(out);
    free(ids);
    free(lengths);
    free(ends);
    return good;
}

/* {"prompt": ..., "error": ...} for a prompt that can't be answered: the others are. */
static bool print_error(const generation *g, const prompt *p, const char *error)
{
    if (g->silent) return true;
    cJSON *json = cJSON_CreateObject();
    bool good = json && cJSON_AddStringToObject(json, "prompt", p->text) &&
                cJSON_AddStringToObject(json, "error", error);
    char *line = good ? cJSON_PrintUnformatted(json) : NULL;
    if (line) puts(line);
    cJSON_free(line);
    cJSON_Delete(json);
    return line || fail("an answer", "out of memory");
}

/* Of a batch that prompts join and leave. */
typedef struct running {
    generation *g;
    mc_stop *stops; /* (count) */
    running_prompt *prompts;
} running;

static bool print_running(void *user, size_t number, const running_answer *got)
{
    const running *r = user;
    const generation *g = r->g;
    const prompt *p = &g->prompts[number];
    answer a = {got->ids, got->count, (float)got->score, got->log_probs, NULL, 0};
    char *plain = NULL;
    if (got->error) return print_error(g, p, got->error);
    if (g->tokenizer && !(plain = mc_stop_text(&r->stops[number], 0, a.ids, a.count, &a.size)))
        return false;
    a.plain = plain;
    bool good = print_json(g, p, &a);
    mc_string_free(plain);
    fflush(stdout);
    return good;
}

/* Answers all prompts, with the batch kept full. */
static bool answer_running(generation *g)
{
    running r = {.g = g,
                 .stops = calloc(g->count, sizeof *r.stops),
                 .prompts = calloc(g->count, sizeof *r.prompts)};
    bool good = (r.stops && r.prompts) || fail("the prompts", "out of memory");
    for (size_t i = 0; good && i < g->count; i++) {
        const prompt *p = &g->prompts[i];
        r.stops[i] = answer_stop(&g->o->answer, g->tokenizer, &p->made.end);
        r.prompts[i] = (running_prompt){p->ids, p->count, how_to_answer(g, &r.stops[i])};
        r.prompts[i].how.first_prompt = (int64_t)i;
    }
    if (good)
        good = running_batch_answer(g->model, r.prompts, g->count, (int)g->o->batch_size,
                                    print_running, &r);
    free(r.stops);
    free(r.prompts);
    return good;
}

static bool answer_all(generation *g)
{
    bool json = g->o->json || g->o->log_probs || g->count > 1 || g->o->prompts_file ||
                g->how.num_return_sequences > 1;
    if (!json && g->how.num_beams <= 1) return stream(g);
    if (g->how.num_beams <= 1 && g->how.num_return_sequences <= 1 && g->count > 1)
        return answer_running(g);
    size_t most = (size_t)g->o->batch_size;
    for (size_t first = 0; first < g->count; first += most) {
        size_t left = g->count - first;
        if (!answer_batch(g, first, left < most ? left : most, json)) return false;
    }
    return true;
}

/* ---- the command ----------------------------------------------------------------------------- */

static bool generate(generation *g)
{
    const generate_options *o = g->o;
    mc_load_options load = {.dtype = dtypes[o->dtype], .revision = o->revision, .base = o->base};
    if (!load.dtype) load.dtype = o->device == 0 ? MC_F32 : MC_BF16;
    mc_tokenizer_options options = {.revision = o->revision, .base = o->base};
    if (!o->ids) g->tokenizer = mc_tokenizer_open(g->ctx, o->pretrained, &options);
    g->model = mc_model_from_pretrained_of(g->ctx, family_names()[o->model], o->pretrained, &load);
    weights_apply(g->model, o->weights);
    return !mc_failed(g->ctx) && choose_how(g) && make_prompts(g) && answer_all(g);
}

static int run(const generate_options *o)
{
    run_log log = {0};
    generation g = {.o = o};
    g.ctx = ranks_start(&o->ranks, 0, train_device_of(o->device).name, &log);
    g.silent = ranks_silent(g.ctx);
    if (o->prompts_file && strcmp(o->prompts_file, "-") == 0 && mc_world_size(g.ctx) > 1)
        mc_set_error(g.ctx, MC_ERR_ARGUMENT,
                     "--prompts -: only the first of several ranks has a stdin; give a file");
    int code = !mc_failed(g.ctx) && generate(&g) ? EXIT_OK : EXIT_RUN_FAILED;
    if (mc_print_error(g.ctx, stderr)) code = EXIT_RUN_FAILED;
    if (code != EXIT_OK) ranks_refuse(g.ctx, "generate cannot go on");
    for (size_t i = 0; i < g.count; i++) {
        if (o->ids) free(g.prompts[i].ids);
        mc_text_prompt_release(&g.prompts[i].made);
    }
    for (size_t i = 0; i < g.line_count; i++) free(g.lines[i]);
    free(g.prompts);
    free(g.lines);
    return ranks_leave(g.ctx, code);
}

static const char details[] =
    "One prompt is answered on stdout as its tokens come; several, those of a file, several\n"
    "answers to one, and with --json or --log-probs, as JSON Lines: an object an answer with\n"
    "\"prompt\", \"text\", \"ids\", \"tokens\" and \"score\", in the order of the prompts\n"
    "(--prompt first), whose batch is kept full; one that can't be answered gets \"error\" "
    "instead.\n"
    "An empty prompt begins a new text. Unless it is said otherwise, here or in\n"
    "the model's generation_config.json, the most probable tokens are taken. An encoder-decoder\n"
    "reads the prompt and writes its answer, others go on with it. cpm2 fills in the blanks\n"
    "<s_0>, <s_1> ... of a prompt; one without gets <s_0> after it.\n\n"
    "  modelcenter generate gpt2 --pretrained gpt2 --prompt 'Once upon a time'\n"
    "  modelcenter generate gpt2 --pretrained ./my-gpt2 --prompts starts.txt \\\n"
    "      --top-k 40 --temperature 0.8 --seed 7 > answers.jsonl\n"
    "  modelcenter generate gpt2 --pretrained gpt2 --prompt 'Q: Why?\\nA:' --stop 'Q:'\n";

static void add_prompt_rows(args_table *table, generate_options *o)
{
    args_table_add(
        table,
        (args_option[]){
            {ARGS_CHOICE("model", &o->model, family_names(), "the model's family"),
             .offers = family_generates, .required = true, .positional = true},
            {ARGS_PATH("pretrained", &o->pretrained, "folder or identifier of the model"),
             .required = true, .known_as = "model-name-or-path,load"},
            DOWNLOAD_REVISION_ROW(&o->revision),
            LORA_BASE_ROW(&o->base),
            {ARGS_TEXTS("prompt", &o->prompts, "a text to continue; may be repeated")},
            {ARGS_PATH("prompts", &o->prompts_file, "a file with a prompt a line, - for stdin"),
             .known_as = "input,file"},
            {ARGS_FLAG("ids", &o->ids, "prompts and answers are token ids; needs no tokenizer")},
            {0},
        });
}

static void add_choosing_rows(args_table *table, generate_options *o)
{
    args_table_add(table,
                   (args_option[]){
                       {ARGS_HEADING("Choosing tokens")},
                       {ARGS_INT("max-new-tokens", &o->max_new_tokens, 1, INT_MAX / 2,
                                 "tokens of an answer, unless it ends before"),
                        .known_as = "max-length,max-tokens", .given = &o->any_length},
                       {ARGS_INT("num-return-sequences", &o->num_return_sequences, 1, 65536,
                                 "answers to each prompt: draws, or the best of a beam search"),
                        .known_as = "n", .given = &o->any_sequences},
                       {0},
                   });
    answer_add_rows(table, &o->answer);
}

static void add_output_rows(args_table *table, generate_options *o)
{
    args_table_add(
        table, (args_option[]){
                   {ARGS_HEADING("Output")},
                   {ARGS_FLAG("echo", &o->echo, "print the prompt before its answer")},
                   {ARGS_FLAG("json", &o->json, "print JSON Lines for one prompt too")},
                   {ARGS_FLAG("log-probs", &o->log_probs,
                              "print JSON Lines with the log-probability of each token")},
                   {ARGS_HEADING("Machine")},
                   {ARGS_CHOICE("device", &o->device, train_device_names, "where to run"),
                    .numbered = true},
                   {ARGS_CHOICE("dtype", &o->dtype, dtype_names,
                                "of weights and activations; auto is f32 on the CPU, else bf16")},
                   WEIGHTS_ROW(&o->weights),
                   {ARGS_INT("batch-size", &o->batch_size, 1, 1 << 20,
                             "prompts that are answered at once")},
                   {0},
               });
}

static int parse_and_run(generate_options *o, int argc, char **argv)
{
    args_table table = {.count = 0};
    add_prompt_rows(&table, o);
    add_choosing_rows(&table, o);
    add_output_rows(&table, o);
    ranks_add_rows(&table, &o->ranks);
    const args_spec spec = {.command = "generate",
                            .summary = "Continues or answers texts with a language model.",
                            .details = details,
                            .options = table.rows};
    int code;
    if (!args_parse(&spec, argc, argv, &code)) return code;
    if (!family_can(&spec, o->model, FAMILY_GENERATES)) return EXIT_USAGE;
    if (!o->prompts.count && !o->prompts_file)
        return args_error(&spec, "expected --prompt or --prompts");
    if (o->ids && o->answer.stop.count)
        return args_error(&spec, "--stop %s: is looked for in text: not with --ids",
                          o->answer.stop.items[0]);
    code = answer_options_check(&spec, &o->answer);
    if (code != EXIT_OK) return code;
    return run(o);
}

int cmd_generate(int argc, char **argv)
{
    generate_options o = {
        .batch_size = 32, .ranks = RANKS_DEFAULTS, .max_new_tokens = 50, .num_return_sequences = 1};
    answer_options_init(&o.answer, argc);
    o.prompts.items = calloc((size_t)argc, sizeof *o.prompts.items);
    o.prompts.room = o.prompts.items ? argc : 0;
    int code = parse_and_run(&o, argc, argv);
    answer_options_release(&o.answer);
    free(o.prompts.items);
    return code;
}
