#!/usr/bin/env python3
"""Compares `tokenizer train` with Hugging Face's trainer and transformers. Run by hand.

    tests/check_byte_bpe.py MODELCENTER TEXT...        needs: pip install transformers sentencepiece

For each text, several sizes and least counts: `--type byte-bpe` writes the vocabulary and merges that
tokenizers' BpeTrainer makes of the same file, and transformers' AutoTokenizer gives the same ids as
`modelcenter tokenize` does, for every type, on all lines of the text. Each text also comes as one of
few different characters, where different merges make the same token.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer


def run(*command, text=None):
    return subprocess.run(command, check=True, capture_output=True, text=True, input=text).stdout


def reference(path, size, least, specials):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.train([str(path)], trainers.BpeTrainer(vocab_size=size, min_frequency=least, special_tokens=specials,
                                              initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    model = json.loads(tok.to_str())["model"]
    return model["vocab"], [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in model["merges"]]


def check_ids(program, folder, path):
    lines = [line for line in path.read_text().split("\n") if line]
    lines = lines[:: max(1, len(lines) // 2000)]
    shown = run(program, "tokenize", "--model", folder, "--file", "-", text="\n".join(lines) + "\n").splitlines()
    ours = [[int(i) for i in line.split()[1:]] for line in shown if line.startswith("ids:")]
    theirs = AutoTokenizer.from_pretrained(folder)(lines)["input_ids"]
    assert len(ours) == len(theirs), (len(ours), len(theirs))
    return sum(a == b for a, b in zip(ours, theirs)), len(lines)


def main():
    program, texts = sys.argv[1], [pathlib.Path(t).resolve() for t in sys.argv[2:]]
    program = str(pathlib.Path(program).resolve())
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for n, text in enumerate(list(texts)):
            few = pathlib.Path(folder, f"few{n}.txt")
            few.write_text("".join("abc"[ord(c) % 3] if c.isalpha() else c for c in text.read_text()[:200000]))
            texts.append(few)
        for text in texts:
            for size, least, specials in ((300, 2, ["<|endoftext|>"]), (2000, 2, ["<|endoftext|>"]),
                                          (5000, 7, ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "ab"])):
                out = f"{folder}/{text.stem}-{size}"
                run(program, "tokenizer", "train", "--input", str(text), "--type", "byte-bpe", "--vocab-size", str(size),
                    "--min-frequency", str(least), "--output", out, *(x for s in specials for x in ("--special-token", s)))
                vocab, merges = reference(text, size, least, specials)
                mine = json.loads(pathlib.Path(out, "vocab.json").read_text())
                lines = [tuple(line.split(" ")) for line in pathlib.Path(out, "merges.txt").read_text().split("\n")[1:-1]]
                alike, all_ = check_ids(program, out, text)
                good = vocab == mine and merges == lines and alike == all_
                failed += not good
                print(f"{'ok' if good else 'DIFFERENT'}: {text.name} {size} {least}: {len(mine)} of {len(vocab)} tokens, "
                      f"{len(lines)} of {len(merges)} merges, ids of {alike} of {all_} lines")
            for kind in ("unigram", "bpe", "bpe --byte-fallback", "bpe --lowercase"):
                out = f"{folder}/{text.stem}-{kind.replace(' ', '')}"
                run(program, "tokenizer", "train", "--input", str(text), "--type", *kind.split(), "--vocab-size", "3000"
                    if not text.stem.startswith("few") else "400", "--output", out)
                alike, all_ = check_ids(program, out, text)
                print(f"{kind}: {text.name}: ids of {alike} of {all_} lines")
                # Unigram's sums are f32 here and in SentencePiece, f64 in tokenizers: pieces of equal scores may differ
                failed += alike < (0.99 if kind == "unigram" else 1) * all_
    sys.exit(failed > 0)


main()
