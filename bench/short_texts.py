#!/usr/bin/env python3
"""Writes short texts, one a line: spans of words of the files named, the same in every run.

    bench/short_texts.py 100000 short.txt ../shared/data/text/wiki.test.raw \\
                         ../shared/data/boolq/train.jsonl

A text has 5 to 30 words, as questions and short passages have: the number is drawn from a
triangular distribution with its peak at 10, so that the mean is 15. Of JSON Lines the "question"
and "passage" are read, of other files all lines."""
import json
import pathlib
import random
import sys

FEWEST, PEAK, MOST = 5, 10, 30


def words_of(path):
    for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
        row = json.loads(line) if path.endswith(".jsonl") else {"text": line}
        for key in ("text", "question", "passage"):
            yield from str(row.get(key, "")).split()


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    words = [word for path in sys.argv[3:] for word in words_of(path)]
    draw = random.Random(7)
    with open(sys.argv[2], "w", encoding="utf-8") as out:
        for _ in range(int(sys.argv[1])):
            count = round(draw.triangular(FEWEST, MOST, PEAK))
            first = draw.randrange(len(words) - count)
            out.write(" ".join(words[first:first + count]) + "\n")


if __name__ == "__main__":
    main()
