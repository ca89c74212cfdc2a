#!/usr/bin/env python3
"""The quick start's promise: a small BERT trained from scratch on the embedded data set answers at
least 90 % of new questions, the saved model gives the same accuracy and answers typed questions, and
the same training without passages stays at or under 60 %.

    quickstart_test.py MODELCENTER DATASET_FOLDER [--without-passages]
"""

import json
import pathlib
import subprocess
import sys
import tempfile


def finetune(tool, data, output=None):
    """Runs the recipe; returns the result line's keys."""
    recipe = (pathlib.Path(data) / "recipe").read_text().split()
    config = sys.argv[2]
    command = [tool, "finetune", "bert", "--task", "BoolQ", "--config", config, "--data", str(data)]
    command += recipe + (["--output", str(output)] if output else ["--no-save"])
    return result_of(command)


def result_of(command):
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if run.returncode != 0:
        sys.exit(f"FAILED: exit {run.returncode} of {' '.join(command)}")
    line = run.stdout.strip().splitlines()[-1]
    if not line.startswith("result task=BoolQ "):
        sys.exit(f"FAILED: the last line is no result: {line}")
    print(line)
    return dict(part.split("=") for part in line.split()[1:])


def check(good, what):
    print("ok  " if good else "FAILED", what)
    if not good:
        sys.exit(1)


def ask(tool, model, question, passage):
    run = subprocess.run([tool, "ask", "--model", model, "--question", question, "--passage", passage],
                         stdout=subprocess.PIPE, text=True, check=True)
    return run.stdout.split()[0]


def with_passages(tool, data, folder):
    model = folder / "model"
    result = finetune(tool, data, model)
    check(float(result["accuracy"]) >= 0.90, "at least 90 % of the validation rows are right")
    check(float(result["train_seconds"]) > 0, "the time that training took is told")
    again = result_of([tool, "eval", "bert", "--task", "BoolQ", "--model", str(model), "--data", str(data)])
    check(again["accuracy"] == result["accuracy"], "the saved model has the same accuracy")
    right = 0
    rows = [json.loads(line) for line in (pathlib.Path(data) / "val.jsonl").read_text().splitlines()[:10]]
    for row in rows:
        answer = ask(tool, str(model), row["question"], row["passage"])
        check(answer in ("yes", "no"), f"an answer: {row['question']}? {answer}")
        right += (answer == "yes") == row["label"]
    check(right >= 7, f"{right} of 10 asked questions are answered rightly")


def without_passages(tool, data, folder):
    bare = folder / "data"
    bare.mkdir()
    (bare / "recipe").write_text((pathlib.Path(data) / "recipe").read_text())
    for split in ("train", "val"):
        rows = [json.loads(line) for line in (pathlib.Path(data) / f"{split}.jsonl").read_text().splitlines()]
        (bare / f"{split}.jsonl").write_text(
            "".join(json.dumps(dict(row, passage="")) + "\n" for row in rows))
    result = finetune(tool, bare)
    check(float(result["accuracy"]) <= 0.60, "without passages at most 60 % are right")


def main():
    tool, data = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as folder:
        test = without_passages if "--without-passages" in sys.argv else with_passages
        test(tool, data, pathlib.Path(folder))


main()
