/* The hub's settings from the environment: see hub.h. */
#ifndef MC_HUB_SETTINGS_INTERNAL_H
#define MC_HUB_SETTINGS_INTERNAL_H

#include "core/base/error_internal.h"
#include "core/base/file_internal.h"

enum { MC_HUB_URL_MAX = 8192, MC_HUB_TOKEN_MAX = 1024 };

typedef struct mc_hub_settings {
    char endpoint[512];            /* without a final '/' */
    char token[MC_HUB_TOKEN_MAX];  /* "": none */
    char token_path[MC_PATH_MAX];  /* the file that it was, or would be, read from */
    const char *token_variable;    /* the variable that it was read from instead; NULL: none */
    double timeout;                /* seconds without a byte */
    char authorities[MC_PATH_MAX]; /* a file of certificates to trust; "": the system's */
} mc_hub_settings;

/* Errors: MC_ERR_ARGUMENT for an invalid endpoint, token or timeout (the message does not show
 * tokens); an unreadable token file. */
mc_status mc_hub_settings_read(mc_error *err, mc_hub_settings *settings);

/* The variable that forbids requests, NULL: none does. */
const char *mc_hub_offline_by(void);

#endif
