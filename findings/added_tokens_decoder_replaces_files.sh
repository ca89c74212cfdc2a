#!/bin/sh
# Guess: added_tokens.json and special_tokens_map.json in a tokenizer folder count, whatever
# tokenizer_config.json lists; an "added_tokens_decoder" that only repeats "[PAD]" adds nothing.
# Really: as soon as tokenizer_config.json has an "added_tokens_decoder", both other files are ignored.
# The added token becomes "[UNK]", and the start token is another one. No warning.
# Why users meet it: folders of different ages of the library are mixed: a new tokenizer_config.json is
# copied beside older files, or somebody adds a word to added_tokens.json by hand.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
cd "$dir"
export HF_HUB_OFFLINE=1
python3 -m venv venv
venv/bin/pip install --quiet transformers==5.24.0 tokenizers==0.23.3

venv/bin/python - <<'END'
import json
import os

import tokenizers
import transformers
from transformers import AutoTokenizer

print("transformers", transformers.__version__, "tokenizers", tokenizers.__version__)
os.mkdir("model")
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "<start>"]
with open("model/vocab.txt", "w") as file:
    file.write("\n".join(words) + "\n")


def write(name, value):
    with open(f"model/{name}.json", "w") as file:
        json.dump(value, file)


def read(keys):
    write("tokenizer_config", {"tokenizer_class": "BertTokenizer", **keys})
    tokenizer = AutoTokenizer.from_pretrained("model")
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("a extra b").input_ids)
    print("tokenizer_config.json with", list(keys) or "no token list", "->", tokens)
    return tokens


write("added_tokens", {"extra": len(words)})
write("special_tokens_map", {"cls_token": "<start>"})
pad = {"content": "[PAD]", "special": True, "normalized": False,
       "single_word": False, "lstrip": False, "rstrip": False}
assert read({}) == ["<start>", "a", "extra", "b", "[SEP]"]
assert read({"added_tokens_decoder": {"0": pad}}) == ["[CLS]", "a", "[UNK]", "b", "[SEP]"]
print("As described: the list in tokenizer_config.json switches both files off.")
END
