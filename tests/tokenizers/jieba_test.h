/* A small dictionary in the form of jieba's files, which tests of Chinese words write to a folder.
 * Include after cmocka.h. */
#ifndef MC_TESTS_JIEBA_TEST_H
#define MC_TESTS_JIEBA_TEST_H

#include "tests/temp_folder.h"

static const char jieba_dict[] = "我 300 r\n来到 50 v\n北京 80 ns\n清华 20 nz\n"
                                 "清华大学 15 nt\n大学 60 n\n学 40 v\n大 90 a\n"
                                 "的 1000 uj\n是 1000 v\n的是 1\n研究 30 v\n研究生 10 n\n"
                                 "生命 25 n\n生 35 v\n命 12 n\nC++ 3 nz\n甲乙 20 n\n"
                                 "乙丙 20 n\n甲 8 n\n丙 8 n\n零点 0 m\n重 5 a\n重 7 a\n";
static const char jieba_start[] = "P={'B': -0.25,\n 'E': -3.14e+100,\n 'M': -3.14e+100,\n"
                                  " 'S': -1.5}\n";
static const char jieba_trans[] = "P={'B': {'E': -0.5, 'M': -1.0},\n 'E': {'B': -0.6, 'S': -0.8},\n"
                                  " 'M': {'E': -0.3, 'M': -1.3},\n 'S': {'B': -0.7, 'S': -0.7}}\n";
static const char jieba_emit[] = "from __future__ import unicode_literals\n\n"
                                 "P={'B': {'\\u676d': -3.0, '\\u7f51': -4.5,\n"
                                 "       '\\u2236': -7.0},\n"
                                 " 'E': {'\\u7814': -3.5, '\\u53a6': -4.0},\n"
                                 " 'M': {'\\u7814': -2.5},\n"
                                 " 'S': {'了': -1.0, '\\u4ed6': -2.0, '\\u676d': -9.5}}\n";

/* Writes them below `<folder>/<name>`, and has CPM's tokenizers take them. */
static inline void write_jieba(const temp_folder *folder, const char *name)
{
    char path[1100];
    const char *const texts[] = {jieba_dict, jieba_start, jieba_trans, jieba_emit};
    const char *const files[] = {"dict.txt", "finalseg/prob_start.py", "finalseg/prob_trans.py",
                                 "finalseg/prob_emit.py"};
    snprintf(path, sizeof path, "%s/finalseg", temp_path(folder, name));
    mkdir(temp_path(folder, name), 0777);
    mkdir(path, 0777);
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%s", temp_path(folder, name), files[i]);
        write_text(path, texts[i]);
    }
    setenv("MC_JIEBA_DIR", temp_path(folder, name), 1);
}

#endif
