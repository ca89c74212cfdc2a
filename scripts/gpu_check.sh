#!/bin/sh
# Everything that takes a GPU, in one go: the tests, the same kernels under compute-sanitizer, and
# measurements of bench/RESULTS.md. Needs a build (with -DMC_BUILD_BENCH=ON), or a copy of its
# folder, and neither CMake nor the sources. What fails does not stop what follows; each part has a
# time limit and leaves its output in a file of its own. The last line counts: `N passed, N failed,
# N skipped`; the exit code is 0 only if nothing failed.
#
#     scripts/gpu_check.sh OUT [BUILD [GROUP...]]
#     scripts/gpu_check.sh /tmp/gpu build/release tests kernels
#
# OUT is made; BUILD is build/release unless given. Groups, all in this order unless given: tests,
# ranks, start, floor, steps, kernels, memcheck, racecheck, initcheck, synccheck. `ranks` takes two
# GPUs or four. Shared libraries that the machine lacks may lie in BUILD/lib. Environment: MC_SHARED,
# the reference data of some tests; MC_CACHE_DIR, where plans are kept (OUT/cache unless set);
# GPU_CHECK_SCALE, a factor for the time limits (a whole number); GPU_CHECK_SMALL=1, sizes for a
# machine that only simulates a GPU; GPU_CHECK_PARTS, how many runs under a checker share the cases
# of a test program, each with the whole time limit (1 unless given).
set -u

