#!/bin/sh
# Guess: a LoRA on BERT that trains the head as well (modules_to_save=["cls"]) can be merged and saved as a plain
# model: from_pretrained gives the logits that it had.
# Really: merge_and_unload sets tie_word_embeddings to False, as the head has a table of its own now. The two names
# of the head's bias are still one tensor, so save_pretrained writes one of them; from_pretrained of an untied model
# looks for the other one too, does not find it, and begins it with zeros: what the bias has learned is lost.
# Why users meet it: training the masked language model's head beside LoRA is how new words or a new domain are
# learned, and merging is what one does before publishing. The message names a missing tensor, but the model works.
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
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import safe_open
from transformers import BertConfig, BertForMaskedLM

print("peft", peft.__version__, "transformers", transformers.__version__, "torch", torch.__version__)
torch.manual_seed(0)
BertForMaskedLM(BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                           intermediate_size=32, max_position_embeddings=16)).save_pretrained("base")
lora = LoraConfig(r=2, target_modules=["query"], modules_to_save=["cls"])
model = get_peft_model(BertForMaskedLM.from_pretrained("base"), lora)
adam = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
ids = torch.randint(0, 50, (4, 8))
for _ in range(20):
    model(input_ids=ids, labels=ids).loss.backward()
    adam.step()
    adam.zero_grad()
model.eval()
expected = model(input_ids=ids).logits


def off(other):
    return (other.eval()(input_ids=ids).logits - expected).abs().max().item()


model.save_pretrained("adapter")
adapter = off(PeftModel.from_pretrained(BertForMaskedLM.from_pretrained("base"), "adapter"))
merged = model.merge_and_unload()
before = off(merged)
merged.save_pretrained("merged")
loaded = BertForMaskedLM.from_pretrained("merged")
with safe_open("merged/model.safetensors", "pt") as file:
    names = sorted(n for n in file.keys() if n.startswith("cls.predictions.") and n.endswith("bias"))
print("logits differ by: adapter loaded %.6f, merged %.6f, merged, saved and loaded %.6f"
      % (adapter, before, off(loaded)))
print("biases in the file:", names, "tie_word_embeddings", loaded.config.tie_word_embeddings)
bias, after = (m.cls.predictions.decoder.bias.abs().max().item() for m in (merged, loaded))
print("largest bias of the head: %.4f merged, %.4f loaded" % (bias, after))
assert adapter < 1e-5 and before < 1e-5 and off(loaded) > 0.05
assert "cls.predictions.decoder.bias" not in names and bias > 0.05 and after == 0
print("As described: the bias of the head is lost between saving and loading.")
END
