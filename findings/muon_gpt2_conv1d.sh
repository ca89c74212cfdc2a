#!/bin/sh
# Guess: torch.optim.Muon moves a layer by the same update whether its weight is stored (out, in), as torch.nn.Linear
# does, or (in, out): orthogonalizing a transposed matrix gives the transposed result.
# Really: the update is then multiplied by sqrt(max(1, rows / columns)) of the matrix as it is stored. transformers'
# GPT-2 stores its layers (in, out) (Conv1D), so c_fc and c_attn take 1/2 and 1/1.73 of the step that the same layers
# take as Linear, and the feed-forward's c_proj twice as much. With adjust_lr_fn="match_rms_adamw" both are equal.
# Why users meet it: GPT-2 is the model that everybody tries an optimizer on first, and learning rates found with
# another implementation of it (nanoGPT's, llm.c's: Linear) are then wrong by a factor that differs by layer.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
cd "$dir"
export HF_HUB_OFFLINE=1
python3 -m venv venv
venv/bin/pip install --quiet torch==2.15.0 numpy==2.4.6 transformers==5.24.0

venv/bin/python - <<'END'
import torch
import transformers
from transformers import GPT2Config, GPT2Model

print("torch", torch.__version__, "transformers", transformers.__version__)
torch.manual_seed(0)
block = GPT2Model(GPT2Config(n_embd=64, n_layer=1, n_head=2, vocab_size=50)).h[0]
layers = {"c_attn": block.attn.c_attn, "attention's c_proj": block.attn.c_proj,
          "c_fc": block.mlp.c_fc, "feed-forward's c_proj": block.mlp.c_proj}


def update(weight, gradient, adjust):
    """By how much one step moves a weight."""
    weight = torch.nn.Parameter(weight.detach().clone())
    weight.grad = gradient
    before = weight.detach().clone()
    torch.optim.Muon([weight], lr=1.0, weight_decay=0.0, adjust_lr_fn=adjust).step()
    return weight.detach() - before


ratios = {}
for adjust in (None, "match_rms_adamw"):
    for name, layer in layers.items():
        stored = layer.weight                        # Conv1D: (in, out)
        gradient = torch.randn_like(stored)
        as_stored = update(stored, gradient, adjust)
        as_linear = update(stored.T.contiguous(), gradient.T.contiguous(), adjust)
        ratio = (as_stored.norm() / as_linear.norm()).item()
        cosine = torch.nn.functional.cosine_similarity(as_stored.flatten(), as_linear.T.flatten(), dim=0).item()
        ratios[adjust, name] = ratio
        print(f"adjust_lr_fn={adjust}: {name} {tuple(stored.shape)}: "
              f"step of Conv1D / step of Linear {ratio:.3f}, cosine {cosine:.4f}")

expected = {"c_attn": 3 ** -0.5, "attention's c_proj": 1, "c_fc": 0.5, "feed-forward's c_proj": 2}
for name, ratio in expected.items():
    assert abs(ratios[None, name] / ratio - 1) < 0.02, (name, ratios[None, name])
    assert abs(ratios["match_rms_adamw", name] - 1) < 0.02, (name, ratios["match_rms_adamw", name])
END
