#!/usr/bin/env python3
"""Compares tokenizers with SentencePiece and Hugging Face's tokenizers on random texts.

    python3 tests/check_tokenizers.py build/release/tests/check_tokenizer unigram ../shared/data/vocab/t5
    python3 tests/check_tokenizers.py build/release/tests/check_tokenizer folders FOLDER...

Run by hand: needs the PyPI packages sentencepiece (0.2.2 or later) and tokenizers (0.23). Makes
texts of mixed scripts, control characters, emoji, white space of all kinds, special tokens and bytes
that are no UTF-8, has both packages encode and decode them, and check_tokenizer compare. Ends with
`N of M exact` for each and exit code 0 where all are.

unigram: the folder's spiece.model and tokenizer.json are checked each by itself; then small models
with other settings, which are trained here. folders: each folder's tokenizer.json with tokenizers or,
where it has none, its SentencePiece model with sentencepiece. A folder's name may be followed by
"~FROM~TO": its tokenizer.json with one text replaced by another, such as a spelling of a pattern that
only PCRE2 knows.
"""
import argparse
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unicodedata

import sentencepiece
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

SPACE = "\u2581"
RANGES = [(0x20, 0x7E), (0x20, 0x7E), (0x61, 0x7A), (0x61, 0x7A), (0x00, 0x1F), (0x80, 0xFF),
          (0x100, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x590, 0x6FF),
          (0x900, 0x97F), (0xE00, 0xE7F), (0x1100, 0x11FF), (0x1E00, 0x1EFF), (0x2000, 0x206F),
          (0x2070, 0x218F), (0x2580, 0x2584), (0x2600, 0x27BF), (0x3000, 0x30FF), (0x3200, 0x33FF),
          (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xE000, 0xE0FF), (0xF900, 0xFAFF), (0xFB00, 0xFDFF),
          (0xFE00, 0xFEFF), (0xFF00, 0xFFEF), (0x1D400, 0x1D7FF), (0x1F1E6, 0x1F1FF),
          (0x1F300, 0x1FAFF), (0x20000, 0x2A6DF), (0xE0000, 0xE007F)]
SPACES = [" ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "\u200b", "\u2028", SPACE, "   "]
WORDS = ("the of and to in is was for that with as on by it from at his he are this an had not be "
         "which their Hello World don't can't I'll 1234567890 3.14159 http://example.com/a?b=c "
         "international antidisestablishmentarianism ------ ..... aaaaaa !!!! === na\u00efve "
         "stra\u00dfe \u0394\u03b5\u03bb\u03c4\u03b1 \u043f\u0440\u0438\u0432\u0435\u0442 "
         "\u4e2d\u6587 \u65e5\u672c\u8a9e \ud55c\uad6d\uc5b4 \u0939\u093f\u0928\u094d\u0926\u0940 "
         "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \ufb01 \u00bd").split()


ASSIGNED = False  # characters are those of this Python's Unicode


def random_text(rng, specials):
    parts = []
    for _ in range(rng.choice([0, 1, 2, 3, 5, 8, 20, 60, 200])):
        kind = rng.random()
        if kind < 0.45:
            parts.append(rng.choice(WORDS))
        elif kind < 0.75:
            low, high = rng.choice(RANGES)
            parts.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 6))))
        elif kind < 0.8 and specials:
            parts.append(rng.choice(specials))
        elif kind < 0.85:
            parts.append(rng.choice("ae-.=0!") * rng.randint(2, 40))
        if rng.random() < 0.7:
            parts.append(rng.choice(SPACES) if rng.random() < 0.3 else " ")
    text = "".join(parts)
    return "".join(c for c in text if unicodedata.category(c) != "Cn") if ASSIGNED else text


def damage(rng, text):
    """Bytes that may be no UTF-8 any more."""
    data = bytearray(text.encode())
    for _ in range(rng.randint(1, 4)):
        if data:
            data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


class Reference:
    """SentencePiece, with special tokens cut out of texts before it sees them."""

    def __init__(self, path, eos, sentinels, bos=False):
        self.model = sentencepiece.SentencePieceProcessor(model_file=str(path))
        size = self.model.get_piece_size()
        self.specials = {self.model.id_to_piece(i): i for i in range(size)
                         if self.model.is_control(i) or self.model.is_unknown(i)}
        self.pieces = size
        for k in range(sentinels):
            self.specials[f"<extra_id_{k}>"] = size + sentinels - 1 - k
        self.eos = [self.model.eos_id()] if eos else []
        self.bos = [self.model.bos_id()] if bos else []
        names = sorted(self.specials, key=len, reverse=True)
        self.cut = re.compile(b"(" + b"|".join(re.escape(n.encode()) for n in names) + b")")

    def record(self, data):
        ids = []
        for part in self.cut.split(data):
            name = part.decode(errors="replace")
            ids += [self.specials[name]] if name in self.specials else self.model.encode(part)
        ids = self.bos + ids + self.eos
        record = {"text_hex": data.hex(), "ids": ids}
        special = set(self.specials.values()) - {self.model.unk_id()}
        if not special & set(ids[len(self.bos):len(ids) - len(self.eos)]):
            record["decoded"] = self.model.decode(ids)
            record["skip_special"] = True
        return record


