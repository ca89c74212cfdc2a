#!/usr/bin/env python3
"""Compares CPM-1's or CPM-2's tokenizer with ModelCenter's class on random texts; run by hand.

    python3 tests/compare_cpm.py MODELCENTER VOCAB_FOLDER [--texts 100000] [--seed 1]
                                 [--program build/release/tests/check_tokenizer]

MODELCENTER is the unpacked source of ModelCenter (PyPI: model-center), of which only the class is
loaded. Encodes texts as compare_jieba.py makes them, mixed with what is written like special tokens, and
decodes their ids and random ones; check_tokenizer then does the same and says how many are exact.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import types

import jieba

import compare_jieba

ROOT = compare_jieba.ROOT
WRITTEN = ["</_>", "</n>", "<s_0>", "<s>", "<eod>", "<unk>", "\u2582", "\u2583", "\ufff2", "\ufff3", "</", "_>", "\u2581"]


def load_class(source, name):
    """The class from its own file: its package wants PyTorch and a GPU."""
    utils = types.ModuleType("model_center.utils")
    utils.check_web_and_convert_path = lambda path, kind: path
    sys.modules["model_center"] = types.ModuleType("model_center")
    sys.modules["model_center.utils"] = utils
    space = {}
    path = pathlib.Path(source) / "model_center/tokenizer" / f"{name}_tokenizer.py"
    exec(compile(path.read_text(), str(path), "exec"), space)
    return space[name.upper() + "Tokenizer"]


def texts(count, seed):
    rng = random.Random(seed)
    jieba.initialize()
    words = sorted(jieba.dt.FREQ)
    english = "the quick brown fox jumps over Lazy DOGS don't stop Beijing 2021 GPT-3".split()
    for _ in range(count):
        text = compare_jieba.random_text(rng, words, english)
        while rng.random() < 0.4:
            at = rng.randrange(len(text) + 1)
            text = text[:at] + rng.choice(WRITTEN) + text[at:]
        if rng.random() < 0.01:
            text += "".join(rng.choice("abc+#中") for _ in range(rng.randrange(190, 230)))
        yield rng, text.replace("\0", "")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("modelcenter")
    parser.add_argument("vocabulary")
    parser.add_argument("--texts", type=int, default=100000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--program", default=ROOT / "build/release/tests/check_tokenizer")
    a = parser.parse_args()
    tokens = (pathlib.Path(a.vocabulary) / "vocab.txt").read_text("utf-8").split("\n")
    name = "cpm1" if "</_>" in tokens else "cpm2"
    theirs = load_class(a.modelcenter, name).from_pretrained(a.vocabulary)
    # what check_tokenizer leaves out of decoded texts, ModelCenter shows
    special = {i for i, t in enumerate(tokens) if t in ("<pad>", "<s>", "</s>", "<sep>", "<eod>", "<mask>") or
               (name == "cpm2" and t.startswith("<s_"))}
    plain = [i for i in range(theirs.vocab_size) if i not in special]
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as out:
        for rng, text in texts(a.texts, a.seed):
            ids = theirs.encode(text)
            out.write(json.dumps({"text": text, "ids": ids, "decoded": theirs.decode(ids)}) + "\n")
            ids = [rng.choice(plain) for _ in range(rng.randrange(20))]
            decoded = theirs.decode(ids)
            out.write(json.dumps({"text": decoded, "ids": theirs.encode(decoded),
                                  "decoded": theirs.decode(theirs.encode(decoded))}) + "\n")
        out.flush()
        return subprocess.run([a.program, a.vocabulary, out.name]).returncode


if __name__ == "__main__":
    sys.exit(main())
