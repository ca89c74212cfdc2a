#!/bin/sh
# Guess: adding "rope_scaling" (YaRN for longer texts, as Qwen's pages show it) to a config.json adds a scaling; the
# rotary base stays what the file has.
# Really: transformers 5 saves the base within "rope_parameters". "rope_scaling" in such a file replaces that object
# whole, base included: 1,000,000 becomes the default of 10,000. In a file of version 4, where "rope_theta" is a key of
# its own, the same lines are right. A "rope_theta" beside "rope_parameters" has no effect at all. No warning.
# Why users meet it: models are published in version 4's form, and so are instructions for them. save_pretrained of
# version 5, after fine-tuning for instance, writes the other form, and the edit then moves every position.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
cd "$dir"
export HF_HUB_OFFLINE=1
python3 -m venv venv
venv/bin/pip install --quiet transformers==5.24.0

venv/bin/python - 2>messages <<'END' || { cat messages; exit 1; }
import json
import os
import warnings

import transformers
from transformers import AutoConfig, Qwen2Config

print("transformers", transformers.__version__)
warnings.simplefilter("error")
transformers.logging.set_verbosity_warning()
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
old = {"model_type": "qwen2", "rope_theta": 1000000.0}


def read(config):
    os.makedirs("model", exist_ok=True)
    with open("model/config.json", "w") as file:
        json.dump(config, file)
    return AutoConfig.from_pretrained("model")


read(old).save_pretrained("saved")
with open("saved/config.json") as file:
    new = json.load(file)
assert "rope_theta" not in new and new["rope_parameters"]["rope_theta"] == 1000000
bases = {}
for name, config in (("version 4's file", old), ("version 4's file and rope_scaling", {**old, "rope_scaling": YARN}),
                     ("saved by version 5", new),
                     ("saved by version 5, and rope_scaling", {**new, "rope_scaling": YARN}),
                     ("saved by version 5, and rope_theta of 5,000,000", {**new, "rope_theta": 5000000.0})):
    rope = read(config).rope_parameters
    bases[name] = rope["rope_theta"]
    print(f"{name}: {rope}")
assert list(bases.values()) == [1000000, 1000000, 1000000, 10000, 1000000], bases
END
cat messages
if grep -q -i rope messages; then exit 1; fi
