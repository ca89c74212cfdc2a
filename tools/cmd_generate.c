/* `modelcenter generate`: continues texts with a language model. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tools/options/answer_options.h"
#include "tools/options/args.h"
#include "tools/commands.h"
#include "tools/options/families.h"
#include "tools/files/line_reader.h"
#include "tools/options/model_options.h"
#include "tools/files/output.h"
#include "tools/files/prompt_file.h"
#include "tools/files/rank_file.h"
#include "tools/ranks.h"
#include "tools/log/run_log.h"
#include "tools/tasks/running_batch.h"
#include "tools/files/text.h"
#include "tools/options/train_options.h"
#include "tools/options/weights_option.h"

static const mc_dtype dtypes[] = {MC_DTYPE_DEFAULT, MC_F32, MC_F16, MC_BF16};

typedef struct generate_options {
    model_options from;
    int device, dtype, weights;
    const char *prompts_file, *json_key, *output;
    bool json_key_given;
    args_list prompts;
    bool ids, echo, json, log_probs, any_length, overwrite, chat;
    const char *chat_format, *system;
    int64_t batch_size;
    int max_new_tokens, num_return_sequences;
    bool any_sequences;
    ranks_options ranks;
    answer_options answer;
} generate_options;

/* A prompt as text and as ids. */
typedef struct prompt {
    const char *text;
    size_t size;         /* of the text, which may hold NUL characters */
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
    mc_chat_format chat; /* of --chat */
    const char **stops;  /* how.stop_texts with the chat format's end; NULL: as they are */
    prompt_file file;    /* of --prompts */
    output out;
    rank_file output; /* of --output */
    prompt *prompts;
    size_t count;
} generation;

static bool fail(const char *where, const char *what)
{
    fprintf(stderr, "error: %s: %s\n", where, what);
    return false;
}

/* ---- prompts --------------------------------------------------------------------------------- */

