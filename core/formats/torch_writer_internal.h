/* Writing PyTorch files while other ranks wait. */
#ifndef MC_FORMATS_TORCH_WRITER_INTERNAL_H
#define MC_FORMATS_TORCH_WRITER_INTERNAL_H

#include "core/formats/torch_writer.h"

/* mc_torch_write_file, but calls `tick` (unless NULL) after each megabyte and ends with its
 * error. */
mc_status mc_torch_write_file_ticking(mc_tensor_file *from, const char *path,
                                      mc_status (*tick)(void *), void *user);

#endif
