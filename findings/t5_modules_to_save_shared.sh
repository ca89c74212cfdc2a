#!/bin/sh
# Guess: modules_to_save=["shared"] trains and saves a copy of T5's embedding table, as ["wte"] does
# for GPT-2.
# Really: the encoder and the decoder keep using the base table. The trainable copy gets no gradient,
# and changing it changes no logits.
# Why users meet it: "shared" is the table's name in T5 files, and the embedding is trained along with
# LoRA when tokens are added. The adapter stores a full table that has no effect.
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
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

print("peft", peft.__version__, "transformers", transformers.__version__, "torch", torch.__version__)
torch.manual_seed(0)


def effect(base, task, target, table):
    lora = LoraConfig(task_type=task, r=2, target_modules=[target], modules_to_save=[table])
    model = get_peft_model(base, lora).eval()
    ids = torch.tensor([[3, 4, 5]])
    before = model(input_ids=ids, labels=ids)
    before.loss.backward()
    name, copy = next((n, p) for n, p in model.named_parameters() if "modules_to_save" in n)
    gradient = copy.grad is not None and bool(copy.grad.abs().sum() > 0)
    with torch.no_grad():
        copy.add_(torch.randn_like(copy))
    change = (model(input_ids=ids, labels=ids).logits - before.logits).abs().max().item()
    print(f"  {name}: trainable {copy.requires_grad}, gradient {gradient}, logits change by {change:.3f}")
    return gradient, change


print("GPT-2")
gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_embd=32, n_layer=1, n_head=2, n_positions=16,
                                  bos_token_id=0, eos_token_id=1))
gradient, change = effect(gpt2, "CAUSAL_LM", "c_attn", "wte")
assert gradient and change > 0.01
print("T5")
t5 = T5ForConditionalGeneration(T5Config(vocab_size=40, d_model=16, d_kv=8, d_ff=32, num_layers=1,
                                         num_heads=2, decoder_start_token_id=0))
gradient, change = effect(t5, "SEQ_2_SEQ_LM", "q", "shared")
assert not gradient and change == 0
print("As described: the saved copy of T5's table is never used.")
END
