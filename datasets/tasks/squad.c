/* SQuAD v1.1: one document of articles, paragraphs, questions. */
#include "datasets/tasks/place_internal.h"
#include "datasets/tasks/rows_internal.h"

/* The texts of all answers, as a list; NULL without memory or with an error. */
static cJSON *read_references(const mc_place *answers)
{
    cJSON *list = cJSON_CreateArray();
    mc_place answer = {0};
    while (list && mc_place_next(answers, &answer)) {
        const char *text;
        cJSON *item = NULL;
        if (mc_place_string(&answer, "text", &text)) item = cJSON_CreateStringReference(text);
        if (item && cJSON_AddItemToArray(list, item)) continue;
        cJSON_Delete(item);
        cJSON_Delete(list);
        list = NULL;
    }
    if (!mc_error_is_set(answers->reader->err)) return list;
    cJSON_Delete(list);
    return NULL;
}

static bool add_question(mc_row_sink *sink, const mc_place *question, const char *context)
{
    const char *text, *id;
    mc_place answers;
    if (!mc_place_string(question, "question", &text) || !mc_place_string(question, "id", &id))
        return false;
    if (!mc_place_list(question, "answers", &answers)) return false;
    if (!answers.value->child) return mc_place_fail(&answers, "at least one answer (SQuAD v1.1)");
    cJSON *flat = cJSON_CreateObject(), *list = read_references(&answers);
    if (mc_error_is_set(question->reader->err) || !list ||
        !mc_flat_text(flat, "answer", list->child->valuestring) ||
        !cJSON_AddItemToObject(flat, "references", list)) {
        cJSON_Delete(list);
        cJSON_Delete(flat);
        return !mc_error_is_set(question->reader->err) && mc_sink_add(sink, question->reader, NULL);
    }
    if (!mc_flat_text(flat, "context", context) || !mc_flat_text(flat, "question", text) ||
        !mc_flat_text(flat, "id", id)) {
        cJSON_Delete(flat);
        flat = NULL;
    }
    bool ok = mc_sink_add(sink, question->reader, flat);
    sink->question++;
    return ok;
}

static bool read_paragraph(mc_row_sink *sink, const mc_place *paragraph)
{
    const char *context;
    mc_place questions, question = {0};
    if (!mc_place_string(paragraph, "context", &context)) return false;
    if (!mc_place_list(paragraph, "qas", &questions)) return false;
    while (mc_place_next(&questions, &question))
        if (!add_question(sink, &question, context)) return false;
    return !mc_error_is_set(paragraph->reader->err);
}

bool mc_read_squad(mc_row_sink *sink, mc_jsonl *document)
{
    mc_place root = mc_place_row(document), articles, article = {0};
    if (!mc_place_list(&root, "data", &articles)) return false;
    while (mc_place_next(&articles, &article)) {
        mc_place paragraphs, paragraph = {0};
        if (!mc_place_list(&article, "paragraphs", &paragraphs)) return false;
        while (mc_place_next(&paragraphs, &paragraph))
            if (!read_paragraph(sink, &paragraph)) return false;
    }
    return !mc_error_is_set(document->err);
}
