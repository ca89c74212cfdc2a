#!/usr/bin/env python3
"""MiniLM on BoolQ, the best of five epochs for each of ten seeds: modelcenter.c beside Hugging Face.

    python3 bench/boolq_seeds.py build/release/bin/modelcenter MINILM BOOLQ [--seeds 10] [--first 0] [--lr 1e-4]
        [--only ours|peer] [--device cuda] [--epochs 5] [--rows N] [--jobs N]

MINILM is a folder with all-MiniLM-L6-v2 (`sentence-transformers/all-MiniLM-L6-v2`), BOOLQ one with
SuperGLUE's train.jsonl and val.jsonl. The peer needs torch and transformers (PyPI). Both: batch 32, AdamW
with weight decay 0.01, 100 steps of warm-up and then a constant rate, clipping at 1, dropout 0.1, inputs
`passage. question` of at most 512 tokens, bf16 (the peer's by autocast), shuffled by the seed. --rows takes
the first rows of both files only, for a trial. --jobs trains so many at once (1), which changes their times
and not what they reach: on one H200 ten seeds take about half a minute here and three to four minutes there,
one after another. Prints the best accuracy and the time of each seed, and the means.
"""
import argparse, json, multiprocessing, pathlib, statistics, subprocess, sys, tempfile, time

BATCH, WARMUP, DECAY, CLIP, DROPOUT, LENGTH = 32, 100, 0.01, 1.0, 0.1, 512


def ours(o, seed):
    """The accuracy of the best epoch."""
    said = subprocess.run(
        [o.program, "finetune", "bert", "--task", "BoolQ", "--pretrained", o.model, "--data", o.data, "--device",
         o.device, "--dtype", "bf16", "--epochs", str(o.epochs), "--batch-size", str(BATCH), "--lr", str(o.lr),
         "--scheduler", "constant", "--warmup", str(WARMUP), "--weight-decay", str(DECAY), "--clip", str(CLIP),
         "--dropout", str(DROPOUT), "--max-length", str(LENGTH), "--keep", "best", "--seed", str(seed)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if said.returncode:
        raise RuntimeError(said.stderr)
    result = dict(part.split("=", 1) for part in said.stdout.splitlines()[-1].split()[1:])
    return float(result["accuracy"])


def load_peer(o):
    """Tokenized rows of both splits, which all seeds share."""
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(o.model)
    splits = {}
    for split in "train", "val":
        rows = [json.loads(line) for line in open(pathlib.Path(o.data) / f"{split}.jsonl", encoding="utf-8")]
        texts = [f"{row['passage']}. {row['question']}" for row in rows]
        ids = tokenizer(texts, truncation=True, max_length=LENGTH)["input_ids"]
        splits[split] = [(i, int(row["label"])) for i, row in zip(ids, rows)]
    return tokenizer, splits


def peer_batch(tokenizer, rows, device):
    import torch
    inputs = tokenizer.pad({"input_ids": [ids for ids, _ in rows]}, return_tensors="pt").to(device)
    return inputs, torch.tensor([label for _, label in rows], device=device)


def peer_accuracy(o, tokenizer, model, rows):
    import torch
    model.eval()
    right = 0
    rows = sorted(rows, key=lambda row: len(row[0]))
    with torch.no_grad(), torch.autocast(o.device, torch.bfloat16):
        for i in range(0, len(rows), BATCH):
            inputs, labels = peer_batch(tokenizer, rows[i:i + BATCH], o.device)
            right += (model(**inputs).logits.argmax(-1) == labels).sum().item()
    return right / len(rows)


def peer(o, seed, loaded=[]):
    import torch
    from transformers import AutoModelForSequenceClassification, get_constant_schedule_with_warmup
    if not loaded:
        loaded.extend(load_peer(o))
    tokenizer, splits = loaded
    torch.manual_seed(seed)
    half = (pathlib.Path(o.model) / "model.fp16.safetensors").exists()
    model = AutoModelForSequenceClassification.from_pretrained(
        o.model, num_labels=2, hidden_dropout_prob=DROPOUT, attention_probs_dropout_prob=DROPOUT,
        dtype=torch.float32, variant="fp16" if half else None).to(o.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=o.lr, weight_decay=DECAY)
    schedule = get_constant_schedule_with_warmup(optimizer, WARMUP)
    order, best = torch.Generator().manual_seed(seed), 0
    for _ in range(o.epochs):
        model.train()
        shuffled = torch.randperm(len(splits["train"]), generator=order).tolist()
        for i in range(0, len(shuffled), BATCH):
            inputs, labels = peer_batch(tokenizer, [splits["train"][k] for k in shuffled[i:i + BATCH]], o.device)
            optimizer.zero_grad()
            with torch.autocast(o.device, torch.bfloat16):
                loss = model(**inputs, labels=labels).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            schedule.step()
        best = max(best, peer_accuracy(o, tokenizer, model, splits["val"]))
    return best


def run(o, seed, name):
    begun = time.monotonic()
    accuracy = 100 * SIDES[name](o, seed)
    print(f"seed {seed} {name}: {accuracy:.2f} %, {time.monotonic() - begun:.1f} s", flush=True)
    return accuracy


SIDES = {"ours": ours, "peer": peer}


def parse():
    parser = argparse.ArgumentParser()
    for name in "program", "model", "data":
        parser.add_argument(name)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--only", choices=("ours", "peer"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def main():
    o = parse()
    names = [name for name in SIDES if o.only in (None, name)]
    with tempfile.TemporaryDirectory() as few:
        if o.rows:
            for name in "train.jsonl", "val.jsonl":
                lines = (pathlib.Path(o.data) / name).read_text(encoding="utf-8").splitlines(True)
                (pathlib.Path(few) / name).write_text("".join(lines[:o.rows]), encoding="utf-8")
            o.data = few
        work = [(o, seed, name) for seed in range(o.first, o.first + o.seeds) for name in names]
        with multiprocessing.get_context("spawn").Pool(o.jobs) as pool:
            reached = pool.starmap(run, work, chunksize=1)
    best = {name: [r for r, w in zip(reached, work) if w[2] == name] for name in names}
    for name, values in best.items():
        spread = statistics.stdev(values) if len(values) > 1 else 0
        print(f"{name}: mean {statistics.mean(values):.2f} %, deviation {spread:.2f}, of {len(values)} seeds")
    if len(best) == 2:
        print(f"difference of means: {statistics.mean(best['ours']) - statistics.mean(best['peer']):+.2f} points")


if __name__ == "__main__":
    main()
