#!/usr/bin/env python3
"""Compares tokenizers whose class decides how their files are read, on random texts:

    python3 tests/check_tokenizer_classes.py build/release/tests/check_tokenizer VOCABULARIES [--only NAME]

VOCABULARIES is a folder with the folders gpt2 (vocab.json, merges.txt), qwen2 (tokenizer.json) and, for
GLM's alone, glm: its SentencePiece model as vocab.model (cog-pretrain.model of PyPI's cogdata 0.0.7). The
script writes, each into a folder of its own,

    qwen2        vocab.json and merges.txt without a tokenizer.json, of class Qwen2Tokenizer
    longformer   RoBERTa's vocab.json and merges.txt, of class LongformerTokenizer
    modernbert   a tokenizer.json of ModernBERT's form: NFC, byte-level BPE, added tokens of all kinds
    xlm-roberta  a SentencePiece model alone, whose pieces the class numbers
    camembert    the same with other numbers
    glm          GLM's vocab.model, with the nine special tokens after its pieces

and compares with transformers, with tokenizers (modernbert) or with sentencepiece, of xlm-roberta and
camembert with the numbers of fairseq. Of these it prints how many texts transformers, which splits at white space of
all kinds, gives the same ids. Ends with `N of M exact` for each and exit code 0 where all are.

Needs transformers (5.24), tokenizers (0.23) and sentencepiece (0.2.2 or later). It is run by hand.
"""
import argparse
import json
import os
import pathlib
import random
import re
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import sentencepiece  # noqa: E402
import tokenizers  # noqa: E402
import transformers  # noqa: E402
from check_tokenizers import Reference, compare, random_text  # noqa: E402
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors  # noqa: E402

transformers.logging.set_verbosity_error()


def write_config(folder, name, **more):
    config = {"tokenizer_class": name, **more}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def read_vocabulary(folder):
    """GPT-2's entries in the order of their ids, and the lines of its merges."""
    vocab = json.loads((folder / "vocab.json").read_text())
    merges = (folder / "merges.txt").read_text().splitlines()
    return sorted(vocab, key=vocab.get), [m for m in merges if m and not m.startswith("#version")]


def check_by_transformers(program, folder, name, count, specials):
    reference = transformers.AutoTokenizer.from_pretrained(folder)
    rng = random.Random(name)
    records = []
    for _ in range(count):
        text = random_text(rng, specials)
        records.append({"text": text, "ids": reference.encode(text)})
    return compare(program, folder, name, records)


def check_qwen2(program, vocabularies, folder, count):
    data = json.loads((vocabularies / "qwen2" / "tokenizer.json").read_text())
    (folder / "vocab.json").write_text(json.dumps(data["model"]["vocab"]))
    merges = (m if isinstance(m, str) else " ".join(m) for m in data["model"]["merges"])
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    added = {t["id"]: {k: v for k, v in t.items() if k != "id"} for t in data["added_tokens"]}
    write_config(folder, "Qwen2Tokenizer", added_tokens_decoder=added, eos_token="<|im_end|>",
                 pad_token="<|endoftext|>", bos_token=None)
    return check_by_transformers(program, folder, "qwen2", count, ["<|im_end|>", "<|endoftext|>", "<|im_start|>"])


def check_longformer(program, vocabularies, folder, count):
    entries, merges = read_vocabulary(vocabularies / "gpt2")
    entries = ["<s>", "<pad>", "</s>", "<unk>", *entries, "<mask>"]
    (folder / "vocab.json").write_text(json.dumps({entry: i for i, entry in enumerate(entries)}))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    (folder / "config.json").write_text('{"model_type": "longformer"}')
    # without it transformers 5 leaves the space before <mask>, which RoBERTa's tokenizer.json takes in
    mask = {"__type": "AddedToken", "content": "<mask>", "lstrip": True, "rstrip": False, "normalized": False,
            "single_word": False, "special": True}
    (folder / "tokenizer_config.json").write_text(json.dumps({"mask_token": mask}))
    return check_by_transformers(program, folder, "longformer", count, ["<s>", "</s>", "<mask>", "<pad>"])


