"""The peer of bench/generate: Hugging Face's generate() on the same work.

    python bench/generate.py gpt2 32 64 512 [static] [beams=1] [rounds=3] [ours=PROGRAM]

Shapes: gpt2, gpt2-xl, gptj-6b, t5-base, llama-3-8b, llama-3.2-1b; random weights in bf16 on a GPU, greedy or with beams, no end
token. `static`: a static cache, with which transformers compiles the forward pass by itself. The rate is
that of the steps alone, by the difference of answers of NEW and of NEW / 4 tokens, as there, and with
beams that of rows. With `ours` that program, bench/generate, is run before and after with the same
sizes, and the quotient of the rates is printed."""
import re
import statistics
import subprocess
import sys
import time

import torch
from transformers import (GPT2Config, GPT2LMHeadModel, GPTJConfig, GPTJForCausalLM, LlamaConfig,
                          LlamaForCausalLM, T5Config, T5ForConditionalGeneration)

MODELS = {
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config()),
    "gpt2-xl": lambda: GPT2LMHeadModel(GPT2Config(n_embd=1600, n_layer=48, n_head=25)),
    "gptj-6b": lambda: GPTJForCausalLM(GPTJConfig()),
    "t5-base": lambda: T5ForConditionalGeneration(T5Config(
        d_model=768, d_ff=3072, num_layers=12, num_heads=12, decoder_start_token_id=0)),
    "llama-3-8b": lambda: LlamaForCausalLM(LlamaConfig(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=8192, rms_norm_eps=1e-5,
        rope_parameters=dict(rope_type="default", rope_theta=5e5))),
    "llama-3.2-1b": lambda: LlamaForCausalLM(LlamaConfig(
        vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
        num_attention_heads=32, num_key_value_heads=8, head_dim=64, max_position_embeddings=131072,
        rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters=dict(rope_type="llama3", rope_theta=5e5, factor=32.0, low_freq_factor=1.0,
                             high_freq_factor=4.0, original_max_position_embeddings=8192))),
}
FAMILIES = {"gpt2": "gpt2", "gpt2-xl": "gpt2", "gptj-6b": "gptj", "t5-base": "t5", "llama-3-8b": "llama",
            "llama-3.2-1b": "llama"}


def word(name, default):
    return next((w[len(name) + 1:] for w in sys.argv[5:] if w.startswith(name + "=")), default)


name, (batch, prompt, new) = sys.argv[1], map(int, sys.argv[2:5])
static = "static" in sys.argv[5:]
rounds, beams, program = int(word("rounds", 3)), int(word("beams", 1)), word("ours", None)


def run_ours():
    """Tokens or rows a second of bench/generate, whose line is printed too."""
    command = [program, FAMILIES[name], name, str(batch), str(prompt), str(new), "device=cuda",
               "dtype=bf16", f"beams={beams}", f"rounds={rounds}"]
    line = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    print(line, flush=True)
    return float(re.search(r"tokens_per_s=([0-9.]+)", line).group(1))


def make_model():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        return MODELS[name]().eval(), torch.randint(1, 32000, (batch, prompt))


ours = [run_ours()] if program else []  # before the peer takes memory
model, ids = make_model()
options = dict(do_sample=False, use_cache=True, pad_token_id=0, num_beams=beams,
               **(dict(cache_implementation="static") if static else {}))


def timed(tokens):
    torch.cuda.synchronize()
    start = time.perf_counter()
    with torch.inference_mode():
        model.generate(ids, attention_mask=torch.ones_like(ids), min_new_tokens=tokens,
                       max_new_tokens=tokens, **options)
    torch.cuda.synchronize()
    return time.perf_counter() - start


fewer = new // 4
for tokens in (new, fewer) if static else (fewer,):
    timed(tokens)  # compiles
pairs = [(timed(new), timed(fewer)) for _ in range(rounds)]
seconds = statistics.median(p[0] for p in pairs) - statistics.median(p[1] for p in pairs)
rate = batch * beams * (new - fewer) / seconds
print(f"result model={name} batch={batch} prompt={prompt} new={new} beams={beams} static={int(static)} "
      f"ms_a_step={1e3 * batch * beams / rate:.3f} tokens_per_s={rate:.1f}")
if program:
    ours.append(run_ours())
    print(f"ours: {statistics.mean(ours) / rate:.2f} times Hugging Face")
