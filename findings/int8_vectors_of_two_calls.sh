#!/bin/sh
# Guess: SentenceTransformer.encode(..., precision="int8") turns a text into the same 8-bit vector each time, or at
# least into vectors of one scale, so that queries and documents can be encoded in calls of their own.
# Really: each call takes the scale and the offset of each dimension from the smallest and largest values of its own
# texts. One text has other bytes in another call, and with more than 100 texts a call there is no warning.
# Why users meet it: queries are always encoded later than the documents, and int8 is what the documentation offers
# to make an index smaller. quantize_embeddings takes `ranges`; encode has no argument for them.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
cd "$dir"
export HF_HUB_OFFLINE=1
python3 -m venv venv
venv/bin/pip install --quiet torch==2.15.0 numpy==2.4.6 transformers==5.24.0 sentence-transformers==6.2.0

venv/bin/python - <<'END'
import logging

import numpy as np
import sentence_transformers
import torch
from sentence_transformers import SentenceTransformer
from transformers import BertConfig, BertModel, BertTokenizerFast

print("sentence-transformers", sentence_transformers.__version__, "torch", torch.__version__)
WORDS = 200
with open("vocab.txt", "w") as f:
    f.write("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [f"w{i}" for i in range(WORDS)]))
BertTokenizerFast("vocab.txt").save_pretrained("model")
torch.manual_seed(0)
BertModel(BertConfig(vocab_size=WORDS + 5, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                     intermediate_size=64)).save_pretrained("model")
model = SentenceTransformer("model", device="cpu")

rng = np.random.default_rng(0)
texts = [head + " " + " ".join(f"w{i}" for i in rng.integers(0, WORDS, 6))
         for head in ("w0 w1", "w2 w3 w4") for _ in range(400)]
part = slice(400, 520)  # texts of one kind, as queries often are

lines = []
handler = logging.Handler()
handler.emit = lambda record: lines.append(record.getMessage())
logging.getLogger("sentence_transformers").addHandler(handler)


def cosines(a, b):
    a, b = a.astype(np.float64), b.astype(np.float64)
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


found = {}
for precision in ("float32", "int8"):
    whole, alone = model.encode(texts, precision=precision), model.encode(texts[part], precision=precision)
    found[precision] = cosines(whole[part], alone)
    print(f"{precision}: cosine of a text in a call of 800 with itself in a call of 120: mean "
          f"{found[precision].mean():.3f}, least {found[precision].min():.3f}; largest difference of an element "
          f"{np.abs(whole[part].astype(float) - alone).max():g}")
print("lines of the log about int8:", [line for line in lines if "int8" in line])
assert found["float32"].min() > 0.999999
assert found["int8"].mean() < 0.95
assert not any("int8" in line for line in lines)
END
