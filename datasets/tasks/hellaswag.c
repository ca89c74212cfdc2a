/* HellaSwag: the beginning of a text with several endings, of which one is right. */
#include "datasets/tasks/place_internal.h"
#include "datasets/tasks/rows_internal.h"

static bool add_ending(mc_row_sink *sink, mc_jsonl *reader, const char *context, const char *ending,
                       int right)
{
    if (sink->train && right != 1) return true;
    cJSON *flat = cJSON_CreateObject();
    bool ok = mc_flat_text(flat, "ctx", context) && mc_flat_text(flat, "ending", ending) &&
              (right < 0 || mc_flat_number(flat, "label", right));
    if (!ok) {
        cJSON_Delete(flat);
        flat = NULL;
    }
    return mc_sink_add(sink, reader, flat);
}

/* The number of the right ending, which some files write as text; -1: none. */
static bool read_label(const mc_row_sink *sink, const mc_place *row, int endings, int64_t *label)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(row->value, "label");
    *label = -1;
    bool empty =
        !value || cJSON_IsNull(value) || (cJSON_IsString(value) && value->valuestring[0] == '\0');
    if (empty && sink->unlabelled) return true;
    if (cJSON_IsString(value) && value->valuestring[0] >= '0' &&
        value->valuestring[0] < '0' + (endings < 10 ? endings : 10) && !value->valuestring[1]) {
        *label = value->valuestring[0] - '0';
        return true;
    }
    return mc_place_index(row, "label", endings - 1, label);
}

bool mc_read_hellaswag(mc_row_sink *sink, mc_jsonl *reader)
{
    mc_place row = mc_place_row(reader), endings;
    const char *context;
    int64_t label;
    int count, i = 0;
    if (!mc_place_string(&row, "ctx", &context)) return false;
    if (!mc_place_list(&row, "endings", &endings)) return false;
    count = cJSON_GetArraySize(endings.value);
    if (count < 2) return mc_place_fail(&endings, "at least two endings");
    if (!read_label(sink, &row, count, &label)) return false;
    for (const cJSON *ending = endings.value->child; ending; ending = ending->next, i++) {
        mc_place place = {.reader = reader, .in = &endings, .index = i, .value = ending};
        if (!cJSON_IsString(ending)) return mc_place_fail(&place, "a string");
        int right = label < 0 ? -1 : label == i;
        if (!add_ending(sink, reader, context, ending->valuestring, right)) return false;
    }
    sink->question++;
    return true;
}
