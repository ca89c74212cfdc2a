"""The loss curve of a small GPT-2 on a text, 200 steps: here in each device and dtype asked for, and
in PyTorch from the same weights on the same tokens.

    python3 bench/loss_curve.py MODELCENTER TEXT [DEVICE:DTYPE ...]
    python3 bench/loss_curve.py build/release/bin/modelcenter tinyshakespeare.txt cpu:f32

Tokens are bytes, in llm.c's format. AdamW (0.9, 0.95, decay 0.1 on matrices), clipping at 1, cosine
after 20 steps of warm-up, two passes a step, no dropout. Prints the largest difference of losses and
of gradient norms from PyTorch's f32 run; needs torch and transformers. Fails where an f32 run is off
by more than 1e-4 of the loss.
"""

import json
import math
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

STEPS, WARMUP, LR, BATCH, LENGTH, PASSES = 200, 20, 1e-3, 4, 64, 2


def write_tokens(text, path):
    header = struct.pack("<256i", 20240520, 1, len(text), *[0] * 253)
    path.write_bytes(header + struct.pack(f"<{len(text)}H", *text))


def run_here(tool, folder, device, dtype):
    log = folder / f"{device}-{dtype}.jsonl"
    subprocess.run(
        [tool, "pretrain", "--model", folder / "init", "--data", folder / "t.bin"]
        + ["--batch-size", str(BATCH), "--seq-length", str(LENGTH), "--steps", str(STEPS)]
        + ["--tokens-per-step", str(BATCH * LENGTH * PASSES), "--lr", str(LR)]
        + ["--scheduler", "cosine", "--warmup", str(WARMUP), "--device", device]
        + ["--dtype", dtype, "--log-jsonl", log, "--overwrite", "--no-save"],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    steps = [json.loads(line) for line in log.read_text().splitlines()]
    return [(s["loss"], s["grad_norm"]) for s in steps if "grad_norm" in s]


def run_torch(model, tokens):
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0}]
    adam = torch.optim.AdamW(groups, lr=1, betas=(0.9, 0.95), eps=1e-8)
    curve, at, size = [], 0, BATCH * LENGTH
    for step in range(STEPS):
        part = (step - WARMUP) / (STEPS - WARMUP)
        lr = LR * step / WARMUP if step < WARMUP else LR / 2 * (1 + math.cos(math.pi * part))
        adam.zero_grad()
        total = 0
        for _ in range(PASSES):
            x = tokens[at : at + size].view(BATCH, LENGTH)
            y = tokens[at + 1 : at + size + 1]
            at += size
            loss = torch.nn.functional.cross_entropy(model(x).logits.flatten(0, 1), y) / PASSES
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        for group in adam.param_groups:
            group["lr"] = lr
        adam.step()
        curve.append((total, norm))
    return curve


def main():
    tool, text = sys.argv[1], Path(sys.argv[2]).read_bytes()
    runs = sys.argv[3:] or ["cpu:f32"]
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=128, n_layer=4, n_head=4)
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0
    model = GPT2LMHeadModel(config).train()
    failed = False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model.save_pretrained(folder / "init")
        write_tokens(text, folder / "t.bin")
        here = {run: run_here(tool, folder, *run.split(":")) for run in runs}
    torch_curve = run_torch(model, torch.tensor(list(text)))
    print(f"torch: loss {torch_curve[0][0]:.4f} -> {torch_curve[-1][0]:.4f}")
    for run, curve in here.items():
        assert len(curve) == STEPS, f"{run}: {len(curve)} steps"
        loss = max(abs(a[0] / b[0] - 1) for a, b in zip(curve, torch_curve))
        norm = max(abs(a[1] / b[1] - 1) for a, b in zip(curve, torch_curve))
        print(f"result run={run} loss={curve[-1][0]:.5f} worst_loss={loss:.2e} worst_norm={norm:.2e}")
        failed |= run.endswith(":f32") and loss > 1e-4
    sys.exit(failed)


main()
