/* Rotary positions of llama.cpp's files. Linear scaling and YaRN are keys there. llama3's scaling
 * is a vector: what the angle of each pair is divided by. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "core/base/memory_internal.h"
#include "models/gguf/gguf_internal.h"

const char mc_gguf_rope_tensor[] = "rope_freqs.weight";

static const double full_turn = 6.283185307179586477; /* 2 pi */

/* llama.cpp reads neither from files of these architectures. */
static const float yarn_fast = 32, yarn_slow = 1;

/* YaRN's usual factor of cosine and sine. */
static double usual_magnitude(double factor) { return factor > 1 ? 0.1 * log(factor) + 1 : 1; }

/* ---- writing --------------------------------------------------------------------------------- */

typedef struct rope_writer {
    mc_gguf_writer *w;
    const char *architecture;
} rope_writer;

static const char *key_of(const rope_writer *p, const char *name, char out[MC_GGUF_NAME])
{
    snprintf(out, MC_GGUF_NAME, "%s.rope.%s", p->architecture, name);
    return out;
}

static void put_yarn(const rope_writer *p, const mc_rotary_scaling *s)
{
    char key[MC_GGUF_NAME];
    double usual = usual_magnitude((double)s->factor);
    double magnitude = s->attention_factor > 0 ? (double)s->attention_factor : usual;
    mc_gguf_put_u32(p->w, key_of(p, "scaling.original_context_length", key), (uint32_t)s->original);
    if ((float)magnitude != (float)usual)
        mc_gguf_put_f32(p->w, key_of(p, "scaling.attn_factor", key), (float)(magnitude / usual));
}

bool mc_gguf_put_rope(mc_gguf_writer *w, mc_model *m, const char *architecture, const mc_rope *rope,
                      bool takes_tensor)
{
    char key[MC_GGUF_NAME];
    const rope_writer p = {w, architecture};
    const mc_rotary_scaling *s = &rope->scaling;
    bool linear = s->type == MC_ROTARY_LINEAR, yarn = s->type == MC_ROTARY_YARN;
    if (s->type == MC_ROTARY_LLAMA3 && !takes_tensor)
        return mc_gguf_refuse_key(m, "rope_scaling", "default, linear or yarn");
    if (yarn && s->exact_range) return mc_gguf_refuse_key(m, "truncate", "true");
    if (yarn && (s->high != yarn_fast || s->low != yarn_slow))
        return mc_gguf_refuse_key(m, "beta_fast", "32, and of \"beta_slow\" 1");
    mc_gguf_put_f32(w, key_of(&p, "freq_base", key), rope->theta);
    if (!linear && !yarn) return true;
    mc_gguf_put_string(w, key_of(&p, "scaling.type", key), linear ? "linear" : "yarn");
    mc_gguf_put_f32(w, key_of(&p, "scaling.factor", key), s->factor);
    if (yarn) put_yarn(&p, s);
    return true;
}

/* How much of a pair's own angle is kept, as in core/ops/rotary.c. */
static double kept(const mc_rope *rope, int64_t head_dim, int64_t pair)
{
    const mc_rotary_scaling *s = &rope->scaling;
    double turns = pow((double)rope->theta, -2.0 * (double)pair / (double)head_dim) / full_turn;
    double keep =
        ((double)s->original * turns - (double)s->low) / ((double)s->high - (double)s->low);
    return fmin(fmax(keep, 0), 1);
}

