#!/usr/bin/env python3
"""A room uses the rooms below it: prints each #include that goes up in the list of rooms of
docs/architecture.md, and each private header that tools/ or examples/ includes. Run by
check_style.sh. Exit code 1 where anything is found."""

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
}


def read_rooms():
    """The rooms, the lowest first, by the folders in the table's first column."""
    table = pathlib.Path("docs/architecture.md").read_text()
    rooms = [folder.rstrip("/") for folder in re.findall(r"^\| `([\w/]+/)` \|", table, re.M)]
    if len(rooms) < 10:
        sys.exit("docs/architecture.md: expected the table of rooms")
    return rooms[::-1]


def room_of(path, rooms):
    """Its number; -1: the umbrella and what is no room."""
    folders = {room: at for at, room in enumerate(rooms)}
    parts = path.split("/")
    return next((folders["/".join(parts[:n])] for n in (2, 1) if "/".join(parts[:n]) in folders), -1)


def main():
    rooms = read_rooms()
    allowed, findings = dict(ALLOWED), []
    tops = sorted({room.split("/")[0] for room in rooms})
    for path in sorted(p for top in tops for p in pathlib.Path(top).rglob("*")):
        here = room_of(str(path), rooms)
        if path.suffix not in (".c", ".h", ".cu", ".cuh") or here < 0:
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            header = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if not header or allowed.pop((str(path), header[1]), None):
                continue
            there = room_of(header[1], rooms)
            if there > here:
                findings.append(f"{path}:{number}: {rooms[here]}/ uses {rooms[there]}/, a room above it")
            elif rooms[here] in ("tools", "examples") and there >= 0 and there != here and \
                    header[1].endswith("_internal.h"):
                findings.append(f"{path}:{number}: {rooms[here]}/ uses a private header")
    findings += [f"scripts/check_rooms.py: {file} does not include {header} any more"
                 for file, header in allowed]
    print("\n".join(findings), end="\n" if findings else "")
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main())
