/* Where the file of a split lies. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "datasets/dataset_internal.h"

enum { LISTED_FILES = 20 };

/* A search under way: what is looked for, and notes for the error if it isn't found. */
typedef struct search {
    mc_error *err;
    const mc_task *task;
    const char *names[4]; /* of the split, NULL-terminated */
    mc_text looked, there;
    bool nomem;
} search;

static void split_names(const char *split, const char *names[4])
{
    static const char *const validation[] = {"val", "dev", "validation"};
    names[0] = split;
    for (int i = 0; i < 3; i++) {
        if (strcmp(split, validation[i]) != 0) continue;
        int n = 1; /* the name asked for comes first */
        for (int k = 0; k < 3; k++)
            if (k != i) names[n++] = validation[k];
    }
}

/* The i-th pattern of the task's files, NULL past the last. */
static const char *pattern_at(const mc_task *task, int i)
{
    enum { MOST = sizeof task->files / sizeof *task->files };
    return i == 0 && !task->files[0] ? "%s.jsonl" : i < MOST ? task->files[i] : NULL;
}

/* Whether the name of a file ends as one of the patterns does. */
static bool is_split_file(const search *s, const char *name)
{
    const char *pattern;
    for (int i = 0; (pattern = pattern_at(s->task, i)); i++) {
        const char *ending = strstr(pattern, "%s") + strlen("%s");
        size_t length = strlen(name), size = strlen(ending);
        if (length > size && strcmp(name + length - size, ending) == 0) return true;
    }
    return false;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Notes which splits a folder holds: "F holds dev.jsonl, train.jsonl". */
static void note_splits(search *s, const char *folder)
{
    char *names[LISTED_FILES];
    int count = 0, more = 0;
    DIR *stream = opendir(folder);
    if (!stream) return;
    for (struct dirent *entry; (entry = readdir(stream));) {
        if (!is_split_file(s, entry->d_name)) continue;
        if (count == LISTED_FILES)
            more++;
        else if ((names[count] = mc_strdup(entry->d_name)))
            count++;
        else
            s->nomem = true;
    }
    closedir(stream);
    qsort(names, (size_t)count, sizeof *names, compare_names);
    for (int i = 0; i < count; i++) {
        if (!mc_text_append_format(&s->there, "%s%s", i ? ", " : "", i ? "" : "; "))
            s->nomem = true;
        if (i == 0 && !mc_text_append_format(&s->there, "%s holds ", folder)) s->nomem = true;
        if (!mc_text_append_format(&s->there, "%s", names[i])) s->nomem = true;
        mc_free(names[i]);
    }
    if (more && !mc_text_append_format(&s->there, " and %d more", more)) s->nomem = true;
}

/* Looks for one file: whether it is there. */
static bool look_for(search *s, const char *folder, const char *file, char path[MC_PATH_MAX])
{
    if (mc_path_join(s->err, path, folder, file)) return false;
    if (mc_path_is_file(path)) return true;
    if (!mc_text_append_format(&s->looked, "%s%s", s->looked.size ? ", " : "", path))
        s->nomem = true;
    return false;
}

/* A pattern with the split in the place of its "%s". */
static void fill_in(const char *pattern, const char *split, char *file, size_t room)
{
    const char *place = strstr(pattern, "%s");
    snprintf(file, room, "%.*s%s%s", (int)(place - pattern), pattern, split, place + strlen("%s"));
}

/* Looks in one folder; writes the path and returns true when the split is there. */
static bool look_in(search *s, const char *folder, char path[MC_PATH_MAX])
{
    for (const char **name = s->names; *name; name++) {
        const char *pattern;
        for (int i = 0; (pattern = pattern_at(s->task, i)); i++) {
            char file[256];
            fill_in(pattern, *name, file, sizeof file);
            if (look_for(s, folder, file, path)) return true;
            if (mc_error_is_set(s->err)) return false;
        }
    }
    note_splits(s, folder);
    return false;
}

/* The subfolder of `folder` with the task's name in any case (the exact one if there is one), or
 * the exact name if there is none. */
static bool task_folder(search *s, const mc_task *task, const char *folder, char out[MC_PATH_MAX])
{
    char best[256] = "";
    DIR *stream = opendir(folder);
    for (struct dirent *entry; stream && (entry = readdir(stream));) {
        if (strcasecmp(entry->d_name, task->name) != 0) continue;
        bool exact = strcmp(entry->d_name, task->name) == 0;
        if (!*best || exact || (strcmp(best, task->name) != 0 && strcmp(entry->d_name, best) < 0)) {
            size_t length = strlen(task->name);
            memcpy(best, entry->d_name, length + 1);
        }
    }
    if (stream) closedir(stream);
    return mc_path_join(s->err, out, folder, *best ? best : task->name) == MC_OK;
}

static bool look_everywhere(search *s, const mc_task *task, const char *folder,
                            char path[MC_PATH_MAX])
{
    char base[MC_PATH_MAX], sub[MC_PATH_MAX];
    if (look_in(s, folder, path)) return true;
    if (mc_error_is_set(s->err) || !task_folder(s, task, folder, sub)) return false;
    if (look_in(s, sub, path)) return true;
    if (mc_error_is_set(s->err) || mc_path_join(s->err, sub, folder, "down_data") ||
        mc_path_join(s->err, base, sub, task->folder ? task->folder : "superglue"))
        return false;
    return task_folder(s, task, base, sub) && look_in(s, sub, path);
}

/* A split is a plain file name: no folders, nothing hidden. */
static bool is_plain_name(const char *split)
{
    return *split && *split != '.' && !strchr(split, '/') && strlen(split) < 128;
}

mc_status mc_dataset_locate(mc_error *err, const mc_task *task, const char *folder,
                            const char *split, char path[MC_PATH_MAX])
{
    if (!folder || !*folder)
        return mc_error_set(err, MC_ERR_ARGUMENT, "%s: no data folder given", task->name);
    if (!split || !is_plain_name(split))
        return mc_error_set(err, MC_ERR_ARGUMENT,
                            "%s: \"%s\" is no name of a split: expected train, val, dev, test or "
                            "the name of another file in the folder",
                            task->name, split ? split : "(none)");
    search s = {.err = err, .task = task};
    split_names(split, s.names);
    bool found = look_everywhere(&s, task, folder, path);
    if (!found && !mc_error_is_set(err)) {
        const char *what = mc_path_is_folder(folder) ? "no such split"
                           : mc_path_is_file(folder) ? "the data path is a file, not a folder"
                                                     : "the data folder doesn't exist";
        if (s.nomem)
            mc_error_set(err, MC_ERR_NOMEM, "out of memory looking for %s, split \"%s\", in %s",
                         task->name, split, folder);
        mc_error_set(err, MC_ERR_NOT_FOUND, "%s: %s (task %s, split \"%s\"); looked for %s%s",
                     folder, what, task->name, split, s.looked.data,
                     s.there.data ? s.there.data : "");
    }
    mc_text_release(&s.looked);
    mc_text_release(&s.there);
    return found ? MC_OK : err->status;
}
