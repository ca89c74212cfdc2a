#!/bin/sh
# Guess: from_pretrained(gguf_file=...) gives a Llama 3.1 or 3.2 file the rotary positions that it had,
# or says that it cannot read them.
# Really: of rotary positions it reads the base alone. llama3's scaling (the tensor
# rope_freqs.weight) and linear scaling (the key rope.scaling.factor) are left out without a warning.
# Why users meet it: llama.cpp's converter writes that tensor for Llama 3.1, 3.2 and 3.3. transformers
# then computes other logits than the model that the file was made of.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
cd "$dir"
export HF_HUB_OFFLINE=1
python3 -m venv venv
venv/bin/pip install --quiet torch==2.15.0 numpy==2.4.6 transformers==5.24.0 gguf==0.19.0 accelerate==1.15.0

venv/bin/python - <<'END'
import warnings

import gguf
import numpy
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

print("gguf 0.19.0, transformers", transformers.__version__, "torch", torch.__version__)
warnings.simplefilter("error")
HEADS, DIM, BASE = 4, 64, 500000.0
SHAPE = {"hidden_size": DIM, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": HEADS,
         "num_key_value_heads": HEADS, "vocab_size": 40, "max_position_embeddings": 256, "initializer_range": 0.2}
SCALED = {"llama3": {"rope_type": "llama3", "rope_theta": BASE, "factor": 8.0, "low_freq_factor": 1.0,
                     "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
          "linear": {"rope_type": "linear", "rope_theta": BASE, "factor": 8.0}}
NAMES = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)


def write(model, kind):
    """The file as llama.cpp's converter writes it."""
    w = gguf.GGUFWriter(f"{kind}.gguf", "llama")
    w.add_context_length(256)
    w.add_embedding_length(DIM)
    w.add_block_count(2)
    w.add_feed_forward_length(96)
    w.add_head_count(HEADS)
    w.add_head_count_kv(HEADS)
    w.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    w.add_rope_dimension_count(DIM // HEADS)
    w.add_rope_freq_base(BASE)
    w.add_vocab_size(40)
    if kind == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(8.0)
    for name, value in model.state_dict().items():
        value = value.numpy()
        if "q_proj" in name or "k_proj" in name:
            value = value.reshape(HEADS, 2, -1, DIM).swapaxes(1, 2).reshape(value.shape)
        w.add_tensor(NAMES.get_name(name, (".weight",)), numpy.ascontiguousarray(value))
    if kind == "llama3":
        plain = 1 / BASE ** (torch.arange(0, DIM // HEADS, 2) / (DIM // HEADS))
        w.add_tensor("rope_freqs.weight", (plain / model.model.rotary_emb.inv_freq).float().numpy())
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


ids = torch.arange(120)[None] * 7 % 40
for kind, rope in SCALED.items():
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, rope_parameters=rope)).eval()
    write(model, kind)
    read = LlamaForCausalLM.from_pretrained(".", gguf_file=f"{kind}.gguf", dtype=torch.float32).eval()
    with torch.no_grad():
        wanted, found = model(ids).logits, read(ids).logits
        read.model.rotary_emb = model.model.rotary_emb
        mended = read(ids).logits
    off = ((wanted - found).abs().max() / wanted.abs().max()).item()
    left = ((wanted - mended).abs().max() / wanted.abs().max()).item()
    print(f"  {kind}: rope_parameters {read.config.rope_parameters}; logits are off by {off:.2f} of the largest, "
          f"with the scaling by {left:.0e}")
    assert read.config.rope_parameters["rope_type"] == "default" and off > 0.05 and left < 1e-4
print("As described: the scaling of rotary positions is lost.")
END
