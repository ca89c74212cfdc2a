#!/usr/bin/env python3
"""The peers of bench/encoder.c: forward passes of an encoder alone, the same shapes.

    bench/encoder.py CONFIG BATCH LENGTH [--device cuda] [--dtype bf16] [--compile [MODE]] [--onnx]
                     [--threads N] [--steps N] [--ours PROGRAM]
    bench/encoder.py bert-base-uncased 256 128 --device cuda --dtype bf16 --compile \\
                     --ours build/release/bench/encoder

CONFIG is bert-base-uncased, bert-large-uncased, or a config.json of Hugging Face's or its folder;
weights are random. PyTorch (with transformers, whose attention is
torch.nn.functional.scaled_dot_product_attention) on any device, as it is or compiled (MODE of
torch.compile: max-autotune unless given); --onnx: onnxruntime on the CPU, all optimizations, the
model exported by PyTorch. Medians of five rounds of --steps passes; `cpu` is processor time a pass,
for machines that do other work. With --ours that program, bench/encoder, is run before and after,
in the same way, and the quotient of the medians is printed.
"""

import argparse
import os
import pathlib
import re
import statistics
import subprocess
import tempfile
import time

import torch
from transformers import AutoConfig, AutoModel, BertConfig

SHAPES = {
    "bert-base-uncased": dict(),
    "bert-large-uncased": dict(hidden_size=1024, intermediate_size=4096, num_hidden_layers=24,
                               num_attention_heads=16),
}


def config_of(name):
    if name in SHAPES:
        return BertConfig(**SHAPES[name])
    path = pathlib.Path(name)
    return AutoConfig.from_pretrained(path.parent if path.is_file() else path)


def run_ours(args, family):
    """Sequences a second of bench/encoder, whose line is printed too."""
    command = [args.ours, family, args.config, str(args.batch), str(args.length),
               f"device={args.device}", f"dtype={args.dtype}", f"steps={args.steps}"]
    line = subprocess.run(command, env=dict(os.environ, OMP_NUM_THREADS=str(args.threads)),
                          check=True, capture_output=True, text=True).stdout.strip()
    print(line)
    return float(re.search(r"([0-9.]+) seq/s", line).group(1))


def make_session(model, ids, folder, threads):
    import onnxruntime
    path = os.path.join(folder, "model.onnx")
    torch.onnx.export(model, (ids,), path, input_names=["ids"], dynamo=True,
                      external_data=False, verbose=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    array = ids.numpy()
    return lambda: session.run(None, {"ids": array})


def time_passes(run, steps, wait):
    start, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        run()
    wait()
    return (time.perf_counter() - start) / steps, (time.process_time() - cpu) / steps


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config")
    parser.add_argument("batch", type=int)
    parser.add_argument("length", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="f32", choices=["f32", "bf16"])
    parser.add_argument("--onnx", action="store_true")
    parser.add_argument("--compile", nargs="?", const="max-autotune", metavar="MODE")
    parser.add_argument("--ours", metavar="PROGRAM")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    config = config_of(args.config)
    config.return_dict = False
    ours = [run_ours(args, config.model_type)] if args.ours else []
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[args.dtype]
    model = AutoModel.from_config(config).to(args.device, dtype).eval()
    ids = torch.randint(0, config.vocab_size, (args.batch, args.length), device=args.device)
    wait = torch.cuda.synchronize if args.device != "cpu" else lambda: None
    with torch.inference_mode(), tempfile.TemporaryDirectory() as folder:
        if args.onnx:
            run = make_session(model, ids, folder, args.threads)
        else:
            compiled = torch.compile(model, mode=args.compile) if args.compile else model
            run = lambda: compiled(ids)
        for _ in range(5):
            run()
        wait()
        rounds = [time_passes(run, args.steps, wait) for _ in range(5)]
    wall, cpu = (statistics.median(r[i] for r in rounds) for i in (0, 1))
    name = ("onnxruntime" if args.onnx else f"PyTorch compiled ({args.compile})" if args.compile
            else "PyTorch")
    print(f"{name} {args.batch} x {args.length} {args.dtype}: {1e3 * wall:.3f} ms, "
          f"{args.batch / wall:.1f} seq/s, cpu {1e3 * cpu:.3f} ms")
    if args.ours:
        ours.append(run_ours(args, config.model_type))
        print(f"ours: {statistics.mean(ours) * wall / args.batch:.2f} times {name}")


if __name__ == "__main__":
    main()
