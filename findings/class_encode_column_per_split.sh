#!/bin/sh
# Guess: DatasetDict.class_encode_column("label") gives a label the same number in each split, as one call for all
# of them suggests.
# Really: each split numbers the labels that it has itself. A class that is missing in the test split moves all classes
# after it, and nothing is said: a model that is always right is measured as wrong. Numbers are sorted as text besides,
# so that in a column of 1 to 10 the class "10" is number 1 and "2" is number 2.
# Why users meet it: it is the documented way from strings to classes, which stratified splits need, and small test
# sets often lack a rare class. Encoding before train_test_split, or casting each split to one ClassLabel, is right.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
cd "$dir"
export HF_HUB_OFFLINE=1 HF_HOME="$dir/home"
python3 -m venv venv
venv/bin/pip install --quiet datasets==5.2.0 pyarrow==26.0.1

venv/bin/python - <<'END'
import warnings

import datasets
from datasets import ClassLabel, Dataset, DatasetDict, concatenate_datasets

print("datasets", datasets.__version__)
warnings.simplefilter("error")
datasets.disable_progress_bars()
TEXTS = ["a refund please", "it is broken", "where is it", "thank you"]
LABELS = ["billing", "fault", "shipping", "thanks"]
train = Dataset.from_dict({"text": TEXTS, "label": LABELS})
test = Dataset.from_dict({"text": TEXTS[1:], "label": LABELS[1:]})

both = DatasetDict(train=train, test=test).class_encode_column("label")
for name, split in both.items():
    print(f"{name}: {dict(zip(split['text'], split['label']))}, names {split.features['label'].names}")
known = dict(zip(both["train"]["text"], both["train"]["label"]))
accuracy = sum(known[row["text"]] == row["label"] for row in both["test"]) / len(test)
print(f"a model that repeats the training rows: accuracy {accuracy} on rows that it was trained on")
assert accuracy == 0
assert list(both["train"]["label"]) == [0, 1, 2, 3] and list(both["test"]["label"]) == [0, 1, 2]

whole = ClassLabel(names=sorted(LABELS))
cast = DatasetDict(train=train, test=test).cast_column("label", whole)
assert list(cast["test"]["label"]) == [1, 2, 3]
joined = concatenate_datasets([train, test]).class_encode_column("label")
assert list(joined["label"]) == [0, 1, 2, 3, 1, 2, 3]

stars = Dataset.from_dict({"stars": list(range(1, 11))}).class_encode_column("stars")
print("stars 1 to 10 become", list(stars["stars"]))
assert list(stars["stars"]) == [0, 2, 3, 4, 5, 6, 7, 8, 9, 1]
END
