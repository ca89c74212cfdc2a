#include "tools/options/settings.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tools/files/text.h"
#include "tools/options/weights_option.h"

settings *settings_new(mc_context *ctx)
{
    settings *list = calloc(1, sizeof *list);
    if (!list) mc_set_error(ctx, MC_ERR_NOMEM, "out of memory for a checkpoint's settings");
    return list;
}

/* ---- adding ---------------------------------------------------------------------------------- */

void settings_add(settings *list, const char *name, const char *value)
{
    char *to = list->text[list->count];
    snprintf(to, SETTINGS_TEXT, "%s", value);
    list->items[list->count++] = (mc_checkpoint_setting){name, to};
}

void settings_add_whole(settings *list, const char *name, int64_t value)
{
    char number[32];
    snprintf(number, sizeof number, "%" PRId64, value);
    settings_add(list, name, number);
}

void settings_add_u64(settings *list, const char *name, uint64_t value)
{
    char number[32];
    snprintf(number, sizeof number, "%" PRIu64, value);
    settings_add(list, name, number);
}

void settings_add_real(settings *list, const char *name, double value)
{
    char number[64];
    text t = text_into(number, sizeof number);
    text_add_number(&t, value);
    settings_add(list, name, number);
}

void settings_add_flag(settings *list, const char *name, bool value)
{
    settings_add(list, name, value ? "true" : "false");
}

void settings_add_given(settings *list, const char *name, const char *value)
{
    if (value && *value) settings_add(list, name, value);
}

void settings_add_model(settings *list, const mc_model *model)
{
    char config[SETTINGS_TEXT];
    text t = text_into(config, sizeof config);
    text_add(&t, "%s ", mc_model_family(model));
    mc_model_config_text(model, config + t.used, sizeof config - t.used);
    settings_add(list, "config", config);
}

/* Nothing of Adam, so that checkpoints of before there was a choice go on. */
static void add_optimizer(settings *list, const train_options *o)
{
    bool eight_bit = o->optimizer_state == TRAIN_STATE_8BIT, muon = o->optimizer == TRAIN_MUON;
    settings_add(list, "optimizer", muon ? train_optimizer_names[TRAIN_MUON] : "");
    settings_add(list, "optimizer-state", eight_bit ? train_state_names[TRAIN_STATE_8BIT] : "");
    if (!muon) return;
    settings_add_real(list, "lr-other", o->lr_other_given ? o->lr_other : o->lr);
    settings_add(list, "muon-scale", train_muon_scale_names[o->muon_scale]);
    settings_add(list, "muon-dtype", train_muon_dtype_names[o->muon_dtype]);
}

void settings_add_course(settings *list, const train_options *o)
{
    settings_add_real(list, "lr", o->lr);
    add_optimizer(list, o);
    settings_add(list, "scheduler", train_schedule_names[o->scheduler]);
    settings_add_whole(list, "warmup", o->warmup);
    settings_add_real(list, "gamma", o->gamma);
    settings_add_real(list, "weight-decay", o->weight_decay);
    settings_add_real(list, "clip", o->clip);
    settings_add(list, "dtype", train_dtype_names[o->dtype]);
    settings_add(list, "grad-dtype", train_grad_dtype_name(o));
    settings_add(list, "fp8", o->fp8 ? train_fp8_names[o->fp8] : "");
    settings_add(list, "fp8-scaling",
                 o->fp8_scaling ? train_fp8_scaling_names[o->fp8_scaling] : "");
    if (train_dtypes[o->dtype] == MC_F16) settings_add_real(list, "loss-scale", o->loss_scale);
}

void settings_add_machine(settings *list, const train_options *o)
{
    settings_add(list, "device", train_device_of(o->device).name);
    settings_add_flag(list, "offload", o->offload);
    settings_add_whole(list, "zero-level", o->ranks.zero_level);
}

void settings_end_fixed(settings *list) { list->fixed = list->rounding = list->count; }

void settings_end_rounding(settings *list) { list->rounding = list->count; }

/* ---- reading --------------------------------------------------------------------------------- */

