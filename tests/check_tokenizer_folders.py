#!/usr/bin/env python3
"""Compares what tokenizers make of a folder's files with Hugging Face's transformers:

    check_tokenizer_folders.py build/release/bin/modelcenter [SEED [COUNT]]

Each folder has a small vocabulary (WordPiece or byte-level BPE, as a tokenizer.json or as files of their
own, or a SentencePiece model as T5's class reads it), and settings drawn at random: tokenizer_config.json, special_tokens_map.json, added_tokens.json,
classes, special tokens as texts and as objects, added tokens that conflict with entries, sides and
lengths. The ids of some texts have to be the same, alone, in pairs and cut. A folder that transformers
opens and this library refuses is printed with the reason; a difference ends with exit status 1.

Needs transformers and sentencepiece; tried with 5.24, tokenizers 0.23.3 and 0.2.3. It is run by hand, not by the tests.
"""
import functools
import io
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
import sentencepiece  # noqa: E402
import transformers  # noqa: E402
from transformers.convert_slow_tokenizer import bytes_to_unicode  # noqa: E402

transformers.logging.set_verbosity_error()

WORDS = ("[PAD] [UNK] [CLS] [SEP] [MASK] <unk> <cls> <m> hello world the king a b c ! , . ' ##s ##ing k "
         "##ing s cafe caf\u00e9 Hello K \u4e2d \u6587 ##\u6587 n ##e ##w ##t ##o ##k < > x ##x [ ]").split()
TEXTS = ["the king's caf\u00e9", "Hello WORLD, hello!", "a <x> b<y>c", "a  <m> b [MASK] c", "newtok NEWTOK x",
         "\u4e2d\u6587 king", "", " a", "<z> [ENT][ent] <unk>", "a b c a b c a b c the king"]
PIECE_TEXTS = ["the king of a <extra_id_0> land", "<extra_id_1> newtok", "dog <x> ran <y> over <extra_id_2>",
               "hill [ENT] <pad> <extra_id_99>", "a day</s>", "<z>"]
NEW = ["<x>", "<y>", "<z>", "[ENT]", "newtok", "king"]


def byte_bpe():
    letters = bytes_to_unicode().values()
    vocab = {letter: number for number, letter in enumerate(sorted(letters))}
    merges = ["t h", "th e", "\u0120 the", "k i", "n g", "ki ng", "\u0120 king", "h e", "\u0120 a", "a b", "l l"]
    for merge in merges:
        vocab.setdefault(merge.replace(" ", ""), len(vocab))
    vocab["<|endoftext|>"] = len(vocab)
    return vocab, merges


def added(rng, text, **more):
    token = {"content": text, "lstrip": rng.random() < 0.3, "rstrip": rng.random() < 0.3,
             "single_word": rng.random() < 0.2, "normalized": rng.random() < 0.3,
             "special": rng.random() < 0.6}
    return {**token, **more}


def token_value(rng, text):
    """A special token as a configuration names it."""
    return text if rng.random() < 0.6 else added(rng, text, __type="AddedToken")


def word_piece(rng, folder, files):
    words = list(dict.fromkeys(WORDS))
    for _ in range(rng.choice([0, 0, 0, 1, 2])):
        words.insert(rng.randrange(8, len(words)), rng.choice(["", "a", "king"]))
    if rng.random() < 0.7 or len(set(words)) < len(words) or "" in words:
        Path(folder, "vocab.txt").write_text("\n".join(words) + "\n")
        return "vocab.txt"
    normalizer = rng.choice([None, {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                                    "strip_accents": None, "lowercase": rng.random() < 0.5},
                             {"type": "Sequence", "normalizers": []}, {"type": "NFC"}, {"type": "NFKC"}])
    around = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
              {"SpecialToken": {"id": "[SEP]", "type_id": 0}}]
    files["tokenizer.json"] = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [added(rng, text, id=words.index(text) if text in words else len(words) + k)
                         for k, text in enumerate(rng.sample(NEW, rng.choice([0, 1, 2])))],
        "normalizer": normalizer, "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing", "single": around,
                           "pair": around + [{"Sequence": {"id": "B", "type_id": 1}}],
                           "special_tokens": {t: {"id": t, "ids": [words.index(t)], "tokens": [t]}
                                              for t in ("[CLS]", "[SEP]")}},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": {w: k for k, w in enumerate(words)}}}
    return "tokenizer.json"


