/* Which rows of a cache belong to which sequence, where sequences come and go: rows in pages, and
 * a table of each sequence's pages, here and in device memory. A sequence takes all pages that it
 * may need when it comes, so that none of those running is ever short of one. */
#ifndef MC_MODELS_GENERATE_KV_PAGES_INTERNAL_H
#define MC_MODELS_GENERATE_KV_PAGES_INTERNAL_H

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
    /* No sequence takes pages once one has given some back, so that those of each lie one after
     * the other: kernels need no table then, and read a little faster. */
    bool in_line;
    /* The table by rows, where sequences share some (mc_kv_pages_by_rows). */
    bool by_rows;
    int64_t *from;              /* (sequences) the position that its own pages begin with */
    int32_t *rows, *moved;      /* (sequences, longest) */
    mc_tensor *row_table;       /* i32 (sequences, longest): `rows` in device memory */
    int moved_first, moved_end; /* sequences of `rows` that the device has not got */
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
/* The row of one of the sequence's own tokens. */
int32_t mc_kv_pages_row(const mc_kv_pages *pages, int sequence, int64_t position);
/* What mc_cached_attention calls `first` of a sequence, its `pages`, NULL with in_line, and their
 * `page_shift`. */
int32_t mc_kv_pages_first(const mc_kv_pages *pages, int sequence);
const int32_t *mc_kv_pages_table(const mc_kv_pages *pages);
int mc_kv_pages_shift(const mc_kv_pages *pages);
/* So many rows in whole pages. */
int64_t mc_kv_pages_round(const mc_kv_pages *pages, int64_t rows);

/* ---- sequences that share rows --------------------------------------------------------------- */

/* From here on kernels read a table of each sequence's rows, in which several may have the same, or
 * of pages again, as at first. What `first`, `table` and `shift` give changes. False after an
 * error. */
bool mc_kv_pages_by_rows(mc_kv_pages *pages, bool on);
/* By rows: as mc_kv_pages_take, of a sequence whose own rows begin at position `from`. Those before
 * are others' (mc_kv_pages_follow). */
void mc_kv_pages_take_from(mc_kv_pages *pages, int sequence, int64_t from, int64_t rows);
/* Up to `length`, sequence[i] gets the rows of sequence[parent[i]], for all i at once. What it
 * writes after goes to rows of its own. Seen after mc_kv_pages_send_moved. */
void mc_kv_pages_follow(mc_kv_pages *pages, const int *sequence, const int *parent, int count,
                        int64_t length);
void mc_kv_pages_send_moved(mc_kv_pages *pages);
/* Rows of all pages. */
static inline int64_t mc_kv_pages_rows(const mc_kv_pages *pages)
{
    return (int64_t)pages->count << pages->shift;
}

#endif
