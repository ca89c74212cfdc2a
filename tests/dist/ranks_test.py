"""What the tests of commands on several ranks share: the environment that their jobs start from, and
checks that go on after a failure."""

import os

ENVIRONMENT = dict(os.environ, TERM="dumb")  # ctest adds what mpirun needs: mpi_environment.cmake
for launcher in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "MC_MASTER_PORT",
                 "MC_COMM_TIMEOUT", "MC_JOB_SECRET", "MC_JOB_SECRET_FILE"):
    ENVIRONMENT.pop(launcher, None)

failures = []


def check(good, what):
    if not good:
        failures.append(what)
        print(f"FAILED {what}", flush=True)
    return good
