"""The peer of bench/generate: Hugging Face's generate() on the same work.

    python bench/generate.py gpt2 32 64 512 [static] [rounds=3]

Shapes: gpt2, gpt2-xl, gptj-6b, t5-base; random weights in bf16, greedy, no end token. `static`: a
static cache and a compiled forward pass, where the model takes them. The rate is that of the steps
alone, by the difference of answers of NEW and of NEW / 4 tokens, as there."""
import statistics
import sys
import time

import torch
from transformers import (GPT2Config, GPT2LMHeadModel, GPTJConfig, GPTJForCausalLM, T5Config,
                          T5ForConditionalGeneration)

MODELS = {
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config()),
    "gpt2-xl": lambda: GPT2LMHeadModel(GPT2Config(n_embd=1600, n_layer=48, n_head=25)),
    "gptj-6b": lambda: GPTJForCausalLM(GPTJConfig()),
    "t5-base": lambda: T5ForConditionalGeneration(T5Config(
        d_model=768, d_ff=3072, num_layers=12, num_heads=12, decoder_start_token_id=0)),
}
name, batch, prompt, new = sys.argv[1], *map(int, sys.argv[2:5])
static = "static" in sys.argv[5:]
rounds = next((int(w[7:]) for w in sys.argv[5:] if w.startswith("rounds=")), 3)
torch.manual_seed(0)
torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = MODELS[name]().eval()
    ids = torch.randint(1, 32000, (batch, prompt))
options = dict(do_sample=False, use_cache=True, pad_token_id=0,
               **(dict(cache_implementation="static") if static else {}))
if static:
    model.forward = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)


def timed(tokens):
    torch.cuda.synchronize()
    start = time.perf_counter()
    with torch.inference_mode():
        model.generate(ids, attention_mask=torch.ones_like(ids), min_new_tokens=tokens,
                       max_new_tokens=tokens, **options)
    torch.cuda.synchronize()
    return time.perf_counter() - start


fewer = new // 4
for tokens in (new, fewer):
    timed(tokens)  # compiles
pairs = [(timed(new), timed(fewer)) for _ in range(rounds)]
seconds = statistics.median(p[0] for p in pairs) - statistics.median(p[1] for p in pairs)
rate = batch * (new - fewer) / seconds
print(f"result model={name} batch={batch} prompt={prompt} new={new} static={int(static)} "
      f"ms_a_step={1e3 * batch / rate:.3f} tokens_per_s={rate:.1f}")
