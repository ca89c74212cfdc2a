/* llm.c's checkpoints of GPT-2 (train_gpt2.cu: gpt2_write_to_checkpoint): a header of 256 int32,
 * then 16 tensors, each with all layers one after the other. */
#include <inttypes.h>
#include <stdio.h>
#include "core/base/memory_internal.h"
#include "core/formats/tensor_file_internal.h"

enum { MAGIC = 20240326, VERSION_F32 = 3, VERSION_BF16 = 5, HEADER = 256 * 4 };
enum { LAYERS_MAX = 1024, SIZE_LIMIT = 1 << 22, NAME_ROOM = 48, TENSORS = 16, STRINGS = 7 };

typedef struct sizes {
    int64_t positions, vocab, layers, heads, channels, padded_vocab;
} sizes;

/* A tensor by its Hugging Face name (after "transformer.", and "h.<layer>." if each layer has one).
 * Its rows are the file's, in multiples of the channels; a matrix also has columns. */
typedef struct stored {
    const char *name;
    bool layered;
    int rows, columns;
} stored;

/* The rows of the first two are in the header. */
static const stored order[TENSORS] = {
    {"wte.weight", false, 0, 1},        {"wpe.weight", false, 0, 1},
    {"ln_1.weight", true, 1, 0},        {"ln_1.bias", true, 1, 0},
    {"attn.c_attn.weight", true, 3, 1}, {"attn.c_attn.bias", true, 3, 0},
    {"attn.c_proj.weight", true, 1, 1}, {"attn.c_proj.bias", true, 1, 0},
    {"ln_2.weight", true, 1, 0},        {"ln_2.bias", true, 1, 0},
    {"mlp.c_fc.weight", true, 4, 1},    {"mlp.c_fc.bias", true, 4, 0},
    {"mlp.c_proj.weight", true, 1, 4},  {"mlp.c_proj.bias", true, 1, 0},
    {"ln_f.weight", false, 1, 0},       {"ln_f.bias", false, 1, 0},
};

typedef struct reader {
    const char *path;
    mc_tensor_table *table;
    sizes n;
    const mc_file_dtype *dtype;
    const uint8_t *at; /* start of the next tensor */
    char *text;        /* the free part of the table's */
    int64_t *dims;
} reader;

