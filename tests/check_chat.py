#!/usr/bin/env python3
"""Compares conversations in chat formats with transformers, on random messages:

    check_chat.py LIBRARY VOCABULARIES [SEED [COUNT]]

LIBRARY is libmodelcenter.so. VOCABULARIES is a folder with the folders qwen2, llama3-regex and
mistral-json, each with a tokenizer.json. For every format the script writes a folder with one of
these vocabularies, the format's special tokens and a chat template, which is this script's. The
format has to be found by the template's markers. Text and ids of mc_chat_render and
mc_tokenizer_append have to equal those of apply_chat_template. A difference ends with exit status 1.

Needs transformers; tried with 5.24. It is run by hand, not by the tests.
"""
import ctypes
import json
import os
import random
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
import transformers  # noqa: E402

transformers.logging.set_verbosity_error()

API_VERSION = 1
# Formats: the vocabulary, special tokens to add, bos, eos, and the template.
HEADED = "{%% for m in messages %%}%s{%% endfor %%}{%% if add_generation_prompt %%}%s{%% endif %%}"
TURNS = ("{%% set system = messages[0].content if messages[0].role == 'system' else none %%}"
         "{%% set talk = messages[1:] if system is not none else messages %%}%s"
         "{%% for m in talk %%}{%% if m.role == 'user' %%}%s{%% else %%}%s{%% endif %%}{%% endfor %%}")
FIRST = "{% if loop.first and system is not none %}"
FORMATS = {
    "chatml": ("qwen2", [], None, "<|im_end|>",
               HEADED % ("{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}",
                         "{{ '<|im_start|>assistant\\n' }}")),
    "llama3": ("llama3-regex",
               ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
               "<|begin_of_text|>", "<|eot_id|>",
               "{{ bos_token }}" + HEADED % (
                   "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' }}"
                   "{{ m.content | trim }}{{ '<|eot_id|>' }}",
                   "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}")),
    "llama2": ("mistral-json", [], "<s>", "</s>",
               TURNS % ("", "{{ bos_token + '[INST] ' }}" + FIRST
                        + "{{ ('<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + m.content) | trim }}"
                        + "{% else %}{{ m.content | trim }}{% endif %}{{ ' [/INST]' }}",
                        "{{ ' ' + (m.content | trim) + ' ' + eos_token }}")),
    "zephyr": ("mistral-json", [], "<s>", "</s>",
               HEADED % ("{{ '<|' + m.role + '|>\\n' + m.content + eos_token + '\\n' }}",
                         "{{ '<|assistant|>\\n' }}") + "{# <|user|> #}"),
}
WORDS = ("Hello world the sky is blue because 12345 3.14 don't \u00e4\u00f6\u00fc \u4e2d\u6587 \u0939\u093f "
         "\U0001f600 [INST] <s </ SYS \u00a0 \u3000 a  b \n \n\n \t - `code` def f(x): return").split(" ")


class Message(ctypes.Structure):
    _fields_ = [("role", ctypes.c_char_p), ("content", ctypes.c_char_p)]


class ChatText(ctypes.Structure):
    _fields_ = [("text", ctypes.c_void_p), ("size", ctypes.c_size_t), ("spans", ctypes.c_void_p),
                ("span_count", ctypes.c_size_t)]


class Encoding(ctypes.Structure):
    _fields_ = [("ids", ctypes.POINTER(ctypes.c_int32)), ("type_ids", ctypes.c_void_p),
                ("count", ctypes.c_size_t), ("capacity", ctypes.c_size_t), ("scratch", ctypes.c_void_p)]


