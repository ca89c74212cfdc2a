"""bench/generate on a CPU by turns with Hugging Face's generate(), beside the memory's triad.

    python bench/generate_cpu.py build/release/bench/generate gpt2 1 64 64 [threads=2] [rounds=5]
                                 [dtype=f32] [weights=int8]

Shapes: gpt2, gpt2-xl; random weights, greedy, no end token. Each round runs our program once, with
triad=1, then the peer, on as many threads; a step is timed from token to token. Printed are medians
of the rounds' medians, the best step of all, and the median of the rounds' ratios, so that a drift
of the machine hits both. Without PyTorch ours runs alone."""
import os
import statistics
import subprocess
import sys
import time

program, name, (batch, prompt, new) = sys.argv[1], sys.argv[2], map(int, sys.argv[3:6])
named = dict(w.split("=", 1) for w in sys.argv[6:])
threads, rounds = int(named.get("threads", 2)), int(named.get("rounds", 5))
dtype, weights = named.get("dtype", "f32"), named.get("weights", "")
WIDTH = {"gpt2": {}, "gpt2-xl": dict(n_embd=1600, n_layer=48, n_head=25)}


def time_ours():
    """The line of steps that our program prints."""
    command = [program, "gpt2", name, str(batch), str(prompt), str(new), f"dtype={dtype}",
               f"weights={weights}", "triad=1", "rounds=1"]
    out = subprocess.run(command, env=dict(os.environ, OMP_NUM_THREADS=str(threads)), check=True,
                         capture_output=True, text=True).stdout
    line = next(line for line in out.splitlines() if line.startswith("steps "))
    return {k: float(v) for k, v in (w.split("=") for w in line.split()[1:])}


def make_peer():
    """A function that gives the best and the median step of one answer; None without PyTorch."""
    try:
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel, StoppingCriteria
    except ImportError:
        return None
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    torch.set_default_dtype({"f32": torch.float32, "bf16": torch.bfloat16}[dtype])
    model = GPT2LMHeadModel(GPT2Config(**WIDTH[name])).eval()
    ids = torch.randint(1, 50257, (batch, prompt))

    class Steps(StoppingCriteria):
        def __init__(self):
            self.times = []

        def __call__(self, ids, scores, **_):
            self.times.append(time.perf_counter())
            return torch.zeros(len(ids), dtype=torch.bool)

    def run(tokens=new):
        steps = Steps()
        with torch.inference_mode():
            model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False,
                           pad_token_id=0, min_new_tokens=tokens, max_new_tokens=tokens,
                           stopping_criteria=[steps])
        seconds = [b - a for a, b in zip(steps.times, steps.times[1:])]
        return {"best_ms": 1e3 * min(seconds), "median_ms": 1e3 * statistics.median(seconds)}

    run(8)
    return run


def median_of(runs, key):
    return statistics.median(r[key] for r in runs)


def main():
    time_peer = make_peer()
    ours, peer = [], []
    for _ in range(rounds):
        ours.append(time_ours())
        if time_peer:
            peer.append(time_peer())
    print(f"ours {name} batch={batch} {weights or dtype} threads={threads}: "
          f"{median_of(ours, 'median_ms'):.2f} ms a step "
          f"(best {min(r['best_ms'] for r in ours):.2f}), {median_of(ours, 'gb_per_s'):.1f} GB/s; "
          f"triad {median_of(ours, 'triad'):.1f}, past the caches "
          f"{median_of(ours, 'past_caches'):.1f}, reading {median_of(ours, 'reading'):.1f}: "
          f"{100 * median_of(ours, 'share'):.0f} % of the triad")
    if peer:
        ratio = statistics.median(p["median_ms"] / o["median_ms"] for o, p in zip(ours, peer))
        print(f"Hugging Face {dtype}: {median_of(peer, 'median_ms'):.2f} ms "
              f"(best {min(r['best_ms'] for r in peer):.2f}); ours {ratio:.2f} times as fast")


if __name__ == "__main__":
    main()