def compare(program, folder, name, records):
    with tempfile.TemporaryDirectory() as temporary:
        lines = pathlib.Path(temporary) / f"{name}.jsonl"
        lines.write_text("".join(json.dumps(r) + "\n" for r in records))
        run = subprocess.run([program, folder, lines], capture_output=True, text=True, check=False)
    print(f"{name}: {run.stdout.strip().splitlines()[-1] if run.stdout else run.stderr.strip()}")
    if run.returncode:
        print(run.stdout[-4000:] + run.stderr)
    return run.returncode == 0


def check_model(program, folder, name, count, seed, t5, file="spiece.model", eos=True, bos=False):
    rng = random.Random(seed)
    reference = Reference(folder / file, eos, 100 if t5 else 0, bos)
    specials = [s for s in reference.specials if "extra_id" not in s] + ["<extra_id_0>"]
    records = []
    for _ in range(count):
        text = random_text(rng, specials)
        data = damage(rng, text) if rng.random() < 0.2 else text.encode()
        records.append(reference.record(data))
    # a long one, whose sums are large and begin anew
    long = " ".join(random_text(rng, []) + "-" * rng.randint(1, 30) for _ in range(2000))
    records.append(reference.record(long.encode()))
    return compare(program, folder, name, records)


def check_json(program, folder, name, count, seed, specials=("</s>", "<pad>", "<unk>", "<extra_id_7>")):
    rng = random.Random(seed)
    reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    records = []
    for _ in range(count):
        text = random_text(rng, specials)
        ids = reference.encode(text).ids
        decoded = reference.decode(ids, skip_special_tokens=True)
        records.append({"text": text, "ids": ids, "decoded": decoded, "skip_special": True})
    return compare(program, folder, name, records)


def check_folder(program, name, count, seed):
    """A folder's files, its tokenizer.json changed as the name says."""
    path, *changes = name.split("~")
    folder = pathlib.Path(path)
    with tempfile.TemporaryDirectory() as temporary:
        alone = pathlib.Path(temporary)
        if not (folder / "tokenizer.json").exists():
            config = json.loads((folder / "tokenizer_config.json").read_text())
            bos, eos = (config.get(key, False) for key in ("add_bos_token", "add_eos_token"))
            (alone / "tokenizer_config.json").write_text(json.dumps({**config, "legacy": True}))
            (alone / "tokenizer.model").write_bytes((folder / "tokenizer.model").read_bytes())
            return check_model(program, alone, path, count, seed, False, "tokenizer.model", eos, bos)
        text = (folder / "tokenizer.json").read_text()
        if changes and changes[0] not in text:
            sys.exit(f"{folder}/tokenizer.json: has no {changes[0]}")
        if changes:
            text = text.replace(changes[0], changes[1])
        (alone / "tokenizer.json").write_text(text)
        specials = [t["content"] for t in json.loads(text)["added_tokens"]]
        return check_json(program, alone, name, count, seed, random.Random(seed).sample(specials, min(20, len(specials))))


TRAININGS = {
    "plain": {},
    "identity": {"normalization_rule_name": "identity"},
    "case-folding": {"normalization_rule_name": "nmt_nfkc_cf"},
    "bytes": {"byte_fallback": True, "vocab_size": 800},
    "symbols": {"user_defined_symbols": ["<sep>", "wor", "\u4e2d", "a b", ".."]},
    "white": {"remove_extra_whitespaces": False},
    "no-prefix": {"add_dummy_prefix": False},
    "white-no-prefix": {"remove_extra_whitespaces": False, "add_dummy_prefix": False},
    "suffix": {"treat_whitespace_as_suffix": True},
    "across": {"split_by_whitespace": False},
    "bpe": {"model_type": "bpe"},
    "bpe-bytes": {"model_type": "bpe", "byte_fallback": True, "vocab_size": 800},
    "bpe-symbols": {"model_type": "bpe", "user_defined_symbols": ["<sep>", "wor", "\u4e2d", "a b", ".."]},
    "bpe-white": {"model_type": "bpe", "remove_extra_whitespaces": False, "normalization_rule_name": "identity"},
    "bpe-no-prefix": {"model_type": "bpe", "add_dummy_prefix": False},
    "bpe-suffix": {"model_type": "bpe", "treat_whitespace_as_suffix": True},
    "bpe-across": {"model_type": "bpe", "split_by_whitespace": False, "byte_fallback": True, "vocab_size": 800},
}


