/* PyTorch's files: what is refused, and with which words. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/checkpoint/torch_test.h"

/* ---- what is refused: pickles ---------------------------------------------------------------- */

typedef struct refusal {
    const char *pickle;
    size_t size;
    const char *message;
} refusal;
#define REFUSAL(pickle, message)            \
    {                                       \
        pickle, sizeof(pickle) - 1, message \
    }

static const refusal pickles[] = {
    REFUSAL("\x80\x02"
            "cposix\nsystem\n" TEXT("\2", "ls") "\x85R.",
            "the global \"posix.system\""),
    REFUSAL("\x80\x04\x8c\2os\x8c\6system\x93.", "the global \"os.system\" is refused"),
    REFUSAL("(" TEXT("\2", "ls") "iposix\nsystem\n.", "the global \"posix.system\" is refused"),
    REFUSAL("cnumpy.core.multiarray\n_reconstruct\n.", "\"numpy.core.multiarray._reconstruct\""),
    REFUSAL("ctorch.storage\n_load_from_bytes\n.", "\"torch.storage._load_from_bytes\" is refused"),
    REFUSAL("cpickle\nloads\n.", "the global \"pickle.loads\" is refused"),
    REFUSAL("\x80\x02\x82\1.", "opcode 0x82 (EXT1) is refused"),
    REFUSAL("P0\n.", "opcode 0x50 (PERSID) is refused"),
    REFUSAL("(o.", "opcode 0x6f (OBJ) is refused"),
    REFUSAL("\xff.", "opcode 0xff (of no protocol) is refused"),
    REFUSAL("(" TEXT("\6", "module") "K\1tQ.", "the persistent id \"module\" is refused"),
    REFUSAL("K\1Q.", "the persistent id \"?\" is refused"),
    REFUSAL("}}b.", "BUILD of what is no OrderedDict is refused"),
    REFUSAL("ccollections\nOrderedDict\n)R}" TEXT("\1", "x") "K\1sb.",
            "attribute \"x\" is refused"),
    REFUSAL("K\1)R.", "REDUCE of what is no function"),
    REFUSAL("ctorch\nfloat32\n)R.", "calls \"torch.float32\""),
    REFUSAL("r\xff\xff\xff\x7f.", "LONG_BINPUT: place 2147483647 of a memo that has 0"),
    REFUSAL("h\1.", "BINGET: place 1 of a memo that has 0"),
    REFUSAL("X\xff\xff\xff\x7f"
            "a.",
            "BINUNICODE of 2147483647 bytes, but 2 are left"),
    REFUSAL("\x8d\xff\xff\xff\xff\xff\xff\xff\xff"
            "a.",
            "BINUNICODE8 of 18446744073709551615 bytes"),
    REFUSAL("t.", "TUPLE finds no mark"),
    REFUSAL("(.", "STOP with 0 values"),
    REFUSAL("K\1K\1.", "STOP with 2 values"),
    REFUSAL("K\1", "the pickle ends without STOP"),
    REFUSAL("K\1a.", "APPEND finds too few values"),
    REFUSAL("}K\1a.", "APPEND of 1 values onto what it doesn't fit"),
    REFUSAL("\x80\x06N.", "protocol 6: expected at most 5"),
    REFUSAL("N.N.", "2 bytes after the pickle"),
    REFUSAL(PICKLE_BEGIN TEXT("\1", "w") TENSOR(SIX, "K\1", "K\6", "K\1") PICKLE_END,
            "tensor \"w\": its elements from number 1 on are not all in a storage of 6"),
    REFUSAL(PICKLE_BEGIN TEXT("\1", "w") TENSOR(SIX, "K\0", "K\2K\3", "K\4K\1") PICKLE_END,
            "not all in a storage of 6"),
    REFUSAL(PICKLE_BEGIN TEXT("\1", "w") TENSOR(SIX, "K\0", "K\2", "J\xff\xff\xff\xff") PICKLE_END,
            "stride -1: expected 0 or more"),
    REFUSAL(PICKLE_BEGIN TEXT("\1", "w") TENSOR(SIX, "J\xff\xff\xff\xff", "K\2", "K\1") PICKLE_END,
            "elements from number -1 on"),
    REFUSAL(PICKLE_BEGIN TEXT("\1", "w") TENSOR(SIX, "K\0", "J\xff\xff\xff\xff", "K\1") PICKLE_END,
            "dimension 0: -1, expected 0 or more"),
    REFUSAL(PICKLE_BEGIN TEXT("\1", "w")
                TENSOR(SIX, "K\0", "J\xff\xff\xff\x7fJ\xff\xff\xff\x7fJ\xff\xff\xff\x7f",
                       "K\0K\0K\0") PICKLE_END,
            "its F32 elements are too many"),
    REFUSAL(PICKLE_BEGIN TEXT("\1", "w") TENSOR(SIX, "K\0", "J\xff\xff\xff\x7f", "K\0") PICKLE_END,
            "a view of 8589934588 bytes, more than the"),
    REFUSAL(PICKLE_BEGIN TEXT("\1", "w") TENSOR(STORAGE("Float", "0", "K\7"), "K\0", "K\6", "K\1")
                PICKLE_END,
            "entry \"data/0\" has 24 bytes, expected 7 elements of F32"),
    REFUSAL(PICKLE_BEGIN TEXT("\1", "w") TENSOR(STORAGE("Float", "0", "\x8a\x08\6\0\0\0\0\0\0\x40"),
                                                "K\0", "K\6", "K\1") PICKLE_END,
            "entry \"data/0\" has 24 bytes"),
    REFUSAL(PICKLE_BEGIN TEXT("\1", "w") TENSOR(STORAGE("Float", "9", "K\6"), "K\0", "K\6", "K\1")
                PICKLE_END,
            "tensor \"w\": the file has no entry \"data/9\""),
    REFUSAL(PICKLE_BEGIN TEXT("\1", "w") REBUILD SIX
            "K\0(K\6t(K\1t\x89}}" TEXT("\4", "conj") "\x88stR" PICKLE_END,
            "a tensor with metadata"),
    REFUSAL(PICKLE_BEGIN TEXT("\1", "w") TENSOR(SIX, "K\0", "K\6", "K\1") TEXT("\1", "w")
                TENSOR(SIX, "K\0", "K\6", "K\1") PICKLE_END,
            "tensor \"w\" stands there twice"),
    REFUSAL(PICKLE_BEGIN "N" TENSOR(SIX, "K\0", "K\6", "K\1") PICKLE_END,
            "a key that is neither text nor a number"),
    REFUSAL(PICKLE_BEGIN TEXT("\1", "\xff") TENSOR(SIX, "K\0", "K\6", "K\1") PICKLE_END,
            "its name is not UTF-8"),
    REFUSAL(PICKLE_BEGIN TEXT("\1", "\0") TENSOR(SIX, "K\0", "K\6", "K\1") PICKLE_END,
            "a key with a NUL"),
    REFUSAL("]q\0h\0a.", "nested more than 64 deep"),
};

