#!/usr/bin/env python3
"""Compares beam search, several answers a prompt and log-probabilities with transformers' generate().

    tests/check_generation.py PROGRAM [SEED]

PROGRAM is the command modelcenter. Needs torch and transformers. Small models of random weights, f32:
tokens have to be the same, scores within a thousandth. Prompts come as a list and as a file, whose
prompts come and go in a running batch; weights are as they are, and in 8 bits beside a model of
transformers whose matrices are rounded in the same way.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers

PROMPTS = [[3, 14, 15, 9, 26], [5], [35, 8, 9, 7, 9, 3, 23, 8], [2, 7]]
# beams, answers, length penalty, early stopping, new tokens, repetition penalty
SEARCHES = [(4, 4, 1.0, False, 20, 1.0), (4, 2, 0.0, False, 20, 1.0), (3, 3, 2.0, True, 12, 1.0),
            (5, 5, -1.0, False, 15, 1.0), (4, 3, 1.0, True, 20, 1.3), (8, 8, 1.0, False, 25, 1.0),
            (4, 4, 1.0, "never", 20, 1.0), (4, 2, 2.0, "never", 20, 1.0), (3, 3, -1.0, "never", 15, 1.0),
            (1, 1, 1.0, False, 20, 1.0), (1, 1, 1.0, False, 20, 1.2)]
WAYS = ("list", "file", "int8 file")


def models():
    common = {"vocab_size": 60, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    yield "gpt2", transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=2, n_positions=64, initializer_range=0.4, **common))
    yield "t5", transformers.T5ForConditionalGeneration(transformers.T5Config(
        d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu",
        decoder_start_token_id=0, tie_word_embeddings=False, initializer_factor=3.0, **common))


    llama = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
             "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.3,
             "tie_word_embeddings": False, **common}
    yield "llama", transformers.LlamaForCausalLM(transformers.LlamaConfig(**llama, rope_parameters={
        "rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 16}))
    yield "mistral", transformers.MistralForCausalLM(transformers.MistralConfig(
        **llama, sliding_window=6, head_dim=12))
    yield "qwen2", transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        **llama | {"tie_word_embeddings": True}, use_sliding_window=True, sliding_window=6, max_window_layers=1))
    yield "qwen3", transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**llama, head_dim=12))
    opt = {"ffn_dim": 48, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
           "max_position_embeddings": 64, "init_std": 0.3, "pad_token_id": 2, "bos_token_id": 0, "eos_token_id": 1,
           "vocab_size": 60}
    yield "opt", transformers.OPTForCausalLM(transformers.OPTConfig(**opt, word_embed_proj_dim=32))
    yield "opt-350m", transformers.OPTForCausalLM(transformers.OPTConfig(
        **opt, word_embed_proj_dim=16, do_layer_norm_before=False))


def round_rows(weight):
    """The nearest of 255 numbers for each row's largest one."""
    scale = weight.abs().amax(1, keepdim=True) / 127
    return torch.where(scale > 0, torch.round(weight / scale) * scale, weight)


def round_model(model):
    """The matrices of the blocks, and a copy of the head's."""
    head = model.get_output_embeddings()
    with torch.no_grad():
        head.weight = torch.nn.Parameter(head.weight.clone())
        for name, module in model.named_modules():
            if "project_" in name:  # of OPT's embedding, which is in no block
                continue
            if isinstance(module, transformers.pytorch_utils.Conv1D):
                module.weight.copy_(round_rows(module.weight.T).T)
            elif isinstance(module, torch.nn.Linear):
                module.weight.copy_(round_rows(module.weight))


def answers(program, folder, search, way):
    beams, count, penalty, early, new, repetition = search
    command = [program, "generate", "--model", folder, "--ids", "--log-probs",
               "--num-beams", beams, "--num-return-sequences", count, "--length-penalty", penalty,
               "--max-new-tokens", new, "--repetition-penalty", repetition, "--batch-size", 2]
    command += ["--early-stopping"] if early is True else []
    # the file alone says "never"
    pathlib.Path(folder, "generation_config.json").write_text(
        json.dumps({"eos_token_id": 1, "early_stopping": early if early == "never" else False}))
    command += ["--weights", "int8"] if "int8" in way else []
    lines = [" ".join(map(str, prompt)) for prompt in PROMPTS]
    if "file" in way:
        pathlib.Path(folder, "prompts.txt").write_text("".join(line + "\n" for line in lines))
        command += ["--prompts", folder / "prompts.txt"]
    else:
        command += [word for line in lines for word in ("--prompt", line)]
    text = subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True).stdout
    return [json.loads(line) for line in text.splitlines()]


def expected(model, search):
    beams, count, penalty, early, new, repetition = search
    beam_options = {"length_penalty": penalty, "early_stopping": early} if beams > 1 else {}
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), num_beams=beams,
                             num_return_sequences=count, max_new_tokens=new, do_sample=False,
                             repetition_penalty=repetition, return_dict_in_generate=True,
                             output_scores=True, **beam_options)
        skip = 1 if model.config.is_encoder_decoder else len(prompt)
        for k in range(count):
            new_ids = out.sequences[k][skip:].tolist()
            if 1 in new_ids:
                new_ids = new_ids[:new_ids.index(1) + 1]
            yield new_ids, float(out.sequences_scores[k]) if beams > 1 else None


def main():
    torch.manual_seed(int(sys.argv[2]) if len(sys.argv) > 2 else 3)
    torch.set_num_threads(1)
    compared = bad = 0
    with tempfile.TemporaryDirectory() as folder:
        for family, model in models():
            path = pathlib.Path(folder) / family
            model.eval().save_pretrained(path)
            for way, search in ((way, search) for way in WAYS for search in SEARCHES):
                if way == "int8 file" and search == SEARCHES[0]:
                    round_model(model)
                found = answers(sys.argv[1], path, search, way)
                for got, (ids, score) in zip(found, expected(model, search), strict=True):
                    total = sum(got["log_probs"]) / len(ids) ** (search[2] if search[0] > 1 else 0)
                    close = 1e-3 * max(1, abs(total))
                    good = (got["ids"] == ids and abs(total - got["score"]) < close
                            and (score is None or abs(score - got["score"]) < close))
                    compared += 1
                    bad += not good
                    if not good:
                        print(f"{family} {way} {search}: {got}, expected {ids} {score}")
    print(f"{compared} answers compared, {bad} differ")
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
