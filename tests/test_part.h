/* Tests whose cases can be shared out, or left out. Include after cmocka.h. */
#ifndef MC_TESTS_TEST_PART_H
#define MC_TESTS_TEST_PART_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Whether a case is to be run: each, but under checkers that slow a GPU a thousandfold several
 * processes share them. MC_TEST_PART=k/n: the cases k, k + n, k + 2n, ... of those this program
 * asks for. */
static inline bool is_mine(void)
{
    static int asked;
    const char *text = getenv("MC_TEST_PART");
    int part = 0, parts = 1;
    if (text && *text && sscanf(text, "%d/%d", &part, &parts) != 2) parts = 0;
    if (part < 0 || part >= parts) fail_msg("MC_TEST_PART=%s, expected k/n, 0 <= k < n", text);
    return asked++ % parts == part;
}

/* Whether accesses are watched, by sanitizers or by a simulated GPU: then each kernel runs once in
 * each of its ways, and not in all combinations of them. The plain build runs those, and a real
 * GPU. */
static inline bool is_watched(void)
{
#ifdef MC_TEST_SANITIZED
    return true;
#else
    return getenv("MC_CUDA_SIMULATED") != NULL;
#endif
}

/* Whether a case is left out where accesses are watched: all but those that have the turn. */
static inline bool is_left_out(int64_t number, int turn, int turns)
{
    return is_watched() && number % turns != turn % turns;
}

#endif
