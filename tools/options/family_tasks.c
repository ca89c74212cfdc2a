#include "tools/options/family_tasks.h"

#include "core/modelcenter.h"
#include <modelcenter/more.h>

static bool has_form(const char *family, const char *task)
{
    mc_task_kind kind = mc_task_kind_for(task, mc_family_prompt_style(family));
    bool head = kind == MC_TASK_CLASSIFY || kind == MC_TASK_CHOOSE;
    return kind && (!head || mc_family_has_classifier(family));
}

void family_tasks_add(text *out)
{
    const char *task, *family;
    text_add(out, "Benchmarks, and the families that have them:\n");
    for (int i = 0; (task = mc_task_name(i)); i++) {
        text_add(out, "  %-12s", task);
        for (int k = 0; (family = mc_family_name(k)); k++)
            if (has_form(family, task)) text_add(out, " %s", family);
        text_add(out, "\n");
    }
}

const char *family_tasks_after(const char *details)
{
    static char room[8192];
    text out = text_into(room, sizeof room);
    text_add(&out, "%s\n", details);
    family_tasks_add(&out);
    return room;
}