def bpe(rng, folder, files):
    vocab, merges = byte_bpe()
    if rng.random() < 0.5:
        files["vocab.json"] = vocab
        Path(folder, "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
        return "vocab.json"
    files["tokenizer.json"] = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [added(rng, text, id=vocab.get(text, len(vocab) + k))
                         for k, text in enumerate(rng.sample(NEW, rng.choice([0, 1, 2])))],
        "normalizer": rng.choice([None, None, {"type": "NFC"}, {"type": "NFKC"},
                                  {"type": "Sequence", "normalizers": []}]),
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": rng.random() < 0.3, "trim_offsets": True,
                          "use_regex": True},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False,
                           "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "vocab": vocab,
                  "merges": merges}}
    return "tokenizer.json"


@functools.lru_cache(maxsize=None)
def trained_pieces(padding):
    rng, model = random.Random(0), io.BytesIO()
    words = "the king of a land and his dog ran over hill newtok and king's cafe on a day < > x y z".split()
    lines = (" ".join(rng.choice(words) for _ in range(8)) for _ in range(300))
    ids = {"pad_id": 0, "bos_id": -1} if padding else {"pad_id": -1, "bos_id": 0}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines, model_writer=model, minloglevel=3, vocab_size=60, hard_vocab_limit=False,
        eos_id=1, unk_id=2, model_type="unigram", **ids)
    return model.getvalue()


def piece_model(rng, folder, files):
    model = trained_pieces(rng.random() < 0.8)
    Path(folder, "spiece.model").write_bytes(model)
    size = sentencepiece.SentencePieceProcessor(model_proto=model).get_piece_size()
    config, new = {}, rng.sample(NEW[:5], 5)
    count = rng.choice([None, 0, 1, 3, 100])
    own = [f"<extra_id_{k}>" for k in range(100 if count is None else count)]
    if count is not None:
        config["extra_ids"] = count
    if rng.random() < 0.6:
        config["tokenizer_class"] = rng.choice(["T5Tokenizer", "T5TokenizerFast", "MT5Tokenizer"])
    if rng.random() < 0.3:
        config["image_token"] = token_value(rng, new.pop())
    if rng.random() < 0.3:
        config["pad_token"] = token_value(rng, "<pad>")
    if rng.random() < 0.5:
        listed = rng.choice([own, own[:1], []]) + rng.choice([[], [new[0]], new[:2]])
        config[rng.choice(["additional_special_tokens", "extra_special_tokens"])] = listed
    if rng.random() < 0.3:
        config["added_tokens_decoder"] = {
            str(number): added(rng, text)
            for number, text in zip(rng.sample(range(30, 200), 3), rng.sample(NEW[:5] + own[:2], 3))}
    if rng.random() < 0.8:
        files["tokenizer_config.json"] = config
    if rng.random() < 0.3:
        files["special_tokens_map.json"] = {"eos_token": "</s>", "additional_special_tokens": new[:2]}
        if rng.random() < 0.3:
            files["special_tokens_map.json"]["extra_special_tokens"] = own + new[:1]
    if rng.random() < 0.5:
        first = size + rng.choice([0, len(own), 7])
        files["added_tokens.json"] = {text: first + k for k, text in enumerate(rng.sample(NEW[:5], 2))}
    files["config.json"] = {"model_type": "t5"}


