#!/usr/bin/env python3
"""scripts/plot.py: which numbers it draws; a picture, where matplotlib is installed.

    plot_test.py SCRIPT
"""

import importlib.util
import json
import math
import pathlib
import subprocess
import sys
import tempfile

spec = importlib.util.spec_from_file_location("plot", sys.argv[1])
plot = importlib.util.module_from_spec(spec)
spec.loader.exec_module(plot)
folder = pathlib.Path(tempfile.mkdtemp())
log = folder / "run.jsonl"
lines = [{"step": 1, "loss": 4.0, "lr": 0.1}, {"step": 2, "loss": None, "lr": 0.2},
         {"step": 2, "split": "val", "loss": 3.5, "tokens": 9}, {"step": 3, "loss": 2.0, "lr": 0.3}]
log.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step":4,"lo')

objects = plot.read(str(log))
assert objects == lines, objects
steps, values = plot.points(objects, "loss", False)
assert steps == [1, 2, 3] and values[0] == 4 and math.isnan(values[1]) and values[2] == 2, (steps, values)
assert plot.points(objects, "loss", True) == ([2], [3.5])
assert plot.points(objects, "tokens", False) == ([], [])
smooth = plot.smooth(values, 0.5)  # 4; then (4 / 4 + 2 / 2) / (1 / 4 + 1 / 2)
assert smooth[0] == 4 and math.isnan(smooth[1]) and abs(smooth[2] - 8 / 3) < 1e-12, smooth


def run(*arguments):
    return subprocess.run([sys.executable, sys.argv[1], *map(str, arguments)], capture_output=True, text=True)


(folder / "bad.jsonl").write_text('{"step": 1}\n[2]\n')
assert run("--smooth", "1", log).returncode == 2
try:
    import matplotlib  # noqa: F401
except ImportError:
    assert "needs matplotlib" in run(log).stderr
    print("SKIPPED: pictures, for matplotlib is not installed")
    sys.exit(0)
drawn = run(log, log, "--key", "loss", "--key", "lr", "--smooth", "0.5", "--output", folder / "out.svg")
assert drawn.returncode == 0 and "<svg" in (folder / "out.svg").read_text(), drawn
assert run(log).returncode == 0 and (folder / "run.png").read_bytes().startswith(b"\x89PNG")
assert 'bad.jsonl:2: expected an object with a "step"' in run(folder / "bad.jsonl").stderr
assert 'has a "foo"' in run(log, "--key", "foo").stderr
print("ok")