def train(folder, corpus, options):
    settings = {"vocab_size": 500, "hard_vocab_limit": False, "minloglevel": 2, "bos_id": -1,
                "pad_id": 0, "eos_id": 1, "unk_id": 2, **options}
    sentencepiece.SentencePieceTrainer.train(input=str(corpus), model_prefix=str(folder / "spiece"),
                                             **settings)
    (folder / "tokenizer_config.json").write_text('{"extra_ids": 0}')


def write_json(folder, model, normalizer, pre_tokenizer, decoder):
    vocab = [(model.id_to_piece(i), model.get_score(i)) for i in range(model.get_piece_size())]
    tokenizer = tokenizers.Tokenizer(models.Unigram(vocab, model.unk_id()))
    tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = (
        normalizer, pre_tokenizer, decoder)
    tokenizer.add_tokens([tokenizers.AddedToken("Ne w", normalized=True),
                          tokenizers.AddedToken("</s>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))


def json_variants(charsmap):
    table = normalizers.Precompiled(charsmap)
    strip = normalizers.Strip(left=False, right=True)
    runs = tokenizers.Regex(" {2,}")
    for scheme in ("always", "first", "never"):
        meta = pre_tokenizers.Metaspace(prepend_scheme=scheme)
        decoder = decoders.Metaspace(prepend_scheme=scheme)
        white = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), meta])
        yield f"{scheme}", table, meta, decoder
        if scheme != "first":  # not supported
            yield f"{scheme}-white", table, white, decoder
        yield f"{scheme}-runs", normalizers.Sequence(
            [table, strip, normalizers.Replace(runs, SPACE)]), meta, decoder
    whole = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    yield "whole", normalizers.Sequence([normalizers.Replace(runs, " ")]), whole, None


def check_variants(program, corpus, count, seed, only):
    good = True
    with tempfile.TemporaryDirectory() as temporary:
        for name, options in TRAININGS.items():
            if only not in name:
                continue
            folder = pathlib.Path(temporary) / name
            folder.mkdir()
            train(folder, corpus, options)
            good &= check_model(program, folder, name, count, seed, False)
        if only:
            return good
        model = sentencepiece.SentencePieceProcessor(
            model_file=str(pathlib.Path(temporary) / "plain" / "spiece.model"))
        charsmap = charsmap_of(model.serialized_model_proto())
        for variant, *parts in json_variants(charsmap):
            folder = pathlib.Path(temporary) / f"json-{variant}"
            folder.mkdir()
            write_json(folder, model, *parts)
            good &= check_json(program, folder, f"json-{variant}", count, seed)
    return good


def charsmap_of(model):
    """The normalizer's table in a model's bytes: field 2 of field 3."""
    def fields(data):
        at = 0

        def varint():
            nonlocal at
            value = shift = 0
            while True:
                byte = data[at]
                at += 1
                value |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    return value
        while at < len(data):
            tag = varint()
            size = varint() if tag & 7 in (0, 2) else 8 if tag & 7 == 1 else 4
            if tag & 7 == 0:
                continue
            yield tag >> 3, data[at:at + size]
            at += size
    spec = next(data for number, data in fields(model) if number == 3)
    return next(data for number, data in fields(spec) if number == 2)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="check_tokenizer")
    parser.add_argument("what", choices=["unigram", "folders"])
    parser.add_argument("folder", nargs="+", help="of unigram: with T5's spiece.model and tokenizer.json")
    parser.add_argument("--count", type=int, default=100000, help="of texts for each folder or file")
    parser.add_argument("--variant-count", type=int, default=3000, help="for each small model")
    parser.add_argument("--corpus", default="README.md", help="what small models are trained on")
    parser.add_argument("--only", default="", help="small models whose names hold this")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--assigned", action="store_true", help="only characters that Python's unicodedata "
                        "knows: for a pattern that goes through PCRE2, whose Unicode may be older than tokenizers'")
    o = parser.parse_args()
    global ASSIGNED
    ASSIGNED = o.assigned
    if o.what == "folders":
        return 0 if all([check_folder(o.program, f, o.count, o.seed) for f in o.folder]) else 1
    o.folder = pathlib.Path(o.folder[0])
    good = check_model(o.program, o.folder, "spiece.model", o.count, o.seed, True)
    with tempfile.TemporaryDirectory() as temporary:
        alone = pathlib.Path(temporary) / "tokenizer.json"
        alone.write_bytes((o.folder / "tokenizer.json").read_bytes())
        good &= check_json(o.program, alone.parent, "tokenizer.json", o.count, o.seed + 1)
    good &= check_variants(o.program, o.corpus, o.variant_count, o.seed + 2, o.only)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
