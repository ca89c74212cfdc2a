#!/usr/bin/env python3
"""Compares pretraining with PyTorch's, step by step:

    compare_pretraining.py BUILD TEXT [STEPS]

For BERT (masked tokens and next sentence) and T5 (corrupted spans) a small model of random weights is
made by transformers. `BUILD/bin/modelcenter pretrain` trains it on TEXT, and transformers trains it
with torch.optim.AdamW on the same batches (`BUILD/tests/check_objective` prints them), both in f32,
without dropout, with the same rates, decay and clipping. The vocabulary is WordPiece of TEXT's most
frequent words, its letters, and the tokens that the objectives put in. Prints a line for each with the
largest difference of a step's losses, and exits 1 if it is more than 1e-5.

T5's feed-forwards are gated GELU's. With ReLU rounding decides whether a unit that nearly nothing activates has a
gradient, of which Adam makes a whole step or none. So there is no limit for T5 with ReLU, and two lines: PyTorch in
f64 is what ours, and PyTorch in f32, are measured against; with this rate, and with one that rises to a tenth of it.

Needs torch and transformers; tried with transformers 5.23 and torch 2.15. It is run by hand, not by
the tests.
"""
import collections
import copy
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import torch
import transformers

TOLERANCE = 1e-5
LENGTH, BATCH, SEED, RATE, DECAY, CLIP = 64, 8, 7, 1e-3, 0.1, 1.0

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "</s>"] + [f"<extra_id_{i}>" for i in range(20)]
VOCABULARY = 1000

BERT = transformers.BertConfig(
    vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256, max_position_embeddings=LENGTH,
    hidden_dropout_prob=0, attention_probs_dropout_prob=0)
T5 = transformers.T5Config(
    vocab_size=VOCABULARY, d_model=64, d_ff=256, d_kv=16, num_layers=2, num_decoder_layers=2, num_heads=4, dropout_rate=0,
    decoder_start_token_id=0, feed_forward_proj="gated-gelu")


def relu(config):
    config = copy.deepcopy(config)
    config.feed_forward_proj, config.dense_act_fn, config.is_gated_act = "relu", "relu", False
    return config


def bert_loss(model, batch):
    ids = batch["ids"]
    labels = torch.full_like(ids, -100).flatten()
    counts = batch["targets"].flatten() >= 0
    labels[batch["target_rows"].flatten()[counts]] = batch["targets"].flatten()[counts]
    return model(input_ids=ids, token_type_ids=batch["type_ids"], labels=labels.view_as(ids),
                 next_sentence_label=batch["labels"].flatten()).loss


def t5_loss(model, batch):
    return model(input_ids=batch["ids"], decoder_input_ids=batch["decoder_ids"], labels=batch["targets"]).loss


def write_tokenizer(folder, text):
    words = collections.Counter(re.findall("[a-z]+|[^a-z ]", text.read_text().lower()))
    letters = sorted({letter for word in words for letter in word if not letter.isspace()})
    entries = SPECIAL + letters + [f"##{letter}" for letter in letters]
    entries += [word for word, _ in words.most_common() if len(word) > 1][:VOCABULARY - len(entries)]
    folder.mkdir()
    (folder / "vocab.txt").write_text("".join(f"{entry}\n" for entry in entries))


def run(*arguments):
    done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"exit {done.returncode} of {' '.join(map(str, arguments))}\n{done.stderr}")
    return done.stdout


def torch_losses(model, loss_of, batches, rates):
    """Of each step, before its update."""
    model.train()
    adam = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=DECAY)
    losses = []
    for rate, line in zip(rates, batches.splitlines(), strict=True):
        adam.param_groups[0]["lr"] = rate
        adam.zero_grad()
        loss = loss_of(model, {key: torch.tensor(value) for key, value in json.loads(line).items()})
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        adam.step()
        losses.append(loss.item())
    return losses


def train_both(build, folder, family, config, tokenizer, text, steps, rate, warmup, exact=False):
    """The losses of our steps and of PyTorch's; `exact`: then in f64 and in f32."""
    torch.manual_seed(1)
    model, loss_of = ((transformers.BertForPreTraining(config), bert_loss) if family == "bert" else
                      (transformers.T5ForConditionalGeneration(config), t5_loss))
    start, data, log = folder / "start", folder / f"{family}.bin", folder / "log.jsonl"
    model.save_pretrained(start)
    run(build / "bin/modelcenter", "prepare", "--tokenizer", tokenizer, "--input", text, "--output", data, "--overwrite")
    run(build / "bin/modelcenter", "pretrain", family, "--pretrained", start, "--tokenizer", tokenizer, "--data", data,
        "--seq-length", LENGTH, "--batch-size", BATCH, "--steps", steps, "--seed", SEED, "--shuffle", "--dropout", 0,
        "--lr", rate, "--scheduler", "constant", "--warmup", warmup, "--weight-decay", DECAY, "--decay-bias-norm",
        "--clip", CLIP, "--dtype", "f32", "--log-jsonl", log, "--overwrite", "--no-save")
    ours = [json.loads(line) for line in log.read_text().splitlines()]
    rates = [step["lr"] for step in ours]
    batches = run(build / "tests/check_objective", family, tokenizer, data, LENGTH, BATCH, steps, SEED)
    losses = [[step["loss"] for step in ours]]
    for dtype in [torch.float64, torch.float32] if exact else [torch.float32]:
        torch.set_default_dtype(dtype)
        losses.append(torch_losses(copy.deepcopy(model).to(dtype), loss_of, batches, rates))
    return losses


def apart(a, b):
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


def compare(build, folder, family, config, tokenizer, text, steps):
    """The largest difference of a step's losses."""
    ours, theirs = train_both(build, folder, family, config, tokenizer, text, steps, RATE, 0)
    print(f"{family}: {steps} steps, loss {ours[0]:.6f} to {ours[-1]:.6f}, torch {theirs[0]:.6f} to {theirs[-1]:.6f}, "
          f"largest difference {apart(ours, theirs):.2e}")
    return apart(ours, theirs)


def compare_exact(build, folder, config, tokenizer, text, steps, rate, warmup):
    ours, exact, theirs = train_both(build, folder, "t5", config, tokenizer, text, steps, rate, warmup, True)
    print(f"t5 with ReLU, rate {rate} after {warmup} steps: {steps} steps, loss {ours[0]:.6f} to {ours[-1]:.6f}, "
          f"largest difference from torch in f64 {apart(ours, exact):.2e}, of torch in f32 {apart(theirs, exact):.2e}")


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    build, text = map(pathlib.Path, sys.argv[1:3])
    steps = int(sys.argv[3]) if len(sys.argv) == 4 else 100
    os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        write_tokenizer(folder / "words", text)
        words = folder / "words"
        worst = max(compare(build, folder, family, config, words, text, steps)
                    for family, config in (("bert", BERT), ("t5", T5)))
        for rate, warmup in (RATE, 0), (RATE / 10, 100):
            compare_exact(build, folder, relu(T5), words, text, steps, rate, warmup)
    sys.exit(0 if worst <= TOLERANCE else 1)


if __name__ == "__main__":
    main()
