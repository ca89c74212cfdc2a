#!/usr/bin/env python3
"""Compares GGUF files with the models they were written from, through transformers and the package `gguf`.

    check_gguf.py MODELCENTER [FOLDER ...]

Models of random weights, or those in the folders, are written as f32, f16, bf16 and q8_0. transformers loads each file
(GPT-2, T5 and the LLaMA family but MiniCPM), and its logits are those of the folder: within 1e-2 in f16. It loads no
BERT and no ModernBERT: their tensors are found by the names that the package has for them, and the last hidden states
compared; so are vectors of texts by the file and by the folder, with its pooling. The package reads each file, and a
folder that is written from the f32 file again has the same tensors to the bit, and its config says the same. With the
package xllamacpp llama.cpp itself embeds texts by an encoder's file, and goes on from ids by a decoder's (not by T5's).
Run by hand; needs torch, transformers, sentence-transformers and gguf."""

import json
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy
import torch
import transformers

try:
    import xllamacpp
except ImportError:
    xllamacpp = None

transformers.utils.logging.disable_progress_bar()
BOUNDS = {"f32": 1e-4, "f16": 1e-2, "bf16": 8e-2, "q8_0": 8e-2}
VOCABULARY = 384
LLAMA = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": VOCABULARY, "max_position_embeddings": 96, "initializer_range": 0.1}
# transformers reads no scaling of rotary positions, and neither a BERT, a MiniCPM nor biases of a LLaMA
UNREAD = ("llama3", "linear", "yarn")
UNLOADED = ("bert", "modernbert", "minicpm", "llama-bias")
ENCODERS = {"bert": gguf.MODEL_ARCH.BERT, "modernbert": gguf.MODEL_ARCH.MODERN_BERT}
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"


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
    elif kind.startswith("t5"):
        import sentencepiece
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_prefix=str(folder / "spiece"), vocab_size=200, pad_id=0, eos_id=1,
            unk_id=2, bos_id=-1, minloglevel=2)
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T5Tokenizer", "extra_ids": 100}))
    elif kind.startswith("qwen") or kind == "llama3":
        make_byte_tokenizer(folder, texts, kind)
    elif kind == "modernbert":
        make_modern_tokenizer(folder, texts)
    else:
        import sentencepiece
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_prefix=str(folder / "tokenizer"), vocab_size=360, model_type="bpe",
            byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2)
        (folder / "tokenizer_config.json").write_text(json.dumps(
            {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "legacy": True}))


def make_byte_tokenizer(folder, texts, kind):
    """A tokenizer.json with the words of Qwen 2 or of Llama 3."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    numbers = r"\p{N}" if kind.startswith("qwen") else r"\p{N}{1,3}"
    pattern = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + numbers +
               r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    made = Tokenizer(models.BPE(ignore_merges=kind == "llama3"))
    made.normalizer = normalizers.NFC() if kind.startswith("qwen") else None
    made.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=380, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    made.add_special_tokens(["<|endoftext|>"])
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}))


def make_modern_tokenizer(folder, texts):
    """A tokenizer.json as ModernBERT's, whose mask takes in the spaces before it."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", AddedToken("[MASK]", lstrip=True, special=True)]
    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=380, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=special,
        show_progress=False))
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "cls_token": "[CLS]", "sep_token": "[SEP]",
         "mask_token": "[MASK]", "pad_token": "[PAD]", "unk_token": "[UNK]"}))


