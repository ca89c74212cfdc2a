/* Compiled once for the library, with the header that every build writes (cmake/commit.cmake), and
 * once without it for the tests, which need not be linked again for each commit. */
#include "core/about/about.h"
#ifdef MC_COMMIT_HEADER
#include MC_COMMIT_HEADER
#else
#define MC_COMMIT "unknown"
#define MC_COMMIT_DATE "unknown"
#endif

const char *mc_build_commit(void) { return MC_COMMIT; }
const char *mc_build_date(void) { return MC_COMMIT_DATE; }
