/* Images: what Pillow makes of the same files (tests/datasets/images/make.py), what is none, and
 * rows that are images. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "datasets/image/image_internal.h"
#include "core/base/memory_internal.h"
#include "tests/optim/optim_test.h"
#include "tests/temp_folder.h"

enum { SIZE = 8, COUNT = 3 * SIZE * SIZE };

static const char images[] = MC_SOURCE_DIR "/tests/datasets/images/";

static const mc_image_form plain = {
    .size = SIZE, .resize = true, .filter = MC_IMAGE_BILINEAR, .factor = 1, .std = {1, 1, 1}};

/* Whether the build can read the file. */
static bool is_built(const char *name)
{
    bool png = strstr(name, ".png");
#ifndef MC_HAVE_PNG
    if (png) return false;
#endif
#ifndef MC_HAVE_JPEG
    if (!png) return false;
#endif
    (void)png;
    return true;
}

static mc_context *context(void)
{
    mc_context *ctx = mc_init_distributed(NULL);
    assert_good(ctx);
    return ctx;
}

/* ---- files ----------------------------------------------------------------------------------- */

static const char *const names[] = {"rgb.png",   "rgba.png",    "grey.png",  "grey_alpha.png",
                                    "bits.png",  "palette.png", "rgb.jpg",   "palette_clear.png",
                                    "grey.jpg",  "grey16.png",  "cmyk.jpg",  "progressive.jpg",
                                    "turn2.jpg", "turn3.png",   "turn4.jpg", "turn5.png",
                                    "turn6.jpg", "turn7.png",   "turn8.jpg"};
enum { NAMES = sizeof names / sizeof *names };

/* Bytes of an expectation: (SIZE, SIZE, 3). */
static void read_expected(const char *name, uint8_t expected[COUNT])
{
    char path[1024];
    snprintf(path, sizeof path, "%s%s.rgb", images, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(expected, 1, COUNT, file), COUNT);
    fclose(file);
}

/* At most 1 of 255 off, and seldom. */
static void test_as_pillow(void **state)
{
    (void)state;
    mc_context *ctx = context();
    for (int i = 0; i < NAMES; i++) {
        char path[1024];
        uint8_t expected[COUNT];
        float got[COUNT];
        int off = 0;
        if (!is_built(names[i])) continue;
        snprintf(path, sizeof path, "%s%s", images, names[i]);
        assert_int_equal(mc_image_read(ctx, path, &plain, got), MC_OK);
        read_expected(names[i], expected);
        for (int k = 0; k < COUNT; k++) {
            double e = fabs((double)got[k % 3 * SIZE * SIZE + k / 3] - expected[k]);
            if (e > 1) fail_msg("%s: %g at %d", names[i], e, k);
            off += e > 0;
        }
        if (off > COUNT / 4) fail_msg("%s: %d of %d are off", names[i], off, COUNT);
    }
    mc_context_free(ctx);
}

/* A ramp of one row, by hand: which pixels count how much, and where sums leave a byte. */
static void test_filters(void **state)
{
    (void)state;
    static const uint8_t line[] = {0, 255, 255, 0, 0, 0};
    static const struct {
        mc_image_filter filter;
        int width;
        uint8_t expected[6];
    } cases[] = {
        {MC_IMAGE_NEAREST, 3, {255, 0, 0}},   {MC_IMAGE_NEAREST, 2, {255, 0}},
        {MC_IMAGE_BOX, 3, {128, 128, 0}},     {MC_IMAGE_BILINEAR, 3, {146, 128, 0}},
        {MC_IMAGE_BICUBIC, 3, {149, 136, 0}}, {MC_IMAGE_BILINEAR, 6, {0, 255, 255, 0, 0, 0}}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        uint8_t data[sizeof line * 3];
        mc_error err = {0};
        mc_pixels from = {.width = sizeof line, .height = 1, .data = data}, out;
        for (size_t i = 0; i < sizeof data; i++) data[i] = line[i / 3];
        assert_int_equal(mc_pixels_resize(&err, &from, cases[c].width, 1, cases[c].filter, &out),
                         MC_OK);
        for (int i = 0; i < 3 * cases[c].width; i++)
            if (out.data[i] != cases[c].expected[i / 3])
                fail_msg("case %zu, pixel %d: %d, expected %d", c, i / 3, out.data[i],
                         cases[c].expected[i / 3]);
        mc_free(out.data);
    }
}

