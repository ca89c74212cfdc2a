#!/usr/bin/env python3
"""Changes files at random and has the command read them: it ends with an exit code of its own and, where that is not
0, with a message; never by a signal, and never without an end.

    mutate_files.py MODELCENTER [FILES] [SEED]

Files of models, tokenizers, tables and tokens are cut, their bytes changed, moved, and set to extremes. Run by hand:
FILES (500) take some minutes. A build with AddressSanitizer finds more; tests/fuzz finds it quicker, one reader at a
time."""

import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import kill_training  # its files

SECONDS = 60


def run(command):
    return subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False,
                          timeout=SECONDS, stdin=subprocess.DEVNULL)


def make_models(program, folder):
    """A classifier and a language model, in the forms that are read; [(file, command)]."""
    kill_training.make_files(folder)
    plain = kill_training.commands(program, folder)
    bert, gpt2, other, llama = (folder / name for name in ("bert", "gpt2", "gpt2-mc", "llama"))
    (folder / "llama.json").write_text(json.dumps({
        "model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": 50,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32, "rope_theta": 1e4,
        "rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
                         "original_max_position_embeddings": 16}}))
    for command in ([*plain["finetune"][:-2], "--output", bert],
                    [program, "pretrain", "--config", folder / "gpt2.json", "--data", folder / "train.bin",
                     "--seq-length", "32", "--batch-size", "4", "--steps", "2", "--output", gpt2],
                    [program, "convert", gpt2, other, "--to", "modelcenter"],
                    [program, "convert", gpt2, folder / "gpt2.gguf", "--to", "gguf"],
                    [program, "pretrain", "--config", folder / "llama.json", "--data", folder / "train.bin",
                     "--seq-length", "32", "--batch-size", "4", "--steps", "2", "--output", llama],
                    [program, "convert", llama, folder / "llama.gguf", "--to", "gguf", "--dtype", "q8_0"]):
        made = run(command)
        if made.returncode:
            sys.exit(f"{command}: {made.stderr.decode()}")
    (folder / "rows.jsonl").write_text("".join(json.dumps({"text": f"a text {i}", "n": [i, {"a": None}]}) + "\n"
                                               for i in range(50)))
    generate = ["--ids", "--prompt", "1 2 3", "--max-new-tokens", "2"]
    predict = [program, "predict", "--model", bert]
    return [(bert / "model.safetensors", [*predict, "--text", "a text"]),
            (bert / "config.json", [*predict, "--text", "a text"]),
            (bert / "task.json", [*predict, "--text", "a text"]),
            (bert / "vocab.txt", [*predict, "--text", "a text"]),
            (gpt2 / "model.safetensors", [program, "generate", "--model", gpt2, *generate]),
            (gpt2 / "config.json", [program, "generate", "--model", gpt2, *generate]),
            (other / "pytorch_model.pt", [program, "generate", "--model", other, *generate]),
            (folder / "gpt2.gguf", [program, "convert", folder / "gpt2.gguf", folder / "of-gguf", "--to", "hf",
                                    "--overwrite"]),
            (folder / "llama.gguf", [program, "convert", folder / "llama.gguf", folder / "of-llama", "--to", "hf",
                                     "--overwrite"]),
            (folder / "rows.csv", [*predict, "--data", folder / "rows.csv"]),
            (folder / "rows.jsonl", [*predict, "--data", folder / "rows.jsonl"]),
            (folder / "train.bin", [program, "pretrain", "--config", folder / "gpt2.json", "--data",
                                    folder / "train.bin", "--seq-length", "32", "--batch-size", "4", "--steps", "1",
                                    "--no-save"])]


def mutate(rng, data):
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at, kind = rng.randrange(len(data) + 1) if rng.random() < 0.5 else rng.randrange(min(len(data), 512) + 1), \
            rng.randrange(6)
        if kind == 0:
            del data[at:]
        elif kind == 1:
            data[at:at + 1] = bytes([rng.randrange(256)])
        elif kind == 2:
            data[at:at + 8] = rng.choice((b"\xff" * 8, bytes(8), b"\x7f" + b"\xff" * 7, b"\0" * 7 + b"\x80"))
        elif kind == 3:
            data[at:at] = data[at // 2:at // 2 + rng.randrange(1, 200)]
        elif kind == 4:
            del data[at:at + rng.randrange(1, 64)]
        else:
            data[at:at] = rng.choice((b'"', b"{", b"[" * 100, b"-1", b"1e400", b"\0", b"\xff", b"99999999999", b"\n"))
    return bytes(data)


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    most = int(sys.argv[2]) if len(sys.argv) > 2 else 500
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(1 << 30)
    rng, folder = random.Random(seed), pathlib.Path(tempfile.mkdtemp(prefix="mc-files-"))
    cases, refused = make_models(program, folder), 0
    for _, command in cases:
        whole = run(command)
        if whole.returncode:
            sys.exit(f"{command}: {whole.stderr.decode()}")
    for number in range(most):
        path, command = cases[number % len(cases)]
        whole = path.read_bytes()
        path.write_bytes(mutate(rng, whole))
        kept = folder / f"{number}-{path.name}"
        try:
            ended = run(command)
            good = ended.returncode in (0, 1, 2) and (ended.returncode == 0 or ended.stderr)
            what = f"exit code {ended.returncode}: {ended.stderr.decode(errors='replace')}"
        except subprocess.TimeoutExpired:
            good, what = False, f"no end within {SECONDS} s"
        if not good:
            shutil.copy(path, kept)
            sys.exit(f"{kept} (seed {seed}) as {path}: {' '.join(map(str, command))}: {what}")
        refused += ended.returncode != 0
        path.write_bytes(whole)
    shutil.rmtree(folder)
    print(f"{most} files, seed {seed}: {refused} were refused with a message, the others read; no crash, no hang")


if __name__ == "__main__":
    main()
