#!/usr/bin/env python3
"""The command on several CPU ranks, started by mpirun: the same training at any number of ranks, output
from the first one alone, and an end for all of them whatever becomes of one.

    tools_ranks.py MPIRUN MODELCENTER QUICKSTART_FOLDER RANKS_RESULTS
"""

import csv
import json
import math
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

from kept_port import KeptPort
from ranks_test import ENVIRONMENT, check, run_tests

MPIRUN = sys.argv[1]
TOOL, QUICKSTART, RESULTS = (os.path.abspath(path) for path in sys.argv[2:5])
LIMIT = 150  # seconds for any one job: nothing may hang
SOON, BUSY = 2, 60  # seconds: until the error reaches all ranks ("within a second or so", README), and on a busy machine
VOCABULARY, LENGTH = 61, 16

# Each rank's output, process id and exit code go to files of their own.
WRAPPER = r"""
r=${OMPI_COMM_WORLD_RANK:-0}
[ "$r" = "$FULL_DISK_RANK" ] && trap '' XFSZ # it is told by write
[ "$r" = "$ABSENT_RANK" ] && set -- sleep 60
"$@" >out.$r 2>err.$r &
echo $! >pid.new.$r && mv pid.new.$r pid.$r
wait $!
code=$?
echo $code >code.new.$r && mv code.new.$r code.$r
[ -z "$OUTLIVED" ] || exit 0 # Open MPI 5 would end the others, --enable-recovery or not
exit $code
"""


class Job:
    """A command on some ranks, in a folder of its own."""

    def __init__(self, folder, ranks, arguments, tool=TOOL, recovery=False, **environment):
        self.ranks, self.folder = ranks, pathlib.Path(tempfile.mkdtemp(dir=folder))
        self.arguments = [str(a) for a in arguments]
        wrapper = folder / "wrapper.sh"
        wrapper.write_text(WRAPPER)
        self.port = KeptPort()
        environment.setdefault("MC_MASTER_PORT", str(self.port.number))
        start = [MPIRUN, "-np", str(ranks)] + (["--enable-recovery"] if recovery else [])
        self.process = subprocess.Popen(start + ["sh", str(wrapper), tool] + self.arguments,
                                        cwd=self.folder, env=dict(ENVIRONMENT, OUTLIVED="1" if recovery else "",
                                                                  **environment),
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def read(self, kind, rank):
        path = self.folder / f"{kind}.{rank}"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait(self):
        """Waits for the end; the exit code of mpirun."""
        try:
            self.said = self.process.communicate(timeout=LIMIT)[0]
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.said = self.process.communicate()[0]
            for rank in range(self.ranks):
                self.signal(rank, signal.SIGKILL)
            check(False, f"no end within {LIMIT} s: {self}")
        return self.process.returncode

    def wait_for(self, condition, what):
        """Whether a condition comes true in time."""
        end = time.monotonic() + LIMIT
        while not condition():
            ended = self.process.poll() is not None
            if time.monotonic() > end or (ended and not condition()):
                return check(False, f"{what} did not come: {self}")
            time.sleep(0.02)
        return True

    def wait_for_steps(self):
        return self.wait_for(lambda: "step   20/" in self.read("err", 0), "step 20")

    def signal(self, rank, number):
        try:
            os.kill(int(self.read("pid", rank)), number)
        except (ValueError, ProcessLookupError):
            pass

    def result(self):
        """The keys of the result line, which the first rank alone prints."""
        code = self.wait()
        check(code == 0, f"exit {code} of {self}\n{self.said}")
        for rank in range(1, self.ranks):
            check(self.read("out", rank) == "" and self.read("err", rank) == "",
                  f"rank {rank} is silent: {self}\n{self.read('out', rank)}{self.read('err', rank)}")
        lines = self.read("out", 0).splitlines()
        if not check(lines and lines[-1].startswith("result "), f"a result line: {self}"):
            return {}
        return dict(part.split("=", 1) for part in lines[-1].split()[1:])

    def must_fail(self, rank, *texts):
        """A rank ended with an error that holds the texts."""
        said = self.read("err", rank)
        check(self.read("code", rank).strip() == "1", f"exit code of rank {rank}: {self}\n{said}")
        lines = [line for line in said.splitlines() if line.startswith("error: ")]
        for text in texts:
            check(any(text in line for line in lines), f'rank {rank} says "{text}": {self}\n{said}')

    def __str__(self):
        return f"{self.ranks} ranks of modelcenter {' '.join(self.arguments)}"


def steps_of(path):
    """{step: (loss, norm)} of a JSON Lines file."""
    if not check(path.exists(), f"a log: {path}"):
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["step"]: (row["loss"], row["grad_norm"]) for row in rows if "grad_norm" in row}


def same_steps(a, b, what, limit=1e-5):
    worst = max((abs(x - y) / abs(x) for s in a for x, y in zip(a[s], b.get(s, (math.inf,) * 2))),
                default=math.inf)
    return check(a.keys() == b.keys() and worst <= limit, f"equal losses and norms: {what}: {worst:.1e}")


# ---- data ----------------------------------------------------------------------------------------

def write_tokens(path, tokens):
    header = struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253)
    path.write_bytes(header + struct.pack(f"<{len(tokens)}H", *tokens))


