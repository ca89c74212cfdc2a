#!/bin/sh
# Guess: after a resume, an optimizer and a scheduler that both got their state_dict go on with the learning rates of a
# run without a break. Where the scheduler was built between the two loads, which sets the rate of step 0, its
# load_state_dict puts that right.
# Really: that holds for a CosineAnnealingLR by itself, and LambdaLR is right from the second step on. But SequentialLR
# of a warm-up (LinearLR) and a cosine goes on from the warm-up's first rate: the cosine multiplies the rate that it
# finds, so the whole rest of the run has too small rates, here 1/59 of them. No warning, and get_last_lr() after the
# load gives the right rate.
# Why users meet it: warm-up and cosine is the recipe of most runs, and resume functions load the optimizer where they
# build it. Loading the optimizer after the scheduler is built is right.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
cd "$dir"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.15.0 numpy==2.4.6

venv/bin/python - <<'END'
import copy
import warnings

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, SequentialLR

print("torch", torch.__version__)
warnings.simplefilter("error")
STEPS, BREAK, WARMUP = 100, 50, 10


def optimizer():
    return torch.optim.AdamW([torch.nn.Parameter(torch.ones(3))], lr=1.0)


def rates(opt, scheduler, steps):
    used = []
    for _ in range(steps):
        used.append(opt.param_groups[0]["lr"])
        opt.step()
        scheduler.step()
    return used


def compare(build):
    """Rates after the break: of an unbroken run, and of both orders of resuming."""
    opt = optimizer()
    scheduler = build(opt)
    rates(opt, scheduler, BREAK)
    states = copy.deepcopy((opt.state_dict(), scheduler.state_dict()))
    whole = rates(opt, scheduler, STEPS - BREAK)

    opt = optimizer()
    opt.load_state_dict(copy.deepcopy(states[0]))
    scheduler = build(opt)
    scheduler.load_state_dict(copy.deepcopy(states[1]))
    says = scheduler.get_last_lr()[0]
    early = rates(opt, scheduler, STEPS - BREAK)

    opt = optimizer()
    scheduler = build(opt)
    opt.load_state_dict(copy.deepcopy(states[0]))
    scheduler.load_state_dict(copy.deepcopy(states[1]))
    return whole, early, rates(opt, scheduler, STEPS - BREAK), says


def sequential(opt):
    return SequentialLR(opt, [LinearLR(opt, 0.01, 1.0, WARMUP), CosineAnnealingLR(opt, STEPS - WARMUP)], [WARMUP])


found = {}
for name, build in (("CosineAnnealingLR", lambda opt: CosineAnnealingLR(opt, STEPS)),
                    ("LambdaLR", lambda opt: LambdaLR(opt, lambda step: min(1, step / WARMUP) * (1 - step / STEPS))),
                    ("SequentialLR", sequential)):
    whole, early, late, says = found[name] = compare(build)
    print(f"{name}, rates of steps {BREAK}, {BREAK + 1}, {BREAK + 25} of {STEPS}:")
    for order, used in (("without a break", whole), ("optimizer loaded first", early),
                        ("optimizer loaded after the scheduler was built", late)):
        print(f"  {order}: " + ", ".join(f"{used[i]:.5f}" for i in (0, 1, 25)))


def same(a, b):
    return all(abs(x - y) < 1e-6 for x, y in zip(a, b))


assert all(same(whole, late) for whole, _, late, _ in found.values())
whole, early, _, _ = found["CosineAnnealingLR"]
assert same(whole, early)
whole, early, _, _ = found["LambdaLR"]
assert early[0] == 0 and same(whole[1:], early[1:])
whole, early, _, says = found["SequentialLR"]
assert all(early[i] < 0.02 * whole[i] for i in range(len(whole)))
print(f"SequentialLR.get_last_lr() after the load: {says:.5f}")
assert abs(says - whole[0]) < 1e-6
END