static int64_t header_at(const uint8_t *data, int i)
{
    const uint8_t *at = data + 4 * i;
    return (int32_t)((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 |
                     (uint32_t)at[3] << 24);
}

bool mc_llmc_is(const uint8_t *data, size_t size)
{
    return size >= 4 && header_at(data, 0) == MAGIC;
}

/* Reads and checks the header. */
static mc_status read_header(mc_error *err, reader *r, const uint8_t *data, size_t size)
{
    if (size < HEADER)
        return mc_error_set(err, MC_ERR_FORMAT, "%s: %zu bytes, less than llm.c's header of %d",
                            r->path, size, HEADER);
    int64_t version = header_at(data, 1),
            *to[] = {&r->n.positions, &r->n.vocab,    &r->n.layers,
                     &r->n.heads,     &r->n.channels, &r->n.padded_vocab};
    if (version != VERSION_F32 && version != VERSION_BF16)
        return mc_error_set(err, MC_ERR_UNSUPPORTED,
                            "%s: llm.c's checkpoint version %" PRId64 ": expected %d or %d",
                            r->path, version, VERSION_F32, VERSION_BF16);
    r->dtype = mc_file_dtype_of(version == VERSION_F32 ? MC_F32 : MC_BF16);
    for (int i = 0; i < 6; i++) {
        *to[i] = header_at(data, 2 + i);
        if (*to[i] < 1 || *to[i] > SIZE_LIMIT)
            return mc_error_set(err, MC_ERR_FORMAT,
                                "%s: header number %d is %" PRId64 ": expected 1 to %d", r->path,
                                2 + i, *to[i], SIZE_LIMIT);
    }
    if (r->n.layers > LAYERS_MAX || r->n.padded_vocab < r->n.vocab ||
        r->n.channels % r->n.heads != 0)
        return mc_error_set(err, MC_ERR_FORMAT,
                            "%s: a header of %" PRId64 " layers (at most %d), %" PRId64
                            " channels in %" PRId64 " heads, a vocabulary of %" PRId64
                            " padded to %" PRId64,
                            r->path, r->n.layers, LAYERS_MAX, r->n.channels, r->n.heads, r->n.vocab,
                            r->n.padded_vocab);
    return MC_OK;
}

/* Elements of one tensor, of one layer. */
static int64_t count_of(const sizes *n, int i)
{
    int64_t c = n->channels;
    if (i == 0) return n->padded_vocab * c;
    if (i == 1) return n->positions * c;
    return order[i].rows * c * (order[i].columns ? order[i].columns * c : 1);
}

/* At most about 12 * 2^44 * 2^10 elements: no overflow. */
static mc_status check_size(mc_error *err, const reader *r, size_t size)
{
    int64_t count = 0;
    for (int i = 0; i < TENSORS; i++)
        count += count_of(&r->n, i) * (order[i].layered ? r->n.layers : 1);
    uint64_t bytes = HEADER + (uint64_t)count * (uint64_t)r->dtype->bits / 8;
    if (bytes == size) return MC_OK;
    return mc_error_set(err, MC_ERR_FORMAT,
                        "%s: %zu bytes, but its header's %" PRId64
                        " parameters of %s make %" PRIu64,
                        r->path, size, count, r->dtype->name, bytes);
}

/* Adds the next tensor of the file. Matrices are (out, in) in the file and (in, out) by the
 * convention of their names: they become views. The vocabulary's padding rows are left out. */
static void add_tensor(reader *r, int i, int64_t layer)
{
    const stored *s = &order[i];
    mc_tensor_entry *e = &r->table->entries[r->table->count++];
    int64_t c = r->n.channels, rows = i == 0 ? r->n.vocab : i == 1 ? r->n.positions : s->rows * c;
    char number[24] = "";
    if (s->layered) snprintf(number, sizeof number, "h.%" PRId64 ".", layer);
    int length = snprintf(r->text, NAME_ROOM, "transformer.%s%s", number, s->name);
    *e = (mc_tensor_entry){.name = r->text,
                           .dtype = r->dtype->dtype,
                           .dtype_name = r->dtype->name,
                           .ndim = s->columns ? 2 : 1,
                           .shape = r->dims,
                           .strides = r->dims + 2,
                           .data = r->at,
                           .dense = !(s->layered && s->columns),
                           .file = r->path};
    r->dims[0] = rows;
    r->dims[1] = s->columns * c;
    r->dims[2] = s->columns ? s->columns * c : 1;
    r->dims[3] = 1;
    e->count = rows * (s->columns ? s->columns * c : 1);
    e->size = (size_t)e->count * (size_t)r->dtype->bits / 8;
    if (!e->dense) {
        r->dims[0] = s->columns * c;
        r->dims[1] = rows;
        r->dims[2] = 1;
        r->dims[3] = s->columns * c;
    }
    r->text += length + 1;
    r->dims += 4;
    r->at += (size_t)count_of(&r->n, i) * (size_t)r->dtype->bits / 8;
}

/* Adds the keys that a config.json would have. */
static void add_strings(reader *r)
{
    const char *dtype = r->dtype->dtype == MC_F32 ? "float32" : "bfloat16";
    const char *const keys[STRINGS] = {"model_type", "dtype",  "n_positions", "vocab_size",
                                       "n_layer",    "n_head", "n_embd"};
    const int64_t values[STRINGS] = {0,           0,          r->n.positions, r->n.vocab,
                                     r->n.layers, r->n.heads, r->n.channels};
    for (int i = 0; i < STRINGS; i++) {
        r->table->strings[i] = (mc_file_string){.key = keys[i], .value = r->text};
        int length = i < 2 ? snprintf(r->text, NAME_ROOM, "%s", i == 0 ? "gpt2" : dtype)
                           : snprintf(r->text, NAME_ROOM, "%" PRId64, values[i]);
        r->text += length + 1;
    }
    r->table->string_count = STRINGS;
}

mc_status mc_llmc_parse(mc_error *err, mc_tensor_table *table, const uint8_t *data, size_t size,
                        const char *path)
{
    reader r = {.path = path, .table = table};
    *table = (mc_tensor_table){0};
    mc_status status = read_header(err, &r, data, size);
    if (!status) status = check_size(err, &r, size);
    if (status) return status;
    size_t count = (size_t)r.n.layers * 12 + 4;
    table->entries = mc_calloc(count, sizeof *table->entries);
    table->text = mc_malloc((count + STRINGS) * NAME_ROOM);
    table->shapes = mc_calloc(4 * count, sizeof *table->shapes);
    table->strings = mc_calloc(STRINGS, sizeof *table->strings);
    if (!table->entries || !table->text || !table->shapes || !table->strings) {
        mc_tensor_table_release(table);
        return mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for its tensors' names", path);
    }
    r.at = data + HEADER;
    r.text = table->text;
    r.dims = table->shapes;
    for (int i = 0; i < TENSORS; i++)
        for (int64_t layer = 0; layer < (order[i].layered ? r.n.layers : 1); layer++)
            add_tensor(&r, i, layer);
    add_strings(&r);
    return mc_tensor_table_sort(err, table);
}
