"""What the tests of commands on several ranks share: the environment that their jobs start from, and
checks that go on after a failure."""

import os

ENVIRONMENT = dict(os.environ,
                   OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_hwloc_base_binding_policy="none",
                   OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive", TERM="dumb")
for launcher in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "MC_MASTER_PORT",
                 "MC_COMM_TIMEOUT"):
    ENVIRONMENT.pop(launcher, None)

failures = []


def check(good, what):
    if not good:
        failures.append(what)
        print(f"FAILED {what}", flush=True)
    return good
