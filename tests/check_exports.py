#!/usr/bin/env python3
"""Compares every family's files with Hugging Face's transformers, in both directions:

    check_exports.py build/release/tests/check_exports [FAMILY ...]

For each kind of model a small one of random parameters is saved by this library and loaded by
transformers, which may find no tensor missing, spare or of another shape, and one is saved by
transformers and loaded by this library. Both compute logits in f32 for a batch of unequal lengths;
these have to agree to 1e-5 of the largest. Both also save in shards, where the indexes and the files'
tensors have to be the same, byte for byte. Prints a line for each, and exits 1 if any differs.

Needs torch, transformers and safetensors; tried with transformers 5.24 and torch 2.15. It is run by
hand, not by the tests.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file

TOLERANCE = 1e-5
VOCABULARY, LENGTHS, ANSWERS = 50, [9, 4, 1, 6], [3, 5, 1, 4]
PAD, EOS = 0, 1
SHARD_BYTES = 3000  # less than some of the tensors

BERT = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 40,
        "num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 24}
ROBERTA = dict(BERT, max_position_embeddings=26, type_vocab_size=1, pad_token_id=1)
DISTILBERT = {"vocab_size": VOCABULARY, "dim": 16, "hidden_dim": 40, "n_layers": 3, "n_heads": 4,
              "max_position_embeddings": 24}
ELECTRA = dict(BERT, embedding_size=12)
MPNET = dict(BERT, max_position_embeddings=26, pad_token_id=1)
MODERNBERT = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24,
              "num_hidden_layers": 4, "num_attention_heads": 4, "max_position_embeddings": 24,
              "local_attention": 4, "pad_token_id": PAD, "norm_eps": 1e-3}
LONGFORMER = dict(ROBERTA, attention_window=4, layer_norm_eps=1e-3)
GPT = {"vocab_size": VOCABULARY, "n_embd": 16, "n_inner": 40, "n_layer": 2, "n_head": 2,
       "n_positions": 24, "bos_token_id": 2, "eos_token_id": EOS, "pad_token_id": PAD}
GPTJ = dict(GPT, rotary_dim=4)
T5 = {"vocab_size": VOCABULARY, "d_model": 16, "d_ff": 40, "d_kv": 6, "num_heads": 4,
      "num_layers": 2, "num_decoder_layers": 3, "relative_attention_num_buckets": 8,
      "relative_attention_max_distance": 20, "decoder_start_token_id": PAD}
GATED = dict(T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False)

# Model types that are another's family here. They have no ModelCenter form, and transformers lists
# their heads before the base, so that its shards are cut in other places.
FAMILIES = {"xlm-roberta": "roberta", "camembert": "roberta", "mistral": "llama", "qwen2": "llama",
            "qwen3": "llama"}
LLAMA = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
         "max_position_embeddings": 24, "bos_token_id": 2, "eos_token_id": EOS, "pad_token_id": PAD}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 12, "rope_theta": 500.0}
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 12, "rope_theta": 90.0,
        "mscale": 0.5, "mscale_all_dim": 1.5}
WINDOWS = dict(LLAMA, use_sliding_window=True, sliding_window=3, max_window_layers=1)
OPT = {"vocab_size": VOCABULARY, "hidden_size": 16, "ffn_dim": 40, "num_hidden_layers": 2,
       "num_attention_heads": 4, "max_position_embeddings": 24, "bos_token_id": 2, "eos_token_id": EOS,
       "pad_token_id": PAD, "dropout": 0.0}
VIT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
       "image_size": 6, "patch_size": 2}
OPT350 = dict(OPT, word_embed_proj_dim=8, do_layer_norm_before=False)

# A norm before a product in the head and after it in the blocks: ours are all in one order. ViT's
# modules have other names than its files since version 5, which it saves in an order of neither.
OTHER_ORDER = ("electra masked", "electra untied", "vit classes", "vit pooler")

# Families whose files have one name for the bias of the head
ONE_BIAS = ("distilbert", "electra", "modernbert")

# Families of which ModelCenter has some models or none
ONLY_HERE = ("llama", "opt", "distilbert", "electra", "mpnet", "modernbert", "longformer",
             "vit")

# Name, model_type, config, heads as check_exports takes them, transformers' class
KINDS = [
    ("bert base", "bert", BERT, "pooler", "BertModel"),
    ("bert pretraining", "bert", BERT, "lm,nsp,pooler", "BertForPreTraining"),
    ("bert masked", "bert", BERT, "lm", "BertForMaskedLM"),
    ("bert untied", "bert", dict(BERT, tie_word_embeddings=False), "lm,nsp,pooler",
     "BertForPreTraining"),
    ("bert classes", "bert", BERT, "pooler,labels=3", "BertForSequenceClassification"),
    ("bert next sentence", "bert", BERT, "nsp,pooler", "BertForNextSentencePrediction"),
    ("roberta masked", "roberta", ROBERTA, "lm", "RobertaForMaskedLM"),
    ("roberta untied", "roberta", dict(ROBERTA, tie_word_embeddings=False), "lm",
     "RobertaForMaskedLM"),
    ("roberta classes", "roberta", ROBERTA, "labels=3", "RobertaForSequenceClassification"),
    ("xlm-roberta masked", "xlm-roberta", ROBERTA, "lm", "XLMRobertaForMaskedLM"),
    ("xlm-roberta classes", "xlm-roberta", ROBERTA, "labels=3",
     "XLMRobertaForSequenceClassification"),
    ("camembert masked", "camembert", ROBERTA, "lm", "CamembertForMaskedLM"),
    ("distilbert base", "distilbert", DISTILBERT, "", "DistilBertModel"),
    ("distilbert masked", "distilbert", DISTILBERT, "lm", "DistilBertForMaskedLM"),
    ("distilbert untied", "distilbert", dict(DISTILBERT, tie_word_embeddings=False), "lm",
     "DistilBertForMaskedLM"),
    ("distilbert classes", "distilbert", DISTILBERT, "labels=3",
     "DistilBertForSequenceClassification"),
    ("electra base", "electra", ELECTRA, "", "ElectraModel"),
    ("electra masked", "electra", ELECTRA, "lm", "ElectraForMaskedLM"),
    ("electra untied", "electra", dict(ELECTRA, tie_word_embeddings=False), "lm",
     "ElectraForMaskedLM"),
    ("electra replaced", "electra", dict(ELECTRA, embedding_size=16), "replaced",
     "ElectraForPreTraining"),
    ("electra classes", "electra", ELECTRA, "labels=3", "ElectraForSequenceClassification"),
    ("mpnet base", "mpnet", MPNET, "pooler", "MPNetModel"),
    ("mpnet masked", "mpnet", MPNET, "lm", "MPNetForMaskedLM"),
    ("mpnet untied", "mpnet", dict(MPNET, tie_word_embeddings=False), "lm", "MPNetForMaskedLM"),
    ("mpnet classes", "mpnet", MPNET, "labels=3", "MPNetForSequenceClassification"),
    ("modernbert base", "modernbert", MODERNBERT, "", "ModernBertModel"),
    ("modernbert masked", "modernbert", MODERNBERT, "lm", "ModernBertForMaskedLM"),
    ("modernbert untied", "modernbert", dict(MODERNBERT, tie_word_embeddings=False,
                                             local_attention=7), "lm", "ModernBertForMaskedLM"),
    ("modernbert classes", "modernbert", dict(MODERNBERT, global_attn_every_n_layers=2), "labels=3",
     "ModernBertForSequenceClassification"),
    ("modernbert mean", "modernbert", dict(MODERNBERT, classifier_pooling="mean"), "labels=3",
     "ModernBertForSequenceClassification"),
    ("longformer base", "longformer", LONGFORMER, "pooler", "LongformerModel"),
    ("longformer masked", "longformer", dict(LONGFORMER, attention_window=[6, 6, 6]), "lm",
     "LongformerForMaskedLM"),
    ("longformer untied", "longformer", dict(LONGFORMER, tie_word_embeddings=False), "lm",
     "LongformerForMaskedLM"),
    ("longformer classes", "longformer", LONGFORMER, "labels=3",
     "LongformerForSequenceClassification"),
    ("gpt2 lm", "gpt2", GPT, "lm", "GPT2LMHeadModel"),
    ("gpt2 untied", "gpt2", dict(GPT, tie_word_embeddings=False), "lm", "GPT2LMHeadModel"),
    ("gpt2 classes", "gpt2", GPT, "labels=3", "GPT2ForSequenceClassification"),
    ("gptj lm", "gptj", GPTJ, "lm", "GPTJForCausalLM"),
    ("gptj tied", "gptj", dict(GPTJ, tie_word_embeddings=True), "lm", "GPTJForCausalLM"),
    ("gptj classes", "gptj", GPTJ, "labels=3", "GPTJForSequenceClassification"),
    ("llama lm", "llama", LLAMA, "lm", "LlamaForCausalLM"),
    ("llama biases", "llama", dict(LLAMA, attention_bias=True, mlp_bias=True,
                                   tie_word_embeddings=True), "lm", "LlamaForCausalLM"),
    ("llama llama3", "llama", dict(LLAMA, rope_parameters=LLAMA3), "lm", "LlamaForCausalLM"),
    ("llama yarn", "llama", dict(LLAMA, rope_parameters=YARN), "lm", "LlamaForCausalLM"),
    ("llama classes", "llama", LLAMA, "labels=3", "LlamaForSequenceClassification"),
    ("mistral lm", "mistral", dict(LLAMA, sliding_window=3), "lm", "MistralForCausalLM"),
    ("mistral classes", "mistral", LLAMA, "labels=3", "MistralForSequenceClassification"),
    ("qwen2 lm", "qwen2", LLAMA, "lm", "Qwen2ForCausalLM"),
    ("qwen2 windows", "qwen2", WINDOWS, "lm", "Qwen2ForCausalLM"),
    ("qwen3 lm", "qwen3", dict(LLAMA, tie_word_embeddings=True), "lm", "Qwen3ForCausalLM"),
    ("qwen3 windows", "qwen3", WINDOWS, "lm", "Qwen3ForCausalLM"),
    ("qwen3 classes", "qwen3", LLAMA, "labels=3", "Qwen3ForSequenceClassification"),
    ("vit classes", "vit", VIT, "labels=3", "ViTForImageClassification"),
    ("vit pooler", "vit", dict(VIT, hidden_act="relu", image_size=8, patch_size=4), "pooler", "ViTModel"),
    ("opt lm", "opt", OPT, "lm", "OPTForCausalLM"),
    ("opt 350m", "opt", OPT350, "lm", "OPTForCausalLM"),
    ("opt without biases", "opt", dict(OPT, enable_bias=False, activation_function="gelu",
                                       _remove_final_layer_norm=True), "lm", "OPTForCausalLM"),
    ("opt classes", "opt", OPT, "labels=3", "OPTForSequenceClassification"),
    ("opt 350m classes", "opt", OPT350, "labels=3", "OPTForSequenceClassification"),
    ("t5 v1.0", "t5", T5, "lm", "T5ForConditionalGeneration"),
    ("t5 v1.0 untied", "t5", dict(T5, tie_word_embeddings=False), "lm",
     "T5ForConditionalGeneration"),
    ("t5 v1.1", "t5", GATED, "lm", "T5ForConditionalGeneration"),
    ("t5 gated tied", "t5", dict(GATED, tie_word_embeddings=True), "lm",
     "T5ForConditionalGeneration"),
    ("t5 gated silu", "t5", dict(GATED, feed_forward_proj="gated-silu"), "lm",
     "T5ForConditionalGeneration"),
    ("t5 classes", "t5", T5, "labels=3", "T5ForSequenceClassification"),
    ("t5 v1.1 classes", "t5", GATED, "labels=3", "T5ForSequenceClassification"),
]


def tokens(lengths, first, step, end=None):
    """Ids without pad and end tokens, but for `end` at each sequence's end."""
    ids = torch.full((len(lengths), max(lengths)), PAD, dtype=torch.int64)
    for row, length in enumerate(lengths):
        for column in range(length):
            ids[row, column] = 3 + (first + 31 * row + step * column) % (VOCABULARY - 3)
        if end is not None:
            ids[row, length - 1] = end
    return ids


