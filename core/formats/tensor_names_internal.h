/* Names of a file's tensors: some of them for a message, and a wrapper's prefix taken off all. */
#ifndef MC_FORMATS_TENSOR_NAMES_INTERNAL_H
#define MC_FORMATS_TENSOR_NAMES_INTERNAL_H

#include "core/formats/tensor_file_internal.h"

/* A growing text of quoted names: "a", "b". */
typedef struct mc_name_list {
    char *text;
    size_t used, capacity;
    int count;
    bool failed; /* memory was out */
} mc_name_list;

void mc_name_list_add(mc_name_list *list, const char *name);
void mc_name_list_release(mc_name_list *list);

enum { MC_NAMES_SHOWN = 512 };

/* Says for an error about names which ones there are: the file holds "a", "b" and 26 more. Some of
 * all, spread over the file; long names are cut. Returns `out`. */
const char *mc_tensor_names_show(const mc_tensor_entry *entries, size_t count,
                                 char out[MC_NAMES_SHOWN]);

/* Takes prefixes of wrapping modules off: "_orig_mod." (torch.compile), "module." (data parallel)
 * and "model.", each in turn, as long as all tensors' names have it and `fits` does not hold. Names
 * for which it never holds stay as they were. What was taken off is logged, with `source`. */
typedef bool mc_names_fit_fn(const mc_tensor_file *file, const void *user);
void mc_tensor_file_unwrap(mc_tensor_file *file, const char *source, mc_names_fit_fn *fits,
                           const void *user);

#endif
