#include "tools/log/run_csv.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

/* The step comes first: a run that goes on finds where to by it. */
static const char *const columns[] = {
    "step",   "epoch",         "split",        "loss",     "grad_norm", "lr",         "loss_scale",
    "ms",     "mfu",           "tokens_per_s", "n",        "tokens",    "accuracy",   "f1",
    "em",     "rougeL",        "pearson",      "spearman", "mse",       "perplexity", "val_loss",
    "recall", "fp8_saturated", "fp8_vanished",
};
enum { COLUMNS = sizeof columns / sizeof *columns, ROOM = 1024 };

void run_csv_add_header(text *t)
{
    for (int i = 0; i < COLUMNS; i++) text_add(t, "%s%s", i ? "," : "", columns[i]);
    text_add(t, "\n");
}

static void add_cell(text *t, const cJSON *value)
{
    char *object = NULL;
    if (cJSON_IsNumber(value))
        text_add_number(t, value->valuedouble);
    else if (cJSON_IsString(value))
        text_add_csv_bytes(t, value->valuestring, strlen(value->valuestring));
    else if (cJSON_IsObject(value) && (object = cJSON_PrintUnformatted(value)))
        text_add_csv_bytes(t, object, strlen(object));
    cJSON_free(object);
}

static bool is_column(const char *name)
{
    for (int i = 0; i < COLUMNS; i++)
        if (strcmp(columns[i], name) == 0) return true;
    return false;
}

bool run_csv_add_row(text *t, const char *json, char key[64])
{
    const cJSON *item;
    cJSON *object = cJSON_Parse(json);
    bool good = object;
    *key = '\0';
    cJSON_ArrayForEach(item, object)
    {
        if (!good || is_column(item->string)) continue;
        snprintf(key, 64, "%s", item->string);
        good = false;
    }
    for (int i = 0; good && i < COLUMNS; i++) {
        if (i) text_add(t, ",");
        add_cell(t, cJSON_GetObjectItemCaseSensitive(object, columns[i]));
    }
    if (good) text_add(t, "\n");
    cJSON_Delete(object);
    return good;
}

int64_t run_csv_step_of(const char *line, bool *trained)
{
    char header[ROOM], number[24];
    text t = text_into(header, sizeof header);
    size_t length = strlen(line), digits = strcspn(line, ",");
    int64_t step;
    run_csv_add_header(&t);
    if (strcmp(line, header) == 0) return 0;
    if (!length || line[length - 1] != '\n' || digits >= sizeof number) return -1;
    memcpy(number, line, digits);
    number[digits] = '\0';
    *trained = strncmp(line + digits, ",,,", 3) == 0; /* no epoch and no split */
    return text_parse_whole(number, &step) && step >= 0 ? step : -1;
}
