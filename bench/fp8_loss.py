#!/usr/bin/env python3
"""Validation loss of training in 8 bits beside bf16: pairs of runs with equal seed and data.

    bench/fp8_loss.py PROGRAM FOLDER TEXT... [--config gpt2-base] [--steps 400] [--seeds 0 1 2]
                      [--batch 16] [--length 512] [--lr 6e-4] [--fp8 all] [--scaling delayed]
                      [--device cuda]
    bench/fp8_loss.py build/release/bin/modelcenter pairs texts/*.txt

GPT-2 124M by default, on the bytes of the texts (ids 0 to 255 of its 50,257), whose last 5 % are for
validation. A pair is 2 x 400 steps of 16 x 512 tokens; three pairs are 19.7 M tokens, 45 s at
440,000 tokens/s and some seconds a run to start. FOLDER keeps the logs, and a run whose log is whole
is not run again. A line a pair: both losses, by how much FP8's is higher, milliseconds of a step
(median), and of the elements cast to 8 bits the shares that saturated and vanished (mean over steps,
and the worst step). The last line has the mean difference and its standard error.
"""

import argparse
import pathlib
import statistics

import pretrain_runs


def median_ms(log):
    """Of the second half: the first steps are recorded, and kernels chosen."""
    times = [step["ms"] for step in log.steps[len(log.steps) // 2:] if step.get("ms")]
    return statistics.median(times) if times else float("nan")


def shares(log, key):
    """Mean and largest, in percent."""
    values = [100 * step[key] for step in log.steps if step.get(key) is not None]
    return f"{statistics.mean(values):.2g} (at most {max(values):.2g})"


def run(args, seed, eight):
    options = {"config": args.config, "batch-size": args.batch, "seq-length": args.length,
               "shuffle": True, "seed": seed, "lr": args.lr, "warmup": args.steps // 10,
               "scheduler": "cosine", "weight-decay": 0.1, "device": args.device,
               "dtype": "bf16"}
    if eight:
        options.update({"fp8": args.fp8, "fp8-scaling": args.scaling})
    way = f"{args.fp8}-{args.scaling}" if eight else "bf16"
    config = pathlib.Path(args.config).stem
    name = f"{config}-{args.batch}x{args.length}-{args.lr:g}-{args.steps}-{seed}-{way}"
    return pretrain_runs.run(args.program, args.folder, name, args.steps, options)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--config", default="gpt2-base", help="a name, or a file config.json")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--fp8", choices=["all", "auto"], default="all")
    parser.add_argument("--scaling", choices=["delayed", "current"], default="delayed")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    pretrain_runs.prepare(args.folder, args.texts)
    higher = []
    for seed in args.seeds:
        wide, eight = run(args, seed, False), run(args, seed, True)
        losses = wide.curve[args.steps], eight.curve[args.steps]
        higher.append(100 * (losses[1] / losses[0] - 1))
        print(f"seed {seed}: bf16 {losses[0]:.5f}, fp8 {losses[1]:.5f} ({higher[-1]:+.3f} %); "
              f"{median_ms(wide):.2f} and {median_ms(eight):.2f} ms a step; "
              f"saturated {shares(eight, 'fp8_saturated')} %, "
              f"vanished {shares(eight, 'fp8_vanished')} %", flush=True)
    mean, error = pretrain_runs.mean_and_error(higher)
    print(f"result pairs={len(higher)} steps={args.steps} fp8_loss_higher_percent={mean:.4f} "
          f"standard_error={error:.4f}")


main()
