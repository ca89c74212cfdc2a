/* Files that can no longer be read while they are mapped.
 *
 * The library maps weights and token files (docs/files.md says why). When such a file becomes
 * shorter while it is in use, or its disk or network file system has a read error, the system sends
 * SIGBUS to the thread that reads it, which ends the process. The library installs no
 * signal handler by itself. A program that wants an error instead calls this once, before its
 * first context:
 *
 *     mc_install_fault_handler();
 *
 * On a fault within a mapping of the library the handler puts zeros in place of the rest of the
 * mapping and notes the place. Every function of the library that reads mapped bytes checks for
 * such a note before it uses what it read. It then fails with MC_ERR_IO, and the message names the
 * file, the byte, the file's size and the expected size. A program that reads mc_tensor_entry.data
 * itself calls mc_tensor_file_check afterwards.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_BASE_FAULT_H
#define MC_BASE_FAULT_H

#include "core/base/status.h"
#include "core/base/context.h"

/* Installs the SIGBUS handler for the whole process, on all threads that do not block the signal.
 * It uses a thread's alternate stack if there is one. Signals that are not faults in the library's
 * mappings go to the previously installed handler, or have their previous effect. A handler that
 * the program installs later replaces it: install that one first, or call its predecessor from it.
 * Calling this again does nothing while the handler is installed. May be called from any thread.
 * Returns MC_ERR_STATE if the system refuses. */
MC_API mc_status mc_install_fault_handler(void);

#endif
