#!/usr/bin/env python3
"""Compares beam search, several answers a prompt and log-probabilities with transformers' generate().

    tests/check_generation.py PROGRAM [SEED]

PROGRAM is the command modelcenter. Needs torch and transformers. Small models of random weights, f32:
tokens have to be the same, scores within a thousandth.
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


def models():
    common = {"vocab_size": 60, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    yield "gpt2", transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=2, n_positions=64, initializer_range=0.4, **common))
    yield "t5", transformers.T5ForConditionalGeneration(transformers.T5Config(
        d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu",
        decoder_start_token_id=0, tie_word_embeddings=False, initializer_factor=3.0, **common))


def answers(program, family, folder, search):
    beams, count, penalty, early, new, repetition = search
    command = [program, "generate", family, "--pretrained", folder, "--ids", "--log-probs",
               "--num-beams", beams, "--num-return-sequences", count, "--length-penalty", penalty,
               "--max-new-tokens", new, "--repetition-penalty", repetition, "--batch-size", 2]
    command += ["--early-stopping"] if early is True else []
    # the file alone says "never"
    pathlib.Path(folder, "generation_config.json").write_text(
        json.dumps({"eos_token_id": 1, "early_stopping": early if early == "never" else False}))
    for prompt in PROMPTS:
        command += ["--prompt", " ".join(map(str, prompt))]
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
            for search in SEARCHES:
                found = answers(sys.argv[1], family, path, search)
                for got, (ids, score) in zip(found, expected(model, search), strict=True):
                    total = sum(got["log_probs"]) / len(ids) ** (search[2] if search[0] > 1 else 0)
                    close = 1e-3 * max(1, abs(total))
                    good = (got["ids"] == ids and abs(total - got["score"]) < close
                            and (score is None or abs(score - got["score"]) < close))
                    compared += 1
                    bad += not good
                    if not good:
                        print(f"{family} {search}: {got}, expected {ids} {score}")
    print(f"{compared} answers compared, {bad} differ")
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
