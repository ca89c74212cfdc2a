"""Runs of `modelcenter pretrain` on texts, for scripts that compare ways to train: token files of
their bytes, runs whose logs are kept, and what the logs say."""

import json
import pathlib
import statistics
import struct
import subprocess
import sys


def write_tokens(path, data):
    header = struct.pack("<256i", 20240520, 1, len(data), *[0] * 253)
    path.write_bytes(header + struct.pack(f"<{len(data)}H", *data))


def prepare(folder, texts):
    """FOLDER/train.bin and val.bin: bytes as tokens, the last 5 % of each text for validation."""
    folder.mkdir(parents=True, exist_ok=True)
    train, val = b"", b""
    for text in texts:
        data = pathlib.Path(text).read_bytes()
        cut = len(data) * 95 // 100
        train, val = train + data[:cut], val + data[cut:]
    write_tokens(folder / "train.bin", train)
    write_tokens(folder / "val.bin", val)


class Log:
    """A run's log: curve, {step: validation loss}, and the lines of its steps."""

    def __init__(self, path):
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        self.curve = {line["step"]: line["loss"] for line in lines if line.get("split") == "val"}
        self.steps = [line for line in lines if "split" not in line]

    def is_whole(self, steps):
        return bool(self.curve) and max(self.curve) == steps


def run(program, folder, name, steps, options):
    """The log of `pretrain` on FOLDER's files with options {name: value}, True for a flag. A run
    whose log is whole is not run again."""
    path = folder / f"{name}.jsonl"
    log = Log(path)
    if log.is_whole(steps):
        return log
    command = [program, "pretrain", "--data", folder / "train.bin", "--val", folder / "val.bin",
               "--val-batches", 0, "--steps", steps, "--no-save", "--overwrite",
               "--log-jsonl", path]
    for key, value in options.items():
        command += [f"--{key}"] if value is True else [f"--{key}", value]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True,
                          check=False)
    if done.returncode:
        sys.exit(f"exit {done.returncode} of {' '.join(map(str, command))}\n{done.stderr}")
    return Log(path)


def mean_and_error(values):
    """The mean and its standard error (NaN of one value)."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return statistics.mean(values), error
