/* Every public function with NULL in each place that takes a pointer, beside live arguments in the
 * others, on a live context and on a failed one: an error or the value that stands for nothing,
 * never a signal. null_calls.py writes the calls from the installed headers; each runs in a child
 * process, but those of a function on a failed context share one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include "core/base/context_internal.h"
#include "tests/child.h"
#include "tests/null/live_objects.h"

enum { NO_PLACE = -1, ALL_PLACES = -2, EACH_PLACE = -3 };
enum { MOST_PARAMETERS = 12, STUCK_SECONDS = 60 };
/* How a child ends; anything else is a crash. */
enum { REFUSED = 0, ACCEPTED = 100, SILENT = 101, FAILED = 102 };

typedef struct null_call {
    const char *function;
    void (*call)(int place);
    int parameters;
    const char *name[MOST_PARAMETERS]; /* of a parameter that takes a pointer; else NULL */
} null_call;

/* ---- in the child ---------------------------------------------------------------------------- */

static bool on_failed_context, gave_something, gave_nothing;

static bool has_failed(void) { return mc_failed(the_context()) || mc_failed(the_dry_context()); }

/* Between the live arguments and the call. */
static void begin_call(void)
{
    assert_good(the_context());
    assert_good(the_dry_context());
    if (!on_failed_context) return;
    mc_fail(the_context(), MC_ERR_STATE, "failed before the call");
    mc_fail(the_dry_context(), MC_ERR_STATE, "failed before the call");
}

static void returned_status(mc_status status)
{
    gave_something = status == MC_OK;
    gave_nothing = !gave_something;
}

static void returned_pointer(const void *pointer)
{
    gave_something = pointer != NULL;
    gave_nothing = !gave_something;
}

/* Counts, numbers and truth: NaN, 0 and -1 stand for nothing. */
static void returned_number(double number) { gave_something = number > 0; }

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-security"
#include "null_calls.h"
#pragma GCC diagnostic pop

static void call_once_more(const null_call *c, int place)
{
    mc_clear_error(the_context());
    mc_clear_error(the_dry_context());
    c->call(place);
}

/* With NULL in each place, then in all, and last in none, which may free what it takes. */
static void call_with_each(const null_call *c)
{
    for (int place = 0; place < c->parameters; place++)
        if (c->name[place]) call_once_more(c, place);
    call_once_more(c, ALL_PLACES);
    call_once_more(c, NO_PLACE);
}

static void run_child(const null_call *c, int place)
{
    static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) /* cmocka's end the test */
        signal(signals[i], SIG_DFL);
    int nowhere = open("/dev/null", O_RDWR);
    dup2(nowhere, STDIN_FILENO);
    dup2(nowhere, STDOUT_FILENO);
    alarm(STUCK_SECONDS);
    if (place == EACH_PLACE)
        call_with_each(c);
    else
        c->call(place);
    bool freed = is(c->function, "mc_context_free");
    if (place == NO_PLACE && !on_failed_context && !freed && has_failed()) _exit(FAILED);
    if (gave_something) _exit(ACCEPTED);
    _exit(gave_nothing && !has_failed() ? SILENT : REFUSED);
}

/* ---- what is expected ------------------------------------------------------------------------ */

/* Arguments that may be absent: of every function, and of one. */
static const char *const optional[] = {
    "*.bias",
    "*.call",
    "*.columns",
    "*.f",
    "*.heads",
    "*.options",
    "*.pair",
    "*.pairs",
    "*.pattern",
    "*.size",
    "*.user",
    "mc_bce_loss.pos_weight",
    "mc_chat_format_choose.name",
    "mc_checkpoint_poll.step",
    "mc_comm_count.comm",
    "mc_comm_new.id",
    "mc_data_size.ctx",
    "mc_error_message.ctx",
    "mc_failed.ctx",
    "mc_tensor_file_verify.found",
    "mc_labels_fit.place",
    "mc_model_finite_hint.model",
    "mc_model_new.family",
    "mc_generator_add.ids",
    "mc_loss_from_rows.counts",
    "mc_model_from_pretrained_of.family",
    "mc_model_set_problem_type.type",
    "mc_module_set_recipe.recipe",
    "mc_model_set_task.label_names",
    "mc_model_set_task.task",
    "mc_optim_manager_add.scheduler",
    "mc_optim_manager_zero_grad_plan.plan",
    "mc_optimizer_add_group.group",
    "mc_parameter_name.parameter",
    "mc_parts.parts",
    "mc_parameter_new.init",
    "mc_parameter_new_padded.init",
    "mc_parameter_new_stacked.parts_out",
    "mc_prepare_tokens.result",
    "mc_print_error.ctx",
    "mc_print_inspect.table",
    "mc_sublayer_parallel.second",
    "mc_sublayer_pre_norm.norm",
    "mc_table_cell.length",
    "mc_table_chat.length",
    "mc_table_chat_in.length",
    "mc_table_text.length",
    "mc_tape_backward.dy",
    "mc_tape_input.data",
    "mc_tokenizer_cut.text",
    "mc_tokenizer_cut.tok",
    "mc_world_size.ctx",
};

/* Arguments whose absence is not the context's error: the function looks something up, or it has no
 * context and returns a status. Neither is that of the object that a function belongs to, its first
 * argument. */
