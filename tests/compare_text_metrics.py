#!/usr/bin/env python3
"""Compares the scores of texts with Python's on many random texts; run by hand.

    python3 tests/compare_text_metrics.py [--texts 100000] [--seed 1]
                                          [--program build/release/tests/check_text_metrics]

ROUGE-L is compared with the package rouge_score (PyPI, 0.1.2), SQuAD's exact match, F1 and normal form with
the rules of its official script, written down again below. Scores have to be equal to 1e-12, normal forms to
the byte. Prints the first that differ; the last line is the verdict, and the exit code is 0 where all are
equal.
"""
import argparse
import collections
import pathlib
import random
import re
import string
import subprocess
import sys
import unicodedata

from rouge_score import rouge_scorer

ROOT = pathlib.Path(__file__).resolve().parent.parent
BATCH = 5000
WORDS = ["a", "an", "the", "The", "A", "AN", "cat", "sat", "Mat", "on", "it's", "U.S.", "well-known", "10,000",
         "3.5%", "the-end", "a_b", "_the_", "Ünïcode", "ÉCOLE", "ΟΔΟΣ", "Σ", "ΑΣ", "ΣΑ", "Α\u0301Σ", "İstanbul",
         "\u212aelvin", "straße", "东京", "是", "the\u0301", "a\u0301", "x²", "½", "Ⅻ", "\u0e01\u0e33", "mc²", "🙂"]
SPACES = [" ", " ", " ", " ", "  ", "\t", "\n", "\u00a0", "\u3000", "\x1c", "\x1f", "\x85", "\u200b", ""]


def normal_form(text):
    """SQuAD v1.1: lower case, no punctuation, no articles, single spaces."""
    text = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def answer_scores(given, reference):
    a, b = normal_form(given), normal_form(reference)
    common = sum((collections.Counter(a.split()) & collections.Counter(b.split())).values())
    if not common:
        return float(a == b), 0.0
    precision, recall = common / len(a.split()), common / len(b.split())
    return float(a == b), 2 * precision * recall / (precision + recall)


def random_char(rng):
    """Not what decides about a capital sigma beside it and has no case: rare letters of Latin's kind."""
    while True:
        code = rng.choice([rng.randrange(1, 0x250), rng.randrange(0x400, 0x3000), rng.randrange(0x4E00, 0x9FD6)])
        kind = unicodedata.category(chr(code))
        if kind not in ("Cn", "Lm", "Mn") and (kind != "Lo" or 0x590 <= code < 0x2100 or code >= 0x2190):
            return chr(code)


def random_text(rng):
    parts = []
    for _ in range(rng.choice([0, 1, 2, 3, 5, 8, 20])):
        kind = rng.random()
        if kind < 0.85:
            parts.append(rng.choice(WORDS))
        elif kind < 0.95:
            parts.append(rng.choice(string.punctuation))
        else:
            parts.append(random_char(rng))
        parts.append(rng.choice(SPACES))
    return "".join(parts)


def changed(rng, text):
    """A text like it, so that scores lie between 0 and 1."""
    words = text.split(" ")
    for _ in range(rng.randrange(3)):
        at = rng.randrange(len(words))
        words[at:at + 1] = rng.choice([[], [words[at], rng.choice(WORDS)], [words[at].upper()], [words[at].lower()]])
        words = words or [""]
    return " ".join(words)


def run(program, pairs):
    data = "".join(f"{a}\0{b}\0" for a, b in pairs).encode()
    lines = subprocess.run([program], input=data, stdout=subprocess.PIPE, check=True).stdout.decode().split("\n")
    return [([float(x) for x in lines[2 * i].split()], lines[2 * i + 1]) for i in range(len(pairs))]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--texts", type=int, default=100000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--program", default=str(ROOT / "build/release/tests/check_text_metrics"))
    a = parser.parse_args()
    rng = random.Random(a.seed)
    scorer = rouge_scorer.RougeScorer(["rougeL"], use_stemmer=False)
    wrong = between = 0
    for begin in range(0, a.texts, BATCH):
        pairs = []
        for _ in range(min(BATCH, a.texts - begin)):
            text = random_text(rng)
            pairs.append((text, changed(rng, text) if rng.random() < 0.7 else random_text(rng)))
        for (given, reference), (found, normal) in zip(pairs, run(a.program, pairs)):
            rouge = scorer.score(reference, given)["rougeL"]
            expected = [*answer_scores(given, reference), *rouge]
            between += 0 < expected[1] < 1
            if normal != normal_form(given) or any(abs(x - y) > 1e-12 for x, y in zip(found, expected)):
                wrong += 1
                if wrong <= 5:
                    print(f"{given!r}\n{reference!r}\n  found    {found} {normal!r}\n"
                          f"  expected {expected} {normal_form(given)!r}")
    print(f"{'FAILED' if wrong else 'ok'}: {a.texts} pairs of texts, {wrong} scored otherwise; "
          f"{between} have an F1 between 0 and 1")
    return wrong != 0


if __name__ == "__main__":
    sys.exit(main())
