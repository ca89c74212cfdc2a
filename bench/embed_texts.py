#!/usr/bin/env python3
"""Texts of a file to vectors in a file: `modelcenter embed` beside sentence-transformers, in turns.

    python bench/embed_texts.py VOCABULARY TEXTS --ours build/release/bin/modelcenter
    python bench/embed_texts.py VOCABULARY TEXTS --ours PROGRAM --models e5 --batches 256,1024
    python bench/embed_texts.py VOCABULARY TEXTS --ours PROGRAM --device cpu --count 200 --layers 2

TEXTS has a text a line (bench/short_texts.py), VOCABULARY is the vocab.txt of bert-base-uncased.
Models have the shapes of all-mpnet-base-v2 (mpnet) and E5-base (e5) and random weights; they are
saved with their tokenizers as sentence-transformers does, and both sides load them from there: the
mean of the tokens, normalised, in bf16 (on a CPU in f32). TMPDIR=/dev/shm keeps disks out of it.

The peer's time is from opening the file of texts to the finished .npy, the model being loaded and
having encoded 1,000 texts; batches of the sizes named, of which the best counts. The first --few
texts alone are also encoded in batches of 32, the default of sentence-transformers. Without that
package its loop is done here: sort by characters, tokenize, pad, run, pool, copy each batch to the
host. Ours is the `seconds` of the result line, which count the same in a process that has just
begun (shapes are run for the first time, steps are recorded), and beside it the whole process.
`first` is a run that finds no measured choices of kernels in its cache (MC_CACHE_DIR, a folder of
its own), the others find them. In the end vectors are compared: the cosine of each pair.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import tempfile
import time

import numpy
import torch
import transformers

try:
    import sentence_transformers
except ImportError as error:
    sentence_transformers, missing = None, error

BERT = dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072)
MODULES = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]


def mpnet(words, layers):
    """Its vocabulary is BERT's between its own special tokens: 30,527."""
    tokens = ["<s>", "<pad>", "</s>", "<unk>"] + words + ["<mask>"]
    config = transformers.MPNetConfig(vocab_size=len(tokens), max_position_embeddings=514,
                                      layer_norm_eps=1e-5, **dict(BERT, num_hidden_layers=layers))
    return transformers.MPNetModel(config), transformers.MPNetTokenizer, tokens, 384


def e5(words, layers):
    config = transformers.BertConfig(vocab_size=len(words), **dict(BERT, num_hidden_layers=layers))
    return transformers.BertModel(config), transformers.BertTokenizer, words, 512


def make_folder(args, name, folder):
    torch.manual_seed(0)
    words = pathlib.Path(args.vocabulary).read_text(encoding="utf-8").splitlines()
    model, tokenizer, tokens, longest = MODELS[name](words, args.layers)
    model.save_pretrained(folder)
    tokenizer(vocab={token: i for i, token in enumerate(tokens)}, model_max_length=longest,
              do_lower_case=True).save_pretrained(folder)
    (folder / "1_Pooling").mkdir()
    (folder / "2_Normalize").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps(
        {"word_embedding_dimension": 768, "pooling_mode_mean_tokens": True}))
    (folder / "sentence_bert_config.json").write_text(json.dumps(
        {"max_seq_length": longest, "do_lower_case": False}))
    (folder / "modules.json").write_text(json.dumps(
        [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
         for i, (path, name) in enumerate(MODULES)]))


MODELS = {"mpnet": mpnet, "e5": e5}


