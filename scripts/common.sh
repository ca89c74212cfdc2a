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

# build_for_use [OPTION...]: installs what is needed and builds in build/release all that an install
# takes. The options are CMake's, for a folder that is not configured yet. Sets build. What compilers
# print goes to build/release/build.log, which a failure shows.
build_for_use()
{
    scripts/install-dependencies.sh --build
    build=build/release
    mkdir -p $build
    rm -f $build/build.log # of root, perhaps, who built here before
    fresh="-DMC_BUILD_TESTS=OFF -DMC_BUILD_EXAMPLES=OFF -DMC_WERROR=OFF $*"
    [ ! -f $build/CMakeCache.txt ] || fresh=
    echo "building" >&2
    # shellcheck disable=SC2086  # a list of words
    if ! cmake --preset release $fresh >$build/build.log 2>&1 || ! build_target installed_files; then
        cat $build/build.log >&2
        fail "the build failed"
    fi
}

# build_target TARGET: builds it in $build, and shows on stderr how far that is.
build_target()
{
    failed=$build/failed
    rm -f "$failed"
    { NINJA_STATUS='[%f/%t] ' cmake --build "$build" --parallel "$jobs" --target "$1" 2>&1 || : >"$failed"; } |
        show_progress
    [ ! -e "$failed" ] || { rm -f "$failed" && return 1; }
}

# Copies Ninja's lines to the log. On a terminal the newest of "[12/383] ..." stays in sight, elsewhere a
# line says so every 20 seconds.
show_progress()
{
    width=0
    [ ! -t 2 ] || width=$(stty size <&2 2>/dev/null | sed 's/.* //')
    said=$(date +%s)
    while IFS= read -r line; do
        printf '%s\n' "$line" >>"$build/build.log"
        case $line in "["[0-9]*/[0-9]*"] "*) ;; *) continue ;; esac
        if [ "${width:-0}" -gt 20 ]; then
            printf '\r\033[K%.*s' "$((width - 1))" "$line" >&2
        elif [ $(($(date +%s) - said)) -ge 20 ]; then
            said=$(date +%s)
            echo "building: ${line%%]*}]" >&2
        fi
    done
    [ "${width:-0}" -le 20 ] || printf '\r\033[K' >&2
}
