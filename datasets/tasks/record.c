/* ReCoRD: passages with marked entities, and queries in which one entity is missing. */
#include <string.h>
#include "datasets/dataset_internal.h"
#include "datasets/tasks/place_internal.h"
#include "datasets/tasks/rows_internal.h"

/* What the rows of a passage share. */
typedef struct passage {
    mc_text text;     /* with "- " where the file begins a highlight */
    mc_text entities; /* each once, with ", " between */
    mc_text names;    /* each once, closed with a NUL */
} passage;

static bool nomem(mc_jsonl *reader)
{
    mc_error_set(reader->err, MC_ERR_NOMEM, "%s:%lld: out of memory for its entities", reader->name,
                 (long long)reader->line);
    return false;
}

/* The text as ModelCenter puts it: "@highlight\n" begins an item of a list. */
static bool replace_highlights(const char *text, mc_text *out)
{
    static const char mark[] = "@highlight\n";
    for (const char *next; (next = strstr(text, mark)); text = next + sizeof mark - 1)
        if (!mc_text_append(out, text, (size_t)(next - text)) || !mc_text_append(out, "- ", 2))
            return false;
    return mc_text_append(out, text, strlen(text));
}

/* The bytes of characters [from, to) of a text, which is valid UTF-8; NULL if it is shorter. */
static const char *characters(const char *text, int64_t from, int64_t to, size_t *size)
{
    const char *start = NULL, *p = text;
    for (int64_t i = 0; i <= to; i++) {
        if (i == from) start = p;
        if (i == to) break;
        if (!*p) return NULL;
        p++;
        while ((*p & 0xC0) == 0x80) p++;
    }
    *size = (size_t)(p - start);
    return start;
}

static bool is_known(const mc_text *names, const char *name, size_t size)
{
    for (size_t at = 0; at < names->size; at += strlen(names->data + at) + 1)
        if (strlen(names->data + at) == size && memcmp(names->data + at, name, size) == 0)
            return true;
    return false;
}

static bool add_entity(passage *p, const mc_place *entity, const char *text)
{
    int64_t start, end;
    size_t size;
    if (!mc_place_index(entity, "start", INT32_MAX, &start)) return false;
    if (!mc_place_index(entity, "end", INT32_MAX, &end)) return false;
    const char *name = end >= start ? characters(text, start, end + 1, &size) : NULL;
    if (!name) return mc_place_fail(entity, "the first and last character of a part of the text");
    if (is_known(&p->names, name, size)) return true;
    return (mc_text_append(&p->entities, ", ", p->names.size ? 2 : 0) &&
            mc_text_append(&p->entities, name, size) && mc_text_append(&p->names, name, size) &&
            mc_text_append(&p->names, "", 1)) ||
           nomem(entity->reader);
}

static bool read_passage(passage *p, const mc_place *place)
{
    const char *text;
    mc_place entities, entity = {0};
    if (!mc_place_string(place, "text", &text)) return false;
    if (!mc_place_list(place, "entities", &entities)) return false;
    if (!entities.value->child) return mc_place_fail(&entities, "at least one entity");
    while (mc_place_next(&entities, &entity))
        if (!add_entity(p, &entity, text)) return false;
    if (mc_error_is_set(place->reader->err)) return false;
    return replace_highlights(text, &p->text) || nomem(place->reader);
}

/* The texts that count as right, each once: a list of strings in `out`. */
static bool read_references(const mc_place *answers, mc_text *names, cJSON *out)
{
    mc_place answer = {0};
    while (mc_place_next(answers, &answer)) {
        const char *text;
        if (!mc_place_string(&answer, "text", &text)) return false;
        if (is_known(names, text, strlen(text))) continue;
        cJSON *item = cJSON_CreateString(text);
        if (!item || !cJSON_AddItemToArray(out, item)) {
            cJSON_Delete(item);
            return nomem(answers->reader);
        }
        if (!mc_text_append(names, text, strlen(text) + 1)) return nomem(answers->reader);
    }
    return !mc_error_is_set(answers->reader->err);
}

/* A row of one entity. `references` NULL: the query has no answers. */
static bool add_row(mc_row_sink *sink, mc_jsonl *reader, const passage *p, const char *query,
                    const char *entity, const cJSON *references, bool right)
{
    cJSON *flat = cJSON_CreateObject();
    bool ok = mc_flat_text(flat, "text", p->text.data) && mc_flat_text(flat, "query", query) &&
              mc_flat_text(flat, "entities", p->entities.data) &&
              mc_flat_text(flat, "entity", entity);
    if (ok && references)
        ok = mc_flat_number(flat, "label", right) &&
             cJSON_AddItemReferenceToObject(flat, "references", (cJSON *)references);
    if (!ok) {
        cJSON_Delete(flat);
        flat = NULL;
    }
    return mc_sink_add(sink, reader, flat);
}

/* Training rows are the right answers, others the entities of the passage. */
static bool add_query(mc_row_sink *sink, mc_jsonl *reader, const passage *p, const char *query,
                      const mc_text *right, const cJSON *references)
{
    const mc_text *names = sink->train ? right : &p->names;
    for (size_t at = 0; at < names->size; at += strlen(names->data + at) + 1) {
        const char *name = names->data + at;
        if (!add_row(sink, reader, p, query, name, references, is_known(right, name, strlen(name))))
            return false;
    }
    sink->question++;
    return true;
}

static bool read_query(mc_row_sink *sink, const passage *p, const mc_place *query)
{
    const char *text;
    mc_place answers;
    mc_text right = {0};
    bool labelled = !sink->unlabelled || mc_place_has(query, "answers");
    if (!mc_place_string(query, "query", &text)) return false;
    if (labelled && !mc_place_list(query, "answers", &answers)) return false;
    if (labelled && !answers.value->child) return mc_place_fail(&answers, "at least one answer");
    cJSON *references = cJSON_CreateArray();
    if (!references) return nomem(query->reader);
    bool ok = (!labelled || read_references(&answers, &right, references)) &&
              add_query(sink, query->reader, p, text, &right, labelled ? references : NULL);
    cJSON_Delete(references);
    mc_text_release(&right);
    return ok;
}

bool mc_read_record(mc_row_sink *sink, mc_jsonl *reader)
{
    mc_place row = mc_place_row(reader), text, queries, query = {0};
    passage p = {0};
    bool ok = mc_place_object(&row, "passage", &text) && read_passage(&p, &text) &&
              mc_place_list(&row, "qas", &queries);
    while (ok && mc_place_next(&queries, &query)) ok = read_query(sink, &p, &query);
    mc_text_release(&p.text);
    mc_text_release(&p.entities);
    mc_text_release(&p.names);
    return ok && !mc_error_is_set(reader->err);
}
