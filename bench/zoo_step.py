"""The peer of zoo_step: Hugging Face's T5 on the same work.

    python bench/zoo_step.py t5-base 32 512 128 STEPS [compile] [varied] [dropout]

bf16 autocast over f32 parameters, fused AdamW, gradients clipped to 1; random weights and tokens.
Prints milliseconds (median), pairs a second, and the peak of memory."""
import random
import statistics
import sys
import time

import torch
from transformers import T5Config, T5ForConditionalGeneration

SHAPES = {
    "t5-small": dict(d_model=512, d_ff=2048, num_layers=6, num_heads=8),
    "t5-base": dict(d_model=768, d_ff=3072, num_layers=12, num_heads=12),
    "t5-large": dict(d_model=1024, d_ff=4096, num_layers=24, num_heads=16),
}
name, batch, length, target, steps = sys.argv[1], *map(int, sys.argv[2:6])
words = sys.argv[6:]
torch.manual_seed(0)
random.seed(0)
config = T5Config(vocab_size=32128, dropout_rate=0.1 if "dropout" in words else 0.0,
                  decoder_start_token_id=0, **SHAPES[name])
model = T5ForConditionalGeneration(config).cuda().train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
run = torch.compile(model) if "compile" in words else model


def rows(width):
    ids = torch.randint(1, 32000, (batch, width), device="cuda")
    mask = torch.ones_like(ids)
    if "varied" in words:
        for i in range(batch):
            mask[i, random.randint(width // 4, width):] = 0
    return ids, mask


def step():
    ids, mask = rows(length)
    labels, label_mask = rows(target)
    labels = labels.masked_fill(label_mask == 0, -100)
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", torch.bfloat16):
        loss = run(input_ids=ids, attention_mask=mask, labels=labels).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


times = []
for i in range(steps + 5):
    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    if i >= 5:
        times.append(time.perf_counter() - start)
median = statistics.median(times)
print(f"peer {name} batch={batch} {' '.join(words)} ms={1e3 * median:.2f} "
      f"pairs_per_s={batch / median:.1f} peak_gib={torch.cuda.max_memory_allocated() / 2**30:.2f}",
      flush=True)
