#!/usr/bin/env python3
"""Muon beside AdamW on a small GPT-2 (6 x 384, 256 tokens of bytes), and the plot of both.

    bench/muon_recipe.py PROGRAM FOLDER TEXT... [--device cuda:0] [--steps 1500] [--seeds 0 1 2 3 4]
                         [--lr 5e-4 1e-3 2e-3 4e-3] [--decay 0 0.1] [--optimizer adam muon]
    bench/muon_recipe.py build/release/bin/modelcenter recipe texts/*.txt --device cuda

The last 5 % of each text are for validation. Every learning rate and decay is run with the first
seed, then the best pair of each optimizer with the others: 16 + 8 runs by default, of 24.6 M tokens
each. FOLDER keeps each run's log, and a run whose log is whole is not run again, so the grid may be
run in parts (--optimizer, --lr, --decay, --seeds), one after the other or on several machines. Each
call prints the table of what is there: the validation loss at the end, its mean over seeds with the
standard error, and after how many steps Muon's mean curve is at AdamW's last loss, as a part of all
steps. It writes FOLDER/curves.svg.
"""

import argparse
import json
import pathlib
import statistics

import pretrain_runs

BATCH, LENGTH, EVERY = 64, 256, 25
SHAPE = {"model_type": "gpt2", "vocab_size": 256, "n_embd": 384, "n_layer": 6, "n_head": 6,
         "n_positions": LENGTH, "bos_token_id": 0, "eos_token_id": 0}
COLOURS = {"adam": "#777777", "muon": "#c03020"}


def run(args, optimizer, lr, decay, seed):
    """{step: validation loss}"""
    log = pretrain_runs.run(
        args.program, args.folder, f"{optimizer}-{lr:g}-{decay:g}-{args.steps}-{seed}", args.steps,
        {"config": args.folder / "shape.json", "val-every": EVERY, "batch-size": BATCH,
         "seq-length": LENGTH, "shuffle": True, "seed": seed, "optimizer": optimizer, "lr": lr,
         "weight-decay": decay, "device": args.device, "dtype": args.dtype})
    print(f"{optimizer} lr {lr:g} decay {decay:g} seed {seed}: {log.curve[args.steps]:.4f}",
          flush=True)
    return log.curve


def mean_curve(curves):
    return {step: statistics.mean(curve[step] for curve in curves) for step in curves[0]}


def reached(curve, loss):
    """The step at which a curve falls to a loss, between two validations by the line; None: never."""
    before = None
    for step in sorted(curve):
        if curve[step] <= loss:
            if before is None:
                return step
            part = (curve[before] - loss) / (curve[before] - curve[step])
            return before + part * (step - before)
        before = step
    return None


def draw(path, means, steps):
    """A line for each optimizer; the first tenth, where losses are high, is left out."""
    width, height, margin = 640, 400, 50
    shown = {name: [(s, v) for s, v in sorted(curve.items()) if s >= steps / 10]
             for name, curve in means.items()}
    losses = [loss for points in shown.values() for _, loss in points]
    low, high = min(losses), max(losses)
    x = lambda step: margin + (width - 2 * margin) * step / steps
    y = lambda loss: height - margin - (height - 2 * margin) * (loss - low) / (high - low or 1)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
             'font-family="sans-serif" font-size="12">',
             f'<rect width="{width}" height="{height}" fill="white"/>',
             f'<text x="{margin}" y="20">validation loss by step</text>']
    for part in range(5):
        loss, step = low + (high - low) * part / 4, steps * part / 4
        parts.append(f'<text x="5" y="{y(loss) + 4:.1f}">{loss:.3f}</text>')
        parts.append(f'<text x="{x(step) - 12:.1f}" y="{height - 25}">{step:.0f}</text>')
        parts.append(f'<path d="M{margin} {y(loss):.1f}H{width - margin}" stroke="#ddd"/>')
    for at, (name, points) in enumerate(shown.items()):
        line = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{COLOURS[name]}" '
                     'stroke-width="2"/>')
        parts.append(f'<text x="{width - 120}" y="{40 + 16 * at}" fill="{COLOURS[name]}">'
                     f'{name}</text>')
    path.write_text("\n".join(parts + ["</svg>\n"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--lr", type=float, nargs="+", default=[5e-4, 1e-3, 2e-3, 4e-3])
    parser.add_argument("--decay", type=float, nargs="+", default=[0, 0.1])
    parser.add_argument("--optimizer", nargs="+", choices=COLOURS, default=list(COLOURS))
    args = parser.parse_args()
    pretrain_runs.prepare(args.folder, args.texts)
    (args.folder / "shape.json").write_text(json.dumps(SHAPE))
    means = {}
    for optimizer in args.optimizer:
        grid = {(lr, decay): run(args, optimizer, lr, decay, args.seeds[0])
                for lr in args.lr for decay in args.decay}
        best = min(grid, key=lambda pair: grid[pair][args.steps])
        curves = [grid[best]] + [run(args, optimizer, *best, seed) for seed in args.seeds[1:]]
        means[optimizer] = mean_curve(curves)
        loss, error = pretrain_runs.mean_and_error([curve[args.steps] for curve in curves])
        print(f"{optimizer}: best lr {best[0]:g}, decay {best[1]:g}: loss {loss:.4f} +- {error:.4f}"
              f" over {len(curves)} seeds", flush=True)
    if len(means) == len(COLOURS):
        step = reached(means["muon"], means["adam"][args.steps])
        print("muon does not reach adam's last loss" if step is None else
              f"muon reaches adam's last loss after {step:.0f} steps, {step / args.steps:.2f} of all")
    draw(args.folder / "curves.svg", means, args.steps)


main()