static const char *const silent[] = {
    "mc_answer_normalize.out",       "mc_answer_score.references",
    "mc_answer_score.score",         "mc_checkpoint_setting_of.name",
    "mc_chat_format_end.tok",        "mc_chat_prompt_init.model",
    "mc_module_find_parameter.name", "mc_module_next_parameter.it",
    "mc_rouge_l.reference",          "mc_rouge_l.score",
    "mc_tape_context.tape",          "mc_tape_input.tape",
    "mc_tape_lengths.tape",          "mc_tensor_file_find.name",
    "mc_tensor_file_metadata.key",   "mc_rendered_prompt_init.model",
    "mc_text_prompt_init.model",     "mc_tokenizer_append.encoding",
    "mc_tokenizer_append.text",      "mc_tokenizer_encode.encoding",
    "mc_tokenizer_encode.text",
};

/* A NULL tape has no context either, but operations know that of their other arguments. */
static bool is_tape(const char *argument) { return is(argument, "t") || is(argument, "tape"); }

static bool is_for_errors(const char *function)
{
    return is(function, "mc_module_calibrate_fp8") /* before a pass */ ||
           is(function, "mc_set_error_at") || is(function, "mc_table_fail") ||
           is(function, "mc_record_end") || is(function, "mc_hub_reach") ||
           begins(function, "mc_scorer_add");
}

#define IN(list, c, place) is_in(list, sizeof(list) / sizeof *(list), c, place)
static bool is_in(const char *const *list, size_t count, const null_call *c, int place)
{
    char one[256], all[256];
    snprintf(one, sizeof one, "%s.%s", c->function, c->name[place]);
    snprintf(all, sizeof all, "*.%s", c->name[place]);
    for (size_t i = 0; i < count; i++)
        if (is(list[i], one) || is(list[i], all)) return true;
    return false;
}

/* ---- in the test ----------------------------------------------------------------------------- */

static const char *place_name(const null_call *c, int place)
{
    if (place == NO_PLACE) return "nothing";
    return place == ALL_PLACES ? "all" : c->name[place];
}

static int run(const null_call *c, int place, bool failed)
{
    on_failed_context = failed;
    pid_t child = fork_child();
    if (child == 0) run_child(c, place);
    int end;
    assert_int_equal(waitpid(child, &end, 0), child);
    int code = WIFEXITED(end) ? WEXITSTATUS(end) : -1;
    if (code == REFUSED || (code >= ACCEPTED && code <= FAILED)) return code;
    if (place == EACH_PLACE) return -1; /* each alone says which it is */
    print_error("%s with NULL for %s, on a %s context: ended by %s %d\n", c->function,
                place_name(c, place), failed ? "failed" : "live",
                WIFSIGNALED(end) ? "signal" : "exit status",
                WIFSIGNALED(end) ? WTERMSIG(end) : WEXITSTATUS(end));
    return -1;
}

/* Whether NULL in one place, on a live context, was answered as it should be. */
static bool is_answered(const null_call *c, int place)
{
    int end = run(c, place, false);
    bool returns_errno = begins(c->function, "mc_aside_");
    bool accepted = end == ACCEPTED && !returns_errno && !IN(optional, c, place);
    bool owner = place == 0 && !is_tape(c->name[0]);
    bool quiet = end == SILENT && !owner && !IN(optional, c, place) && !IN(silent, c, place);
    if (accepted) print_error("%s takes NULL for %s\n", c->function, c->name[place]);
    if (quiet) print_error("%s: NULL for %s sets no error\n", c->function, c->name[place]);
    return end >= 0 && !accepted && !quiet;
}

static void test_null_in_each_place(void **state)
{
    (void)state;
    int bad = 0;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        for (int place = 0; place < calls[i].parameters; place++)
            if (calls[i].name[place]) bad += !is_answered(&calls[i], place);
    assert_int_equal(bad, 0);
}

static void test_null_on_a_failed_context(void **state)
{
    (void)state;
    int bad = 0, alone = 0;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        if (run(&calls[i], EACH_PLACE, true) >= 0) continue;
        alone++;
        for (int place = ALL_PLACES; place < calls[i].parameters; place++)
            if (place < 0 || calls[i].name[place]) bad += run(&calls[i], place, true) < 0;
    }
    printf("%d functions had children for each of their calls\n", alone);
    assert_int_equal(bad, 0);
}

/* With none; and with live arguments alone, which all functions take but those that are for errors:
 * else the cases above would not test what they seem to. */
static void test_all_places_at_once(void **state)
{
    (void)state;
    int bad = 0;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        int end = run(&calls[i], NO_PLACE, false);
        bool refused = end == FAILED && !is_for_errors(calls[i].function);
        if (refused) print_error("%s refuses its live arguments\n", calls[i].function);
        bad += refused || end < 0;
        bad += run(&calls[i], ALL_PLACES, false) < 0;
    }
    assert_int_equal(bad, 0);
}

static pid_t test_process;

static int set_up(void **state)
{
    (void)state;
    test_process = getpid();
    setenv("OMP_NUM_THREADS", "1", 1);
    setenv("HF_HUB_OFFLINE", "1", 1);
    /* in memory, where the calls' fsync takes no time */
    if (access("/dev/shm", W_OK) == 0) setenv("TMPDIR", "/dev/shm", 0);
    live_folder = temp_folder_new();
    the_context(); /* of all children, which need not make one each */
    the_dry_context();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    if (getpid() != test_process) return 0; /* a child whose live arguments could not be made */
    temp_folder_free(&live_folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_null_in_each_place),
        cmocka_unit_test(test_null_on_a_failed_context),
        cmocka_unit_test(test_all_places_at_once),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