class Loop:
    """What SentenceTransformer.encode does, version 6.2."""

    def __init__(self, folder, device, dtype):
        self.model = transformers.AutoModel.from_pretrained(folder, dtype=dtype).to(device).eval()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.device = device

    def run(self, texts):
        features = self.tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
        features = features.to(self.device)
        hidden = self.model(**features).last_hidden_state
        mask = features["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(mean, p=2, dim=1)

    @torch.inference_mode()
    def encode(self, texts, batch_size):
        order = numpy.argsort([-len(text) for text in texts])
        rows = []
        for i in range(0, len(texts), batch_size):
            rows.extend(self.run([texts[k] for k in order[i:i + batch_size]]).cpu())
        return torch.stack([rows[i] for i in numpy.argsort(order)]).float().numpy()


def open_peer(args, model):
    dtype = torch.float32 if args.device == "cpu" else torch.bfloat16
    if not sentence_transformers or args.loop:
        print("peer: the loop of sentence-transformers" + ("" if args.loop else f" ({missing})"))
        return Loop(model, args.device, dtype)
    print(f"peer: sentence-transformers {sentence_transformers.__version__}")
    return sentence_transformers.SentenceTransformer(str(model), device=args.device,
                                                     model_kwargs={"dtype": dtype})


def read(args, count):
    with open(args.texts, encoding="utf-8") as file:
        return file.read().split("\n")[:count]


def run_peer(args, peer, batch, count, to):
    start = time.perf_counter()
    vectors = peer.encode(read(args, count), batch_size=batch)
    numpy.save(to, vectors)
    seconds = time.perf_counter() - start
    print(f"peer batch={batch} texts={count} seconds={seconds:.3f} "
          f"texts_per_s={count / seconds:.0f}", flush=True)
    return seconds


def run_ours(args, folder, what):
    command = [args.ours, "embed", "--model", folder / "model", "--data", "-", "--output",
               folder / "ours.npy", "--overwrite", "--device", args.device]
    environment = dict(os.environ, MC_CACHE_DIR=str(folder / "cache"))
    start = time.perf_counter()
    with open(folder / "texts.txt", "rb") as file:
        text = subprocess.run(command, stdin=file, env=environment, check=True, capture_output=True,
                              text=True).stdout
    whole = time.perf_counter() - start
    seconds = float(re.search(r"seconds=([\d.]+)", text)[1])
    print(f"ours {what} seconds={seconds:.3f} whole_process={whole:.3f} "
          f"texts_per_s={args.count / seconds:.0f}", flush=True)
    return seconds


def compare(ours, peer):
    a, b = numpy.load(ours), numpy.load(peer)
    if a.shape != b.shape:
        raise SystemExit(f"vectors of {a.shape} and {b.shape}")
    cosine = (a * b).sum(1) / numpy.linalg.norm(a, axis=1) / numpy.linalg.norm(b, axis=1)
    print(f"cosine least={cosine.min():.6f} mean={cosine.mean():.6f}")


def measure(args, name, folder):
    make_folder(args, name, folder / "model")
    (folder / "texts.txt").write_text("\n".join(read(args, args.count)) + "\n", encoding="utf-8")
    run_ours(args, folder, "first")
    peer = open_peer(args, folder / "model")
    ours, theirs = [], []
    for i in range(args.rounds):
        ours.append(run_ours(args, folder, f"round={i}"))
        for batch in args.batches:
            if i == 0:
                peer.encode(read(args, 1000), batch_size=batch)
            theirs.append(run_peer(args, peer, batch, args.count, folder / "peer.npy"))
    few = min(args.few, args.count)
    if few:
        run_peer(args, peer, 32, few, folder / "few.npy")
    compare(folder / "ours.npy", folder / "peer.npy")
    print(f"{name}: {min(theirs) / min(ours):.2f} times the peer's best", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vocabulary")
    parser.add_argument("texts")
    parser.add_argument("--ours", required=True)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--batches", type=lambda s: [int(n) for n in s.split(",")],
                        default=[256, 1024])
    parser.add_argument("--few", type=int, default=16_384)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--loop", action="store_true", help="not the package sentence-transformers")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    for name in args.models:
        with tempfile.TemporaryDirectory() as folder:
            measure(args, name, pathlib.Path(folder))


if __name__ == "__main__":
    main()
