#!/bin/sh
# scripts/install-dependencies.sh against package lists of other systems: dpkg-query, apt-cache and apt-get
# are stand-ins that read two files, the packages that are installed and those that are offered.
#
#     install_dependencies_test.sh SCRIPTS_FOLDER
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/bin" "$folder/repository"
export LISTS="$folder"
cp -r "$1" "$folder/repository/scripts"

stand_in()
{
    printf '#!/bin/sh\n%s\n' "$2" >"$folder/bin/$1"
    chmod +x "$folder/bin/$1"
}

# shellcheck disable=SC2016  # for the stand-ins' own shells
{
    stand_in dpkg-query 'for name in "$@"; do :; done; grep -qx "$name" "$LISTS/installed" && echo installed'
    stand_in apt-cache 'echo "$2:"; grep -qx "$2" "$LISTS/offered" && echo "  Candidate: 1" || echo "  Candidate: (none)"'
    stand_in sudo 'exec "$@"'
    stand_in apt-get 'mode=; for word in "$@"; do
case $word in update | install) mode=$word ;; -*) ;; *=*) ;;
*) [ "$mode" != install ] || { grep -qx "$word" "$LISTS/offered" || exit 100; echo "$word" >>"$LISTS/installed"; } ;; esac; done'
    stand_in cmake 'echo cmake version 3.31.6'
    stand_in uname 'echo x86_64'
    stand_in clang 'echo 19.1.7'
    stand_in mpicc 'exit 1'
}

# check NAME OPTION EXPECTED: the packages that are installed then, or what the error says.
check()
{
    # shellcheck disable=SC2086  # no option is none
    said=$(PATH=$folder/bin:$PATH sh "$folder/repository/scripts/install-dependencies.sh" $2 2>&1) ||
        said="error:$said"
    found=$(sort -u "$folder/installed" | tr '\n' ' ')
    case "$found$said" in
    *"$3"*) echo "ok      $1" ;;
    *)
        printf 'FAILED  %s: expected "%s", found "%s"\n%s\n' "$1" "$3" "$found" "$said"
        exit 1
        ;;
    esac
}

common='build-essential cmake ninja-build git libcjson-dev libcmocka-dev python3'
offer() # installed from now on: nothing
{
    : >"$folder/installed"
    # shellcheck disable=SC2086  # a list of words
    printf '%s\n' $common "$@" >"$folder/offered"
}

offer pkg-config libopenblas-openmp-dev libopenblas-dev libdnnl-dev clang libomp-dev libclang-rt-19-dev
check 'Debian 13' '' 'build-essential cmake git libcjson-dev libcmocka-dev libdnnl-dev libopenblas-openmp-dev ninja-build pkg-config python3 '
check 'Debian 13, to fuzz' --fuzz 'libclang-rt-19-dev'
offer pkgconf libopenblas-dev
check 'other names' '' 'libcmocka-dev libopenblas-dev ninja-build pkgconf python3 '
check 'what is lost is said' '' 'going on without libdnnl-dev: training is slower'
offer pkg-config
check 'no BLAS' '' 'have no libopenblas-openmp-dev or libopenblas-dev or libopenblas-pthread-dev (on'
sed -i '/cjson/d' "$folder/offered"
check 'two are missing' '' 'have no libcjson-dev, libopenblas-openmp-dev or'
check 'nothing was installed' --build 'error:'
[ ! -s "$folder/installed" ] || { echo 'FAILED  something was installed nevertheless'; exit 1; }
