"""What the tests of commands on several ranks share: the environment that their jobs start from, and
checks that go on after a failure."""

import os
import pathlib
import tempfile
import time

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


def run_tests(module, prepare=None):
    """Runs each test_* of a module's globals in a folder of its own, which prepare(folder) fills first. Whether
    a check failed."""
    begun = time.monotonic()
    for name, test in list(module.items()):
        if not name.startswith("test_"):
            continue
        before, start = len(failures), time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            if prepare:
                prepare(pathlib.Path(folder))
            test(pathlib.Path(folder))
        print(f"{'ok    ' if len(failures) == before else 'FAILED'} {name} {time.monotonic() - start:.1f} s", flush=True)
    print(f"{len(failures)} failures, {time.monotonic() - begun:.0f} s")
    return bool(failures)
