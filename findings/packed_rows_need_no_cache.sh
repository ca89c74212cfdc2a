#!/bin/sh
# Guess: rows that DataCollatorWithFlattening has packed into one, with position_ids that begin at 0 for each, do not
# see each other: transformers finds the borders in position_ids, and gives the loss of the single rows.
# Really: it looks for borders only if there is neither a cache nor an attention_mask. use_cache is True in each config
# and counts in training too, so model(**batch) attends across all rows, and use_cache=False alone is right. An
# attention_mask of ones, which should change nothing, also lets rows see each other. The same for "eager" and "sdpa",
# Llama and GPT-2. No warning.
# Why users meet it: a training loop of one's own calls model(**batch). Trainer sets use_cache to False, so the same
# batch has another loss there; and padding at the end of a packed row needs a mask.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
cd "$dir"
export HF_HUB_OFFLINE=1
python3 -m venv venv
venv/bin/pip install --quiet torch==2.15.0 numpy==2.4.6 transformers==5.24.0

venv/bin/python - <<'END'
import warnings

import torch
import transformers
from transformers import (DataCollatorWithFlattening, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM)

print("torch", torch.__version__, "transformers", transformers.__version__)
warnings.simplefilter("error")
torch.manual_seed(0)
TOKENS = 40
rows = [torch.randint(0, TOKENS, (length,)).tolist() for length in (7, 5, 9)]
batch = DataCollatorWithFlattening()([{"input_ids": row} for row in rows])
print("position_ids", batch["position_ids"].tolist())
LLAMA = LlamaConfig(vocab_size=TOKENS, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                    num_attention_heads=4, initializer_range=0.2)
GPT2 = GPT2Config(vocab_size=TOKENS, n_embd=64, n_layer=2, n_head=4, initializer_range=0.4, resid_pdrop=0.0,
                  embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)


def single(model):
    """The mean loss of all tokens, each row by itself."""
    total = 0
    for row in rows:
        ids = torch.tensor([row])
        total += model(ids, labels=ids).loss.item() * (len(row) - 1)
    return total / sum(len(row) - 1 for row in rows)


ones = torch.ones_like(batch["input_ids"])
for kind, config in (LlamaForCausalLM, LLAMA), (GPT2LMHeadModel, GPT2):
    model = kind(config).train()
    for attention in "eager", "sdpa":
        model.set_attn_implementation(attention)
        expected = single(model)
        plain = model(**batch).loss.item()
        no_cache = model(**batch, use_cache=False).loss.item()
        masked = model(**batch, use_cache=False, attention_mask=ones).loss.item()
        print(f"{kind.__name__}, {attention}: single rows {expected:.4f}, model(**batch) {plain:.4f}, "
              f"use_cache=False {no_cache:.4f}, and a mask of ones {masked:.4f}")
        assert abs(no_cache - expected) < 1e-4
        assert abs(plain - expected) > 0.03 and abs(masked - plain) < 1e-4
END
