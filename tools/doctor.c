#include "tools/doctor.h"

#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include "core/base/context.h"
#include "tools/text.h"

/* ---- folders --------------------------------------------------------------------------------- */

static uint64_t bytes_found; /* nftw has no argument for it */

static int add_file(const char *path, const struct stat *info, int type, struct FTW *at)
{
    (void)path, (void)at;
    if (type == FTW_F) bytes_found += (uint64_t)info->st_size;
    return 0;
}

static int models_found;

static int count_model(const char *path, const struct stat *info, int type, struct FTW *at)
{
    (void)info;
    if (at->level == 1 && type == FTW_D && strncmp(path + at->base, "models--", 8) == 0)
        models_found++;
    return add_file(path, info, type, at);
}

/* Cuts a path, which has room for ".", to the nearest folder that exists. */
static void cut_to_existing(char *path)
{
    while (*path && access(path, F_OK) != 0) {
        char *slash = strrchr(path, '/');
        if (slash) {
            slash[slash == path] = '\0';
        } else {
            memcpy(path, ".", 2);
            return;
        }
    }
}

void doctor_look_into(doctor_folder *folder, const char *path)
{
    char existing[sizeof folder->path];
    struct statvfs system;
    *folder = (doctor_folder){.models = 0};
    snprintf(folder->path, sizeof folder->path, "%s", path);
    if (!*path) return;
    folder->exists = access(path, F_OK) == 0;
    memcpy(existing, folder->path, sizeof existing);
    cut_to_existing(existing);
    folder->writable = access(existing, W_OK | X_OK) == 0;
    if (statvfs(existing, &system) == 0)
        folder->left = (uint64_t)system.f_bavail * (uint64_t)system.f_frsize;
    bytes_found = 0;
    models_found = 0;
    if (folder->exists) nftw(path, count_model, 16, FTW_PHYS);
    folder->bytes = bytes_found;
    folder->models = models_found;
}

/* ---- for people ------------------------------------------------------------------------------ */

enum { LABEL = 14 };

