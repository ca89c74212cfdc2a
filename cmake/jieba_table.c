/* Makes the table of the Chinese dictionary while the library is built:
 *
 *     jieba_table FOLDER_OF_PYTHONS_JIEBA OUTPUT */
#include <stdio.h>
#include "core/base/memory_internal.h"
#include "tokenizers/cpm/jieba_internal.h"

int main(int argc, char **argv)
{
    mc_error err = {0};
    mc_file_writer writer;
    mc_jieba jieba = {0};
    size_t size;
    if (argc != 3) {
        fputs("usage: jieba_table FOLDER_OF_PYTHONS_JIEBA OUTPUT\n", stderr);
        return 2;
    }
    void *image = mc_jieba_build_folder(&err, argv[1], &size);
    if (image && !mc_jieba_read(&err, argv[2], image, size, &jieba) &&
        !mc_file_writer_init(&err, &writer, argv[2])) {
        mc_file_write(&writer, image, size);
        mc_file_commit(&writer);
        mc_file_writer_release(&writer);
    }
    mc_free(image);
    if (mc_error_is_set(&err)) fprintf(stderr, "error: %s\n", err.message);
    int result = mc_error_is_set(&err) ? 1 : 0;
    mc_error_clear(&err);
    return result;
}
