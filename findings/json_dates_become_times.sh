#!/bin/sh
# Guess: load_dataset("json") gives a JSON string back as that string, as json.loads and Dataset.from_list do.
# Really: where each string of a column looks like a date, the column becomes one of datetime objects. A prompt made of
# "1969-07-20" then says "1969-07-20 00:00:00", and "2024-05-01T09:30:00Z" loses its T and its Z. Features that name
# the column as string do not help: they give "1969-07-20 00:00:00" as a string. One other string in the file, such as
# "unknown", and the column stays as it is: train and test files of one set can differ.
# Why users meet it: dates are answers of question sets and slots of extraction sets, f-strings and templates take
# datetimes without complaint, and a model learns to write the time of day.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
cd "$dir"
export HF_HUB_OFFLINE=1 HF_HOME="$dir/home"
python3 -m venv venv
venv/bin/pip install --quiet datasets==5.2.0 pyarrow==26.0.1

venv/bin/python - <<'END'
import json
import warnings

import datasets
import pyarrow
from datasets import Dataset, Features, Value, load_dataset

print("datasets", datasets.__version__, "pyarrow", pyarrow.__version__)
warnings.simplefilter("error")
datasets.disable_progress_bars()
QUESTION = "When did people first stand on the moon?"
train = [{"question": QUESTION, "answer": "1969-07-20", "written": "2024-05-01T09:30:00Z"},
         {"question": "When did the Berlin wall fall?", "answer": "1989-11-09", "written": "2024-05-02T10:00:00Z"}]
test = train + [{"question": "When was Homer born?", "answer": "unknown", "written": "2024-05-03T08:15:00Z"}]
files = {}
for name, rows in (("train", train), ("test", test)):
    files[name] = name + ".jsonl"
    with open(files[name], "w") as f:
        f.writelines(json.dumps(row) + "\n" for row in rows)


def show(name, row):
    text = f"{row['question']} {row['answer']} (written {row['written']})"
    print(f"{name}: {text}   [{type(row['answer']).__name__}]")
    return text


with open("train.jsonl") as f:
    wanted = show("json.loads", json.loads(f.readline()))
texts = {"from_list": Dataset.from_list(train)[0]}
for name, file in files.items():
    texts[name] = load_dataset("json", data_files=file, split="train")[0]
    texts[name + ", streaming"] = next(iter(load_dataset("json", data_files=file, split="train", streaming=True)))
strings = Features({key: Value("string") for key in train[0]})
texts["train, strings named"] = load_dataset("json", data_files="train.jsonl", split="train", features=strings)[0]
texts = {name: show(name, row) for name, row in texts.items()}

changed = f"{QUESTION} 1969-07-20 00:00:00 (written 2024-05-01 09:30:00)"
assert texts["from_list"] == wanted
assert texts["train"] == texts["train, streaming"] == texts["train, strings named"] == changed
assert texts["test"] == texts["test, streaming"] == f"{QUESTION} 1969-07-20 (written 2024-05-01 09:30:00)"
END