const char *settings_text_of(const mc_checkpoint *then, const char *name)
{
    const char *value = mc_checkpoint_setting_of(then, name);
    return value ? value : "";
}

int64_t settings_whole_of(const mc_checkpoint *then, const char *name)
{
    int64_t value = 0;
    text_parse_whole(settings_text_of(then, name), &value);
    return value;
}

uint64_t settings_u64_of(const mc_checkpoint *then, const char *name)
{
    return strtoull(settings_text_of(then, name), NULL, 10);
}

int settings_choice_of(const mc_checkpoint *then, const char *name, const char *const *names,
                       int otherwise)
{
    for (int i = 0; names[i]; i++)
        if (strcmp(names[i], settings_text_of(then, name)) == 0) return i;
    return otherwise;
}

int settings_ranks_of(const mc_checkpoint *then)
{
    int64_t ranks = settings_whole_of(then, "ranks");
    return ranks > 1 ? (int)ranks : 1;
}

/* ---- fields of a struct ---------------------------------------------------------------------- */

void settings_add_fields(settings *list, const settings_field *fields, const void *from)
{
    for (const settings_field *f = fields; f->name; f++) {
        const void *at = (const char *)from + f->at;
        switch (f->type) {
        case SETTINGS_WHOLE: settings_add_whole(list, f->name, *(const int64_t *)at); break;
        case SETTINGS_U64: settings_add_u64(list, f->name, *(const uint64_t *)at); break;
        case SETTINGS_REAL: settings_add_real(list, f->name, *(const double *)at); break;
        case SETTINGS_FLAG: settings_add_flag(list, f->name, *(const bool *)at); break;
        case SETTINGS_STRING: settings_add(list, f->name, at); break;
        }
    }
}

