/* The zoo: the one list of families. */
#include <string.h>
#include "models/family_internal.h"

extern const mc_family mc_family_bert, mc_family_roberta, mc_family_gpt2, mc_family_gptj,
    mc_family_t5, mc_family_cpm1, mc_family_cpm2, mc_family_llama, mc_family_distilbert,
    mc_family_electra, mc_family_mpnet, mc_family_opt, mc_family_modernbert, mc_family_longformer,
    mc_family_glm, mc_family_vit;

const mc_family *const mc_families[] = {&mc_family_bert,
                                        &mc_family_gpt2,
                                        &mc_family_t5,
                                        &mc_family_gptj,
                                        &mc_family_cpm1,
                                        &mc_family_cpm2,
                                        &mc_family_roberta,
                                        &mc_family_llama,
                                        &mc_family_distilbert,
                                        &mc_family_electra,
                                        &mc_family_mpnet,
                                        &mc_family_opt,
                                        &mc_family_modernbert,
                                        &mc_family_longformer,
                                        &mc_family_glm,
                                        &mc_family_vit,
                                        NULL};

const mc_family *mc_family_find(const char *name)
{
    for (int i = 0; name && mc_families[i]; i++)
        if (strcmp(mc_families[i]->name, name) == 0) return mc_families[i];
    return NULL;
}

const char *mc_family_name(int i)
{
    int count = sizeof mc_families / sizeof *mc_families - 1;
    return i >= 0 && i < count ? mc_families[i]->name : NULL;
}

bool mc_family_known(const char *name) { return mc_family_find(name); }

mc_model_kind mc_family_kind(const char *name)
{
    const mc_family *family = mc_family_find(name);
    return family ? family->kind : 0;
}

mc_prompt_style mc_family_prompt_style(const char *name)
{
    const mc_family *family = mc_family_find(name);
    return family ? family->prompt : MC_PROMPT_ENCODER;
}

bool mc_family_has_classifier(const char *name)
{
    const mc_family *family = mc_family_find(name);
    return family && family->has.labels;
}

bool mc_family_reads_images(const char *name)
{
    const mc_family *family = mc_family_find(name);
    return family && family->has.pixels;
}

const char *mc_family_shape_name(const char *name, int i)
{
    const mc_family *family = mc_family_find(name);
    for (int k = 0; family && family->named[k].names && k <= i; k++)
        if (k == i) return family->named[k].names;
    return NULL;
}
