/* Functions for writing safetensors files besides the public writer. */
#ifndef MC_FORMATS_SAFETENSORS_INTERNAL_H
#define MC_FORMATS_SAFETENSORS_INTERNAL_H

#include "core/formats/safetensors.h"

/* The format's own bound on a header, in bytes. */
#define MC_SAFETENSORS_HEADER_MAX 100000000

/* A file that all ranks of the job write together on a shared file system. Each rank writes bytes
 * of the tensors' data at offsets from its beginning, each byte once. Creating, syncing and
 * renaming the file are collective; after an error of any rank it is not renamed. With one rank
 * this is an ordinary writer. */
mc_safetensors_writer *mc_safetensors_writer_new_shared(mc_context *ctx, const char *path,
                                                        const mc_safetensors_spec *specs,
                                                        size_t count);
/* The path of the temporary file. */
const char *mc_safetensors_writer_aside(const mc_safetensors_writer *writer);
/* MC_ERR_ARGUMENT for a range outside of the declared bytes. */
mc_status mc_safetensors_write_at(mc_safetensors_writer *writer, uint64_t offset, const void *data,
                                  size_t size);

#endif
