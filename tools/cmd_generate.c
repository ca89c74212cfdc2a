/* `modelcenter generate`: continues texts with a language model. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "core/modelcenter.h"
#include "tools/args.h"
#include "tools/commands.h"
#include "tools/download_bar.h"
#include "tools/families.h"
#include "tools/prompt_ids.h"
#include "tools/lora_options.h"
#include "tools/ranks.h"
#include "tools/run_log.h"
#include "tools/text.h"
#include "tools/train_options.h"

static const char *const dtype_names[] = {"auto", "f32", "f16", "bf16", NULL};
static const mc_dtype dtypes[] = {MC_DTYPE_DEFAULT, MC_F32, MC_F16, MC_BF16};

typedef struct generate_options {
    int model, device, dtype;
    const char *pretrained, *revision, *base, *prompts_file;
    args_list prompts;
    bool ids, echo, json;
    bool any_temperature, any_top_k, any_top_p; /* were given, which means sampling */
    bool any_penalty;
    int64_t batch_size;
    ranks_options ranks;
    mc_generate_options how;
} generate_options;

/* A prompt as text and as ids. */
typedef struct prompt {
    const char *text;
    int32_t *ids;
    int count;
} prompt;

typedef struct generation {
    const generate_options *o;
    mc_context *ctx;
    bool silent; /* every rank computes the answers, one prints them */
    mc_model *model;
    mc_tokenizer *tokenizer; /* NULL with --ids */
    char **lines;            /* of --prompts */
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
    mc_status status;
    if (!is_utf8(p->text)) return fail("--prompt", "not UTF-8");
    p->ids = prompt_ids(g->tokenizer, family_names()[g->o->model], p->text, &p->count, &status);
    if (p->ids && mc_tokenizer_check_ids(g->tokenizer, p->ids, (size_t)p->count,
                                         mc_model_get_shape(g->model).vocab_size))
        return false;
    return p->ids || fail("the prompt", mc_status_text(status));
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
        p->text = g->count < given ? o->prompts.items[g->count] : g->lines[g->count - given];
        if (!(o->ids ? parse_ids(p) : encode(g, p)) || !begin_text(g, p)) {
            g->count++; /* to be freed with the others */
            return false;
        }
    }
    return g->count || fail(o->prompts_file, "it holds no prompt");
}

/* ---- a text as it comes ---------------------------------------------------------------------- */

/* Bytes at the end of a text that may be the beginning of a character. */
typedef struct held_bytes {
    char bytes[4];
    int count;
} held_bytes;

static void print_broken(held_bytes *h)
{
    if (h->count) fputs("\xef\xbf\xbd", stdout);
    h->count = 0;
}

/* Prints whole characters and keeps the beginning of one; what is no UTF-8 becomes U+FFFD. */
static void print_bytes(held_bytes *h, const char *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        unsigned char byte = (unsigned char)bytes[i], first = (unsigned char)h->bytes[0];
        if (h->count && !continues_character(first, h->count, byte)) print_broken(h);
        h->bytes[h->count++] = bytes[i];
        int length = character_length((unsigned char)h->bytes[0]);
        if (length == 0) print_broken(h);
        if (length == 0 || h->count < length) continue;
        fwrite(h->bytes, 1, (size_t)h->count, stdout);
        h->count = 0;
    }
}

static void print_token(const generation *g, held_bytes *h, int32_t token, bool first)
{
    if (g->silent) return;
    if (!g->tokenizer) {
        printf(first ? "%d" : " %d", token);
    } else if (mc_tokenizer_id_to_token(g->tokenizer, token)) {
        size_t size;
        mc_decode_options raw = {.skip_special = true, .raw_bytes = true};
        char *bytes = mc_tokenizer_decode_sized(g->tokenizer, &token, 1, &raw, &size);
        if (bytes) print_bytes(h, bytes, size);
        mc_string_free(bytes);
    }
    fflush(stdout);
}

static bool stream(generation *g)
{
    const prompt *p = &g->prompts[0];
    const int32_t *ids = p->ids;
    held_bytes held = {.count = 0};
    mc_generator *generator = mc_model_generator_new(g->model, &ids, &p->count, 1, &g->o->how);
    if (generator && g->o->echo && !g->silent) fputs(p->text, stdout);
    bool first = !g->o->echo || !*p->text;
    for (int32_t token; mc_generator_next(generator, &token) && !ferror(stdout); first = false)
        print_token(g, &held, token, first);
    if (ferror(stdout)) ranks_refuse(g->ctx, "cannot write to stdout");
    print_broken(&held);
    if (generator && !g->silent) fputc('\n', stdout);
    mc_generator_free(generator);
    return !mc_failed(g->ctx);
}