def settings(rng, pieces, source, files):
    config, new = {}, rng.sample(NEW, len(NEW))
    own = ["BertTokenizer", "BertTokenizerFast"] if pieces else ["GPT2Tokenizer", "GPT2TokenizerFast"]
    if source == "tokenizer.json":
        own += ["PreTrainedTokenizerFast", "TokenizersBackend"]
    config["tokenizer_class"] = rng.choice(own)
    for key in ("do_lower_case", "tokenize_chinese_chars", "strip_accents") if pieces else ("add_prefix_space",):
        if rng.random() < 0.5:
            config[key] = rng.random() < 0.5
    if not pieces and rng.random() < 0.3:
        config["add_bos_token"] = config["add_eos_token"] = True
    if rng.random() < 0.3:
        config["mask_token"] = token_value(rng, "<m>")
    if rng.random() < 0.3:
        config["image_token"] = token_value(rng, new.pop())
    if rng.random() < 0.3:
        config[rng.choice(["additional_special_tokens", "extra_special_tokens"])] = [
            token_value(rng, new.pop()), token_value(rng, new.pop())]
    if rng.random() < 0.2:
        config["extra_special_tokens"] = {"a_token": new.pop(), "another_token": new.pop()}
    if rng.random() < 0.3:
        config["added_tokens_decoder"] = {str(rng.choice([5, 60, 400 + k])): added(rng, text)
                                          for k, text in enumerate(rng.sample(NEW, 3))}
    if rng.random() < 0.4:
        config["truncation_side"] = rng.choice(["left", "right"])
    config["model_max_length"] = rng.choice([6, 8, 512, int(1e30)])
    if rng.random() < 0.8:
        files["tokenizer_config.json"] = config
    if rng.random() < 0.4:
        files["special_tokens_map.json"] = {"mask_token": "<m>",
                                            "additional_special_tokens": rng.sample(NEW, 2)}
    if rng.random() < 0.3:
        size = len(set(WORDS)) if pieces else len(byte_bpe()[0])
        files["added_tokens.json"] = {text: size + k for k, text in enumerate(rng.sample(NEW, 2))}
    files["config.json"] = {"model_type": "bert" if pieces else "gpt2"}


def ids_of(program, folder, text, pair, length):
    command = [program, "tokenize", "--model", folder, "--text", text]
    command += ["--pair", pair] if pair is not None else []
    command += ["--max-length", str(length)] if length else []
    run = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in run.stdout.splitlines() if line.startswith("ids:")]
    if run.returncode or not lines:
        return None, run.stderr.strip().splitlines()[-1] if run.stderr.strip() else "no ids"
    return [int(word) for word in lines[0][4:].split()], run.stderr


def compare(program, rng, folder):
    files = {}
    kind = rng.random()
    pieces = kind < 0.45
    if kind < 0.7:
        source = (word_piece if pieces else bpe)(rng, folder, files)
        settings(rng, pieces, source, files)
    else:
        piece_model(rng, folder, files)
    for name, content in files.items():
        Path(folder, name).write_text(json.dumps(content, ensure_ascii=False))
    try:
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # whatever it is, there is nothing to compare with
        return "refused by transformers: " + str(error).splitlines()[0][:80], True
    cased = pieces and not any(name.startswith("tokenizer") for name in files)
    if cased:  # no setting and no class: here the entries decide
        return "skipped", True
    for text in TEXTS if kind < 0.7 else PIECE_TEXTS:
        pair = rng.choice([None, None, rng.choice(TEXTS) or None])  # "" is no pair there
        length = rng.choice([0, 0, 6, 7])
        if pair is not None and theirs.truncation_side == "right":
            length = 0  # an odd last place may go to the other text
        wanted = theirs(text, pair, truncation=bool(length), max_length=length or None)["input_ids"]
        found, why = ids_of(program, folder, text, pair, length)
        if found is None:
            if kind >= 0.7:
                print(why)
            return "refused: " + why, "gaps" in why or "both have" in why
        if found != wanted:
            print(f"{text!r} {pair!r} {length}: {found}, expected {wanted}\n{why}")
            return "differs", False
    return "same", True


def main():
    program = os.path.abspath(sys.argv[1])
    seed, count = (int(word) for word in (sys.argv[2:] + ["0", "200"][len(sys.argv) - 2:]))
    results = {}
    for number in range(seed, seed + count):
        with tempfile.TemporaryDirectory() as folder:
            result, good = compare(program, random.Random(number), folder)
            if not good:
                print(f"folder {number}: {result}")
                for path in sorted(Path(folder).iterdir()):
                    print(f"  {path.name}: {path.read_bytes()[:1200].decode(errors='replace')}"
                      if path.suffix == ".json" else f"  {path.name}")
        results[result.split(":")[0]] = results.get(result.split(":")[0], 0) + 1
        results["bad"] = results.get("bad", 0) + (not good)
    print(results)
    sys.exit(1 if results["bad"] else 0)


if __name__ == "__main__":
    main()
