/* The form of each stored tensor's state: f32, 8 bits, or f32 without second moments. Chosen when
 * parameters are added to optimizers, before their first step. */
#include "core/optim/adam_offload_internal.h"
#include "core/optim/optimizer_internal.h"

/* Whether a parameter's state may be in 8 bits: a large enough matrix, and no embedding. */
static bool fits_8bit(const mc_parameter *p)
{
    enum { LEAST = 4096 /* elements */ };
    return p->shape.ndim > 1 && !p->is_table && mc_shape_count(p->shape) >= LEAST;
}

/* All parts of a tensor share one form; in 8 bits each part must begin with a block. A frozen
 * tensor keeps the form of its state; without steps it gets that of its optimizer, as a checkpoint
 * may have state of it. */
static mc_state_form form_for(const mc_stored *s)
{
    int count = 0, eight = 0, first = 0;
    bool stepped = false;
    for (int i = 0; i < s->part_count; i++) {
        const mc_parameter *p = s->parts[i];
        if (!p->optimizer) continue;
        count++;
        stepped |= p->optimizer_steps > 0;
        eight += p->eight_bit && fits_8bit(p) && p->first % MC_STATE_BLOCK == 0;
        first += p->optimizer_matrix;
    }
    if (!count || (!s->trainable && stepped)) return s->form;
    return eight == count ? MC_STATE_8BIT : first == count ? MC_STATE_FIRST : MC_STATE_F32;
}

/* A form may change only before the first step, because moments are not converted. */
static mc_status check_change(mc_module_root *root, const mc_stored *s)
{
    for (int i = 0; i < s->part_count; i++) {
        const mc_parameter *p = s->parts[i];
        const mc_optimizer *o = p->optimizer;
        if (o && mc_optim_manager_settle(o->manager)) return mc_error_status(root->ctx);
        if (o && p->optimizer_steps)
            return mc_fail(root->ctx, MC_ERR_UNSUPPORTED,
                           "the optimizer state of parameter \"%s\" would change its form after "
                           "steps: expected all parameters of its tensor to be added to an "
                           "optimizer before the first step",
                           p->name);
    }
    return MC_OK;
}

/* Changes the forms that become f32 (or all others), and lays the buckets out again. */
static mc_status change_forms(mc_module_root *root, bool to_f32)
{
    bool changes = false;
    mc_status status = mc_error_status(root->ctx);
    for (size_t i = 0; i < root->stored_count && !status; i++) {
        mc_stored *s = root->stored[i];
        mc_state_form form = form_for(s);
        if (form == s->form || (form == MC_STATE_F32) != to_f32) continue;
        status = check_change(root, s);
        if (status) break;
        s->form = form;
        if (form == MC_STATE_8BIT) root->zero.align = MC_STATE_BLOCK;
        changes = true;
    }
    if (status || !changes) return status;
    root->layout_valid = false;
    return mc_module_layout(root);
}

/* State on the host is f32: 8-bit forms end before a bucket moves there, or begin after it left. */
mc_status mc_optimizer_place(mc_module_root *root)
{
    mc_status status = change_forms(root, true);
    if (!status) status = mc_adam_offload_place(root);
    if (!status) status = change_forms(root, false);
    return status ? status : mc_adam_offload_place(root);
}
