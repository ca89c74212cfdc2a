#!/usr/bin/env python3
"""Compares the tables of keys of the JSON files in a model's folder with the Python packages that read
and write these files:

    check_folder_keys.py build/release/tests/check_folder_keys

A key that a package reads or writes and that no row names would be "not known" in a warning: each one
is printed, and the exit status is 1. Rows that no package knows (any more) are printed as well; older
releases may have written them, so they are no error.

Needs transformers, tokenizers, sentence-transformers and peft; tried with 5.24, 0.23, 6.2 and 0.21. It
is run by hand, not by the tests.
"""
import ast
import dataclasses
import inspect
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import tokenizers
import transformers

# The classes whose folders the tokenizers here read.
CLASSES = ["BertTokenizer", "DistilBertTokenizer", "ConvBertTokenizer", "GPT2Tokenizer", "CodeGenTokenizer",
           "RobertaTokenizer", "T5Tokenizer", "XLMRobertaTokenizer", "PreTrainedTokenizerFast"]
# Methods that see what tokenizer_config.json says, as keyword arguments.
READERS = {"__init__", "_from_pretrained", "from_pretrained", "save_pretrained"}
# What a program passes to from_pretrained or save_pretrained, and names that these use inside.
OF_CALLS = {"_commit_hash", "_from_auto", "_from_pipeline", "_json_padding", "_json_truncation",
            "_spm_precompiled_charsmap", "added_tokens_file", "cache_dir", "chat_template_file", "config",
            "force_download", "added_tokens", "commit_message", "post_processor", "proxies", "repo_id",
            "revision", "save_jinja_files", "subfolder", "token", "tokenizer", "tokenizer_config_file",
            "tokenizer_object", "tokenizer_padding", "tokenizer_truncation", "trust_remote_code",
            "use_auth_token", "resume_download", "tokenizer_type", "special", "args", "kwargs", "self",
            "tokenizers_backend", "default", "additional_kwargs", "maximum", "direction", "strategy",
            "unk_id", "map", "hash", "name", "template", "length"}


def read_by(source):
    """The names that the readers among a module's methods take out of dictionaries of arguments."""
    found = set()
    for method in ast.walk(ast.parse(source)):
        if not isinstance(method, ast.FunctionDef) or method.name not in READERS:
            continue
        for node in ast.walk(method):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                name = node.func.value
                if node.func.attr in ("pop", "get", "setdefault") and isinstance(name, ast.Name) and \
                        "kwargs" in name.id and node.args and isinstance(node.args[0], ast.Constant):
                    found.add(node.args[0].value)
            if isinstance(node, ast.Compare) and isinstance(node.left, ast.Constant) and \
                    isinstance(node.left.value, str) and isinstance(node.comparators[0], ast.Name) and \
                    "kwargs" in node.comparators[0].id:
                found.add(node.left.value)
    return found


def small(name):
    """A tokenizer of a class, of few entries."""
    cls = getattr(transformers, name)
    if name == "PreTrainedTokenizerFast":
        model = tokenizers.Tokenizer(tokenizers.models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
        return cls(tokenizer_object=model, unk_token="[UNK]")
    return cls()


def tokenizer_config():
    package = Path(inspect.getfile(transformers)).parent
    found = set()
    for path in package.glob("tokenization_*.py"):
        found |= read_by(path.read_text())
    for name in CLASSES:
        cls = getattr(transformers, name)
        found |= set(inspect.signature(cls.__init__).parameters)
        found |= read_by(Path(inspect.getfile(cls)).read_text())
        with tempfile.TemporaryDirectory() as folder:
            small(name).save_pretrained(folder)
            found |= set(json.loads(Path(folder, "tokenizer_config.json").read_text()))
    return found - OF_CALLS


def special_tokens_map():
    named = transformers.PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES
    return set(named) | {"additional_special_tokens", "extra_special_tokens"}


def tokenizer_json():
    return set(json.loads(tokenizers.Tokenizer(tokenizers.models.BPE()).to_str()))


def preprocessor_config():
    """What processors of ViT take and save."""
    found = set()
    for name in ("ViTImageProcessor", "ViTImageProcessorPil"):
        cls = getattr(transformers, name)
        try:
            with tempfile.TemporaryDirectory() as folder:
                cls().save_pretrained(folder)
                found |= set(json.loads(Path(folder, "preprocessor_config.json").read_text()))
        except ImportError as error:  # torchvision's
            print(f"{name}: {error}")
    return found


def generation_config():
    own = transformers.GenerationConfig()
    return {key for key in {**vars(own), **own.to_dict()} if not key.startswith("_")}


def adapter_config():
    import peft
    kinds = (peft.LoraConfig, peft.PromptTuningConfig)
    return {field.name for kind in kinds for field in dataclasses.fields(kind)} | {"auto_mapping"}


def module_configs(*names):
    """The keys that modules of sentence-transformers save."""
    from sentence_transformers.base import modules as base
    from sentence_transformers.sentence_transformer import modules as more
    found = set()
    for name in names:
        found |= set((getattr(more, name, None) or getattr(base, name)).config_keys)
    return found


def sentence_transformers_config():
    import sentence_transformers as st
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    with tempfile.TemporaryDirectory() as folder:
        base = transformers.BertModel(transformers.BertConfig(
            vocab_size=5, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8))
        base.save_pretrained(folder)
        small("BertTokenizer").save_pretrained(folder)
        st.SentenceTransformer(modules=[Transformer(folder), Pooling(8)], device="cpu").save(folder)
        return set(json.loads(Path(folder, "config_sentence_transformers.json").read_text()))


SOURCES = {
    "tokenizer_config.json": tokenizer_config,
    "special_tokens_map.json": special_tokens_map,
    "tokenizer.json": tokenizer_json,
    "generation_config.json": generation_config,
    "preprocessor_config.json": preprocessor_config,
    "adapter_config.json": adapter_config,
    "sentence_bert_config.json": lambda: module_configs("Transformer"),
    "1_Pooling/config.json": lambda: module_configs("Pooling"),
    "2_Dense/config.json": lambda: module_configs("Dense"),
    "config_sentence_transformers.json": sentence_transformers_config,
}


def is_known(key, rows):
    return key in rows or any(row[0] == "*" and key.endswith(row[1:]) for row in rows)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    printed = subprocess.run([sys.argv[1]], check=True, capture_output=True, text=True).stdout
    tables = {}
    for line in printed.splitlines():
        file, key, meaning, harmless = line.split("\t")
        tables.setdefault(file, []).append(key)
        if harmless:
            json.loads(harmless)  # is JSON
    missing = False
    for file, rows in tables.items():
        if file not in SOURCES:
            print(f"{file}: nothing to compare it with")
            missing = True
            continue
        theirs = SOURCES[file]()
        unknown = sorted(key for key in theirs if not is_known(key, rows))
        spare = sorted(row for row in rows if row[0] != "*" and row not in theirs)
        missing = missing or bool(unknown)
        print(f"{file}: {len(rows)} rows, {len(theirs)} keys of the packages")
        for key in unknown:
            print(f"  no row: {key}")
        if spare:
            print(f"  rows beyond them: {', '.join(spare)}")
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
