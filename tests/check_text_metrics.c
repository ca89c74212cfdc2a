/* Prints the scores of texts:  check_text_metrics < TEXTS
 *
 * Texts end with a NUL and come by twos: what was given and its reference. For each two a line
 * with SQuAD's exact match and F1 and ROUGE-L's precision, recall and F1 comes out, in 17 digits,
 * and a line with SQuAD's normal form of the first. compare_text_metrics.py compares them with
 * Python's. Returns 0, or 2 with an error message. */
#include <stdio.h>
#include <stdlib.h>
#include "datasets/text_metrics.h"

static bool print_scores(mc_text_span given, mc_text_span reference)
{
    mc_text_score answer;
    mc_rouge_score rouge;
    char *normal;
    if (mc_answer_score(given.data, given.size, &reference, 1, &answer) ||
        mc_rouge_l(given.data, given.size, reference.data, reference.size, &rouge) ||
        mc_answer_normalize(given.data, given.size, &normal))
        return false;
    printf("%.17g %.17g %.17g %.17g %.17g\n%s\n", answer.exact, answer.f1, rouge.precision,
           rouge.recall, rouge.f1, normal);
    mc_string_free(normal);
    return true;
}

int main(int argc, char **argv)
{
    char *text[2] = {NULL, NULL};
    size_t capacity[2] = {0, 0};
    bool ok = true;
    (void)argv;
    if (argc > 1) {
        fputs("usage: check_text_metrics < TEXTS\n", stderr);
        return 2;
    }
    while (ok) {
        mc_text_span span[2];
        int read = 0;
        for (; read < 2; read++) {
            ssize_t length = getdelim(&text[read], &capacity[read], 0, stdin);
            if (length <= 0) break;
            span[read] = (mc_text_span){text[read], (size_t)length - 1};
        }
        if (read < 2) break;
        ok = print_scores(span[0], span[1]);
    }
    free(text[0]);
    free(text[1]);
    if (!ok) fputs("error: a text cannot be scored\n", stderr);
    return ok ? 0 : 2;
}
