#!/usr/bin/env python3
"""Compares HellaSwag's scores with those computed from transformers' logits; run by hand.

    python3 tests/compare_candidates.py MODELCENTER TOKENIZER [--rows 300] [--seed 1]

MODELCENTER is the command, TOKENIZER a folder with GPT-2's vocab.json and merges.txt. A small GPT-2 with random
weights is made by transformers; rows are made of random words, with endings of different lengths. Each ending's
log-probability behind its context is summed up from the logits, and divided by its
tokens. The share of rows whose right ending is the most probable has to be the same, both ways. The last line is
the verdict, and the exit code is 0 where both are equal.
"""
import argparse
import json
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, GPT2TokenizerFast

WORDS = "the a of and to in is was he for it with as his on be at by had not are but from or have an they".split()


def random_words(rng, low, high):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(low, high)))


def log_probability(model, tokenizer, context, ending):
    """The sum over the ending's tokens, and how many these are."""
    prompt = tokenizer(context).input_ids
    target = tokenizer(" " + ending).input_ids
    with torch.no_grad():
        logits = model(torch.tensor([prompt + target])).logits[0].log_softmax(-1)
    return sum(logits[len(prompt) - 1 + i, t].item() for i, t in enumerate(target)), len(target)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument("tokenizer")
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    rng = random.Random(a.seed)
    torch.manual_seed(a.seed)
    folder = pathlib.Path(tempfile.mkdtemp())
    model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=128, initializer_range=0.3)).eval()
    model.save_pretrained(folder / "model")
    for name in "vocab.json", "merges.txt":
        shutil.copy(pathlib.Path(a.tokenizer) / name, folder / "model" / name)
    tokenizer = GPT2TokenizerFast.from_pretrained(folder / "model")
    right = norm = 0
    with open(folder / "val.jsonl", "w", encoding="utf-8") as out:
        for _ in range(a.rows):
            row = {"ctx": random_words(rng, 2, 20), "endings": [random_words(rng, 1, 12) for _ in range(4)],
                   "label": rng.randrange(4)}
            out.write(json.dumps(row) + "\n")
            scores = [log_probability(model, tokenizer, row["ctx"], e) for e in row["endings"]]
            right += max(range(4), key=lambda k: scores[k][0]) == row["label"]
            norm += max(range(4), key=lambda k: scores[k][0] / scores[k][1]) == row["label"]
    line = subprocess.run([a.command, "eval", "gpt2", "--task", "HellaSwag", "--model", folder / "model", "--data",
                           folder], stdout=subprocess.PIPE, check=True).stdout.decode().splitlines()[-1]
    shutil.rmtree(folder)
    found = {key: float(re.search(rf" {key}=(\S+)", line)[1]) for key in ("accuracy", "accuracy_norm")}
    expected = {"accuracy": right / a.rows, "accuracy_norm": norm / a.rows}
    print(f"found {found}, expected {expected}")
    same = all(abs(found[key] - expected[key]) < 6e-5 for key in expected)
    print("ok" if same else "FAILED")
    return not same


if __name__ == "__main__":
    sys.exit(main())
