#!/bin/sh
# Installs what is needed, builds, and fine-tunes a BERT to answer questions about passages.
#
#     scripts/quickstart.sh
#     scripts/quickstart.sh --model FOLDER --data FOLDER [--output FOLDER] ...
#
# Without arguments a small BERT is trained from scratch on the data set in datasets/quickstart, in
# about two minutes on 2 cores. Building takes two minutes more. Without a GPU no CUDA code is built;
# with one, CUDA code is built for its architecture alone, which takes some minutes. (CMake's default is
# code for every GPU.) Arguments are those of `modelcenter finetune`, and override the settings of the
# quick start; with --model only they and the command's own defaults are used. Progress goes to stderr;
# the last line on stdout is `result task=... accuracy=... ...`.
set -eu
here=$(pwd)
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

# Sets gpu_option, CMake's option for the GPUs of this machine, and reports it before a first build.
choose_gpu_option()
{
    gpu_option=-DMC_ENABLE_CUDA=OFF
    chosen="without CUDA, since nvidia-smi finds no GPU"
    capabilities=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sort -u) || :
    architectures=
    for capability in $capabilities; do
        case $capability in
        9.0) architectures="$architectures;90a-real" ;; # with all of Hopper's instructions
        [0-9]*.[0-9]) architectures="$architectures;${capability%.*}${capability#*.}-real" ;;
        esac
    done
    if [ -n "$architectures" ]; then
        gpu_option=-DCMAKE_CUDA_ARCHITECTURES=${architectures#;}
        chosen="with CUDA for the architecture of this machine's GPU (${architectures#;})"
    fi
    [ -f build/release/CMakeCache.txt ] || echo "configuring $chosen" >&2
}

choose_gpu_option
build_for_use "$gpu_option"

has() # whether the option $1 is among the arguments that follow
{
    option=$1
    shift
    for argument in "$@"; do
        case $argument in "$option" | "$option"=*) return 0 ;; esac
    done
    return 1
}

# A run from scratch needs its own settings, in the folder of the data set.
from_scratch()
{
    # shellcheck disable=SC2046  # a list of words
    run --config "$root/datasets/quickstart" $(cat "$root/datasets/quickstart/recipe") "$@"
}

run()
{
    "$root/$build/bin/modelcenter" finetune --task BoolQ "$@"
}

output=
has --output "$@" || output=$root/build/quickstart
has --data "$@" || set -- --data "$root/datasets/quickstart" "$@"
# the default folder may be replaced, a named one is not
[ -z "$output" ] || set -- --output "$output" --overwrite "$@"
cd "$here"
if has --model "$@" || has --pretrained "$@" || has --config "$@"; then
    result=$(run "$@")
else
    result=$(from_scratch "$@")
fi

if [ -n "$output" ]; then
    cat >&2 <<END

The model is in $output. Ask it something:

    $root/$build/bin/modelcenter ask --model $output \\
        --question 'does maria keep a goat' \\
        --passage 'Tom keeps a goat. Maria keeps a duck.'

END
fi
echo "$result"
