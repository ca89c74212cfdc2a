#!/usr/bin/env python3
"""Compares Chinese word segmentation with Python's jieba 0.42.1 on many texts; run by hand.

    python3 tests/compare_jieba.py [--texts 1000000] [--seed 1] [--program build/release/tests/check_jieba]
                                   [FILE ...]

Texts are the lines of the files, and then, up to the number asked for, random ones: words of jieba's
dictionary and parts of such words, Chinese characters that are rare, English words and numbers,
punctuation, white space and characters of any other script, in long and short rows. Words have to be
the same, byte for byte. Prints the first texts that are cut otherwise; the last line is the verdict, and
the exit code is 0 where all are equal.

Python's jieba comes from Debian's python3-jieba or from PyPI (jieba==0.42.1).
"""
import argparse
import logging
import pathlib
import random
import subprocess
import sys

import jieba

ROOT = pathlib.Path(__file__).resolve().parent.parent
BATCH = 20000
ASCII = "+#&._%-"
PUNCTUATION = "，。！？、；：“”‘’（）《》·—…,!?;:'\"()[]{}<>/\\|@$^*=~` \t\r\n\u3000\u00a0\x0b\x1c\x85\u2028"


def random_char(rng):
    kind = rng.random()
    if kind < 0.5:
        return chr(rng.randrange(0x4E00, 0x9FD6))
    if kind < 0.6:
        return chr(rng.choice([0x4DFF, 0x4E00, 0x9FD5, 0x9FD6, 0x9FFF, 0x3400, 0x20000, 0x2236, 0xFFF2, 0xFFF3]))
    if kind < 0.8:
        return chr(rng.randrange(0x80, 0xD800))
    if kind < 0.9:
        return chr(rng.randrange(0xE000, 0x10FFFF))
    return chr(rng.randrange(1, 0x80))


def random_number(rng):
    return rng.choice(["%d", "%d.%d", "%d%%", "%d.%d%%", "%d.%d.%d", "-%d", "%d-%d", "v%d.%d"]).replace(
        "%d", "\0").replace("%%", "%").replace("\0", str(rng.randrange(10 ** rng.randrange(1, 7))))


def random_text(rng, words, english):
    parts = []
    length = rng.choice([1, 2, 3, 5, 8, 13, 30])
    mood = rng.random()  # some texts are of words alone, some of all there is
    while len(parts) < length:
        kind = rng.random() * (0.4 + 0.6 * mood)
        if kind < 0.3:
            parts.append(rng.choice(words))
        elif kind < 0.4:
            word = rng.choice(words)
            at = rng.randrange(len(word))
            parts.append(word[at:rng.randrange(at, len(word)) + 1])
        elif kind < 0.5:
            parts.append(chr(int(rng.triangular(0x4E00, 0x9FD6, 0x5000))))
        elif kind < 0.6:
            parts.append(rng.choice(english))
        elif kind < 0.7:
            parts.append(random_number(rng))
        elif kind < 0.75:
            parts.append("".join(rng.choice(ASCII) for _ in range(rng.randrange(1, 4))))
        elif kind < 0.9:
            parts.append(rng.choice(PUNCTUATION))
        else:
            parts.append(random_char(rng))
    return "".join(parts)


def texts_of(a):
    count = 0
    english = ["a", "I", "AT", "the", "x1"]
    for name in a.files:
        for line in pathlib.Path(name).read_text("utf-8").split("\n"):
            line = line.replace("\0", "")
            if line and count < a.texts:
                count += 1
                yield line
            english.extend(line.split()[:1])
    rng = random.Random(a.seed)
    jieba.initialize()
    words = sorted(jieba.dt.FREQ)
    while count < a.texts:
        count += 1
        yield random_text(rng, words, english[-20000:]).replace("\0", "")


def batches(texts):
    batch = []
    for text in texts:
        batch.append(text)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def cut_here(program, batch):
    out = subprocess.run([program], input="\0".join(batch).encode() + b"\0", check=True, capture_output=True)
    return [[int(size) for size in line.split()] for line in out.stdout.decode().split("\n")[:-1]]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="*")
    parser.add_argument("--texts", type=int, default=1000000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--program", default=ROOT / "build/release/tests/check_jieba")
    a = parser.parse_args()
    jieba.setLogLevel(logging.WARNING)
    if jieba.__version__ != "0.42.1":
        sys.exit(f"needs jieba 0.42.1, found {jieba.__version__}")
    total = words = bad = 0
    for batch in batches(texts_of(a)):
        ours = cut_here(a.program, batch)
        if len(ours) != len(batch):
            sys.exit(f"{len(batch)} texts, but {len(ours)} answers")
        for text, sizes in zip(batch, ours):
            theirs = [len(word.encode()) for word in jieba.lcut(text)]
            total += 1
            words += len(theirs)
            if sizes != theirs:
                bad += 1
                if bad <= 10:
                    print(f"{text!r}: expected {theirs}, got {sizes}")
    print(f"result texts={total} words={words} unequal={bad}")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
