"""The peer of zoo_step on several GPUs: Hugging Face's Llama with FSDP2, compiled block by block.

    torchrun --nproc_per_node 2 bench/fsdp_step.py llama-3-8b 2 2048 STEPS recompute=selective [fp8=tensorwise]

f32 shards, gathered and reduced in bf16; fused AdamW, gradients clipped to 1; random weights and tokens;
attention by cuDNN. recompute: none, selective (results of products and of attention are kept), or full. The
head and its loss are computed for 2048 tokens at a time, and again in backward, since whole logits don't fit.
With fp8 torchao converts the layers' products (tensorwise scales, weights gathered in 8 bits).
Prints the median of a step in milliseconds, tokens a second of a GPU, and the peak of memory."""
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

if "fp8=tensorwise" in sys.argv:
    from torchao.float8 import (Float8LinearConfig, convert_to_float8_training,
                                precompute_float8_dynamic_scale_for_fsdp)

SHAPES = {
    "llama-3-8b": dict(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
                       num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=8192),
    "tiny": dict(vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                 num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256),
}
CHUNK = 2048  # tokens of the loss
name, batch, length, steps = sys.argv[1], *map(int, sys.argv[2:5])
recompute = next((w[10:] for w in sys.argv[5:] if w.startswith("recompute=")), "none")
eight_bits = "fp8=tensorwise" in sys.argv[5:]
gpu = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
if gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if gpu else "gloo")
KEPT = {torch.ops.aten.mm.default, torch.ops.aten._scaled_dot_product_cudnn_attention.default,
        torch.ops.aten._scaled_dot_product_flash_attention.default}


def keep(_context, operation, *_arguments, **_options):
    return CheckpointPolicy.MUST_SAVE if operation in KEPT else CheckpointPolicy.PREFER_RECOMPUTE


def loss_of_chunk(head, hidden, labels):
    return torch.nn.functional.cross_entropy(head(hidden).float(), labels, reduction="sum")


class Training(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.model = LlamaForCausalLM(config)
        self.loss = torch.compile(loss_of_chunk)

    def forward(self, ids):
        hidden = self.model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1].flatten(0, 1)
        labels = ids[:, 1:].flatten()
        parts = [checkpoint(self.loss, self.model.lm_head, h, t, use_reentrant=False)
                 for h, t in zip(hidden.split(CHUNK), labels.split(CHUNK))]
        return torch.stack(parts).sum() / labels.numel()


config = LlamaConfig(attn_implementation="sdpa", rms_norm_eps=1e-5, tie_word_embeddings=False,
                     rope_parameters=dict(rope_type="default", rope_theta=5e5), **SHAPES[name])
torch.manual_seed(0)
with torch.device("meta"):
    training = Training(config)
layers = training.model.model.layers
if eight_bits:
    convert_to_float8_training(
        layers, config=Float8LinearConfig(enable_fsdp_float8_all_gather=True, emulate=not gpu))
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
for i, layer in enumerate(layers):
    if recompute != "none":
        chosen = dict(context_fn=lambda: create_selective_checkpoint_contexts(keep)) if recompute == "selective" else {}
        layer = layers[i] = checkpoint_wrapper(layer, preserve_rng_state=False, **chosen)
    layer.compile()
    fully_shard(layer, mp_policy=policy)
fully_shard(training, mp_policy=policy)
training.to_empty(device=device)
training.model.model.rotary_emb = LlamaRotaryEmbedding(config).to(device)
with torch.no_grad():
    for p in training.parameters():
        p.to_local().normal_(0, 0.02) if p.dim() > 1 else p.to_local().fill_(1)
optimizer = torch.optim.AdamW(training.parameters(), lr=1e-4, weight_decay=0.01, fused=True)


def step():
    ids = torch.randint(1, config.vocab_size, (batch, length), device=device)
    optimizer.zero_grad(set_to_none=True)
    if gpu:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            loss = training(ids)
    else:
        loss = training(ids)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(training.parameters(), 1.0)
    optimizer.step()
    if eight_bits:
        precompute_float8_dynamic_scale_for_fsdp(training)
    return loss


times = []
for i in range(steps + 5):
    if gpu:
        torch.cuda.synchronize()
    start = time.perf_counter()
    loss = step().item()
    if gpu:
        torch.cuda.synchronize()
    if i >= 5:
        times.append(time.perf_counter() - start)
if dist.get_rank() == 0:
    seconds = statistics.median(times)
    peak = torch.cuda.max_memory_allocated() / 2**30 if gpu else 0
    print(f"peer fsdp2 {name} ranks={dist.get_world_size()} batch={batch} length={length} recompute={recompute} "
          f"{'fp8=tensorwise ' if eight_bits else ''}"
          f"loss={loss:.3f} ms={1e3 * seconds:.1f} tokens_per_s_gpu={batch * length / seconds:.0f} "
          f"peak_gib={peak:.2f}", flush=True)
dist.destroy_process_group()
