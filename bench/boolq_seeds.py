#!/usr/bin/env python3
"""MiniLM on BoolQ, the best of five epochs for each of ten seeds: modelcenter.c beside Hugging Face.

    python3 bench/boolq_seeds.py build/release/bin/modelcenter MINILM BOOLQ [--seeds 10] [--first 0] [--lr 1e-4]
        [--only ours|peer] [--dtype bf16|f32] [--group-by-length] [--device cuda] [--epochs 5] [--rows N] [--jobs N]

MINILM is a folder with all-MiniLM-L6-v2 (`sentence-transformers/all-MiniLM-L6-v2`), BOOLQ one with
SuperGLUE's train.jsonl and val.jsonl. The peer needs torch and transformers (PyPI). Both: batch 32, AdamW
with weight decay 0.01, 100 steps of warm-up and then a constant rate, clipping at 1, dropout 0.1, inputs
`passage. question` of at most 512 tokens, bf16 (the peer's by autocast) or f32, shuffled by the seed.
--group-by-length has rows of similar length share a batch, on both sides in the same way. --rows takes
the first rows of both files only, for a trial. --jobs trains so many at once (1), which changes their times
and not what they reach: on one H200 ten seeds take about half a minute here and three to four minutes there,
one after another. Prints for each seed the best accuracy, the mean training loss of the last epoch and the
time, then means, and the difference of accuracies with its standard error, of the differences seed by seed.
"""
import argparse, json, multiprocessing, pathlib, statistics, subprocess, sys, tempfile, time

BATCH, WARMUP, DECAY, CLIP, DROPOUT, LENGTH = 32, 100, 0.01, 1.0, 0.1, 512


def ours(o, seed):
    """The accuracy of the best epoch, and the last one's mean loss of a training step."""
    log = pathlib.Path(o.folder) / f"{seed}.jsonl"
    said = subprocess.run(
        [o.program, "finetune", "--task", "BoolQ", "--model", o.model, "--data", o.data, "--device",
         o.device, "--dtype", o.dtype, "--epochs", str(o.epochs), "--batch-size", str(BATCH), "--lr", str(o.lr),
         "--scheduler", "constant", "--warmup", str(WARMUP), "--weight-decay", str(DECAY), "--clip", str(CLIP),
         "--dropout", str(DROPOUT), "--max-length", str(LENGTH), "--keep", "best", "--seed", str(seed),
         "--log-jsonl", log, "--overwrite", "--no-save"] + ["--no-group-by-length"] * (not o.group_by_length),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if said.returncode:
        raise RuntimeError(said.stderr)
    result = dict(part.split("=", 1) for part in said.stdout.splitlines()[-1].split()[1:])
    losses = [step["loss"] for step in map(json.loads, open(log)) if "grad_norm" in step]
    return float(result["accuracy"]), statistics.mean(losses[-(len(losses) // o.epochs):])


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
    with torch.no_grad(), torch.autocast(o.device, torch.bfloat16, enabled=o.dtype == "bf16"):
        for i in range(0, len(rows), BATCH):
            inputs, labels = peer_batch(tokenizer, rows[i:i + BATCH], o.device)
            right += (model(**inputs).logits.argmax(-1) == labels).sum().item()
    return right / len(rows)


def grouped(order, lengths, generator):
    """The order of datasets/loader.h: sorted in windows of 16 batches, the full batches shuffled again."""
    import torch
    full = len(order) // BATCH * BATCH
    windows = [order[i:min(i + 16 * BATCH, full)] for i in range(0, full, 16 * BATCH)] + [order[full:]]
    rows = [row for window in windows for row in sorted(window, key=lambda row: lengths[row])]
    batches = torch.randperm(full // BATCH, generator=generator).tolist()
    return [row for b in batches for row in rows[b * BATCH:b * BATCH + BATCH]] + rows[full:]


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
        losses = []
        shuffled = torch.randperm(len(splits["train"]), generator=order).tolist()
        if o.group_by_length:
            shuffled = grouped(shuffled, [len(ids) for ids, _ in splits["train"]], order)
        for i in range(0, len(shuffled), BATCH):
            inputs, labels = peer_batch(tokenizer, [splits["train"][k] for k in shuffled[i:i + BATCH]], o.device)
            optimizer.zero_grad()
            with torch.autocast(o.device, torch.bfloat16, enabled=o.dtype == "bf16"):
                loss = model(**inputs, labels=labels).loss
            losses.append(loss.detach())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            schedule.step()
        best = max(best, peer_accuracy(o, tokenizer, model, splits["val"]))
    return best, torch.stack(losses).mean().item()


def run(o, seed, name):
    begun = time.monotonic()
    accuracy, loss = SIDES[name](o, seed)
    print(f"seed {seed} {name}: {100 * accuracy:.2f} %, loss {loss:.4f}, {time.monotonic() - begun:.1f} s", flush=True)
    return 100 * accuracy, loss


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
    parser.add_argument("--dtype", choices=("bf16", "f32"), default="bf16")
    parser.add_argument("--group-by-length", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def main():
    o = parse()
    names = [name for name in SIDES if o.only in (None, name)]
    with tempfile.TemporaryDirectory() as o.folder:
        if o.rows:
            for name in "train.jsonl", "val.jsonl":
                lines = (pathlib.Path(o.data) / name).read_text(encoding="utf-8").splitlines(True)
                (pathlib.Path(o.folder) / name).write_text("".join(lines[:o.rows]), encoding="utf-8")
            o.data = o.folder
        work = [(o, seed, name) for seed in range(o.first, o.first + o.seeds) for name in names]
        with multiprocessing.get_context("spawn").Pool(o.jobs) as pool:
            reached = pool.starmap(run, work, chunksize=1)
    best = {name: [r for r, w in zip(reached, work) if w[2] == name] for name in names}
    for name, values in best.items():
        accuracies, losses = zip(*values)
        spread = statistics.stdev(accuracies) if len(values) > 1 else 0
        print(f"{name}: mean {statistics.mean(accuracies):.2f} %, deviation {spread:.2f}, of {len(values)} seeds; "
              f"training loss of the last epoch {statistics.mean(losses):.4f}")
    if len(best) == 2:
        apart = [a[0] - b[0] for a, b in zip(best["ours"], best["peer"])]
        error = statistics.stdev(apart) / len(apart) ** 0.5 if len(apart) > 1 else 0
        print(f"difference of means: {statistics.mean(apart):+.2f} points, standard error {error:.2f}")


if __name__ == "__main__":
    main()
