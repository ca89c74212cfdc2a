/* Which rows of a cache belong to which sequence, where sequences come and go: rows in pages, and
 * a table of each sequence's pages, here and in device memory. A sequence takes all pages that it
 * may need when it comes, so that none of those running is ever short of one. */
#ifndef MC_NN_KV_PAGES_INTERNAL_H
#define MC_NN_KV_PAGES_INTERNAL_H

#include "core/tensor/tensor_internal.h"

typedef struct mc_kv_pages {
    mc_context *ctx;
    int shift;       /* a page has 2^shift rows */
    int count;       /* of pages */
    int sequences;   /* with a row of the table each */
    int64_t longest; /* rows of one sequence at most */
    int each;        /* pages of one sequence at most: columns of the table */
    int32_t *host;   /* (sequences, each) */
    int *taken;      /* (sequences) pages of each */
    int32_t *free;   /* a stack of those that nobody has */
    int free_count;
    mc_tensor *table; /* i32 (sequences, each): `host` in device memory */
} mc_kv_pages;

/* Pages of 2^shift rows for up to `sequences` sequences of up to `longest` rows, `rows` in all,
 * rounded up. NULL after an error. Freed by mc_kv_pages_free (NULL allowed). */
mc_kv_pages *mc_kv_pages_new(mc_context *ctx, int sequences, int64_t longest, int64_t rows,
                             int shift);
void mc_kv_pages_free(mc_kv_pages *pages);
/* Whether there are pages for so many rows now. */
bool mc_kv_pages_have(const mc_kv_pages *pages, int64_t rows);
/* Gives a sequence without pages as many as so many rows need; mc_kv_pages_have says they are
 * there. What is launched afterwards sees them. */
void mc_kv_pages_take(mc_kv_pages *pages, int sequence, int64_t rows);
void mc_kv_pages_give_back(mc_kv_pages *pages, int sequence);
/* The row of one of the sequence's tokens. */
int32_t mc_kv_pages_row(const mc_kv_pages *pages, int sequence, int64_t position);

#endif
