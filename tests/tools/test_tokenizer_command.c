/* `modelcenter tokenizer train` as a user runs it, and what other commands do with its result: a
 * small T5 of random weights answers texts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>
#include <cmocka.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tests/tools/command_test.h"

/* What is trained on: words of some syllables, a line each three. */
static void write_corpus(void)
{
    static const char *const words[] = {"water", "wet", "is", "the", "river", "waters", "rivers"};
    static char text[20000];
    size_t used = 0;
    for (int i = 0; used + 16 < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%c", words[i * i % 53 % 7],
                                 i % 3 == 2 ? '\n' : ' ');
    write_text(temp_path(&folder, "corpus.txt"), text);
}

#ifdef MC_HAVE_SENTENCEPIECE

/* A T5 in the folder "own", beside the tokenizer. */
static void save_t5(void)
{
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 4});
    mc_t5_config c = mc_t5_config_default();
    c.vocab_size = 64;
    c.dim = c.dim_ff = 16;
    c.layers = c.decoder_layers = 1;
    c.heads = 2;
    c.head_dim = 8;
    mc_model_save(mc_t5_new(ctx, &c, NULL, NULL), temp_path(&folder, "own"));
    assert_false(mc_print_error(ctx, stderr));
    mc_context_free(ctx);
}

static void test_train(void **state)
{
    (void)state;
    write_corpus();
    assert_int_equal(run_in(&folder, "",
                            "$MC tokenizer train --input corpus.txt --vocab-size 24 "
                            "--type unigram --sentinels 2 --output own"),
                     0);
    assert_non_null(strstr(out, "result vocabulary=24 folder=own"));
    assert_int_equal(run_in(&folder, "", "$MC tokenize --model own --text 'the water<extra_id_0>'"),
                     0);
    assert_non_null(strstr(out, "<extra_id_0> </s>\n"));
    assert_non_null(strstr(out, " 23 1\n"));
    assert_int_equal(
        run_in(&folder, "", "$MC prepare --tokenizer own --input corpus.txt --output t.bin"), 0);
    assert_non_null(strstr(out, "result documents=1"));
    save_t5();
    assert_int_equal(run_in(&folder, "",
                            "$MC generate t5 --pretrained own --prompt 'is water wet' "
                            "--max-new-tokens 8"),
                     0);
    assert_int_equal(run_in(&folder, "",
                            "$MC tokenizer train --input corpus.txt --vocab-size 24 "
                            "--type bpe --output merges"),
                     0);
    assert_int_equal(run_in(&folder, "", "$MC tokenize --model merges --text 'the water'"), 0);
    assert_non_null(strstr(out, "</s>"));
}

static void test_refusals(void **state)
{
    (void)state;
    write_corpus();
    assert_int_equal(
        run_in(&folder, "", "$MC tokenizer train --input none.txt --vocab-size 24 --output own"),
        1);
    assert_non_null(strstr(err, "none.txt is no file"));
    assert_int_equal(
        run_in(&folder, "",
               "$MC tokenizer train --input corpus.txt --vocab-size 9999 --output own"),
        1);
    assert_non_null(strstr(err, "Vocabulary size too high"));
    assert_int_equal(run_in(&folder, "", "$MC tokenizer trian --input corpus.txt --output own"), 2);
    assert_non_null(strstr(err, "unknown action \"trian\""));
    assert_int_equal(run_in(&folder, "", "$MC tokenizer train --output own"), 2);
    assert_int_equal(access(temp_path(&folder, "own"), F_OK), -1);
}

#else

static void test_train(void **state)
{
    (void)state;
    write_corpus();
    assert_int_equal(run_in(&folder, "", "$MC tokenizer train --input corpus.txt --output own"), 1);
    assert_non_null(strstr(err, "MC_ENABLE_SENTENCEPIECE"));
}

static void test_refusals(void **state)
{
    (void)state;
    assert_int_equal(run_in(&folder, "", "$MC tokenizer train --output own"), 2);
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_train, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_refusals, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
