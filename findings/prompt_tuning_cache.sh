#!/bin/sh
# Guess: generate() of a prompt-tuned model gives the same greedy answer with use_cache=True and False,
# as the base model does; the virtual tokens go in once, before the prompt.
# Really: with the cache, the 4 virtual tokens are put in again before each new token. Each step
# computes 5 rows where 1 is expected, and the answers differ.
# Why users meet it: generation with the cache is what everybody runs, while the loss during training
# is computed without it. The adapter then looks worse than it was trained to be.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
cd "$dir"
export HF_HUB_OFFLINE=1
python3 -m venv venv
venv/bin/pip install --quiet torch==2.15.0 numpy==2.4.6 transformers==5.24.0 \
    peft==0.21.2 accelerate==1.15.0

venv/bin/python - <<'END'
import peft
import torch
import transformers
from peft import PromptTuningConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

print("peft", peft.__version__, "transformers", transformers.__version__, "torch", torch.__version__)
torch.manual_seed(0)
config = GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=2, n_positions=64,
                    initializer_range=0.4, bos_token_id=0, eos_token_id=39, pad_token_id=38)
base = GPT2LMHeadModel(config).eval()
prompt = torch.tensor([[3, 4, 5, 6, 7]])
rows = []


def count(module, args, kwargs):
    ids, embeddings = kwargs.get("input_ids"), kwargs.get("inputs_embeds")
    rows.append((ids if ids is not None else embeddings).shape[1])


base.register_forward_pre_hook(count, with_kwargs=True)


def answer(model, cache):
    rows.clear()
    ids = model.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt), do_sample=False,
                         max_new_tokens=6, min_new_tokens=6, use_cache=cache)
    new = ids[0, prompt.shape[1]:].tolist()
    print("  use_cache", cache, "rows per step", rows, "new tokens", new)
    return new, list(rows)


print("base model")
(cached, cached_rows), (plain, _) = answer(base, True), answer(base, False)
assert cached == plain and cached_rows == [5, 1, 1, 1, 1, 1]
print("prompt tuning with 4 virtual tokens")
tuned = get_peft_model(base, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)).eval()
(cached, cached_rows), (plain, plain_rows) = answer(tuned, True), answer(tuned, False)
assert plain_rows == [9, 10, 11, 12, 13, 14]
assert cached_rows == [9, 5, 5, 5, 5, 5] and cached != plain
print("As described: the virtual tokens go in again at each step.")
END
