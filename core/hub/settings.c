#include "core/hub/settings_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "core/base/memory_internal.h"
#include "core/base/number_internal.h"
#include "core/checkpoint/hub_internal.h"

/* A variable's value; NULL if it is unset or empty. */
static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

const char *mc_hub_offline_by(void)
{
    static const char *const names[] = {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"};
    static const char *const on[] = {"1", "ON", "YES", "TRUE"};
    for (size_t n = 0; n < sizeof names / sizeof *names; n++)
        for (size_t i = 0; variable(names[n]) && i < sizeof on / sizeof *on; i++)
            if (strcasecmp(variable(names[n]), on[i]) == 0) return names[n];
    return NULL;
}

static mc_status read_endpoint(mc_error *err, mc_hub_settings *s)
{
    const char *value = variable("HF_ENDPOINT");
    if (!value) value = "https://huggingface.co";
    size_t length = strlen(value);
    while (length && value[length - 1] == '/') length--;
    bool good = strncmp(value, "http://", 7) == 0 || strncmp(value, "https://", 8) == 0;
    for (size_t i = 0; i < length; i++) good = good && value[i] > ' ' && value[i] < 127;
    if (!good || length >= sizeof s->endpoint)
        return mc_error_set(err, MC_ERR_ARGUMENT,
                            "HF_ENDPOINT is \"%.200s\": expected an address such as "
                            "https://huggingface.co",
                            value);
    memcpy(s->endpoint, value, length);
    s->endpoint[length] = '\0';
    return MC_OK;
}

/* Stores a token without surrounding white space. The token becomes part of a header line, so a
 * line break inside it is an error. */
static mc_status take_token(mc_error *err, mc_hub_settings *s, const char *from, const char *text)
{
    size_t length = strlen(text);
    while (length && strchr(" \t\r\n", text[length - 1])) length--;
    size_t skip = strspn(text, " \t\r\n");
    if (skip < length) {
        text += skip;
        length -= skip;
    }
    bool good = length < sizeof s->token;
    for (size_t i = 0; i < length; i++) good = good && text[i] > ' ' && text[i] < 127;
    if (!good)
        return mc_error_set(err, MC_ERR_ARGUMENT,
                            "%s: expected a token of Hugging Face's, such as hf_...", from);
    memcpy(s->token, text, length);
    s->token[length] = '\0';
    return MC_OK;
}

static mc_status read_token(mc_error *err, mc_hub_settings *s)
{
    static const char *const names[] = {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"};
    const char *path = variable("HF_TOKEN_PATH");
    mc_status status =
        path ? mc_hub_expand(err, s->token_path, path) : mc_hub_home(err, s->token_path, "token");
    if (status) return status;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (variable(names[i])) {
            s->token_variable = names[i];
            return take_token(err, s, names[i], variable(names[i]));
        }
    if (!mc_path_is_file(s->token_path)) return MC_OK;
    size_t size;
    char *text = mc_file_read(err, s->token_path, 4 * MC_HUB_TOKEN_MAX, &size);
    if (!text) return err->status;
    status = take_token(err, s, s->token_path, text);
    mc_free(text);
    return status;
}

static mc_status read_timeout(mc_error *err, mc_hub_settings *s)
{
    const char *value = variable("HF_HUB_DOWNLOAD_TIMEOUT");
    s->timeout = 10;
    if (!value || (mc_number_parse(value, &s->timeout) && s->timeout > 0 && s->timeout <= 1e6))
        return MC_OK;
    return mc_error_set(err, MC_ERR_ARGUMENT,
                        "HF_HUB_DOWNLOAD_TIMEOUT is \"%.40s\": expected seconds, above 0", value);
}

/* Python's clients read several variables for it. */
static mc_status read_authorities(mc_error *err, mc_hub_settings *s)
{
    static const char *const names[] = {"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (variable(names[i])) return mc_hub_expand(err, s->authorities, variable(names[i]));
    return MC_OK;
}

mc_status mc_hub_settings_read(mc_error *err, mc_hub_settings *s)
{
    *s = (mc_hub_settings){0};
    if (read_endpoint(err, s) || read_token(err, s) || read_timeout(err, s) ||
        read_authorities(err, s))
        return err->status;
    return MC_OK;
}
