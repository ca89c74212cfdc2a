/* The layout of optimizer state in a bucket whose spans have several forms. */
#include "core/zero/zero_internal.h"

#include <string.h>
#include "core/dist/comm_internal.h"

/* Bytes of an element. */
static int64_t width_of(mc_state_form form, int slot)
{
    if (form == MC_STATE_8BIT) return 1;
    return form == MC_STATE_FIRST && slot == MC_STATE_V ? 0 : (int64_t)sizeof(float);
}

/* Bytes of a slot before an element, in the whole bucket. Padding has the form of its span. */
static int64_t bytes_before(const mc_bucket *b, int slot, int64_t element)
{
    int64_t bytes = 0;
    if (!b->formed || slot == MC_STATE_MASTER) return element * (int64_t)sizeof(float);
    for (int i = 0; i < b->span_count && b->spans[i].offset < element; i++) {
        int64_t end = i + 1 < b->span_count ? b->spans[i + 1].offset : b->count;
        int64_t last = element < end ? element : end;
        bytes += (last - b->spans[i].offset) * width_of(b->spans[i].form, slot);
    }
    return bytes;
}

/* Bytes for any rank's elements: ranks gather arrays of equal size. */
static int64_t element_room(const mc_bucket *b, int slot)
{
    int64_t most = 0, held = mc_bucket_held(b);
    for (int64_t first = 0; first < b->count; first += held) {
        int64_t bytes = bytes_before(b, slot, first + held) - bytes_before(b, slot, first);
        if (bytes > most) most = bytes;
    }
    return (most + 63) / 64 * 64;
}

static bool has_codes(const mc_bucket *b)
{
    for (int i = 0; i < b->span_count; i++)
        if (b->spans[i].form == MC_STATE_8BIT) return true;
    return false;
}

size_t mc_bucket_state_bytes(const mc_bucket *b, int slot)
{
    size_t held = (size_t)mc_bucket_held(b);
    if (!b->formed || slot == MC_STATE_MASTER) return held * sizeof(float);
    return (size_t)element_room(b, slot) +
           (has_codes(b) ? held / MC_STATE_BLOCK * sizeof(float) : 0);
}

void *mc_bucket_state_place(const mc_bucket *b, int slot, int64_t element)
{
    int64_t first = mc_bucket_first(b);
    if (!b->state[slot]) return NULL;
    return (char *)b->state[slot] + bytes_before(b, slot, element) - bytes_before(b, slot, first);
}

mc_state8 mc_bucket_state8_at(const mc_bucket *b, int slot, int64_t element)
{
    char *scales = (char *)b->state[slot] + element_room(b, slot);
    return (mc_state8){mc_bucket_state_place(b, slot, element),
                       (float *)(void *)scales + (element - mc_bucket_first(b)) / MC_STATE_BLOCK};
}

void mc_bucket_set_form(mc_bucket *b, mc_state_form form)
{
    b->spans[b->span_count - 1].form = form;
    b->formed |= form != MC_STATE_F32;
}

/* ---- moves ----------------------------------------------------------------------------------- */

/* State of an old bucket in host memory: this rank's array, or all ranks' in sequence. */
typedef struct images {
    const mc_bucket *b;
    int slot;
    bool all;
    char *data;
    size_t bytes; /* of each */
} images;

static int64_t first_of(const images *m, int64_t element)
{
    return m->all ? element / m->b->share * m->b->share : mc_bucket_first(m->b);
}

static char *image_of(const images *m, int64_t element)
{
    return m->data + (m->all ? (size_t)(element / m->b->share) * m->bytes : 0);
}

/* The address of an element's codes, or scales, in an image. */
static char *elements_in(const images *m, int64_t element)
{
    return image_of(m, element) + bytes_before(m->b, m->slot, element) -
           bytes_before(m->b, m->slot, first_of(m, element));
}

static char *scales_in(const images *m, int64_t element)
{
    int64_t block = (element - first_of(m, element)) / MC_STATE_BLOCK;
    return image_of(m, element) + element_room(m->b, m->slot) + block * (int64_t)sizeof(float);
}

static mc_status read_images(mc_zero *z, images *m)
{
    mc_device *device = z->ctx->device;
    size_t bytes = m->bytes * (m->all ? (size_t)z->group->size : 1);
    void *from = m->b->state[m->slot], *gathered = NULL;
    mc_status status = MC_OK;
    if (!(m->data = mc_malloc(bytes))) return mc_fail_nomem(z->ctx, "moving optimizer state");
    if (m->all) {
        if (!(gathered = mc_zero_alloc(z, device, bytes, "gathered shares")))
            return mc_error_status(z->ctx);
        status = mc_comm_all_gather(z->group->comm, from, gathered, (int64_t)m->bytes, MC_U8);
        from = gathered;
    }
    if (!status && !device->copy_out(device, m->data, from, bytes)) status = MC_ERR_DEVICE;
    device->free(device, gathered, bytes);
    return mc_zero_fail(z, status, "moving optimizer state");
}

/* Copies elements at .. at + count of the new bucket, in a span that keeps its form, from element
 * `source` of the old bucket on. */
static void copy_piece(const images *to, int64_t at, const images *from, int64_t source,
                       int64_t count, mc_state_form form)
{
    int64_t blocks = (count + MC_STATE_BLOCK - 1) / MC_STATE_BLOCK;
    memcpy(elements_in(to, at), elements_in(from, source),
           (size_t)(count * width_of(form, to->slot)));
    if (form == MC_STATE_8BIT)
        memcpy(scales_in(to, at), scales_in(from, source), (size_t)blocks * sizeof(float));
}

static void copy_span(const images *to, const mc_span *s, const images *from, const mc_span *was)
{
    int64_t held, at = mc_bucket_held_of(to->b, s->offset, s->count, &held);
    while (held > 0) {
        int64_t source = was->offset + at - s->offset, count = held;
        int64_t left = from->all ? first_of(from, source) + from->b->share - source : count;
        if (count > left) count = left;
        copy_piece(to, at, from, source, count, s->form);
        at += count;
        held -= count;
    }
}

mc_status mc_state_copy(mc_zero *z, mc_bucket *new, const mc_bucket *old, int slot, bool gathers)
{
    mc_device *device = z->ctx->device;
    images from = {old, slot, gathers, NULL, mc_bucket_state_bytes(old, slot)};
    images to = {new, slot, false, NULL, mc_bucket_state_bytes(new, slot)};
    mc_status status = read_images(z, &from);
    if (!status) status = read_images(z, &to);
    for (int i = 0; i < new->span_count && !status; i++)
        for (int k = 0; k < old->span_count; k++) {
            const mc_span *s = &new->spans[i], *was = &old->spans[k];
            if (s->owner == was->owner && s->form == was->form) copy_span(&to, s, &from, was);
        }
    if (!status) device->copy_in(device, new->state[slot], to.data, to.bytes);
    mc_free(from.data);
    mc_free(to.data);
    return status;
}
