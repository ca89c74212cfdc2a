/* The library's side of check_config_defaults.py, which compares with `transformers`:
 *
 *     check_config_defaults print
 *         prints for each model type that is read in Hugging Face's form, as a line of JSON, the
 *         type and what a config.json that names nothing else is read as.
 *     check_config_defaults read FILE
 *         reads a config.json and prints the warnings.
 *
 * Exit 0, or 1 with an error. */
#include <stdio.h>
#include <string.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "models/family_internal.h"

static void print_line(void *user, mc_log_level level, const char *line)
{
    (void)user, (void)level;
    puts(line);
}

static const mc_family *family_of(const char *type)
{
    for (int i = 0; mc_families[i]; i++)
        for (const char *const *known = mc_families[i]->model_type; *known; known++)
            if (strcmp(*known, type) == 0) return mc_families[i];
    return NULL;
}

static void print_defaults(mc_context *ctx, const mc_family *family, const char *type)
{
    cJSON *json = cJSON_CreateObject(), *out = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "model_type", type);
    cJSON_AddStringToObject(out, "model_type", type);
    mc_config_reader r = {.ctx = ctx, .json = json, .path = type, .form = MC_FORM_HF};
    void *config = mc_calloc(1, family->config_size);
    if (config && mc_config_read(family, &r, config) &&
        mc_config_write(family, MC_FORM_HF, config, out)) {
        char *text = cJSON_PrintUnformatted(out);
        puts(text ? text : "");
        cJSON_free(text);
    }
    mc_free(config);
    cJSON_Delete(json);
    cJSON_Delete(out);
}

static void read_file(mc_context *ctx, const char *path)
{
    cJSON *json = mc_json_read_object(&ctx->error, path, 1 << 24);
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(json, "model_type");
    const mc_family *family = cJSON_IsString(type) ? family_of(type->valuestring) : NULL;
    void *config = family ? mc_calloc(1, family->config_size) : NULL;
    if (config)
        mc_config_read_file(ctx, family, path, config);
    else
        mc_set_error(ctx, MC_ERR_UNSUPPORTED, "a model type that is not read");
    mc_free(config);
    cJSON_Delete(json);
}

int main(int argc, char **argv)
{
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.log = print_line});
    if (argc == 2 && strcmp(argv[1], "print") == 0) {
        for (int i = 0; mc_families[i]; i++)
            for (const char *const *type = mc_families[i]->model_type; *type; type++)
                if (!mc_families[i]->own_form) print_defaults(ctx, mc_families[i], *type);
    } else if (argc == 3 && strcmp(argv[1], "read") == 0) {
        read_file(ctx, argv[2]);
    } else {
        mc_set_error(ctx, MC_ERR_ARGUMENT, "usage: check_config_defaults print | read FILE");
    }
    int bad = mc_failed(ctx) ? mc_print_error(ctx, stderr) : 0;
    mc_context_free(ctx);
    return bad;
}
