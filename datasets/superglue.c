/* SuperGLUE's tasks: what a row becomes, and what its label means. */
#include "datasets/dataset_internal.h"

#define TRUE_OR_FALSE .label_form = MC_LABEL_BOOL, .labels = 2, .label = {"false", "true"}

static const mc_task boolq = {
    .name = "BoolQ",
    TRUE_OR_FALSE,
    .form = {{MC_ANY_STYLE, MC_TASK_CLASSIFY, .text = {"{passage}. {question}"}}},
};

static const mc_task cb = {
    .name = "CB",
    .label_form = MC_LABEL_NAME,
    .labels = 3,
    .label = {"contradiction", "entailment", "neutral"},
    .balance = true,
    .form = {{MC_ANY_STYLE, MC_TASK_CLASSIFY, .text = {"{premise}"}, .pair = {"{hypothesis}"}}},
};

static const mc_task copa = {
    .name = "COPA",
    .label_form = MC_LABEL_INDEX,
    .labels = 2,
    .label = {"choice1", "choice2"},
    .form = {{MC_ANY_STYLE, MC_TASK_CHOOSE, .choices = 2, .text = {"{choice1}", "{choice2}"},
              .pair = {"The {question} of \"{premise}\"", "The {question} of \"{premise}\""}}},
};

static const mc_task rte = {
    .name = "RTE",
    .label_form = MC_LABEL_NAME,
    .labels = 2,
    .label = {"not_entailment", "entailment"},
    .form = {{MC_ANY_STYLE, MC_TASK_CLASSIFY, .text = {"{premise}"}, .pair = {"{hypothesis}"}}},
};

static const mc_task wic = {
    .name = "WiC",
    TRUE_OR_FALSE,
    .form = {{MC_ANY_STYLE, MC_TASK_CLASSIFY, .text = {"{sentence1}"}, .pair = {"{sentence2}"}}},
};

static const mc_task wsc = {
    .name = "WSC",
    TRUE_OR_FALSE,
    .form = {{MC_ANY_STYLE, MC_TASK_CLASSIFY,
              .text = {"{text} Does {target.span2_text} refers to {target.span1_text}?"}}},
};

const mc_task *const mc_superglue_tasks[] = {&boolq, &cb, &copa, &rte, &wic, &wsc, NULL};
