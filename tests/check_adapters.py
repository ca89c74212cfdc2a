#!/usr/bin/env python3
"""Compares adapters (LoRA, soft prompts) of every family with Hugging Face's peft, in both directions:

    check_adapters.py build/release/tests/check_exports [FAMILY ...]

For each kind of model a small base of random parameters is saved by transformers. An adapter of it
is made by this library and loaded by peft, which may find no tensor missing or spare, and one is made
by peft and loaded by this library; with default targets and with all linear layers. Both compute
logits in f32 for a batch of unequal lengths, which have to agree to 1e-5 of the largest; so does the
adapter merged into its base by this library, in transformers. So do adapters that hold tables of the
base: of words and head, resized ones, and modules to save that are one table in the base. Of soft
prompts the same without merging, and the tokens that both generate. Prints a line for each, and exits
1 if any differs.

Needs torch, transformers, peft and safetensors; tried with peft 0.21, transformers 5.24 and torch
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
VIRTUAL, GENERATED = 5, 6  # virtual tokens, and tokens that are generated
NAMES = {"bert classes", "bert masked", "roberta classes", "roberta masked", "gpt2 lm",
         "gpt2 classes", "gptj lm", "gptj classes", "t5 v1.0", "t5 v1.1", "t5 classes", "llama lm",
         "llama biases", "llama classes", "mistral lm", "qwen2 lm", "qwen3 lm", "opt lm", "opt 350m",
         "opt classes"}
DECODERS = ("gpt2", "gptj", "llama", "mistral", "qwen2", "qwen3", "opt")


def base_of(kind, folder):
    """A folder of a random model by transformers."""
    torch.manual_seed(0)  # whatever was checked before
    name, family, config, heads, architecture = kind
    labels = {"num_labels": 3} if "labels" in heads else {}
    full = transformers.AutoConfig.for_model(family, **config, **labels)
    model = getattr(transformers, architecture)(full)
    disturb(model)
    model.save_pretrained(folder / f"base {name}")
    return folder / f"base {name}"


def plain(kind, base):
    return getattr(transformers, kind[4]).from_pretrained(base, dtype=torch.float32)


def load_in_peft(kind, base, adapter):
    """A folder of ours in peft, which may miss nothing and have nothing over."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # of missing tensors, too
        warnings.filterwarnings("ignore", message=".*tie")  # which is what is checked
        model = peft.PeftModel.from_pretrained(plain(kind, base), adapter)
    saved = set(load_file(adapter / "adapter_model.safetensors"))
    expected = set(peft.get_peft_model_state_dict(model))
    if saved != expected:
        raise RuntimeError(f"{sorted(saved - expected)} spare, {sorted(expected - saved)} missing")
    return model


def head_saved(kind):
    """PEFT's task type of a classifier, and what it has to be told to save of it."""
    task = {"labels": "SEQ_CLS"}.get(kind[3].split("=")[0].split(",")[-1])
    return task, ["classification_head"] if task and kind[1] == "t5" else None


class OwnRows:
    """A model with a soft prompt whose logits are of the text's tokens alone, as ours are. Decoders
    classify a sequence by itself: transformers takes a padded one's last row, padding or not."""

    def __init__(self, model, kind):
        self.model, self.alone = model, kind[1] in DECODERS and "labels" in kind[3]
        self.cut = 0 if kind[1] == "t5" or "labels" in kind[3] else VIRTUAL

    def eval(self):
        self.model.eval()
        return self

    def one(self, input_ids, attention_mask):
        n = int(attention_mask.sum())
        return self.model(input_ids=input_ids[:n][None], attention_mask=attention_mask[:n][None])

    def __call__(self, **batch):
        if self.alone:
            rows = [self.one(*row) for row in zip(batch["input_ids"], batch["attention_mask"])]
            return transformers.modeling_outputs.SequenceClassifierOutput(
                logits=torch.cat([row.logits for row in rows]))
        out = self.model(**batch)
        out.logits = out.logits[:, self.cut:] if self.cut else out.logits
        return out


# Modules to save that are tables, by kinds of models.
TABLES = {"gpt2 lm": ["wte", "lm_head", "wte,lm_head"], "gptj lm": ["wte", "wte,lm_head"],
          "gptj tied": ["wte", "lm_head"], "gpt2 classes": ["wte,score"],
          "bert classes": ["word_embeddings,classifier"],
          "roberta classes": ["word_embeddings,classifier"],
          "llama lm": ["embed_tokens", "embed_tokens,lm_head"], "qwen3 lm": ["embed_tokens"],
          "opt lm": ["embed_tokens"]}
