/* SQuAD's scores and ROUGE-L, against values worked out by hand and by Python's packages. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>
#include "core/base/memory_internal.h"
#include "datasets/text_metrics.h"

static void near(double found, double expected)
{
    if (fabs(found - expected) > 1e-12) print_error("%.15g, expected %.15g\n", found, expected);
    assert_true(fabs(found - expected) <= 1e-12);
}

static void normal_is(const char *text, size_t size, const char *expected)
{
    char *normal = NULL;
    assert_int_equal(mc_answer_normalize(text, size, &normal), MC_OK);
    assert_string_equal(normal, expected);
    mc_string_free(normal);
}

/* Expected texts are those of SQuAD's script. */
static void test_normal_form(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"", ""},
        {"The", ""},
        {"  The  Eiffel   Tower! ", "eiffel tower"},
        {"an apple, a pear & the end", "apple pear end"},
        {"the-end", "theend"},
        {"other theatre than Anna", "other theatre than anna"},
        {"_the_ a_b", "ab"},
        {"U.S.\t3.5%\n10,000", "us 35 10000"},
        {"\u00c9COLE\u3000stra\u00dfe\u00a0\u4e1c\u4eac\u3002",
         "\u00e9cole stra\u00dfe \u4e1c\u4eac\u3002"},
        {"\u039f\u0394\u039f\u03a3 \u03a3 \u03a3\u0391",
         "\u03bf\u03b4\u03bf\u03c2 \u03c3 \u03c3\u03b1"},
        {"\u0391\u0301\u03a3. \u0391\u03a3\u0391", "\u03b1\u0301\u03c2 \u03b1\u03c3\u03b1"},
        {"\u0130 \u212a", "i\u0307 k"},
        {"a\u0301 x", "\u0301 x"},
    };
    for (size_t i = 0; i + 1 < sizeof pairs / sizeof *pairs; i++)
        normal_is(pairs[i][0], strlen(pairs[i][0]), pairs[i][1]);
    normal_is("a\x1c"
              "b\xff",
              4, "b\uFFFD");
}

static mc_text_score score(const char *text, size_t count, const char *const *references)
{
    mc_text_span spans[4];
    mc_text_score out;
    for (size_t i = 0; i < count; i++)
        spans[i] = (mc_text_span){references[i], strlen(references[i])};
    assert_int_equal(mc_answer_score(text, strlen(text), spans, count, &out), MC_OK);
    return out;
}

#define SCORE(text, ...)                                                             \
    score((text), sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *), \
          (const char *const[]){__VA_ARGS__})

static void test_answers(void **state)
{
    (void)state;
    mc_text_score s = SCORE("the Cat.", "cat");
    near(s.exact, 1);
    near(s.f1, 1);
    s = SCORE("black cat", "the cat sat"); /* 1 of 2 and 1 of 2 words */
    near(s.exact, 0);
    near(s.f1, 0.5);
    s = SCORE("dog dog cat", "dog cat cat cat"); /* dog once, cat once: 2/3 and 2/4 */
    near(s.f1, 4.0 / 7);
    s = SCORE("x", "y", "x z", "x"); /* the best of all */
    near(s.exact, 1);
    near(s.f1, 1);
    s = SCORE("x y", "x", "q r s"); /* 1/2 and 1 */
    near(s.exact, 0);
    near(s.f1, 2.0 / 3);
    s = SCORE("the", "a"); /* the script gives no F1 where there are no words */
    near(s.exact, 1);
    near(s.f1, 0);
    s = SCORE("", "word");
    near(s.exact, 0);
    near(s.f1, 0);
}

static mc_rouge_score rouge(const char *text, const char *reference)
{
    mc_rouge_score out;
    assert_int_equal(mc_rouge_l(text, strlen(text), reference, strlen(reference), &out), MC_OK);
    return out;
}

/* The last one is rouge_score's. */
static void test_rouge(void **state)
{
    (void)state;
    mc_rouge_score r = rouge("a cat sat", "the cat sat down");
    near(r.precision, 2.0 / 3);
    near(r.recall, 2.0 / 4);
    near(r.f1, 4.0 / 7);
    r = rouge("one two three four", "four one two three"); /* order counts */
    near(r.f1, 3.0 / 4);
    r = rouge("B-A.b_a", "a b a"); /* b a b a: all of the reference */
    near(r.precision, 3.0 / 4);
    near(r.recall, 1);
    near(rouge("", "word").f1, 0);
    near(rouge("\u6771\u4eac", "\u6771\u4eac").f1, 0);
    near(rouge("\u212aelvin \u00e9t\u00e9", "kelvin T").f1, 1);
    r = rouge("The quick brown fox jumped over 2 lazy dogs' tails.",
              "A quick, brown fox jumps over the 2 lazy dogs");
    near(r.precision, 0.7);
    near(r.recall, 0.7);
    near(r.f1, 0.7);
}

static void test_errors(void **state)
{
    (void)state;
    mc_text_span one = {"x", 1};
    mc_text_score s = {.f1 = 7};
    mc_rouge_score r = {.f1 = 7};
    char *normal = NULL;
    assert_int_equal(mc_answer_score("x", 1, &one, 0, &s), MC_ERR_ARGUMENT);
    assert_int_equal(mc_answer_score(NULL, 1, &one, 1, &s), MC_ERR_ARGUMENT);
    assert_int_equal(mc_rouge_l("x", 1, NULL, 1, &r), MC_ERR_ARGUMENT);
    assert_int_equal(mc_answer_normalize(NULL, 1, &normal), MC_ERR_ARGUMENT);
#ifdef MC_FAULT_INJECTION
    const char *text = "one two three four five six seven eight nine ten";
    size_t size = strlen(text);
    long n = 1;
    for (mc_status status = MC_ERR_NOMEM; status; n++) {
        mc_fault_fail_at(n, false);
        status = mc_answer_score(text, size, &(mc_text_span){text, size}, 1, &s);
        mc_fault_fail_at(0, false);
        assert_true(status == MC_OK || (status == MC_ERR_NOMEM && s.f1 == 7));
    }
    assert_true(n > 4);
    n = 1;
    for (mc_status status = MC_ERR_NOMEM; status; n++) {
        mc_fault_fail_at(n, false);
        status = mc_rouge_l(text, size, text, size, &r);
        mc_fault_fail_at(0, false);
        assert_true(status == MC_OK || (status == MC_ERR_NOMEM && r.f1 == 7));
    }
    assert_true(n > 4);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_normal_form),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_rouge),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
