/* Chinese words: what texts are cut into, with a small dictionary and with the whole one, and what
 * becomes of files that are none. The expected words are those of Python's jieba 0.42.1 with the
 * same files; compare_jieba.py compares many more texts. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <sys/wait.h>
#include "core/base/memory_internal.h"
#include "tests/temp_folder.h"
#include "tests/tokenizers/jieba_test.h"
#include "tokenizers/cpm/jieba_internal.h"

static temp_folder folder;
static mc_error err;
static mc_jieba jieba;
static mc_jieba_scratch scratch;

static int set_up(void **state)
{
    (void)state;
    folder = temp_folder_new();
    write_jieba(&folder, "jieba");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    mc_jieba_release(&jieba);
    mc_jieba_scratch_release(&scratch);
    mc_error_clear(&err);
    temp_folder_free(&folder);
    unsetenv("MC_JIEBA_DIR");
    return 0;
}

static void open_jieba(void)
{
    if (mc_jieba_open(&err, &jieba)) fail_msg("%s", err.message);
}

/* Opening fails, with these words in the message. */
static void expect_failure(mc_status status, const char *part)
{
    mc_status returned = mc_jieba_open(&err, &jieba);
    assert_int_equal(returned, err.status);
    if (err.status != status || !strstr(err.message, part))
        fail_msg("\"%s\" not in: %s", part, err.message ? err.message : "no error");
    mc_error_clear(&err);
    mc_jieba_release(&jieba);
}

/* ---- Cutting --------------------------------------------------------------------------------- */

typedef struct word_list {
    char text[4096]; /* each word with a bar after it */
    size_t size, words, most;
} word_list;

static bool add_word(void *user, const uint8_t *word, size_t size, size_t chars)
{
    word_list *list = user;
    assert_true(chars > 0 && chars <= size);
    assert_true(list->size + size + 2 < sizeof list->text);
    memcpy(list->text + list->size, word, size);
    list->size += size;
    list->text[list->size++] = '|';
    return ++list->words != list->most;
}

static void expect_words(const char *words)
{
    char text[1024];
    size_t size = 0;
    word_list list = {.size = 0};
    for (const char *p = words; *p; p++)
        if (*p != '|') text[size++] = *p;
    assert_int_equal(mc_jieba_cut(&jieba, &scratch, (const uint8_t *)text, size, add_word, &list),
                     MC_OK);
    if (strcmp(list.text, words) != 0) fail_msg("expected %s, got %s", words, list.text);
}

static void test_words(void **state)
{
    (void)state;
    open_jieba();
    expect_words("");
    expect_words("我|来到|北京|清华大学|");
    expect_words("研究|生命|的|");
    expect_words("甲乙|丙|");  /* equals: the longer first word */
    expect_words("他|的|是|"); /* no word where its characters are likelier */
    expect_words("的|是|");
    expect_words("零|点|零|");
    expect_words("杭研|他|");
    expect_words("他|来到|了|网易|杭研大厦|");
    expect_words("杭研厦|了|");
    expect_words("网研研厦|杭|");
    expect_words("C++|和|c|++|");
    expect_words("a1.5%|b| |-|3|.|x|_%%|");
    expect_words("3.14%|4|.%|");
    expect_words("GPT|-|3|的|V1.0|版|");
    expect_words("+-#|研|+|1|");
    expect_words("x|\r\n|\t|y|\r|\r\n|");
    expect_words("重|，|重|。|\u3000| |z|");
    expect_words("\u9fd5|\u9fd6|\u4e00|\u4dff|"); /* the ends of what is Chinese */
}

/* A word has to begin where the one before ended. */
static bool follow(void *user, const uint8_t *word, size_t size, size_t chars)
{
    const uint8_t **next = user;
    assert_ptr_equal(word, *next);
    assert_true(chars > 0 && chars <= size);
    *next = word + size;
    return true;
}

/* Bytes that are no UTF-8 end a block; none is lost. */
static void test_bytes(void **state)
{
    (void)state;
    open_jieba();
    expect_words("北京|\xff|北京|\xe5\x8c|北京|\xe5|");
    expect_words("a|\xed|\xa0|\x80|b|"); /* a surrogate is none */
    uint8_t text[600];
    uint32_t random = 1;
    for (int round = 0; round < 2000; round++) {
        for (size_t i = 0; i < sizeof text; i++) {
            random = random * 1664525u + 1013904223u;
            text[i] = (uint8_t)(random >> 24);
            if (i % 3 == 0) text[i] = (uint8_t)(0xE4 + text[i] % 6);
            if (i % 3 && round % 8) text[i] = 0x80 | (text[i] & 0x3F);
        }
        const uint8_t *next = text;
        size_t size = (random >> 8) % sizeof text;
        assert_int_equal(mc_jieba_cut(&jieba, &scratch, text, size, follow, &next), MC_OK);
        assert_ptr_equal(next, text + size);
    }
}

