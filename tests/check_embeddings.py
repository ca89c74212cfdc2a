#!/usr/bin/env python3
"""Compares `modelcenter embed` with sentence-transformers on small random models:

    check_embeddings.py build/release/bin/modelcenter

Makes folders as sentence-transformers saves them: one like all-mpnet-base-v2 (MPNet, mean of the
tokens, normalised), one like E5 (BERT, mean, normalised), and two of ModernBERT with the mean and
with the first token, whose local layers see less than the longer texts. Both sides compute the
vectors of the same texts in f32, which have to agree to 1e-5. Prints a line for each, and exits 1
if any differs.

Needs torch, transformers and sentence-transformers; tried with transformers 5.24 and
sentence-transformers 6.2. It is run by hand, not by the tests.
"""
import pathlib
import string
import subprocess
import sys
import tempfile

import numpy
import sentence_transformers
import torch
import transformers
from sentence_transformers.sentence_transformer import modules as models

TOLERANCE = 1e-5
TEXTS = ["a", "the query: how do vectors of texts agree?", "passage, of more words than the others "
         "have, so that batches are not of one length", "unknown \u00fc\u4e2d", "b c d e f g"]
PIECES = list(string.ascii_lowercase) + ["##" + c for c in string.ascii_lowercase] + [",", "?", ":"]
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3,
         "num_attention_heads": 4, "max_position_embeddings": 66, "initializer_range": 0.2}
MPNET = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "[UNK]"]
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# ModernBERT's own tokenizer is not needed for what is compared here
KINDS = [("all-mpnet", transformers.MPNetConfig, transformers.MPNetModel,
          transformers.MPNetTokenizer, MPNET, "mean", {}),
         ("e5", transformers.BertConfig, transformers.BertModel, transformers.BertTokenizer, BERT,
          "mean", {}),
         *(("modernbert " + mode, transformers.ModernBertConfig, transformers.ModernBertModel,
            transformers.BertTokenizer, BERT, mode,
            {"local_attention": 8, "pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3,
             "bos_token_id": 2, "eos_token_id": 3}) for mode in ("mean", "cls"))]


def save(kind, folder):
    """A model of sentence-transformers with random weights."""
    _, config, model, tokenizer, special, mode, more = kind
    words = {word: i for i, word in enumerate(special + PIECES)}
    torch.manual_seed(3)
    plain = folder / "plain"
    model(config(vocab_size=len(words), **SIZES, **more)).save_pretrained(plain)
    tokenizer(vocab=words, model_max_length=64).save_pretrained(plain)
    body = models.Transformer(str(plain), max_seq_length=64)
    pooling = models.Pooling(32, pooling_mode=mode)
    made = sentence_transformers.SentenceTransformer(modules=[body, pooling, models.Normalize()],
                                                     device="cpu")
    made.save(str(folder / "model"))
    return made


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    transformers.logging.set_verbosity_error()
    good = True
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            expected = save(kind, folder).encode(TEXTS)
            texts = [word for text in TEXTS for word in ("--text", text)]
            subprocess.run([sys.argv[1], "embed", "--model", folder / "model", *texts, "--output",
                            folder / "v.npy"], check=True, stdout=subprocess.DEVNULL)
            found = numpy.load(folder / "v.npy")
            worst = numpy.abs(found - expected).max() if found.shape == expected.shape else 1
            good &= bool(worst <= TOLERANCE)
            print(f"{'ok  ' if worst <= TOLERANCE else 'FAIL'} {kind[0]}: {worst:.1e}")
    sys.exit(not good)


if __name__ == "__main__":
    main()
