/* A table of several files: the rows of one after the other. */
#include "datasets/table/table_internal.h"

/* CSV and TSV have to have the table's columns, in any order. Of JSON each row has to have the keys
 * that are asked for, which shows when it is read. */
static bool same_columns(const mc_table *t, const mc_table *other)
{
    const char *first = t->files.path[0];
    if (other->format == MC_TABLE_JSONL) return true;
    for (int i = 0; i < t->columns + t->paths; i++)
        if (mc_table_find_column(other, t->name[i]) < 0)
            return !mc_fail(t->ctx, MC_ERR_FORMAT, "%s: no column \"%s\", which %s has",
                            other->path, t->name[i], first);
    for (int i = 0; i < other->columns; i++)
        if (mc_table_find_column(t, other->name[i]) < 0)
            return !mc_fail(t->ctx, MC_ERR_FORMAT, "%s: column \"%s\", which %s does not have",
                            other->path, other->name[i], first);
    return true;
}

bool mc_table_check_files(mc_table *t)
{
    bool good = true;
    for (size_t i = 1; good && i < t->files.count; i++) {
        mc_table *other = mc_table_open_one(t->ctx, t->files.path[i], &t->options);
        good = other && same_columns(t, other);
        mc_table_free(other);
    }
    return good;
}

static int *find_places(const mc_table *t, const mc_table *other)
{
    size_t count = (size_t)(t->columns + t->paths);
    int *place = mc_calloc(count + 1, sizeof *place);
    if (!place) mc_fail_nomem(t->ctx, "the columns of a table");
    for (size_t i = 0; place && i < count; i++) place[i] = mc_table_find_column(other, t->name[i]);
    return place;
}

/* Takes the reading of `other`, which gets what there was of `t` and is freed. */
static void exchange(mc_table *t, mc_table *other)
{
    mc_table was = *t, next = *other;
    *t = next;
    t->owned = was.owned;
    t->files = was.files;
    t->file = was.file;
    t->rows = was.rows;
    t->name = was.name;
    t->by_name = was.by_name;
    t->name_capacity = was.name_capacity;
    t->columns = was.columns;
    t->paths = was.paths;
    t->place = NULL;
    *other = was;
    other->owned = next.owned;
    other->files = (mc_paths){0};
    other->name = next.name;
    other->by_name = next.by_name;
    other->name_capacity = next.name_capacity;
    other->columns = next.columns;
    other->paths = next.paths;
    mc_table_free(other);
}

bool mc_table_next_file(mc_table *t)
{
    if (mc_failed(t->ctx) || t->file + 1 >= t->files.count) return false;
    mc_table *other = mc_table_open_one(t->ctx, t->files.path[t->file + 1], &t->options);
    int *place = NULL;
    bool fields = other && other->format != MC_TABLE_JSONL;
    bool good = other && same_columns(t, other) && (!fields || (place = find_places(t, other)));
    if (!good) {
        mc_table_free(other);
        return false;
    }
    exchange(t, other);
    t->place = place;
    t->file++;
    return true;
}
