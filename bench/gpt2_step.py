"""The peer of gpt2_step.c: the same steps of GPT-2 in PyTorch, compiled, on the same GPU.

    python3 bench/gpt2_step.py [LAYERS DIM HEADS BATCH LENGTH STEPS]
    python3 bench/gpt2_step.py 12 768 12 64 1024 50

bf16 parameters under autocast with f32 masters, fused AdamW, clipping, PyTorch's own attention
(cuDNN's where it is faster). Random tokens, as there. Prints milliseconds and tokens a second.
"""

import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY = 50304


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        batch, length, dim = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).unbind(2)
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, dim))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, layers, dim, heads, length):
        super().__init__()
        self.words, self.positions = nn.Embedding(VOCABULARY, dim), nn.Embedding(length, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, labels):
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.words.weight)
        return F.cross_entropy(logits.view(-1, VOCABULARY), labels.view(-1))


def main():
    layers, dim, heads, batch, length, steps = (
        [int(a) for a in sys.argv[1:]] + [12, 768, 12, 64, 1024, 50][len(sys.argv) - 1 :]
    )
    torch.manual_seed(42)
    torch.set_float32_matmul_precision("high")
    start = time.time()
    model = GPT(layers, dim, heads, length).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
    compiled = torch.compile(model)
    times = []
    for step in range(steps):
        ids = torch.randint(50257, (batch, length + 1)).cuda(non_blocking=True)
        begin = time.time()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = compiled(ids[:, :-1], ids[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.time() - begin)
        if step == 0:
            print(f"start to the end of the first step: {time.time() - start:.2f} s")
    mean = sorted(times[5:])[len(times[5:]) // 2]
    peak = torch.cuda.max_memory_allocated() >> 20
    print(
        f"result peer=torch-{torch.__version__} ms={1e3 * mean:.3f} "
        f"tokens_per_s={batch * length / mean:.0f} peak_mib={peak}"
    )


main()
