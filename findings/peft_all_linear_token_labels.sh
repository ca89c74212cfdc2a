#!/bin/sh
# Guess: target_modules="all-linear" adapts every linear layer but the output layer, as PEFT's documentation says, so
# it works with each task_type that trains a new head.
# Really: the head is left out for SEQ_CLS only. With TOKEN_CLS, which also lists the head in modules_to_save, the
# head is adapted first and then refused: get_peft_model raises a TypeError. Without a task_type nothing is raised:
# the head gets factors A and B, while its own random weights are frozen and not saved, so that a folder loaded
# beside a fresh head computes something else.
# Why users meet it: a tagger (names, parts of speech) is fine-tuned with the settings that worked for a classifier,
# and leaving out task_type is what makes the error go away.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
cd "$dir"
export HF_HUB_OFFLINE=1
python3 -m venv venv
venv/bin/pip install --quiet torch==2.15.0 numpy==2.4.6 transformers==5.24.0 peft==0.21.2

venv/bin/python - <<'END'
import peft
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import safe_open
from transformers import BertConfig, BertForSequenceClassification, BertForTokenClassification

print("peft", peft.__version__, "transformers", transformers.__version__, "torch", torch.__version__)
CONFIG = BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
                    num_labels=3)


def adapt(kind, task, seed=0):
    torch.manual_seed(seed)
    model = kind(CONFIG).eval()
    return get_peft_model(model, LoraConfig(r=2, target_modules="all-linear", task_type=task, init_lora_weights=False))


def saved_head(model, folder):
    model.save_pretrained(folder)
    with safe_open(f"{folder}/adapter_model.safetensors", "pt") as f:
        return sorted(key.split("classifier.")[1] for key in f.keys() if "classifier" in key)


head = saved_head(adapt(BertForSequenceClassification, "SEQ_CLS"), "classes")
print("SEQ_CLS saves of the head:", head)
assert head == ["bias", "weight"]

try:
    adapt(BertForTokenClassification, "TOKEN_CLS")
    raise SystemExit("TOKEN_CLS: no error")
except TypeError as error:
    print("TOKEN_CLS raises TypeError:", error)
    assert "modules_to_save" in str(error)

tagger = adapt(BertForTokenClassification, None)
head = saved_head(tagger, "tags")
print("without a task_type saves of the head:", head)
assert head == ["lora_A.weight", "lora_B.weight"]

torch.manual_seed(0)
trunk = BertForTokenClassification(CONFIG).state_dict()
torch.manual_seed(1)  # a head is drawn anew by each process that loads the trunk
fresh = BertForTokenClassification(CONFIG)
fresh.load_state_dict({k: v for k, v in trunk.items() if not k.startswith("classifier")}, strict=False)
loaded = PeftModel.from_pretrained(fresh, "tags").eval()
ids = torch.arange(8)[None]
with torch.no_grad():
    before, after = tagger.eval()(ids).logits, loaded(ids).logits
print("largest difference of logits after loading:", (before - after).abs().max().item())
assert (before - after).abs().max() > 0.01
END
