#!/bin/sh
# Guess: quantize_blockwise gives each number the code that is nearest, so a zero stays zero.
# Really: on a CPU the code comes from a coarse table; near zero it is up to 7 codes off. In a block
# with one number of 1, zeros (and all that is small) come back as 2e-5 (signed map) or 1.6e-5.
# Why users meet it: bitsandbytes' 8-bit optimizers run on CPUs, and keep their moments by this function;
# tests of a model on a CPU then differ from a GPU's, where zeros stay.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
cd "$dir"
python3 -m venv venv
venv/bin/pip install --quiet bitsandbytes==0.50.2 numpy==2.4.6 torch==2.15.0

venv/bin/python - <<'END' 2>/dev/null
import bitsandbytes
import torch
from bitsandbytes import functional

print("bitsandbytes", bitsandbytes.__version__, "torch", torch.__version__)
x = torch.zeros(256)
x[0] = 1
for sign in True, False:
    numbers = functional.create_dynamic_map(sign)
    assert 0 in numbers
    codes, state = functional.quantize_blockwise(x, code=numbers, blocksize=256)
    back = functional.dequantize_blockwise(codes, state)
    print("signed" if sign else "unsigned", "map: 0 becomes", back[1].item())
    assert 1e-5 < back[1] < 3e-5
print("As described: a zero doesn't stay zero.")
END