static void test_normalised(void **state)
{
    (void)state;
    if (!is_built("rgb.png")) skip();
    mc_context *ctx = context();
    float bytes[COUNT], got[COUNT];
    mc_image_form form = plain;
    form.factor = 1.0 / 255;
    for (int c = 0; c < 3; c++) {
        form.mean[c] = 0.1 * (c + 1);
        form.std[c] = 0.5 + c;
    }
    char path[1024];
    snprintf(path, sizeof path, "%srgb.png", images);
    mc_image_read(ctx, path, &plain, bytes);
    assert_int_equal(mc_image_read(ctx, path, &form, got), MC_OK);
    for (int k = 0; k < COUNT; k++) {
        int c = k / (SIZE * SIZE);
        double expected = ((double)bytes[k] / 255 - form.mean[c]) / form.std[c];
        assert_true(fabs((double)got[k] - expected) < 1e-6);
    }
    form.resize = false;
    mc_image_read(ctx, path, &form, got);
    assert_error(ctx, MC_ERR_FORMAT, "rgb.png", "19 x 13 pixels, expected 8 x 8", "do_resize");
    mc_context_free(ctx);
}

/* ---- what is no image ------------------------------------------------------------------------ */

static void write_start(const temp_folder *folder, const char *name, size_t size)
{
    char path[1024], data[4096];
    snprintf(path, sizeof path, "%s%s", images, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t whole = fread(data, 1, sizeof data, file);
    fclose(file);
    assert_true(size < whole);
    write_bytes(temp_path(folder, name), data, size);
}

/* The beginning of a PNG file of 60,000 x 60,000 pixels. */
static const uint8_t bomb[] = {0x89, 'P',  'N', 'G', '\r', '\n', 0x1a, '\n', 0,    0,    0,
                               13,   'I',  'H', 'D', 'R',  0,    0,    0xea, 0x60, 0,    0,
                               0xea, 0x60, 8,   2,   0,    0,    0,    0x0f, 0xb0, 0xe2, 0x15,
                               0,    0,    0,   10,  'I',  'D',  'A',  'T'};

static void test_no_images(void **state)
{
    (void)state;
    mc_context *ctx = context();
    temp_folder folder = temp_folder_new();
    float got[COUNT];
    write_text(temp_path(&folder, "text.png"), "no image at all");
    write_bytes(temp_path(&folder, "empty.png"), "", 0);
    write_start(&folder, "rgb.png", 300);
    write_start(&folder, "rgb.jpg", 700);
    write_start(&folder, "progressive.jpg", 20);
    write_bytes(temp_path(&folder, "bomb.png"), bomb, sizeof bomb);
    static const struct {
        const char *name, *word;
    } bad[] = {{"text.png", "expected a PNG or JPEG file"},
               {"empty.png", "expected a PNG or JPEG file"},
               {"rgb.png", "a damaged PNG image: it is truncated"},
               {"rgb.jpg", "a damaged JPEG image: it is truncated"},
               {"progressive.jpg", "a damaged JPEG image"},
               {"bomb.png", "60000 x 60000 pixels, expected 1 to 178956970"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (i > 1 && !is_built(bad[i].name)) continue;
        mc_image_read(ctx, temp_path(&folder, bad[i].name), &plain, got);
        assert_error(ctx, MC_ERR_FORMAT, bad[i].name, bad[i].word);
        mc_clear_error(ctx);
    }
    mc_image_read(ctx, temp_path(&folder, "nowhere.png"), &plain, got);
    assert_error(ctx, MC_ERR_NOT_FOUND, "nowhere.png");
    mc_clear_error(ctx);
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "rgb.jpg" : "rgb.png";
        char path[1024];
        if (is_built(name)) continue;
        snprintf(path, sizeof path, "%s%s", images, name);
        mc_image_read(ctx, path, &plain, got);
        assert_error(ctx, MC_ERR_UNSUPPORTED, name, i ? "no libjpeg-turbo" : "no libpng");
        mc_clear_error(ctx);
    }
    mc_image_read(ctx, "x.png", &(mc_image_form){.size = 8, .filter = 9}, got);
    assert_error(ctx, MC_ERR_ARGUMENT, "filter 9");
    temp_folder_free(&folder);
    mc_context_free(ctx);
}

/* EXIF data that end in the middle, or say what there is not, have no orientation. */
static void test_exif(void **state)
{
    (void)state;
    static const uint8_t little[] = {'I', 'I', 42, 0, 8, 0, 0, 0, 1, 0, 0x12, 1, 3,
                                     0,   1,   0,  0, 0, 6, 0, 0, 0, 0, 0,    0, 0};
    static const uint8_t big[] = {'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1, 1, 0x12, 0,
                                  3,   0,   0, 0,  1, 0, 3, 0, 0, 0, 0, 0,    0};
    uint8_t changed[sizeof little];
    assert_int_equal(mc_exif_orientation(little, sizeof little), 6);
    assert_int_equal(mc_exif_orientation(big, sizeof big), 3);
    for (size_t size = 0; size < 22; size++) assert_int_equal(mc_exif_orientation(little, size), 1);
    static const struct {
        int at;
        uint8_t value;
    } changes[] = {{0, 'X'}, {2, 43}, {4, 200}, {7, 200}, {10, 0x13}, {12, 4}, {18, 9}, {18, 0}};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        memcpy(changed, little, sizeof little);
        changed[changes[i].at] = changes[i].value;
        assert_int_equal(mc_exif_orientation(changed, sizeof changed), 1);
    }
}

