# shellcheck shell=sh
# Sourced by the other scripts: where the repository is, and which CMake to use.
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root" || exit 1
# A CMake that install-dependencies.sh put here because the system's is too old goes first.
if [ -x "$root/build/cmake/bin/cmake" ]; then
    PATH=$root/build/cmake/bin:$PATH
    export PATH
fi
# shellcheck disable=SC2034
jobs=$(nproc 2>/dev/null || echo 2)

fail()
{
    echo "error: $*" >&2
    exit 1
}
