#!/usr/bin/env python3
"""The tokenizers beside Hugging Face's and SentencePiece's, in turns, one thread each, one text at a time.

    python3 bench/tokenizer.py [build/release/bench/bench_tokenizer] [--rounds 7]

Needs the PyPI packages `tokenizers` and `sentencepiece` and the reference data ($MC_SHARED, else
../shared). A text is a line of the file, as it comes, or 50 lines at once. T5 is taken from its .model
beside SentencePiece, and from its tokenizer.json alone beside tokenizers. Both sides give the same ids, which is checked
first. Prints the median MB/s of each and their ratio; the last line is the verdict.

With --cpm it is CPM-1's tokenizer beside Python's jieba 0.42.1 (Debian's python3-jieba), which cuts texts
into words but gives no ids; that their words are the same tests/compare_jieba.py says.
"""
import argparse
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
ROOT = pathlib.Path(__file__).resolve().parent.parent
MODELS = {"bert-base-uncased": True, "bert-base-cased": False, "t5": None, "t5-json": None}
FILES = ["wiki.test.raw", "tinyshakespeare.txt"]


def cut(path, lines):
    """The texts that the C program makes of the file."""
    rows = path.read_bytes().decode("utf-8").split("\n")
    if rows[-1] == "":
        rows.pop()
    texts = ["\n".join(rows[i:i + lines]) for i in range(0, len(rows), lines)]
    return [t for t in texts if t]


def theirs(encode, texts):
    start = time.perf_counter()
    total = 0
    for text in texts:
        total += encode(text)
    return time.perf_counter() - start, total


def ours(program, folder, path, lines):
    """MB/s and ids of the third pass: warm, as the peer is."""
    command = [program, folder, path, "3", str(lines)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    speed, count = out.split("\n")[2].split()
    return float(speed), int(count)


def compare_cpm(a):
    try:
        import jieba
    except ImportError:
        sys.exit("needs jieba 0.42.1: Debian's python3-jieba, or pip install jieba")
    jieba.setLogLevel("ERROR")
    jieba.initialize()
    shared = pathlib.Path(os.environ.get("MC_SHARED") or ROOT.parent / "shared")
    worst, slowest = float("inf"), float("inf")
    print(f"jieba {jieba.__version__}; MB/s, median of {a.rounds} rounds in turns")
    for name in ["zh-sample.txt", "wiki.test.raw"]:
        path = shared / "data/text" / name
        texts = cut(path, 1)
        size = sum(len(t.encode()) for t in texts) / 1e6
        mine, other = [], []
        for _ in range(a.rounds):
            mine.append(ours(a.program, shared / "data/vocab/cpm1", path, 1)[0])
            start = time.perf_counter()
            for text in texts:
                jieba.lcut(text)
            other.append(size / (time.perf_counter() - start))
        mine, other = statistics.median(mine), statistics.median(other)
        worst, slowest = min(worst, mine / other), min(slowest, mine)
        print(f"cpm1 {name:20s}: {mine:7.1f} against {other:5.2f}, {mine / other:6.1f} times")
    print(f"result slowest_mb_s={slowest:.1f} least_ratio={worst:.1f}")

def make_peer(model, folder):
    """What counts the ids of a text."""
    import sentencepiece
    import tokenizers
    if model == "t5":
        spm = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
        return lambda text: len(spm.encode(text)) + 1  # </s>
    peer = (tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")) if model == "t5-json" else
            tokenizers.BertWordPieceTokenizer(str(folder / "vocab.txt"), lowercase=MODELS[model]))
    return lambda text: len(peer.encode(text).ids)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", nargs="?", default=ROOT / "build/release/bench/bench_tokenizer")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cpm", action="store_true")
    parser.add_argument("--models", nargs="*", choices=list(MODELS))
    a = parser.parse_args()
    if a.cpm:
        return compare_cpm(a)
    try:
        import sentencepiece
        import tokenizers
    except ImportError:
        sys.exit("needs the PyPI packages: pip install tokenizers sentencepiece")
    shared = pathlib.Path(os.environ.get("MC_SHARED") or ROOT.parent / "shared")
    worst, slowest = float("inf"), float("inf")
    print(f"tokenizers {tokenizers.__version__}, sentencepiece {sentencepiece.__version__}; "
          f"MB/s, median of {a.rounds} rounds in turns")
    alone = tempfile.TemporaryDirectory()
    shutil.copy(shared / "data/vocab/t5/tokenizer.json", alone.name)
    for model in a.models or MODELS:
        folder = pathlib.Path(alone.name) if model == "t5-json" else shared / "data/vocab" / model
        peer = make_peer(model, folder)
        for name in FILES:
            for lines in (1, 50):
                path = shared / "data/text" / name
                texts = cut(path, lines)
                size = sum(len(t.encode()) for t in texts) / 1e6
                mine, peers = [], []
                for _ in range(a.rounds):
                    speed, count = ours(a.program, folder, path, lines)
                    seconds, total = theirs(peer, texts)
                    if count != total:
                        sys.exit(f"{model} {name}: {count} ids, the other has {total}")
                    mine.append(speed)
                    peers.append(size / seconds)
                mine, other = statistics.median(mine), statistics.median(peers)
                worst, slowest = min(worst, mine / other), min(slowest, mine)
                print(f"{model:18s} {name:20s} {lines:2d} lines a text: "
                      f"{mine:7.1f} against {other:5.2f}, {mine / other:6.1f} times")
    print(f"result slowest_mb_s={slowest:.1f} least_ratio={worst:.1f}")


sys.exit(main())
