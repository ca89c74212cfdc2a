#!/usr/bin/env python3
"""What a step on a GPU consists of, from a trace that bench/cuda_trace.c wrote: what computed, what
communicated, what was copied, what of that overlapped, and what waited; and how long the host was
in each of its ranges, of which some lie within others.

    timeline.py TRACE [--steps N] [--ends NAME] [--rows N] [--against TRACE]

A step ends with the last kernel of a row of those whose name holds NAME (adam); the mean over the
last N steps (3) is printed. `alone` and `beside` are a kernel's mean times while nothing communicated
and while something did; gaps stand before the kernel that came late. --against shows each kernel's
time in another trace too (of one GPU, say)."""

import argparse
import collections
import re
import sys

parser = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("trace")
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--ends", default="adam")
parser.add_argument("--rows", type=int, default=24)
parser.add_argument("--against")
args = parser.parse_args()

Span = collections.namedtuple("Span", "start end name kind")


def short(name):
    name = re.sub(r"^_ZN?K?", "", name)
    return re.sub(r"\(.*", "", name)[:72]


def kind_of(name):
    if name in ("memcpy", "memset"):
        return "copy"
    return "communicate" if "nccl" in name.lower() else "compute"


def read(path):
    """The GPU's spans, and the host's."""
    device, host, begun = [], [], {}
    for line in open(path, errors="replace"):
        start, end, number, name = line.rstrip("\n").split(" ", 3)
        if end == "+":
            begun[number] = int(start), name
        elif end == "-" and number in begun:
            since, name = begun.pop(number)
            host.append(Span(since, int(start), name, "host"))
        elif end != "-":
            device.append(Span(int(start), int(end), short(name), kind_of(name)))
    return sorted(device), sorted(host)


def cut(kernels):
    """The kernels of the last steps, and the time of their beginning and end."""
    ends = [i for i, k in enumerate(kernels) if args.ends in k.name]
    ends = [i for i, following in zip(ends, ends[1:] + [10**9]) if following - i > 60]
    if len(ends) <= args.steps:
        sys.exit(f"{len(ends)} steps in the trace, more than {args.steps} are needed")
    first, last = ends[-args.steps - 1], ends[-1]
    return kernels[first + 1:last + 1], kernels[first].end, kernels[last].end


def union(kernels):
    spans = []
    for k in kernels:
        if spans and k.start <= spans[-1][1]:
            spans[-1][1] = max(spans[-1][1], k.end)
        else:
            spans.append([k.start, k.end])
    return spans


def length(spans):
    return sum(b - a for a, b in spans)


def common(a, b):
    total = i = j = 0
    while i < len(a) and j < len(b):
        total += max(0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return total


def totals(kernels):
    time, count = collections.Counter(), collections.Counter()
    for k in kernels:
        time[k.name] += k.end - k.start
        count[k.name] += 1
    return time, count


def beside(kernels, spans):
    """For each name: (time, count) of the kernels that ran while nothing communicated, and while
    something did for more than half of their time."""
    sums = collections.defaultdict(lambda: [[0, 0], [0, 0]])
    at = 0
    for k in kernels:
        while at < len(spans) and spans[at][1] < k.start:
            at += 1
        shared = common([[k.start, k.end]], spans[at:at + 4])
        cell = sums[k.name][2 * shared > k.end - k.start]
        cell[0] += k.end - k.start
        cell[1] += 1
    return sums


device, host = read(args.trace)
kernels, begin, end = cut(device)
compute = [k for k in kernels if k.kind == "compute"]
busy, sent, copied = (union([k for k in kernels if k.kind == kind])
                      for kind in ("compute", "communicate", "copy"))
n = 1e6 * args.steps
idle = end - begin - length(union(kernels))
print(f"step {(end - begin) / n:.3f} ms: computing {length(busy) / n:.3f}, communicating "
      f"{length(sent) / n:.3f}, of that beside computing {common(busy, sent) / n:.3f}; copying "
      f"{length(copied) / n:.3f}, of that beside computing {common(busy, copied) / n:.3f}; nothing "
      f"{idle / n:.3f}")

gaps, late = collections.Counter(), begin
for k in compute:
    if k.start > late:
        gaps[k.name] += k.start - late
    late = max(late, k.end)
print("gaps, ms a step: " +
      ", ".join(f"{g / n:.3f} before {name[:40]}" for name, g in gaps.most_common(6)))

other = totals(cut(read(args.against)[0])[0])[0] if args.against else None
time, count = totals(kernels)
sums = beside(compute, sent)
print(f"{'ms':>9} {'calls':>7} {'alone us':>9} {'beside us':>9}" +
      (f" {'against':>9}" if other else ""))
for name, t in time.most_common(args.rows):
    means = [f"{1e-3 * s / c:9.1f}" if c else f"{'':>9}"
             for s, c in sums.get(name, [[0, 0], [0, 0]])]
    more = f" {other[name] / n:9.3f}" if other else ""
    print(f"{t / n:9.3f} {count[name] / args.steps:7.1f} {means[0]} {means[1]}{more}  {name}")
if other:
    computing = sum(v for k, v in time.items() if "nccl" not in k.lower())
    print(f"{computing / n:9.3f} {'':27} {sum(other.values()) / n:9.3f}  all computing")
time, count = totals([h._replace(start=max(h.start, begin), end=min(h.end, end))
                      for h in host if h.end > begin and h.start < end])
if time:
    print("the host's ranges:")
for name, t in time.most_common(args.rows):
    print(f"{t / n:9.3f} {count[name] / args.steps:7.1f}  {name}")
