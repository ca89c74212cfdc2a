#!/bin/sh
# Installs what is needed, builds, and runs the tests: in the release build (build/release, or build/ci
# where there is no GPU), in one with AddressSanitizer, UndefinedBehaviorSanitizer and failing
# allocations (build/asan), and, where CUDA's headers are, those of the CUDA device in one that
# simulates a GPU (build/simulator). The last line is `N passed, N failed, N skipped`, over all, after
# the ten slowest; the exit code is 0 only if nothing failed.
#
#     scripts/test.sh [PATTERN]            only the tests whose name matches the regular expression
#     scripts/test.sh --quick [PATTERN]    the release build alone, without jobs of several ranks, whole
#                                          trainings, packages, large corpora and a few other long tests:
#                                          about a minute on two cores once that is built
#     scripts/test.sh --meshes [PATTERN]   and what takes long and seldom fails: ranks in all numbers and
#                                          combinations, and a training that may not learn
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

scripts/install-dependencies.sh
export CTEST_OUTPUT_ON_FAILURE=1
if command -v ccache >/dev/null 2>&1; then
    export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
fi

# build BUILD [OPTION...]
build()
{
    echo "== building: $1 (since $(date +%T))"
    mkdir -p "build/$1"
    log=build/$1/build.log
    preset=$1
    shift
    # shellcheck disable=SC2086
    if ! $calm cmake --preset "$preset" -DMC_BUILD_TESTS=ON -DMC_BUILD_EXAMPLES=ON "$@" >"$log" 2>&1 ||
        ! $calm cmake --build --preset "$preset" --parallel "$jobs" >>"$log" 2>&1; then
        cat "$log"
        fail "the $preset build failed"
    fi
}

# build_meanwhile BUILD [OPTION...]: begins what is tested next, in the time that tests leave which wait for
# ranks, or for a deadline; `wait $building` ends it.
build_meanwhile()
{
    (calm='nice -n 19' && build "$@") &
    building=$!
}

# run BUILD THREADS [OPTION...]: two tests more at a time than there are cores, with THREADS in each, which
# sleep while they wait: many tests are of ranks that wait for each other, or for a deadline. (Tests of
# ranks count as two, so two of them run at once on two cores.) Without a limit ctest waits for ever for
# a test that hangs; what a busy machine kept from its end begins once more.
run()
{
    echo "== testing: $1 (since $(date +%T))"
    rm -f "build/$1/tests.xml"
    folder=build/$1 threads=$2
    shift 2
    OMP_NUM_THREADS=$threads OMP_WAIT_POLICY=passive ctest --test-dir "$folder" \
        --parallel "$((jobs + 2))" --tests-regex "$pattern" --timeout 400 --repeat after-timeout:2 \
        --output-junit tests.xml --test-output-size-passed 10000000 \
        --test-output-size-failed 10000000 "$@" || failed=yes
    results="$results $folder/tests.xml"
}

quick=no
# What only --meshes runs. A training that may not learn: quickstart_data shows that the data's questions
# alone are answered right half of the time, and quickstart_with_passages asks its model without showing the
# passages. Jobs of 2 ranks run under sanitizers, those of 1 and 3 in the release build.
spared='^(quickstart_without_passages|ranks_.*_[24]|test_comm_4_ranks)$'
# Minutes each on the simulator: what they call runs in the release build and under sanitizers (optimizers
# in the host's memory), and in the usual order of streams (training).
late='_late$|^test_adam_offload_cuda$'
case ${1-} in
--quick) quick=yes && shift ;;
--meshes)
    spared='^$'
    late='ranks_late$'
    shift
    ;;
-*) fail "unknown option \"$1\": expected --quick or --meshes" ;;
esac
pattern=${1-.}
# Device code compiles in a third of the time without most optimisations, where no GPU is to run it.
release=ci
[ ! -e /dev/nvidiactl ] || release=release
slow='quickstart_.*_passages|test_boolq_trace|.*ranks.*|test_(comm|control).*|test_mpi_hosts|package_.*|hub'
slow="$slow|test_limits|test_cudnn_plans|regression_(bpe|vocab)"
# Left out for their length as well: Adam on the host, attention kernels in every shape, `prepare`, NULL
# arguments, failing allocations, tokenizers on long input, the quick start's data, and the longest tests of
# commands. The full run has them.
slow="$slow|test_adam_offload|test_kernels_attention|test_lm_prepare|test_lm_prepare_gz|test_null_calls"
slow="$slow|test_bpe|test_tokenizer|quickstart_data|test_finetune_files|test_output|test_benchmark_command"
slow="$slow|test_lora_command|test_predict_command|install_dependencies"
slow="^($slow|test_model_faults|test_finetune|test_pretrain|test_pretrain_objectives|test_generate_command)\$"
failed=no
results=
calm=
# Where the CUDA toolkit is, the CUDA device is built too, for one architecture; what needs a GPU is
# skipped if there is none.
build $release "-DCMAKE_CUDA_ARCHITECTURES=${MC_TEST_CUDA_ARCHITECTURES-90a-real}" -DMC_BUILD_BENCH=ON
if [ $quick = yes ]; then
    # One thread a test, and CBLAS for products: oneDNN compiles its kernels anew in each process, which
    # is a third of the time of some tests.
    export MC_GEMM=cblas
    run $release 1 --exclude-regex "$slow"
    # shellcheck disable=SC2086
    python3 scripts/count_tests.py $results || failed=yes
    [ $failed = no ]
    exit
fi
build_meanwhile asan -DMC_ENABLE_CUDA=OFF -DMC_BUILD_EXAMPLES=OFF # package_examples runs above
run $release 2 --exclude-regex "$spared"
wait $building
if [ -e build/$release/tests/test_cuda_kernels ]; then
    build_meanwhile simulator
fi
# A training run of BERT-base takes too long under sanitizers; smaller models run the same code. So do
# commands on several ranks: what they call runs here on one (test_pretrain) and on several (ranks_*),
# and checkpoints in jobs of other sizes, which ranks_checkpoint_2 writes and reads. What is installed is
# the release build's matter.
run asan 1 --exclude-regex '^(test_boolq_trace|tools_ranks|bench_ranks|ranks_checkpoint_sizes|package_.*)$'
# Those named _direct are for a build with sanitizers; one order of streams beside the usual will do.
if [ -e build/$release/tests/test_cuda_kernels ]; then
    wait $building
    run simulator 1 --label-regex gpu --exclude-regex "_direct\$|_ahead\$|$late"
fi
# shellcheck disable=SC2086
python3 scripts/count_tests.py $results || failed=yes
[ $failed = no ]
