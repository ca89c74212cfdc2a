#include "datasets/labels.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "core/base/number_internal.h"

bool mc_labels_are_numbers(const char *const *names, int count)
{
    char expected[32];
    for (int k = 0; names && k < count; k++) {
        snprintf(expected, sizeof expected, "LABEL_%d", k);
        if (!names[k] || strcmp(names[k], expected) != 0) return false;
    }
    return names && count > 0;
}

/* "2", or "2.0", as tables with missing values print whole numbers; -1: no such number. */
static int whole_number(const char *label)
{
    double number;
    if (*label < '0' || *label > '9' || !mc_number_parse(label, &number)) return -1;
    return number < INT_MAX && number == floor(number) ? (int)number : -1;
}

int mc_label_find(const char *const *names, int count, const char *label)
{
    if (!names || !label) return -1;
    int alike = -1, number = whole_number(label);
    for (int k = 0; k < count; k++)
        if (strcmp(names[k], label) == 0) return k;
    for (int k = 0; k < count; k++)
        if (strcasecmp(names[k], label) == 0) alike = alike == -1 ? k : -2;
    if (alike != -1) return alike < 0 ? -1 : alike;
    return number >= 0 && number < count && mc_labels_are_numbers(names, count) ? number : -1;
}

bool mc_labels_fit(const char *const *names, int count, const char *const *labels, int labels_count,
                   int *place)
{
    bool taken[MC_DATASET_MAX_LABELS] = {false};
    if (!names || !labels) return false;
    bool all = labels_count == count || !mc_labels_are_numbers(names, count);
    bool fits = all && labels_count <= count && count <= MC_DATASET_MAX_LABELS;
    for (int i = 0; fits && i < labels_count; i++) {
        int k = mc_label_find(names, count, labels[i]);
        fits = k >= 0 && !taken[k];
        if (fits) taken[k] = true;
        if (place) place[i] = k;
    }
    return fits;
}
