/* An encoder's pooling: a number of the file, and the files of sentence-transformers. */
#include <stdio.h>
#include <string.h>
#include "models/gguf/gguf_internal.h"

static const char pooling_key[] = "pooling_type";

/* llama.cpp's numbers. Its other ones are 3 (the last token) and 4 (a score). */
enum { THEIRS_NONE = 0, THEIRS_MEAN = 1, THEIRS_CLS = 2 };

bool mc_gguf_put_pooling(mc_gguf_writer *w, mc_model *m, const char *architecture,
                         mc_pooling pooling)
{
    char key[MC_GGUF_NAME];
    if (pooling == MC_POOLING_DEFAULT) return true;
    snprintf(key, sizeof key, "%s.%s", architecture, pooling_key);
    if (pooling != MC_POOLING_MEAN && pooling != MC_POOLING_CLS)
        return !mc_fail(m->module.ctx, MC_ERR_UNSUPPORTED,
                        "%s: the folder's pooling (1_Pooling/config.json) has no GGUF form, "
                        "expected mean or cls",
                        m->family->title);
    mc_gguf_put_u32(w, key, pooling == MC_POOLING_MEAN ? THEIRS_MEAN : THEIRS_CLS);
    return true;
}

mc_status mc_gguf_read_pooling(mc_error *err, const mc_gguf *g, const char *architecture,
                               mc_pooling *out)
{
    char key[MC_GGUF_NAME];
    double number = -1;
    snprintf(key, sizeof key, "%s.%s", architecture, pooling_key);
    const mc_gguf_value *v = mc_gguf_find(g, key);
    *out = MC_POOLING_DEFAULT;
    if (!v) return MC_OK;
    if (v->is_array || !mc_gguf_number(v, 0, &number))
        return mc_error_set(err, MC_ERR_FORMAT, "%s: key \"%s\": expected a number", g->path, key);
    if (number == THEIRS_NONE) return MC_OK;
    if (number == THEIRS_MEAN) *out = MC_POOLING_MEAN;
    if (number == THEIRS_CLS) *out = MC_POOLING_CLS;
    if (*out) return MC_OK;
    return mc_error_set(err, MC_ERR_UNSUPPORTED,
                        "%s: key \"%s\": %g is not supported, expected %d (mean), %d (cls) or %d "
                        "(none)",
                        g->path, key, number, THEIRS_MEAN, THEIRS_CLS, THEIRS_NONE);
}

static mc_status write_text(mc_error *err, const char *folder, const char *name, const char *text)
{
    char path[MC_PATH_MAX];
    mc_file_writer w;
    if (mc_path_join(err, path, folder, name) || mc_file_writer_init(err, &w, path))
        return err->status;
    mc_file_write(&w, text, strlen(text));
    mc_file_commit(&w);
    mc_file_writer_release(&w);
    return err->status;
}

mc_status mc_gguf_write_pooling(mc_error *err, const char *folder, mc_pooling pooling, int64_t dim)
{
    static const char type[] = "sentence_transformers.models.";
    char text[512], below[MC_PATH_MAX];
    snprintf(text, sizeof text,
             "[{\"idx\": 0, \"name\": \"0\", \"path\": \"\", \"type\": \"%sTransformer\"},\n"
             " {\"idx\": 1, \"name\": \"1\", \"path\": \"1_Pooling\", \"type\": \"%sPooling\"}]\n",
             type, type);
    if (write_text(err, folder, "modules.json", text) ||
        mc_path_join(err, below, folder, "1_Pooling") || mc_make_folders(err, below))
        return err->status;
    snprintf(text, sizeof text,
             "{\"word_embedding_dimension\": %lld, \"pooling_mode_cls_token\": %s, "
             "\"pooling_mode_mean_tokens\": %s}\n",
             (long long)dim, pooling == MC_POOLING_CLS ? "true" : "false",
             pooling == MC_POOLING_MEAN ? "true" : "false");
    return write_text(err, below, "config.json", text);
}
