#!/usr/bin/env python3
"""The job's secret: where ranks have it from under mpirun's, torchrun's and Slurm's variables, and that nobody
sees it.

    secret_ranks.py MPIRUN MODELCENTER
"""

import os
import pathlib
import re
import subprocess
import sys
import time

from kept_port import KeptPort
from ranks_test import ENVIRONMENT, check, run_tests

MPIRUN, TOOL = sys.argv[1], os.path.abspath(sys.argv[2])
LIMIT = 120  # seconds for any one job: nothing may hang
SECRET = "VGhpcyBpcyB0aGUgc2VjcmV0IG9mIGEgdGVzdCwgb25seQ=="
BENCH = ["bench", "comm", "--min-bytes", "8K", "--max-bytes", "8K", "--iterations", "3"]

# What ranks see of their launcher: MPI itself knows who they are by other variables (PMIX_...).
ENVIRONMENTS = {
    "mpirun": "",
    "torchrun": "WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 RANK=$r LOCAL_RANK=$r MASTER_ADDR=localhost",
    "Slurm": "-u OMPI_COMM_WORLD_SIZE -u OMPI_COMM_WORLD_RANK -u OMPI_COMM_WORLD_LOCAL_SIZE "
             "-u OMPI_COMM_WORLD_LOCAL_RANK SLURM_PROCID=$r SLURM_NTASKS=2 SLURM_LOCALID=$r SLURM_NNODES=1",
    # these say that the ranks are on several hosts
    "mpirun, two hosts": "OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0",
    "torchrun, two hosts": "WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 RANK=$r LOCAL_RANK=0 GROUP_RANK=$r "
                           "MASTER_ADDR=$(hostname)",
}


