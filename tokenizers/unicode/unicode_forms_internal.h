/* Unicode's normal forms, as Hugging Face's normalizers NFC, NFD, NFKC and NFKD make them. */
#ifndef MC_TOKENIZERS_UNICODE_FORMS_INTERNAL_H
#define MC_TOKENIZERS_UNICODE_FORMS_INTERNAL_H

#include "core/base/bytes_internal.h"

typedef enum mc_unicode_form { MC_NFC = 0, MC_NFD, MC_NFKC, MC_NFKD } mc_unicode_form;

enum { MC_FORMS_MAX = 4 };

/* Two characters that become one. */
typedef struct mc_unicode_pair {
    uint32_t first, second, composed;
} mc_unicode_pair;

/* The full compatibility decompositions, of characters that have another than the canonical one:
 * sorted codes, and where in the pool each one's begins and ends. */
extern const size_t mc_unicode_compat_count, mc_unicode_pairs_count;
extern const uint32_t mc_unicode_compat[], mc_unicode_compat_pool[];
extern const uint16_t mc_unicode_compat_starts[];
extern const mc_unicode_pair mc_unicode_pairs[]; /* sorted by both */

/* The form of this name ("NFKC"); false: it is none. */
bool mc_unicode_form_named(const char *name, mc_unicode_form *form);
/* Appends a text's form to `out`, in time linear in its size. Bytes that are no UTF-8 stay as they
 * are. `spare` is working memory. False when memory is out. */
bool mc_unicode_apply_form(mc_unicode_form form, const uint8_t *text, size_t size, mc_bytes *out,
                           mc_bytes *spare);

#endif
