#!/usr/bin/env python3
"""Keeps digests of short trainings of one build, and compares those of another build with them.

    tests/check_digests.py keep PROGRAM FILE [PATTERN] [--clip X]
    tests/check_digests.py compare PROGRAM FILE [PATTERN] [--clip X] [--relative X]

PROGRAM is the command modelcenter, PATTERN a regular expression that names of cases have to match.
A change of structure alone must not move a bit: keep the digests with the build before it, compare
with the build after it, on the same machine (other processors round otherwise).

A case is 12 steps of GPT-2, BERT, T5 or CPM-1, small, from random weights: at 1 to 4 ranks, every
ZeRO level, with the optimizer's state on the device or offloaded, with and without recomputation, in
one pass or four, f32 or bf16. Its digest holds each step's loss and gradient norm and the SHA-256 of
the weights that are saved. Gradients are clipped to a norm of 0.5, or that of --clip (0: not). With
--relative losses and norms may differ by that share, and weights are not compared.
"""
import argparse
import hashlib
import itertools
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

VOCABULARY, LENGTH, STEPS, ROWS = 31, 16, 12, 48
SHAPES = {
    "gpt2": dict(model_type="gpt2", vocab_size=VOCABULARY, n_positions=32, n_embd=32, n_layer=3, n_head=4,
                 n_inner=64, initializer_range=0.05),
    "bert": dict(model_type="bert", vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2,
                 num_attention_heads=4, intermediate_size=64, max_position_embeddings=32),
    "t5": dict(model_type="t5", vocab_size=VOCABULARY, d_model=32, d_ff=64, d_kv=8, num_layers=2, num_heads=4),
    "cpm1": dict(vocab_size=VOCABULARY, dim_model=32, num_heads=4, dim_head=8, dim_ff=64, num_layers=2, tied=True),
}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "</s>"] + [f"<extra_id_{i}>" for i in range(8)]


def cases():
    """(name, family, ranks, options) of each."""
    for family, ranks, level, offload, recompute, passes, dtype in itertools.product(
            SHAPES, (1, 2, 3, 4), (0, 1, 2, 3), (False, True), ("none", "selective", "full"), (1, 4), ("f32", "bf16")):
        name = f"{family} ranks={ranks} level={level} {'offload ' if offload else ''}recompute={recompute} " \
               f"passes={passes} {dtype}"
        length = LENGTH if family == "gpt2" else 2 * LENGTH
        options = ["--zero-level", level, "--recompute", recompute, "--dtype", dtype, "--seq-length", length,
                   "--batch-size", ROWS // ranks // passes, "--tokens-per-step", ROWS * length]
        yield name, family, ranks, options + (["--offload"] if offload else [])


def write_inputs(folder):
    state, tokens = 1, []
    for i in range(3000):
        state = state * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
        tokens.append((tokens[-1] * 3 + 1) % VOCABULARY if i and state >> 61 else (state >> 33) % VOCABULARY)
    header = struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253)
    (folder / "train.bin").write_bytes(header + struct.pack(f"<{len(tokens)}H", *tokens))
    (folder / "words").mkdir()
    (folder / "words/vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))
    for family, shape in SHAPES.items():
        (folder / f"{family}.json").write_text(json.dumps(shape))


def digest(program, folder, family, ranks, options, clip):
    """What a training gives: its losses, norms, and the hash of its weights."""
    with tempfile.TemporaryDirectory(dir=folder) as run:
        command = [program, "pretrain", "--family", family, "--config", folder / f"{family}.json", "--data",
                   folder / "train.bin", "--steps", STEPS, "--shuffle", "--lr", "0.003", "--clip", clip, "--output",
                   f"{run}/model", "--log-jsonl", f"{run}/log.jsonl", *options]
        if family != "gpt2":
            command += ["--tokenizer", folder / "words"]
        if ranks > 1:
            command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", ranks, *command]
        done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env=dict(os.environ, OMP_NUM_THREADS="1"))
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}exit code {done.returncode}")
        rows = [json.loads(line) for line in pathlib.Path(run, "log.jsonl").read_text().splitlines()]
        rows = [row for row in rows if "grad_norm" in row]
        weights = pathlib.Path(run, "model/model.safetensors").read_bytes()
    return {"loss": [row["loss"] for row in rows], "norm": [row["grad_norm"] for row in rows],
            "weights": hashlib.sha256(weights).hexdigest()}


def difference(before, after, relative):
    """What differs, in words; empty where nothing does."""
    said = []
    for what in "loss", "norm":
        if len(before[what]) != len(after[what]):
            return f"{len(before[what])} steps before, {len(after[what])} after"
        worst = max(abs(x - y) / abs(x) for x, y in zip(before[what], after[what]))
        if worst > relative:
            said.append(f"{what} by {worst:.1e}")
    if relative == 0 and before["weights"] != after["weights"]:
        said.append("weights")
    return ", ".join(said)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["keep", "compare"])
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("pattern", nargs="?", default=".")
    parser.add_argument("--clip", type=float, default=0.5)
    parser.add_argument("--relative", type=float, default=0)
    chosen = parser.parse_args()
    kept = {} if chosen.action == "keep" else json.loads(chosen.file.read_text())
    program, compared, differing = chosen.program.resolve(), 0, 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_inputs(folder)
        for case, family, ranks, options in cases():
            if not re.search(chosen.pattern, case) or chosen.action == "compare" and case not in kept:
                continue
            made = digest(program, folder, family, ranks, options, chosen.clip)
            compared += 1
            if chosen.action == "keep":
                kept[case] = made
                continue
            said = difference(kept[case], made, chosen.relative)
            differing += said != ""
            if said:
                print(f"DIFFERS {case}: {said}", flush=True)
    if compared == 0:
        sys.exit(f"no case matches {chosen.pattern!r}")
    if chosen.action == "keep":
        chosen.file.write_text(json.dumps(kept, indent=1))
        print(f"{compared} cases kept in {chosen.file}")
        return
    print(f"{compared} cases compared, {differing} differ")
    sys.exit(differing != 0)


if __name__ == "__main__":
    main()
