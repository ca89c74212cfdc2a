/* The pickle machine's opcodes. Python's Lib/pickletools.py documents each. */
#include "core/formats/pickle_internal.h"

#include <string.h>

typedef bool handler(mc_pickle *p, uint8_t op);

typedef struct opcode {
    const char *name;
    handler *run; /* NULL: not supported; the error names it */
} opcode;
static const opcode opcodes[256];

enum { PROTOCOL_MAX = 5 };

const char *mc_pickle_op_name(const mc_pickle *p)
{
    const char *name = opcodes[p->data[p->begin]].name;
    return name ? name : "?";
}

/* ---- opcodes: plain values ------------------------------------------------------------------- */

static bool do_constant(mc_pickle *p, uint8_t op)
{
    if (op == 'N') return mc_pickle_push(p, (mc_pickle_value){.kind = MC_PICKLE_NONE});
    return mc_pickle_push(p, (mc_pickle_value){.kind = MC_PICKLE_INT, .number = op == 0x88});
}

static bool do_int(mc_pickle *p, uint8_t op)
{
    int bytes = op == 'K' ? 1 : op == 'M' ? 2 : 4;
    uint64_t number;
    if (!mc_pickle_take_number(p, bytes, &number)) return false;
    return mc_pickle_push(
        p, (mc_pickle_value){.kind = MC_PICKLE_INT,
                             .number = op == 'J' ? (int32_t)number : (int64_t)number});
}

/* Numbers of any length; those over 64 bits become MC_PICKLE_OTHER. */
static bool do_long(mc_pickle *p, uint8_t op)
{
    uint64_t size, number = 0;
    if (!mc_pickle_take_number(p, op == 0x8a ? 1 : 4, &size)) return false;
    const uint8_t *from = mc_pickle_take(p, size);
    if (!from) return false;
    if (size > 8) return mc_pickle_push(p, (mc_pickle_value){.kind = MC_PICKLE_OTHER});
    if (size && from[size - 1] & 0x80) number = ~UINT64_C(0); /* the sign */
    for (size_t i = (size_t)size; i-- > 0;) number = number << 8 | from[i];
    return mc_pickle_push(p, (mc_pickle_value){.kind = MC_PICKLE_INT, .number = (int64_t)number});
}

/* A decimal number, with or without an L; "00" and "01" are booleans. */
static bool do_decimal(mc_pickle *p, uint8_t op)
{
    const char *text;
    size_t length, i = 0;
    int64_t number = 0;
    (void)op;
    if (!mc_pickle_take_line(p, &text, &length)) return false;
    if (length && text[length - 1] == 'L') length--;
    bool negative = length && text[0] == '-';
    if (length - negative > 18 || length == (size_t)negative)
        return mc_pickle_error(p, "%s of %zu characters", mc_pickle_op_name(p), length);
    for (i = negative; i < length; i++) {
        if (text[i] < '0' || text[i] > '9')
            return mc_pickle_error(p, "%s: expected a whole number", mc_pickle_op_name(p));
        number = number * 10 + (text[i] - '0');
    }
    return mc_pickle_push(
        p, (mc_pickle_value){.kind = MC_PICKLE_INT, .number = negative ? -number : number});
}

static bool do_float(mc_pickle *p, uint8_t op)
{
    const char *text;
    size_t length;
    if (op == 'G' ? !mc_pickle_take(p, 8) : !mc_pickle_take_line(p, &text, &length)) return false;
    return mc_pickle_push(p, (mc_pickle_value){.kind = MC_PICKLE_OTHER});
}

static bool push_text(mc_pickle *p, const char *text, size_t length)
{
    if (length > UINT32_MAX) return mc_pickle_error(p, "a text of %zu bytes", length);
    return mc_pickle_push(
        p, (mc_pickle_value){.kind = MC_PICKLE_TEXT, .length = (uint32_t)length, .text = text});
}