/* ---- rows ------------------------------------------------------------------------------------ */

static void copy_image(const temp_folder *folder, const char *name, const char *to)
{
    char command[2048];
    snprintf(command, sizeof command, "cp '%s%s' '%s/%s'", images, name, folder->path, to);
    assert_int_equal(system(command), 0);
}

/* Batches of a table: paths beside it and whole ones, the last batch with a row alone. */
static void test_rows(void **state)
{
    (void)state;
    if (!is_built("rgb.png")) skip();
    mc_context *ctx = context();
    temp_folder folder = temp_folder_new();
    char text[2048], path[1024];
    float expected[COUNT], got[2 * COUNT];
    copy_image(&folder, "rgb.png", "a.png");
    snprintf(text, sizeof text, "path,kind\na.png,x\n%sgrey.png,y\n%spalette.png,x\n", images,
             images);
    write_text(temp_path(&folder, "rows.csv"), text);
    for (int sizes = 0; sizes < 2; sizes++) {
        mc_dataset_options options = {.image = plain};
        options.image.tokens = 5;
        mc_dataset *d = mc_dataset_from_file(ctx, temp_path(&folder, "rows.csv"),
                                             &(mc_data_columns){.image = "path", .label = "kind"},
                                             NULL, &options);
        assert_good(ctx);
        assert_int_equal(mc_dataset_labels(d), 2);
        mc_dataloader *l =
            mc_dataloader_new(d, &(mc_dataloader_options){.batch_size = 2, .sizes = sizes});
        mc_batch *b = mc_dataloader_next(l);
        assert_good(ctx);
        assert_true(!b->ids && !b->lengths && b->tokens == 10 && b->all_tokens == 10);
        assert_int_equal(mc_tensor_count(b->pixels), 2 * COUNT);
        mc_tensor_read_f32(ctx, b->pixels, got, 2 * COUNT);
        mc_image_read(ctx, temp_path(&folder, "a.png"), &plain, expected);
        assert_memory_equal(got, expected, sizeof expected);
        snprintf(path, sizeof path, "%sgrey.png", images);
        mc_image_read(ctx, path, &plain, expected);
        assert_memory_equal(got + COUNT, expected, sizeof expected);
        uint64_t key = b->key;
        b = mc_dataloader_next(l);
        assert_int_equal(b->rows, 1);
        assert_int_equal(mc_tensor_size(b->pixels, 0), 1 + sizes);
        assert_true(sizes ? key && b->key == key : !key);
        mc_tensor_read_f32(ctx, b->pixels, got, (1 + sizes) * COUNT);
        for (int k = 0; k < COUNT && sizes; k++) assert_true(got[COUNT + k] == 0);
        assert_null(mc_dataloader_next(l));
        mc_dataloader_free(l);
        mc_dataset_free(d);
    }
    assert_good(ctx);
    temp_folder_free(&folder);
    mc_context_free(ctx);
}

static void test_bad_rows(void **state)
{
    (void)state;
    mc_context *ctx = context();
    temp_folder folder = temp_folder_new();
    mc_dataset_options options = {.image = plain};
    const mc_data_columns columns = {.image = "path", .label = "kind"};
    write_text(temp_path(&folder, "rows.csv"), "path,kind\nno.png,x\nno.png,y\n");
    const char *path = temp_path(&folder, "rows.csv");
    mc_dataset *d = mc_dataset_from_file(ctx, path, &columns, NULL, NULL);
    assert_null(mc_dataloader_new(d, &(mc_dataloader_options){.batch_size = 1}));
    assert_error(ctx, MC_ERR_ARGUMENT, "rows.csv", "a model's form of images");
    mc_clear_error(ctx);
    mc_dataset_set_options(d, &options);
    mc_dataloader *l = mc_dataloader_new(d, &(mc_dataloader_options){.batch_size = 1});
    assert_null(mc_dataloader_next(l));
    assert_error(ctx, MC_ERR_NOT_FOUND, "rows.csv:2: ", "no.png");
    mc_clear_error(ctx);
    mc_dataloader_free(l);
    write_text(temp_path(&folder, "rows.csv"), "path,kind\nno.png,x\n,y\n");
    assert_null(mc_dataset_from_file(ctx, path, &columns, NULL, &options));
    assert_error(ctx, MC_ERR_FORMAT, "rows.csv:3", "expected the path of an image");
    mc_clear_error(ctx);
    const mc_data_columns both = {.image = "path", .text = "kind"};
    assert_null(mc_dataset_from_file(ctx, path, &both, NULL, &options));
    assert_error(ctx, MC_ERR_ARGUMENT, "rows are images");
    mc_clear_error(ctx);
    temp_folder_free(&folder);
    mc_context_free(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_pillow),  cmocka_unit_test(test_filters),
        cmocka_unit_test(test_normalised), cmocka_unit_test(test_no_images),
        cmocka_unit_test(test_exif),       cmocka_unit_test(test_rows),
        cmocka_unit_test(test_bad_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
