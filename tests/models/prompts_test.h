/* Prompts of different lengths, for tests of generation; their tokens are those of small models. */
#ifndef MC_TESTS_PROMPTS_TEST_H
#define MC_TESTS_PROMPTS_TEST_H

#include <stdint.h>

enum { PROMPTS = 5, MOST = 8 /* tokens */ };

static const int32_t prompt_ids[PROMPTS][MOST] = {
    {3, 14, 15, 9, 26}, {5}, {35, 8, 9, 7, 9, 3, 23, 8}, {2, 7}, {31, 41, 5, 9}};
static const int prompt_lengths[PROMPTS] = {5, 1, 8, 2, 4};
static const int32_t *const prompts[PROMPTS] = {prompt_ids[0], prompt_ids[1], prompt_ids[2],
                                                prompt_ids[3], prompt_ids[4]};

#endif
