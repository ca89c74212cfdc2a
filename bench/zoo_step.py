"""The peer of zoo_step: Hugging Face's T5 or Llama on the same work.

    python bench/zoo_step.py t5-base 32 512 128 STEPS [compile] [varied] [dropout]
    python bench/zoo_step.py llama-3.2-1b 8 2048 0 STEPS compile ours=PROGRAM [rounds=2]

bf16 autocast over f32 parameters, fused AdamW, gradients clipped to 1; random weights and tokens; Llama's
attention by cuDNN. Prints milliseconds (median), sequences a second, and the peak of memory. With `ours`
that program, bench/zoo_step, is run before each round of the peer with the same sizes, and the quotient
of the times is printed."""
import random
import re
import statistics
import subprocess
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

T5 = {
    "t5-small": dict(d_model=512, d_ff=2048, num_layers=6, num_heads=8),
    "t5-base": dict(d_model=768, d_ff=3072, num_layers=12, num_heads=12),
    "t5-large": dict(d_model=1024, d_ff=4096, num_layers=24, num_heads=16),
}
LLAMA = {
    "llama-3.2-1b": dict(vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
                         num_attention_heads=32, num_key_value_heads=8, head_dim=64,
                         max_position_embeddings=131072, rms_norm_eps=1e-5, tie_word_embeddings=True,
                         rope_parameters=dict(rope_type="llama3", rope_theta=5e5, factor=32.0,
                                              low_freq_factor=1.0, high_freq_factor=4.0,
                                              original_max_position_embeddings=8192)),
}
name, batch, length, target, steps = sys.argv[1], *map(int, sys.argv[2:6])
words = sys.argv[6:]


def word(name, default):
    return next((w[len(name) + 1:] for w in words if w.startswith(name + "=")), default)


program, rounds = word("ours", None), int(word("rounds", 2))
torch.manual_seed(0)
random.seed(0)
if name in T5:
    config = T5Config(vocab_size=32128, dropout_rate=0.1 if "dropout" in words else 0.0,
                      decoder_start_token_id=0, **T5[name])
    model = T5ForConditionalGeneration(config)
else:
    config = LlamaConfig(attn_implementation="sdpa", use_cache=False, **LLAMA[name])
    model = LlamaForCausalLM(config)


def rows(width):
    ids = torch.randint(1, 32000, (batch, width), device="cuda")
    mask = torch.ones_like(ids)
    if "varied" in words:
        for i in range(batch):
            mask[i, random.randint(width // 4, width):] = 0
    return ids, mask


def loss_of():
    ids, mask = rows(length)
    if name in LLAMA:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return run(input_ids=ids, labels=ids).loss
    labels, label_mask = rows(target)
    return run(input_ids=ids, attention_mask=mask, labels=labels.masked_fill(label_mask == 0, -100)).loss


def step():
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", torch.bfloat16):
        loss = loss_of()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def measure(count, first):
    times = []
    for i in range(count + first):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        if i >= first:
            times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def run_ours():
    """Milliseconds of zoo_step, whose line is printed too."""
    family = "t5" if name in T5 else "llama"
    command = [program, family, name, str(batch), str(length), "device=cuda", "dtype=bf16", f"steps={steps}"]
    line = subprocess.run(command + ([f"target={target}"] if name in T5 else []), check=True,
                          capture_output=True, text=True).stdout.strip().splitlines()[-1]
    print("ours", line, flush=True)
    return float(re.search(r"ms=([\d.]+)", line)[1])


ours, peer = [], []
for i in range(rounds if program else 1):
    if program:
        ours.append(run_ours())
    model.cuda().train()
    if i == 0:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
        run = torch.compile(model) if "compile" in words else model
    peer.append(measure(steps, 5))
    print(f"peer {name} batch={batch} {' '.join(words)} ms={peer[-1]:.2f} "
          f"pairs_per_s={batch / peer[-1] * 1e3:.1f} peak_gib={torch.cuda.max_memory_allocated() / 2**30:.2f}",
          flush=True)
    torch.cuda.empty_cache()
if ours:
    print(f"times {min(peer) / min(ours):.3f}")