void settings_read_fields(const mc_checkpoint *then, const settings_field *fields, void *to)
{
    for (const settings_field *f = fields; f->name; f++) {
        const char *value = mc_checkpoint_setting_of(then, f->name);
        void *at = (char *)to + f->at;
        if (!value) continue; /* an older checkpoint */
        switch (f->type) {
        case SETTINGS_WHOLE: *(int64_t *)at = settings_whole_of(then, f->name); break;
        case SETTINGS_U64: *(uint64_t *)at = settings_u64_of(then, f->name); break;
        case SETTINGS_REAL: *(double *)at = strtod(value, NULL); break; /* which reads nan, too */
        case SETTINGS_FLAG: *(bool *)at = strcmp(value, "true") == 0; break;
        case SETTINGS_STRING: snprintf(at, SETTINGS_STRING_SIZE, "%s", value); break;
        }
    }
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* Where the first part, from comma to comma, begins in which two values differ. */
static size_t first_difference(const char *a, const char *b)
{
    size_t begin = 0;
    for (size_t i = 0; a[i] && a[i] == b[i]; i++)
        if (a[i] == ',') begin = i + 1;
    return begin;
}

static const char *find_in_checkpoint(const void *then, const char *name)
{
    return settings_text_of(then, name);
}

static bool is_content(const char *name)
{
    size_t length = strlen(name), n = strlen(".content");
    return length > n && strcmp(name + length - n, ".content") == 0;
}

/* Whether what a setting names has the content that it had then, wherever it is. */
static bool same_content(const settings *list, settings_find_fn find, const void *begun,
                         const char *name)
{
    char key[64];
    snprintf(key, sizeof key, "%s.content", name);
    for (int i = 0; i < list->fixed; i++)
        if (strcmp(list->items[i].name, key) == 0 && *list->items[i].value)
            return strcmp(list->items[i].value, find(begun, key)) == 0;
    return false;
}

/* A model's config is its family and a JSON object, whose keys another version of the program may
 * have written in another order. */
static bool same_value(const char *now, const char *then)
{
    if (strcmp(now, then) == 0) return true;
    size_t family = strcspn(now, "{");
    if (now[family] != '{' || strncmp(now, then, family + 1) != 0) return false;
    cJSON *a = cJSON_Parse(now + family), *b = cJSON_Parse(then + family);
    bool same = a && b && cJSON_Compare(a, b, true);
    cJSON_Delete(a);
    cJSON_Delete(b);
    return same;
}

/* Checkpoints keep the names that these options had at first. */
static const char *option_of(const char *name)
{
    if (strcmp(name, "pretrained") == 0) return "model";
    return strcmp(name, "model") == 0 ? "family" : name;
}

/* Whether 0 means the default of a setting. */
static bool has_default(const char *name)
{
    return strcmp(name, "max-length") == 0 || strcmp(name, "max-target-length") == 0 ||
           strcmp(name, "val-fraction") == 0;
}

/* What stands for a setting that is not set. */
static const char *unset_text(const char *name)
{
    if (has_default(name)) return "the default";
    if (strcmp(name, "optimizer") == 0) return train_optimizer_names[TRAIN_ADAM];
    if (strcmp(name, "optimizer-state") == 0) return train_state_names[TRAIN_STATE_F32];
    if (strcmp(name, "lora-rank") == 0 || strcmp(name, "virtual-tokens") == 0) return "0";
    if (strcmp(name, "base-weights") == 0) return weights_names[MC_WEIGHTS_FLOAT];
    if (strcmp(name, "fp8-scaling") == 0) return train_fp8_scaling_names[0];
    return "none";
}

static bool is_unset(const char *name, const char *value)
{
    return !*value || (has_default(name) && strcmp(value, "0") == 0);
}

bool settings_same(const settings *list, settings_find_fn find, const void *begun,
                   const char *folder, char *message, size_t room)
{
    if (!find) find = find_in_checkpoint;
    for (int i = 0; i < list->fixed; i++) {
        const char *name = list->items[i].name, *now = list->items[i].value;
        const char *then = find(begun, name);
        if (same_value(now, then)) continue;
        if (is_content(name) || same_content(list, find, begun, name)) continue;
        size_t begin = first_difference(now, then);
        now = is_unset(name, now) ? unset_text(name) : now + begin;
        then = is_unset(name, then) ? unset_text(name) : then + begin;
        snprintf(message, room, "--resume: --%s is %.*s, but the run in %s was begun with %.*s",
                 option_of(name), (int)strcspn(now, ","), now, folder, (int)strcspn(then, ","),
                 then);
        return false;
    }
    return true;
}

/* Whether dropout draws other numbers after a change of the setting: they depend on the batch. */
static bool draws_anew(const settings *list, const char *name)
{
    bool drops = false;
    for (int i = 0; i < list->fixed; i++) {
        const mc_checkpoint_setting *s = &list->items[i];
        bool dropout = strcmp(s->name, "dropout") == 0 || strcmp(s->name, "lora-dropout") == 0;
        drops = drops || (dropout && strcmp(s->value, "0") != 0);
    }
    return drops &&
           (strcmp(name, "batch-size") == 0 || strcmp(name, "gradient-accumulation-steps") == 0);
}

void settings_tell_changes(const settings *list, const mc_checkpoint *checkpoint, mc_context *ctx,
                           run_log *log)
{
    for (int i = list->fixed; i < list->rounding; i++) {
        const char *name = list->items[i].name, *now = list->items[i].value;
        const char *then = settings_text_of(checkpoint, name);
        if (*then && strcmp(now, then) != 0)
            run_log_line(
                log, "the run was begun with %s %s, it goes on with %s: the same up to rounding%s",
                name, then, now, draws_anew(list, name) ? " and dropout's random numbers" : "");
    }
    int ranks = settings_ranks_of(checkpoint);
    if (ranks != mc_data_size(ctx))
        run_log_line(log, "the run was begun on %d rank%s, it goes on on %d", ranks,
                     ranks == 1 ? "" : "s", mc_data_size(ctx));
}

void settings_tell_steps(const mc_checkpoint *then, int64_t steps, const train_options *o,
                         run_log *log)
{
    int64_t begun = settings_whole_of(then, "steps");
    bool falls = o->scheduler == TRAIN_LINEAR || o->scheduler == TRAIN_COSINE;
    if (begun != steps)
        run_log_line(log, "the run was begun for %" PRId64 " steps, it goes on to %" PRId64 "%s",
                     begun, steps,
                     falls ? ": the learning rate takes another course from here on" : "");
}
