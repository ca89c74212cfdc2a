#!/bin/sh
# Guess: a RoBERTa folder gives the same ids for "Paris is <mask>." from vocab.json and merges.txt as from its
# tokenizer.json, in which <mask> takes in the space before it ("lstrip").
# Really: it did in transformers 4. In version 5 the two files give a <mask> without "lstrip", and the space
# becomes a token of its own. The tokenizer.json still takes it in.
# Why users meet it: older folders, and those saved by other tools, have no tokenizer.json. The model has never
# seen that token before <mask>, so it fills in worse words.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
cd "$dir"
export HF_HUB_OFFLINE=1
python3 -m venv four
four/bin/pip install --quiet transformers==4.57.1 tokenizers==0.22.1
python3 -m venv five
five/bin/pip install --quiet transformers==5.24.0 tokenizers==0.23.3

cat > encode.py <<'END'
import json
import os
import shutil

import transformers
from transformers import AutoTokenizer

four = transformers.__version__.startswith("4.")
if four:
    os.mkdir("files")
    words = ["<s>", "<pad>", "</s>", "<unk>", "a", "b", "\u0120", "\u0120b", "<mask>"]
    with open("files/vocab.json", "w") as file:
        json.dump({word: i for i, word in enumerate(words)}, file)
    with open("files/merges.txt", "w") as file:
        file.write("#version: 0.2\n\u0120 b\n")
    with open("files/config.json", "w") as file:
        file.write('{"model_type": "roberta"}')
    AutoTokenizer.from_pretrained("files").save_pretrained("saved")
    os.mkdir("json")
    shutil.copy("files/config.json", "json")
    shutil.copy("saved/tokenizer.json", "json")


def read(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("a <mask> b").input_ids)
    print("transformers", transformers.__version__, folder, tokens)
    return tokens


taken_in = ["<s>", "a", "<mask>", "\u0120b", "</s>"]
left = ["<s>", "a", "\u0120", "<mask>", "\u0120b", "</s>"]
assert read("json") == taken_in
assert read("files") == (taken_in if four else left)
END
four/bin/python encode.py
five/bin/python encode.py
echo "As described: from vocab.json and merges.txt version 5 leaves the space before <mask>."
