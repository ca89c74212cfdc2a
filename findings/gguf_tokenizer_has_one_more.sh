#!/bin/sh
# Guess: AutoTokenizer.from_pretrained(gguf_file=...) has the tokens of the file, as many as the model has embeddings.
# Really: where the file has no token "<|endoftext|>" and names no unknown token, as files with Llama 3's tokens do,
# transformers adds one of that text after the last: len(tokenizer) is one more than there are embeddings, and a
# text that contains it gets an id that the model has no row for.
# Why users meet it: training scripts enlarge the embeddings wherever len(tokenizer) is larger, so that a model whose
# vocabulary is that of the file leaves with another shape, and "<|endoftext|>" is common in texts that
# were collected for GPT-2.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
cd "$dir"
export HF_HUB_OFFLINE=1
python3 -m venv venv
venv/bin/pip install --quiet torch==2.15.0 numpy==2.4.6 transformers==5.24.0 gguf==0.19.0 accelerate==1.15.0

venv/bin/python - <<'END'
import importlib.metadata

import gguf
import numpy as np
import transformers
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

print("transformers", transformers.__version__, "gguf", importlib.metadata.version("gguf"))
DIM, HEADS, FF = 16, 2, 32
tokens = ["<|begin_of_text|>", "<|end_of_text|>"] + sorted(pre_tokenizers.ByteLevel.alphabet()) + ["in"]
w = gguf.GGUFWriter("model.gguf", "llama")
w.add_block_count(1)
w.add_context_length(32)
w.add_embedding_length(DIM)
w.add_feed_forward_length(FF)
w.add_head_count(HEADS)
w.add_head_count_kv(HEADS)
w.add_layer_norm_rms_eps(1e-5)
w.add_rope_dimension_count(DIM // HEADS)
w.add_vocab_size(len(tokens))
w.add_tokenizer_model("gpt2")
w.add_tokenizer_pre("llama-bpe")
w.add_token_list(tokens)
w.add_token_types([gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.NORMAL] * (len(tokens) - 2))
w.add_token_merges(["i n"])
w.add_bos_token_id(0)
w.add_eos_token_id(1)
rng = np.random.default_rng(0)
shapes = {"token_embd": (len(tokens), DIM), "output": (len(tokens), DIM), "output_norm": (DIM,)}
shapes |= {f"blk.0.attn_{k}": (DIM, DIM) for k in ("q", "k", "v", "output")}
shapes |= {"blk.0.attn_norm": (DIM,), "blk.0.ffn_norm": (DIM,), "blk.0.ffn_gate": (FF, DIM), "blk.0.ffn_up": (FF, DIM),
           "blk.0.ffn_down": (DIM, FF)}
for name, shape in shapes.items():
    w.add_tensor(name + ".weight", rng.standard_normal(shape).astype(np.float32))
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()

tokenizer = AutoTokenizer.from_pretrained(".", gguf_file="model.gguf")
model = AutoModelForCausalLM.from_pretrained(".", gguf_file="model.gguf")
rows = model.get_input_embeddings().weight.shape[0]
more = [t for t, i in tokenizer.get_vocab().items() if i >= len(tokens)]
ids = tokenizer("in<|endoftext|>", add_special_tokens=False)["input_ids"]
print(f"{len(tokens)} tokens in the file, {rows} embeddings, len(tokenizer) {len(tokenizer)}, added {more}, "
      f"ids of in<|endoftext|>: {ids}")
assert rows == len(tokens) and len(tokenizer) == rows + 1 and more == ["<|endoftext|>"]
assert ids == [len(tokens) - 1, rows]
END
