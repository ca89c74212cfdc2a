#!/usr/bin/env python3
"""Compares GGUF files with the models they were written from, through transformers and the package `gguf`.

    check_gguf.py MODELCENTER [FOLDER ...]

Models of random weights, or those in the folders, are written as f32, f16, bf16 and q8_0. transformers loads each file
(GPT-2, T5 and the LLaMA family), and its logits are those of the folder: within 1e-2 in f16. The package reads
each file, BERT's too, and a folder that is written from the f32 file again has the same tensors to the bit. Run by
hand; needs torch, transformers and gguf."""

import json
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy
import torch
import transformers

BOUNDS = {"f32": 1e-4, "f16": 1e-2, "bf16": 8e-2, "q8_0": 8e-2}
VOCABULARY = 384


def make_tokenizer(folder, kind):
    """transformers takes the size of the vocabulary from it."""
    texts = pathlib.Path(__file__).read_text().splitlines()
    if kind == "gpt2":
        import tokenizers
        made = tokenizers.ByteLevelBPETokenizer()
        made.train_from_iterator(texts, vocab_size=300, special_tokens=["<|endoftext|>"])
        made.save_model(str(folder))
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    elif kind == "bert":
        letters = "abcdefghijklmnopqrstuvwxyz"
        (folder / "vocab.txt").write_text("\n".join(
            ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + c for c in letters)]) + "\n")
    else:
        import sentencepiece
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_prefix=str(folder / "spiece"), vocab_size=200, pad_id=0, eos_id=1,
            unk_id=2, bos_id=-1, minloglevel=2)
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T5Tokenizer", "extra_ids": 100}))


def make_models(folder):
    """Folders of small models with weights that differ enough to notice one in another's place."""
    torch.manual_seed(3)
    made = {
        "gpt2": transformers.GPT2LMHeadModel(transformers.GPT2Config(
            n_embd=64, n_layer=3, n_head=4, vocab_size=VOCABULARY, initializer_range=0.1)),
        "t5": transformers.T5ForConditionalGeneration(transformers.T5Config(
            d_model=64, d_ff=96, num_layers=2, num_heads=4, d_kv=16, vocab_size=VOCABULARY,
            feed_forward_proj="gated-gelu", tie_word_embeddings=False, decoder_start_token_id=0)),
        "t5-tied": transformers.T5ForConditionalGeneration(transformers.T5Config(
            d_model=64, d_ff=96, num_layers=2, num_heads=4, d_kv=16, vocab_size=VOCABULARY,
            feed_forward_proj="gated-gelu", decoder_start_token_id=0)),
        "bert": transformers.BertModel(transformers.BertConfig(
            hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            vocab_size=VOCABULARY, max_position_embeddings=48)),
    }
    paths = []
    for name, model in made.items():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                torch.nn.init.normal_(parameter, 1 if float(parameter.detach().abs().sum()) else 0, 0.1)
        model.save_pretrained(folder / name)
        make_tokenizer(folder / name, name)
        paths.append(folder / name)
    return paths


def run(*command):
    ended = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {ended.stderr}")
    return ended.stdout


def logits(model, kind):
    ids = torch.arange(1, 33).reshape(2, 16) * 7 % VOCABULARY % model.config.vocab_size
    given = {"decoder_input_ids": ids.flip(1)} if kind == "t5" else {}
    with torch.no_grad():
        return model(input_ids=ids, **given).logits.float()


def compare_logits(folder, file, dtype, kind):
    """The largest difference, as a part of the largest logit."""
    loader = transformers.AutoModelForSeq2SeqLM if kind == "t5" else transformers.AutoModelForCausalLM
    expected = logits(loader.from_pretrained(folder, dtype=torch.float32).eval(), kind)
    found = loader.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    if kind == "t5":  # which transformers takes for one of ReLU with scaled logits, whatever the file holds
        config = transformers.AutoConfig.from_pretrained(folder)
        config.tie_word_embeddings = config.scale_decoder_outputs = False
        read, found = found.state_dict(), loader.from_config(config)
        found.load_state_dict(read)
    found = logits(found.eval(), kind)
    error = float((expected - found).abs().max() / expected.abs().max())
    if not error <= BOUNDS[dtype]:
        sys.exit(f"{file}: logits differ by {error:.2e} of the largest, expected {BOUNDS[dtype]:.0e} at most")
    return error


def compare_tensors(folder, again):
    from safetensors.numpy import load_file
    first, second = load_file(folder / "model.safetensors"), load_file(again / "model.safetensors")
    short = {name.removeprefix("bert.").removeprefix("transformer."): value for name, value in first.items()}
    for name, value in second.items():
        name = name.removeprefix("bert.").removeprefix("transformer.")
        if name == "lm_head.weight" and name not in short:
            continue  # the words times a factor
        if not numpy.array_equal(short[name], value):
            sys.exit(f"{again}: tensor {name} is another than in {folder}")
    return len(second)


def check(program, folder, work):
    kind = json.loads((folder / "config.json").read_text())["model_type"]
    for dtype in BOUNDS:
        file = work / f"{folder.name}-{dtype}.gguf"
        run(program, "convert", folder, file, "--to", "gguf", "--dtype", dtype)
        reader = gguf.GGUFReader(file)
        found = f"{len(reader.tensors)} tensors, {len(reader.fields)} fields"
        if kind != "bert":
            found += f", logits within {compare_logits(folder, file, dtype, kind):.1e}"
        print(f"{folder.name} {dtype}: {found}")
    again = work / f"{folder.name}-again"
    run(program, "convert", work / f"{folder.name}-f32.gguf", again, "--to", "hf")
    same = f"{compare_tensors(folder, again)} tensors"
    if (again / "tokenizer_config.json").exists():
        texts = ("--text", "The models were read again: 12 of them, def main(): <extra_id_7> [MASK] <|endoftext|>")
        first, second = (run(program, "tokenize", "--model", path, *texts) for path in (folder, again))
        if first != second:
            sys.exit(f"{again}: other tokens than those of {folder}:\n{second}\n{first}")
        same += " and the tokens of a text"
    print(f"{folder.name}: {same} are the same again")


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory(prefix="mc-gguf-") as work:
        work = pathlib.Path(work)
        folders = [pathlib.Path(path) for path in sys.argv[2:]] or make_models(work)
        for folder in folders:
            check(program, folder, work)


if __name__ == "__main__":
    main()