def check_modernbert(program, vocabularies, folder, count):
    entries, merges = read_vocabulary(vocabularies / "gpt2")
    plain = [e for e in entries if not e.startswith("<|")]
    vocab = {"|||IP_ADDRESS|||": 0, "<|padding|>": 1, **{entry: i + 2 for i, entry in enumerate(plain)}}
    for run in range(24, 1, -1):
        vocab.setdefault("\u0120" * run, len(vocab))
    tok = tokenizers.Tokenizer(models.BPE(vocab, [tuple(m.split(" ")) for m in merges]))
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tok.decoder = decoders.ByteLevel()
    tok.add_tokens([AddedToken("|||IP_ADDRESS|||", normalized=True, special=False),
                    *(AddedToken(" " * run, normalized=True, special=False) for run in range(24, 1, -1)),
                    AddedToken("|||EMAIL_ADDRESS|||", normalized=True, special=False),
                    AddedToken("na\u00efve", normalized=True, special=False, single_word=True),
                    AddedToken("don't", normalized=False, special=False, rstrip=True)])
    tok.add_special_tokens(["<|padding|>", "<|endoftext|>", "[UNK]", "[CLS]", "[SEP]", "[PAD]",
                            AddedToken("[MASK]", lstrip=True, normalized=False, special=True)])
    tok.add_tokens([AddedToken(f"[unused{i}]", normalized=True, special=False) for i in range(83)])
    ids = {name: tok.token_to_id(name) for name in ("[CLS]", "[SEP]")}
    tok.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=list(ids.items()))
    tok.save(str(folder / "tokenizer.json"))
    write_config(folder, "PreTrainedTokenizerFast", model_max_length=8192, cls_token="[CLS]", sep_token="[SEP]",
                 pad_token="[PAD]", mask_token="[MASK]", unk_token="[UNK]",
                 model_input_names=["input_ids", "attention_mask"])
    rng = random.Random("modernbert")
    specials = ["[MASK]", "[SEP]", "|||EMAIL_ADDRESS|||", "[unused7]", "<|endoftext|>", "na\u00efve", "nai\u0308ve",
                "don't", "     "]
    records = []
    for _ in range(count):
        text = random_text(rng, specials)
        ids = tok.encode(text).ids
        records.append({"text": text, "ids": ids, "skip_special": True,
                        "decoded": tok.decode(ids, skip_special_tokens=True)})
    return compare(program, folder, "modernbert", records)


class Fairseq(Reference):
    """SentencePiece with the class's numbers; <mask> takes in the spaces before it."""

    def __init__(self, path, camembert):
        super().__init__(path, False, 0)
        offset, size = 4 if camembert else 1, self.pieces
        number = lambda piece: piece + offset if piece > (0 if camembert else 2) else [3, 0, 2][piece]
        encode = self.model.encode
        self.specials = {name: number(piece) for name, piece in self.specials.items()}
        self.specials |= {"<pad>": 1, "<unk>": 3, "<mask>": size + offset}
        if camembert:
            self.specials |= {"<s>NOTUSED": 0, "</s>NOTUSED": 2, "<unk>NOTUSED": 4}
        self.ends = [self.specials["<s>"]], [self.specials["</s>"]]
        self.encode = lambda part: [number(piece) for piece in encode(part)]
        names = sorted(self.specials, key=len, reverse=True)
        self.names = names

    def ids(self, text):
        ids, at, begun = [], 0, 0
        while at < len(text):
            name = next((n for n in self.names if text.startswith(n, at)), None)
            if name:
                part = text[begun:at]
                ids += self.encode(part.rstrip() if name == "<mask>" else part) + [self.specials[name]]
                begun = at = at + len(name)
            else:
                at += 1
        return self.ends[0] + ids + self.encode(text[begun:]) + self.ends[1]


def check_fairseq(program, folder, name, corpus, count):
    file = "sentencepiece.bpe.model"
    sentencepiece.SentencePieceTrainer.train(input=str(corpus), model_prefix=str(folder / "spiece"),
                                             vocab_size=2000, hard_vocab_limit=False, minloglevel=2)
    (folder / "spiece.model").rename(folder / file)
    (folder / "spiece.vocab").unlink()
    (folder / "config.json").write_text(json.dumps({"model_type": name}))
    reference = Fairseq(folder / file, name == "camembert")
    other = transformers.AutoTokenizer.from_pretrained(folder)
    rng = random.Random(name)
    records, same = [], 0
    for _ in range(count):
        text = random_text(rng, ["<mask>", "<pad>", "</s>", "<s>"])
        ids = reference.ids(text)
        same += other.encode(text) == ids
        records.append({"text": text, "ids": ids})
    print(f"{name}: transformers has the ids of sentencepiece for {same} of {count}")
    return compare(program, folder, name, records)


def check_glm(program, vocabularies, folder, count):
    model = vocabularies / "glm" / "vocab.model"
    if not model.exists():
        print(f"glm: left out, there is no {model}")
        return True
    (folder / "vocab.model").write_bytes(model.read_bytes())
    reference, rng = Reference(model, False, 0), random.Random("glm")
    specials = {"[CLS]": 2, "[S]": 6, "[E]": 7, "[MASK]": 8}
    reference.specials |= {name: reference.pieces + place for name, place in specials.items()}
    reference.cut = re.compile(b"(" + b"|".join(re.escape(n.encode()) for n in reference.specials) + b")")
    records = [reference.record(random_text(rng, list(specials)).encode()) for _ in range(count)]
    return compare(program, folder, "glm", records)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="check_tokenizer")
    parser.add_argument("vocabularies", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=20000, help="of texts for each")
    parser.add_argument("--corpus", default="README.md", help="what SentencePiece models are trained on")
    parser.add_argument("--only", default="", help="the one of this name")
    o = parser.parse_args()
    checks = {"qwen2": check_qwen2, "longformer": check_longformer, "modernbert": check_modernbert,
              "glm": check_glm, "xlm-roberta": None, "camembert": None}
    good = True
    for name, check in checks.items():
        if o.only not in ("", name):
            continue
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            good &= check(o.program, o.vocabularies, folder, o.count) if check else \
                check_fairseq(o.program, folder, name, o.corpus, o.count)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
