#!/usr/bin/env python3
"""Compares Muon with PyTorch's, step by step, and ranks with one another:

    compare_muon.py BUILD TEXT [STEPS]

A small LLaMA and a small GPT-2 of random weights are made by transformers. `BUILD/bin/modelcenter
pretrain --optimizer muon --muon-dtype f32` trains each on the bytes of TEXT, and transformers trains it on the same
batches with torch.optim.Muon, whose Newton-Schulz is patched to f32, for the matrices of blocks, and
torch.optim.AdamW for all else. GPT-2's c_attn is three matrices, and its matrices are (out, in) for Muon. Prints a
line for each with the largest difference of a step's losses, at most 1e-5. Then the LLaMA on 2 ranks at each ZeRO
level, at most 2e-5 from one rank. Exits 1 where one is more.

In bf16 rounding decides the directions in which a gradient has nearly nothing, and losses drift apart. So there the
norm of one update is compared with PyTorch's in bf16, at most 2 %, and the mean of the last quarter of the losses, at
most 0.2 %.

Needs torch (2.9 or newer), transformers and mpirun; tried with transformers 5.24 and torch 2.15. It is run by hand,
not by the tests.
"""
import inspect
import json
import pathlib
import statistics
import struct
import subprocess
import sys
import tempfile

import torch
import transformers
from torch.optim import _muon

TOLERANCE, RANKS_TOLERANCE, NORM_TOLERANCE, MEAN_TOLERANCE = 1e-5, 2e-5, 0.02, 0.002
LENGTH, BATCH, RATE, OTHER, DECAY, CLIP = 32, 8, 2e-3, 1e-3, 0.1, 1.0

LLAMA = transformers.LlamaConfig(
    vocab_size=256, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96,
    max_position_embeddings=LENGTH, tie_word_embeddings=False, bos_token_id=0, eos_token_id=0)
GPT2 = transformers.GPT2Config(
    vocab_size=256, n_embd=48, n_layer=2, n_head=4, n_positions=LENGTH, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
    bos_token_id=0, eos_token_id=0)


SOURCE = inspect.getsource(_muon._zeropower_via_newtonschulz)


def set_dtype(name):
    """Of torch's Newton-Schulz, which has bf16 written into it."""
    exec(SOURCE.replace("torch.bfloat16", name), _muon.__dict__)  # pylint: disable=exec-used


def run(*arguments):
    done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"exit {done.returncode} of {' '.join(map(str, arguments))}\n{done.stderr}")
    return done.stdout


def write_tokens(path, tokens):
    header = struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253)
    path.write_bytes(header + struct.pack(f"<{len(tokens)}H", *tokens))


def split(name, value):
    """A tensor of a file as the matrices that Muon steps: (name, matrix)."""
    if not name.startswith("transformer.h.") or value.ndim != 2:
        return [(name, value)]
    if "c_attn" not in name:
        return [(name, value.T)]
    return [(f"{name}/{i}", part) for i, part in enumerate(value.T.chunk(3))]


def join(parts):
    whole = {}
    for name, value in parts.items():
        whole.setdefault(name.split("/")[0], []).append(value)
    return {name: torch.cat(values).T if name.startswith("transformer.h.") and values[0].ndim == 2 else values[0]
            for name, values in whole.items()}


def torch_steps(model, tokens, steps, scale):
    """The losses of each step, before its update, and the tensors after the last."""
    model.eval()
    parts = {name: torch.nn.Parameter(part.detach().clone().contiguous())
             for whole, value in model.named_parameters() for name, part in split(whole, value)}
    in_block = lambda name: ".layers." in name or ".h." in name
    matrices = [p for name, p in parts.items() if p.ndim == 2 and in_block(name)]
    tables = [p for name, p in parts.items() if p.ndim == 2 and not in_block(name)]
    vectors = [p for p in parts.values() if p.ndim == 1]
    muon = torch.optim.Muon(matrices, lr=RATE, weight_decay=DECAY, adjust_lr_fn=scale)
    adam = torch.optim.AdamW([{"params": tables}, {"params": vectors, "weight_decay": 0}], lr=OTHER, betas=(0.9, 0.95),
                             eps=1e-8, weight_decay=DECAY)
    losses = []
    for step in range(steps):
        at = step * BATCH * LENGTH
        x = torch.tensor(tokens[at:at + BATCH * LENGTH]).view(BATCH, LENGTH)
        y = torch.tensor(tokens[at + 1:at + 1 + BATCH * LENGTH])
        logits = torch.func.functional_call(model, join(parts), (x,), {"use_cache": False}).logits
        loss = torch.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), y)
        muon.zero_grad()
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(parts.values()), CLIP)
        muon.step()
        adam.step()
        losses.append(loss.item())
    return losses, {name: p.detach() for name, p in parts.items()}