static void test_stopping(void **state)
{
    (void)state;
    open_jieba();
    const char text[] = "我来到北京，他来到了网易杭研大厦";
    for (size_t most = 1; most < 9; most++) {
        word_list list = {.most = most};
        assert_int_equal(
            mc_jieba_cut(&jieba, &scratch, (const uint8_t *)text, strlen(text), add_word, &list),
            MC_OK);
        assert_int_equal(list.words, most);
    }
}

/* ---- The whole dictionary -------------------------------------------------------------------- */

static void test_installed(void **state)
{
    (void)state;
    unsetenv("MC_JIEBA_DIR");
    if (mc_jieba_open(&err, &jieba)) {
        if (err.status != MC_ERR_UNSUPPORTED || !strstr(err.message, "MC_JIEBA_DIR"))
            fail_msg("%s", err.message);
        printf("SKIPPED: %s\n", err.message);
        skip();
    }
    expect_words("我|来到|北京|清华大学|");
    expect_words("他|来到|了|网易|杭研|大厦|");
    expect_words("小明|硕士|毕业|于|中国科学院|计算所|，|"
                 "后|在|日本京都大学|深造|");
}

/* ---- Files ----------------------------------------------------------------------------------- */

static void test_places(void **state)
{
    (void)state;
    size_t size;
    void *image = mc_jieba_build_folder(&err, temp_path(&folder, "jieba"), &size);
    assert_non_null(image);
    write_bytes(temp_path(&folder, "table"), image, size);
    setenv("MC_JIEBA_DIR", temp_path(&folder, "table"), 1); /* a file */
    open_jieba();
    expect_words("我|来到|北京|清华大学|");
    mc_jieba_release(&jieba);
    mkdir(temp_path(&folder, "installed"), 0777);
    write_bytes(temp_path(&folder, "installed/jieba.bin"), image, size);
    mc_free(image);
    setenv("MC_JIEBA_DIR", temp_path(&folder, "installed"), 1);
    open_jieba();
    expect_words("研究|生命|的|");
    mc_jieba_release(&jieba);
    setenv("MC_JIEBA_DIR", folder.path, 1);
    expect_failure(MC_ERR_NOT_FOUND, "holds neither jieba.bin nor jieba's dict.txt");
    setenv("MC_JIEBA_DIR", "/nowhere/jieba", 1);
    expect_failure(MC_ERR_NOT_FOUND, "/nowhere/jieba: cannot open");
    unlink(temp_path(&folder, "jieba/finalseg/prob_trans.py"));
    setenv("MC_JIEBA_DIR", temp_path(&folder, "jieba"), 1);
    expect_failure(MC_ERR_NOT_FOUND, "finalseg/prob_trans.py: cannot open");
}

/* Runs a copy of check_jieba, which lies beside this program, from `<folder>/moved/bin`; its exit
 * status. What it prints is in the folder's file `output`. */
