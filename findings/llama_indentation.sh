#!/bin/sh
# Guess: LlamaTokenizer on a folder with only Mistral's tokenizer.model gives the ids of SentencePiece, which
# the model was trained with.
# Really: runs of spaces are cut otherwise. In the file they have the lowest score, so SentencePiece merges
# them last: "  return" is "▁" and "▁return". transformers orders merges by the pieces' ids, in which runs of
# spaces are first: "▁▁" and "return". There is no warning.
# Why users meet it: indented code, on folders that have no tokenizer.json, as the models' makers publish them.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
cd "$dir"
export HF_HUB_OFFLINE=1
python3 -m venv venv
venv/bin/pip install --quiet transformers==5.24.0 tokenizers==0.23.3 sentencepiece==0.2.3 protobuf==7.36.2
venv/bin/pip install --quiet --no-deps mistral-common==1.13.1

venv/bin/python - <<'END'
import glob
import os
import shutil

import sentencepiece
import tokenizers
import transformers
from transformers import AutoTokenizer

print("transformers", transformers.__version__, "tokenizers", tokenizers.__version__,
      "sentencepiece", sentencepiece.__version__)
os.mkdir("model")
shutil.copy(glob.glob("venv/lib/*/site-packages/mistral_common/data/tokenizer.model.v1")[0], "model/tokenizer.model")
with open("model/config.json", "w") as file:
    file.write('{"model_type": "llama"}')
with open("model/tokenizer_config.json", "w") as file:
    file.write('{"tokenizer_class": "LlamaTokenizer", "legacy": true}')
own = sentencepiece.SentencePieceProcessor(model_file="model/tokenizer.model")
read = AutoTokenizer.from_pretrained("model")


def compare(text):
    left, right = own.encode(text), read(text, add_special_tokens=False).input_ids
    print(repr(text))
    print("  SentencePiece:", own.encode(text, out_type=str))
    print("  transformers: ", read.convert_ids_to_tokens(right))
    return left == right


assert compare("one space a word")
assert not compare("def f():\n  return 1")
assert not compare("def f():\n        return 1")
print("As described: before an indented word the ids are others.")
END
