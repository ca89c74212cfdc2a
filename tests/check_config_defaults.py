#!/usr/bin/env python3
"""Compares the tables of configs with the classes of Hugging Face's transformers:

    check_config_defaults.py build/release/tests/check_config_defaults

For each model type that is read: a config.json that names nothing but its type has to be read as
transformers' class makes it, key by key; and a config.json that transformers writes, with the other
names that the class has for some keys, has to be read without a warning, so that none is unknown
here. Prints what differs, and exits 1 if anything does.

Needs transformers; tried with 5.24. It is run by hand, not by the tests.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import transformers

# Keys that the classes do not have, and what they are in the models then.
MODELS_OWN = {
    ("bert", "position_embedding_type"): "absolute",  # the only one, since 5.0
    ("roberta", "position_embedding_type"): "absolute",
    ("xlm-roberta", "position_embedding_type"): "absolute",
    ("electra", "position_embedding_type"): "absolute",
    ("camembert", "position_embedding_type"): "absolute",
    ("longformer", "position_embedding_type"): "absolute",
    ("gpt2", "n_ctx"): 1024,  # an old name of n_positions
    ("t5", "decoder_start_token_id"): 0,  # the class has none, every T5's file says 0
    ("mt5", "scale_decoder_outputs"): False,  # the class does not know it, the model never scales
    ("qwen2", "head_dim"): 128,  # the model reads it from a file, and divides else
    # names before 5.0, which the class reads
    ("modernbert", "global_attn_every_n_layers"): 3,
    ("modernbert", "global_rope_theta"): 160000.0,
    ("modernbert", "local_rope_theta"): 10000.0,
    # keys of the released files, which the class does not have
    ("longformer", "attention_mode"): "longformer",
    ("longformer", "ignore_attention_mask"): False,
    # keys of other models' files; true in one of these is an error here, since its class ignores it
    **{(kind, key): False for kind in ("llama", "mistral", "qwen2", "qwen3") for key in ("rope_interleaved", "use_mrope")},
    # the class drops a window that is not used
    ("qwen2", "sliding_window"): 4096,
    ("qwen3", "sliding_window"): 4096,
}
ABSENT = object()
# Model types that transformers has no class for.
UNKNOWN = {"minicpm"}


def same(ours, theirs):
    if isinstance(ours, (int, float)) and isinstance(theirs, (int, float)):
        return abs(ours - theirs) <= 1e-6 * abs(theirs) and isinstance(ours, bool) == isinstance(theirs, bool)
    return ours == theirs


def compare(program, ours, folder):
    kind = ours.pop("model_type")
    theirs = transformers.AutoConfig.for_model(kind)
    bad = []
    rope = getattr(theirs, "rope_parameters", None) or {}
    older = {"rope_theta": rope.get("rope_theta"), "rope_scaling": None}
    for key, value in ours.items():
        expected = older[key] if rope and key in older else getattr(theirs, key, ABSENT)
        if expected is ABSENT or (kind, key) in MODELS_OWN:
            expected = MODELS_OWN.get((kind, key), ABSENT)
        if key == "classifier_dropout" and expected is None:
            expected = getattr(theirs, "hidden_dropout_prob", ABSENT)
        if key == "n_inner" and expected is None:
            expected = 4 * theirs.n_embd
        if expected is ABSENT or not same(value, expected):
            shown = "nothing" if expected is ABSENT else expected
            bad.append(f"{kind}: {key} is {value} here, {shown} in transformers")
    path = pathlib.Path(folder) / "config.json"
    other_names = {name: getattr(theirs, name) for name in theirs.attribute_map}
    path.write_text(json.dumps(dict(theirs.to_dict(), model_type=kind, **other_names)))
    lines = subprocess.run([program, "read", path], capture_output=True, text=True)
    bad += [f"{kind}: {line}" for line in (lines.stdout + lines.stderr).splitlines()]
    print(f"{kind}: {len(ours)} keys, {'good' if not bad else f'{len(bad)} differ'}")
    return bad


def main():
    program = str(pathlib.Path(sys.argv[1]).resolve())
    lines = subprocess.run([program, "print"], check=True, capture_output=True, text=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        bad = [line for text in lines.splitlines()
               if json.loads(text)["model_type"] not in UNKNOWN
               for line in compare(program, json.loads(text), folder)]
    print("\n".join(bad))
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
