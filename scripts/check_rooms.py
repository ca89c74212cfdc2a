#!/usr/bin/env python3
"""A room uses the rooms below it: prints each #include that goes up in the list of rooms of
docs/architecture.md, each private header that tools/ or examples/ includes, and each of core/ that
a family of models/ includes. Prints each circle, two units that include one another, that the
page's list of circles does not defend. A unit is a source of the library and the headers of its
name (x.c, x.h, x_internal.h); GPU kernels are left out, whose headers are parts of one source.
Prints each folder that has grown beyond its budget of lines, and checks the reading order of
docs/reading.md. Run by check_style.sh. Exit code 1 where anything is found."""

import pathlib
import re
import sys

# What may go up nevertheless: (file, header): why.
ALLOWED = {
    ("core/base/context.c", "core/device/device_internal.h"):
        "making a context opens its device",
    ("core/base/context.c", "core/dist/world_internal.h"):
        "making a context joins its job",
    ("core/tensor/tensor.c", "core/device/device_internal.h"):
        "a storage is memory of the context's device, whose kernels are written for tensors' dtypes",
    ("core/tensor/tensor.c", "core/autograd/tape_internal.h"):
        "backward of a tape that used a freed tensor is an error",
    ("core/tensor/lengths.c", "core/autograd/tape_internal.h"):
        "backward of a tape that used freed lengths is an error",
}


# Lines that a folder may have of its own, without Unicode's tables: 5 % more than it had when they
# were set. One is raised only in a commit that says why; none goes above 6,000.
BUDGETS = {
    "core": 109, "core/about": 488, "core/autograd": 1800, "core/base": 3900,
    "core/checkpoint": 4697, "core/device": 3860, "core/device/cpu": 1120,
    "core/device/cpu/isa": 4910, "core/device/cuda/attention": 2350,
    "core/device/cuda/decode": 1180, "core/device/cuda/elementwise": 4260,
    "core/device/cuda/product": 2800, "core/device/cuda/runtime": 3277, "core/device/hopper": 434,
    "core/device/hopper/attention": 2715, "core/device/hopper/decode": 3350,
    "core/device/hopper/product": 1565, "core/dist": 4302, "core/dist/control": 3078,
    "core/formats": 5990, "core/hub": 1452, "core/hub/net": 2027, "core/inspect": 780,
    "core/modelcenter": 60,
    "core/nn": 4460, "core/ops": 5760, "core/optim": 4900, "core/predict": 1200,
    "core/tensor": 725, "core/zero": 1830, "datasets": 6000, "datasets/image": 720, "datasets/lm": 4023,
    "datasets/metrics": 940, "datasets/table": 1697, "datasets/tasks": 792, "models": 3020,
    "models/adapters": 1480, "models/bert": 285, "models/cpm": 367, "models/distilbert": 200,
    "models/electra": 230, "models/files": 3120, "models/generate": 4293,
    "models/gguf": 2230, "models/glm": 260, "models/gpt2": 247,
    "models/gptj": 260, "models/llama": 430, "models/mpnet": 195, "models/opt": 250, "models/roberta": 189,
    "models/modernbert": 400, "models/longformer": 230,
    "models/t5": 495, "models/texts": 1365, "models/vit": 390, "tokenizers": 2740, "tokenizers/bpe": 2450,
    "tokenizers/cpm": 1423,
    "tokenizers/files": 2600, "tokenizers/gguf": 800, "tokenizers/train": 833, "tokenizers/unicode": 790,
    "tokenizers/unigram": 3260, "tools": 6000, "tools/files": 2790, "tools/log": 1454,
    "tools/options": 4220, "tools/tasks": 2200, "tools/train": 3480,
}

# Folders of models/ that are no families, which are written on core's public headers.
NO_FAMILIES = {"adapters", "files", "generate", "gguf", "texts"}
SPINE = 20500  # lines of the reading order in docs/reading.md, at most
PAGE = pathlib.Path("docs/architecture.md").read_text()
INCLUDE = re.compile(r'\s*#\s*include\s+"([^"]+)"')


def read_rooms():
    """The rooms, the lowest first, by the folders in the table's first column."""
    rooms = [folder.rstrip("/") for folder in re.findall(r"^\| `([\w/]+/)` \|", PAGE, re.M)]
    if len(rooms) < 10:
        sys.exit("docs/architecture.md: expected the table of rooms")
    return rooms[::-1]


