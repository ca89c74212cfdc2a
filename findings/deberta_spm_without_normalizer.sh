#!/bin/sh
# Guess: the tokenizer of a DeBERTa-v2 or v3 folder, whose spm.model holds SentencePiece's normalization (nmt_nfkc),
# gives the ids of SentencePiece, which the model was trained with, also for text of web pages and PDF files.
# Really: it did in transformers 4. Version 5 takes pieces and scores from the file and leaves the normalization out:
# "…", "™", "№", ligatures, full-width digits and no-break spaces reach the pieces as they are, mostly as [UNK], and
# words after a no-break space fall into letters. mBART's class does so to all but spaces, XLM-RoBERTa's does not.
# Why users meet it: Microsoft's DeBERTa folders have spm.model and no tokenizer.json, so from_pretrained reads it. There
# is no warning, and text without such characters gives equal ids.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
cd "$dir"
export HF_HUB_OFFLINE=1
python3 -m venv four
four/bin/pip install --quiet transformers==4.57.1 tokenizers==0.22.1 sentencepiece==0.2.3 protobuf==7.36.2
python3 -m venv five
five/bin/pip install --quiet transformers==5.24.0 tokenizers==0.23.3 sentencepiece==0.2.3 protobuf==7.36.2

cat >compare.py <<'END'
import json
import os
import random

import sentencepiece
import transformers
from transformers import AutoTokenizer

four = transformers.__version__.startswith("4.")
WORDS = "we waited for the file and found an office with 10 000 rows No 3 of 123 Windows TM at 20 degrees".split()
BERT = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "pad_piece": "[PAD]", "bos_piece": "[CLS]",
        "eos_piece": "[SEP]", "unk_piece": "[UNK]", "user_defined_symbols": ["[MASK]"]}
FOLDERS = {"deberta-v2": ("spm.model", "DebertaV2Tokenizer", BERT),
           "mbart": ("sentencepiece.bpe.model", "MBartTokenizer", {}),
           "xlm-roberta": ("sentencepiece.bpe.model", "XLMRobertaTokenizer", {})}
if four:
    rng = random.Random(0)
    lines = [" ".join(rng.choices(WORDS, k=8)) + rng.choice([".", "...", "!"]) for _ in range(2000)]
    for family, (file, kind, names) in FOLDERS.items():
        os.mkdir(family)
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_prefix="spm", vocab_size=100, hard_vocab_limit=False,
            minloglevel=2, **names)
        os.rename("spm.model", f"{family}/{file}")
        for name, value in (("config", {"model_type": family}), ("tokenizer_config", {"tokenizer_class": kind})):
            with open(f"{family}/{name}.json", "w") as f:
                json.dump(value, f)

PLAIN = ["we found the file.", "an office with 123 rows!"]
OTHER = ["we waited\u2026", "Windows\u2122", "an o\ufb03ce", "\u2116 3", "\uff11\uff12\uff13 rows", "10\u00a0000 rows",
         "the\u00a0office"]
print("transformers", transformers.__version__, "sentencepiece", sentencepiece.__version__)
equal = {}
for family, (file, *_) in FOLDERS.items():
    spm = sentencepiece.SentencePieceProcessor(model_file=f"{family}/{file}")
    tokenizer = AutoTokenizer.from_pretrained(family)
    equal[family] = 0
    for text in PLAIN + OTHER:
        wanted = spm.encode(text, out_type=str)
        found = tokenizer.tokenize(text)
        if text in PLAIN:
            assert found == wanted, (family, text, found)
        equal[family] += text in OTHER and found == wanted
        if family == "deberta-v2" and not four and text in OTHER:
            known = [piece if piece in tokenizer.get_vocab() else "[UNK]" for piece in found]
            print(f"  {text}: SentencePiece {wanted}, {type(tokenizer).__name__} {known}")
    print(f"{family}: {equal[family]} of {len(OTHER)} texts are cut as SentencePiece cuts them")
assert equal == {"deberta-v2": 7 if four else 0, "mbart": 7 if four else 2, "xlm-roberta": 7}
END
four/bin/python compare.py
five/bin/python compare.py
