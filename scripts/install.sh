#!/bin/sh
# Installs the command, the library with its headers, man pages, completion and documents: to /usr/local
# as root, to ~/.local otherwise. Builds what is not built yet.
#
#     scripts/install.sh [--prefix FOLDER]
#
# No file of a shell is edited: where the command would not be found, the line that changes it is printed.
set -eu
here=$(pwd)
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

if [ "$(id -u)" -eq 0 ]; then
    prefix=/usr/local
else
    prefix=${HOME:?}/.local
fi
if [ $# -eq 2 ] && [ "$1" = --prefix ]; then
    prefix=$2
elif [ $# -ne 0 ]; then
    fail "expected --prefix FOLDER, or nothing"
fi
case $prefix in
/*) ;;
'') fail "--prefix: expected a folder" ;;
*) prefix=$here/$prefix ;;
esac

build_for_use
# the list of what an install wrote may be root's, from an earlier one
rm -f $build/install_manifest.txt
log=$(cmake --install $build --prefix "$prefix" 2>&1) || {
    echo "$log" >&2
    fail "could not install to $prefix"
}
[ "$prefix" != /usr/local ] || ldconfig # programs that are linked with the library find it

echo "installed in $prefix: $("$prefix/bin/modelcenter" --version | head -n 1)" >&2
case :$PATH: in
*:"$prefix/bin":*) ;;
*)
    cat >&2 <<END

Your shell does not look for commands in $prefix/bin. This line in its profile (~/.profile,
for zsh ~/.zprofile) makes it do so from the next login on:

    export PATH="$prefix/bin:\$PATH"

END
    ;;
esac
