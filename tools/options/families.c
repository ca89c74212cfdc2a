#include "tools/options/families.h"

#include <stdio.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>

const char *families_that_generate(void)
{
    static char able[256];
    const char *name;
    size_t used = 0;
    for (int i = 0; (name = mc_family_name(i)) && used < sizeof able; i++)
        if (mc_family_kind(name) != MC_MODEL_ENCODER)
            used +=
                (size_t)snprintf(able + used, sizeof able - used, "%s%s", used ? ", " : "", name);
    return able;
}

bool family_can_generate(const args_spec *spec, const char *family)
{
    if (!family || mc_family_kind(family) != MC_MODEL_ENCODER) return true;
    args_error(spec, "%s does not generate text: expected one of %s", family,
               families_that_generate());
    return false;
}
