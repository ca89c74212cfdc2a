#!/usr/bin/env python3
"""Draws what runs have logged: losses, or other numbers, of one or several JSON Lines files (--log-jsonl).

    scripts/plot.py run.jsonl                                 to run.png
    scripts/plot.py a.jsonl b.jsonl --smooth 0.9 --output losses.svg
    scripts/plot.py run.jsonl --key lr --key grad_norm --log-y

Steps are lines; --smooth draws their running mean m = S m + (1 - S) x, without the bias of its beginning,
over the numbers themselves, which stay as a shade. Validations of the same key (objects with a "split") are
points. Needs matplotlib.
"""

import argparse
import json
import math
import os
import sys


def read(path):
    """The objects of a log; a torn last line, of a run that is still going on, is left out."""
    objects = []
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError:
            if number == len(lines):
                break
            sys.exit(f"{path}:{number}: expected a line of a log, an object of JSON")
        if not isinstance(value, dict) or not isinstance(value.get("step"), int):
            sys.exit(f'{path}:{number}: expected an object with a "step"')
        objects.append(value)
    return objects


def points(objects, key, validation):
    """Steps and numbers of a key; null, which is what NaN becomes, breaks a line."""
    steps, values = [], []
    for value in objects:
        if ("split" in value) == validation and key in value:
            steps.append(value["step"])
            values.append(math.nan if value[key] is None else value[key])
    return steps, values


def smooth(values, share):
    """Running means, each divided by the weights that it has."""
    mean, weight, means = 0.0, 0.0, []
    for value in values:
        if not math.isnan(value):
            mean = share * mean + (1 - share) * value
            weight = share * weight + (1 - share)
        means.append(mean / weight if weight and not math.isnan(value) else math.nan)
    return means


def draw(axes, name, objects, key, share):
    """A run's numbers; whether there are any."""
    steps, values = points(objects, key, False)
    at, validated = points(objects, key, True)
    color = None
    if steps:
        line = axes.plot(steps, smooth(values, share) if share else values, label=name, linewidth=1.2)[0]
        color = line.get_color()
        if share:
            axes.plot(steps, values, color=color, alpha=0.2, linewidth=0.8)
    if at:
        axes.plot(at, validated, "o", color=color, markersize=4, label=f"{name}, validation")
    return bool(steps or at)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="+", metavar="LOG.jsonl")
    parser.add_argument("--output", help="the picture: .png, .svg, .pdf (default: beside the first log, .png)")
    parser.add_argument("--key", action="append", help="what is drawn, one picture below the other (default: loss)")
    parser.add_argument("--smooth", type=float, default=0, metavar="S", help="from 0, nothing, to below 1")
    parser.add_argument("--log-y", action="store_true", help="a logarithmic scale of the numbers")
    parser.add_argument("--from-step", type=int, default=0, metavar="N", help="leave out the steps before")
    options = parser.parse_args()
    if not 0 <= options.smooth < 1:
        parser.error(f"--smooth {options.smooth:g}: expected a number from 0 to below 1")
    return options


def main():
    options = parse()
    try:
        import matplotlib
    except ImportError:
        sys.exit("plot.py: needs matplotlib: pip install matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    keys = options.key or ["loss"]
    figure, all_axes = pyplot.subplots(len(keys), 1, sharex=True, squeeze=False,
                                       figsize=(9, 1 + 4 * len(keys)), constrained_layout=True)
    runs = [(os.path.splitext(os.path.basename(path))[0], read(path)) for path in options.logs]
    for axes, key in zip(all_axes[:, 0], keys):
        drawn = [draw(axes, name, [v for v in objects if v["step"] >= options.from_step], key, options.smooth)
                 for name, objects in runs]
        if not any(drawn):
            sys.exit(f'plot.py: no line of {", ".join(options.logs)} has a "{key}"')
        axes.set_ylabel(key)
        axes.grid(alpha=0.3)
        axes.legend()
        if options.log_y:
            axes.set_yscale("log")
    all_axes[-1, 0].set_xlabel("step")
    output = options.output or os.path.splitext(options.logs[0])[0] + ".png"
    try:
        figure.savefig(output, dpi=120)
    except (OSError, ValueError) as error:
        sys.exit(f"plot.py: {output}: {error}")
    print(output)


if __name__ == "__main__":
    main()
