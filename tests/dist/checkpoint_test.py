"""Checkpoints between jobs of different sizes, and what becomes of one that fails.

    checkpoint_test.py MPIEXEC ranks_checkpoint RANKS

Runs ranks_checkpoint under mpirun: saves at RANKS ranks (and at 1) and goes on at 1 to RANKS; then
lets things go wrong on one rank: every rank has to say what, soon, and the checkpoint before has to
be whole.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

from kept_port import KeptPort

mpiexec, program = sys.argv[1:3]
RANKS = int(sys.argv[3])
SOON = 15  # seconds for a job that fails: a second or so until all are told (README), the rest for mpirun
bad = []


def run(ranks, *arguments):
    """Exit code, output and seconds of a job."""
    begun, port = time.monotonic(), KeptPort()
    done = subprocess.run([mpiexec, "-np", str(ranks), program, *arguments], stdout=subprocess.PIPE,
                          env=dict(os.environ, MC_MASTER_PORT=str(port.number)), stderr=subprocess.STDOUT, text=True, timeout=200)
    return done.returncode, done.stdout, time.monotonic() - begun


def check(good, what, output=""):
    print(("ok      " if good else "FAILED  ") + what)
    if not good:
        print(output)
        bad.append(what)


def resume(saved, ranks, what):
    """Goes on from a copy, since going on changes a folder."""
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, "copy")
        shutil.copytree(saved, copy)
        code, output, _ = run(ranks, "resume", copy)
        check(code == 0, f"{what} goes on at {ranks}", output)
        print(output, end="")


def fail(saved, how, expected, where="f32-3"):
    """One rank fails; `expected` is what all say of it."""
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, "copy")
        shutil.copytree(saved, copy)
        target = os.path.join(copy, where)
        _, output, seconds = run(RANKS, "fail", how, target)
        said = re.findall(r"^rank (\d): status (\d+): (.*)$", output, re.M)
        check(len({rank for rank, _, _ in said}) == RANKS, f"{how}: every rank ends", output)
        check(len({status for _, status, _ in said}) == 1, f"{how}: with the same status", output)
        check(all(re.search(expected, text) for _, _, text in said), f"{how}: and says why", output)
        check(seconds < SOON, f"{how}: soon ({seconds:.1f} s)", output)
        check_intact(copy, how)


def check_intact(copy, how):
    whole = os.listdir(os.path.join(copy, "f32-3"))
    check("checkpoint-4" in whole and "checkpoint-5" not in whole, f"{how}: the old one stays",
          str(whole))
    resume(copy, 2, f"{how}: and")


def kill(saved):
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, "copy")
        shutil.copytree(saved, copy)
        code, output, _ = run(RANKS, "fail", "killed", os.path.join(copy, "f32-3"))
        check(code != 0, "killed: the job fails", output)
        check_intact(copy, "killed")


def main():
    with tempfile.TemporaryDirectory() as folder:
        saved = {}
        for ranks in (RANKS, 1):
            saved[ranks] = os.path.join(folder, str(ranks))
            os.mkdir(saved[ranks])
            code, output, _ = run(ranks, "save", saved[ranks])
            check(code == 0, f"saved at {ranks}", output)
        for ranks in range(1, RANKS + 1):
            resume(saved[RANKS], ranks, f"what {RANKS} ranks saved")
        resume(saved[1], RANKS, "what 1 rank saved")
        run_file = os.path.join(saved[RANKS], "a-file")
        open(run_file, "w").close()
        fail(saved[RANKS], "unwritable", r"a-file.*(exists and is not a folder|Not a directory)",
             "a-file/run")
        fail(saved[RANKS], "full-first", r"(rank 0: )?.*cannot write: File too large")
        fail(saved[RANKS], "full-last", r"cannot write: File too large")
        fail(saved[RANKS], "later-first", r"cannot write: File too large")
        fail(saved[RANKS], "later-last", r"cannot write: File too large")
        fail(saved[RANKS], "missing", r"/absent")
        fail(saved[RANKS], "refused", r"saving its files failed")
        kill(saved[RANKS])
    sys.exit(1 if bad else 0)


main()
