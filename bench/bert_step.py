#!/usr/bin/env python3
"""A BERT-base training step in f32 on the CPU: modelcenter.c beside PyTorch, in turns, on the same cores.

    python3 bench/bert_step.py build/release/bench/bert_step [--batch 8] [--length 128] [--rounds 3]

Needs torch and transformers (PyPI). Both sides: forward, backward, clipping to norm 1, AdamW (PyTorch's
fused one), dropout 0.1, random tokens, as many threads as cores. Prints the median of each and the
ratio, and the peak resident memory.
"""
import argparse, json, os, statistics, subprocess, sys

PEER = r"""
import json, resource, sys, time
import torch
from transformers import BertConfig, BertForSequenceClassification
batch, length, steps = map(int, sys.argv[1:4])
torch.manual_seed(0)
model = BertForSequenceClassification(BertConfig(num_labels=2)).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01, fused=True)
times = []
for i in range(-2, steps):
    start = time.perf_counter()
    ids = torch.randint(0, 30000, (batch, length))
    labels = torch.zeros(batch, dtype=torch.long)
    optimizer.zero_grad()
    model(input_ids=ids, labels=labels).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if i >= 0:
        times.append(1e3 * (time.perf_counter() - start))
times.sort()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"ms": times[len(times) // 2], "peak_mib": peak}))
"""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    a = parser.parse_args()
    sizes = [str(a.batch), str(a.length), str(a.steps)]
    sides = {"modelcenter.c": [a.program] + sizes, "PyTorch": [sys.executable, "-c", PEER] + sizes}
    ms, peak = {}, {}
    for _ in range(a.rounds):
        for name, command in sides.items():
            out = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            ms.setdefault(name, []).append(out["ms"])
            peak[name] = max(peak.get(name, 0), out["peak_mib"])
    for name in sides:
        print(f"{name:14s} {statistics.median(ms[name]):8.1f} ms/step   peak {peak[name]:6.0f} MiB   rounds {[round(x, 1) for x in ms[name]]}")
    ours, theirs = (statistics.median(ms[n]) for n in sides)
    print(f"PyTorch / modelcenter.c: {theirs / ours:.2f} in time, {peak['PyTorch'] / peak['modelcenter.c']:.2f} in memory ({os.cpu_count()} cores)")


main()
