#!/usr/bin/env python3
"""ModernBERT on sequences of many lengths: bench/encoder and bench/zoo_step with packed sequences,
beside transformers compiled, with sequences that are sorted by length and padded.

    python bench/modernbert.py --ours build/release/bench
    python bench/modernbert.py --ours build/release/bench --work train --rounds 3
    python bench/modernbert.py --ours build/ci/bench --work forward --device cpu --tokens 1024 \\
                               --layers 3

Lengths are uniform in --least .. --longest. A batch has --tokens tokens: ours are packed, the
peer's padded to the longest of the batch, rounded up to 8, of --sequences sequences in the order of
their lengths. Tokens a second count no padding. Forward: bf16 weights, the last hidden states.
Training: masked language model with a label at each token, bf16 (the peer's by autocast over f32
weights), AdamW, gradients clipped to 1. The peer's attention is PyTorch's (sdpa) and also
FlashAttention 2 if its wheel is installed. --compile: `layers` compiles each layer by itself, in a
fraction of the time that `whole` takes; `none`. Sides alternate, --rounds of each; the best of each
counts.
"""
import argparse
import importlib.util
import json
import pathlib
import random
import re
import subprocess
import tempfile
import time

import torch
import transformers


PROGRAMS = {"forward": "encoder", "train": "zoo_step"}


def config_of(args, attention):
    """Of answerdotai/ModernBERT-base, whose values are the defaults."""
    config = transformers.ModernBertConfig(num_hidden_layers=args.layers)
    config._attn_implementation = attention
    return config


def draw_batches(args):
    """Batches of (ids, mask), longest sequences first; and the tokens that are none of padding."""
    draw = random.Random(1)
    lengths = sorted((draw.randint(args.least, args.longest) for _ in range(args.sequences)),
                     reverse=True)
    batches = []
    while lengths:
        width = -(-lengths[0] // 8) * 8
        count = max(1, args.tokens // width)
        part, lengths = lengths[:count], lengths[count:]
        if len(part) == count or not batches:
            batches.append((width, part))
    tensors = []
    for width, part in batches:
        ids = torch.randint(5, 50000, (len(part), width), device=args.device)
        ends = torch.tensor(part, device=args.device)[:, None]
        mask = torch.arange(width, device=args.device)[None, :] < ends
        tensors.append((ids, mask.long()))
    return tensors, sum(sum(part) for _, part in batches)


class Peer:
    def __init__(self, args, work, attention):
        self.args, self.work, self.attention = args, work, attention
        torch.manual_seed(0)
        config, train = config_of(args, attention), work == "train"
        kind = transformers.ModernBertForMaskedLM if train else transformers.ModernBertModel
        self.model = kind(config).to(args.device).train(train)
        if not train:
            self.model.to(torch.bfloat16)
        body = self.model.model if train else self.model
        if args.compile == "layers":
            for layer in body.layers:
                layer.compile(dynamic=True)
        whole = args.compile == "whole"
        self.run = torch.compile(self.model, dynamic=True) if whole else self.model
        if train:
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, weight_decay=0.01,
                                               fused=args.device != "cpu")
        self.batches, self.tokens = draw_batches(args)

    def forward(self, ids, mask):
        with torch.inference_mode():
            self.run(input_ids=ids, attention_mask=mask)

    def train(self, ids, mask):
        self.optimizer.zero_grad(set_to_none=True)
        labels = ids.masked_fill(mask == 0, -100)
        with torch.autocast(self.args.device, torch.bfloat16):
            loss = self.run(input_ids=ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()

    def wait(self):
        if self.args.device != "cpu":
            torch.cuda.synchronize()

    def measure(self, turns):
        """Tokens a second, all batches `turns` times."""
        step = getattr(self, self.work)
        self.wait()
        start = time.perf_counter()
        for _ in range(turns):
            for ids, mask in self.batches:
                step(ids, mask)
        self.wait()
        rate = turns * self.tokens / (time.perf_counter() - start)
        padded = sum(ids.numel() for ids, _ in self.batches)
        memory = torch.cuda.max_memory_allocated() if self.args.device != "cpu" else 0
        print(f"peer {self.work} {self.attention} compile={self.args.compile} "
              f"batches={len(self.batches)} padding={1 - self.tokens / padded:.3f} "
              f"tokens_per_s={rate:.0f} peak_gib={memory / 2**30:.2f}", flush=True)
        return rate


def run_ours(args, work, folder):
    """Tokens a second of bench/encoder or bench/zoo_step, whose line is printed too."""
    config = pathlib.Path(folder) / "config.json"
    config.write_text(json.dumps(config_of(args, "sdpa").to_dict()))
    command = [f"{args.ours}/{PROGRAMS[work]}", "modernbert", str(config),
               str(args.tokens // args.longest), str(args.longest), f"least={args.least}",
               f"device={args.device}", "dtype=bf16", f"steps={args.steps}"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    print("ours", text.splitlines()[-1], flush=True)
    return float(max(re.search(r"tokens_per_s=(\d+)|(\d+) tokens/s", text).groups(default="")))


def measure(args, work, folder, attentions):
    peers, ours, theirs = [], [], []
    for i in range(args.rounds):
        ours.append(run_ours(args, work, folder))
        for k, attention in enumerate(attentions):
            if i == 0:
                peers.append(Peer(args, work, attention))
                start = time.perf_counter()
                peers[k].measure(1)
                print(f"compiled in {time.perf_counter() - start:.0f} s")
            theirs.append(peers[k].measure(3))
    print(f"ModernBERT {work}: {max(ours) / max(theirs):.2f} times the peer's best", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", required=True, help="folder of encoder and zoo_step")
    parser.add_argument("--work", nargs="+", default=list(PROGRAMS), choices=list(PROGRAMS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--least", type=int, default=64)
    parser.add_argument("--longest", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--sequences", type=int, default=512)
    parser.add_argument("--layers", type=int, default=22)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--compile", default="layers", choices=["layers", "whole", "none"])
    args = parser.parse_args()
    flash = importlib.util.find_spec("flash_attn") is not None
    print("FlashAttention:", "installed" if flash else "its wheel is not installed")
    attentions = ["sdpa"] + ["flash_attention_2"] * flash
    with tempfile.TemporaryDirectory() as folder:
        for work in args.work:
            measure(args, work, folder, attentions)


if __name__ == "__main__":
    main()
