/* Benchmarks beside SuperGLUE: what a row becomes, and where files lie. */
#include "datasets/dataset_internal.h"

static const mc_task squad = {
    .name = "SQuAD",
    .rows = MC_ROWS_SQUAD,
    .scoring = MC_SCORING_TEXTS,
    .files = {"%s-v1.1.json"},
    .folder = "",
    .form = {{MC_STYLE(T5), MC_TASK_GENERATE,
              .text = {"Question: {question} Answer: <extra_id_0> Context: {context}"},
              .target = "<extra_id_0> {answer} <extra_id_1>"}},
};

/* 0 unrelated, 1 of the same meaning. */
static const mc_task lcqmc = {
    .name = "LCQMC",
    .label_form = MC_LABEL_INDEX,
    .labels = 2,
    .label = {"different", "same"},
    .rows = MC_ROWS_LCQMC,
    .files = {"%s.tsv"},
    .folder = "paraphrase",
    .form = {{MC_STYLE(CPM1), MC_TASK_ANSWER,
              .text = {"\"{text_a}\"\u4e0e\"{text_b}\"\u7684\u5173\u7cfb\u662f:"},
              .pair = {"\u3002"}, .answer = {"\u65e0\u5173", "\u6709\u5173"}},
             {MC_STYLE(CPM2), MC_TASK_ANSWER,
              .text = {"\u201c{text_a}\u201d\u4e0e\u201c{text_b}\u201d\u662f\u5426\u6709\u5173"
                       "\uff1f"},
              .answer = {"\u5426", "\u662f"}}},
};

static const mc_task hellaswag = {
    .name = "HellaSwag",
    .label_form = MC_LABEL_BOOL,
    .labels = 2,
    .label = {"false", "true"},
    .rows = MC_ROWS_HELLASWAG,
    .scoring = MC_SCORING_ENDINGS,
    .files = {"hellaswag_%s.jsonl", "%s.jsonl"},
    .form = {{MC_STYLE(DECODER), MC_TASK_GENERATE, .text = {"{ctx}"}, .target = " {ending}",
              .open_end = true}},
};

const mc_task *const mc_benchmark_tasks[] = {&squad, &lcqmc, &hellaswag, NULL};
