#include "tools/families.h"

#include <stdio.h>
#include <string.h>
#include "core/modelcenter.h"

enum { MOST = 32 };

const char *const *family_names(void)
{
    static const char *names[MOST + 1];
    for (int i = 0; i < MOST && (names[i] = mc_family_name(i)); i++) continue;
    return names;
}

static bool fits(const char *name, family_use use)
{
    mc_model_kind kind = mc_family_kind(name);
    switch (use) {
    case FAMILY_GENERATES: return kind != MC_MODEL_ENCODER;
    }
    return false;
}

bool family_generates(int family) { return fits(family_names()[family], FAMILY_GENERATES); }

bool family_can(const args_spec *spec, int family, family_use use)
{
    static const char *const lacks[] = {"does not generate text"};
    const char *const *names = family_names();
    char able[256] = "";
    if (fits(names[family], use)) return true;
    for (int i = 0; names[i]; i++) {
        size_t used = strlen(able);
        if (fits(names[i], use))
            snprintf(able + used, sizeof able - used, "%s%s", used ? ", " : "", names[i]);
    }
    args_error(spec, "%s %s: expected one of %s", names[family], lacks[use], able);
    return false;
}