/* Text after its length; also Python 2's strings. */
static bool do_text(mc_pickle *p, uint8_t op)
{
    int width = op == 'U' || op == 0x8c ? 1 : op == 0x8d ? 8 : 4;
    uint64_t size;
    if (!mc_pickle_take_number(p, width, &size)) return false;
    const uint8_t *text = mc_pickle_take(p, size);
    return text && push_text(p, (const char *)text, (size_t)size);
}

/* Text of protocol 0: a line, in quotes for Python 2's strings. */
static bool do_line(mc_pickle *p, uint8_t op)
{
    const char *text;
    size_t length;
    if (!mc_pickle_take_line(p, &text, &length)) return false;
    if (op == 'S') {
        if (length < 2 || (*text != '\'' && *text != '"') || text[length - 1] != *text)
            return mc_pickle_error(p, "%s without its quotes", mc_pickle_op_name(p));
        text++;
        length -= 2;
    }
    if (length && memchr(text, '\\', length))
        return mc_pickle_error(p, "%s with escapes, which are not read", mc_pickle_op_name(p));
    return push_text(p, text, length);
}

static bool do_bytes(mc_pickle *p, uint8_t op)
{
    int width = op == 'C' ? 1 : op == 'B' ? 4 : 8;
    uint64_t size;
    return mc_pickle_take_number(p, width, &size) && mc_pickle_take(p, size) &&
           mc_pickle_push(p, (mc_pickle_value){.kind = MC_PICKLE_OTHER});
}

/* ---- opcodes: containers --------------------------------------------------------------------- */

static bool do_mark(mc_pickle *p, uint8_t op)
{
    (void)op;
    if (!mc_pickle_grow(p, &p->marks, &p->mark_capacity, p->mark_count, sizeof *p->marks))
        return false;
    p->marks[p->mark_count++] = p->count;
    return true;
}

static bool do_empty(mc_pickle *p, uint8_t op)
{
    mc_pickle_kind kind = op == ')'   ? MC_PICKLE_TUPLE
                          : op == ']' ? MC_PICKLE_LIST
                          : op == '}' ? MC_PICKLE_DICT
                                      : MC_PICKLE_SET;
    return mc_pickle_push_container(p, kind, NULL, 0);
}

static bool do_small_tuple(mc_pickle *p, uint8_t op)
{
    size_t count = op - 0x84u;
    const mc_pickle_value *items = mc_pickle_pop(p, count);
    return items && mc_pickle_push_container(p, MC_PICKLE_TUPLE, items, count);
}

static bool do_container(mc_pickle *p, uint8_t op)
{
    size_t count;
    const mc_pickle_value *items = mc_pickle_pop_mark(p, &count);
    mc_pickle_kind kind = op == 't'   ? MC_PICKLE_TUPLE
                          : op == 'l' ? MC_PICKLE_LIST
                          : op == 'd' ? MC_PICKLE_DICT
                                      : MC_PICKLE_SET;
    if (!items) return false;
    if (op == 'd' && count % 2) return mc_pickle_error(p, "DICT of %zu values", count);
    return mc_pickle_push_container(p, kind, items, count);
}

/* Appends the values above the mark to the container below it. */
static bool do_extend(mc_pickle *p, uint8_t op)
{
    size_t count = op == 's' ? 2 : 1;
    bool one = op == 'a' || op == 's';
    mc_pickle_kind kind = op == 'a' || op == 'e'   ? MC_PICKLE_LIST
                          : op == 's' || op == 'u' ? MC_PICKLE_DICT
                                                   : MC_PICKLE_SET;
    const mc_pickle_value *items = one ? mc_pickle_pop(p, count) : mc_pickle_pop_mark(p, &count);
    const mc_pickle_value *to = items ? mc_pickle_pop(p, 1) : NULL;
    if (!to) return false;
    p->count++; /* the container stays on the stack */
    if (to->kind != kind || (kind == MC_PICKLE_DICT && count % 2))
        return mc_pickle_error(p, "%s of %zu values onto what it doesn't fit", mc_pickle_op_name(p),
                               count);
    return mc_pickle_extend(p, to->node, items, count);
}

