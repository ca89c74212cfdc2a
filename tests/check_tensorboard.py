#!/usr/bin/env python3
"""What TensorBoard's readers make of event files: each step once, in EventAccumulator and in the page, with and
without its data server. Run by hand, after a change to tools/log/tensorboard.c, with the package `tensorboard`:

    check_tensorboard.py modelcenter       a run that is killed and resumed, in a folder that goes afterwards
    check_tensorboard.py FOLDER            the event files of a folder of runs"""

import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator as PluginAccumulator


def in_accumulators(run):
    """{reader and tag: steps} of both accumulators."""
    found = {}
    plain = EventAccumulator(str(run), size_guidance={"scalars": 0})
    plain.Reload()
    for tag in plain.Tags()["scalars"]:
        found["EventAccumulator", tag] = [event.step for event in plain.Scalars(tag)]
    page = PluginAccumulator(str(run), size_guidance={"tensors": 0})
    page.Reload()
    for tag in page.Tags()["tensors"]:
        found["the page's accumulator", tag] = [event.step for event in page.Tensors(tag)]
    return found


def in_page(folder, run, fast):
    """The same of the page that TensorBoard serves."""
    process = subprocess.Popen([sys.executable, "-m", "tensorboard.main", "--logdir", folder, "--port", "0",
                                "--load_fast", fast, "--samples_per_plugin", "scalars=0"],
                               stderr=subprocess.PIPE, text=True)
    try:
        for line in process.stderr:  # it says which port the system gave it
            address = re.search(r"http://\S+:\d+/", line)
            if address:
                break
        else:
            sys.exit("TensorBoard did not start")
        return read_page(address.group(), run, fast)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate()


def read_page(address, run, fast):
    def get(path, **arguments):
        query = urllib.parse.urlencode(arguments)
        with urllib.request.urlopen(f"{address}data/plugin/scalars/{path}?{query}") as answer:
            return json.load(answer)

    for _ in range(100):  # it reads the files after it has begun to answer
        tags = get("tags")
        if run in tags:
            break
        time.sleep(0.2)
    time.sleep(2)
    return {(f"the page, --load_fast {fast}", tag): [step for _, step, _ in get("scalars", run=run, tag=tag)]
            for tag in get("tags")[run]}


def killed_and_resumed(program, folder):
    """A run that is killed after its last checkpoint, and goes on from there."""
    data = folder / "rows.csv"
    data.write_text("text,label\n" + "".join(f"a text of row {i},{'no' if i % 2 else 'yes'}\n" for i in range(64)))
    shape = folder / "bert.json"
    shape.write_text(json.dumps({"model_type": "bert", "vocab_size": 77, "hidden_size": 16, "intermediate_size": 32,
                                 "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64}))
    tokens = folder / "tokens"
    tokens.mkdir()
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    (tokens / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters,
                                                 *(f"##{letter}" for letter in letters)]) + "\n")
    command = [program, "finetune", "--config", shape, "--tokenizer", tokens, "--data", data, "--text", "text",
               "--label", "label", "--batch-size", "4",
               "--epochs", "2", "--save-every", "5", "--eval-every", "6", "--output", folder / "run",
               "--tensorboard", folder / "board" / "run"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if re.match(r"step +1[3-9]/", line):
            break
    process.kill()
    process.communicate()
    subprocess.run(command + ["--resume"], check=True)
    return folder / "board"


def main():
    given, folder = sys.argv[1], None
    if not pathlib.Path(given).is_dir():
        folder = pathlib.Path(tempfile.mkdtemp())
        given = killed_and_resumed(given, folder)
    bad = 0
    for run in sorted(path for path in pathlib.Path(given).iterdir() if path.is_dir()):
        found = in_accumulators(run)
        for fast in ("true", "false"):
            found.update(in_page(str(given), run.name, fast))
        for (reader, tag), steps in found.items():
            once = len(steps) == len(set(steps)) and steps == sorted(steps)
            bad += not once
            print("ok     " if once else "FAILED ", run.name, reader, tag, *(() if once else (steps,)))
    if folder:
        shutil.rmtree(folder)
    sys.exit(1 if bad else 0)


main()