/* ---- whole answers --------------------------------------------------------------------------- */

static bool add_ids(cJSON *json, const char *key, const int32_t *ids, int count)
{
    cJSON *list = cJSON_CreateIntArray(ids, count);
    if (list && cJSON_AddItemToObject(json, key, list)) return true;
    cJSON_Delete(list);
    return false;
}

/* The text of tokens as JSON writes it, NULL when memory is out. It may hold NULs, which strings of
 * cJSON may not. */
static char *json_text(const generation *g, const int32_t *ids, int count)
{
    size_t size = 0;
    const mc_decode_options options = {.skip_special = true, .skip_unknown = true};
    char *plain = mc_tokenizer_decode_sized(g->tokenizer, ids, (size_t)count, &options, &size);
    char *json = plain ? malloc(6 * size + 3) : NULL;
    if (json) {
        text t = text_into(json, 6 * size + 3);
        text_add_json_bytes(&t, plain, size);
    }
    mc_string_free(plain);
    return json;
}

/* {"prompt": ..., "text": ..., "ids": [...], "tokens": n, "score": x} */
static bool print_json(const generation *g, const prompt *p, const int32_t *ids, int count,
                       float score)
{
    if (g->silent) return true;
    cJSON *json = cJSON_CreateObject();
    char *answer = g->tokenizer ? json_text(g, ids, count) : NULL;
    char number[32];
    snprintf(number, sizeof number, "%.6g", (double)score);
    bool good =
        json && (!g->tokenizer || answer) && cJSON_AddStringToObject(json, "prompt", p->text) &&
        (!answer || cJSON_AddRawToObject(json, "text", answer)) &&
        add_ids(json, "ids", ids, count) && cJSON_AddNumberToObject(json, "tokens", count) &&
        cJSON_AddRawToObject(json, "score", isfinite(score) ? number : "null");
    char *line = good ? cJSON_PrintUnformatted(json) : NULL;
    if (line) puts(line);
    cJSON_free(line);
    cJSON_Delete(json);
    free(answer);
    return line || fail("an answer", "out of memory");
}

/* One answer of a beam search, as text. */
static void print_text(const generation *g, const prompt *p, const int32_t *ids, int count)
{
    held_bytes held = {.count = 0};
    if (g->silent) return;
    if (g->o->echo) fputs(p->text, stdout);
    for (int i = 0; i < count; i++)
        print_token(g, &held, ids[i], i == 0 && (!g->o->echo || !*p->text));
    print_broken(&held);
    fputc('\n', stdout);
}

/* Answers prompts first .. first + count. */
static bool answer_batch(generation *g, size_t first, size_t count, bool json)
{
    const int32_t **ids = calloc(count, sizeof *ids);
    int *lengths = calloc(count, sizeof *lengths);
    bool good = (ids && lengths) || fail("the prompts", "out of memory");
    for (size_t i = 0; good && i < count; i++) {
        ids[i] = g->prompts[first + i].ids;
        lengths[i] = g->prompts[first + i].count;
    }
    mc_generate_options how = g->o->how;
    how.first_prompt = (int64_t)first;
    mc_generation *out = good ? mc_model_generate(g->model, ids, lengths, (int)count, &how) : NULL;
    good = out;
    for (int i = 0; good && i < out->count; i++) {
        const prompt *p = &g->prompts[first + (size_t)i];
        if (json)
            good = print_json(g, p, out->ids[i], out->lengths[i], out->scores[i]);
        else
            print_text(g, p, out->ids[i], out->lengths[i]);
    }
    fflush(stdout);
    mc_generation_free(out);
    free(ids);
    free(lengths);
    return good;
}

static bool answer_all(generation *g)
{
    bool json = g->o->json || g->count > 1 || g->o->prompts_file;
    if (!json && g->o->how.num_beams <= 1) return stream(g);
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
    return !mc_failed(g->ctx) && make_prompts(g) && answer_all(g);
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
    for (size_t i = 0; i < g.count; i++) free(g.prompts[i].ids);
    for (size_t i = 0; i < g.line_count; i++) free(g.lines[i]);
    free(g.prompts);
    free(g.lines);
    return ranks_leave(g.ctx, code);
}

