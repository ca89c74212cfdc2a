/* The hub's settings without a request, and the check that it answers. */
#include <stdio.h>
#include "core/checkpoint/hub_internal.h"
#include "core/hub/fetch_internal.h"
#include "core/hub/hub.h"
#include "core/hub/settings_internal.h"

#ifdef MC_HAVE_CURL
static const bool can_download = true;
#else
static const bool can_download = false;
#endif

void mc_hub_look(mc_hub_state *state)
{
    mc_error err = {0};
    mc_hub_settings settings;
    char cache[MC_PATH_MAX] = "";
    if (!state) return;
    *state = (mc_hub_state){.offline_by = mc_hub_offline_by(), .can_download = can_download};
    mc_hub_settings_read(&err, &settings);
    if (mc_error_is_set(&err)) snprintf(state->problem, sizeof state->problem, "%s", err.message);
    mc_error_clear(&err);
    mc_hub_cache_root(&err, cache); /* "" without a home */
    mc_error_clear(&err);
    snprintf(state->endpoint, sizeof state->endpoint, "%s", settings.endpoint);
    snprintf(state->cache, sizeof state->cache, "%s", cache);
    state->has_token = *settings.token != '\0';
    if (state->has_token)
        snprintf(state->token_from, sizeof state->token_from, "%s",
                 settings.token_variable ? settings.token_variable : settings.token_path);
}

mc_status mc_hub_reach(mc_context *ctx)
{
    if (mc_failed(ctx)) return mc_error_status(ctx);
    const char *variable = mc_hub_offline_by();
    if (variable)
        return mc_fail(ctx, MC_ERR_UNSUPPORTED, "%s is set, so nothing was asked of the hub",
                       variable);
#ifdef MC_HAVE_CURL
    mc_hub_watch watch = {.ctx = ctx};
    return mc_hub_knock(&watch);
#else
    return mc_fail(ctx, MC_ERR_UNSUPPORTED, "this build has no libcurl: it asks no hub");
#endif
}
