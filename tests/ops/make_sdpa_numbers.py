#!/usr/bin/env python3
"""Prints the numbers of test_torch in test_sdpa.c: attention and its gradients by torch's
scaled_dot_product_attention, in f64, with heads that share keys, values of another size, and queries
that end where the keys end, in a window.

    tests/ops/make_sdpa_numbers.py
"""
import torch

HEADS, KEY_HEADS, DIM, VALUE_DIM, QUERIES, KEYS, WINDOW = 4, 2, 3, 2, 3, 5, 3


def values(start, rows, heads, dim):
    """sin(start + 1.7 i) in f32 of element i of (rows, heads * dim), as (heads, rows, dim)."""
    x = (torch.arange(rows * heads * dim, dtype=torch.float32) * 1.7 + start).sin().double()
    return x.reshape(rows, heads, dim).transpose(0, 1).contiguous().requires_grad_()


def show(name, x):
    flat = x.transpose(0, 1).reshape(-1).tolist()
    print(f"{name}: " + ", ".join(f"{v:.7f}" for v in flat))


def main():
    q, k = values(1, QUERIES, HEADS, DIM), values(2, KEYS, KEY_HEADS, DIM)
    v, dy = values(3, KEYS, KEY_HEADS, VALUE_DIM), values(4, QUERIES, HEADS, VALUE_DIM)
    place = torch.arange(QUERIES)[:, None] + KEYS - QUERIES
    key = torch.arange(KEYS)[None, :]
    seen = (key <= place) & (place - key < WINDOW)
    y = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=seen,
                                                         enable_gqa=True)[0]
    y.backward(dy.detach())
    for name, x in ("y", y.detach()), ("dq", q.grad), ("dk", k.grad), ("dv", v.grad):
        show(name, x)


if __name__ == "__main__":
    main()
