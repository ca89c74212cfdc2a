#!/bin/sh
# Guess: torch.autocast may be around the whole training loop as well as around each forward pass: it only chooses the
# dtype of operations.
# Really: it keeps the 16-bit copy of each weight until the outermost autocast block is left. Steps of the optimizer
# change the weights, but the forward pass goes on with the copies of the first step: the loss stays where it is. After
# the block the model is what the same gradient, again and again, made of it. No warning.
# Why users meet it: one "with" around train() is the shortest way to mixed precision, and a loop over micro-batches or
# an inner loop of a few steps ends up within one easily. cache_enabled=False, or a block a step, is right.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
cd "$dir"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.15.0 numpy==2.4.6

venv/bin/python - <<'END'
import contextlib
import warnings

import torch

print("torch", torch.__version__)
warnings.simplefilter("error")
STEPS = 40
generator = torch.Generator().manual_seed(0)
x = torch.randn(64, 8, generator=generator)
y = x.sin().sum(1, keepdim=True)


def train(around_loop, around_step):
    """Losses of the steps, and the loss in f32 after them."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    losses = []
    with around_loop():
        for _ in range(STEPS):
            with around_step():
                loss = torch.nn.functional.mse_loss(model(x).float(), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    with torch.no_grad():
        return losses, torch.nn.functional.mse_loss(model(x), y).item()


def bf16(**options):
    return lambda: torch.autocast("cpu", torch.bfloat16, **options)


nothing = contextlib.nullcontext
found = {}
for name, loop, step in (("a block a step", nothing, bf16()), ("a block around the loop", bf16(), nothing),
                         ("the same, cache_enabled=False", bf16(cache_enabled=False), nothing)):
    losses, after = found[name] = train(loop, step)
    print(f"{name}: loss of steps 1, 2, 10, {STEPS}: " + ", ".join(f"{losses[i]:.4f}" for i in (0, 1, 9, STEPS - 1))
          + f"; in f32 afterwards {after:.4f}")

good, bad, mended = found.values()
assert good[0][-1] < 0.1 * good[0][0] and good[1] < 0.1 * good[0][0]
assert len(set(bad[0])) == 1 and bad[1] > 2 * bad[0][0]
assert mended == good
END
