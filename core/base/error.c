#include "core/base/error_internal.h"

#include <stdio.h>
#include <string.h>
#include "core/base/memory_internal.h"

const char *mc_status_text(mc_status status)
{
    switch (status) {
#define MC_STATUS_TEXT(name, value, text) \
    case MC_##name: return text;
        MC_STATUS_MAP(MC_STATUS_TEXT)
#undef MC_STATUS_TEXT
    }
    return "unknown status";
}

mc_status mc_error_vset_at(mc_error *err, mc_status status, const char *file, int line,
                           const char *format, va_list args)
{
    if (mc_error_is_set(err)) return status;
    va_list again;
    va_copy(again, args);
    int length = vsnprintf(err->fallback, sizeof err->fallback, format, args);
    err->message = err->fallback;
    if (length >= (int)sizeof err->fallback) {
        char *whole = mc_malloc((size_t)length + 1);
        if (whole) {
            vsnprintf(whole, (size_t)length + 1, format, again);
            err->message = whole;
        }
    }
    va_end(again);
    err->status = status;
    err->file = file;
    err->line = line;
    err->trace[0] = '\0';
    if (err->raised) err->raised(err->raised_user);
    return status;
}

mc_status mc_error_set_at(mc_error *err, mc_status status, const char *file, int line,
                          const char *format, ...)
{
    va_list args;
    va_start(args, format);
    mc_error_vset_at(err, status, file, line, format, args);
    va_end(args);
    return status;
}

void mc_error_while(mc_error *err, const char *format, ...)
{
    if (!mc_error_is_set(err)) return;
    size_t used = strlen(err->trace);
    size_t room = sizeof err->trace - used;
    int prefix = snprintf(err->trace + used, room, "; while ");
    if (prefix < 0 || (size_t)prefix >= room) return;
    va_list args;
    va_start(args, format);
    vsnprintf(err->trace + used + prefix, room - (size_t)prefix, format, args);
    va_end(args);
}

void mc_error_prefix(mc_error *err, const char *format, ...)
{
    if (!mc_error_is_set(err)) return;
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    size_t room = (size_t)length + strlen(err->message) + 1;
    char *whole = mc_malloc(room);
    if (whole) {
        vsnprintf(whole, room, format, again);
        memcpy(whole + length, err->message, room - (size_t)length);
        if (err->message != err->fallback) mc_free(err->message);
        err->message = whole;
    }
    va_end(again);
    va_end(args);
}

mc_named_text mc_named_print(const char *kind, const char *name)
{
    mc_named_text out;
    snprintf(out.text, sizeof out.text, *name ? "%s \"%s\"" : "the %s", kind, name);
    return out;
}

void mc_error_move(mc_error *to, mc_error *from)
{
    if (mc_error_is_set(from) && !mc_error_is_set(to)) {
        void (*raised)(void *user) = to->raised;
        void *user = to->raised_user;
        *to = *from;
        to->raised = raised;
        to->raised_user = user;
        if (from->message == from->fallback) to->message = to->fallback;
        from->message = NULL;
        if (raised) raised(user);
    }
    mc_error_clear(from);
}

void mc_error_clear(mc_error *err)
{
    if (err->message != err->fallback) mc_free(err->message);
    err->message = NULL;
    err->status = MC_OK;
    err->trace[0] = '\0';
}
