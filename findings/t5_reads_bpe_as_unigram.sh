#!/bin/sh
# Guess: T5Tokenizer on a spiece.model that SentencePiece trained with model_type=bpe gives the same
# ids as SentencePiece, or refuses the file, since the file names its type.
# Really: the pieces are read, and the text is cut with the Unigram algorithm. The ids differ from
# SentencePiece's, and there is no warning. A Unigram file gives equal ids.
# Why users meet it: several T5-like models have their own vocabulary, and BPE is one option of the
# trainer. Training and serving with different readers then feed the model different ids.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
cd "$dir"
export HF_HUB_OFFLINE=1
python3 -m venv venv
venv/bin/pip install --quiet transformers==5.24.0 tokenizers==0.23.3 sentencepiece==0.2.3 protobuf==7.36.2

venv/bin/python - <<'END'
import os

import sentencepiece
import tokenizers
import transformers
from transformers import T5Tokenizer

print("transformers", transformers.__version__, "tokenizers", tokenizers.__version__,
      "sentencepiece", sentencepiece.__version__)
os.mkdir("model")
line = "low lower lowest new newer newest wide wider widest slow slower slowest\n"
with open("corpus.txt", "w") as file:
    file.write(20 * line)


def compare(kind, size):
    sentencepiece.SentencePieceTrainer.train(
        input="corpus.txt", model_prefix="model/spiece", model_type=kind, vocab_size=size,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
        hard_vocab_limit=False, minloglevel=2)
    own = sentencepiece.SentencePieceProcessor(model_file="model/spiece.model")
    read = T5Tokenizer.from_pretrained("model")
    text = "lower newest"
    left, right = own.encode(text), read(text, add_special_tokens=False).input_ids
    print(kind, "SentencePiece:", own.encode(text, out_type=str), left)
    print(kind, "T5Tokenizer:  ", read.tokenize(text), right)
    return left == right


assert compare("unigram", 30)
assert not compare("bpe", 40)
print("As described: the BPE file is cut as if it were Unigram.")
END