static void bad_pickles_are_refused(void **state)
{
    fixture *f = *state;
    for (size_t i = 0; i < sizeof pickles / sizeof *pickles; i++) {
        const char *path = write_torch(f, pickles[i].pickle, pickles[i].size);
        expect_refused(f, path, pickles[i].message);
    }
}

/* Lists that each hold the last one twice, 60 deep: 2^60 values if they were walked. */
static void bombs_are_refused(void **state)
{
    fixture *f = *state;
    char pickle[2048];
    size_t used = 0;
    pickle[used++] = ']';
    for (int i = 0; i < 60; i++) {
        memcpy(pickle + used,
               "\x94"
               "0(h_h_l",
               8);
        pickle[used + 4] = pickle[used + 6] = (char)i;
        used += 8;
    }
    pickle[used++] = '.';
    expect_refused(f, write_torch(f, pickle, used), "hold each other again and again");
    memset(pickle, ')', 1024); /* of many containers in few bytes, each takes memory */
    expect_refused(f, write_torch(f, pickle, 1024), "ends without STOP");
    char *deep = malloc(6000);
    memset(deep, '(', 3000);
    memset(deep + 3000, 't', 3000);
    deep[5999] = '.';
    expect_refused(f, write_torch(f, deep, 6000), "STOP with");
    deep[2999] = ')';
    expect_refused(f, write_torch(f, deep, 6000), "nested more than 64 deep");
    free(deep);
}

