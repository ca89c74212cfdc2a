#!/bin/sh
# Guess: ModernBERT's hidden states do not depend on attn_implementation, up to rounding.
# Really: at padding positions that are farther from the text than half of local_attention they do, by
# as much as the values themselves. Their window holds no token that counts: "eager" gives the mean of
# all values there, "sdpa" gives zeros. Positions of the text agree.
# Why users meet it: vectors that are pooled without the mask, and tests that compare whole batches,
# change with the default implementation, or on a machine that has another one.
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

print("transformers", transformers.__version__, "torch", torch.__version__)
config = transformers.ModernBertConfig(vocab_size=50, hidden_size=32, intermediate_size=48,
                                       num_hidden_layers=4, num_attention_heads=4, local_attention=4,
                                       pad_token_id=0, initializer_range=0.5)
torch.manual_seed(1)
transformers.ModernBertModel(config).save_pretrained("model")
ids = torch.randint(1, 50, (1, 16))
mask = torch.tensor([[1] * 6 + [0] * 10])
out = {}
for kind in ("eager", "sdpa"):
    model = transformers.ModernBertModel.from_pretrained("model", attn_implementation=kind).eval()
    with torch.no_grad():
        out[kind] = model(input_ids=ids, attention_mask=mask).last_hidden_state[0]
apart = (out["eager"] - out["sdpa"]).abs().amax(dim=1)
print("largest difference in the text", apart[:6].max().item(), "at padding", apart[6:].max().item())
assert apart[:6].max() < 1e-4
assert apart[6:].max() > 0.1
print("As described: hidden states at padding depend on the attention implementation.")
END