static const char details[] =
    "One prompt is answered on stdout as its tokens come; several, those of a file, and\n"
    "with --json, as JSON Lines: an object a prompt with \"prompt\", \"text\", \"ids\",\n"
    "\"tokens\" and \"score\", in the order of the prompts (--prompt first). An empty prompt\n"
    "begins a new text. Without --sample the most probable tokens are taken. An encoder-decoder\n"
    "reads the prompt and writes its answer, others go on with it. cpm2 fills in the blanks\n"
    "<s_0>, <s_1> ... of a prompt; one without gets <s_0> after it.\n\n"
    "  modelcenter generate gpt2 --pretrained gpt2 --prompt 'Once upon a time'\n"
    "  modelcenter generate gpt2 --pretrained ./my-gpt2 --prompts starts.txt \\\n"
    "      --top-k 40 --temperature 0.8 --seed 7 > answers.jsonl\n";

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
    mc_generate_options *how = &o->how;
    args_table_add(
        table,
        (args_option[]){
            {ARGS_HEADING("Choosing tokens")},
            {ARGS_INT("max-new-tokens", &how->max_new_tokens, 1, INT_MAX / 2,
                      "tokens of an answer, unless it ends before"),
             .known_as = "max-length,max-tokens"},
            {ARGS_FLAG("sample", &how->sample,
                       "draw tokens; --temperature, --top-k and --top-p switch it on too"),
             .known_as = "do-sample"},
            {ARGS_REAL("temperature", &how->temperature, 0, INFINITY, "logits are divided by it"),
             .above_low = true, .given = &o->any_temperature},
            {ARGS_INT("top-k", &how->top_k, 0, INT_MAX, "draw from the k most probable; 0: all"),
             .given = &o->any_top_k},
            {ARGS_REAL("top-p", &how->top_p, 0, 1,
                       "draw from the most probable that have this probability together"),
             .above_low = true, .given = &o->any_top_p},
            {ARGS_REAL("repetition-penalty", &how->repetition_penalty, 0, INFINITY,
                       "above 1: tokens that were there already become less probable"),
             .above_low = true},
            {ARGS_INT("seed", &how->seed, 0, INT64_MAX, "of drawing")},
            {ARGS_INT("num-beams", &how->num_beams, 1, 1024, "beams of a search; 1: none"),
             .known_as = "beams"},
            {ARGS_REAL("length-penalty", &how->length_penalty, -1000, 1000,
                       "beam search: log-probabilities are divided by the length to this power"),
             .given = &o->any_penalty},
            {ARGS_FLAG("early-stopping", &how->early_stopping,
                       "beam search: stop as soon as num-beams answers have ended")},
            {ARGS_FLAG("ignore-eos", &how->ignore_eos, "nothing ends an answer but its length")},
            {0},
        });
}

static void add_output_rows(args_table *table, generate_options *o)
{
    args_table_add(
        table, (args_option[]){
                   {ARGS_HEADING("Output")},
                   {ARGS_FLAG("echo", &o->echo, "print the prompt before its answer")},
                   {ARGS_FLAG("json", &o->json, "print JSON Lines for one prompt too")},
                   {ARGS_HEADING("Machine")},
                   {ARGS_CHOICE("device", &o->device, train_device_names, "where to run"),
                    .numbered = true},
                   {ARGS_CHOICE("dtype", &o->dtype, dtype_names,
                                "of weights and activations; auto is f32 on the CPU, else bf16")},
                   {ARGS_INT("batch-size", &o->batch_size, 1, 1 << 20,
                             "prompts that are answered at once")},
                   {0},
               });
}

static int parse_and_run(generate_options *o, int argc, char **argv)
{
    mc_generate_options *how = &o->how;
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
    if (o->any_temperature || o->any_top_k || o->any_top_p) how->sample = true;
    if (how->sample && how->num_beams > 1)
        return args_error(&spec,
                          "--num-beams %d: beam search does not sample: expected neither "
                          "--sample nor --temperature, --top-k, --top-p with it",
                          how->num_beams);
    if (o->any_penalty && how->length_penalty == 0) how->length_penalty = MC_LENGTH_PENALTY_NONE;
    return run(o);
}

int cmd_generate(int argc, char **argv)
{
    generate_options o = {.batch_size = 32,
                          .ranks = RANKS_DEFAULTS,
                          .how = {.max_new_tokens = 50,
                                  .temperature = 1,
                                  .top_p = 1,
                                  .repetition_penalty = 1,
                                  .num_beams = 1,
                                  .length_penalty = 1}};
    o.prompts.items = calloc((size_t)argc, sizeof *o.prompts.items);
    o.prompts.room = o.prompts.items ? argc : 0;
    int code = parse_and_run(&o, argc, argv);
    free(o.prompts.items);
    return code;
}