def make_pooling(folder, mode):
    """The files of sentence-transformers around a model."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules
    body = modules.Transformer(str(folder))
    SentenceTransformer(modules=[body, modules.Pooling(64, pooling_mode=mode)], device="cpu").save(str(folder))


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
        "modernbert": transformers.ModernBertModel(transformers.ModernBertConfig(
            hidden_size=64, intermediate_size=96, num_hidden_layers=5, num_attention_heads=4, local_attention=8,
            vocab_size=VOCABULARY, max_position_embeddings=96, pad_token_id=0, cls_token_id=2, bos_token_id=2,
            sep_token_id=3, eos_token_id=3, initializer_range=0.1)),
        "llama": transformers.LlamaForCausalLM(transformers.LlamaConfig(
            **LLAMA, rope_parameters={"rope_type": "default", "rope_theta": 5e5})),
        "llama-bias": transformers.LlamaForCausalLM(transformers.LlamaConfig(
            **LLAMA, attention_bias=True, mlp_bias=True)),
        "llama3": transformers.LlamaForCausalLM(transformers.LlamaConfig(
            **LLAMA, tie_word_embeddings=True, rope_parameters={
                "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 64})),
        "linear": transformers.LlamaForCausalLM(transformers.LlamaConfig(
            **LLAMA, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0})),
        "yarn": transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
            **LLAMA, rope_parameters={
                "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64,
                "attention_factor": 1.25})),
        "mistral": transformers.MistralForCausalLM(transformers.MistralConfig(
            **LLAMA, sliding_window=None, head_dim=24)),
        "mistral-window": transformers.MistralForCausalLM(transformers.MistralConfig(**LLAMA, sliding_window=96)),
        "qwen2": transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**LLAMA, tie_word_embeddings=True)),
        # transformers takes a Qwen3's heads to be of 128
        "qwen3": transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**LLAMA, head_dim=128)),
    }
    paths = []
    for name, model in made.items():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                torch.nn.init.normal_(parameter, 1 if float(parameter.detach().abs().sum()) else 0, 0.1)
        model.save_pretrained(folder / name)
        make_tokenizer(folder / name, name)
        if name in ENCODERS:
            make_pooling(folder / name, "cls" if name == "modernbert" else "mean")
        if name == "qwen2":
            (folder / name / "chat_template.jinja").write_text(TEMPLATE)
        paths.append(folder / name)
    paths.append(make_minicpm(folder, made["llama3"]))
    return paths


def make_minicpm(folder, llama):
    """A LLaMA with the config of a MiniCPM, whose class is not transformers' own."""
    path = folder / "minicpm"
    llama.save_pretrained(path)
    config = json.loads((path / "config.json").read_text())
    config |= {"model_type": "minicpm", "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 16,
               "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    (path / "config.json").write_text(json.dumps(config))
    make_tokenizer(path, "minicpm")
    return path


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
    if kind == "t5" or folder.name in UNREAD:
        config = transformers.AutoConfig.from_pretrained(folder)
        if kind == "t5":  # which transformers takes for one of ReLU with scaled logits, whatever the file holds
            config.tie_word_embeddings = config.scale_decoder_outputs = False
        read, found = found.state_dict(), loader.from_config(config)
        found.load_state_dict(read)
    found = logits(found.eval(), kind)
    error = float((expected - found).abs().max() / expected.abs().max())
    if not error <= BOUNDS[dtype]:
        sys.exit(f"{file}: logits differ by {error:.2e} of the largest, expected {BOUNDS[dtype]:.0e} at most")
    return error


def compare_encoder(folder, reader, dtype, kind):
    """Tensors by the names that the package has for transformers' names, as f32; and the last hidden states of a
    model of them. The largest difference, as a part of the largest number."""
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    names = gguf.get_tensor_name_map(ENCODERS[kind], model.config.num_hidden_layers)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    ids = torch.arange(1, 33).reshape(2, 16) * 7 % model.config.vocab_size
    with torch.no_grad():
        expected = model(input_ids=ids).last_hidden_state
        for name, parameter in model.named_parameters():
            if name.startswith("pooler."):
                continue
            tensor = tensors.pop(names.get_name(name, try_suffixes=(".weight", ".bias")))
            parameter.copy_(torch.tensor(gguf.quants.dequantize(tensor.data, tensor.tensor_type)).reshape(parameter.shape))
        found = model(input_ids=ids).last_hidden_state
    if tensors:
        sys.exit(f"{folder.name}: tensors that are not known: {list(tensors)}")
    error = float((expected - found).abs().max() / expected.abs().max())
    if not error <= BOUNDS[dtype]:
        sys.exit(f"{folder.name}: hidden states differ by {error:.2e} of the largest")
    return error


def embed(program, model, texts):
    with tempfile.TemporaryDirectory(prefix="mc-gguf-") as folder:
        out = pathlib.Path(folder) / "vectors.npy"
        given = [word for text in texts for word in ("--text", text)]
        run(program, "embed", "--model", model, *given, "--output", out)
        return numpy.load(out)


def check_vectors(program, folder, file, dtype):
    """embed by the file and by the folder; the first has the second's pooling."""
    texts = "The models were read again: 12 of them", "[MASK] a b", "def main():"
    both = [embed(program, model, texts) for model in (folder, file)]
    error = float(numpy.abs(both[0] - both[1]).max() / numpy.abs(both[0]).max())
    if not error <= BOUNDS[dtype]:
        sys.exit(f"{file}: vectors differ by {error:.2e} of the largest")
    return error


def open_llama_cpp(file, embedding):
    params = xllamacpp.CommonParams()
    params.model.path, params.embedding, params.warmup = str(file), embedding, False
    params.n_ctx = params.n_batch = params.n_ubatch = 64
    params.n_parallel, params.n_gpu_layers = 1, 0
    return xllamacpp.Server(params)


def check_llama_cpp_vectors(program, folder, file):
    """The vectors of llama.cpp and of embed, whose lengths differ: the smallest cosine."""
    texts = "the models were read again", "a b", "def main one two three four five six"
    server, ours = open_llama_cpp(file, True), embed(program, folder, texts)
    answers = [server.handle_embeddings({"input": text, "model": "m"}) for text in texts]
    theirs = numpy.array([answer["data"][0]["embedding"] for answer in answers])
    lengths = numpy.linalg.norm(ours, axis=1) * numpy.linalg.norm(theirs, axis=1)
    cosine = float(((ours * theirs).sum(1) / lengths).min())
    if not cosine >= 0.9999:
        sys.exit(f"{file}: llama.cpp's vectors have a cosine of {cosine:.5f} with ours")
    return f", llama.cpp's vectors with a cosine of {cosine:.6f}"


def check_llama_cpp_tokens(program, folder, file):
    """Greedy tokens and their log-probabilities. llama.cpp's server shows a token that ends within
    a character as a part of the next."""
    prompt, count = [11, 57, 90, 33, 8, 120, 64], 16
    answer = open_llama_cpp(file, False).handle_completions(
        {"prompt": prompt, "max_tokens": count, "temperature": 0, "logprobs": 1})
    line = run(program, "generate", "--model", folder, "--ids", "--log-probs", "--temperature", 0,
               "--max-new-tokens", count, "--prompt", " ".join(map(str, prompt)))
    ours = iter(list(zip(*(json.loads(line)[key] for key in ("ids", "log_probs")))))
    theirs = answer["choices"][0]["logprobs"]["content"]
    for token in theirs:
        if not any(token["id"] == i and abs(token["logprob"] - p) < 5e-3 for i, p in ours):
            sys.exit(f"{file}: llama.cpp goes on with {theirs}, ours is {line}")
    if not theirs or next(ours, None):
        sys.exit(f"{file}: llama.cpp goes on with {theirs}, ours is {line}")
    return f", {len(theirs)} of llama.cpp's tokens the same"


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


def compare_configs(folder, again):
    """Keys of the first that the second has too; of a Mistral without a window the second is a LLaMA."""
    first, second = (json.loads((path / "config.json").read_text()) for path in (folder, again))
    first |= first.get("rope_parameters") or {}
    second |= second.get("rope_scaling") or {}
    for key in first:
        unread = key in ("model_type", "architectures", "rope_parameters", "sliding_window", "max_window_layers")
        dtype = key in ("dtype", "initializer_range", "attention_dropout", "scale_decoder_outputs") or "token_id" in key
        head = key == "tie_word_embeddings" and first.get("scale_decoder_outputs")
        if not (unread or dtype or head) and second.get(key, first[key]) != first[key] and first[key] is not None:
            sys.exit(f"{again}: key {key} is {second[key]}, in {folder} {first[key]}")


def check(program, folder, work):
    kind = json.loads((folder / "config.json").read_text())["model_type"]
    for dtype in BOUNDS:
        file = work / f"{folder.name}-{dtype}.gguf"
        run(program, "convert", folder, file, "--to", "gguf", "--dtype", dtype)
        reader = gguf.GGUFReader(file)
        found = f"{len(reader.tensors)} tensors, {len(reader.fields)} fields"
        if kind == "bert" and "tokenizer.ggml.token_type_count" not in reader.fields:
            sys.exit(f"{file}: no number of token types, without which llama.cpp opens no BERT")
        if kind in ENCODERS:
            pooling = int(reader.fields[f"{reader.fields['general.architecture'].contents()}.pooling_type"].contents())
            if pooling != (gguf.PoolingType.CLS if kind == "modernbert" else gguf.PoolingType.MEAN):
                sys.exit(f"{file}: pooling {pooling}")
            found += (f", hidden states within {compare_encoder(folder, reader, dtype, kind):.1e}"
                      f", vectors within {check_vectors(program, folder, file, dtype):.1e}")
        if folder.name == "qwen2" and reader.fields["tokenizer.chat_template"].contents() != TEMPLATE:
            sys.exit(f"{file}: another chat template")
        if folder.name not in UNLOADED:
            found += f", logits within {compare_logits(folder, file, dtype, kind):.1e}"
        if xllamacpp and kind in ENCODERS:
            found += check_llama_cpp_vectors(program, folder, file)
        elif xllamacpp and kind != "t5" and dtype == "f32":
            found += check_llama_cpp_tokens(program, folder, file)
        print(f"{folder.name} {dtype}: {found}")
    again = work / f"{folder.name}-again"
    run(program, "convert", work / f"{folder.name}-f32.gguf", again, "--to", "hf")
    compare_configs(folder, again)
    same = f"{compare_tensors(folder, again)} tensors"
    if (again / "tokenizer_config.json").exists():
        texts = ("--text", "The models were read again: 12 of them, def main(): <extra_id_7> [MASK] <|endoftext|>")
        first, second, third = (run(program, "tokenize", "--model", path, *texts)
                                for path in (folder, again, work / f"{folder.name}-f32.gguf"))
        if first != second or first != third:
            sys.exit(f"{again}: other tokens than those of {folder}:\n{second}\n{first}\n{third}")
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
