#!/bin/sh
# Installs what building and testing need, on Debian and Ubuntu; needs root or sudo. Does nothing
# where all of it is there already.
#
#     scripts/install-dependencies.sh            to build and to test
#     scripts/install-dependencies.sh --build    to build only
#     scripts/install-dependencies.sh --fuzz     and clang, for the fuzz targets
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

needed='build-essential cmake ninja-build pkg-config git libcjson-dev'
case ${1-} in
'') needed="$needed libcmocka-dev python3" ;;
--build) ;;
--fuzz) needed="$needed libcmocka-dev python3 clang libomp-dev" ;;
*) fail "unknown argument \"$1\": expected --build or --fuzz" ;;
esac

is_installed()
{
    dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null | grep -qx installed
}

is_offered() # by the distribution
{
    apt-cache show --no-all-versions "$1" >/dev/null 2>&1
}

missing_of()
{
    for package in "$@"; do
        is_installed "$package" || printf '%s ' "$package"
    done
}

as_root()
{
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null 2>&1; then
        sudo "$@"
    else
        fail "packages are missing, and there is neither root nor sudo to install them with"
    fi
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT

apt() # quiet, unless it fails
{
    if ! as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 \
        "$@" >"$log" 2>&1; then
        cat "$log" >&2
        fail "apt-get $* failed"
    fi
}

updated=no
update()
{
    [ $updated = yes ] || apt update
    updated=yes
}

install()
{
    [ $# -gt 0 ] || return 0
    update
    echo "installing: $*" >&2
    apt install -y --no-install-recommends "$@"
}

command -v apt-get >/dev/null 2>&1 ||
    fail "this is no Debian or Ubuntu: install a C compiler, CMake 3.25, Ninja, pkg-config, cJSON," \
        "a BLAS with CBLAS, and for the tests cmocka and Python 3, and build with CMake (README.md)"

# shellcheck disable=SC2046,SC2086  # lists of words
install $(missing_of $needed)

# BLAS: the OpenMP flavour of OpenBLAS where the distribution has it. One that is there is kept.
if ! is_installed libopenblas-openmp-dev && ! is_installed libopenblas-dev &&
    ! is_installed libopenblas-pthread-dev; then
    update
    if is_offered libopenblas-openmp-dev; then
        install libopenblas-openmp-dev
    else
        install libopenblas-dev
    fi
fi

# oneDNN makes training faster on x86 and is not required.
if [ "$(uname -m)" = x86_64 ] && ! is_installed libdnnl-dev && is_offered libdnnl-dev; then
    (install libdnnl-dev) || echo "going on without oneDNN (libdnnl-dev): training is slower" >&2
fi

# MPI lets several CPU ranks train together and is not required. One that is there is kept.
if ! command -v mpicc >/dev/null 2>&1 && is_offered libopenmpi-dev; then
    (install libopenmpi-dev openmpi-bin) ||
        echo "going on without Open MPI (libopenmpi-dev): no CPU ranks" >&2
fi

# SentencePiece trains tokenizers and reads models other than Unigram's, and is not required.
if ! is_installed libsentencepiece-dev && is_offered libsentencepiece-dev; then
    (install libsentencepiece-dev) ||
        echo "going on without SentencePiece (libsentencepiece-dev): no tokenizer can be trained" >&2
fi

# clang's runtime for fuzzers and sanitizers is a package of its own in newer releases.
if [ "${1-}" = --fuzz ]; then
    version=$(clang -dumpversion | cut -d. -f1)
    runtime=libclang-rt-$version-dev
    if ! is_installed "$runtime" && is_offered "$runtime"; then install "$runtime"; fi
fi

# CMake 3.25 came with Debian 12 and Ubuntu 23.04; older releases get it from PyPI, in build/cmake.
is_new_enough()
{
    version=$(cmake --version 2>/dev/null | sed -n '1s/.* //p')
    [ -n "$version" ] &&
        [ "$(printf '3.25\n%s\n' "$version" | sort -V | head -n 1)" = 3.25 ]
}

if ! is_new_enough; then
    echo "CMake $version is too old: installing CMake 3.31 from PyPI in build/cmake" >&2
    # shellcheck disable=SC2046  # a list of words
    install $(missing_of python3 python3-venv)
    python3 -m venv build/cmake
    build/cmake/bin/pip install --quiet --disable-pip-version-check 'cmake==3.31.*' >&2
    PATH=$root/build/cmake/bin:$PATH
    is_new_enough || fail "CMake 3.25 or later is needed and could not be installed"
fi
