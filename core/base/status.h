/* Status codes, in one table. A code never changes its number once released; new ones are added at
 * the end.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_BASE_STATUS_H
#define MC_BASE_STATUS_H

/* MC_API stands before everything that the shared library exports; C++ programs see C functions. */
#ifdef __cplusplus
#define MC_LINKAGE extern "C"
#else
#define MC_LINKAGE
#endif
#if defined(__GNUC__)
#define MC_API MC_LINKAGE __attribute__((visibility("default")))
#define MC_PRINTF(text, first) __attribute__((format(printf, text, first)))
/* Marks a declaration that the next release removes; `use` names the replacement. */
#define MC_DEPRECATED(use) __attribute__((deprecated(use)))
#else
#define MC_DEPRECATED(use)
#define MC_API MC_LINKAGE
#define MC_PRINTF(text, first)
#endif

/*       name         value  text */
#define MC_STATUS_MAP(X)                   \
    X(OK, 0, "ok")                         \
    X(ERR_NOMEM, 1, "out of memory")       \
    X(ERR_ARGUMENT, 2, "invalid argument") \
    X(ERR_SHAPE, 3, "shape mismatch")      \
    X(ERR_DTYPE, 4, "dtype mismatch")      \
    X(ERR_IO, 5, "input/output error")     \
    X(ERR_NOT_FOUND, 6, "not found")       \
    X(ERR_FORMAT, 7, "bad file format")    \
    X(ERR_UNSUPPORTED, 8, "not supported") \
    X(ERR_STATE, 9, "wrong state")         \
    X(ERR_DEVICE, 10, "device error")      \
    X(ERR_INTERRUPTED, 11, "interrupted")

typedef enum mc_status {
#define MC_STATUS_ENUM(name, value, text) MC_##name = value,
    MC_STATUS_MAP(MC_STATUS_ENUM)
#undef MC_STATUS_ENUM
} mc_status;

/* The text of a status, e.g. "bad file format". Never NULL. */
MC_API const char *mc_status_text(mc_status status);

#endif
