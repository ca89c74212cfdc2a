#!/bin/sh
# Guess: generation_config.json with one key, such as "temperature", changes that key; the end token
# still comes from config.json.
# Really: once generation_config.json exists, generate() no longer looks at the eos_token_id of
# config.json. The answer goes on after the end token, up to the length limit. No message names it.
# Why users meet it: people write a small generation_config.json by hand to set sampling options for a
# fine-tuned model, whose answers then have text after their end.
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
import os

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel

print("transformers", transformers.__version__, "torch", torch.__version__)
torch.manual_seed(0)
prompt = torch.tensor([[3, 4, 5, 6, 7]])
config = GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=2, n_positions=64,
                    initializer_range=0.4, bos_token_id=0, eos_token_id=1, pad_token_id=0)
model = GPT2LMHeadModel(config).eval()
options = {"attention_mask": torch.ones_like(prompt), "do_sample": False, "max_new_tokens": 20}
end = model.generate(prompt, **options)[0, 5].item()  # a token that this model does generate
model.config.eos_token_id = end
model.save_pretrained("model")


def answer(keys):
    os.path.exists("model/generation_config.json") and os.remove("model/generation_config.json")
    if keys is not None:
        with open("model/generation_config.json", "w") as file:
            json.dump(keys, file)
    read = GPT2LMHeadModel.from_pretrained("model")
    new = read.generate(prompt, **options)[0, prompt.shape[1]:].tolist()
    print("generation_config.json", keys, "config.json's end token", read.config.eos_token_id, "->", new)
    return new


assert answer(None) == [end]
assert answer({"temperature": 0.7, "eos_token_id": end}) == [end]
assert len(answer({"temperature": 0.7})) == 20
print("As described: a generation_config.json without the end token runs past it.")
END
