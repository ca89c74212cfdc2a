#!/usr/bin/env python3
"""Compares encoders with transformers on random configs, in f32: outputs, gradients, five steps.

    check_encoders.py CHECK_GOLDEN [COUNT [SEED [FAMILY ...]]]

CHECK_GOLDEN is the program tests/check_golden of a build, which reads the folders that are made here.
COUNT configs of each family differ in sizes, windows, activations, tying, head (masked words, classes),
in padding (rows of equal lengths, and of others, which are packed here), and Longformer's in global
tokens (rows without one too, classes with and without their mask). Exits 1 if one is off. Run by hand;
needs torch, transformers and safetensors.
"""
import pathlib
import random
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import save_file


def common(rng, classes):
    """Keys that all families have."""
    heads, head_dim = rng.choice([1, 2, 3, 4]), rng.choice([4, 8, 12])
    return {"hidden_size": heads * head_dim, "num_attention_heads": heads, "num_hidden_layers": rng.randint(1, 3),
            "intermediate_size": rng.choice([16, 40, 96]), "vocab_size": rng.choice([60, 113]),
            "max_position_embeddings": 130, "initializer_range": rng.choice([0.02, 0.1]),
            "tie_word_embeddings": classes or rng.random() < 0.7, "num_labels": 3,
            "pad_token_id": rng.choice([0, 1]), "bos_token_id": 0, "eos_token_id": 2, "sep_token_id": 2}


def bert_like(rng, classes):
    return common(rng, classes) | {
        "hidden_act": rng.choice(["gelu", "gelu_new", "relu"]), "layer_norm_eps": rng.choice([1e-3, 1e-5]),
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def longformer(rng, classes):
    keys = bert_like(rng, classes) | {"type_vocab_size": rng.randint(1, 2)}
    window = 2 * rng.randint(2, 8)  # transformers fails on a window of 2
    return transformers.LongformerConfig(**keys, attention_window=[window] * keys["num_hidden_layers"])


def modernbert(rng, classes):
    keys = common(rng, classes) | {"num_hidden_layers": rng.randint(1, 6)}
    rope = {kind: {"rope_type": "default", "rope_theta": rng.choice([1e4, 1.6e5, 100.0])}
            for kind in ("full_attention", "sliding_attention")}
    return transformers.ModernBertConfig(
        **keys, local_attention=2 * rng.randint(1, 10), global_attn_every_n_layers=rng.randint(1, 4),
        norm_eps=rng.choice([1e-3, 1e-5]), hidden_activation=rng.choice(["gelu", "gelu_new", "relu", "silu"]),
        classifier_activation=rng.choice(["gelu", "relu"]), classifier_pooling=rng.choice(["cls", "mean"]),
        rope_parameters=rope, cls_token_id=0)


FAMILIES = {
    "longformer": (longformer, transformers.LongformerForMaskedLM, transformers.LongformerForSequenceClassification),
    "modernbert": (modernbert, transformers.ModernBertForMaskedLM, transformers.ModernBertForSequenceClassification),
}


def random_inputs(rng, config, classes):
    batch, width = rng.randint(1, 4), rng.randint(3, 64)
    padded = rng.random() < 0.7
    ids = torch.tensor([[rng.randrange(3, config.vocab_size) for _ in range(width)] for _ in range(batch)])
    mask, is_global = torch.ones_like(ids), torch.zeros_like(ids)
    for row in range(batch):
        length = rng.randint(1, width) if padded and rng.random() < 0.7 else width
        ids[row, length:], mask[row, length:] = config.pad_token_id, 0
        for _ in range(rng.choice([0, 1, 1, 2, 5])):
            is_global[row, rng.randrange(length)] = 1
    inputs = {"input_ids": ids, "attention_mask": mask}
    if config.model_type == "longformer" and (not classes or rng.random() < 0.5):
        inputs["global_attention_mask"] = is_global
    if getattr(config, "type_vocab_size", 1) > 1:
        inputs["token_type_ids"] = torch.tensor(
            [[rng.randrange(2) for _ in range(width)] for _ in range(batch)]) * mask
    if classes:
        inputs["labels"] = torch.tensor([rng.randrange(3) for _ in range(batch)])
    else:
        counted = (mask == 1) & (torch.rand(ids.shape) < 0.7)
        counted[0, 0] = True
        inputs["labels"] = torch.where(counted, ids, -100)
    return inputs


def write(folder, model, inputs):
    """The folder's expected.safetensors, as the README of the goldens describes it."""
    model.save_pretrained(folder)
    out = model(**inputs)
    out.loss.backward()
    kept = {f"in.{name}": value for name, value in inputs.items()}
    kept |= {"out.logits": out.logits, "out.loss": out.loss.reshape(1)}
    kept |= {f"grad.{name}": p.grad if p.grad is not None else torch.zeros_like(p)
             for name, p in model.named_parameters()
             if p.grad is not None or name != "lm_head.bias"}  # of an untied head's two biases the other counts
    kept = {name: value.detach().clone().contiguous() for name, value in kept.items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-8, weight_decay=0.01)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(**inputs).loss
        losses.append(float(loss.detach()))
        loss.backward()
        optimizer.step()
    kept["train.losses"] = torch.tensor(losses, dtype=torch.float64)
    save_file(kept, folder / "expected.safetensors")


def check(family, number, rng, program):
    """Whether a random model of the family is within tolerance."""
    classes = number % 3 == 2
    make_config, masked, classifier = FAMILIES[family]
    config = make_config(rng, classes)
    model = (classifier if classes else masked)(config).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 1 if float(parameter.detach().abs().sum()) else 0, 0.1)
    inputs = random_inputs(rng, config, classes)
    with tempfile.TemporaryDirectory(prefix="mc-encoder-") as folder:
        write(pathlib.Path(folder), model, inputs)
        ended = subprocess.run([program, folder, "--dtype", "f32"], capture_output=True, text=True, check=False)
    marked = inputs.get("global_attention_mask")
    print("FAIL" if ended.returncode else "ok  ", family, "classes" if classes else "masked",
          list(inputs["input_ids"].shape), "lengths", inputs["attention_mask"].sum(1).tolist(),
          "" if marked is None else f"global {marked.sum(1).tolist()}")
    if ended.returncode:
        print(config, ended.stdout + ended.stderr)
    return ended.returncode == 0


def main():
    count, seed = (int(value) for value in (sys.argv[2:4] + ["36", "1"][len(sys.argv[2:4]):]))
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(seed)
    rng = random.Random(seed)
    good = [check(family, number, rng, sys.argv[1])
            for family in sys.argv[4:] or FAMILIES for number in range(count)]
    print(f"{len(good)} configs, {good.count(False)} off")
    return not all(good)


if __name__ == "__main__":
    sys.exit(main())
