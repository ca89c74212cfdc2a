/* Adapters (PEFT's, models/adapters/adapter.h) name the model that they extend. */
#include <stdio.h>
#include <string.h>
#include "core/base/file_internal.h"
#include "core/base/json_internal.h"
#include "core/hub/find_internal.h"

static const char config_name[] = "adapter_config.json";

static bool name_config(const char *folder, char path[MC_PATH_MAX])
{
    int written = snprintf(path, MC_PATH_MAX, "%s/%s", folder, config_name);
    return written >= 0 && written < MC_PATH_MAX;
}

bool mc_hub_is_adapter(const char *folder)
{
    char path[MC_PATH_MAX];
    return name_config(folder, path) && mc_path_is_file(path);
}

mc_status mc_hub_adapter_base(mc_error *err, const char *folder, char base[MC_PATH_MAX])
{
    char path[MC_PATH_MAX];
    const char *name = NULL;
    base[0] = '\0';
    if (!name_config(folder, path))
        return mc_error_set(err, MC_ERR_ARGUMENT, "path too long: %.100s...", folder);
    cJSON *json = mc_json_read_object(err, path, 1 << 24);
    if (!json) return err->status;
    bool good = mc_json_get_string(err, json, path, "base_model_name_or_path", &name);
    if (good && (!name || !*name || strlen(name) >= MC_PATH_MAX))
        good = !mc_error_set(err, MC_ERR_NOT_FOUND,
                             "%s: key \"base_model_name_or_path\" names no model", path);
    if (good) memcpy(base, name, strlen(name) + 1);
    cJSON_Delete(json);
    return good ? MC_OK : err->status;
}

void mc_hub_say_base(mc_error *err, const char *folder, bool given)
{
    if (given)
        mc_error_while(err, "looking for the base that --base gives for the adapter %s", folder);
    else
        mc_error_while(err,
                       "looking for the base of the adapter %s: \"base_model_name_or_path\" of its "
                       "%s names it, --base gives another",
                       folder, config_name);
}
