/* What families whose heads make up dim check of a config. */
#include "models/family_internal.h"

/* The key that says how many heads there are, as the file has it. */
static const char *heads_key(const mc_config_reader *r)
{
    static const char *const keys[] = {"n_head", "n_heads", "num_heads"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (cJSON_GetObjectItemCaseSensitive(r->json, keys[i])) return keys[i];
    return r->form == MC_FORM_HF ? "num_attention_heads" : "num_heads";
}

/* Whether sizes are positive; `fits`: heads make up dim. */
static bool check_positive(const mc_config_reader *r, const mc_model_shape *s, int64_t head_dim,
                           float eps, bool fits)
{
    if (fits && s->dim > 0 && s->heads > 0 && s->vocab_size > 0 && s->dim_ff > 0 &&
        s->layers >= 0 && s->layers <= MC_MOST_LAYERS && s->positions >= 0 && eps > 0)
        return true;
    return !mc_fail(r->ctx, MC_ERR_FORMAT,
                    "%s: dim %lld, %lld heads of %lld, dim_ff %lld, %lld layers, vocabulary %lld, "
                    "%lld positions, eps %g: expected positive sizes, heads that make up dim, at "
                    "most %d layers",
                    r->path, (long long)s->dim, (long long)s->heads, (long long)head_dim,
                    (long long)s->dim_ff, (long long)s->layers, (long long)s->vocab_size,
                    (long long)s->positions, (double)eps, MC_MOST_LAYERS);
}

bool mc_config_check_sizes(const mc_config_reader *r, const mc_model_shape *s, int64_t head_dim,
                           float eps)
{
    if (s->dim > 0 && s->heads > 0 && s->dim % s->heads)
        return !mc_fail(r->ctx, MC_ERR_FORMAT,
                        "%s: key \"%s\": dim %lld, %lld heads: expected heads that make up dim, a "
                        "divisor of it",
                        r->path, heads_key(r), (long long)s->dim, (long long)s->heads);
    bool fits = !head_dim || head_dim == s->head_dim;
    return check_positive(r, s, head_dim ? head_dim : s->head_dim, eps, fits);
}

/* `key` of the form that is read. */
static const char *key_of(const mc_config_reader *r, const char *hf, const char *mc)
{
    return r->form == MC_FORM_HF ? hf : mc;
}

bool mc_config_check_grouped(const mc_config_reader *r, const mc_model_shape *s, float eps,
                             int64_t *head_dim, int64_t *key_heads)
{
    if (*key_heads < 0) *key_heads = s->heads;
    if (*head_dim < 0 && s->heads > 0 && s->dim % s->heads == 0) *head_dim = s->dim / s->heads;
    if (*head_dim < 0 && s->heads > 0)
        return !mc_fail(r->ctx, MC_ERR_FORMAT,
                        "%s: key \"%s\": %lld heads do not divide dim %lld, expected a divisor of "
                        "it, or key \"%s\"",
                        r->path, key_of(r, "num_attention_heads", "num_heads"), (long long)s->heads,
                        (long long)s->dim, key_of(r, "head_dim", "dim_head"));
    if (*key_heads < 1 || (s->heads > 0 && s->heads % *key_heads))
        return !mc_fail(r->ctx, MC_ERR_FORMAT,
                        "%s: key \"%s\": %lld, expected a divisor of the %lld heads", r->path,
                        key_of(r, "num_key_value_heads", "num_heads_kv"), (long long)*key_heads,
                        (long long)s->heads);
    return check_positive(r, s, *head_dim, eps, true);
}

bool mc_config_check_rows(const mc_config_reader *r, const char *what, int64_t rows)
{
    if (rows > 0) return true;
    return !mc_fail(r->ctx, MC_ERR_FORMAT, "%s: %lld %s, expected 1 or more", r->path,
                    (long long)rows, what);
}