static bool do_pop(mc_pickle *p, uint8_t op)
{
    size_t count;
    size_t base = p->mark_count ? p->marks[p->mark_count - 1] : 0;
    if (op == '1' || (p->mark_count && p->count == base))
        return mc_pickle_pop_mark(p, &count) != NULL;
    const mc_pickle_value *top = mc_pickle_pop(p, 1);
    if (!top || op == '0') return top != NULL;
    p->count++;
    return mc_pickle_push(p, *top); /* DUP */
}

/* ---- opcodes: the memo ----------------------------------------------------------------------- */

/* Reads the memo index of an opcode. */
static bool take_index(mc_pickle *p, uint8_t op, uint64_t *index)
{
    if (op == 0x94) *index = p->memo_count;
    if (op == 0x94) return true;
    if (op == 'q' || op == 'h') return mc_pickle_take_number(p, 1, index);
    if (op == 'r' || op == 'j') return mc_pickle_take_number(p, 4, index);
    if (!do_decimal(p, op)) return false;
    int64_t number = p->stack[--p->count].number;
    *index = number < 0 ? UINT64_MAX : (uint64_t)number;
    return true;
}

/* Picklers number memo entries from 0 up, so a larger index than their count is an error. */
static bool do_put(mc_pickle *p, uint8_t op)
{
    uint64_t index;
    if (!take_index(p, op, &index)) return false;
    if (index > p->memo_count)
        return mc_pickle_error(p, "%s: place %llu of a memo that has %zu", mc_pickle_op_name(p),
                               (unsigned long long)index, p->memo_count);
    const mc_pickle_value *top = mc_pickle_pop(p, 1);
    if (!top) return false;
    p->count++;
    if (index == p->memo_count) {
        if (!mc_pickle_grow(p, &p->memo, &p->memo_capacity, p->memo_count, sizeof *p->memo))
            return false;
        p->memo_count++;
    }
    p->memo[index] = *top;
    return true;
}

static bool do_get(mc_pickle *p, uint8_t op)
{
    uint64_t index;
    if (!take_index(p, op, &index)) return false;
    if (index >= p->memo_count)
        return mc_pickle_error(p, "%s: place %llu of a memo that has %zu", mc_pickle_op_name(p),
                               (unsigned long long)index, p->memo_count);
    return mc_pickle_push(p, p->memo[index]);
}

/* ---- opcodes: names and calls ---------------------------------------------------------------- */

static bool do_global(mc_pickle *p, uint8_t op)
{
    const char *module, *name;
    size_t module_length, name_length;
    mc_pickle_value value;
    (void)op;
    return mc_pickle_take_line(p, &module, &module_length) &&
           mc_pickle_take_line(p, &name, &name_length) &&
           mc_torch_global(p, module, module_length, name, name_length, &value) &&
           mc_pickle_push(p, value);
}

static bool do_stack_global(mc_pickle *p, uint8_t op)
{
    mc_pickle_value value;
    const mc_pickle_value *names = mc_pickle_pop(p, 2);
    (void)op;
    if (!names) return false;
    if (names[0].kind != MC_PICKLE_TEXT || names[1].kind != MC_PICKLE_TEXT)
        return mc_pickle_error(p, "%s of what is no text", mc_pickle_op_name(p));
    return mc_torch_global(p, names[0].text, names[0].length, names[1].text, names[1].length,
                           &value) &&
           mc_pickle_push(p, value);
}