static const refusal streams[] = {
    REFUSAL("\x80\x02N.", "a pickle, but none of torch.save"),
    REFUSAL("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.K\1.}.}.",
            "version than 1001"),
    REFUSAL(LEGACY_HEAD "cos\nsystem\n.", "the global \"os.system\" is refused"),
    REFUSAL(LEGACY_HEAD "N.N.", "no list of storages"),
    REFUSAL(LEGACY_HEAD "N.](K\1e.", "a storage whose key is no text"),
    REFUSAL(LEGACY_HEAD "N.](" TEXT("\1", "0") "e.", "storage \"0\" is of no tensor"),
    REFUSAL(LEGACY_HEAD "N.].x", "1 bytes after its last storage"),
    REFUSAL(LEGACY_HEAD SIX ".](" TEXT("\1", "0") "e.\7\0\0\0\0\0\0\0", "expected 6 of F32"),
    REFUSAL(LEGACY_HEAD SIX ".](" TEXT("\1", "0") "e.\6\0\0\0\0\0\0\0"
                                                  "abc",
            "with 11 bytes left"),
    REFUSAL(LEGACY_HEAD "(" STORAGE("Float", "0", "K\0") STORAGE("Float", "0", "K\0") "t.](" TEXT(
                "\1", "0") TEXT("\1", "0") "e.\0\0\0\0\0\0\0\0",
            "storage \"0\" comes twice"),
    REFUSAL(LEGACY_HEAD "(" SIX STORAGE("Half", "0", "K\6") "t.].", "6 elements of F"),
    REFUSAL(LEGACY_HEAD TENSOR(SIX, "K\0", "K\6", "K\1") ".].", "the file has no storage \"0\""),
};

static void bad_streams_are_refused(void **state)
{
    fixture *f = *state;
    const char *path = temp_path(&f->folder, "legacy.pt");
    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++) {
        write_bytes(path, streams[i].pickle, streams[i].size);
        expect_refused(f, path, streams[i].message);
    }
}

/* ---- what is refused: zip files -------------------------------------------------------------- */

/* One byte of a good file is another; `from` is an entry's local header, of the directory's first
 * entry, or of the end record, at a negative offset. */
typedef struct trick {
    enum { LOCAL, CENTRAL, LAST } from;
    int offset;
    uint8_t value;
    const char *message;
} trick;

static const trick tricks[] = {
    {CENTRAL, 10, 8, "entry \"m/data.pkl\": compressed (method 8)"},
    {CENTRAL, 8, 1, "entry \"m/data.pkl\": flags 0x1: encrypted"},
    {CENTRAL, 24, 1, "entry \"m/data.pkl\": 1 bytes stored as"},
    {CENTRAL, 45, 0xff, "entry \"m/data.pkl\": its local header at byte"},
    {CENTRAL, 42, 1, "entry \"m/data.pkl\": no local header at byte 1"},
    {CENTRAL, 16, 0xee, "entry \"m/data.pkl\": another CRC in its local header"},
    {CENTRAL, 46, 'x', "entry \"x/data.pkl\": another name in its local header"},
    {CENTRAL, 46, 0, "a name that is empty or holds a NUL"},
    {CENTRAL, 0, 'x', "no directory entry at byte"},
    {CENTRAL, 28, 0xff, "reaches past the directory"},
    {CENTRAL, 30, 1, "no directory entry at byte"},
    {LOCAL, 26, 200, "entry \"m/data.pkl\": its"},
    {LOCAL, 28, 1, "entry \"m/data/0\": overlaps"},
    {LOCAL, 18, 1, "entry \"m/data.pkl\": 1 bytes in its local header"},
    {LOCAL, 8, 8, "entry \"m/data.pkl\": other flags or another method"},
    {LOCAL, 60, 'x', "entry \"m/data.pkl\": its CRC is"},
    {LAST, -22, 'x', "a zip file without its end"},
    {LAST, -18, 1, "a zip file of several disks"},
    {LAST, -12, 9, "a zip file of several disks"},
    {LAST, -6, 1, "its directory is said to be"},
};

static size_t good_zip(zip_bytes *z, bool wide)
{
    static const char pickle[] =
        PICKLE_BEGIN TEXT("\1", "w") TENSOR(SIX, "K\0", "K\6", "K\1") PICKLE_END;
    *z = (zip_bytes){.wide = wide};
    zip_add(z, "m/data.pkl", pickle, sizeof pickle - 1);
    zip_add(z, "m/data/0", six, sizeof six);
    return zip_end(z);
}

