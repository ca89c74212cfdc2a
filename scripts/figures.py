#!/usr/bin/env python3
"""Draws bench/figures.json: the table in README.md and the chart docs/figures.svg.

    scripts/figures.py            writes both
    scripts/figures.py --check    exit code 1 where they are not what the file says, or where no line of
                                  bench/RESULTS.md has all of a row: the rates, the date and the command

A row has our figure and one or several peers', measured on the same work; more is better. Bars are
relative to our figure. A row whose peers are all eager has no ratio: a compiled one may be faster.
"""

import html
import json
import pathlib
import sys

DATA = pathlib.Path("bench/figures.json")
README = pathlib.Path("README.md")
CHART = pathlib.Path("docs/figures.svg")
RESULTS = pathlib.Path("bench/RESULTS.md")
BEGIN, END = "<!-- figures: scripts/figures.py -->\n", "<!-- end of figures -->\n"

OURS, PEER, TEXT, MUTED = "#1f6feb", "#b8c0cc", "#24292f", "#57606a"
WIDTH, LEFT, FULL, BAR, GAP, TITLE = 860, 330, 330, 15, 10, 30


def number(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.4g}"


def row_cells(row):
    peers = "; ".join(f"{name} {number(value)}" for name, value in row["peers"])
    rates = [value for name, value in row["peers"] if not name.endswith("eager")]
    ratio = f"{row['ours'] / max(rates):.2f}" if rates else ""
    return (row["work"], f"**{number(row['ours'])}** {row['unit']}", peers, ratio,
            f"`{row['command']}`, {row['date']}")


def table(groups):
    lines = ["![Training and inference beside others](docs/figures.svg)\n", "\n"]
    for group in groups:
        lines += [f"| {group['title']} | ours | others, same work | times the best of them | command |\n",
                  "|---|---|---|---|---|\n"]
        lines += ["| " + " | ".join(row_cells(row)) + " |\n" for row in group["rows"]] + ["\n"]
    return "".join(lines)


def text(x, y, content, anchor="start", size=12, colour=TEXT, weight="normal"):
    return (f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" font-weight="{weight}" '
            f'text-anchor="{anchor}">{html.escape(content)}</text>\n')


def bars(row, y):
    """The bars of a row, one under the other, and the y below them."""
    out = text(LEFT - 10, y + BAR - 3, row["work"], "end")
    for name, value in [("modelcenter.c", row["ours"])] + row["peers"]:
        width = FULL * value / row["ours"]
        colour = OURS if name == "modelcenter.c" else PEER
        out += f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR - 2}" fill="{colour}"/>\n'
        out += text(LEFT + width + 6, y + BAR - 4, f"{number(value)} {row['unit']}  {name}", size=11,
                    colour=MUTED)
        y += BAR
    return out, y + GAP


def chart(groups):
    body, y = "", 10
    for group in groups:
        body += text(10, y + 16, group["title"], size=14, weight="bold")
        y += TITLE
        for row in group["rows"]:
            drawn, y = bars(row, y)
            body += drawn
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" '
            f'viewBox="0 0 {WIDTH} {y}" font-family="sans-serif">\n'
            f'<rect width="{WIDTH}" height="{y}" fill="#ffffff"/>\n{body}</svg>\n')


def without_result(groups):
    """The rows that no line of bench/RESULTS.md has."""
    lines = RESULTS.read_text().splitlines()
    for row in (row for group in groups for row in group["rows"]):
        parts = [number(value) for value in [row["ours"]] + [rate for _, rate in row["peers"]]]
        parts += [row["date"], f"`{row['command']}`"]
        if not any(all(part in line for part in parts) for line in lines):
            yield f"{DATA}: {row['work']}: no line of {RESULTS} has all of {', '.join(parts)}"


def main():
    groups = json.loads(DATA.read_text())["groups"]
    readme = README.read_text()
    if readme.count(BEGIN) != 1 or readme.count(END) != 1:
        sys.exit(f"{README}: expected one line {BEGIN.strip()} and one {END.strip()}")
    before, rest = readme.split(BEGIN)
    wanted = {README: before + BEGIN + table(groups) + END + rest.split(END)[1], CHART: chart(groups)}
    stale = [path for path, content in wanted.items()
             if not path.exists() or path.read_text() != content]
    if sys.argv[1:] == ["--check"]:
        for path in stale:
            print(f"{path}: not what {DATA} says: run scripts/figures.py")
        for finding in (unfounded := list(without_result(groups))):
            print(finding)
        return bool(stale or unfounded)
    if sys.argv[1:]:
        sys.exit(__doc__)
    for path in stale:
        path.write_text(wanted[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
