#!/usr/bin/env python3
"""Kills trainings at random moments, resumes them, and compares the end with a training that nobody killed.

    kill_training.py MODELCENTER [KILLS] [SEED]

A round is a `pretrain` and a `finetune` of a tiny model, and one of each with --fp8 and Muon or Adam's state in 8
bits, each killed (SIGKILL) until it gets to its end. After each kill the newest checkpoint or model, if there is one,
has to open; at the end the weights have to be those of the training that was not killed, bit for bit. Run by hand:
KILLS (100) take a minute or two."""

import json
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


def make_files(folder):
    """Token files, rows, shapes and a tokenizer."""
    rng = random.Random(1)
    ids = [rng.randrange(50) for _ in range(20000)]
    head = struct.pack("<3i", 20240520, 1, len(ids)) + bytes(1024 - 12)  # as llm.c has it
    (folder / "train.bin").write_bytes(head + struct.pack(f"<{len(ids)}H", *ids))
    (folder / "gpt2.json").write_text(json.dumps({
        "model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 50, "n_positions": 32}))
    for name, width in [("bert.json", 16), ("wide.json", 64)]:  # matrices of 64 x 64 have state in 8 bits
        (folder / name).write_text(json.dumps({
            "model_type": "bert", "vocab_size": 77, "hidden_size": width, "intermediate_size": 2 * width,
            "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64}))
    (folder / "tokens").mkdir()
    (folder / "tokens/vocab.txt").write_text("\n".join(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{c}" for c in LETTERS)]) + "\n")
    (folder / "rows.csv").write_text("text,label\n" + "".join(
        f"a text of row {i},{'no' if i % 2 else 'yes'}\n" for i in range(256)))


def commands(program, folder):
    """Of all trainings, without their --output."""
    pretrain = [program, "pretrain", "--config", folder / "gpt2.json", "--data", folder / "train.bin", "--seq-length", "32",
                "--batch-size", "4", "--steps", "120", "--save-every", "5", "--keep", "1"]
    finetune = [program, "finetune", "--config", folder / "bert.json", "--tokenizer", folder / "tokens", "--data",
                folder / "rows.csv", "--text", "text", "--label", "label", "--batch-size", "4", "--epochs", "2",
                "--save-every", "5"]
    return {"pretrain": pretrain, "finetune": finetune,
            "pretrain-muon": [*pretrain, "--optimizer", "muon", "--fp8", "all", "--dtype", "bf16"],
            "finetune-8bit": [*finetune, "--config", folder / "wide.json", "--optimizer-state", "8bit", "--fp8", "all"]}


def weights(output):
    """The bytes of a finished training's weights."""
    found = sorted(output.glob("*.safetensors"))
    return {path.name: path.read_bytes() for path in found} if found else None


def run(command):
    return subprocess.run(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                          check=False)


def check_opens(program, output):
    """What has a name is whole."""
    for path in sorted(output.glob("**/*.safetensors")):
        if ".tmp-" in str(path) or path.parent.name.endswith(".tmp"):
            continue
        looked = run([program, "info", path])
        if looked.returncode:
            sys.exit(f"{path} is left broken: {looked.stderr}")


def killed(program, command, output, rng, usual):
    """Trains with kills in between; how many hit."""
    kills = 0
    while True:
        process = subprocess.Popen(list(map(str, [*command, "--output", output, "--resume"])),
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        time.sleep(rng.uniform(0, 0.7 * usual))
        process.kill()
        _, err = process.communicate()
        if process.returncode == 0:
            return kills
        if process.returncode != -signal.SIGKILL:
            sys.exit(f"{command}: exit code {process.returncode}: {err}")
        kills += 1
        check_opens(program, output)


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    most = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(1 << 30)
    rng, folder = random.Random(seed), pathlib.Path(tempfile.mkdtemp(prefix="mc-kills-"))
    make_files(folder)
    expected, usual = {}, {}
    for name, command in commands(program, folder).items():
        start = time.monotonic()
        whole = run([*command, "--output", folder / f"{name}-whole"])
        usual[name] = time.monotonic() - start
        expected[name] = weights(folder / f"{name}-whole")
        if whole.returncode or not expected[name]:
            sys.exit(f"{name}: {whole.stderr}")
    kills = rounds = 0
    while kills < most:
        for name, command in commands(program, folder).items():
            output = folder / name
            kills += killed(program, command, output, rng, usual[name])
            if weights(output) != expected[name]:
                sys.exit(f"{name}: other weights than without kills (seed {seed}, {kills} kills): {output}")
            shutil.rmtree(output)
            rounds += 1
    shutil.rmtree(folder)
    print(f"{kills} kills of {rounds} trainings, seed {seed}: every checkpoint opened, and all ended in the same bits")


if __name__ == "__main__":
    main()