static int run_moved(void)
{
    char self[2048], command[8192];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(length > 0);
    self[length] = '\0';
    *strrchr(self, '/') = '\0';
    snprintf(command, sizeof command,
             "cd '%s' && mkdir -p moved/bin && cp '%s/check_jieba' moved/bin && "
             "printf '我来到' | env -u MC_JIEBA_DIR moved/bin/check_jieba > output 2>&1",
             folder.path, self);
    int status = system(command);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void expect_output(const char *part)
{
    char output[2048];
    FILE *file = fopen(temp_path(&folder, "output"), "r");
    assert_non_null(file);
    output[fread(output, 1, sizeof output - 1, file)] = '\0';
    fclose(file);
    if (!strstr(output, part)) fail_msg("\"%s\" not in: %s", part, output);
}

/* Wherever an installation is moved to, its dictionary is found; without one it is missed. */
static void test_moved(void **state)
{
    (void)state;
    size_t size;
    void *image = mc_jieba_build_folder(&err, temp_path(&folder, "jieba"), &size);
    assert_non_null(image);
    if (access(MC_DATA_DIR "/jieba.bin", R_OK) != 0) {
        assert_int_equal(run_moved(), 2);
        expect_output("error: there is no jieba dictionary: no share/modelcenter/jieba.bin beside");
        expect_output("/moved/bin, nor " MC_DATA_DIR "/jieba.bin; a build without");
    }
    mkdir(temp_path(&folder, "moved/share"), 0777);
    mkdir(temp_path(&folder, "moved/share/modelcenter"), 0777);
    write_bytes(temp_path(&folder, "moved/share/modelcenter/jieba.bin"), image, size);
    mc_free(image);
    assert_int_equal(run_moved(), 0);
    expect_output("3 6\n");
    write_text(temp_path(&folder, "moved/share/modelcenter/jieba.bin"), "no table");
    assert_int_equal(run_moved(), 2);
    expect_output("modelcenter/jieba.bin: not a jieba table");
}

static void sum_up(uint8_t *image, size_t size)
{
    size_t at = offsetof(mc_jieba_header, checksum) + sizeof(uint64_t);
    uint64_t checksum = mc_jieba_checksum(image + at, size - at);
    memcpy(image + at - sizeof checksum, &checksum, sizeof checksum);
}

static void expect_bad_table(const uint8_t *image, size_t size, const char *part)
{
    write_bytes(temp_path(&folder, "table"), image, size);
    setenv("MC_JIEBA_DIR", temp_path(&folder, "table"), 1);
    expect_failure(MC_ERR_FORMAT, part);
    expect_failure(MC_ERR_FORMAT, "/table: ");
}

static void test_bad_tables(void **state)
{
    (void)state;
    size_t size, logs = sizeof(mc_jieba_header);
    uint8_t *image = mc_jieba_build_folder(&err, temp_path(&folder, "jieba"), &size);
    assert_non_null(image);
    mc_jieba_header header, changed;
    memcpy(&header, image, sizeof header);
    size_t trie = logs + header.log_count * sizeof(double) +
                  sizeof(double) * header.char_count * MC_JIEBA_STATES;
    size_t values = trie + header.trie_size * sizeof(mc_trie_node);
    expect_bad_table(image, 0, "0 bytes");
    expect_bad_table(image, sizeof header - 1, "its header alone");
    expect_bad_table(image, size - 1, "bytes, its header names");
    static const struct {
        size_t offset;
        uint32_t value;
        const char *part;
    } fields[] = {
        {offsetof(mc_jieba_header, magic), 1, "it begins otherwise"},
        {offsetof(mc_jieba_header, byte_order), 0x04030201, "another byte order"},
        {offsetof(mc_jieba_header, version), 2, "version 2, expected 1"},
        {offsetof(mc_jieba_header, size), 7, "its header names 7"},
        {offsetof(mc_jieba_header, log_count), UINT32_MAX, "bytes, its header names"},
        {offsetof(mc_jieba_header, trie_size), UINT32_MAX, "bytes, its header names"},
        {offsetof(mc_jieba_header, longest), 0, "words of up to 0 bytes"},
        {offsetof(mc_jieba_header, longest), 1025, "words of up to 1025 bytes"},
        {offsetof(mc_jieba_header, checksum), 7, "damaged: its checksum differs"},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        memcpy(&changed, &header, sizeof header);
        memcpy((char *)&changed + fields[i].offset, &fields[i].value, sizeof fields[i].value);
        memcpy(image, &changed, sizeof changed);
        expect_bad_table(image, size, fields[i].part);
    }
    memcpy(image, &header, sizeof header);
    const size_t places[] = {logs, trie - 1, trie, values, size - 1, sizeof header - 1};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        image[places[i]] ^= 64;
        expect_bad_table(image, size, "damaged");
        image[places[i]] ^= 64;
    }
    const struct {
        size_t offset;
        uint32_t value;
    } bad[] = {{trie, header.trie_size}, /* with the right checksum */
               {values, header.log_count},
               {size - 4, (uint32_t)-2}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint32_t before;
        memcpy(&before, image + bad[i].offset, 4);
        memcpy(image + bad[i].offset, &bad[i].value, 4);
        sum_up(image, size);
        expect_bad_table(image, size, "its trie leads to slot");
        memcpy(image + bad[i].offset, &before, 4);
    }
    mc_free(image);
}

static void expect_bad_source(const char *name, const char *text, const char *part)
{
    char expected[200], path[64];
    write_jieba(&folder, "jieba");
    snprintf(path, sizeof path, "jieba/%s", name);
    write_text(temp_path(&folder, path), text);
    snprintf(expected, sizeof expected, "%s%s", path, part);
    expect_failure(MC_ERR_FORMAT, expected);
}

