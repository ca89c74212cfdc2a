#!/usr/bin/env python3
"""Compares Adam's state in 8 bits with bitsandbytes' on a CPU, and with f32 state:

    compare_adam8.py BUILD TEXT [STEPS]

A small LLaMA of random weights is trained on the bytes of TEXT in f32, by `BUILD/bin/modelcenter pretrain
--optimizer-state 8bit` and by transformers on the same batches, with bitsandbytes.optim.AdamW8bit for the matrices and
torch.optim.AdamW for embeddings and vectors. After the first step all codes are compared: scales within 1e-4, codes
from a tenth of the scale on the same but for 1 in 1,000, where rounding decides, and others at most one apart, or both
below 1e-4 of the scale: bitsandbytes' CPU code looks the nearest number up in a coarse table. Then losses of 50 steps,
within 1e-3.
Then ours with 8 bits and with f32 state over STEPS steps (2,000) of a cosine: the mean loss of the last tenth within 0.1 %.
Exits 1 where one is more.

Needs torch, transformers, safetensors and bitsandbytes with AdamW8bit on CPUs (0.50.2 has it). It is run by hand, not
by the tests.
"""
import json
import pathlib
import statistics
import sys
import tempfile

import bitsandbytes
import torch
import transformers
from safetensors.torch import load_file

from compare_muon import BATCH, CLIP, LENGTH, apart, run, write_tokens

RATE, DECAY, SHORT, WARMUP = 1e-3, 0.1, 50, 100
LLAMA = transformers.LlamaConfig(
    vocab_size=256, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, intermediate_size=128,
    max_position_embeddings=LENGTH, tie_word_embeddings=False, bos_token_id=0, eos_token_id=0)
# q, k, v and so on of a layer, under our names and LLaMA's
NAMES = {"self_att.self_attention.project_q": "self_attn.q_proj", "self_att.self_attention.project_k": "self_attn.k_proj",
         "self_att.self_attention.project_v": "self_attn.v_proj", "self_att.self_attention.attention_out": "self_attn.o_proj",
         "ffn.ffn.w_in.w_0": "mlp.gate_proj", "ffn.ffn.w_in.w_1": "mlp.up_proj", "ffn.ffn.w_out": "mlp.down_proj"}


def ours(build, folder, steps, state, scheduler="constant", warmup=0):
    """The losses, and the optimizer's file."""
    log, output = folder / "log.jsonl", folder / "trained"
    run(build / "bin/modelcenter", "pretrain", "llama", "--pretrained", folder / "llama", "--data", folder / "data.bin",
        "--seq-length", LENGTH, "--batch-size", BATCH, "--steps", steps, "--dropout", 0, "--lr", RATE, "--scheduler", scheduler,
        "--warmup", warmup, "--weight-decay", DECAY, "--clip", CLIP, "--dtype", "f32", "--optimizer-state", state, "--log-jsonl", log,
        "--output", output, "--overwrite", "--save-every", steps)
    return [json.loads(line)["loss"] for line in log.read_text().splitlines()], output / f"checkpoint-{steps}/optimizer.safetensors"


def theirs(model, tokens, steps):
    """The losses, and the state of bitsandbytes' optimizer by the parameters' names."""
    model.eval()
    matrices = {n: p for n, p in model.named_parameters() if p.ndim == 2 and "embed_tokens" not in n}
    tables = [p for n, p in model.named_parameters() if "embed_tokens" in n]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    eight = bitsandbytes.optim.AdamW8bit(matrices.values(), lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=DECAY)
    adam = torch.optim.AdamW([{"params": tables}, {"params": vectors, "weight_decay": 0}], lr=RATE, betas=(0.9, 0.95), eps=1e-8,
                             weight_decay=DECAY)
    losses = []
    for step in range(steps):
        at = step * BATCH * LENGTH
        x = torch.tensor(tokens[at:at + BATCH * LENGTH]).view(BATCH, LENGTH)
        y = torch.tensor(tokens[at + 1:at + 1 + BATCH * LENGTH])
        loss = torch.nn.functional.cross_entropy(model(x, use_cache=False).logits.view(-1, 256), y)
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        eight.step()
        adam.step()
        losses.append(loss.item())
    return losses, {name: eight.state[p] for name, p in matrices.items()}


def compare_codes(file, state):
    """Whether the codes agree; prints how far."""
    found, codes, other, far, scale = load_file(file), 0, 0, 0, 0.0
    for layer in range(LLAMA.num_hidden_layers):
        for name, theirs_name in NAMES.items():
            wanted = state[f"model.layers.{layer}.{theirs_name}.weight"]
            for moment, key, scales, sign in [("exp_avg", "state1", "absmax1", True), ("exp_avg_sq", "state2", "absmax2", False)]:
                tensor, numbers = f"encoder.layers.{layer}.{name}.weight", bitsandbytes.functional.create_dynamic_map(sign)
                a, b = found[f"optimizer.0.{moment}.{tensor}"].flatten().long(), wanted[key].flatten().long()
                large, low = numbers[b].abs() >= 0.1, (numbers[a].abs() < 1e-4) & (numbers[b].abs() < 1e-4)
                codes, other = codes + int(large.sum()), other + int((large & (a != b)).sum())
                far += int((((a - b).abs() > 1) & ~low).sum())
                ratio = found[f"optimizer.0.{moment}_scale.{tensor}"] / wanted[scales] - 1
                scale = max(scale, ratio.abs().max().item())
    print(f"after a step {other} of {codes} large codes differ, {far} of all by more than one, scales by {scale:.1e}")
    return other <= codes / 1000 and far == 0 and scale <= 1e-4


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    build, text = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else 2000
    tokens = list(text.read_bytes()[:steps * BATCH * LENGTH + 1])
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_tokens(folder / "data.bin", tokens)
        torch.manual_seed(1)
        transformers.LlamaForCausalLM(LLAMA).save_pretrained(folder / "llama")
        fresh = lambda: transformers.LlamaForCausalLM.from_pretrained(folder / "llama")
        good = compare_codes(ours(build, folder, 1, "8bit")[1], theirs(fresh(), tokens, 1)[1])
        a, b = ours(build, folder, SHORT, "8bit")[0], theirs(fresh(), tokens, SHORT)[0]
        good &= apart(a, b) <= 1e-3
        print(f"{SHORT} steps, loss {a[0]:.6f} to {a[-1]:.6f}, bitsandbytes {b[-1]:.6f}, largest difference {apart(a, b):.1e}")
        means = [statistics.mean(ours(build, folder, steps, state, "cosine", WARMUP)[0][-max(steps // 10, 1):]) for state in ["8bit", "f32"]]
        good &= abs(means[0] / means[1] - 1) <= 1e-3
        print(f"{steps} steps: mean loss of the last tenth {means[0]:.5f} with 8 bits, {means[1]:.5f} with f32, "
              f"{100 * (means[0] / means[1] - 1):+.3f} %")
    sys.exit(not good)


if __name__ == "__main__":
    main()
