/* Commands on images: `finetune`, `eval` and `predict` of a small ViT on a table of files, `plan`
 * and `inspect`; and of options and rows that do not fit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include "tests/tools/command_test.h"

#define IMAGES MC_SOURCE_DIR "/tests/datasets/images"

static const char config[] =
    "{\"model_type\": \"vit\", \"hidden_size\": 16, \"num_hidden_layers\": 1, "
    "\"num_attention_heads\": 2, \"intermediate_size\": 32, \"image_size\": 8, \"patch_size\": 4, "
    "\"initializer_range\": 0.2}";

/* Images that differ: what is grey, and what has colours. */
static int set_up(void **state)
{
    (void)state;
#ifndef MC_HAVE_PNG
    return 0;
#endif
    folder = temp_folder_new();
    assert_int_equal(mkdir(temp_path(&folder, "vit"), 0777), 0);
    write_text(temp_path(&folder, "vit/config.json"), config);
    assert_int_equal(mkdir(temp_path(&folder, "data"), 0777), 0);
    must("cp -r '" IMAGES "' data/pictures");
    write_text(temp_path(&folder, "data/rows.csv"),
               "file,kind,amount\n"
               "pictures/rgb.png,colour,1\npictures/grey.png,grey,0\n"
               "pictures/rgba.png,colour,1\npictures/grey_alpha.png,grey,0\n"
               "pictures/turn3.png,colour,1\npictures/grey.png,grey,0\n"
               "pictures/turn5.png,colour,1\npictures/grey_alpha.png,grey,0\n");
    return 0;
}

static double value_of(const char *name)
{
    char key[64];
    snprintf(key, sizeof key, " %s=", name);
    const char *found = strstr(out, key);
    if (!found) fail_msg("no %s= in: %s", name, out);
    return strtod(found + strlen(key), NULL);
}

static void test_classes(void **state)
{
    (void)state;
    must("$MC finetune vit --config vit --data data/rows.csv --val data/rows.csv --image file "
         "--label kind --epochs 20 --batch-size 4 --lr 0.02 --output kinds");
    double loss = value_of("val_loss");
    assert_true(value_of("accuracy") > 0.99);
    must("$MC eval --model kinds --data data/rows.csv --batch-size 3");
    assert_true(value_of("accuracy") > 0.99 && fabs(value_of("val_loss") - loss) < 1e-3);
    must("$MC predict --model kinds --data data/rows.csv --output answers.csv");
    read_text(out, &folder, "answers.csv");
    assert_non_null(strstr(out, "file,kind,amount,label,probability"));
    assert_non_null(strstr(out, "pictures/rgb.png,colour,1,colour,"));
    assert_non_null(strstr(out, "pictures/grey_alpha.png,grey,0,grey,"));
    must("$MC predict --model kinds --image data/pictures/grey.png --image data/pictures/rgb.png");
    assert_true(strncmp(out, "{\"label\":\"grey\"", 15) == 0);
    assert_non_null(strstr(out, "\n{\"label\":\"colour\""));
    must("$MC inspect --model kinds --image data/pictures/grey.png");
    assert_non_null(strstr(out, "last_hidden"));
    read_text(out, &folder, "kinds/preprocessor_config.json");
    assert_non_null(strstr(out, "ViTImageProcessor"));
    read_text(out, &folder, "kinds/task.json");
    assert_non_null(strstr(out, "\"image\":\t\"file\""));
}

/* Numbers, factors, several passes of a step, and a run that goes on. */
static void test_other_runs(void **state)
{
    (void)state;
    must("$MC finetune vit --config vit --data data/rows.csv --val data/rows.csv --image file "
         "--label amount --regression --epochs 30 --batch-size 2 --gradient-accumulation-steps 2 "
         "--lr 0.02 --output number");
    assert_true(value_of("mse") < 0.1);
    must("$MC finetune --model kinds --data data/rows.csv --val data/rows.csv --image file --label "
         "kind --lora-rank 2 --epochs 1 --output factors");
    must("$MC eval --model factors --data data/rows.csv");
    assert_true(value_of("accuracy") > 0.99);
    must("$MC finetune --model factors --data data/rows.csv --val data/rows.csv --image file "
         "--label "
         "kind --base-weights int8 --epochs 1 --output factors8 && "
         "test -e factors8/adapter_model.safetensors");
    assert_true(value_of("accuracy") > 0.99);
    must("$MC finetune vit --config vit --data data/rows.csv --val data/rows.csv --image file "
         "--label kind --epochs 3 --batch-size 4 --stop-after 3 --resume --output two");
    must("$MC finetune vit --config vit --data data/rows.csv --val data/rows.csv --image file "
         "--label kind --epochs 3 --batch-size 4 --resume --output two");
    double loss = value_of("val_loss");
    must("$MC finetune vit --config vit --data data/rows.csv --val data/rows.csv --image file "
         "--label kind --epochs 3 --batch-size 4 --output one");
    assert_true(value_of("val_loss") == loss);
    must("$MC finetune vit --config vit --data data/rows.csv --image file --label kind --dry-run");
    assert_non_null(strstr(out, "dry_run=true"));
    must("$MC plan vit --config vit --batch-size 4");
    assert_true(value_of("tokens_per_step") == 4 * 5);
}

static void test_refusals(void **state)
{
    (void)state;
    write_text(temp_path(&folder, "data/bad.csv"),
               "file,kind\npictures/rgb.png,colour\nmissing.png,grey\n");
    write_text(temp_path(&folder, "data/text.csv"), "file,kind\nrows.csv,colour\nrows.csv,grey\n");
#define TRAIN "$MC finetune vit --config vit --no-save "
    must_refuse(2, "vit reads images: expected --image",
                TRAIN "--data data/rows.csv --text file --label kind");
    must_refuse(2, "vit reads images: expected --image", TRAIN "--data data --task BoolQ");
    must_refuse(1, "kinds: vit does not generate text: expected one of gpt2",
                "$MC generate --model kinds --prompt x");
    must_refuse(1, "a model of vit, expected an encoder of texts",
                "$MC embed --model kinds --text x --output vectors.npy");
    must_refuse(2, "--image: a row is an image",
                TRAIN "--data data/rows.csv --image file --text kind --label kind");
    must_refuse(2, "--image: bert reads texts",
                "$MC finetune bert --config bert-base-uncased --no-save --data data/rows.csv "
                "--image file --label kind");
    must_refuse(1, "data/bad.csv:3: data/missing.png: cannot open",
                TRAIN "--data data/bad.csv --val data/rows.csv --image file --label kind "
                      "--batch-size 2");
    must_refuse(1, "data/text.csv:2: data/rows.csv: no image: expected a PNG or JPEG file",
                "$MC predict --model kinds --data data/text.csv --image file --output bad.jsonl");
    must_refuse(1, "a vit reads images: expected --image",
                "$MC predict --model kinds --text 'a text'");
    must_refuse(1, "--text: a vit reads images", "$MC inspect --model kinds --text 'a text'");
    must_refuse(2, "vit is not pretrained here",
                "$MC pretrain --family vit --config vit --data x.bin --output never");
}

int main(void)
{
#ifndef MC_HAVE_PNG
    return 0;
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_classes),
        cmocka_unit_test(test_other_runs),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, set_up, remove_folder);
}