def ours(build, folder, family, steps, dtype, scale, ranks=1, level=3):
    """The losses, and the folder of the model."""
    log, output = folder / "log.jsonl", folder / "trained"
    start = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", ranks] if ranks > 1 else []
    run(*start, build / "bin/modelcenter", "pretrain", family, "--pretrained", folder / family, "--data", folder / "data.bin",
        "--seq-length", LENGTH, "--batch-size", BATCH // ranks, "--steps", steps, "--dropout", 0, "--lr", RATE, "--lr-other", OTHER,
        "--scheduler", "constant", "--warmup", 0, "--weight-decay", DECAY, "--clip", CLIP, "--dtype", "f32",
        "--optimizer", "muon", "--muon-dtype", dtype, "--muon-scale", scale, "--zero-level", level, "--log-jsonl", log,
        "--output", output, "--overwrite")
    return [json.loads(line)["loss"] for line in log.read_text().splitlines()], output


def apart(a, b):
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


def tensors_of(kind, folder):
    model = kind.from_pretrained(folder)
    return {name: part for whole, value in model.named_parameters() for name, part in split(whole, value.detach())}


def moved(before, after):
    """The norm of what the matrices of blocks have moved."""
    return torch.cat([(after[n] - p).flatten() for n, p in before.items() if p.ndim == 2 and (".layers." in n or ".h." in n)])


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    build, text = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else 200
    tokens = list(text.read_bytes()[:steps * BATCH * LENGTH + 1])
    set_dtype("torch.float32")
    bad = False
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_tokens(folder / "data.bin", tokens)
        for family, kind, config in [("llama", transformers.LlamaForCausalLM, LLAMA), ("gpt2", transformers.GPT2LMHeadModel, GPT2)]:
            torch.manual_seed(1)
            model = kind(config)
            model.save_pretrained(folder / family)
            for scale, torch_scale in [("match-rms", "match_rms_adamw"), ("shape", "original")]:
                found, _ = ours(build, folder, family, steps, "f32", scale)
                wanted, _ = torch_steps(model, tokens, steps, torch_scale)
                difference = apart(found, wanted)
                bad |= not difference <= TOLERANCE
                print(f"{family}, {scale}: {steps} steps, loss {found[0]:.6f} to {found[-1]:.6f}, torch {wanted[-1]:.6f}, "
                      f"largest difference {difference:.2e}", flush=True)
            set_dtype("torch.bfloat16")
            before = tensors_of(kind, folder / family)
            _, output = ours(build, folder, family, 1, "bf16", "match-rms")
            _, after = torch_steps(model, tokens, 1, "match_rms_adamw")
            norms = moved(before, tensors_of(kind, output)).norm() / moved(before, after).norm() - 1
            last = slice(-max(steps // 4, 1), None)
            means = [statistics.mean(losses[last]) for losses, _ in [ours(build, folder, family, steps, "bf16", "match-rms"),
                                                                     torch_steps(model, tokens, steps, "match_rms_adamw")]]
            bad |= not (abs(norms) <= NORM_TOLERANCE and abs(means[0] / means[1] - 1) <= MEAN_TOLERANCE)
            print(f"{family}: in bf16 the norm of an update differs by {100 * norms:.2f} %, the mean of the last losses "
                  f"{means[0]:.5f}, torch {means[1]:.5f}", flush=True)
            set_dtype("torch.float32")
        one, _ = ours(build, folder, "llama", steps, "f32", "match-rms")
        for level in range(4):
            two, _ = ours(build, folder, "llama", steps, "f32", "match-rms", 2, level)
            bad |= not apart(one, two) <= RANKS_TOLERANCE
            print(f"2 ranks, level {level}: largest difference {apart(one, two):.2e}", flush=True)
    sys.exit(bad)


if __name__ == "__main__":
    main()