/* Calls a global with all values above the mark. */
static bool do_inst(mc_pickle *p, uint8_t op)
{
    size_t count;
    mc_pickle_value callable, args, result;
    if (!do_global(p, op)) return false;
    callable = p->stack[--p->count];
    const mc_pickle_value *items = mc_pickle_pop_mark(p, &count);
    return items && mc_pickle_container(p, MC_PICKLE_TUPLE, items, count, &args) &&
           mc_torch_call(p, &callable, &args, &result) && mc_pickle_push(p, result);
}

static bool do_call(mc_pickle *p, uint8_t op)
{
    mc_pickle_value result;
    const mc_pickle_value *both = mc_pickle_pop(p, 2);
    (void)op;
    return both && mc_torch_call(p, &both[0], &both[1], &result) && mc_pickle_push(p, result);
}

/* Sets attributes of an OrderedDict: state dicts have _metadata, the versions of their modules. */
static bool do_build(mc_pickle *p, uint8_t op)
{
    static const char metadata[] = "_metadata";
    const mc_pickle_value *both = mc_pickle_pop(p, 2);
    (void)op;
    if (!both) return false;
    p->count++; /* the object stays on the stack */
    if (both[0].kind != MC_PICKLE_DICT || !both[0].node->ordered || both[1].kind != MC_PICKLE_DICT)
        return mc_pickle_error(p, "BUILD of what is no OrderedDict is refused: expected its \"%s\"",
                               metadata);
    const mc_pickle_node *state = both[1].node;
    for (size_t i = 0; i < state->count; i += 2) {
        char shown[MC_PICKLE_SHOWN + 1];
        const mc_pickle_value *key = &state->items[i];
        bool text = key->kind == MC_PICKLE_TEXT;
        if (!text || key->length != sizeof metadata - 1 ||
            memcmp(key->text, metadata, key->length) != 0)
            return mc_pickle_error(p, "BUILD of attribute \"%s\" is refused: expected \"%s\"",
                                   text ? mc_pickle_show(shown, key->text, key->length) : "?",
                                   metadata);
    }
    return true;
}

static bool do_persistent(mc_pickle *p, uint8_t op)
{
    mc_pickle_value storage;
    const mc_pickle_value *id = mc_pickle_pop(p, 1);
    (void)op;
    return id && mc_torch_persistent(p, id, &storage) && mc_pickle_push(p, storage);
}

/* ---- opcodes: the frame ---------------------------------------------------------------------- */

static bool do_protocol(mc_pickle *p, uint8_t op)
{
    uint64_t version;
    (void)op;
    if (!mc_pickle_take_number(p, 1, &version)) return false;
    return version <= PROTOCOL_MAX || mc_pickle_error(p, "protocol %llu: expected at most %d",
                                                      (unsigned long long)version, PROTOCOL_MAX);
}

static bool do_frame(mc_pickle *p, uint8_t op)
{
    uint64_t size;
    (void)op;
    if (!mc_pickle_take_number(p, 8, &size)) return false;
    return size <= p->size - p->at || mc_pickle_error(p, "a frame of %llu bytes, but %zu are left",
                                                      (unsigned long long)size, p->size - p->at);
}

