/* `modelcenter info`: what is in a file or folder of tensors of any format that is read. */
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tools/options/args.h"
#include "tools/commands.h"
#include "tools/ranks.h"
#include "tools/log/run_log.h"

typedef struct info_options {
    const char *path;
    bool json, tensors, checksum, verify;
} info_options;

/* ---- what is printed ------------------------------------------------------------------------*/

/* Tensors, elements and bytes, of one dtype or of all. */
typedef struct total {
    const char *dtype;
    int64_t tensors, elements, bytes;
} total;

enum { MOST_DTYPES = 32 };

typedef struct summary {
    total all, dtype[MOST_DTYPES];
    int dtypes, files;
    uint32_t crc;            /* of all tensors' bytes, in the order of their names */
    mc_tensor_checksums own; /* that the file has, which have been checked */
} summary;

static void add_to(total *t, const mc_tensor_entry *e)
{
    t->tensors++;
    t->elements += e->count;
    t->bytes += (int64_t)e->size;
}

static void add_entry(summary *s, const mc_tensor_entry *e)
{
    int i = 0;
    while (i < s->dtypes && strcmp(s->dtype[i].dtype, e->dtype_name) != 0) i++;
    if (i == s->dtypes && s->dtypes < MOST_DTYPES) s->dtype[s->dtypes++].dtype = e->dtype_name;
    if (i < s->dtypes) add_to(&s->dtype[i], e);
    add_to(&s->all, e);
}

static int compare_strings(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* How many files the tensors are in. */
static int count_files(const mc_tensor_file *file)
{
    size_t count = mc_tensor_file_count(file);
    const char **paths = calloc(count + 1, sizeof *paths);
    int files = 0;
    for (size_t i = 0; paths && i < count; i++) paths[i] = mc_tensor_file_at(file, i)->file;
    if (paths) qsort(paths, count, sizeof *paths, compare_strings);
    for (size_t i = 0; paths && i < count; i++)
        files += i == 0 || strcmp(paths[i - 1], paths[i]) != 0;
    free(paths);
    return files;
}

/* Of several shards the first that has a key counts. */
static bool is_first(const mc_tensor_file *file, size_t i)
{
    const char *key = mc_tensor_file_metadata_key(file, i);
    return mc_tensor_file_metadata(file, key) == mc_tensor_file_metadata_value(file, i);
}

/* Whether the file's own checksums have been compared with its bytes. */
static bool verified(const info_options *o) { return o->checksum || o->verify; }

/* ---- as lines -------------------------------------------------------------------------------- */

static void print_tensor(const info_options *o, const mc_tensor_entry *e, uint32_t crc)
{
    mc_print_text(stdout, e->name);
    printf("  %s (", e->dtype_name);
    for (int i = 0; i < e->ndim; i++) printf(i ? ", %" PRId64 : "%" PRId64, e->shape[i]);
    printf(")  %zu bytes", e->size);
    if (o->checksum) printf("  crc32 %08" PRIx32, crc);
    puts("");
}

static void print_total(const char *what, const total *t)
{
    printf("%s: %" PRId64 " tensors, %" PRId64 " parameters, %" PRId64 " bytes\n", what, t->tensors,
           t->elements, t->bytes);
}

static void print_summary(const info_options *o, const mc_tensor_file *file, const summary *s)
{
    printf("%s: %s, %d file%s\n", o->path, mc_tensor_file_format(file), s->files,
           s->files == 1 ? "" : "s");
    for (size_t i = 0; i < mc_tensor_file_metadata_count(file); i++)
        if (is_first(file, i)) {
            fputs("metadata ", stdout);
            mc_print_text(stdout, mc_tensor_file_metadata_key(file, i));
            fputs(": ", stdout);
            mc_print_text(stdout, mc_tensor_file_metadata_value(file, i));
            puts("");
        }
    for (int i = 0; s->dtypes > 1 && i < s->dtypes; i++)
        print_total(s->dtype[i].dtype, &s->dtype[i]);
    print_total(s->dtypes == 1 ? s->dtype[0].dtype : "all", &s->all);
    if (verified(o) && s->own.checked)
        printf("the file's own checksums: %zu agree with its bytes\n", s->own.checked);
    if (s->own.absent && s->own.checked)
        printf("no checksums of %zu of its %zu storages\n", s->own.absent,
               s->own.absent + s->own.checked);
    else if (s->own.absent)
        puts("no checksums");
    if (o->verify && (s->own.absent || !s->own.checked))
        printf("not verifiable%s\n", s->own.checked ? " as a whole" : "");
    if (o->checksum)
        printf("crc32 of the tensors' bytes, in the order of their names: %08" PRIx32 "\n", s->crc);
}

/* ---- as JSON --------------------------------------------------------------------------------- */

static bool add_crc(cJSON *object, uint32_t crc)
{
    char digits[16];
    snprintf(digits, sizeof digits, "%08" PRIx32, crc);
    return cJSON_AddStringToObject(object, "crc32", digits);
}

static bool add_tensor(cJSON *list, const info_options *o, const mc_tensor_entry *e, uint32_t crc)
{
    cJSON *item = cJSON_CreateObject();
    if (!item) return false;
    cJSON_AddItemToArray(list, item);
    cJSON *shape = cJSON_AddStringToObject(item, "name", e->name) &&
                           cJSON_AddStringToObject(item, "dtype", e->dtype_name)
                       ? cJSON_AddArrayToObject(item, "shape")
                       : NULL;
    for (int i = 0; shape && i < e->ndim; i++)
        if (!cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)e->shape[i]))) return false;
    return shape && cJSON_AddNumberToObject(item, "bytes", (double)e->size) &&
           cJSON_AddStringToObject(item, "file", e->file) && (!o->checksum || add_crc(item, crc));
}

