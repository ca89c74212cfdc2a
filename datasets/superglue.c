/* SuperGLUE's tasks: what a row becomes, and what its label means. */
#include "datasets/dataset_internal.h"

#define TRUE_OR_FALSE .label_form = MC_LABEL_BOOL, .labels = 2, .label = {"false", "true"}

/* A classifier reads the text, or pair. */
#define CLASSIFIED(...)                                  \
    {                                                    \
        MC_STYLE(ENCODER), MC_TASK_CLASSIFY, __VA_ARGS__ \
    }
/* A language model answers with one of two words, or three: after the prompt, where the word begins
 * with a space, or in T5's blank. */
#define ASKED(prompt, a, b)                                                                 \
    {MC_STYLE(DECODER), MC_TASK_ANSWER, .text = {prompt}, .answer = {" " a, " " b}},        \
    {                                                                                       \
        MC_STYLE(T5), MC_TASK_ANSWER, .text = {prompt " <extra_id_0>."}, .answer = { a, b } \
    }
#define ASKED_OF_THREE(prompt, a, b, c)                                                        \
    {MC_STYLE(DECODER), MC_TASK_ANSWER, .text = {prompt}, .answer = {" " a, " " b, " " c}},    \
    {                                                                                          \
        MC_STYLE(T5), MC_TASK_ANSWER, .text = {prompt " <extra_id_0>."}, .answer = { a, b, c } \
    }

static const mc_task boolq = {
    .name = "BoolQ",
    TRUE_OR_FALSE,
    .rows = MC_ROWS_BOOLQ,
    .label_key = "answer",
    .form = {CLASSIFIED(.text = {"{passage}. {question}"}),
             ASKED("{passage}. {question}?", "No", "Yes")},
};

#define ENTAILS                                            \
    "Sentence 1: {premise} Sentence 2: {hypothesis} Does " \
    "sentence 1 entails sentence 2?"

static const mc_task cb = {
    .name = "CB",
    .label_form = MC_LABEL_NAME,
    .labels = 3,
    .label = {"contradiction", "entailment", "neutral"},
    .balance = true,
    .form = {CLASSIFIED(.text = {"{premise}"}, .pair = {"{hypothesis}"}),
             ASKED_OF_THREE(ENTAILS, "No", "Yes", "Maybe")},
};

#define EFFECT "The {question} of \"{premise}\""

static const mc_task copa = {
    .name = "COPA",
    .label_form = MC_LABEL_INDEX,
    .labels = 2,
    .label = {"choice1", "choice2"},
    .form = {{MC_STYLE(ENCODER), MC_TASK_CHOOSE, .choices = 2, .text = {"{choice1}", "{choice2}"},
              .pair = {EFFECT, EFFECT}},
             ASKED("Choice 1: {choice1} Choice 2: {choice2} " EFFECT " was choice", "1", "2")},
    .exchange = {"choice1", "choice2"},
};

static const mc_task rte = {
    .name = "RTE",
    .label_form = MC_LABEL_NAME,
    .labels = 2,
    .label = {"not_entailment", "entailment"},
    .form = {CLASSIFIED(.text = {"{premise}"}, .pair = {"{hypothesis}"}),
             ASKED(ENTAILS, "No", "Yes")},
};

static const mc_task wic = {
    .name = "WiC",
    TRUE_OR_FALSE,
    .form = {CLASSIFIED(.text = {"{sentence1}"}, .pair = {"{sentence2}"}),
             ASKED("Sentence 1: {sentence1} Sentence 2: {sentence2} Does the word {word} in "
                   "sentence 1 express the same meaning as in sentence 2?",
                   "No", "Yes")},
};

#define REFERS "{text} Does {target.span2_text} refers to {target.span1_text}?"

static const mc_task wsc = {
    .name = "WSC",
    TRUE_OR_FALSE,
    .form = {CLASSIFIED(.text = {REFERS}), ASKED(REFERS, "No", "Yes")},
};

static const mc_task multirc = {
    .name = "MultiRC",
    TRUE_OR_FALSE,
    .rows = MC_ROWS_MULTIRC,
    .scoring = MC_SCORING_QUESTIONS,
    .form = {ASKED("{passage} Is answer \"{answer}\" the answer to the question \"{question}\"?",
                   "No", "Yes")},
};

#define FILLED                                       \
    "{text} Question: {query} Entities: {entities} " \
    "Which entities can be filled in the placeholder?"

static const mc_task record = {
    .name = "ReCoRD",
    TRUE_OR_FALSE,
    .rows = MC_ROWS_RECORD,
    .scoring = MC_SCORING_ENTITIES,
    .form = {{MC_STYLE(DECODER), MC_TASK_GENERATE, .text = {FILLED}, .target = " {entity}"},
             {MC_STYLE(T5), MC_TASK_GENERATE, .text = {FILLED " <extra_id_0>."},
              .target = "<extra_id_0> {entity} <extra_id_1>", .keep_end = true}},
};

const mc_task *const mc_superglue_tasks[] = {&boolq, &cb,      &copa,   &rte, &wic,
                                             &wsc,   &multirc, &record, NULL};