/* clang-format off */
static const opcode opcodes[256] = {
    ['('] = {"MARK", do_mark}, ['0'] = {"POP", do_pop}, ['1'] = {"POP_MARK", do_pop},
    ['2'] = {"DUP", do_pop}, ['.'] = {"STOP", NULL /* mc_pickle_run's */},
    ['F'] = {"FLOAT", do_float}, ['G'] = {"BINFLOAT", do_float},
    ['I'] = {"INT", do_decimal}, ['L'] = {"LONG", do_decimal}, ['J'] = {"BININT", do_int},
    ['K'] = {"BININT1", do_int}, ['M'] = {"BININT2", do_int}, [0x8a] = {"LONG1", do_long},
    [0x8b] = {"LONG4", do_long}, ['N'] = {"NONE", do_constant}, [0x88] = {"NEWTRUE", do_constant},
    [0x89] = {"NEWFALSE", do_constant},
    ['S'] = {"STRING", do_line}, ['V'] = {"UNICODE", do_line}, ['T'] = {"BINSTRING", do_text},
    ['U'] = {"SHORT_BINSTRING", do_text}, ['X'] = {"BINUNICODE", do_text},
    [0x8c] = {"SHORT_BINUNICODE", do_text}, [0x8d] = {"BINUNICODE8", do_text},
    ['B'] = {"BINBYTES", do_bytes}, ['C'] = {"SHORT_BINBYTES", do_bytes},
    [0x8e] = {"BINBYTES8", do_bytes}, [0x96] = {"BYTEARRAY8", do_bytes},
    [')'] = {"EMPTY_TUPLE", do_empty}, [']'] = {"EMPTY_LIST", do_empty},
    ['}'] = {"EMPTY_DICT", do_empty}, [0x8f] = {"EMPTY_SET", do_empty},
    [0x85] = {"TUPLE1", do_small_tuple}, [0x86] = {"TUPLE2", do_small_tuple},
    [0x87] = {"TUPLE3", do_small_tuple}, ['t'] = {"TUPLE", do_container},
    ['l'] = {"LIST", do_container}, ['d'] = {"DICT", do_container},
    [0x91] = {"FROZENSET", do_container}, ['a'] = {"APPEND", do_extend},
    ['e'] = {"APPENDS", do_extend}, ['s'] = {"SETITEM", do_extend},
    ['u'] = {"SETITEMS", do_extend}, [0x90] = {"ADDITEMS", do_extend},
    ['p'] = {"PUT", do_put}, ['q'] = {"BINPUT", do_put}, ['r'] = {"LONG_BINPUT", do_put},
    [0x94] = {"MEMOIZE", do_put}, ['g'] = {"GET", do_get}, ['h'] = {"BINGET", do_get},
    ['j'] = {"LONG_BINGET", do_get},
    ['c'] = {"GLOBAL", do_global}, [0x93] = {"STACK_GLOBAL", do_stack_global},
    ['i'] = {"INST", do_inst}, ['R'] = {"REDUCE", do_call}, [0x81] = {"NEWOBJ", do_call},
    ['b'] = {"BUILD", do_build}, ['Q'] = {"BINPERSID", do_persistent},
    [0x80] = {"PROTO", do_protocol}, [0x95] = {"FRAME", do_frame},
    ['P'] = {"PERSID", NULL}, ['o'] = {"OBJ", NULL}, [0x82] = {"EXT1", NULL},
    [0x83] = {"EXT2", NULL}, [0x84] = {"EXT4", NULL}, [0x92] = {"NEWOBJ_EX", NULL},
    [0x97] = {"NEXT_BUFFER", NULL}, [0x98] = {"READONLY_BUFFER", NULL},
};
/* clang-format on */

mc_status mc_pickle_run(mc_pickle *p, mc_pickle_value *result)
{
    p->count = p->mark_count = p->memo_count = 0;
    p->begin = p->at;
    if (!mc_pickle_grow(p, &p->stack, &p->capacity, p->count, sizeof *p->stack))
        return p->err->status;
    for (;;) {
        p->begin = p->at;
        const uint8_t *op = p->at < p->size ? mc_pickle_take(p, 1) : NULL;
        if (!op) {
            mc_pickle_error(p, "the pickle ends without %s", "STOP");
            return p->err->status;
        }
        if (*op == '.') break;
        if (!opcodes[*op].run)
            mc_pickle_error(p, "opcode 0x%02x (%s) is refused: no tensors are made of it", *op,
                            opcodes[*op].name ? opcodes[*op].name : "of no protocol");
        if (!opcodes[*op].run || !opcodes[*op].run(p, *op)) return p->err->status;
    }
    if (p->count != 1 || p->mark_count)
        mc_pickle_error(p, "STOP with %zu values on the stack, expected one", p->count);
    else
        *result = p->stack[0];
    return p->err->status;
}
