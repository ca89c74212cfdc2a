#include "tools/doctor.h"

#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include "tools/files/text.h"

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

/* ---- what is missing ------------------------------------------------------------------------- */

static bool is_of_use(const doctor_report *r, const mc_part *part)
{
    if (!part->needs_gpu) return true;
    return r->gpu_count > (part->several_gpus ? 1 : 0);
}

/* The packages that bring a part; "" where it is there, or would be of no use. */
static const char *packages_of(const doctor_report *r, const mc_part *part)
{
    if (!is_of_use(r, part) || (part->built && part->found)) return "";
    return part->built ? part->to_run : part->to_build;
}

void doctor_find_missing(doctor_report *r)
{
    r->missing_count = 0;
    r->rebuild = false;
    for (int i = 0; i < r->part_count; i++) {
        const mc_part *part = &r->parts[i];
        const char *packages = packages_of(r, part);
        if (!*packages) continue;
        r->missing[r->missing_count++] = (doctor_missing){part, packages};
        r->rebuild = r->rebuild || !part->built;
    }
}

/* ---- for people ------------------------------------------------------------------------------ */

enum { LABEL = 14 };

/* "1.2 GB" */
static const char *size_text(char words[32], uint64_t bytes)
{
    static const char *const units[] = {"bytes", "KB", "MB", "GB", "TB"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 1000 && unit < 4) value /= 1000, unit++;
    snprintf(words, 32, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return words;
}

static void print_device(FILE *out, const doctor_report *r)
{
    const mc_machine *m = &r->machine;
    char a[32], b[32];
    fprintf(out, "\ndevices\n  %-*s%s\n", LABEL, "processor",
            *m->processor ? m->processor : "unknown");
    if (*m->problem)
        fprintf(out, "  %-*s%s\n", LABEL, "kernels", m->problem);
    else
        fprintf(out, "  %-*s%s, products by %s\n", LABEL, "kernels", m->kernels, m->products);
    fprintf(out, "  %-*s%d, %d threads\n", LABEL, "cores", m->cores, m->threads);
    fprintf(out, "  %-*s%s, of which %s are free\n", LABEL, "memory", size_text(a, m->memory),
            size_text(b, m->memory_left));
    for (int i = 0; i < r->gpu_count && i < DOCTOR_GPUS; i++)
        fprintf(out, "  %-*s%s, %s, compute capability %d.%d\n", LABEL, i ? "" : "GPUs",
                r->gpus[i].name, size_text(a, r->gpus[i].memory), r->gpus[i].major,
                r->gpus[i].minor);
    if (!r->gpu_count) fprintf(out, "  %-*snone\n", LABEL, "GPUs");
    if (*m->driver) fprintf(out, "  %-*s%s\n", LABEL, "driver", m->driver);
}

static void print_parts(FILE *out, const doctor_report *r)
{
    fprintf(out, "\nlibraries\n");
    for (int i = 0; i < r->part_count; i++) {
        const mc_part *p = &r->parts[i];
        const char *state = !p->built ? "not built in" : p->found ? "works" : "not found";
        fprintf(out, "  %-*s%-14s%s", LABEL, p->name, state, p->use);
        if (*p->version) fprintf(out, " (%s)", p->version);
        if (!p->built && p->found) fprintf(out, " (the library is here)");
        fprintf(out, "\n");
    }
}

static void print_folder(FILE *out, const char *label, const doctor_folder *f, bool models)
{
    char a[32], b[32];
    fprintf(out, "  %-*s", LABEL, label);
    if (!*f->path) {
        fprintf(out, "none\n");
        return;
    }
    fprintf(out, "%s: ", f->path);
    if (!f->exists)
        fprintf(out, "not there yet");
    else
        fprintf(out, "%s", size_text(a, f->bytes));
    if (models && f->exists)
        fprintf(out, " in %d %s", f->models, f->models == 1 ? "model" : "models");
    fprintf(out, "%s, %s free\n", f->writable ? "" : ", cannot be written", size_text(b, f->left));
}

static void print_hub(FILE *out, const doctor_report *r)
{
    const mc_hub_state *h = &r->hub;
    fprintf(out, "\nhub\n");
    if (*h->problem) fprintf(out, "  %-*s%s\n", LABEL, "problem", h->problem);
    fprintf(out, "  %-*s%s\n", LABEL, "address", h->endpoint);
    fprintf(out, "  %-*s", LABEL, "downloads");
    if (!h->can_download)
        fprintf(out, "not built in\n");
    else if (h->offline_by)
        fprintf(out, "off: %s is set\n", h->offline_by);
    else
        fprintf(out, "on\n");
    if (h->has_token)
        fprintf(out, "  %-*syes, of %s\n", LABEL, "token", h->token_from);
    else
        fprintf(out, "  %-*sno (needed for gated and private models only)\n", LABEL, "token");
    if (r->asked)
        fprintf(out, "  %-*s%s\n", LABEL, "answers", r->reached ? "yes" : r->answer);
    else
        fprintf(out, "  %-*snot asked (--ask-hub does)\n", LABEL, "answers");
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

static void print_missing(FILE *out, const doctor_report *r)
{
    char commands[1200], *rest = NULL;
    bool gpu = false;
    text t = text_into(commands, sizeof commands);
    add_commands(&t, r);
    if (!r->missing_count) {
        fprintf(out, "\nnothing is missing\n");
        return;
    }
    fprintf(out, "\nmissing\n");
    for (int i = 0; i < r->missing_count; i++) {
        const mc_part *part = r->missing[i].part;
        fprintf(out, "  %-*s%s\n", LABEL, part->name, part->use);
        gpu = gpu || part->needs_gpu;
    }
    if (gpu)
        fprintf(out, "\nCUDA (12.5 or later), NCCL and cuDNN are in NVIDIA's package sources.\n");
    fprintf(out, "\nOn Debian and Ubuntu%s:\n\n",
            r->rebuild ? ", the second in the folder of the sources" : "");
    for (char *line = strtok_r(commands, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        fprintf(out, "    %s\n", line);
}

void doctor_print(FILE *out, const doctor_report *r)
{
    fprintf(out, "modelcenter %s\n  %-*s%s of %s\n", r->version, LABEL, "commit", r->commit,
            r->date);
    print_device(out, r);
    print_parts(out, r);
    fprintf(out, "\nfolders\n");
    print_folder(out, "models", &r->models, true);
    print_folder(out, "tuning", &r->tuning, false);
    print_hub(out, r);
    print_missing(out, r);
    fprintf(out, "\nresult usable=%s missing=%d\n", r->usable ? "yes" : "no", r->missing_count);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void print_string(FILE *out, const char *before, const char *name, const char *value)
{
    char quoted[6 * 4096 + 8];
    text t = text_into(quoted, sizeof quoted);
    text_add_json_string(&t, value);
    fprintf(out, "%s\"%s\": %s", before, name, quoted);
}

static const char *json_bool(bool value) { return value ? "true" : "false"; }

static void json_machine(FILE *out, const doctor_report *r)
{
    const mc_machine *m = &r->machine;
    print_string(out, ", \"cpu\": {", "name", m->processor);
    print_string(out, ", ", "kernels", m->kernels);
    print_string(out, ", ", "products", m->products);
    print_string(out, ", ", "problem", m->problem);
    fprintf(out, ", \"cores\": %d, \"threads\": %d, \"memory\": %llu, \"memory_free\": %llu}",
            m->cores, m->threads, (unsigned long long)m->memory,
            (unsigned long long)m->memory_left);
    fprintf(out, ", \"gpus\": [");
    for (int i = 0; i < r->gpu_count && i < DOCTOR_GPUS; i++) {
        print_string(out, i ? ", {" : "{", "name", r->gpus[i].name);
        fprintf(out, ", \"memory\": %llu, \"compute_capability\": \"%d.%d\"}",
                (unsigned long long)r->gpus[i].memory, r->gpus[i].major, r->gpus[i].minor);
    }
    fprintf(out, "]");
    print_string(out, ", ", "driver", m->driver);
}

static void json_parts(FILE *out, const doctor_report *r)
{
    fprintf(out, ", \"libraries\": [");
    for (int i = 0; i < r->part_count; i++) {
        const mc_part *p = &r->parts[i];
        print_string(out, i ? ", {" : "{", "name", p->name);
        print_string(out, ", ", "use", p->use);
        fprintf(out, ", \"built\": %s, \"found\": %s", json_bool(p->built), json_bool(p->found));
        print_string(out, ", ", "version", p->version);
        print_string(out, ", ", "path", p->path);
        fprintf(out, "}");
    }
    fprintf(out, "]");
}

static void json_folder(FILE *out, const char *name, const doctor_folder *f)
{
    fprintf(out, ", \"%s\": {", name);
    print_string(out, "", "path", f->path);
    fprintf(out,
            ", \"exists\": %s, \"writable\": %s, \"bytes\": %llu, \"free\": %llu, \"models\": %d}",
            json_bool(f->exists), json_bool(f->writable), (unsigned long long)f->bytes,
            (unsigned long long)f->left, f->models);
}

static void json_hub(FILE *out, const doctor_report *r)
{
    const mc_hub_state *h = &r->hub;
    print_string(out, ", \"hub\": {", "endpoint", h->endpoint);
    print_string(out, ", ", "problem", h->problem);
    fprintf(out, ", \"can_download\": %s, \"token\": %s", json_bool(h->can_download),
            json_bool(h->has_token));
    print_string(out, ", ", "token_from", h->token_from);
    print_string(out, ", ", "offline_by", h->offline_by ? h->offline_by : "");
    fprintf(out, ", \"reached\": %s", r->asked ? json_bool(r->reached) : "null");
    print_string(out, ", ", "answer", r->answer);
    fprintf(out, "}");
}

void doctor_print_json(FILE *out, const doctor_report *r)
{
    char commands[1200];
    text t = text_into(commands, sizeof commands);
    add_commands(&t, r);
    print_string(out, "{", "version", r->version);
    print_string(out, ", ", "commit", r->commit);
    print_string(out, ", ", "date", r->date);
    json_machine(out, r);
    json_parts(out, r);
    json_folder(out, "model_cache", &r->models);
    json_folder(out, "tuning_cache", &r->tuning);
    json_hub(out, r);
    fprintf(out, ", \"missing\": [");
    for (int i = 0; i < r->missing_count; i++) {
        print_string(out, i ? ", {" : "{", "name", r->missing[i].part->name);
        print_string(out, ", ", "packages", r->missing[i].packages);
        fprintf(out, "}");
    }
    print_string(out, "], ", "commands", commands);
    fprintf(out, ", \"usable\": %s}\n", json_bool(r->usable));
}
