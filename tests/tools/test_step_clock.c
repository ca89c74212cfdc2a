/* Times of steps by the times at which they ended, whenever their reports are read. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/optim/optimizer_internal.h"
#include "tools/log/step_clock.h"

static void assert_seconds(double got, double wanted)
{
    if (fabs(got - wanted) > 1e-9) fail_msg("%.9f s, expected %.9f", got, wanted);
}

/* Reports that arrive in a burst give each step its own time. */
static void test_each_step_has_its_own_time(void **state)
{
    (void)state;
    step_clock c = {0};
    step_clock_start(&c, 100);
    for (int i = 1; i <= 16; i++)
        assert_seconds(step_clock_end(&c, 100 + 0.3 * i, i > 1 ? 0.3 : NAN), 0.3);
    assert_seconds(step_clock_mean(&c), 0.3);
    assert_seconds(c.seconds, 4.8);
    step_clock_start(&c, 200); /* an evaluation in between, which is no part of the next step */
    assert_seconds(step_clock_end(&c, 200.4, 95.6), 0.4);
    assert_seconds(c.seconds, 5.2);
}

/* A step without a time counts in the sum as soon as a later end is known. */
static void test_unknown_ends(void **state)
{
    (void)state;
    step_clock c = {0};
    step_clock_start(&c, 10);
    assert_true(isnan(step_clock_mean(&c)));
    assert_true(isnan(step_clock_end(&c, NAN, NAN)));
    assert_true(isnan(step_clock_end(&c, NAN, NAN)));
    assert_true(isnan(step_clock_mean(&c)));
    assert_true(isnan(step_clock_end(&c, 13, NAN)));
    assert_seconds(step_clock_mean(&c), 1);
    assert_seconds(step_clock_end(&c, 15, 2), 2);
    assert_int_equal(c.steps, 4);
    assert_seconds(c.seconds, 5);
    assert_true(isnan(step_clock_end(&c, 15, 0))); /* a clock that has not moved */
}

static void test_the_mean_is_without_the_first_steps(void **state)
{
    (void)state;
    step_clock c = {0};
    step_clock_start(&c, 0);
    step_clock_end(&c, 10, NAN);
    step_clock_end(&c, 11, 1);
    assert_seconds(step_clock_mean(&c), 5.5);
    step_clock_end(&c, 12, 1);
    step_clock_end(&c, 14, 2);
    assert_seconds(step_clock_mean(&c), 2);
}

/* ---- when a step ended, of a device that works while the host does other things -------------- */

static double ended_at[8]; /* by the device's clock, of ticket i */

static double elapsed(mc_device *d, uint64_t from, uint64_t to)
{
    (void)d;
    return ended_at[to] - ended_at[from];
}

/* The host, whose clock is 50 seconds ahead, waits for step 1 and then sees 2, 3 and 4 at once. */
static void test_ends_by_the_devices_clock(void **state)
{
    (void)state;
    mc_device device = {.elapsed = elapsed};
    mc_step_end end = {0};
    for (int i = 1; i < 8; i++) ended_at[i] = 0.3 * i;
    end = mc_step_end_of(&device, &end, 1, false, 50.4);
    assert_false(end.known); /* it had ended before anyone looked */
    end = mc_step_end_of(&device, &end, 2, true, 50.6);
    assert_seconds(end.time, 50.6);
    for (int i = 3; i <= 5; i++) {
        end = mc_step_end_of(&device, &end, (uint64_t)i, i == 5, 51.6);
        assert_seconds(end.time, 50 + 0.3 * i);
    }
    /* the host woke up late at first: no end is later than the present */
    end.time += 0.2;
    end = mc_step_end_of(&device, &end, 6, true, 51.81);
    assert_seconds(end.time, 51.81);
    assert_seconds(end.seconds, 0.3);
    ended_at[7] = NAN; /* the device does not know any more */
    end = mc_step_end_of(&device, &end, 7, false, 52.5);
    assert_false(end.known);
}

/* A host that is late each time never knows an end, until it waits for the last step. That step has
 * its own time too, not what is left of it after the host's being late before. */
static void test_ends_of_a_host_that_is_always_late(void **state)
{
    (void)state;
    mc_device device = {.elapsed = elapsed};
    mc_step_end end = {0};
    step_clock c = {0};
    step_clock_start(&c, 50);
    for (int i = 1; i < 8; i++) ended_at[i] = 0.3 * i;
    for (int i = 1; i < 8; i++) {
        bool last = i == 7;
        double seen = 50 + 0.3 * i + (last ? 0 : 0.17);
        end = mc_step_end_of(&device, &end, (uint64_t)i, last, seen);
        assert_int_equal(end.known, i > 1);
        double seconds = step_clock_end(&c, end.known ? end.time : NAN, end.seconds);
        if (i == 1)
            assert_true(isnan(seconds));
        else
            assert_seconds(seconds, 0.3);
    }
    assert_seconds(end.time, 52.1);
    assert_seconds(c.seconds, 2.1);
    assert_seconds(step_clock_mean(&c), 0.3);
}

/* One that is done when a call returns needs no clock of its own. */
static void test_ends_of_a_device_that_is_waited_for(void **state)
{
    (void)state;
    mc_device device = {0};
    mc_step_end end = {0};
    end = mc_step_end_of(&device, &end, 1, false, 7);
    assert_seconds(end.time, 7);
    assert_true(isnan(end.seconds));
    end = mc_step_end_of(&device, &end, 2, false, 8);
    assert_seconds(end.time, 8);
    assert_seconds(end.seconds, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_step_has_its_own_time),
        cmocka_unit_test(test_unknown_ends),
        cmocka_unit_test(test_the_mean_is_without_the_first_steps),
        cmocka_unit_test(test_ends_by_the_devices_clock),
        cmocka_unit_test(test_ends_of_a_host_that_is_always_late),
        cmocka_unit_test(test_ends_of_a_device_that_is_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