[ $# -ge 1 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 2; }
mkdir -p "$1" || exit 2
out=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
shift
build=${1-$(dirname "$0")/../build/release}
[ $# -eq 0 ] || shift
build=$(cd "$build" && pwd) || exit 2
groups=${*:-tests ranks start floor steps kernels memcheck racecheck initcheck synccheck}
small=${GPU_CHECK_SMALL:-}
scale=${GPU_CHECK_SCALE:-1}
cuda=${CUDA_HOME:-/usr/local/cuda}
LD_LIBRARY_PATH=$build/lib:$build${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}:$cuda/lib64
export LD_LIBRARY_PATH
export MC_CACHE_DIR="${MC_CACHE_DIR-$out/cache}"
[ -z "$MC_CACHE_DIR" ] || mkdir -p "$MC_CACHE_DIR"
[ -z "$small" ] || export MC_CUDA_SIMULATED=1
passed=0 failed=0 skipped=0

skip()
{
    skipped=$((skipped + 1))
    echo "skipped  $1: $2"
}

# run NAME SECONDS PROGRAM [ARGUMENT...]: PROGRAM is a path, within the build folder unless absolute.
# Results in its output are shown.
run()
{
    name=$1 limit=$(($2 * scale)) program=$3 log=$out/$1.log
    shift 3
    case $program in /*) ;; *) program=$build/$program ;; esac
    if [ ! -x "$program" ]; then
        failed=$((failed + 1))
        echo "FAILED   $name: there is no $program"
        return 1
    fi
    begin=$(date +%s)
    timeout -k 10 "$limit" "$program" "$@" >"$log" 2>&1
    code=$?
    took="$(($(date +%s) - begin)) s"
    if [ $code -eq 0 ] && grep -q 'SKIPPED: no CUDA device' "$log"; then
        skip "$name" "no CUDA device"
    elif [ $code -eq 0 ]; then
        passed=$((passed + 1))
        echo "passed   $name ($took)"
    else
        failed=$((failed + 1))
        [ $code -ne 124 ] && [ $code -ne 137 ] || took="stopped after $took"
        echo "FAILED   $name ($took, exit code $code); the end of $log:"
        tail -n 8 "$log" | sed 's/^/    | /'
    fi
    sed -n -e 's/^result/    result/p' -e 's/^start to/    start to/p' -e 's/^{/    {/p' \
        -e 's/^SKIPPED/    SKIPPED/p' "$log" | sort -u | head -n 6
    [ $code -eq 0 ]
}

on_gpu() { MC_TEST_DEVICE=cuda run "$@"; }

# ---- the groups

tests()
{
    run test_cuda_kernels 300 tests/test_cuda_kernels
    run test_cuda_attention 600 tests/test_cuda_attention
    run test_cuda_ops 600 tests/test_cuda_ops
    run test_cuda_training 300 tests/test_cuda_training
    MC_CUDA_GRAPHS=0 run test_cuda_training_eager 300 tests/test_cuda_training
    for program in "$build"/tests/test_cuda_*; do
        name=$(basename "$program")
        case $name in
        test_cuda_kernels | test_cuda_attention | test_cuda_ops | test_cuda_training) ;;
        *) [ ! -f "$program" ] || run "$name" 300 "$program" ;;
        esac
    done
    run test_cudnn_plans 300 tests/test_cudnn_plans
    # cuDNN's attention or an error, which says why
    MC_ROUTE=attention:cudnn run step_with_cudnn 120 bench/gpt2_step gpt2-base 1 64 1 cuda bf16
    [ -n "$small" ] || on_gpu test_boolq_trace_cuda 300 tests/test_boolq_trace
    on_gpu test_minilm_cuda 300 tests/test_minilm
    on_gpu test_lm_documents_cuda 120 tests/test_lm_documents
    on_gpu test_pretraining_cuda 300 tests/test_pretraining
}

# Programs of several ranks, a GPU each.
ranks()
{
    gpus=$(nvidia-smi --list-gpus 2>/dev/null | wc -l)
    [ -z "$small" ] || gpus=0
    for count in 2 4; do
        for name in train semantics offload memory inspect results checkpoint fp8; do
            if [ "$gpus" -lt $count ]; then
                skip "ranks_${name}_$count" "fewer than $count GPUs"
                continue
            fi
            on_gpu "ranks_${name}_$count" 300 \
                "$here/../tests/dist/launch.sh" $count "$build/tests/ranks_$name"
        done
    done
}

# From the start of a program to the end of its first step: without plans and tunings, and with.
start()
{
    kept=$MC_CACHE_DIR
    MC_CACHE_DIR=$out/start-cache
    rm -rf "$MC_CACHE_DIR"
    mkdir -p "$MC_CACHE_DIR"
    for time in first second third; do
        if [ -n "$small" ]; then
            run "start_$time" 300 bench/gpt2_step gpt2-base 1 8 1 cuda bf16
        else
            run "start_$time" 120 bench/gpt2_step gpt2-base 64 1024 1 cuda bf16
        fi
    done
    MC_CACHE_DIR=$kept
}

floor()
{
    if [ -n "$small" ]; then
        run floor_124m 300 bench/gpt2_floor gpt2-base 1 8 1 cuda
        return
    fi
    run floor_124m 120 bench/gpt2_floor gpt2-base 64 1024 30 cuda
    run floor_1558m 150 bench/gpt2_floor gpt2-xl 16 1024 30 cuda
}

steps()
{
    if [ -n "$small" ]; then
        run step_124m 300 bench/gpt2_step gpt2-base 1 8 7 cuda bf16
        run step_bert_base 300 bench/bert_step 1 16 2 cuda bf16
        return
    fi
    run step_124m 120 bench/gpt2_step gpt2-base 64 1024 200 cuda bf16
    MC_CUDA_GRAPHS=0 run step_124m_eager 120 bench/gpt2_step gpt2-base 64 1024 100 cuda bf16
    MC_DETERMINISTIC=1 run step_124m_deterministic 120 bench/gpt2_step gpt2-base 64 1024 50 cuda bf16
    run step_1558m 180 bench/gpt2_step gpt2-xl 16 1024 60 cuda bf16
    run step_bert_base 120 bench/bert_step 64 512 100 cuda bf16 base
    run step_bert_large 120 bench/bert_step 64 512 60 cuda bf16 large
}

kernels()
{
    [ -z "$small" ] || { skip bench_cuda_kernels "too large here"; return; }
    for name in bench_cuda_kernels bench_cuda_attention; do
        run $name 120 bench/$name && sed 's/^/    /' "$out/$name.log"
    done
}

# The tests of kernels under a tool of compute-sanitizer, with the sizes of a simulated GPU, every
# block of memory one of the system's. Test programs that know no parts run whole in the first.
sanitize()
{
    parts=${GPU_CHECK_PARTS:-1}
    sanitizer=$(command -v compute-sanitizer || echo "$cuda/bin/compute-sanitizer")
    for name in test_cuda_kernels test_cuda_attention test_cuda_fp8 test_cuda_ops; do
        if [ ! -x "$sanitizer" ] || [ -n "$small" ]; then
            skip "$1_$name" "no compute-sanitizer"
            continue
        fi
        part=0
        while [ $part -lt "$parts" ]; do
            MC_CUDA_SIMULATED=1 MC_CUDA_MEMORY=direct MC_TEST_PART=$part/$parts \
                run "$1_${name}_$part" 600 "$sanitizer" --tool "$1" --error-exitcode 99 \
                --print-limit 20 "$build/tests/$name"
            part=$((part + 1))
            case $name in test_cuda_fp8 | test_cuda_ops) break ;; esac
        done
    done
}

# ---- all of it

if [ -z "$small" ]; then
    nvidia-smi >"$out/nvidia-smi.log" 2>&1
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.max.sm,power.limit \
        --format=csv,noheader 2>/dev/null
fi
for group in $groups; do
    echo "== $group"
    case $group in
    tests | ranks | start | floor | steps | kernels) "$group" ;;
    memcheck | racecheck | initcheck | synccheck) sanitize "$group" ;;
    *) skip "$group" "there is no such group"; failed=$((failed + 1)) ;;
    esac
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