static bool add_total(cJSON *object, const total *t)
{
    return cJSON_AddNumberToObject(object, "tensors", (double)t->tensors) &&
           cJSON_AddNumberToObject(object, "parameters", (double)t->elements) &&
           cJSON_AddNumberToObject(object, "bytes", (double)t->bytes);
}

static bool add_summary(cJSON *json, const info_options *o, const mc_tensor_file *file,
                        const summary *s)
{
    bool good = cJSON_AddStringToObject(json, "path", o->path) &&
                cJSON_AddStringToObject(json, "format", mc_tensor_file_format(file)) &&
                cJSON_AddNumberToObject(json, "files", s->files) && add_total(json, &s->all) &&
                (!o->checksum || add_crc(json, s->crc));
    cJSON *own = good && s->own.checked + s->own.absent && verified(o)
                     ? cJSON_AddObjectToObject(json, "checksums")
                     : NULL;
    if (own && (!cJSON_AddNumberToObject(own, "checked", (double)s->own.checked) ||
                !cJSON_AddNumberToObject(own, "absent", (double)s->own.absent)))
        return false;
    cJSON *dtypes = good ? cJSON_AddObjectToObject(json, "dtypes") : NULL;
    for (int i = 0; dtypes && i < s->dtypes; i++) {
        cJSON *item = cJSON_AddObjectToObject(dtypes, s->dtype[i].dtype);
        if (!item || !add_total(item, &s->dtype[i])) return false;
    }
    cJSON *metadata = dtypes ? cJSON_AddObjectToObject(json, "metadata") : NULL;
    for (size_t i = 0; metadata && i < mc_tensor_file_metadata_count(file); i++)
        if (is_first(file, i) &&
            !cJSON_AddStringToObject(metadata, mc_tensor_file_metadata_key(file, i),
                                     mc_tensor_file_metadata_value(file, i)))
            return false;
    return metadata;
}

/* ---- the command ----------------------------------------------------------------------------- */

/* Goes through all tensors; `list` gets those of --tensors, or they are printed. */
static bool look_at_all(const info_options *o, mc_tensor_file *file, cJSON *list, summary *s)
{
    s->files = count_files(file);
    if (verified(o) ? mc_tensor_file_verify(file, &s->own)
                    : mc_tensor_file_checksums(file, &s->own))
        return false;
    for (size_t i = 0; i < mc_tensor_file_count(file); i++) {
        const mc_tensor_entry *e = mc_tensor_file_at(file, i);
        uint32_t crc = 0;
        add_entry(s, e);
        if (o->checksum && mc_tensor_file_crc32(file, e, &crc, &s->crc)) return false;
        if (o->tensors && list && !add_tensor(list, o, e, crc)) return false;
        if (o->tensors && !list) print_tensor(o, e, crc);
    }
    return true;
}

static bool print_json(const info_options *o, mc_tensor_file *file)
{
    summary s = {.files = 0};
    cJSON *json = cJSON_CreateObject(), *list = cJSON_CreateArray();
    bool good = json && list && look_at_all(o, file, list, &s) && add_summary(json, o, file, &s);
    if (good && o->tensors) good = cJSON_AddItemReferenceToObject(json, "tensor_list", list);
    char *text = good ? cJSON_PrintUnformatted(json) : NULL;
    if (text) puts(text);
    cJSON_free(text);
    cJSON_Delete(json);
    cJSON_Delete(list);
    return text;
}

static bool print_lines(const info_options *o, mc_tensor_file *file)
{
    summary s = {.files = 0};
    bool good = look_at_all(o, file, NULL, &s);
    if (good) print_summary(o, file, &s);
    return good;
}

static int run(const info_options *o)
{
    run_log log = {0};
    mc_context *ctx =
        mc_init_distributed(&(mc_init_options){.log = run_log_library_line, .log_user = &log});
    ranks_is_single(ctx, "info");
    mc_tensor_file *file = mc_tensor_file_open(ctx, o->path, NULL);
    bool good = file && (o->json ? print_json : print_lines)(o, file);
    if (!good && !mc_failed(ctx)) mc_set_error(ctx, MC_ERR_NOMEM, "out of memory");
    ranks_print_error(ctx, false);
    return ranks_leave(ctx, good ? EXIT_OK : EXIT_RUN_FAILED);
}

static const char details[] =
    "Takes a file of tensors in any format that can be loaded, an index, or a folder, of which\n"
    "it opens the files that loading would use. The checksum is zlib's CRC-32 over the bytes of\n"
    "all tensors, in the byte order of their names. Bytes are taken row-major and\n"
    "little-endian, so the same tensors have the same checksum in every format. A PyTorch zip's\n"
    "own checksums are compared with its bytes. --json prints one object; --tensors adds each\n"
    "tensor, in the object as \"tensor_list\".\n\n"
    "  modelcenter info model.safetensors --tensors\n"
    "  modelcenter info ./gpt2 --json\n";

int cmd_info(int argc, char **argv)
{
    info_options o = {.checksum = true};
    const args_option options[] = {
        {ARGS_PATH("path", &o.path, "a file of tensors, an index, or a folder"), .required = true,
         .positional = true},
        {ARGS_FLAG("json", &o.json, "print one JSON object")},
        {ARGS_FLAG("tensors", &o.tensors, "list every tensor")},
        {ARGS_FLAG("verify", &o.verify, "also report a file that has no checksums of its own")},
        {ARGS_FLAG_OFF("no-checksum", &o.checksum, "do not read the tensors' bytes")},
        {0},
    };
    const args_spec spec = {.command = "info",
                            .summary = "Prints what a file or folder of tensors holds.",
                            .details = details,
                            .options = options};
    int code;
    if (!args_parse(&spec, argc, argv, &code)) return code;
    return run(&o);
}
