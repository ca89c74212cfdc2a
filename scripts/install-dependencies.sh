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

# What is needed, each by the names that releases have for it, the one that is preferred first.
needed='build-essential cmake ninja-build pkg-config|pkgconf git libcjson-dev'
case ${1-} in
'') needed="$needed libcmocka-dev python3" ;;
--build) ;;
--fuzz) needed="$needed libcmocka-dev python3 clang libomp-dev" ;;
*) fail "unknown argument \"$1\": expected --build or --fuzz" ;;
esac
# BLAS: the OpenMP flavour of OpenBLAS where the distribution has it. One that is there is kept.
needed="$needed libopenblas-openmp-dev|libopenblas-dev|libopenblas-pthread-dev"

is_installed()
{
    dpkg-query -W -f='${db:Status-Status}\n' "$1" 2>/dev/null | grep -qx installed
}

is_offered() # by the distribution, and not by name alone
{
    LC_ALL=C apt-cache policy "$1" 2>/dev/null | grep -q '^  Candidate: [^(]'
}

# one_of "a|b" CONDITION: the first of the names for which it holds; false where it holds for none.
one_of()
{
    old_ifs=$IFS
    IFS='|'
    for name in $1; do
        if $2 "$name"; then
            IFS=$old_ifs
            echo "$name"
            return 0
        fi
    done
    IFS=$old_ifs
    return 1
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
    echo "installing: $*" >&2
    apt install -y --no-install-recommends "$@"
}

command -v apt-get >/dev/null 2>&1 ||
    fail "this is no Debian or Ubuntu: install a C compiler, CMake 3.25, Ninja, pkg-config, cJSON," \
        "a BLAS with CBLAS, and for the tests cmocka and Python 3, and build with CMake (README.md)"

missing=
for names in $needed; do
    one_of "$names" is_installed >/dev/null || missing="$missing $names"
done
[ -z "$missing" ] || update
chosen=
absent=
for names in $missing; do
    if name=$(one_of "$names" is_offered); then
        chosen="$chosen $name"
    else
        absent="$absent $(echo "$names" | sed 's/|/ or /g'),"
    fi
done
if [ -n "$absent" ]; then
    system=$(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' /etc/os-release 2>/dev/null)
    fail "the package sources of ${system:-this system} have no${absent%,}" \
        "(on Ubuntu: is the component \"universe\" enabled?)"
fi
# shellcheck disable=SC2086  # a list of words
install $chosen

# optional "what is lost" PACKAGE...: installs them, or says what is lost and goes on.
optional()
{
    lost=$1
    shift
    if is_offered "$1" && (update && install "$@"); then return; fi
    echo "going on without $1: $lost" >&2
}

# oneDNN makes training faster on x86 and is not required.
if [ "$(uname -m)" = x86_64 ] && ! is_installed libdnnl-dev; then
    optional "training is slower" libdnnl-dev
fi

# ccache compiles only once what the builds of the tests have in common, and is not required.
if [ $# -eq 0 ] && ! is_installed ccache; then
    optional "building the tests takes longer" ccache
fi

# libcurl and OpenSSL let models be downloaded by name and are not required.
for package in libcurl4-openssl-dev libssl-dev; do
    if ! is_installed "$package" && is_offered "$package"; then
        (install "$package") || echo "going on without $package: no downloads" >&2
    fi
done

# zlib reads .gz files and is not required.
if ! is_installed zlib1g-dev && is_offered zlib1g-dev; then
    (install zlib1g-dev) || echo "going on without zlib1g-dev: no .gz files" >&2
fi

# libpng and libjpeg-turbo read images and are not required. Ubuntu names the latter otherwise.
for package in libpng-dev libjpeg62-turbo-dev libjpeg-turbo8-dev; do
    if ! is_installed "$package" && is_offered "$package"; then
        (install "$package") || echo "going on without $package: fewer images" >&2
    fi
done

# PCRE2 cuts words by the patterns of tokenizers that are not known, and is not required.
if ! is_installed libpcre2-dev && is_offered libpcre2-dev; then
    (install libpcre2-dev) || echo "going on without libpcre2-dev: fewer tokenizers" >&2
fi

# MPI lets several CPU ranks train together and is not required. One that is there is kept.
if ! command -v mpicc >/dev/null 2>&1; then
    optional "no CPU ranks" libopenmpi-dev openmpi-bin
fi

# CPM's tokenizers take their dictionary from Python's jieba when the library is built (no Python is
# run); not required.
if ! is_installed python3-jieba && is_offered python3-jieba; then
    (install python3-jieba) || echo "going on without python3-jieba: no CPM tokenizers" >&2
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
    if ! is_installed "$runtime" && is_offered "$runtime"; then update && install "$runtime"; fi
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
    update
    for name in python3 python3-venv; do
        is_installed $name || install $name
    done
    python3 -m venv build/cmake
    build/cmake/bin/pip install --quiet --disable-pip-version-check 'cmake==3.31.*' >&2
    PATH=$root/build/cmake/bin:$PATH
    is_new_enough || fail "CMake 3.25 or later is needed and could not be installed"
fi
