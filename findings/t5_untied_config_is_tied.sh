#!/bin/sh
# Guess: T5Config(tie_word_embeddings=False), as the files of T5 v1.1 and FLAN-T5 have it, makes a model whose head is
# a matrix of its own, and the key is still False in the config that is saved.
# Really: since transformers 5 the head of a new model is tied in any case. The key only decides whether logits are
# scaled by d_model ** -0.5: it moves to scale_decoder_outputs, and tie_word_embeddings is saved as True. Only a file
# in which both matrices differ keeps them apart, with a warning that advises the setting that has no effect.
# Why users meet it: a T5 v1.1 that is pretrained from its config has fewer parameters than the published one of the
# same config, and programs that read tie_word_embeddings of a saved folder, as it was read before, scale logits or
# drop the head.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
cd "$dir"
export HF_HUB_OFFLINE=1
python3 -m venv venv
venv/bin/pip install --quiet torch==2.15.0 numpy==2.4.6 transformers==5.24.0

venv/bin/python - <<'END'
import json

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import T5Config, T5ForConditionalGeneration

print("transformers", transformers.__version__, "torch", torch.__version__)


def config(tied):
    return T5Config(vocab_size=40, d_model=16, d_kv=4, d_ff=32, num_layers=1, num_heads=4,
                    feed_forward_proj="gated-gelu", tie_word_embeddings=tied)


counts = {}
for tied in (True, False):
    c = config(tied)
    model = T5ForConditionalGeneration(c)
    counts[tied] = model.num_parameters()
    print(f"tie_word_embeddings={tied}: read as {c.tie_word_embeddings}, scale_decoder_outputs "
          f"{c.scale_decoder_outputs}, {counts[tied]} parameters, "
          f"head is the embedding: {model.lm_head.weight is model.shared.weight}")
    assert c.tie_word_embeddings and c.scale_decoder_outputs == tied
    assert model.lm_head.weight is model.shared.weight
assert counts[True] == counts[False]

model.save_pretrained("new")
saved = json.load(open("new/config.json"))
print("saved:", {k: saved[k] for k in ("tie_word_embeddings", "scale_decoder_outputs")})
assert saved["tie_word_embeddings"] is True and saved["scale_decoder_outputs"] is False
tensors = load_file("new/model.safetensors")
assert "lm_head.weight" not in tensors

# a file like the published ones: two matrices, and the key of theirs
tensors["lm_head.weight"] = torch.randn(40, 16)
save_file(tensors, "new/model.safetensors", {"format": "pt"})
saved.pop("scale_decoder_outputs")
saved["tie_word_embeddings"] = False
json.dump(saved, open("new/config.json", "w"))
apart = T5ForConditionalGeneration.from_pretrained("new")
print("two matrices in the file: head is the embedding:", apart.lm_head.weight is apart.shared.weight)
assert torch.equal(apart.lm_head.weight, tensors["lm_head.weight"])
apart.save_pretrained("again")
assert json.load(open("again/config.json"))["tie_word_embeddings"] is True
print("saved again: tie_word_embeddings True beside two matrices")
END
