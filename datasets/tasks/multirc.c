/* MultiRC: passages, in them questions, in them answers, each of which is right or wrong. */
#include "datasets/tasks/place_internal.h"
#include "datasets/tasks/rows_internal.h"

static bool add_answer(mc_row_sink *sink, const mc_place *answer, const char *passage,
                       const char *question)
{
    const char *text;
    int64_t label = -1;
    if (!mc_place_string(answer, "text", &text)) return false;
    bool labelled = !sink->unlabelled || mc_place_has(answer, "label");
    if (labelled && !mc_place_index(answer, "label", 1, &label)) return false;
    cJSON *flat = cJSON_CreateObject();
    bool ok = mc_flat_text(flat, "passage", passage) && mc_flat_text(flat, "question", question) &&
              mc_flat_text(flat, "answer", text) &&
              (!labelled || mc_flat_number(flat, "label", (double)label));
    if (!ok) {
        cJSON_Delete(flat);
        flat = NULL;
    }
    return mc_sink_add(sink, answer->reader, flat);
}

static bool add_question(mc_row_sink *sink, const mc_place *question, const char *passage)
{
    const char *text;
    mc_place answers, answer = {0};
    if (!mc_place_string(question, "question", &text)) return false;
    if (!mc_place_list(question, "answers", &answers)) return false;
    while (mc_place_next(&answers, &answer))
        if (!add_answer(sink, &answer, passage, text)) return false;
    sink->question++;
    return !mc_error_is_set(question->reader->err);
}

bool mc_read_multirc(mc_row_sink *sink, mc_jsonl *reader)
{
    mc_place row = mc_place_row(reader), passage, questions, question = {0};
    const char *text;
    if (!mc_place_object(&row, "passage", &passage)) return false;
    if (!mc_place_string(&passage, "text", &text)) return false;
    if (!mc_place_list(&passage, "questions", &questions)) return false;
    while (mc_place_next(&questions, &question))
        if (!add_question(sink, &question, text)) return false;
    return !mc_error_is_set(reader->err);
}