/* "1.2 GB" */
static const char *size_text(char out[32], uint64_t bytes)
{
    static const char *const units[] = {"bytes", "KB", "MB", "GB", "TB"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 1000 && unit < 4) value /= 1000, unit++;
    snprintf(out, 32, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return out;
}

static void print_device(const doctor_report *r)
{
    const mc_machine *m = &r->machine;
    char a[32], b[32];
    printf("\ndevices\n  %-*s%s\n", LABEL, "processor", *m->processor ? m->processor : "unknown");
    if (*m->problem)
        printf("  %-*s%s\n", LABEL, "kernels", m->problem);
    else
        printf("  %-*s%s, products by %s\n", LABEL, "kernels", m->kernels, m->products);
    printf("  %-*s%d, %d threads\n", LABEL, "cores", m->cores, m->threads);
    printf("  %-*s%s, of which %s are free\n", LABEL, "memory", size_text(a, m->memory),
           size_text(b, m->memory_left));
    for (int i = 0; i < r->gpu_count && i < DOCTOR_GPUS; i++)
        printf("  %-*s%s, %s, compute capability %d.%d\n", LABEL, i ? "" : "GPUs", r->gpus[i].name,
               size_text(a, r->gpus[i].memory), r->gpus[i].major, r->gpus[i].minor);
    if (!r->gpu_count) printf("  %-*snone\n", LABEL, "GPUs");
    if (*m->driver) printf("  %-*s%s\n", LABEL, "driver", m->driver);
}

static void print_parts(const doctor_report *r)
{
    printf("\nlibraries\n");
    for (int i = 0; i < r->part_count; i++) {
        const mc_part *p = &r->parts[i];
        const char *state = !p->built ? "not built in" : p->found ? "works" : "not found";
        printf("  %-*s%-14s%s", LABEL, p->name, state, p->use);
        if (*p->version) printf(" (%s)", p->version);
        if (!p->built && p->found) printf(" (the library is here)");
        printf("\n");
    }
}

static void print_folder(const char *label, const doctor_folder *f, bool models)
{
    char a[32], b[32];
    printf("  %-*s", LABEL, label);
    if (!*f->path) {
        printf("none\n");
        return;
    }
    printf("%s: ", f->path);
    if (!f->exists)
        printf("not there yet");
    else
        printf("%s", size_text(a, f->bytes));
    if (models && f->exists) printf(" in %d %s", f->models, f->models == 1 ? "model" : "models");
    printf("%s, %s free\n", f->writable ? "" : ", cannot be written", size_text(b, f->left));
}

static void print_hub(const doctor_report *r)
{
    const mc_hub_state *h = &r->hub;
    printf("\nhub\n");
    if (*h->problem) printf("  %-*s%s\n", LABEL, "problem", h->problem);
    printf("  %-*s%s\n", LABEL, "address", h->endpoint);
    printf("  %-*s", LABEL, "downloads");
    if (!h->can_download)
        printf("not built in\n");
    else if (h->offline_by)
        printf("off: %s is set\n", h->offline_by);
    else
        printf("on\n");
    if (h->has_token)
        printf("  %-*syes, of %s\n", LABEL, "token", h->token_from);
    else
        printf("  %-*sno (needed for gated and private models only)\n", LABEL, "token");
    if (r->asked)
        printf("  %-*s%s\n", LABEL, "answers", r->reached ? "yes" : r->answer);
    else
        printf("  %-*snot asked (--ask-hub does)\n", LABEL, "answers");
}

/* The packages of all that is missing, each once. */
static void add_packages(text *t, const doctor_report *r)
{
    for (int i = 0; i < r->missing_count; i++) {
        char words[256], *rest = NULL;
        snprintf(words, sizeof words, "%s", r->missing[i].packages);
        for (char *word = strtok_r(words, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
            if (!strstr(t->data, word)) text_add(t, "%s%s", t->used ? " " : "", word);
    }
}

/* The commands that bring what is missing, a line each; "" where nothing is. */
static void add_commands(text *t, const doctor_report *r)
{
    char packages[1024];
    text p = text_into(packages, sizeof packages);
    add_packages(&p, r);
    if (!p.used) return;
    text_add(t, "%sapt-get install %s", geteuid() == 0 ? "" : "sudo ", packages);
    if (r->rebuild) text_add(t, "\nscripts/install.sh");
}

static void print_missing(const doctor_report *r)
{
    char commands[1200], *rest = NULL;
    bool gpu = false;
    text t = text_into(commands, sizeof commands);
    add_commands(&t, r);
    if (!r->missing_count) {
        printf("\nnothing is missing\n");
        return;
    }
    printf("\nmissing\n");
    for (int i = 0; i < r->missing_count; i++) {
        const mc_part *part = r->missing[i].part;
        printf("  %-*s%s\n", LABEL, part->name, part->use);
        gpu = gpu || part->needs_gpu;
    }
    if (gpu) printf("\nCUDA (12.5 or later), NCCL and cuDNN are in NVIDIA's package sources.\n");
    printf("\nOn Debian and Ubuntu%s:\n\n",
           r->rebuild ? ", the second in the folder of the sources" : "");
    for (char *line = strtok_r(commands, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        printf("    %s\n", line);
}

void doctor_print(const doctor_report *r)
{
    printf("modelcenter %s\n  %-*s%s of %s\n", mc_version(), LABEL, "commit", mc_build_commit(),
           mc_build_date());
    print_device(r);
    print_parts(r);
    printf("\nfolders\n");
    print_folder("models", &r->models, true);
    print_folder("tuning", &r->tuning, false);
    print_hub(r);
    print_missing(r);
    printf("\nresult usable=%s missing=%d\n", r->usable ? "yes" : "no", r->missing_count);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void print_string(const char *before, const char *name, const char *value)
{
    char out[6 * 4096 + 8];
    text t = text_into(out, sizeof out);
    text_add_json_string(&t, value);
    printf("%s\"%s\": %s", before, name, out);
}

static const char *json_bool(bool value) { return value ? "true" : "false"; }

static void json_machine(const doctor_report *r)
{
    const mc_machine *m = &r->machine;
    print_string(", \"cpu\": {", "name", m->processor);
    print_string(", ", "kernels", m->kernels);
    print_string(", ", "products", m->products);
    print_string(", ", "problem", m->problem);
    printf(", \"cores\": %d, \"threads\": %d, \"memory\": %llu, \"memory_free\": %llu}", m->cores,
           m->threads, (unsigned long long)m->memory, (unsigned long long)m->memory_left);
    printf(", \"gpus\": [");
    for (int i = 0; i < r->gpu_count && i < DOCTOR_GPUS; i++) {
        print_string(i ? ", {" : "{", "name", r->gpus[i].name);
        printf(", \"memory\": %llu, \"compute_capability\": \"%d.%d\"}",
               (unsigned long long)r->gpus[i].memory, r->gpus[i].major, r->gpus[i].minor);
    }
    printf("]");
    print_string(", ", "driver", m->driver);
}

static void json_parts(const doctor_report *r)
{
    printf(", \"libraries\": [");
    for (int i = 0; i < r->part_count; i++) {
        const mc_part *p = &r->parts[i];
        print_string(i ? ", {" : "{", "name", p->name);
        print_string(", ", "use", p->use);
        printf(", \"built\": %s, \"found\": %s", json_bool(p->built), json_bool(p->found));
        print_string(", ", "version", p->version);
        print_string(", ", "path", p->path);
        printf("}");
    }
    printf("]");
}

static void json_folder(const char *name, const doctor_folder *f)
{
    printf(", \"%s\": {", name);
    print_string("", "path", f->path);
    printf(", \"exists\": %s, \"writable\": %s, \"bytes\": %llu, \"free\": %llu, \"models\": %d}",
           json_bool(f->exists), json_bool(f->writable), (unsigned long long)f->bytes,
           (unsigned long long)f->left, f->models);
}

static void json_hub(const doctor_report *r)
{
    const mc_hub_state *h = &r->hub;
    print_string(", \"hub\": {", "endpoint", h->endpoint);
    print_string(", ", "problem", h->problem);
    printf(", \"can_download\": %s, \"token\": %s", json_bool(h->can_download),
           json_bool(h->has_token));
    print_string(", ", "token_from", h->token_from);
    print_string(", ", "offline_by", h->offline_by ? h->offline_by : "");
    printf(", \"reached\": %s", r->asked ? json_bool(r->reached) : "null");
    print_string(", ", "answer", r->answer);
    printf("}");
}

void doctor_print_json(const doctor_report *r)
{
    char commands[1200];
    text t = text_into(commands, sizeof commands);
    add_commands(&t, r);
    print_string("{", "version", mc_version());
    print_string(", ", "commit", mc_build_commit());
    print_string(", ", "date", mc_build_date());
    json_machine(r);
    json_parts(r);
    json_folder("model_cache", &r->models);
    json_folder("tuning_cache", &r->tuning);
    json_hub(r);
    printf(", \"missing\": [");
    for (int i = 0; i < r->missing_count; i++) {
        print_string(i ? ", {" : "{", "name", r->missing[i].part->name);
        print_string(", ", "packages", r->missing[i].packages);
        printf("}");
    }
    print_string("], ", "commands", commands);
    printf(", \"usable\": %s}\n", json_bool(r->usable));
}
