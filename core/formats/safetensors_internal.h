/* What safetensors files are written with, beside the public writer. */
#ifndef MC_FORMATS_SAFETENSORS_INTERNAL_H
#define MC_FORMATS_SAFETENSORS_INTERNAL_H

#include "core/formats/safetensors.h"

/* The format's own bound on a header, in bytes. */
#define MC_SAFETENSORS_HEADER_MAX 100000000

/* A file that all ranks of the job write together, as one that they all see: each writes bytes of
 * the tensors' data at offsets from its beginning, each byte once. Making it, syncing and renaming
 * are collective then; on an error of any rank nothing takes the file's name. With one rank it is
 * an ordinary writer. */
mc_safetensors_writer *mc_safetensors_writer_new_shared(mc_context *ctx, const char *path,
                                                        const mc_safetensors_spec *specs,
                                                        size_t count);
/* The file's path until it is renamed. */
const char *mc_safetensors_writer_aside(const mc_safetensors_writer *writer);
/* MC_ERR_ARGUMENT for bytes that were not declared. */
mc_status mc_safetensors_write_at(mc_safetensors_writer *writer, uint64_t offset, const void *data,
                                  size_t size);

#endif
