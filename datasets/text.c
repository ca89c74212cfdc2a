#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "datasets/dataset_internal.h"

/* Makes room for `more` bytes and a NUL after what is there. */
static bool reserve(mc_text *text, size_t more)
{
    if (more > SIZE_MAX / 4 || text->size > SIZE_MAX / 4) return false;
    size_t needed = text->size + more + 1;
    if (needed <= text->capacity) return true;
    size_t capacity = text->capacity + text->capacity / 2;
    if (capacity < needed) capacity = needed;
    if (capacity < 256) capacity = 256;
    char *grown = mc_realloc(text->data, capacity);
    if (!grown) return false;
    text->data = grown;
    text->capacity = capacity;
    return true;
}

bool mc_text_append(mc_text *text, const char *data, size_t size)
{
    if (!reserve(text, size)) return false;
    memcpy(text->data + text->size, data, size);
    text->size += size;
    text->data[text->size] = '\0';
    return true;
}

bool mc_text_append_format(mc_text *text, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    bool ok = length >= 0 && reserve(text, (size_t)length);
    if (ok) {
        vsnprintf(text->data + text->size, (size_t)length + 1, format, again);
        text->size += (size_t)length;
    }
    va_end(again);
    va_end(args);
    return ok;
}

void mc_text_release(mc_text *text)
{
    mc_free(text->data);
    *text = (mc_text){0};
}
