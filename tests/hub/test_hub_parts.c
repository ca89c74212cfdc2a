/* Files that arrive in parts, and checksums. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#ifdef MC_HAVE_CURL
#include "core/hub/net/blob_internal.h"
#include "tests/temp_folder.h"

enum { SIZE = 9 << 20 }; /* three parts */

static temp_folder folder;
static mc_error err;
static uint8_t data[SIZE];

static int set_up(void **state)
{
    (void)state;
    folder = temp_folder_new();
    for (size_t i = 0; i < SIZE; i++) data[i] = (uint8_t)(i * 2654435761u >> 24);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    mc_error_clear(&err);
    temp_folder_free(&folder);
    return 0;
}

static void open_parts(mc_hub_parts *p, uint64_t size)
{
    if (mc_hub_parts_open(&err, p, temp_path(&folder, "x"), size)) fail_msg("%s", err.message);
}

static void add(mc_hub_parts *p, size_t part, size_t size)
{
    const uint8_t *from = data + mc_hub_parts_start(p, part) + p->done[part];
    assert_int_equal(mc_hub_parts_add(&err, p, part, from, size), MC_OK);
}

static void expect_file(const char *name)
{
    static uint8_t found[SIZE + 1];
    FILE *file = fopen(temp_path(&folder, name), "rb");
    assert_non_null(file);
    assert_int_equal(fread(found, 1, sizeof found, file), SIZE);
    fclose(file);
    assert_memory_equal(found, data, SIZE);
}

static void parts_come_in_any_order_and_calls(void **state)
{
    (void)state;
    mc_hub_parts p;
    open_parts(&p, SIZE);
    assert_int_equal(p.count, 3);
    assert_false(p.resumed);
    add(&p, 2, 1000);
    add(&p, 0, 5);
    assert_int_equal(mc_hub_parts_prefix(&p), 5);
    mc_hub_parts_release(&p);
    open_parts(&p, SIZE); /* another process */
    assert_true(p.resumed);
    assert_int_equal(mc_hub_parts_arrived(&p), 1005);
    for (size_t i = p.count; i-- > 0;) add(&p, i, mc_hub_parts_length(&p, i) - p.done[i]);
    assert_int_equal(mc_hub_parts_prefix(&p), SIZE);
    uint8_t some[100];
    assert_int_equal(mc_hub_parts_read(&err, &p, 5000000, some, sizeof some), sizeof some);
    assert_memory_equal(some, data + 5000000, sizeof some);
    assert_int_equal(mc_hub_parts_finish(&err, &p, temp_path(&folder, "y")), MC_OK);
    mc_hub_parts_release(&p);
    expect_file("y");
    assert_int_equal(count_files(folder.path), 1);
}

/* Writes `bytes` at `offset` of what has arrived, or cuts it there. */
static void damage(uint64_t offset, const void *bytes, size_t size)
{
    FILE *file = fopen(temp_path(&folder, "x"), "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)offset, SEEK_SET), 0);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    if (!size) assert_int_equal(ftruncate(fileno(file), (off_t)offset), 0);
    fclose(file);
}

static void a_table_that_is_none_is_begun_anew(void **state)
{
    (void)state;
    static const uint64_t much = SIZE, other = 12345;
    const struct {
        uint64_t offset;
        const void *bytes;
        size_t size;
    } cases[] = {
        {SIZE, "other", 5}, {SIZE + 8, &other, 8}, {SIZE + 16, &other, 8},   {SIZE + 24, &much, 8},
        {100, "", 0},       {SIZE + 20, "", 0},    {SIZE + 48, "longer", 6}, {0, "", 0}};
    mc_hub_parts p;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        remove(temp_path(&folder, "x"));
        open_parts(&p, SIZE);
        add(&p, 1, 1000);
        mc_hub_parts_release(&p);
        damage(cases[i].offset, cases[i].bytes, cases[i].size);
        open_parts(&p, SIZE);
        if (p.resumed || mc_hub_parts_arrived(&p)) fail_msg("case %zu was believed", i);
        mc_hub_parts_release(&p);
    }
    open_parts(&p, SIZE - 1); /* another file's rest */
    assert_false(p.resumed);
    mc_hub_parts_release(&p);
    open_parts(&p, 0);
    assert_int_equal(p.count, 0);
    mc_hub_parts_release(&p);
    assert_int_equal(mc_hub_parts_open(&err, &p, temp_path(&folder, "no/x"), 1), MC_ERR_IO);
    mc_hub_parts_release(&p);
    mc_error_clear(&err);
    assert_int_equal(mc_hub_parts_open(&err, &p, temp_path(&folder, "x"), UINT64_MAX),
                     MC_ERR_FORMAT);
    mc_hub_parts_release(&p);
}

/* FIPS 180's example, and what `printf abc | git hash-object --stdin` prints. */
static void checksums(void **state)
{
    (void)state;
    static const char *const hashes[] = {
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        "f2ba8f84ab5c1bce84a7b441cb1959cfc7093b7f"};
    mc_hub_libraries lib;
    assert_int_equal(mc_hub_libraries_load(&err, &lib), MC_OK);
    for (int i = 0; i < 2; i++) {
        char found[MC_HUB_HASH_MAX + 1];
        mc_hub_digest d;
        assert_true(mc_hub_digest_init(&d, &lib, hashes[i], 3));
        assert_true(mc_hub_digest_add(&d, "a", 1) && mc_hub_digest_add(&d, "bc", 2));
        assert_true(mc_hub_digest_end(&d, found));
        assert_string_equal(found, hashes[i]);
        mc_hub_digest_release(&d);
    }
}

static void addresses(void **state)
{
    (void)state;
    char url[MC_HUB_URL_MAX] = "http://h/";
    assert_true(mc_hub_url_add(url, "a b/c%\xc3\xa9?#", true));
    assert_string_equal(url, "http://h/a%20b/c%25%C3%A9%3F%23");
    assert_true(mc_hub_url_add(url, "/x", false));
    assert_string_equal(strrchr(url, '#') ? "" : strrchr(url, '%'), "%2Fx");
    static char longest[MC_HUB_URL_MAX];
    memset(longest, ' ', sizeof longest - 1);
    assert_false(mc_hub_url_add(url, longest, false));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_come_in_any_order_and_calls),
        cmocka_unit_test(a_table_that_is_none_is_begun_anew),
        cmocka_unit_test(checksums),
        cmocka_unit_test(addresses),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
#else
int main(void)
{
    print_message("SKIPPED: a build without libcurl\n");
    return 0;
}
#endif
