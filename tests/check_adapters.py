#!/usr/bin/env python3
"""Compares adapters (LoRA) of every family with Hugging Face's peft, in both directions:

    check_adapters.py build/release/tests/check_exports [FAMILY ...]

For each kind of model a small base of random parameters is saved by transformers. An adapter of it
is made by this library and loaded by peft, which may find no tensor missing or spare, and one is made
by peft and loaded by this library; with default targets and with all linear layers. Both compute
logits in f32 for a batch of unequal lengths, which have to agree to 1e-5 of the largest; so does the
adapter merged into its base by this library, in transformers. Prints a line for each, and exits 1 if
any differs.

Needs torch, transformers, peft and safetensors; tried with peft 0.21, transformers 5.23 and torch
2.15. It is run by hand, not by the tests.
"""
import json
import sys
import tempfile
import warnings

import peft
import torch
import transformers
from safetensors.torch import load_file

from check_exports import KINDS, Checker, batch_for, compare, disturb, theirs

RANK, ALPHA = 4, 16  # of adapters made here alpha is the library's default
NAMES = {"bert classes", "bert masked", "roberta classes", "roberta masked", "gpt2 lm",
         "gpt2 classes", "gptj lm", "gptj classes", "t5 v1.0", "t5 v1.1", "t5 classes"}


def base_of(kind, folder):
    """A folder of a random model by transformers."""
    name, family, config, heads, architecture = kind
    labels = {"num_labels": 3} if "labels" in heads else {}
    full = transformers.AutoConfig.for_model(family, **config, **labels)
    model = getattr(transformers, architecture)(full)
    disturb(model)
    model.save_pretrained(folder / f"base {name}")
    return folder / f"base {name}"


def plain(kind, base):
    return getattr(transformers, kind[4]).from_pretrained(base, dtype=torch.float32)


class Adapters(Checker):
    def ours_in_peft(self, kind, base, pattern):
        """An adapter of ours, and the two merged, computed there."""
        name, batch = f"{kind[0]}, {pattern}", batch_for(kind)
        adapter, merged = self.folder / f"ours {name}", self.folder / f"merged {name}"
        self.call("adapt", base, adapter, RANK, pattern)
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # of missing tensors, too
            model = peft.PeftModel.from_pretrained(plain(kind, base), adapter)
        saved = set(load_file(adapter / "adapter_model.safetensors"))
        expected = set(peft.get_peft_model_state_dict(model))
        if saved != expected:
            raise RuntimeError(f"{sorted(saved - expected)} spare, {sorted(expected - saved)} missing")
        reference = theirs(model, kind, batch)
        good = compare(f"{name}, made here", self.ours(adapter, batch), reference)
        change = theirs(plain(kind, base), kind, batch)
        if all(torch.allclose(change[k], reference[k], atol=1e-3) for k in reference):
            raise RuntimeError("the adapter changes nothing")
        self.call("merge", adapter, merged)
        good &= compare(f"{name}, merged", theirs(self.load_theirs(kind, merged), kind, batch),
                        reference)
        return good

    def theirs_here(self, kind, base, pattern, **options):
        """An adapter of peft's, computed here."""
        name, batch = f"{kind[0]}, {pattern} {options or ''}", batch_for(kind)
        adapter = self.folder / f"theirs {name}"
        task = {"labels": "SEQ_CLS"}.get(kind[3].split("=")[0].split(",")[-1])
        head = ["classification_head"] if task and kind[1] == "t5" else None
        config = peft.LoraConfig(r=RANK, lora_alpha=10, task_type=task, modules_to_save=head,
                                 fan_in_fan_out=kind[1] == "gpt2",
                                 target_modules=None if pattern == "-" else pattern, **options)
        model = peft.get_peft_model(plain(kind, base), config)
        disturb(model)
        peft.get_peft_model_state_dict(model)
        # the base as it is on disk: only what the adapter holds was changed
        model.save_pretrained(adapter)
        again = peft.PeftModel.from_pretrained(plain(kind, base), adapter)
        text = json.loads((adapter / "adapter_config.json").read_text())
        text["base_model_name_or_path"] = str(base)
        (adapter / "adapter_config.json").write_text(json.dumps(text))
        return compare(f"{name}, made by peft", self.ours(adapter, batch),
                       theirs(again, kind, batch))


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    good = True
    with tempfile.TemporaryDirectory() as folder:
        checker = Adapters(sys.argv[1], folder)
        for kind in KINDS:
            if kind[0] not in NAMES or (sys.argv[2:] and kind[1] not in sys.argv[2:]):
                continue
            base = base_of(kind, checker.folder)
            checks = [(checker.ours_in_peft, "-"), (checker.theirs_here, "-"),
                      (checker.theirs_here, "all-linear")]
            if "masked" not in kind[0]:  # PEFT's all-linear takes the head's dense layer, too
                checks.append((checker.ours_in_peft, "all-linear"))
            for check, pattern in checks:
                try:
                    good &= check(kind, base, pattern)
                except RuntimeError as error:
                    print(f"FAIL {kind[0]}, {pattern}: {error}")
                    good = False
            good &= checker.theirs_here(kind, base, "-", use_rslora=True)
    sys.exit(not good)


if __name__ == "__main__":
    main()
