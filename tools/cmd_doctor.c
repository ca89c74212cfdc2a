/* `modelcenter doctor`: what this build has, what the machine has, and what is missing. */
#include <stdio.h>
#include "core/about/about.h"
#include "core/base/context.h"
#include "core/hub/hub.h"
#include "tools/options/args.h"
#include "tools/commands.h"
#include "tools/doctor.h"

static const char details[] =
    "Reports the version, the processor and GPUs, the libraries that were found, the folders of\n"
    "downloaded models and of tuning results, and how the hub is reached. For everything that\n"
    "is missing, it prints what needs it and the command that installs it. The exit code is 0\n"
    "if this build works here, whatever else is missing. A token is never shown.\n\n"
    "  modelcenter doctor\n"
    "  modelcenter doctor --json\n"
    "  modelcenter doctor --ask-hub\n";

static void ask_hub(doctor_report *r)
{
    mc_context *ctx = mc_context_new(NULL);
    mc_clear_error(ctx); /* of the device, which is reported elsewhere */
    r->asked = true;
    r->reached = mc_hub_reach(ctx) == MC_OK;
    snprintf(r->answer, sizeof r->answer, "%s", mc_error_message(ctx));
    mc_context_free(ctx);
}

static void examine(doctor_report *r, bool ask)
{
    r->version = mc_version();
    r->commit = mc_build_commit();
    r->date = mc_build_date();
    r->part_count = mc_parts(r->parts, DOCTOR_PARTS);
    if (r->part_count > DOCTOR_PARTS) r->part_count = DOCTOR_PARTS;
    for (int i = 0; i < r->part_count; i++) mc_part_look(&r->parts[i]);
    mc_machine_read(&r->machine);
    r->gpu_count = mc_gpus(r->gpus, DOCTOR_GPUS);
    mc_hub_look(&r->hub);
    char tuning[sizeof r->tuning.path];
    mc_cache_folder(tuning, sizeof tuning);
    doctor_look_into(&r->models, r->hub.cache);
    doctor_look_into(&r->tuning, tuning);
    doctor_find_missing(r);
    if (ask) ask_hub(r);
    r->usable = !*r->machine.problem;
}

int cmd_doctor(int argc, char **argv)
{
    bool json = false, ask = false;
    const args_option options[] = {
        {ARGS_FLAG("json", &json, "print one JSON object")},
        {ARGS_FLAG("ask-hub", &ask, "ask the hub for an answer too, over the network")},
        {0},
    };
    const args_spec spec = {.command = "doctor",
                            .summary = "Reports what works here, and what is missing.",
                            .details = details,
                            .options = options};
    int code;
    if (!args_parse(&spec, argc, argv, &code)) return code;
    static doctor_report report; /* some 30 KB */
    examine(&report, ask);
    if (json)
        doctor_print_json(stdout, &report);
    else
        doctor_print(stdout, &report);
    return report.usable ? EXIT_OK : EXIT_RUN_FAILED;
}