def start(folder, name, arguments, changes="", **environment):
    """Two ranks of the command that see the launcher `name`. They hold the port until they are waited for."""
    port = KeptPort()
    script = f"r=$OMPI_COMM_WORLD_RANK; exec env {ENVIRONMENTS[name]} {changes} \"$@\""
    process = subprocess.Popen([MPIRUN, "-np", "2", "sh", "-c", script, "sh", TOOL] + arguments, cwd=folder,
                               env=dict(ENVIRONMENT, MC_MASTER_PORT=str(port.number), **environment),
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.port = port
    return process


def finish(process):
    out, err = process.communicate(timeout=LIMIT)
    process.port.close()
    return out, err


def must_work(process, what):
    out, err = finish(process)
    which = {"mpirun": "Open MPI", "torchrun": "torchrun", "Slurm": "Slurm"}[what.split(",")[0]]
    check(process.returncode == 0 and "ranks=2" in out and f"2 ranks, by the variables of {which}" in err,
          f"{what}: exit {process.returncode}: {out[-300:]}{err[-900:]}")


def must_fail(process, text):
    out, err = finish(process)
    check(process.returncode != 0 and text in err and SECRET not in out + err,
          f'exit {process.returncode}, expected "{text}": {out}{err[-900:]}')


def test_one_host(folder):
    """The ranks meet, all jobs at a time, and leave no file."""
    runtime, shared, temporary = (folder / name for name in ("runtime", "shared", "temporary"))
    for path, mode in ((runtime, 0o700), (shared, 0o755), (temporary, 0o755)):
        path.mkdir()
        path.chmod(mode)
    names = ("mpirun", "torchrun", "Slurm")
    jobs = [(name, start(folder, name, BENCH, f"XDG_RUNTIME_DIR={runtime}")) for name in names]
    # a folder that is not private is not used
    jobs.append(("torchrun", start(folder, "torchrun", BENCH, f"XDG_RUNTIME_DIR={shared} TMPDIR={temporary}")))
    for name, job in jobs:
        must_work(job, name)
    made = temporary / f"modelcenter-{os.geteuid()}"
    check(made.is_dir() and made.stat().st_mode & 0o777 == 0o700, "a private folder is made")
    left = list(folder.rglob("modelcenter-*-*"))
    check(not left, f"files are left: {left}")


def test_no_folder(folder):
    """On one host a folder that can't be used is an error of all ranks, at once; a secret of one's own needs none."""
    nowhere = "XDG_RUNTIME_DIR= TMPDIR=/nowhere"
    good, bad = folder / "good", folder / "bad"
    for path, mode in ((good, 0o600), (bad, 0o640)):
        path.write_text(SECRET + "\n")
        path.chmod(mode)
    jobs = [start(folder, "mpirun", BENCH, nowhere),
            start(folder, "mpirun", BENCH, nowhere, MC_JOB_SECRET=SECRET),
            start(folder, "mpirun", BENCH, nowhere, MC_JOB_SECRET_FILE=str(good)),
            start(folder, "mpirun", BENCH, nowhere, MC_JOB_SECRET_FILE=str(bad))]
    must_fail(jobs[0], f'/nowhere/modelcenter-{os.geteuid()}" for the job\'s secret can\'t be used: No such file')
    for job in jobs[1:3]:
        must_work(job, "mpirun")
    must_fail(jobs[3], "others have rights in it: mode 0640, expected 0600")


def test_over_mpi(folder):
    """On several hosts, for all that is known, MPI carries the secret: no folder is needed."""
    names = ("mpirun, two hosts", "torchrun, two hosts")
    jobs = [(name, start(folder, name, BENCH, "XDG_RUNTIME_DIR= TMPDIR=/nowhere")) for name in names]
    for name, job in jobs:
        must_work(job, name)


def environment_of(pid):
    return pathlib.Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")


def ranks_of(process):
    """Process ids of the command's ranks, which are the launcher's children or theirs."""
    found, parents = [], [process.pid]
    while parents:
        listed = subprocess.run(["ps", "-o", "pid=,comm=", "--ppid", ",".join(map(str, parents))],
                                capture_output=True, text=True).stdout.split()
        parents = [int(pid) for pid in listed[::2]]
        found += [int(pid) for pid, name in zip(listed[::2], listed[1::2]) if name.startswith("modelcenter")]
    return found


def test_unseen(folder):
    """The secret is in nothing that a run prints or writes, and leaves the environment of its ranks."""
    config = folder / "config.json"
    config.write_text('{"model_type": "gpt2", "vocab_size": 64, "n_embd": 16, "n_layer": 1, "n_head": 1, '
                      '"n_positions": 16}')
    (folder / "texts.jsonl").write_text('{"text": "a b c"}\n' * 50)
    tokens = b"".join(n.to_bytes(4, "little") for n in [20240520, 1, 3000] + [0] * 253)
    (folder / "train.bin").write_bytes(tokens + b"".join((i * 7 % 64).to_bytes(2, "little") for i in range(3000)))
    arguments = ["pretrain", "gpt2", "--config", str(config), "--data", "train.bin", "--seq-length", "16", "--batch-size", "2",
                 "--steps", "1000000", "--output", "run", "--log-jsonl", "log.jsonl", "--save-every", "20"]
    job = start(folder, "mpirun", arguments, MC_JOB_SECRET=SECRET)
    end = time.monotonic() + LIMIT
    while not list(folder.glob("run/checkpoint-*/training.json")) and job.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    ranks = ranks_of(job)
    check(len(ranks) == 2, f"two ranks run: {ranks}")
    for rank in ranks:
        check(not any(SECRET in line for line in environment_of(rank)), f"rank {rank}'s environment holds the secret")
    job.terminate()
    out, err = finish(job)
    check(re.search(r"step +\d+/", err), f"it has trained: {err[-900:]}")
    check(SECRET not in out + err, "the secret is printed")
    for path in folder.rglob("*"):
        check(not path.is_file() or SECRET.encode() not in path.read_bytes(), f"{path} holds the secret")


if __name__ == "__main__":
    sys.exit(run_tests(globals()))