class Library:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        signatures = {
            "mc_context_new_as": (pointer, [ctypes.c_int, pointer]),
            "mc_tokenizer_from_pretrained": (pointer, [pointer, ctypes.c_char_p]),
            "mc_error_message": (ctypes.c_char_p, [pointer]),
            "mc_chat_format_choose": (ctypes.c_int, [pointer, pointer, ctypes.c_char_p, pointer]),
            "mc_chat_format_name": (ctypes.c_char_p, [ctypes.c_int]),
            "mc_chat_render": (ctypes.c_int, [pointer, pointer, ctypes.c_int, pointer, size,
                                              ctypes.c_bool, pointer]),
            "mc_tokenizer_append": (ctypes.c_int, [pointer, pointer, size, pointer]),
            "mc_encoding_release": (None, [pointer]),
            "mc_chat_text_release": (None, [pointer]),
        }
        for name, (result, arguments) in signatures.items():
            function = getattr(self.lib, name)
            function.restype, function.argtypes = result, arguments
        self.ctx = self.lib.mc_context_new_as(API_VERSION, None)

    def must(self, good):
        if not good:
            sys.exit(self.lib.mc_error_message(self.ctx).decode())

    def open(self, folder):
        tok = self.lib.mc_tokenizer_from_pretrained(self.ctx, str(folder).encode())
        self.must(tok)
        format = ctypes.c_int()
        self.must(self.lib.mc_chat_format_choose(self.ctx, tok, None, ctypes.byref(format)) == 0)
        return tok, format.value

    def render(self, tok, format, messages, prompt):
        given = (Message * len(messages))(*[(m["role"].encode(), m["content"].encode())
                                            for m in messages])
        chat, encoding = ChatText(), Encoding()
        self.must(self.lib.mc_chat_render(self.ctx, tok, format, given, len(messages), prompt,
                                          ctypes.byref(chat)) == 0)
        text = ctypes.string_at(chat.text, chat.size).decode()
        if self.lib.mc_tokenizer_append(tok, chat.text, chat.size, ctypes.byref(encoding)):
            sys.exit("mc_tokenizer_append failed")
        ids = encoding.ids[:encoding.count]
        self.lib.mc_chat_text_release(ctypes.byref(chat))
        self.lib.mc_encoding_release(ctypes.byref(encoding))
        return text, ids


def write_folder(folder, vocabularies, name):
    vocabulary, tokens, bos, eos, template = FORMATS[name]
    data = json.loads((vocabularies / vocabulary / "tokenizer.json").read_text())
    known = {token["content"] for token in data["added_tokens"]}
    number = 1 + max(max(data["model"]["vocab"].values()),
                     *(token["id"] for token in data["added_tokens"]))
    for token in tokens:
        if token not in known:
            data["added_tokens"].append({"id": number, "content": token, "single_word": False, "lstrip": False,
                                         "rstrip": False, "normalized": False, "special": True})
            number += 1
    (folder / "tokenizer.json").write_text(json.dumps(data))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | ({"bos_token": bos} if bos else {})))


def random_text(rng):
    return "".join(rng.choice(WORDS) + rng.choice(["", " ", " ", "\n"]) for _ in range(rng.choice([1, 2, 5, 20])))


def random_talk(rng):
    """Users and assistants in turns, users first; the last is a user's if an answer is to follow."""
    prompt = rng.random() < 0.5
    system = [{"role": "system", "content": random_text(rng)}] if rng.random() < 0.5 else []
    count = 2 * rng.randint(1, 4) - prompt
    return system + [{"role": ("user", "assistant")[i % 2], "content": random_text(rng)}
                     for i in range(count)], prompt


def main():
    library, vocabularies = Library(sys.argv[1]), Path(sys.argv[2])
    seed, count = [int(v) for v in (sys.argv[3:] + ["1", "300"][len(sys.argv) - 3:])]
    wrong = 0
    for name in FORMATS:
        rng = random.Random(f"{name} {seed}")
        with tempfile.TemporaryDirectory() as folder:
            write_folder(Path(folder), vocabularies, name)
            theirs = transformers.AutoTokenizer.from_pretrained(folder)
            tok, format = library.open(folder)
            found = library.lib.mc_chat_format_name(format).decode()
            exact = 0
            for i in range(count):
                messages, prompt = random_talk(rng)
                how = {"add_generation_prompt": prompt}
                text = theirs.apply_chat_template(messages, tokenize=False, **how)
                ids = theirs.apply_chat_template(messages, tokenize=True, return_dict=False, **how)
                got = library.render(tok, format, messages, prompt)
                same = got == (text, ids)
                exact += same
                if not same and i - exact < 3:
                    print(f"{name}: {messages!r}\n  expected {text!r} {ids}\n  got      {got[0]!r} {got[1]}")
        print(f"{name}: {exact} of {count} exact" + ("" if found == name else f", but found as {found}"))
        wrong += exact < count or found != name
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