def room_of(path, rooms):
    """Its number; -1: the umbrella and what is no room."""
    folders = {room: at for at, room in enumerate(rooms)}
    parts = path.split("/")
    return next((folders["/".join(parts[:n])] for n in (2, 1) if "/".join(parts[:n]) in folders), -1)


def is_family(path):
    return path.parts[0] == "models" and len(path.parts) > 2 and path.parts[1] not in NO_FAMILIES


def find_growth(paths):
    """A line for each folder with more lines of its own than its budget."""
    lines = {}
    for path in paths:
        if path.suffix in (".c", ".h", ".cu", ".cuh", ".cc", ".def") and \
                path.parts[0] != "examples" and not path.name.endswith("_data.c"):
            folder = str(path.parent)
            lines[folder] = lines.get(folder, 0) + len(path.read_text().splitlines())
    return [f"{folder}: {n} lines of its own, {BUDGETS.get(folder, 0)} allowed: see BUDGETS in "
            "scripts/check_rooms.py" for folder, n in sorted(lines.items())
            if n > BUDGETS.get(folder, 0)] + \
        [f"scripts/check_rooms.py: no folder {folder} any more"
         for folder in BUDGETS if folder not in lines]


def check_spine():
    """A line for each source that the reading order names and that is not there, and one where it
    has become too long to read."""
    page = pathlib.Path("docs/reading.md").read_text()
    rows = re.findall(r"^\| \d+ \| [^|]* \| ([^|]*) \|", page, re.M)
    files = [pathlib.Path(name) for row in rows for name in re.findall(r"`([\w/]+\.[ch])`", row)]
    missing = [f"docs/reading.md: there is no {file}" for file in files if not file.exists()]
    lines = sum(len(file.read_text().splitlines()) for file in files if file.exists())
    if len(rows) < 10 or lines > SPINE:
        missing.append(f"docs/reading.md: {len(rows)} rooms of {lines} lines, expected 10 of {SPINE} at most")
    return missing


def find_circles(paths):
    """A line for each pair of units that include one another and that the page does not defend, and
    for each that it defends without need. A source may include a header that has no source of its
    own: it defines what is declared there."""
    def unit(path):
        return re.sub(r"(_internal)?\.\w+$", "", path)
    used, sources = {}, {unit(path) for path in paths if path.endswith(".c")}
    for path in paths:
        if re.search(r"\.[ch]$", path) and not re.match("core/device/(cuda|hopper)/|examples/|tools/", path):
            for header in filter(None, map(INCLUDE.match, open(path))):
                if not path.endswith(".c") or unit(header[1]) in sources:
                    used.setdefault(unit(path), {}).setdefault(unit(header[1]), path)
    circles = {(a, b) for a in used for b in used[a] if a < b and a in used.get(b, ())}
    defended = {tuple(sorted(pair)) for pair in
                re.findall(r"^\| `([\w/]+)`, `([\w/]+)` \|", PAGE, re.M)}
    return [f"{used[a][b]} includes a header of {b}, and {used[b][a]} one of {a}"
            for a, b in sorted(circles - defended)] + \
        [f"docs/architecture.md: {a} and {b} do not include one another any more"
         for a, b in sorted(defended - circles)]


def main():
    rooms = read_rooms()
    allowed, findings = dict(ALLOWED), []
    tops = sorted({room.split("/")[0] for room in rooms})
    paths = sorted(p for top in tops for p in pathlib.Path(top).rglob("*"))
    for path in paths:
        here = room_of(str(path), rooms)
        if path.suffix not in (".c", ".h", ".cu", ".cuh") or here < 0:
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            header = INCLUDE.match(line)
            if not header or allowed.pop((str(path), header[1]), None):
                continue
            there = room_of(header[1], rooms)
            if there > here:
                findings.append(f"{path}:{number}: {rooms[here]}/ uses {rooms[there]}/, a room above it")
            elif rooms[here] in ("tools", "examples") and there >= 0 and there != here and \
                    header[1].endswith("_internal.h"):
                findings.append(f"{path}:{number}: {rooms[here]}/ uses a private header")
            elif is_family(path) and re.match(r"core/.*_internal\.h$", header[1]):
                findings.append(f"{path}:{number}: a family uses a private header of core/")
    findings += [f"scripts/check_rooms.py: {file} does not include {header} any more"
                 for file, header in allowed]
    findings += find_circles([str(path) for path in paths]) + find_growth(paths) + check_spine()
    print("\n".join(findings), end="\n" if findings else "")
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main())