static void zip_tricks_are_refused(void **state)
{
    fixture *f = *state;
    zip_bytes z;
    const char *path = temp_path(&f->folder, "trick.pt");
    for (size_t i = 0; i < sizeof tricks / sizeof *tricks; i++) {
        const trick *t = &tricks[i];
        size_t central = good_zip(&z, false);
        size_t base = t->from == LOCAL ? 0 : t->from == CENTRAL ? central : z.used;
        z.data[base + (size_t)t->offset] = t->value;
        write_bytes(path, z.data, z.used);
        assert_null(mc_tensor_file_open(f->ctx, path, NULL));
        if (!strstr(mc_error_message(f->ctx), t->message))
            fail_msg("trick %zu: \"%s\" not in: %s", i, t->message, mc_error_message(f->ctx));
        mc_clear_error(f->ctx);
    }
}

static void entries_that_share_a_name_or_bytes(void **state)
{
    fixture *f = *state;
    zip_bytes z = {0};
    const char *path = temp_path(&f->folder, "two.pt");
    zip_add(&z, "m/data.pkl", "N.", 2);
    zip_add(&z, "m/data.pkl", "N.", 2);
    zip_end(&z);
    write_bytes(path, z.data, z.used);
    expect_refused(f, path, "entry \"m/data.pkl\": stands in the directory twice");
    z = (zip_bytes){0};
    zip_add(&z, "m/data.pkl", "N.", 2);
    zip_add(&z, "x/data.pkl", "N.", 2);
    zip_end(&z);
    write_bytes(path, z.data, z.used);
    expect_refused(f, path, "two pickles");
    z = (zip_bytes){0};
    zip_add(&z, "m/data.pkl", "N.", 2);
    z.entries[1] = z.entries[0];
    z.entries[1].name = "m/data.pkl";
    z.count = 2;
    zip_end(&z);
    write_bytes(path, z.data, z.used);
    expect_refused(f, path, "overlaps entry \"m/data.pkl\"");
    z = (zip_bytes){0};
    zip_add(&z, "m/data.pkl", "N.", 2);
    zip_add(&z, "m/constants.pkl", "N.", 2);
    zip_end(&z);
    write_bytes(path, z.data, z.used);
    expect_refused(f, path, "a TorchScript archive");
    z = (zip_bytes){0};
    zip_add(&z, "m/code/x.py", "", 0);
    zip_end(&z);
    write_bytes(path, z.data, z.used);
    expect_refused(f, path, "without FOLDER/data.pkl");
}

static void zip64_that_contradicts(void **state)
{
    fixture *f = *state;
    zip_bytes z;
    const char *path = temp_path(&f->folder, "wide.pt");
    size_t central = good_zip(&z, true), extra = central + 46 + strlen("m/data.pkl");
    z.data[extra + 4]++; /* the size in the directory */
    write_bytes(path, z.data, z.used);
    expect_refused(f, path, "entry \"m/data.pkl\":");
    good_zip(&z, true);
    z.data[30 + strlen("m/data.pkl") + 4]++; /* and in the local header */
    write_bytes(path, z.data, z.used);
    expect_refused(f, path, "bytes in its local header");
    good_zip(&z, true);
    z.data[extra + 2] = 16; /* the field is cut: its offset is not there */
    write_bytes(path, z.data, z.used);
    expect_refused(f, path, "entry \"m/data.pkl\":");
    good_zip(&z, true);
    z.data[z.used - 22 - 20 + 8]++; /* the locator */
    write_bytes(path, z.data, z.used);
    expect_refused(f, path, "its zip64 locator points to");
    good_zip(&z, true);
    z.data[z.used - 12] = z.data[z.used - 14] = 3; /* entries */
    write_bytes(path, z.data, z.used);
    expect_refused(f, path, "contradicts the plain one");
    good_zip(&z, false);
    z.data[central = good_zip(&z, false)] = 'P';
    memset(z.data + central + 24, 0xff, 4); /* a size that needs zip64, without its field */
    write_bytes(path, z.data, z.used);
    expect_refused(f, path, "its zip64 field is too short");
}

/* Every file that ends early is refused. */
static void truncated_files_are_refused(void **state)
{
    fixture *f = *state;
    zip_bytes z;
    good_zip(&z, false);
    const char *path = temp_path(&f->folder, "short.pt");
    for (size_t size = 0; size < z.used; size++) {
        write_bytes(path, z.data, size);
        assert_null(mc_tensor_file_open(f->ctx, path, NULL));
        assert_non_null(strstr(mc_error_message(f->ctx), path));
        mc_clear_error(f->ctx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(bad_pickles_are_refused),
        TEST(bad_streams_are_refused),
        TEST(bombs_are_refused),
        TEST(zip_tricks_are_refused),
        TEST(entries_that_share_a_name_or_bytes),
        TEST(zip64_that_contradicts),
        TEST(truncated_files_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
