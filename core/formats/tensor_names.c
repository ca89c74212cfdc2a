#include "core/formats/tensor_file_internal.h"

#include <stdio.h>
#include <string.h>
#include "core/base/context_internal.h"
#include "core/base/memory_internal.h"

/* ---- lists in messages ----------------------------------------------------------------------- */

void mc_name_list_add(mc_name_list *list, const char *name)
{
    size_t need = list->used + strlen(name) + 6;
    if (need > list->capacity) {
        char *grown = mc_realloc(list->text, need * 2);
        if (!grown) {
            list->failed = true;
            return;
        }
        list->text = grown;
        list->capacity = need * 2;
    }
    list->used += (size_t)snprintf(list->text + list->used, list->capacity - list->used, "%s\"%s\"",
                                   list->count ? ", " : "", name);
    list->count++;
}

void mc_name_list_release(mc_name_list *list) { mc_free(list->text); }

const char *mc_tensor_names_show(const mc_tensor_entry *entries, size_t count,
                                 char out[MC_NAMES_SHOWN])
{
    enum { SHOWN = 4 };
    size_t shown = count < SHOWN ? count : SHOWN, used = 0;
    used += (size_t)snprintf(out, MC_NAMES_SHOWN, "the file holds %s", count ? "" : "no tensors");
    for (size_t i = 0; i < shown; i++) {
        size_t at = shown > 1 ? i * (count - 1) / (shown - 1) : 0;
        used += (size_t)snprintf(out + used, MC_NAMES_SHOWN - used, "%s\"%.80s\"", i ? ", " : "",
                                 entries[at].name);
    }
    if (count > shown) snprintf(out + used, MC_NAMES_SHOWN - used, " and %zu more", count - shown);
    return out;
}

/* ---- wrappers -------------------------------------------------------------------------------- */

/* The prefix of a wrapping module with which all names of the file start; NULL: none. */
static const char *wrapper_of(const mc_tensor_file *file)
{
    static const char *const wrappers[] = {"_orig_mod.", "module.", "model.", NULL};
    size_t count = mc_tensor_file_count(file);
    for (const char *const *w = wrappers; count && *w; w++) {
        size_t length = strlen(*w); /* sorted names: the first and last suffice */
        if (strncmp(mc_tensor_file_at(file, 0)->name, *w, length) == 0 &&
            strncmp(mc_tensor_file_at(file, count - 1)->name, *w, length) == 0)
            return *w;
    }
    return NULL;
}

void mc_tensor_file_unwrap(mc_tensor_file *file, const char *source, mc_names_fit_fn *fits,
                           const void *user)
{
    char taken[128] = "";
    const char *wrapper;
    while (!fits(file, user) && (wrapper = wrapper_of(file))) {
        size_t used = strlen(taken);
        if (used + strlen(wrapper) >= sizeof taken) break;
        memcpy(taken + used, wrapper, strlen(wrapper) + 1);
        mc_tensor_file_shorten_names(file, (ptrdiff_t)strlen(wrapper));
    }
    if (!*taken) return;
    if (fits(file, user))
        mc_log(mc_tensor_file_context(file), MC_LOG_INFO,
               "%s: all names begin with \"%s\", which a wrapping module put there: taken off",
               source, taken);
    else
        mc_tensor_file_shorten_names(file, -(ptrdiff_t)strlen(taken));
}