void mc_gguf_rope_divisors(const mc_rope *rope, int64_t head_dim, float *out)
{
    for (int64_t pair = 0; pair < head_dim / 2; pair++) {
        double keep = kept(rope, head_dim, pair);
        out[pair] = (float)(1 / (keep + (1 - keep) / (double)rope->scaling.factor));
    }
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Pairs of llama3's scaling: fast ones keep their angle, slow ones are divided by the factor.
 * Between them the part that is kept is slope * turns - offset, by a pair's turns per position. */
typedef struct fit {
    double fast, slow; /* turns of the slowest fast pair and the fastest slow one; 0: none */
    double turns[2], keep[2];
    int between; /* pairs in turns and keep: the first and the last */
} fit;

static fit look_at_pairs(const float *divisors, const mc_rope *rope, int64_t head_dim)
{
    const double exact = 1e-6, factor = (double)rope->scaling.factor;
    fit f = {.fast = 0};
    for (int64_t pair = 0; pair < head_dim / 2; pair++) {
        double turns = pow((double)rope->theta, -2.0 * (double)pair / (double)head_dim) / full_turn;
        double keep = (1 / (double)divisors[pair] - 1 / factor) / (1 - 1 / factor);
        if (keep > 1 - exact) {
            f.fast = turns;
        } else if (keep < exact) {
            if (f.slow == 0) f.slow = turns;
        } else {
            int at = f.between ? 1 : 0;
            f.turns[at] = turns;
            f.keep[at] = keep;
            f.between = at + 1;
        }
    }
    return f;
}

/* Divisors determine the three numbers up to a common factor, so low is 1, as in all of Llama's
 * configs. One pair between leaves high open too, and 4 is Llama's. */
static void solve(const fit *f, mc_rotary_scaling *s)
{
    s->low = 1;
    if (f->between) {
        double slope = f->between > 1 ? (f->keep[0] - f->keep[1]) / (f->turns[0] - f->turns[1])
                                      : (f->keep[0] + 1.0 / 3) / f->turns[0];
        double offset = slope * f->turns[0] - f->keep[0];
        s->high = (float)(1 + 1 / offset);
        s->original = (float)(slope / offset);
    } else {
        double slow = f->slow > 0 ? f->slow : f->fast / 8;
        s->original = (float)(0.99 / slow);
        s->high = f->fast > 0 ? (float)(0.99 * (double)s->original * f->fast) : 4;
    }
}

static bool matches(const float *divisors, const mc_rope *rope, int64_t head_dim, float *room)
{
    const mc_rotary_scaling *s = &rope->scaling;
    if (!(s->low > 0 && s->high > s->low && s->original > 0)) return false;
    mc_gguf_rope_divisors(rope, head_dim, room);
    for (int64_t pair = 0; pair < head_dim / 2; pair++)
        if (!(fabsf(room[pair] / divisors[pair] - 1) < 1e-5f)) return false;
    return true;
}

/* Finds llama3's numbers, whole ones if they do as well. False: there are none. */
static bool find_llama3(const float *divisors, int64_t head_dim, mc_rope *rope, float *room)
{
    mc_rotary_scaling *s = &rope->scaling;
    *s = (mc_rotary_scaling){.type = MC_ROTARY_LLAMA3, .factor = 1};
    for (int64_t pair = 0; pair < head_dim / 2; pair++) {
        if (!(divisors[pair] >= 1 && isfinite(divisors[pair]))) return false;
        s->factor = fmaxf(s->factor, divisors[pair]);
    }
    if (s->factor == 1) {
        *s = (mc_rotary_scaling){.type = MC_ROTARY_DEFAULT};
        return true;
    }
    const fit f = look_at_pairs(divisors, rope, head_dim);
    solve(&f, s);
    mc_rope whole = *rope;
    whole.scaling.high = roundf(s->high);
    whole.scaling.original = roundf(s->original);
    if (matches(divisors, &whole, head_dim, room)) *rope = whole;
    return matches(divisors, rope, head_dim, room);
}

static bool read_vector(mc_context *ctx, const mc_gguf *g, int64_t head_dim, mc_rope *rope)
{
    const mc_gguf_tensor *t = mc_gguf_find_tensor(g, mc_gguf_rope_tensor);
    if (t->ndim != 1 || t->columns != head_dim / 2)
        return !mc_fail(ctx, MC_ERR_FORMAT,
                        "%s: tensor \"%s\": %lld elements, expected half of a head's %lld", g->path,
                        t->name, (long long)t->columns, (long long)head_dim);
    float *divisors = mc_malloc((size_t)head_dim * sizeof *divisors); /* and as many to compare */
    if (!divisors) return !mc_fail_nomem(ctx, "a vector of a GGUF file");
    mc_gguf_read(t, 0, 1, divisors);
    bool found = find_llama3(divisors, head_dim, rope, divisors + head_dim / 2);
    mc_free(divisors);
    return found || !mc_fail(ctx, MC_ERR_UNSUPPORTED,
                             "%s: tensor \"%s\": expected what llama3's scaling of rotary "
                             "positions divides by",
                             g->path, t->name);
}

static bool read_keys(mc_context *ctx, const mc_gguf *g, const char *architecture, mc_rope *rope)
{
    char name[MC_GGUF_NAME];
    size_t length = 0;
    snprintf(name, sizeof name, "%s.rope.scaling.type", architecture);
    const mc_gguf_value *v = mc_gguf_find(g, name);
    const uint8_t *at = v && v->kind == MC_GGUF_STRING && !v->is_array ? v->data : NULL;
    const char *text = at ? mc_gguf_text(&at, &length) : "linear";
    mc_rotary_scaling *s = &rope->scaling;
    if (!at) length = strlen(text);
    double factor = mc_gguf_number_of(g, architecture, "rope.scaling.factor", 0);
    bool none = length == 4 && memcmp(text, "none", 4) == 0;
    if (factor == 0 || none) return true;
    s->factor = (float)factor;
    if (length == 6 && memcmp(text, "linear", 6) == 0) {
        s->type = MC_ROTARY_LINEAR;
    } else if (length == 4 && memcmp(text, "yarn", 4) == 0) {
        double all = mc_gguf_number_of(g, architecture, "context_length", 0);
        double more = mc_gguf_number_of(g, architecture, "rope.scaling.attn_factor", 1);
        s->type = MC_ROTARY_YARN;
        s->high = yarn_fast;
        s->low = yarn_slow;
        s->original =
            (float)mc_gguf_number_of(g, architecture, "rope.scaling.original_context_length", all);
        s->attention_factor = (float)mc_gguf_undivided((float)more, usual_magnitude(factor));
    } else {
        return !mc_fail(ctx, MC_ERR_UNSUPPORTED, "%s: key \"%s\": expected none, linear or yarn",
                        g->path, name);
    }
    return true;
}

bool mc_gguf_read_rope(mc_context *ctx, const mc_gguf *g, const char *architecture,
                       int64_t head_dim, cJSON *config)
{
    mc_rope rope = {.theta = (float)mc_gguf_number_of(g, architecture, "rope.freq_base", 10000)};
    if (!(rope.theta > 0 && isfinite(rope.theta)))
        return !mc_fail(ctx, MC_ERR_FORMAT, "%s: key \"%s.rope.freq_base\": expected more than 0",
                        g->path, architecture);
    bool vector = mc_gguf_find_tensor(g, mc_gguf_rope_tensor) != NULL;
    if (!(vector ? read_vector(ctx, g, head_dim, &rope) : read_keys(ctx, g, architecture, &rope)))
        return false;
    return mc_config_add_float(config, "rope_theta", rope.theta) &&
           mc_config_add_rope(config, "rope_scaling", &rope);
}