def write_data(folder):
    state, tokens = 1, []
    for i in range(3000):
        state = state * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
        tokens.append((tokens[-1] * 3 + 1) % VOCABULARY if i and state >> 61 else (state >> 33) % VOCABULARY)
    write_tokens(folder / "train.bin", tokens)
    write_tokens(folder / "val.bin", tokens[:500])
    tokens[6 * LENGTH + 5] = 999  # in the second step of four ranks, on rank 2
    write_tokens(folder / "bad.bin", tokens)
    shape = dict(model_type="gpt2", vocab_size=VOCABULARY, n_positions=32, n_embd=32, n_layer=3, n_head=4,
                 n_inner=64, initializer_range=0.05)
    (folder / "tiny.json").write_text(json.dumps(shape))
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer/vocab.json").write_text('{"a":0,"b":1,"c":2,"<|endoftext|>":3}')
    (folder / "tokenizer/merges.txt").write_text("#version: 0.2\n")
    for name, rows in (("train", 101), ("val", 37)):
        lines = (pathlib.Path(QUICKSTART) / f"{name}.jsonl").read_text().splitlines()[:rows]
        (folder / "qa").mkdir(exist_ok=True)
        (folder / "qa" / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def pretrain(folder, *more, data="train.bin"):
    return ["pretrain", "gpt2", "--config", folder / "tiny.json", "--data", folder / data, "--seq-length",
            LENGTH, "--lr", "0.01", "--clip", "0.5", *more]


# ---- the same training ---------------------------------------------------------------------------

def test_pretraining(folder):
    """Batches of 4, 2 and 1 a rank are the same steps, at every level."""
    first = None
    for ranks, level in [(1, 3)] + [(2, level) for level in range(4)] + [(4, 3)]:
        job = Job(folder, ranks, pretrain(
            folder, "--batch-size", 4 // ranks, "--tokens-per-step", 8 * LENGTH, "--steps", 20, "--val",
            folder / "val.bin", "--val-every", 7, "--shuffle", "--zero-level", level, "--log-jsonl",
            "log.jsonl", "--tensorboard", "board", "--local_rank", 3))
        result, log = job.result(), job.folder / "log.jsonl"
        steps = steps_of(log)
        check(len(list((job.folder / "board").iterdir())) == 1, f"one TensorBoard file: {job}")
        check(len(log.read_text().splitlines()) == 23, f"20 steps and 3 validations, once: {job}")
        check(result.get("tokens") == str(20 * 8 * LENGTH), f"tokens of all ranks: {job}")
        if first is None:
            first, val = steps, result["val_loss"]
            check(steps[20][0] < 0.75 * steps[1][0], f"it learns: {steps[1][0]} to {steps[20][0]}")
            check(all(norm > 0.5 for _, norm in steps.values()), "clipping is active")
        same_steps(first, steps, f"{ranks} ranks at level {level}")
        check(abs(float(result["val_loss"]) - float(val)) < 2e-5, f"the same validation: {job}")


def test_largest_batch(folder):
    """--batch-size auto on ranks takes no more than was given, which one more sequence would."""
    given = 0.002
    batch = ["--batch-size", "auto", "--memory", given, "--steps", 2]
    result = Job(folder, 2, pretrain(folder, *batch)).result()
    peak = int(result.get("planned_bytes", 0))
    check(0.8 * given * 2**30 < peak <= given * 2**30, f"a batch that fits into {given} GiB: {result}")


def write_objectives(folder):
    """Configs of models of VOCABULARY tokens, and a tokenizer with what their objectives put in."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "</s>"] + [f"<extra_id_{i}>" for i in range(8)]
    (folder / "words").mkdir()
    (folder / "words/vocab.txt").write_text("".join(f"{name}\n" for name in names))
    (folder / "bert.json").write_text(json.dumps(dict(
        model_type="bert", vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=32)))
    (folder / "t5.json").write_text(json.dumps(dict(
        model_type="t5", vocab_size=VOCABULARY, d_model=32, d_ff=64, d_kv=8, num_layers=2, num_heads=4)))
    (folder / "cpm1.json").write_text(json.dumps(dict(
        vocab_size=VOCABULARY, dim_model=32, num_heads=4, dim_head=8, dim_ff=64, num_layers=2, tied=True)))


def test_objectives(folder):
    """Masks, pairs and spans are drawn the same at any number of ranks."""
    write_objectives(folder)
    for family in "bert", "t5", "cpm1":
        first = None
        for ranks, level in (1, 3), (2, 3):
            job = Job(folder, ranks, [
                "pretrain", family, "--config", folder / f"{family}.json", "--tokenizer", folder / "words", "--data",
                folder / "train.bin", "--val", folder / "val.bin", "--seq-length", 2 * LENGTH, "--lr", "0.003",
                "--batch-size", 4 // ranks, "--tokens-per-step", 16 * LENGTH, "--steps", 12, "--shuffle",
                "--zero-level", level, "--log-jsonl", "log.jsonl"])
            result, steps = job.result(), steps_of(job.folder / "log.jsonl")
            first = first or (steps, result["val_loss"])
            check(len(steps) == 12 and steps[12] != steps[1], f"12 steps: {job}")
            same_steps(first[0], steps, f"{family} on {ranks} ranks at level {level}")
            check(abs(float(result["val_loss"]) - float(first[1])) < 2e-5, f"the same validation: {job}")


def test_streams(folder):
    """Blends, and documents kept apart, are the same windows and pieces at any number of ranks."""
    first = None
    for ranks, level in (1, 3), (2, 3), (4, 0):
        job = Job(folder, ranks, [*pretrain(
            folder, "--batch-size", 4 // ranks, "--tokens-per-step", 8 * LENGTH, "--steps", 12, "--shuffle",
            "--zero-level", level, "--separate-documents", "--document-token", 7, "--val", folder / "val.bin",
            "--log-jsonl", "log.jsonl", data="train.bin:0.7"), "--data", folder / "val.bin:0.3"])
        result, steps = job.result(), steps_of(job.folder / "log.jsonl")
        first = first or (steps, result["val_loss"])
        same_steps(first[0], steps, f"a blend on {ranks} ranks at level {level}")
        check(abs(float(result["val_loss"]) - float(first[1])) < 2e-5, f"the same validation: {job}")


def test_samples(folder):
    """A text between steps, for which the ranks' parts of the model come together."""
    texts = []
    for ranks in (1, 2, 4):
        job = Job(folder, ranks, pretrain(
            folder, "--batch-size", 4 // ranks, "--steps", 4, "--sample-every", 2, "--sample-length", 6,
            "--tokenizer", folder / "tokenizer", "--prompt", "abc", "--log-jsonl", "log.jsonl",
            "--output", "run", "--save-every", 1))
        job.result()
        rows = [json.loads(line) for line in (job.folder / "log.jsonl").read_text().splitlines()]
        texts.append([row["sample"] for row in rows if "sample" in row])
    check(len(texts[0]) == 2 and texts[0] == texts[1] == texts[2], f"the same texts: {texts}")
    generate = ["generate", "gpt2", "--pretrained", job.folder / "run", "--max-new-tokens", 5, "--prompt", "ab"]
    (folder / "prompts.txt").write_text("c\n" + "ab" * 40 + "\nba\n")  # one is too long, and the others go on
    for ranks, more in ((2, ["--comm-timeout", 100]), (3, ["--top-k", 3, "--seed", 5, "--zero-level", 0]),
                        (2, ["--num-beams", 3]), (2, ["--prompt", "c", "--json"]),
                        (3, ["--prompts", folder / "prompts.txt"])):
        said = [said_by_first(Job(folder, n, generate + more)) for n in (1, ranks)]
        check(said[0] and said[0] == said[1], f"the same answers: {more} {said}")
    job = Job(folder, 2, generate + ["--prompts", "-"], recovery=True)
    job.wait()
    job.must_fail(0, "only the first of several ranks has a stdin")


def said_by_first(job):
    """What the first rank prints; the others say nothing."""
    check(job.wait() == 0, f"exit code of {job}: {job.said}{job.read('err', 0)}")
    for rank in range(1, job.ranks):
        check(job.read("out", rank) == "" and job.read("err", rank) == "", f"rank {rank} is silent: {job}")
    return job.read("out", 0)


def test_gradient_dtype(folder):
    """What travels between ranks may be rounded, and is where that is asked for."""
    common = ("--batch-size", 2, "--steps", 10, "--dtype", "bf16", "--log-jsonl", "log.jsonl")
    exact, rounded, named, offloaded = (
        steps_of(job.folder / "log.jsonl") for job in (
            Job(folder, 2, pretrain(folder, *common, *more)) for more in (
                [], ["--grad-dtype", "param"], ["--grad-dtype", "bf16"], ["--offload"]))
        if job.result())
    worst = max(abs(exact[s][0] - rounded[s][0]) for s in exact)
    # Adam divides first gradients by their own size, so that rounding of small ones is seen
    check(worst < 0.05, f"nearly the same losses with gradients in bf16: {worst}")
    check(exact != rounded and rounded == named, f"they are rounded: {exact} {rounded} {named}")
    same_steps(exact, offloaded, "offloaded")


def test_inspecting(folder):
    """One text: the table is the same at any number of ranks and level, activations and gradients too."""
    job = Job(folder, 1, pretrain(folder, "--steps", 2, "--tokenizer", folder / "tokenizer", "--output", "run"))
    job.result()
    tables = []
    for ranks, level in (1, 3), (2, 3), (3, 0), (3, 2):
        job_said = said_by_first(Job(folder, ranks, ["inspect", job.folder / "run", "--text", "abcabcab", "--json",
                                                     "--zero-level", level]))
        tables.append([json.loads(line) for line in job_said.splitlines()])
    first = tables[0]
    check(any(row["kind"] == "activation" and row["grad_std"] > 0 for row in first), f"gradients: {first}")
    for table in tables[1:]:
        same = len(table) == len(first) and all(
            a.keys() == b.keys() and all(
                math.isclose(a[key], b[key], rel_tol=1e-6, abs_tol=1e-9) if isinstance(a[key], float) else a[key] == b[key]
                for key in a) for a, b in zip(first, table))
        check(same, f"the same table: {first[-1]} {table[-1]}")


def test_finetuning(folder):
    """101 rows, which no number of ranks divides; the last step leaves ranks without any."""
    first, runs = None, []
    for ranks in (1, 2, 4):
        job = Job(folder, ranks, [
            "finetune", "bert", "--task", "BoolQ", "--config", QUICKSTART, "--data", folder / "qa",
            "--batch-size", 20 // ranks, "--epochs", 2, "--dropout", 0, "--lr", "1e-3", "--clip", "0.5",
            "--log-jsonl", "log.jsonl", "--output", "model"])
        result, steps = job.result(), steps_of(job.folder / "log.jsonl")
        first = first or (steps, result)
        check(len(steps) == 12, f"6 steps an epoch: {job}")
        same_steps(first[0], steps, f"fine-tuning on {ranks} ranks")
        check(result.get("n") == "37" and result.get("accuracy") == first[1].get("accuracy"),
              f"the same accuracy over all rows: {job}: {result}")
        runs.append(job)
    for ranks, saved in (3, runs[0]), (1, runs[2]):
        result = Job(folder, ranks, ["eval", "bert", "--task", "BoolQ", "--model", saved.folder / "model",
                                     "--data", folder / "qa", "--batch-size", 5]).result()
        check(result.get("accuracy") == first[1].get("accuracy") and result.get("n") == "37",
              f"evaluated on {ranks} ranks: {result}")
    ask = ["ask", "--model", saved.folder / "model", "--question", "is it", "--passage", "It is."]
    said = [said_by_first(Job(folder, ranks, ask)) for ranks in (1, 3)]
    check(said[0] and said[0] == said[1], f"asked on 1 and 3 ranks: {said}")


def test_finetuning_goes_on(folder):
    """101 rows in steps of 20, so that the last step of an epoch has one row: a run that stops before it
    goes on to the bit, and on other numbers of ranks, in other pieces, up to rounding."""
    def tuned(ranks, passes, *more):
        return Job(folder, ranks, ["finetune", "bert", "--task", "BoolQ", "--config", QUICKSTART, "--data",
                                   folder / "qa", "--batch-size", 20 // ranks // passes, "--rows-per-step", 20,
                                   "--epochs", 2, "--lr", "1e-3", "--eval-every", 4, "--keep", "best", *more])

    def model(name):
        return (folder / name / "model.safetensors").read_bytes()

    files = [("--output", folder / name, "--log-jsonl", folder / f"{name}.jsonl") for name in ("whole", "parts", "moved")]
    whole = tuned(2, 2, *files[0]).result()
    for stop in (5, 9):
        job = tuned(2, 2, *files[1], "--resume", "--stop-after", stop)
        check(job.wait() == 0 and "stopped at step" in job.read("err", 0), f"stopped: {job} {job.read('err', 0)[-500:]}")
    parts = tuned(2, 2, *files[1], "--resume").result()
    check(whole.get("accuracy") == parts.get("accuracy") and model("whole") == model("parts"),
          f"to the bit: {whole} {parts}")
    check(steps_of(folder / "whole.jsonl") == steps_of(folder / "parts.jsonl"), "the same losses and norms")
    tuned(1, 1, "--dropout", 0, "--log-jsonl", folder / "one.jsonl").result()
    for ranks, passes, stop in ((4, 1, 3), (1, 4, 7), (2, 5, 0)):
        more = ("--stop-after", stop) if stop else ()
        job = tuned(ranks, passes, "--dropout", 0, *files[2], "--resume", *more)
        check(job.wait() == 0, f"on {ranks} ranks, {passes} passes: {job.read('err', 0)[-500:]}")
    check("the run was begun on 1 rank, it goes on on 2" in job.read("err", 0), f"it says so: {job}")
    same_steps(steps_of(folder / "one.jsonl"), steps_of(folder / "moved.jsonl"), "in other pieces")


def write_t5(folder):
    """A small T5 whose tokens are characters, and two benchmarks with questions of several rows and texts."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({
        "model_type": "t5", "vocab_size": 105, "d_model": 32, "d_ff": 64, "d_kv": 16, "num_heads": 2, "num_layers": 1,
        "eos_token_id": 1, "pad_token_id": 0, "decoder_start_token_id": 0}))
    special = ["<pad>", "</s>", "<unk>", "<extra_id_0>", "<extra_id_1>"]
    ids = [0, 1, 2, 100, 101]
    words = [["\u2581", -4]] + [[chr(c), -5] for c in range(ord("!"), ord("~") + 1)] + [["\u2581No", -3], ["\u2581Yes", -3]]
    space = {"type": "Metaspace", "replacement": "\u2581", "add_prefix_space": True}
    end = {"SpecialToken": {"id": "</s>", "type_id": 0}}
    text, pair = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "normalizer": None, "pre_tokenizer": space, "decoder": space,
        "added_tokens": [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for i, t in zip(ids, special)],
        "post_processor": {"type": "TemplateProcessing", "single": [text, end], "pair": [text, end, pair, end],
                           "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}}},
        "model": {"type": "Unigram", "unk_id": 2, "vocab": [[t, 0] for t in special[:3]] + words}}))
    questions = [{"id": str(i), "question": f"{c}?", "answers": [{"text": a}]}
                 for i, (c, a) in enumerate(zip("abcdefg", ["x", "y y", "x", "z z z z", "x", "y", "x"]))]
    answers = [{"question": q["question"], "answers": [{"text": c, "label": int(c == "x")} for c in "xyz"[:1 + i % 3]]}
               for i, q in enumerate(questions)]
    for split in "train", "dev":
        (folder / f"{split}-v1.1.json").write_text(json.dumps(
            {"data": [{"paragraphs": [{"context": "x y z", "qas": questions}]}]}))
        (folder / f"{split}.jsonl").write_text(json.dumps({"passage": {"text": "p", "questions": answers}}) + "\n")


def test_benchmark_scores(folder):
    """Questions whose rows lie on several ranks, texts of different lengths, and ranks without rows."""
    write_t5(folder / "t5")
    for task, epochs, metrics in ("SQuAD", 60, ["f1", "em", "rougeL"]), ("MultiRC", 8, ["f1a", "em", "accuracy"]):
        rows = ["--task", task, "--data", folder / "t5", "--max-target-length", 12]
        run = Job(folder, 2, ["finetune", "t5", *rows, "--config", folder / "t5", "--batch-size", 4, "--epochs", epochs,
                              "--dropout", 0, "--lr", "1e-2", "--output", "model"])
        first = run.result()
        check(set(metrics) < set(first) and first.get("n") == "7", f"{task}: {first}")
        for ranks in (1, 3):
            result = Job(folder, ranks, ["eval", "t5", *rows, "--model", run.folder / "model", "--batch-size",
                                         2]).result()
            check([result.get(name) for name in metrics + ["n"]] == [first.get(name) for name in metrics + ["n"]],
                  f"{task} on {ranks} ranks: {result}, on 2 {first}")


def test_finetuning_on_files(folder):
    """A CSV file, a tenth of it held back: the same steps and the same score at any number of ranks."""
    # no text comes twice: of equal ones rounding alone says which has the higher score
    words = [" ".join(["is", "a", "in", "it"][i >> k & 3] for k in (0, 2, 4, 6)) for i in range(101)]
    rows = [f'"the {words[i]}",{i % 2 + (i % 3) / 3},{["x", "x|y", ""][i % 3]}' for i in range(101)]
    (folder / "rows.csv").write_text("text,number,tags\n" + "\n".join(rows) + "\n")
    (folder / "chat.jsonl").write_text("".join(
        json.dumps({"prompt": "abc" * (i % 4) + "ab"[i % 2], "response": "ab" * (i % 3) + "c"}) + "\n" for i in range(101)))
    bert = ["finetune", "bert", "--config", QUICKSTART, "--data", folder / "rows.csv", "--text", "text"]
    for kind in ([*bert, "--label", "number", "--regression"], [*bert, "--label", "tags", "--multi-label"],
                 ["finetune", "gpt2", "--config", folder / "tiny.json", "--tokenizer", folder / "tokenizer", "--data",
                  folder / "chat.jsonl", "--prompt", "prompt", "--response", "response", "--generate"]):
        first = None
        for ranks in (1, 3):
            # at 1e-3 losses are thrown about from step to step, and rounding grows with them
            job = Job(folder, ranks, [*kind, "--batch-size", 12 // ranks, "--dropout", 0, "--lr", "1e-4",
                                      "--log-jsonl", "log.jsonl", "--output", "model"])
            result, steps = job.result(), steps_of(job.folder / "log.jsonl")
            result.pop("train_seconds")
            first = first or (steps, result)
            same_steps(first[0], steps, f"fine-tuning with {kind[-1]} on {ranks} ranks")
            close = result.keys() == first[1].keys() and all(
                result[k] == first[1][k] or abs(float(result[k]) - float(first[1][k])) < 2e-4 for k in result)
            check(close and result["n"] == "10", f"the same score on {ranks} ranks: {first[1]} {result}")
        result = Job(folder, 3, ["eval", kind[1], "--model", job.folder / "model", "--data",
                                 folder / ("chat.jsonl" if kind[1] == "gpt2" else "rows.csv")]).result()
        rows = "101" if kind[1] == "bert" else str(sum(2 * (i % 3) + 2 for i in range(101)))  # or targets
        check(result.get("n") == rows, f"evaluated by the saved columns: {result}")


def test_embedding(folder):
    """Rows in their order at any number of ranks: 101 of them, several chunks; a rank may have none."""
    train = Job(folder, 1, ["finetune", "bert", "--task", "BoolQ", "--config", QUICKSTART, "--data", folder / "qa",
                            "--max-steps", 1, "--output", "model"])
    train.result()
    model, table = train.folder / "model", folder / "texts.jsonl"
    texts = [" ".join(["the", "is", "a", "in"][(i + k) % 4] for k in range(i * 13 % 31)) for i in range(301)]
    table.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    vectors = []
    for ranks in (1, 2, 4):
        job = Job(folder, ranks, ["embed", model, "--data", table, "--output", "v.npy"])
        check(job.result().get("rows") == "301", f"all rows: {job}")
        data = (job.folder / "v.npy").read_bytes()
        check(b"'shape': (301, 64)" in data[:128] and len(data) == 128 + 301 * 64 * 4, f"the form of the file: {job}")
        vectors.append(struct.unpack(f"<{301 * 64}f", data[128:]))
        job = Job(folder, ranks, ["embed", model, "--data", table, "--output", "v.jsonl"])
        job.result()
        lines = [json.loads(line)["embedding"] for line in (job.folder / "v.jsonl").read_text().splitlines()]
        vectors.append([x for line in lines for x in line])
    said = []
    for ranks in (1, 3):
        job = Job(folder, ranks, ["predict", model, "--data", table, "--output", "p.jsonl"])
        check(job.result().get("rows") == "301", f"all rows: {job}")
        said.append([json.loads(line) for line in (job.folder / "p.jsonl").read_text().splitlines()])
        job = Job(folder, ranks, ["predict", model, "--data", table, "--output", "p.csv"])
        job.result()
        with open(job.folder / "p.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        check([row["text"] for row in rows] == texts and all(
            row["label"] == a["label"] and abs(float(row["probability"]) - a["probability"]) < 1e-5
            for row, a in zip(rows, said[-1])), f"the same as CSV, beside its texts: {rows[:2]}")
    check(len(said[0]) == 301 and all(a["label"] == b["label"] and all(
        abs(p - b["probabilities"][name]) < 1e-5 for name, p in a["probabilities"].items())
        for a, b in zip(*said)) and len(said[1]) == 301, f"the same answers: {said[0][:2]} {said[1][:2]}")
    few = folder / "few.jsonl"
    few.write_text(json.dumps({"text": texts[5]}) + "\n")
    Job(folder, 3, ["embed", model, "--data", few, "--output", folder / "few.npy"]).result()
    vectors.append(list(vectors[0][:5 * 64]) + list(struct.unpack("<64f", (folder / "few.npy").read_bytes()[128:]))
                   + list(vectors[0][6 * 64:]))
    worst = [max(map(abs, map(float.__sub__, vectors[0], other)), default=0) if len(other) == 301 * 64 else math.inf
             for other in vectors[1:]]
    check(max(worst) < 1e-4, f"the same vectors on 1, 2, 3 and 4 ranks, in both forms: {worst}")
    (folder / "bad.csv").write_text("text\nfine\n\"open\n")
    job = Job(folder, 3, ["embed", model, "--data", folder / "bad.csv", "--output", "v.npy"],
              recovery=True)
    job.wait()
    job.must_fail(0, "bad.csv:3:1: ")
    check(not list(job.folder.glob("v.npy*")), f"nothing is left: {list(job.folder.iterdir())}")


def test_stopping(folder):
    """SIGTERM to one rank: all save and leave; other numbers of ranks go on to the same losses."""
    common = ("--tokens-per-step", 12 * LENGTH, "--steps", 30, "--shuffle", "--log-jsonl", "log.jsonl")
    whole = Job(folder, 1, pretrain(folder, "--batch-size", 12, *common))
    whole.result()
    whole = steps_of(whole.folder / "log.jsonl")
    part = Job(folder, 4, pretrain(folder, "--batch-size", 3, "--output", "run", "--stop-after", 11, *common))
    part.result()
    for ranks in (1, 2, 3):
        job = Job(folder, ranks, pretrain(folder, "--output", part.folder / "run", "--resume",
                                          "--stop-after", 11 + 5 * ranks, *common[:-1], part.folder / "log.jsonl"))
        job.result()
        check(f"the run was begun on {max(ranks - 1, 1) if ranks > 1 else 4} rank" in job.read("err", 0),
              f"it says that there are other ranks: {job}\n{job.read('err', 0)}")
    then = steps_of(part.folder / "log.jsonl")
    same_steps({s: whole[s] for s in range(1, 27)}, then, "resumed on other numbers of ranks")
    job = Job(folder, 3, pretrain(folder, "--steps", 10**8, "--batch-size", 1, "--output", "run"), recovery=True)
    job.wait_for_steps()
    job.signal(1, signal.SIGTERM)
    job.wait()
    for rank in range(3):
        check(job.read("code", rank).strip() == "130", f"rank {rank} leaves: {job}\n{job.read('err', rank)}")
    check("go on with --resume" in job.read("err", 0), f"the first rank says so: {job.read('err', 0)[-300:]}")
    check((job.folder / "run/model.safetensors").exists(), "the model is saved")


# ---- refusals ------------------------------------------------------------------------------------

def alone(folder, arguments, **environment):
    run = subprocess.run([TOOL] + [str(a) for a in arguments], env=dict(ENVIRONMENT, **environment),
                         cwd=folder, capture_output=True, text=True, timeout=LIMIT)
    return run.returncode, run.stdout + run.stderr


def must_refuse(outcome, code, *texts):
    for text in texts:
        check(outcome[0] == code and text in outcome[1], f'exit {code} with "{text}": {outcome}')


def test_refusals(folder):
    short = pretrain(folder, "--steps", 2)
    must_refuse(alone(folder, short, WORLD_SIZE="2", RANK="1", LOCAL_RANK="1"), 1,
                "CPU ranks talk through MPI; start them with mpirun or srun instead of torchrun")
    must_refuse(alone(folder, short + ["--zero-level", 4]), 2, "--zero-level \"4\": expected")
    must_refuse(alone(folder, short, MC_COMM_TIMEOUT="1", WORLD_SIZE="2", RANK="0", OMPI_COMM_WORLD_RANK="0",
                      OMPI_COMM_WORLD_SIZE="2"), 1, "rank 1 has not come")
    for ranks, size in ((1, "2"), (2, "3"), (2, "1")):
        job = Job(folder, ranks, short, WORLD_SIZE=size, RANK="0")
        check(job.wait() != 0, f"MPI's size is not WORLD_SIZE={size}: {job}")
        job.must_fail(0, f"WORLD_SIZE={size}, but {ranks} rank")
    for command in (["prepare", "--tokenizer", "x", "--input", "y", "--output", "z"],
                    ["tokenize", "--model", "x", "--text", "y"]):
        job = Job(folder, 2, command, recovery=True)
        job.wait()
        for rank in range(2):
            job.must_fail(rank, f"modelcenter {command[0]} runs on one rank, but 2 were started")
    job = Job(folder, 4, short + ["--tokens-per-step", 6 * LENGTH, "--batch-size", 1], recovery=True)
    job.wait()
    job.must_fail(0, "a multiple of --batch-size times --seq-length times the ranks, 1 x 16 x 4 = 64")


def test_launchers(folder):
    """Processes that some launcher has started, but not MPI: each is told, none runs alone."""
    short = [str(a) for a in pretrain(folder, "--steps", 2, "--batch-size", 1, "--device", "cpu")]
    for rank, size in (("SLURM_PROCID", "SLURM_NTASKS"), ("PMI_RANK", "PMI_SIZE")):
        both = [subprocess.Popen([TOOL] + short, cwd=folder, text=True, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT,
                                 env=dict(ENVIRONMENT, SLURM_NODEID="0", SLURM_TASKS_PER_NODE="2", PMI_LOCAL_SIZE="2",
                                          SLURM_JOB_ID="4711", PMI_JOBID="4711", **{rank: str(r), size: "2"}))
                for r in range(2)]
        for process in both:
            said = process.communicate(timeout=LIMIT)[0]
            check(process.returncode == 1 and "MPI has 1 rank, but WORLD_SIZE (the launcher's number of ranks) is 2"
                  in said, f"{rank} without MPI is refused: {said}")
    torchrun = os.environ.get("MC_TORCHRUN") or shutil.which("torchrun")
    if not torchrun:
        print("SKIPPED: torchrun is not installed (MC_TORCHRUN): its variables alone are tested")
        return
    launch = str(pathlib.Path(torchrun).with_name("python3"))
    for start in ([torchrun, "--no-python"], [launch, "-m", "torch.distributed.launch", "--no_python", "--use_env"]):
        job = subprocess.run(start + ["--nproc_per_node", "2", TOOL] + short, cwd=folder, env=ENVIRONMENT, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT)
        check(job.returncode != 0 and "WORLD_SIZE=2: CPU ranks talk through MPI; start them with mpirun" in job.stdout,
              f"{start} is refused: {job.stdout}")


def test_taken_port(folder):
    both = socket.has_dualstack_ipv6()  # "localhost" may be either
    with socket.create_server(("", 0), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both) as other:
        port = other.getsockname()[1]
        job = Job(folder, 2, pretrain(folder, "--steps", 2), recovery=True, MC_MASTER_PORT=str(port),
                  MC_COMM_TIMEOUT="2")
        job.wait()
    job.must_fail(0, f"rank 0 cannot listen on port {port}, the job's control port: Address already in use",
                  "set MC_MASTER_PORT")
    job.must_fail(1, f"localhost:{port}")


# ---- failures ------------------------------------------------------------------------------------

def test_bad_row(folder):
    for recovery in (False, True):
        begun = time.monotonic()
        job = Job(folder, 4, pretrain(folder, "--batch-size", 1, "--steps", 50, "--output", "run", data="bad.bin"),
                  recovery=recovery)
        code = job.wait()
        check(recovery or code != 0, f"exit {code} of {job}")
        check(time.monotonic() - begun < SOON + BUSY, f"it ends within seconds: {job}")
        bad = "bad.bin: token 999 at position 101 is past the vocabulary"
        check("error: " in job.read("err", 2) and bad in job.read("err", 2), f"rank 2 says why: {job}")
        for rank in (0, 1, 3) if recovery else ():  # else mpirun may be the faster one to end them
            job.must_fail(rank, "rank 2: ", bad, f"this is rank {rank}")
        check(not recovery or not (job.folder / "run").exists(), f"no empty folder, and no lock, stays: {job}")


def spoil(path, name, row):
    """Sets a row of an f32 matrix in a safetensors file to NaN."""
    data = bytearray(path.read_bytes())
    size = struct.unpack("<Q", data[:8])[0]
    tensor = json.loads(data[8:8 + size])[name]
    columns = tensor["shape"][1]
    at = 8 + size + tensor["data_offsets"][0] + row * columns * 4
    data[at:at + columns * 4] = struct.pack("<f", math.nan) * columns
    path.write_bytes(data)


def test_row_not_finite(folder):
    """A validation warns of the row whose loss is not finite, whichever rank has it."""
    (folder / "llama.json").write_text(json.dumps(dict(
        model_type="llama", vocab_size=4, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=32)))

    def write(name, *prompts):
        (folder / name).write_text("".join(json.dumps({"prompt": p, "response": "a"}) + "\n" for p in prompts))
        return folder / name

    even = write("even.jsonl", "ab", "b", "ba", "a")
    train = ["finetune", "--data", even, "--prompt", "prompt", "--response", "response", "--batch-size", 1]
    made = Job(folder, 1, [*train, "--config", folder / "llama.json", "--tokenizer", folder / "tokenizer", "--val",
                           even, "--epochs", 1, "--output", "model"])
    made.result()
    spoil(made.folder / "model/model.safetensors", "model.embed_tokens.weight", 2)  # the word "c"
    for number, prompts in enumerate((("c", "ababab"), ("cabab", "a"))):
        odd = write(f"odd{number}.jsonl", *prompts)  # the longer row may be either rank's
        job = Job(folder, 2, [*train, "--model", made.folder / "model", "--val", odd, "--epochs", 1, "--no-save"])
        job.result()
        text = f"has no metric, for 1 of its batches: {odd}:1: the losses of this row are not finite"
        check(text in job.read("err", 0), f"{text}: {job}\n{job.read('err', 0)}")


def test_bad_line(folder):
    """A damaged row of a data set is found by all ranks, before the first step."""
    rows = (folder / "qa/train.jsonl").read_text().splitlines()
    (folder / "damaged").mkdir()
    (folder / "damaged/train.jsonl").write_text("\n".join(rows[:50] + ["{"] + rows[50:]) + "\n")
    (folder / "damaged/val.jsonl").write_text(rows[0] + "\n")
    job = Job(folder, 2, ["finetune", "bert", "--task", "BoolQ", "--config", QUICKSTART, "--data",
                          folder / "damaged"], recovery=True)
    job.wait()
    for rank in range(2):
        job.must_fail(rank, "train.jsonl:51")


def test_full_disk(folder):
    """No file may grow any more, from some step on: MPI's own files are made before."""
    for full in (0, 1):
        job = Job(folder, 2, pretrain(folder, "--batch-size", 2, "--steps", 100000, "--log-every", 100000,
                                      "--output", "run", "--save-every", 5), recovery=True, FULL_DISK_RANK=str(full))
        job.wait_for(lambda: list(job.folder.glob("run/checkpoint-*")), "the first checkpoint")
        resource.prlimit(int(job.read("pid", full)), resource.RLIMIT_FSIZE, (10240, 10240))
        job.wait()
        step = re.search(r"run/checkpoint-(\d+)\.tmp/\S+: cannot write: File too large", job.read("err", full))
        check(step, f"rank {full} names the file that it could not write: {job}")
        job.must_fail(full, "cannot write: File too large")
        job.must_fail(1 - full, f"rank {full}: ", "cannot write: File too large")
        check(step and not (job.folder / f"run/checkpoint-{step[1]}").exists(), f"no checkpoint in part: {job}")


def test_misfit(folder):
    job = Job(folder, 3, ["misfit"], tool=RESULTS, recovery=True)
    job.wait()
    for rank in range(3):
        job.must_fail(rank, "gather_result: rank 2 has f32 (2, 4), rank 0 has f32 (2, 3)")


def with_patience(attempt):
    """Runs attempt(patience), which returns False where ranks had not come in time: then with more of it."""
    for patience in 1, 4, 16:
        if attempt(patience):
            return
    check(False, f"ranks come in time: {attempt.__name__}")


def miss_rank(folder, number, victim, text, timeout):
    """A rank of a training run is killed or stopped; False where the ranks did not meet before."""
    job = Job(folder, 3, pretrain(folder, "--steps", 10**8, "--batch-size", 1, "--comm-timeout", timeout,
                                  "--output", "run", "--save-every", 10), recovery=True)
    others = [rank for rank in range(3) if rank != victim]
    while "saved step" not in job.read("err", 0):
        if any("rendezvous of " in job.read("err", rank) for rank in range(3)):
            job.wait()
            return False
        if job.process.poll() is not None:
            return check(False, f"a checkpoint: {job}: {job.read('err', 0)[-600:]}")
        time.sleep(0.02)
    job.signal(victim, number)
    begun = time.monotonic()
    if job.wait_for(lambda: all(job.read("code", rank) for rank in others), "the others' end"):
        took = time.monotonic() - begun
        limit = (SOON if number == signal.SIGKILL else timeout) + BUSY
        check(took < limit, f"ended after {took:.1f} s: {job}")
    job.signal(victim, signal.SIGKILL)
    job.wait()
    for rank in others:
        job.must_fail(rank, f"rank {victim} ", text)
        said = job.read("err", rank)
        check(re.search(rf"\[this is rank {rank}, .*\(operation \d+\)\]", said),
              f"rank {rank} names its operation: {said[-600:]}")
    check(any((job.folder / "run").glob("checkpoint-*/training.json")), f"its last checkpoint is there: {job}")
    return True


def test_missing_rank(folder):
    """A rank dies or stands still: every other one ends soon, and names it and the operation."""
    for number, victim, text in ((signal.SIGKILL, 2, "is gone without a goodbye"), (signal.SIGKILL, 0, "is gone"),
                                 (signal.SIGSTOP, 1, "stands still"), (signal.SIGSTOP, 0, "stands still")):
        with_patience(lambda patience: miss_rank(folder, number, victim, text, 6 * patience))


def test_rendezvous(folder):
    """One rank too few; one that is killed, or stands still, while all wait for it: rank 2 never comes."""
    def meet(patience):
        jobs = []
        for victim, number in ((None, None), (1, signal.SIGKILL), (0, signal.SIGKILL), (1, signal.SIGSTOP),
                               (0, signal.SIGSTOP)):
            timeout = 3 * patience if victim is None or number == signal.SIGSTOP else LIMIT
            jobs.append((victim, number, Job(folder, 3, pretrain(folder, "--steps", 2), recovery=True,
                                             ABSENT_RANK="2", MC_COMM_TIMEOUT=str(timeout))))
        for victim, number, job in jobs:
            job.wait_for(lambda: job.read("pid", 0) and job.read("pid", 1), "the start")
        time.sleep(patience)  # for them to meet
        for victim, number, job in jobs:
            if victim is not None:
                job.signal(victim, number)
        for victim, number, job in jobs:
            others = [rank for rank in range(2) if rank != victim]
            job.wait_for(lambda: all(job.read("code", rank) for rank in others), "the others' end")
            for rank in range(3):
                job.signal(rank, signal.SIGKILL)
            job.wait()
        said = "".join(job.read("err", rank) for _, _, job in jobs for rank in range(2))
        if re.search(r"rank 1 has not come|ranks 1-2 have not come|cannot reach rank 0", said):
            return False
        for victim, number, job in jobs:
            for rank in range(2):
                if victim is None:
                    job.must_fail(rank, "rendezvous of 3 ranks at localhost:",
                                  f"within {3 * patience:.1f} s rank 2 has not come")
                elif rank != victim:
                    text = "is gone without a goodbye" if number == signal.SIGKILL else "stands still: no heartbeat"
                    job.must_fail(rank, f"rank {victim} (" if number == signal.SIGKILL or not victim else "rank 1", text)
        return True

    with_patience(meet)


def saved_steps(run):
    """The steps of the whole checkpoints of a run."""
    return [int(p.parent.name[11:]) for p in run.glob("checkpoint-*/training.json") if p.parent.name[11:].isdigit()]


def test_saving(folder):
    """A rank dies or stands still while checkpoints are written: the last whole one is there, and resumes."""
    jobs = []
    # The first one waits for its timeout, in which ranks must also start, while the others run.
    for victim, number, every, timeout in ((1, signal.SIGSTOP, 1, 30), (1, signal.SIGKILL, 1, 300),
                                           (0, signal.SIGKILL, 2, 300)):
        job = Job(folder, 2, pretrain(folder, "--steps", 10**8, "--batch-size", 1, "--comm-timeout", timeout,
                                      "--output", "run", "--save-every", every), recovery=True)
        if job.wait_for(lambda: saved_steps(job.folder / "run"), "a checkpoint"):
            time.sleep(0.05 * (1 + victim))
            job.signal(victim, number)
        jobs.append((victim, job))
    for victim, job in jobs:
        run, other = job.folder / "run", 1 - victim
        job.wait_for(lambda: job.read("code", other), "the other's end")
        job.signal(victim, signal.SIGKILL)
        job.wait()
        job.must_fail(other, f"rank {victim} ", f"[this is rank {other}")
        saved = max(saved_steps(run), default=0)
        again = Job(folder, 2, pretrain(folder, "--steps", saved + 2, "--batch-size", 1, "--output", run, "--resume"))
        check(again.result().get("steps", str(saved + 2)) == str(saved + 2), f"resumed after {job}")


def test_shrinking(folder):
    """Weights and optimizer state become shorter while the ranks read them: an error that names the file, and an end
    for all ranks."""
    run = folder / "shrinking"
    arguments = pretrain(folder, "--steps", 4, "--batch-size", 1, "--output", run)
    Job(folder, 2, [*arguments, "--stop-after", 2]).result()
    for name in ("model.safetensors", "optimizer.safetensors"):
        shutil.copytree(run, folder / "whole")
        job = Job(folder, 2, [*arguments, "--resume"], LD_PRELOAD=os.environ["MC_CUT_MAPPED"], MC_TEST_CUT=name,
                  ASAN_OPTIONS=os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0")
        check(job.wait() != 0, f"an error: {job}")
        named = [rank for rank in range(2) if f"{name}: " in job.read("err", rank)]
        check(named, f"a rank names {name}: {job}\n{job.read('err', 0)}{job.read('err', 1)}")
        for rank in named:
            job.must_fail(rank, name)
        shutil.rmtree(run)
        (folder / "whole").rename(run)


if __name__ == "__main__":
    sys.exit(run_tests(globals(), write_data))