def batch_for(kind):
    """What both sides compute: ids end with the end token, as T5's classifier requires."""
    _, family, config, heads, _ = kind
    if family == "vit":
        size = config["image_size"]
        return {"pixels": torch.sin(torch.arange(3 * 3 * size * size).float()).reshape(3, 3, size, size)}
    batch = {"ids": tokens(LENGTHS, 5, 17, EOS if family == "t5" else None),
             "lengths": torch.tensor(LENGTHS)}
    if "pad_token_id" in config:
        at = torch.arange(max(LENGTHS))[None] >= batch["lengths"][:, None]
        batch["ids"][at] = config["pad_token_id"]
    if family == "t5" and "labels" in heads:  # transformers makes them of the ids
        batch["decoder_ids"] = torch.cat(
            [torch.zeros(len(LENGTHS), 1, dtype=torch.int64), batch["ids"][:, :-1]], 1)
        batch["decoder_lengths"] = batch["lengths"]
    elif family == "t5":
        batch["decoder_ids"] = tokens(ANSWERS, 3, 11)
        batch["decoder_lengths"] = torch.tensor(ANSWERS)
    return batch


def theirs(model, kind, batch):
    """The same outputs as `check_exports run` writes, of a transformers model."""
    _, family, _, heads, _ = kind
    if family == "vit":
        with torch.no_grad():
            out = model.eval()(pixel_values=batch["pixels"])
        if "labels" in heads:
            return {"classes": out.logits}
        return {"hidden": out.last_hidden_state, "pooled": out.pooler_output}
    here = torch.arange(batch["ids"].shape[1])[None] < batch["lengths"][:, None]
    arguments = {"input_ids": batch["ids"], "attention_mask": here.long()}
    if family == "t5" and "labels" not in heads:
        arguments["decoder_input_ids"] = batch["decoder_ids"]
        here = torch.arange(batch["decoder_ids"].shape[1])[None] < batch["decoder_lengths"][:, None]
    with torch.no_grad():
        out = model.eval()(**arguments)
    if "labels" in heads:
        return {"classes": out.logits}
    result = {}
    if "replaced" in heads:
        result["logits"] = (out.logits * here)[:, :, None]
    elif "lm" in heads:
        logits = out.prediction_logits if "prediction_logits" in out else out.logits
        result["logits"] = logits * here[:, :, None]
    elif "nsp" not in heads:
        result["hidden"] = out.last_hidden_state * here[:, :, None]
    if "nsp" in heads:
        result["nsp"] = out.seq_relationship_logits if "lm" in heads else out.logits
    return result


