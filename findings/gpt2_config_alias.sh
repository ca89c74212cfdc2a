#!/bin/sh
# Guess: when a GPT-2 config.json has both "n_embd" (the name GPT-2 files use) and "hidden_size" with
# another value, n_embd wins, or the file is refused.
# Really: hidden_size wins in either order of the two lines, and n_embd reads as the other value too.
# The same holds for n_layer and num_hidden_layers. No warning.
# Why users meet it: "hidden_size" is the name that most families use. A tool or a hand edit that adds
# it, or changes n_embd alone afterwards, gives a model of another width than the file appears to say.
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

import transformers
from transformers import AutoConfig

print("transformers", transformers.__version__)
os.mkdir("model")


def read(keys):
    with open("model/config.json", "w") as file:
        json.dump({"model_type": "gpt2", **keys}, file)
    config = AutoConfig.from_pretrained("model")
    print(keys, "-> n_embd", config.n_embd, "n_layer", config.n_layer)
    return config


assert read({"n_embd": 64, "n_layer": 4}).n_embd == 64
assert read({"n_embd": 64, "hidden_size": 32}).n_embd == 32
assert read({"hidden_size": 32, "n_embd": 64}).n_embd == 32
assert read({"n_layer": 4, "num_hidden_layers": 2}).n_layer == 2
print("As described: the alias wins over GPT-2's own key.")
END