/* "12, 7 99" as ids. */
static bool parse_ids(prompt *p)
{
    size_t room = strlen(p->text) / 2 + 1;
    if (strlen(p->text) < p->size) return fail("--ids", "a NUL character, expected token ids");
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

/* A prompt is what a user says. */
static bool encode_chat(generation *g, prompt *p)
{
    const char *system = g->o->system;
    const mc_chat_message messages[] = {{"system", system}, {"user", p->text}};
    if (strlen(p->text) < p->size) return fail("--chat", "a NUL character in a prompt");
    return mc_chat_prompt_init(&p->made, g->model, g->tokenizer, g->chat, messages + !system,
                               system ? 2 : 1) == MC_OK;
}

static bool encode(generation *g, prompt *p)
{
    if (g->o->chat ? !encode_chat(g, p)
                   : mc_text_prompt_init(&p->made, g->model, g->tokenizer, p->text, p->size))
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
    if (o->prompts_file && !prompt_file_read(&g->file, g->ctx, o->prompts_file, o->json_key))
        return false;
    g->prompts = calloc(given + g->file.count + 1, sizeof *g->prompts);
    if (!g->prompts) return fail("the prompts", "out of memory");
    for (g->count = 0; g->count < given + g->file.count; g->count++) {
        prompt *p = &g->prompts[g->count];
        p->made.end = -1;
        if (g->count < given) {
            p->text = o->prompts.items[g->count];
            p->size = strlen(p->text);
        } else {
            p->text = g->file.texts[g->count - given].data;
            p->size = g->file.texts[g->count - given].size;
        }
        if (!(o->ids ? parse_ids(p) : encode(g, p)) || !begin_text(g, p)) {
            g->count++; /* to be freed with the others */
            return false;
        }
    }
    return g->count || fail(strcmp(o->prompts_file, "-") == 0 ? "standard input" : o->prompts_file,
                            "no prompts");
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
    if (!o->chat) return true;
    if (mc_chat_format_choose(g->ctx, g->tokenizer, o->chat_format, &g->chat)) return false;
    const char *end = mc_chat_format_end(g->chat, g->tokenizer);
    return mc_tokenizer_token_to_id(g->tokenizer, end) >= 0 ||
           answer_add_stop(&g->how, end, &g->stops) || fail("--chat", "out of memory");
}

/* With what ends answers. */
static mc_generate_options how_to_answer(const generation *g, mc_stop *stop)
{
    mc_generate_options how = g->how;
    if (!g->tokenizer) return how;
    how.stop = mc_stop_reached;
    how.stop_user = stop;
    return how;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* "1.2 GiB" */
static void add_bytes(text *t, double bytes)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
    int unit = 0;
    for (bytes /= 1024; bytes >= 1024 && unit < 3; unit++) bytes /= 1024;
    text_add(t, "%.1f %s", bytes, units[unit]);
}

/* What is there once the model is loaded, and what the cache adds. */
static void show_plan(const generation *g, const mc_cache_plan *plan)
{
    char line[160];
    text t = text_into(line, sizeof line);
    text_add(&t, "memory: weights ");
    add_bytes(&t, (double)mc_memory(g->ctx).in_use);
    text_add(&t, "; cache of %d sequence%s, %lld tokens: ", plan->sequences,
             plan->sequences > 1 ? "s" : "", (long long)plan->tokens);
    add_bytes(&t, (double)plan->bytes);
    if (!g->silent) fprintf(stderr, "%s\n", line);
}

/* Of the answers to one prompt. */
static bool plan_one(const generation *g)
{
    mc_cache_plan plan;
    bool good = mc_model_generate_plan(g->model, &g->prompts[0].count, 1, &g->how, &plan) == MC_OK;
    if (good) show_plan(g, &plan);
    return good;
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
    bool first = !g->o->echo || !g->prompts[0].size;
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
    mc_stop stop = answer_stop(&g->how, g->tokenizer, &p->made.end);
    mc_generate_options how = how_to_answer(g, &stop);
    mc_generator *generator = mc_model_generator_new(g->model, &ids, &p->count, 1, &how);
    if (generator && g->o->echo && !g->silent) fwrite(p->text, 1, p->size, stdout);
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

/* A text, which may hold NULs, as strings of cJSON may not. */
static bool add_bytes_of(cJSON *json, const char *key, const char *plain, size_t size)
{
    char *written = malloc(6 * size + 3);
    if (!written) return false;
    text t = text_into(written, 6 * size + 3);
    text_add_json_bytes(&t, plain, size);
    bool good = cJSON_AddRawToObject(json, key, written);
    free(written);
    return good;
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

/* Writes an object (NULL: memory is out) on a line of --output or of stdout, and frees it. */
static bool put_line(generation *g, cJSON *json)
{
    char *line = json ? cJSON_PrintUnformatted(json) : NULL;
    size_t size = line ? strlen(line) : 0;
    bool good = line;
    cJSON_Delete(json);
    if (line && g->o->output) {
        line[size] = '\n'; /* in place of the NUL */
        good = rank_file_append(&g->output, line, g->silent ? 0 : size + 1) == MC_OK;
    } else if (line && !g->silent) {
        puts(line);
        fflush(stdout);
    }
    if (!line) fail("an answer", "out of memory");
    cJSON_free(line);
    return good;
}

/* {"prompt": ..., "text": ..., "ids": [...], "tokens": n, "score": x, "log_probs": [...]} */
static bool print_json(generation *g, const prompt *p, const answer *a)
{
    cJSON *json = cJSON_CreateObject();
    bool good = json && add_bytes_of(json, "prompt", p->text, p->size) &&
                (!g->tokenizer || add_bytes_of(json, "text", a->plain, a->size)) &&
                add_ids(json, "ids", a->ids, a->count) &&
                cJSON_AddNumberToObject(json, "tokens", a->count) &&
                add_number(json, "score", a->score) &&
                (!g->o->log_probs || add_log_probs(json, a->log_probs, a->count));
    if (good) return put_line(g, json);
    cJSON_Delete(json);
    return fail("an answer", "out of memory");
}

/* One answer of a beam search, as text. */
static bool print_text(const generation *g, const prompt *p, const answer *a)
{
    if (g->silent) return true;
    if (g->o->echo) fwrite(p->text, 1, p->size, stdout);
    for (int i = 0; i < a->count && !g->tokenizer; i++)
        print_id(a->ids[i], i == 0 && (!g->o->echo || !p->size));
    if (g->tokenizer) fwrite(a->plain, 1, a->size, stdout);
    fputc('\n', stdout);
    return true;
}

static bool print_answer(generation *g, const prompt *p, answer a, const mc_stop *stop, bool json)
{
    char *plain = NULL;
    if (g->tokenizer && !(plain = mc_stop_text(stop, 0, a.ids, a.count, &a.size))) return false;
    a.plain = plain;
    bool good = json ? print_json(g, p, &a) : print_text(g, p, &a);
    mc_string_free(plain);
    return good;
}

/* Answers to one prompt. */
static bool answer_one(generation *g, bool json)
{
    const prompt *p = &g->prompts[0];
    const int32_t *ids = p->ids;
    mc_stop stop = answer_stop(&g->how, g->tokenizer, &p->made.end);
    mc_generate_options how = how_to_answer(g, &stop);
    mc_generation *out = mc_model_generate(g->model, &ids, &p->count, 1, &how);
    bool good = out;
    for (int i = 0; good && i < out->count; i++) {
        answer a = {out->ids[i], out->lengths[i], out->scores[i], out->log_probs[i], NULL, 0};
        good = print_answer(g, p, a, &stop, json);
    }
    fflush(stdout);
    mc_generation_free(out);
    return good;
}

/* {"prompt": ..., "error": ...} for a prompt that can't be answered: the others are. */
static bool print_error(generation *g, const prompt *p, const char *error)
{
    cJSON *json = cJSON_CreateObject();
    if (json && add_bytes_of(json, "prompt", p->text, p->size) &&
        cJSON_AddStringToObject(json, "error", error))
        return put_line(g, json);
    cJSON_Delete(json);
    return fail("an answer", "out of memory");
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
    generation *g = r->g;
    const prompt *p = &g->prompts[number];
    answer a = {got->ids, got->count, got->score, got->log_probs, NULL, 0};
    if (got->error) return print_error(g, p, got->error);
    return print_answer(g, p, a, &r->stops[number], true);
}

/* Answers all prompts, with the batch kept full. */
static bool answer_running(generation *g)
{
    running r = {.g = g,
                 .stops = calloc(g->count, sizeof *r.stops),
                 .prompts = calloc(g->count, sizeof *r.prompts)};
    mc_cache_plan plan;
    bool good = (r.stops && r.prompts) || fail("the prompts", "out of memory");
    /* what is wrong with the options is wrong with all prompts */
    good = good && mc_model_generate_plan(g->model, NULL, 0, &g->how, &plan) == MC_OK;
    for (size_t i = 0; good && i < g->count; i++) {
        const prompt *p = &g->prompts[i];
        r.stops[i] = answer_stop(&g->how, g->tokenizer, &p->made.end);
        r.prompts[i] = (running_prompt){p->ids, p->count, how_to_answer(g, &r.stops[i])};
        r.prompts[i].how.first_prompt = (int64_t)i;
    }
    mc_generator_options o = {0};
    if (good) o = running_batch_options(g->model, r.prompts, g->count, (int)g->o->batch_size);
    good = good && mc_model_generator_plan(g->model, &o, &plan) == MC_OK;
    if (good) show_plan(g, &plan);
    if (good) good = running_batch_answer(g->model, r.prompts, g->count, &o, print_running, &r);
    free(r.stops);
    free(r.prompts);
    return good;
}

static bool answer_all(generation *g)
{
    bool json = g->o->json || g->o->log_probs || g->count > 1 || g->o->prompts_file ||
                g->o->output || g->how.num_return_sequences > 1;
    if (g->count > 1) return answer_running(g);
    return plan_one(g) && (json || g->how.num_beams > 1 ? answer_one(g, json) : stream(g));
}

/* ---- the command ----------------------------------------------------------------------------- */

static bool check_output(generation *g)
{
    const generate_options *o = g->o;
    output_init(&g->out, g->ctx, o->overwrite);
    inputs_add(&g->out.inputs, "--prompts", o->prompts_file);
    inputs_add_model_options(&g->out.inputs, g->ctx, &o->from);
    return output_check_file(&g->out, "--output", o->output);
}

/* An encoder is named before the tokenizer that a model of images lacks. */
static bool check_family(generation *g, const mc_load_options *load)
{
    const model_options *from = &g->o->from;
    const char *family = from->family;
    if (!family) family = mc_family_of_pretrained(g->ctx, from->model, load);
    if (family && mc_family_kind(family) == MC_MODEL_ENCODER)
        mc_set_error(g->ctx, MC_ERR_UNSUPPORTED,
                     "%s: %s does not generate text: expected one of %s", from->model, family,
                     families_that_generate());
    return !mc_failed(g->ctx);
}

static bool generate(generation *g)
{
    const generate_options *o = g->o;
    if (!check_output(g)) return false;
    mc_load_options load = {
        .dtype = dtypes[o->dtype], .revision = o->from.revision, .base = o->from.base};
    if (!load.dtype) load.dtype = o->device == 0 ? MC_F32 : MC_BF16;
    if (!check_family(g, &load)) return false;
    if (!o->ids) g->tokenizer = model_open_tokenizer(g->ctx, &o->from);
    g->model = mc_model_from_pretrained_of(g->ctx, o->from.family, o->from.model, &load);
    weights_apply(g->model, o->weights);
    if (mc_failed(g->ctx) || !choose_how(g) || !make_prompts(g)) return false;
    if (!o->output) return answer_all(g);
    return rank_file_init(&g->output, g->ctx, o->output, o->overwrite) == MC_OK && answer_all(g) &&
           rank_file_finish(&g->output) == MC_OK;
}

static int run(const generate_options *o)
{
    run_log log = {0};
    generation g = {.o = o, .output = {.aside = {.fd = -1}}};
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
    prompt_file_release(&g.file);
    rank_file_release(&g.output);
    output_release(&g.out);
    free(g.prompts);
    free(g.stops);
    return ranks_leave(g.ctx, code);
}

static const char details[] =
    "The answer to a single prompt is printed as its tokens come. Everything else is printed\n"
    "as JSON Lines: several prompts, prompts of a file, several answers to one prompt, and all\n"
    "answers with --json or --log-probs. An answer is an object with \"prompt\", \"text\",\n"
    "\"ids\", \"tokens\" and \"score\", or with \"error\" if the prompt can't be answered, in the\n"
    "order of the prompts (--prompt first). As answers end, further prompts join the batch.\n\n"
    "An empty prompt begins a new text. By default, unless options or the model's\n"
    "generation_config.json select another method, it takes the most probable tokens. An\n"
    "encoder-decoder answers the prompt; other models continue it. cpm2 fills in the blanks\n"
    "<s_0>, <s_1> ... of a prompt; one without gets <s_0> after it.\n\n"
    "  modelcenter generate --model gpt2 --prompt 'Once upon a time'\n"
    "  modelcenter generate --model ./my-gpt2 --prompts starts.txt \\\n"
    "      --top-k 40 --temperature 0.8 --seed 7 > answers.jsonl\n"
    "  modelcenter generate --model gpt2 --prompt $'Q: Why?\\nA:' --stop 'Q:'\n\n"
    "  modelcenter generate --model ./qwen2 --chat --prompt 'Why is the sky blue?'\n\n"
    "$'...' is how bash and zsh put a line break into a prompt; within '...' they pass on \\n as\n"
    "two characters. Prompts with line breaks in a file are strings of JSON Lines.\n";

enum {
    WAYS = MODEL_WAY_ADAPTER | MODEL_WAY_OLD_FAMILY | MODEL_WAY_GENERATES | MODEL_WAY_TOKENIZER
};

static void add_prompt_rows(args_table *table, generate_options *o)
{
    model_add_rows(table, &o->from, WAYS, "folder or identifier of the model");
    ARGS_ADD(table, {ARGS_TEXTS("prompt", &o->prompts, "a text to continue; may be repeated")},
             {ARGS_PATH(
                  "prompts", &o->prompts_file,
                  "a file with a prompt a line, or of JSON (.jsonl, .json); - for stdin, in either "
                  "form"),
              .default_text = "stdin, where prompts are piped in", .known_as = "input,file"},
             {ARGS_TEXT("json-key", &o->json_key, "key of the prompt in a JSON object"),
              .given = &o->json_key_given, .known_as = "json-keys,key"},
             {ARGS_FLAG("ids", &o->ids, "prompts and answers are token ids; needs no tokenizer")},
             {ARGS_FLAG("chat", &o->chat,
                        "a prompt is a user's message; the model answers in its chat format")},
             {ARGS_TEXT("chat-format", &o->chat_format,
                        "with --chat: chatml, llama2, llama3, mistral-v1, mistral-v3 or zephyr"),
              .default_text = "that of the model's chat template"},
             {ARGS_TEXT("system", &o->system, "with --chat: the system's message")});
}

static void add_choosing_rows(args_table *table, generate_options *o)
{
    ARGS_ADD(table, {ARGS_HEADING("Choosing tokens")},
             {ARGS_INT("max-new-tokens", &o->max_new_tokens, 1, INT_MAX / 2,
                       "longest answer, in tokens"),
              .known_as = "max-length,max-tokens", .given = &o->any_length},
             {ARGS_INT("num-return-sequences", &o->num_return_sequences, 1, 65536,
                       "answers to each prompt: draws, or the best of a beam search"),
              .known_as = "n", .given = &o->any_sequences});
    answer_add_rows(table, &o->answer);
}

static void add_output_rows(args_table *table, generate_options *o)
{
    ARGS_ADD(
        table, {ARGS_HEADING("Output")},
        {ARGS_PATH("output", &o->output, "write JSON Lines to this file, complete or not at all"),
         .known_as = "output-file,out"},
        OUTPUT_OVERWRITE_ROW(&o->overwrite),
        {ARGS_FLAG("echo", &o->echo, "print the prompt before its answer")},
        {ARGS_FLAG("json", &o->json, "print JSON Lines for one prompt too")},
        {ARGS_FLAG("log-probs", &o->log_probs,
                   "print JSON Lines with the log-probability of each token")},
        {ARGS_HEADING("Machine")},
        {ARGS_CHOICE("device", &o->device, train_device_names, "where to run"), .numbered = true},
        {ARGS_CHOICE("dtype", &o->dtype, run_dtype_names,
                     "dtype of weights and activations; auto is f32 on the CPU, else bf16")},
        WEIGHTS_ROW(&o->weights),
        {ARGS_INT("batch-size", &o->batch_size, 1, 1 << 20, "prompts that are answered at once")});
}

static bool may_be_json(const char *path)
{
    return path && (strcmp(path, "-") == 0 || prompt_file_is_json(path));
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
    output_form form;
    if (!args_parse(&spec, argc, argv, &code)) return code;
    code = model_check(&spec, &o->from, WAYS, false);
    if (code != EXIT_OK) return code;
    if (!family_can_generate(&spec, o->from.family)) return EXIT_USAGE;
    if (!o->prompts.count && !o->prompts_file && line_input_is_there()) o->prompts_file = "-";
    if (!o->prompts.count && !o->prompts_file)
        return args_error(&spec, "expected --prompt, --prompts, or prompts on stdin");
    if ((o->chat_format || o->system) && !o->chat)
        return args_error(&spec, "--%s: expected --chat with it",
                          o->chat_format ? "chat-format" : "system");
    if (o->chat && o->ids) return args_error(&spec, "expected one of --chat and --ids");
    if (o->json_key_given && !may_be_json(o->prompts_file))
        return args_error(&spec, "--json-key %s: --prompts names no file of JSON Lines",
                          o->json_key);
    if (o->output && !output_choose_form(&spec, o->output, OUTPUT_JSONL, &form, &code)) return code;
    if (o->ids && o->answer.stop.count)
        return args_error(&spec, "--stop %s: is looked for in text: not with --ids",
                          o->answer.stop.items[0]);
    code = answer_options_check(&spec, &o->answer);
    if (code != EXIT_OK) return code;
    return run(o);
}

int cmd_generate(int argc, char **argv)
{
    generate_options o = {.json_key = "prompt",
                          .batch_size = 32,
                          .ranks = RANKS_DEFAULTS,
                          .max_new_tokens = 50,
                          .num_return_sequences = 1};
    answer_options_init(&o.answer, argc);
    o.prompts = args_list_new(argc);
    int code = parse_and_run(&o, argc, argv);
    answer_options_release(&o.answer);
    free(o.prompts.items);
    return code;
}
