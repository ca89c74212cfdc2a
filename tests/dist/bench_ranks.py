#!/usr/bin/env python3
"""`modelcenter bench comm` and `modelcenter plan` on several CPU ranks, started by mpirun.

    bench_ranks.py MPIRUN MODELCENTER
"""

import json
import os
import re
import subprocess
import sys

from kept_port import KeptPort
from ranks_test import ENVIRONMENT, check, run_tests

MPIRUN, TOOL = sys.argv[1], os.path.abspath(sys.argv[2])
LIMIT = 120  # seconds for any one job: nothing may hang
KINDS = ("all-gather", "reduce-scatter", "all-reduce", "broadcast", "reduce", "send/recv")


def run(ranks, folder, *arguments):
    port = KeptPort()
    done = subprocess.run([MPIRUN, "-np", str(ranks), TOOL] + [str(a) for a in arguments], cwd=folder,
                          env=dict(ENVIRONMENT, MC_MASTER_PORT=str(port.number)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=LIMIT)
    check(done.returncode == 0, f"{arguments} on {ranks} ranks: {done.returncode}: {done.stderr[-1500:]}")
    return done.stdout


def result(text):
    lines = text.strip().splitlines()
    check(lines and lines[-1].startswith("result ") and text.count("result ") == 1,
          f"one result line, the last one: {text[-500:]}")
    return dict(pair.split("=", 1) for pair in lines[-1].split()[1:])


def bus_factor(kind, ranks):
    if kind == "all-reduce":
        return 2 * (ranks - 1) / ranks
    if kind in ("all-gather", "reduce-scatter"):
        return (ranks - 1) / ranks
    return 1.0 if ranks > 1 else 0.0


def test_bench(folder):
    for ranks, dtype in ((1, "f32"), (2, "f32"), (2, "f16"), (3, "bf16")):
        size, log = 4 if dtype == "f32" else 2, folder / f"rows-{ranks}-{dtype}.jsonl"
        text = run(ranks, folder, "bench", "comm", "--min-bytes", "8K", "--max-bytes", "64K", "--iterations", 5,
                   "--dtype", dtype, "--log-jsonl", log)
        found = result(text)
        check(found["ranks"] == str(ranks) and found["dtype"] == dtype, f"the result line: {found}")
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        check([row["collective"] for row in rows] == list(KINDS) * 4, f"each collective at each size: {rows}")
        best = {}
        for i, row in enumerate(rows):
            kind, whole = row["collective"], 8192 << i // len(KINDS)
            check(row["bytes"] == whole // size // ranks * size * ranks, f"the size: {row}")
            check(0 < row["seconds"], f"the time: {row}")
            rate = 1e-9 * row["bytes"] / row["seconds"]
            check(abs(row["algbw_gbs"] - rate) <= 1e-6 * rate, f"algorithm bandwidth: {row}")
            check(abs(row["busbw_gbs"] - rate * bus_factor(kind, ranks)) <= 1e-6 * rate, f"bus bandwidth: {row}")
            best[kind] = max(best.get(kind, 0), row["busbw_gbs"])
        for kind in KINDS:
            key = kind.replace("-", "_").replace("/", "_") + "_busbw_gbs"
            check(abs(float(found[key]) - best[kind]) <= 1e-3 * best[kind], f"{key}: {found}, {best}")
        table = [line for line in text.splitlines() if line[:1] == " "]
        check(len(table) == len(rows), f"a row each, from the first rank alone: {text}")


def test_plan(folder):
    """The ranks that were started are those that are planned for; their collectives are measured."""
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "vocab_size": 256, "n_embd": 64,
                                                    "n_layer": 2, "n_head": 2, "n_positions": 32}))
    for level in (0, 3):
        text = run(2, folder, "plan", "gpt2", "--config", ".", "--dtype", "f32", "--zero-level", level)
        found = result(text)
        check(found["ranks"] == "2" and float(found["step_ms"]) > 0, f"two ranks: {found}")
        check("collectives too" in text and "assumed" not in text, f"all is measured: {text}")
        waiting = re.search(r"waiting for ranks +([0-9.]+) ms", text)
        check(waiting and float(waiting[1]) > 0, f"ranks wait for each other: {text}")
    text = run(2, folder, "plan", "gpt2", "--config", ".", "--ranks", 16, "--dtype", "f32")
    check(result(text)["ranks"] == "16" and "8 ranks a host" in text, f"another number of ranks: {text}")


if __name__ == "__main__":
    sys.exit(run_tests(globals()))
