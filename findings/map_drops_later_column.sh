#!/bin/sh
# Guess: Dataset.map keeps each column that the function returns: rows for which it returns no value get None, as
# load_dataset("json") does it, or the call fails.
# Really: the first row decides. A column that it does not have is dropped with all values of later rows, without a
# word. features= that names the column does not help: the column is there then, and every value in it is None.
# Dataset.from_generator drops it too, but with features= it is right. If the first row of a later block of
# writer_batch_size (1,000) rows has the column, or with num_proc that of a later part, the same call raises a KeyError.
# Why users meet it: functions add a field where there is something to add: a reason for a filter, a rejected answer,
# a tool call. On a set of fewer than 1,000 rows all that they found is lost. Return the column always.
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
from datasets import Dataset, Features, Value, load_dataset

print("datasets", datasets.__version__)
warnings.simplefilter("error")
datasets.disable_progress_bars()
texts = Dataset.from_dict({"text": ["fine", "fine too", "bad", "fine as well"]})
TYPES = Features(text=Value("string"), reason=Value("string"))


def mark(row):
    if "bad" in row["text"]:
        row["reason"] = "a word of the list"
    return row


def rows():
    return (mark(dict(row)) for row in texts)


found = {"map": texts.map(mark), "map with features": texts.map(mark, features=TYPES),
         "from_generator": Dataset.from_generator(rows),
         "from_generator with features": Dataset.from_generator(rows, features=TYPES)}
with open("rows.jsonl", "w") as file:
    file.writelines(json.dumps(row) + "\n" for row in rows())
found["load_dataset(\"json\") of the same rows"] = load_dataset("json", data_files="rows.jsonl", split="train")
for name, dataset in found.items():
    print(f"{name}: {dataset[:]}")

for name in "map", "from_generator":
    assert found[name].column_names == ["text"]
assert list(found["map with features"]["reason"]) == [None] * 4
for name in "from_generator with features", "load_dataset(\"json\") of the same rows":
    assert list(found[name]["reason"]) == [None, None, "a word of the list", None]

try:
    texts.map(mark, writer_batch_size=2)
except KeyError as error:
    print("map with writer_batch_size=2: KeyError", error)
else:
    raise SystemExit("map with writer_batch_size=2 no longer raises")
END
