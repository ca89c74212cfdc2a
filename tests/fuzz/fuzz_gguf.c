/* Any bytes as a GGUF file: refused with a message, or all of it readable. */
#include <assert.h>
#include <stdint.h>
#include <string.h>
#include "core/formats/gguf_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_values(const mc_gguf *g)
{
    for (size_t i = 0; i < g->value_count; i++) {
        const mc_gguf_value *v = &g->values[i];
        assert(mc_gguf_find(g, v->key) == v);
        const uint8_t *at = v->data;
        for (uint64_t k = 0; k < v->count; k++) {
            double number;
            size_t length = 0;
            volatile char last = 0;
            const char *text = v->kind == MC_GGUF_STRING ? mc_gguf_text(&at, &length) : NULL;
            if (length) last = text[length - 1];
            (void)last;
            assert(mc_gguf_number(v, k, &number) == (v->kind != MC_GGUF_STRING));
        }
    }
}

static void read_tensors(const mc_gguf *g)
{
    enum { ROOM = 4096 };
    static float values[ROOM];
    for (size_t i = 0; i < g->tensor_count; i++) {
        const mc_gguf_tensor *t = &g->tensors[i];
        assert(mc_gguf_find_tensor(g, t->name) == t);
        for (int64_t row = 0; t->columns <= ROOM && row < t->rows; row++)
            mc_gguf_read(t, row, 1, values);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mc_error err = {0};
    mc_gguf g;
    mc_status status = mc_gguf_parse(&err, &g, data, size, "fuzz");
    assert(status == err.status);
    if (status == MC_OK) {
        read_values(&g);
        read_tensors(&g);
    } else {
        assert(!g.values && !g.tensors && strstr(err.message, "fuzz"));
    }
    mc_gguf_release(&g);
    mc_error_clear(&err);
    return 0;
}