def disturb(model):
    """So that no bias is 0 and no norm's weight 1."""
    torch.manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.6 * (torch.rand_like(p) - 0.5))


def compare(name, ours, reference):
    """Prints and returns whether all reference outputs are there and equal."""
    good, worst = True, 0.0
    for key, expected in reference.items():
        found = ours.get(key)
        if found is None or found.shape != expected.shape:
            print(f"  {key}: {None if found is None else list(found.shape)}, "
                  f"expected {list(expected.shape)}")
            good = False
            continue
        worst = max(worst, ((found - expected).abs().max() / expected.abs().max()).item())
    good = good and worst <= TOLERANCE
    print(f"{'ok  ' if good else 'FAIL'} {name}: {worst:.1e} ({', '.join(reference)})")
    return good


class Checker:
    def __init__(self, program, folder):
        self.program, self.folder = program, pathlib.Path(folder)

    def call(self, *arguments):
        done = subprocess.run([self.program, *map(str, arguments)], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
        if "warning" in done.stderr:
            print(f"  {done.stderr.strip()}")

    def ours(self, model, batch):
        save_file({k: v.clone() for k, v in batch.items()}, self.folder / "in.safetensors")
        self.call("run", model, self.folder / "in.safetensors", self.folder / "out.safetensors")
        return load_file(self.folder / "out.safetensors")

    def load_theirs(self, kind, saved):
        """A folder of ours in transformers, which may miss nothing and have nothing over."""
        model, info = getattr(transformers, kind[4]).from_pretrained(
            saved, output_loading_info=True, dtype=torch.float32)
        architecture = json.loads((saved / "config.json").read_text())["architectures"]
        wrong = {k: v for k, v in info.items() if v}
        if wrong or architecture != [kind[4]]:
            raise RuntimeError(f"{architecture}: {wrong}")
        return model

    def our_save(self, kind):
        name, family, config, heads, _ = kind
        saved = self.folder / f"ours {name}"
        (self.folder / "config.json").write_text(json.dumps(dict(config, model_type=family)))
        self.call("make", FAMILIES.get(family, family), self.folder / "config.json", heads, saved, 0)
        batch = batch_for(kind)
        model = self.load_theirs(kind, saved)
        return compare(f"{name}, saved here", self.ours(saved, batch), theirs(model, kind, batch))

    def their_save(self, kind):
        name, family, config, heads, architecture = kind
        saved = self.folder / f"theirs {name}"
        labels = {"num_labels": 3} if "labels" in heads else {}
        full = transformers.AutoConfig.for_model(family, **config, **labels)
        model = getattr(transformers, architecture)(full)
        disturb(model)
        model.save_pretrained(saved)
        batch = batch_for(kind)
        return compare(f"{name}, saved by transformers", self.ours(saved, batch),
                       theirs(model, kind, batch))


    def shards(self, kind):
        """The same model in small shards, ours, and theirs of ours."""
        name, family, _, heads, _ = kind
        ours, again = self.folder / f"shards {name}", self.folder / f"their shards {name}"
        self.call("make", FAMILIES.get(family, family), self.folder / "config.json", heads, ours, SHARD_BYTES)
        model = self.load_theirs(kind, ours)
        # without this version 5 sorts the tensors of a model that it loaded, of any family
        model.save_pretrained(again, max_shard_size=SHARD_BYTES, save_original_format=False)
        index = "model.safetensors.index.json"
        good = (ours / index).read_bytes() == (again / index).read_bytes()
        files = sorted(p.name for p in again.glob("*.safetensors"))
        good &= files == sorted(p.name for p in ours.glob("*.safetensors"))
        for file in files if good else []:
            x, y = load_file(ours / file), load_file(again / file)
            good &= x.keys() == y.keys() and all(torch.equal(x[k], y[k]) for k in x)
        print(f"{'ok  ' if good else 'FAIL'} {name}, {len(files)} shards")
        return good

    def there_and_back(self, kind):
        """Our model in ModelCenter's form, and from that in Hugging Face's again."""
        name, _, config, heads, _ = kind
        ours, other, again = (self.folder / f"{k} {name}" for k in ("ours", "mc", "again"))
        try:
            self.call("convert", ours, other, "modelcenter")
        except RuntimeError as error:
            named = "labels" in heads or kind[1] in FAMILIES or kind[1] in ONLY_HERE
            if not named or "no ModelCenter form" not in str(error):
                raise
            print(f"ok   {name}: {str(error).split(' (')[0].split('error: ')[-1]}")
            return True
        batch = batch_for(kind)
        expected = theirs(self.load_theirs(kind, ours), kind, batch)
        good = compare(f"{name}, ModelCenter's form", self.ours(other, batch), expected)
        self.call("convert", other, again, "hf")
        found = theirs(self.load_theirs(kind, again), kind, batch)
        return compare(f"{name}, there and back", found, expected) and good

    def two_biases(self, kind):
        """A tied BERT of ours gets a second, different bias of its head."""
        saved = self.folder / f"ours {kind[0]}"
        tensors = load_file(saved / "model.safetensors")
        bias = "cls.predictions.bias" if kind[1] == "bert" else "lm_head.bias"
        second = tensors[bias] + torch.linspace(0, 1, VOCABULARY)
        tensors[bias.replace("bias", "decoder.bias")] = second
        save_file(tensors, saved / "model.safetensors", {"format": "pt"})
        model = getattr(transformers, kind[4]).from_pretrained(saved, dtype=torch.float32)
        batch = batch_for(kind)
        return compare(f"{kind[0]}, two biases", self.ours(saved, batch),
                       theirs(model, kind, batch))


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    good = True
    with tempfile.TemporaryDirectory() as folder:
        checker = Checker(sys.argv[1], folder)
        for kind in KINDS:
            if sys.argv[2:] and kind[1] not in sys.argv[2:]:
                continue
            checks = [checker.our_save, checker.there_and_back, checker.their_save]
            if FAMILIES.get(kind[1]) != "roberta" and kind[0] not in OTHER_ORDER:
                checks.insert(1, checker.shards)
            if kind[0].endswith(" masked") and kind[1] not in ONE_BIAS:
                checks.append(checker.two_biases)
            for check in checks:
                try:
                    good &= check(kind)
                except RuntimeError as error:
                    print(f"FAIL {kind[0]}: {error}")
                    good = False
    sys.exit(not good)


if __name__ == "__main__":
    main()
