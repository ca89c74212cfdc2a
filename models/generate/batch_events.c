/* Reports the tokens and ends of answers to the functions that prompts were added with. */
#include <math.h>
#include "models/generate/batch_internal.h"

static void report(const mc_job *j, mc_answer_event event)
{
    event.id = j->id;
    j->fn(j->user, &event);
}

void mc_batch_report_token(const mc_job *j, mc_answer_state state, mc_chosen chosen)
{
    bool ended = state == MC_ANSWER_ENDED;
    report(j, (mc_answer_event){.answer = j->answer,
                                .state = state,
                                .token = chosen.token,
                                .log_probability = chosen.log_probability,
                                .score = ended ? (float)j->score : 0});
}

void mc_batch_report_end(const mc_job *j, mc_answer_state state, const char *error)
{
    for (int i = 0; i < j->answers; i++)
        report(j, (mc_answer_event){
                      .answer = j->answer + i, .state = state, .token = -1, .error = error});
}

static void report_beam(const mc_job *j, int answer, const mc_beam *beam)
{
    for (int i = 0; i < beam->length; i++) {
        bool ended = i + 1 == beam->length;
        report(j, (mc_answer_event){.answer = answer,
                                    .state = ended ? MC_ANSWER_ENDED : MC_ANSWER_GOES_ON,
                                    .token = beam->ids[i],
                                    .log_probability = beam->log_probs[i],
                                    .score = ended ? beam->score : 0});
    }
}

void mc_batch_report_beams(const mc_job *j)
{
    const mc_search *s = j->search;
    for (int i = 0; i < j->answers; i++)
        if (i < s->finished_count)
            report_beam(j, i, &s->finished[i]);
        else /* a vocabulary smaller than the beams */
            report(j, (mc_answer_event){
                          .answer = i, .state = MC_ANSWER_ENDED, .token = -1, .score = -INFINITY});
}
