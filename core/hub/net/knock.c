/* Checks whether the hub answers. */
#include <stdio.h>
#include "core/hub/net/client_internal.h"

static bool take_nothing(void *user, const char *data, size_t size)
{
    (void)user, (void)data, (void)size;
    return true;
}

/* One try. Any answer passes, except a refused token. */
static mc_status knock(mc_hub_client *c)
{
    char url[MC_HUB_URL_MAX];
    mc_hub_transfer t = {.easy = c->easy, .take = take_nothing};
    snprintf(url, sizeof url, "%s/api/models?limit=1", c->settings.endpoint);
    if (!mc_hub_transfer_prepare(c, &t, url))
        return mc_error_set(c->err, MC_ERR_NOMEM, "out of memory for a request");
    c->lib.curl_easy_setopt(t.easy, CURLOPT_NOBODY, 1L);
    CURLcode result = c->lib.curl_easy_perform(t.easy);
    long status = t.reply.status;
    if (result != CURLE_OK || !status)
        mc_error_set(c->err, MC_ERR_IO, "%s: %s", c->settings.endpoint,
                     *t.failure ? t.failure : c->lib.curl_easy_strerror(result));
    else if (status == 401 || status == 403)
        mc_error_set(c->err, MC_ERR_NOT_FOUND, "%s: HTTP %ld: %s", c->settings.endpoint, status,
                     *c->settings.token ? "the token is not accepted" : "a token is required");
    else if (status >= 500)
        mc_error_set(c->err, MC_ERR_IO, "%s: HTTP %ld", c->settings.endpoint, status);
    mc_hub_transfer_release(&t);
    return c->err->status;
}

mc_status mc_hub_knock(mc_hub_watch *watch)
{
    mc_hub_client c;
    if (mc_hub_client_init(&c, watch, "the hub") == MC_OK) knock(&c);
    mc_hub_client_release(&c);
    return watch->ctx->error.status;
}