static void test_bad_dictionaries(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"", ": empty file"},
        {"我 3 r\n北京\n", ":2: \"北京\": expected a word"},
        {"我 3 r\n\n我 3\n", ":2: \"\": expected a word"},
        {" 我 3 r\n", ":1: \" 我 3 r\": expected a word"},
        {"我 r\n", ":1: "},
        {"我 3x r\n", ":1: "},
        {"我 -3 r\n", ":1: "},
        {"我 \n", ":1: "},
        {"我\t3\n", ":1: "},
        {"我 9007199254740993\n", ":1: "},
        {"我 9007199254740992\n你 1\n", ": frequencies add up to more than 2^53"},
        {"\xff 3\n", ":1: "},
        {"我 0\n", ": no word has a frequency"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect_bad_source("dict.txt", bad[i][0], bad[i][1]);
    char longest[1100];
    memset(longest, 'a', sizeof longest);
    memcpy(longest + 1025, " 3\n", 4);
    expect_bad_source("dict.txt", longest, ":1: a word of 1025 bytes, expected 1024 at most");
    memcpy(longest + 1024, " 3\r\n", 5);
    write_text(temp_path(&folder, "jieba/dict.txt"), longest);
    open_jieba();
    longest[1024] = '|';
    longest[1025] = '\0';
    expect_words(longest);
}

static void test_bad_probabilities(void **state)
{
    (void)state;
    static const char *const bad[][3] = {
        {"start", "", ":1: expected a line that begins with P="},
        {"start", "x\nP=", ":2: expected a dictionary"},
        {"start", "P={'B': -1}", ": expected all of B, E, M and S"},
        {"start", "P={'B': -1, 'B': -1}", ":1: expected each key once"},
        {"start", "P={'B': -1, 'X': -1}", ":1: expected B, E, M or S as its key"},
        {"start", "P={'B': -1 'E'", ":1: expected a comma"},
        {"start", "P={'B' -1", ":1: expected a character in single quotes"},
        {"start", "P={\"B\": -1", ":1: expected a character in single quotes"},
        {"start", "P={'B", ":1: expected a character in single quotes"},
        {"start", "P={'", ":1: expected a character in single quotes"},
        {"start", "P={'B': 0.5", ":1: expected a logarithm"},
        {"start", "P={'B':\nnan", ":2: expected a logarithm"},
        {"start", "P={'B': -4e100", ":1: expected a logarithm"},
        {"start", "P={'B': 0x1", ":1: expected a comma"},
        {"start", "P={'B': -1-1", ":1: expected a logarithm"},
        {"start", "P={'B': __import__('os')", ":1: expected a logarithm"},
        {"start", "P={'B': -1, 'E': -1, 'M': -1, 'S': -1} x", ":1: expected nothing after"},
        {"trans", "P={'B': -1", ":1: expected a dictionary"},
        {"trans", "P={'B': {'X': -1", ":1: expected each key once"},
        {"trans", "P={'B': {'E': -1, 'E': -1", ":1: expected each key once"},
        {"trans", "P={'B': {}, 'B': {}", ":1: expected B, E, M and S as keys"},
        {"trans", "P={'Q': {", ":1: expected B, E, M and S as keys"},
        {"trans", "P={'B': {}, 'E': {}, 'M': {}}", ":1: expected all of B, E, M and S"},
        {"trans", "P={'B': {} 'E'", ":1: expected a comma"},
        {"emit", "P={'B': {'\\x41': -1", ":1: expected an escape"},
        {"emit", "P={'B': {'\\u4e0", ":1: expected an escape"},
        {"emit", "P={'B': {'\\u4e0g': -1", ":1: expected an escape"},
        {"emit", "P={'B': {'\\u4e00': -1, '\\u4e00': -1}, 'E': {}, 'M': {}, 'S': {}}",
         ": U+4E00 has two probabilities in B"},
        {"emit", "P={'B': {'一二': -1", ":1: expected a character in single quotes"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char name[40];
        snprintf(name, sizeof name, "finalseg/prob_%s.py", bad[i][0]);
        expect_bad_source(name, bad[i][1], bad[i][2]);
    }
}

#ifdef MC_FAULT_INJECTION
static void test_allocation_failures(void **state)
{
    (void)state;
    const char text[] = "他来到了网易杭研大厦";
    for (long nth = 1;; nth++) {
        word_list list = {.size = 0};
        mc_fault_fail_at(nth, false);
        mc_status status = mc_jieba_open(&err, &jieba);
        assert_int_equal(status, err.status);
        if (!status)
            status = mc_jieba_cut(&jieba, &scratch, (const uint8_t *)text, strlen(text), add_word,
                                  &list);
        mc_fault_fail_at(0, false);
        mc_error_clear(&err);
        mc_jieba_release(&jieba);
        mc_jieba_scratch_release(&scratch);
        if (!status) {
            assert_true(nth > 10);
            return;
        }
        assert_int_equal(status, MC_ERR_NOMEM);
    }
}
#endif

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_words),
        TEST(test_bytes),
        TEST(test_stopping),
        TEST(test_installed),
        TEST(test_places),
        TEST(test_moved),
        TEST(test_bad_tables),
        TEST(test_bad_dictionaries),
        TEST(test_bad_probabilities),
#ifdef MC_FAULT_INJECTION
        TEST(test_allocation_failures),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