MORE_WORDS = 3


class Adapters(Checker):
    def ours_in_peft(self, kind, base, pattern):
        """An adapter of ours, and the two merged, computed there."""
        name, batch = f"{kind[0]}, {pattern}", batch_for(kind)
        adapter, merged = self.folder / f"ours {name}", self.folder / f"merged {name}"
        self.call("adapt", base, adapter, RANK, pattern)
        model = load_in_peft(kind, base, adapter)
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
        task, head = head_saved(kind)
        config = peft.LoraConfig(r=RANK, lora_alpha=10, task_type=task, modules_to_save=head,
                                 fan_in_fan_out=kind[1] == "gpt2",
                                 target_modules=None if pattern == "-" else pattern, **options)
        model = peft.get_peft_model(plain(kind, base), config)
        disturb(model)
        peft.get_peft_model_state_dict(model)
        # the base as it is on disk: only what the adapter holds was changed
        model.save_pretrained(adapter)
        again = peft.PeftModel.from_pretrained(plain(kind, base), adapter)
        self.name_base(adapter, base)
        return compare(f"{name}, made by peft", self.ours(adapter, batch),
                       theirs(again, kind, batch))

    def modules_both_ways(self, kind, base, modules):
        """Tables that are trained whole: an adapter of ours there, one of peft's here, both merged."""
        name, batch = f"{kind[0]}, {modules} saved", batch_for(kind)
        ours, merged = self.folder / f"ours {name}", self.folder / f"merged {name}"
        self.call("adapt", base, ours, RANK, "-", modules)
        reference = theirs(load_in_peft(kind, base, ours), kind, batch)
        good = compare(f"{name}, made here", self.ours(ours, batch), reference)
        self.call("merge", ours, merged)
        good &= compare(f"{name}, merged", self.ours(merged, batch), reference)
        good &= compare(f"{name}, merged, there",
                        theirs(self.load_theirs(kind, merged), kind, batch), reference)
        adapter = self.folder / f"theirs {name}"
        config = peft.LoraConfig(r=RANK, task_type=head_saved(kind)[0],
                                 modules_to_save=modules.split(","), fan_in_fan_out=kind[1] == "gpt2")
        model = peft.get_peft_model(plain(kind, base), config)
        disturb(model)
        model.save_pretrained(adapter)
        again = peft.PeftModel.from_pretrained(plain(kind, base), adapter)
        self.name_base(adapter, base)
        return good & compare(f"{name}, made by peft", self.ours(adapter, batch),
                              theirs(again, kind, batch))

    def tables_here(self, kind, base, rows):
        """An adapter of peft's that holds the tables of words and head, of `rows` more words."""
        name, batch = f"{kind[0]}, tables of {rows} more words", batch_for(kind)
        adapter = self.folder / f"theirs {name}"

        def resized():
            model = plain(kind, base)
            if rows:
                model.resize_token_embeddings(model.config.vocab_size + rows, mean_resizing=False)
            return model

        task, head = head_saved(kind)
        model = peft.get_peft_model(resized(), peft.LoraConfig(
            r=RANK, task_type=task, modules_to_save=head, fan_in_fan_out=kind[1] == "gpt2"))
        disturb(model)
        model.save_pretrained(adapter, save_embedding_layers=True)
        reference = theirs(peft.PeftModel.from_pretrained(resized(), adapter), kind, batch)
        self.name_base(adapter, base)
        return compare(f"{name}, made by peft", self.ours(adapter, batch), reference)

    def no_tables(self, kind, base):
        """Words that neither stack of T5 would read in PEFT are refused, and so is an unknown name."""
        good = True
        for modules, part in (("shared", "neither stack"), ("nothing", "no module to save")):
            try:
                self.call("adapt", base, self.folder / "none", RANK, "-", modules)
                refused = False
            except RuntimeError as error:
                refused = part in str(error)
            print(f"{'ok  ' if refused else 'FAIL'} {kind[0]}, {modules} refused")
            good &= refused
        return good

    @staticmethod
    def name_base(adapter, base):
        text = json.loads((adapter / "adapter_config.json").read_text())
        text["base_model_name_or_path"] = str(base)
        (adapter / "adapter_config.json").write_text(json.dumps(text))

    def same_answers(self, name, kind, adapter, model):
        """Whether both go on with the same most probable tokens."""
        batch = batch_for(kind)
        self.call("generate", adapter, self.folder / "in.safetensors",
                  self.folder / "out.safetensors", GENERATED)
        ours, good = load_file(self.folder / "out.safetensors")["tokens"].long().tolist(), True
        for ids, length, answer in zip(batch["ids"], batch["lengths"].tolist(), ours):
            given = {"input_ids": ids[:length][None],
                     "attention_mask": torch.ones(1, length, dtype=torch.int64)}
            # with the cache peft 0.21.2 and transformers 5.24 put the virtual tokens before each further
            # token again; T5's has as many layers as the encoder, which is too few here
            out = model.eval().generate(**given, max_new_tokens=GENERATED, do_sample=False,
                                        use_cache=False)[0]
            expected = out[1 if kind[1] == "t5" else length:].tolist()
            good &= expected == [token for token in answer if token >= 0]
        print(f"{'ok  ' if good else 'FAIL'} {name}, generated")
        return good

    def our_prompt_in_peft(self, kind, base):
        name, batch = f"{kind[0]}, soft prompt", batch_for(kind)
        adapter = self.folder / f"our prompt {kind[0]}"
        self.call("prompt", base, adapter, VIRTUAL)
        model = load_in_peft(kind, base, adapter)
        reference = theirs(OwnRows(model, kind), kind, batch)
        change = theirs(plain(kind, base), kind, batch)
        if all(torch.allclose(change[k], reference[k], atol=1e-3) for k in reference):
            raise RuntimeError("the soft prompt changes nothing")
        good = compare(f"{name}, made here", self.ours(adapter, batch), reference)
        return good and ("lm" not in kind[3] or kind[1] in ("bert", "roberta") or
                         self.same_answers(name, kind, adapter, model))

    def their_prompt_here(self, kind, base):
        name, batch = f"{kind[0]}, soft prompt", batch_for(kind)
        adapter = self.folder / f"their prompt {kind[0]}"
        task = head_saved(kind)[0] or ("CAUSAL_LM" if kind[1] in DECODERS else
                                       {"t5": "SEQ_2_SEQ_LM"}.get(kind[1], "FEATURE_EXTRACTION"))
        model = peft.get_peft_model(
            plain(kind, base), peft.PromptTuningConfig(task_type=task, num_virtual_tokens=VIRTUAL))
        torch.manual_seed(2)
        with torch.no_grad():
            for p in model.parameters():
                if p.requires_grad:
                    p.add_(0.6 * (torch.rand_like(p) - 0.5))
        model.save_pretrained(adapter)
        self.name_base(adapter, base)
        return compare(f"{name}, made by peft", self.ours(adapter, batch),
                       theirs(OwnRows(model, kind), kind, batch))

    def no_prompt(self, kind, base):
        """What transformers has no way for is an error here."""
        try:
            self.call("prompt", base, self.folder / "none", VIRTUAL)
        except RuntimeError as error:
            good = "takes no virtual tokens" in str(error)
            print(f"{'ok  ' if good else 'FAIL'} {kind[0]}, soft prompt refused")
            return good
        print(f"FAIL {kind[0]}, soft prompt not refused")
        return False


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
            if kind[0] not in NAMES | set(TABLES) or (sys.argv[2:] and kind[1] not in sys.argv[2:]):
                continue
            base = base_of(kind, checker.folder)
            tables = [(checker.modules_both_ways, modules) for modules in TABLES.get(kind[0], [])]
            if "masked" not in kind[0]:
                tables += [(checker.tables_here, 0), (checker.tables_here, MORE_WORDS)]
            for check, what in tables:
                try:
                    good &= check(kind, base, what)
                except RuntimeError as error:
                    print(f"FAIL {kind[0]}, {what}: {error}")
                    good = False
            if kind[1] == "t5":
                good &= checker.no_tables(kind, base)
            if kind[0] not in NAMES:
                continue
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
            prompts = [checker.our_prompt_in_peft, checker.their_prompt_here]
            if kind[0] == "opt 350m":  # PEFT's virtual tokens are as wide as the model, its words are not
                prompts = prompts[:1]
            for check in [checker.no_prompt] if kind[0] == "t5 classes" else prompts:
                try:
                    good &= check(kind, base)
                except RuntimeError as error:
                    print(f"FAIL {kind[0]}, soft prompt: {error}")
                    good = False
    sys.exit(not good)


if __name__ == "__main__":
    main()
