#!/bin/sh
# Guess: a sentence model whose last module is Normalize gives vectors of length 1, also with
# truncate_dim; so the dot product is the cosine.
# Really: the vectors are cut after the last module. They are shorter than 1, and dot products differ
# from cosines. encode(normalize_embeddings=True) does give length 1.
# Why users meet it: models made for several sizes are used with truncate_dim to save space, and search
# indexes use the dot product because the model's last module normalizes.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
cd "$dir"
export HF_HUB_OFFLINE=1
python3 -m venv venv
venv/bin/pip install --quiet torch==2.15.0 numpy==2.4.6 transformers==5.24.0 \
    sentence-transformers==6.2.0

venv/bin/python - <<'END'
import os

import numpy
import sentence_transformers
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as models
from transformers import BertConfig, BertModel, BertTokenizer

print("sentence-transformers", sentence_transformers.__version__,
      "transformers", transformers.__version__, "torch", torch.__version__)
os.mkdir("bert")
with open("bert/vocab.txt", "w") as file:
    file.write("\n".join("[PAD] [UNK] [CLS] [SEP] [MASK] a b c d e".split()) + "\n")
BertTokenizer.from_pretrained("bert").save_pretrained("bert")
torch.manual_seed(0)
BertModel(BertConfig(vocab_size=10, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
                     intermediate_size=32)).save_pretrained("bert")
modules = [models.Transformer("bert"), models.Pooling(32), models.Normalize()]
SentenceTransformer(modules=modules).save("model")


def lengths(size, **options):
    model = SentenceTransformer("model", truncate_dim=size, device="cpu")
    vectors = model.encode(["a b c", "d e"], **options)
    norms = numpy.linalg.norm(vectors, axis=1)
    print(f"truncate_dim {size} {options}: shape {vectors.shape}, lengths {norms.round(3)},",
          f"dot {vectors[0] @ vectors[1]:.3f}, cosine {vectors[0] @ vectors[1] / norms.prod():.3f}")
    return norms


assert numpy.allclose(lengths(None), 1, atol=1e-4)
assert (lengths(8) < 0.9).all()
assert numpy.allclose(lengths(8, normalize_embeddings=True), 1, atol=1e-4)
print("As described: the vectors are cut after they were normalized.")
END
