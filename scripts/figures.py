#!/usr/bin/env python3
"""Draws bench/figures.json as the chart of README.md, docs/figures.svg.

    scripts/figures.py            writes the chart
    scripts/figures.py --check    exit code 1 if the chart is stale, README.md does not show it, or no
                                  line of bench/RESULTS.md has all of a row: rates, date and command

A row has our figure and one or several peers', measured on the same work; more is better. Bars are
relative to our figure.
"""

import html
import json
import pathlib
import sys

DATA = pathlib.Path("bench/figures.json")
README = pathlib.Path("README.md")
CHART = pathlib.Path("docs/figures.svg")
RESULTS = pathlib.Path("bench/RESULTS.md")

OURS, PEER, TEXT, MUTED = "#1f6feb", "#b8c0cc", "#24292f", "#57606a"
WIDTH, LEFT, FULL, BAR, GAP, TITLE = 860, 330, 330, 15, 10, 30


def number(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.4g}"


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
    drawn = chart(groups)
    if sys.argv[1:] == ["--check"]:
        findings = list(without_result(groups))
        if not CHART.exists() or CHART.read_text() != drawn:
            findings.append(f"{CHART}: not what {DATA} says: run scripts/figures.py")
        if f"]({CHART})" not in README.read_text():
            findings.append(f"{README}: does not show {CHART}")
        for finding in findings:
            print(finding)
        return bool(findings)
    if sys.argv[1:]:
        sys.exit(__doc__)
    CHART.write_text(drawn)
    return 0


if __name__ == "__main__":
    sys.exit(main())
