#!/bin/sh
# Guess: the mean and the standard deviation that NumPy computes of a bfloat16 tensor from a safetensors file are right
# to two or three digits, as NumPy's mean of a float16 tensor is, and PyTorch's of both.
# Really: NumPy sums a mean of its own type float16 in float32. bfloat16 comes from ml_dtypes, and sums of it are kept
# in bfloat16: once a sum is 256 times as large as what is added, it stays where it is. The mean of 1,000 ones is 0.256,
# and the mean size of 100,000 weights comes out at about 1/75 of what it is. Matrix products are right. No warning.
# Why users meet it: models are stored in bfloat16, and safetensors' NumPy reader gives them with this type. Means and
# thresholds for pruning, quantizing or comparing weights are then computed of them. x.astype("float32") first, or
# dtype= in the call, is right.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
cd "$dir"
python3 -m venv venv
venv/bin/pip install --quiet numpy==2.4.6 ml_dtypes==0.6.0 safetensors==0.8.0

venv/bin/python - <<'END'
import warnings

import ml_dtypes
import numpy as np
import safetensors
from safetensors import safe_open
from safetensors.numpy import save_file

print("numpy", np.__version__, "ml_dtypes", ml_dtypes.__version__, "safetensors", safetensors.__version__)
warnings.simplefilter("error")
weights = np.random.default_rng(0).normal(size=100_000)
save_file({"ones": np.ones(1000, ml_dtypes.bfloat16), "weights": weights.astype(ml_dtypes.bfloat16),
           "half": weights.astype(np.float16)}, "model.safetensors")
with safe_open("model.safetensors", "numpy") as file:
    ones, weights, half = (file.get_tensor(name) for name in ("ones", "weights", "half"))
assert ones.dtype == weights.dtype == ml_dtypes.bfloat16

print(f"{len(ones)} ones: sum {ones.sum()}, mean {ones.mean()}, product with itself {ones @ ones}, "
      f"mean(dtype=float32) {ones.mean(dtype=np.float32)}")
assert ones.sum() == 256 and abs(float(ones.mean()) - 0.256) < 0.001
assert float(ones @ ones) == 1000 and ones.mean(dtype=np.float32) == 1

exact = weights.astype(np.float32)
sizes = [float(np.abs(array).mean()) for array in (weights, half, exact)]
print("mean size of 100,000 weights: bfloat16 {:.4f}, float16 {:.4f}, float32 {:.4f}".format(*sizes))
assert sizes[0] < 0.02 * sizes[2] and abs(sizes[1] / sizes[2] - 1) < 0.01
deviations = [float(array.std()) for array in (weights, exact)]
print("their standard deviation: bfloat16 {:.4f}, float32 {:.4f}".format(*deviations))
assert deviations[0] < 0.3 * deviations[1]
END
