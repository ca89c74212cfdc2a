#!/bin/sh
# Guess: Trainer with gradient_accumulation_steps=8 and batches of 1 gives loss and gradient of a batch of 8, up to
# rounding, if all rows have as many labels.
# Really: with BERT, DeBERTa, T5, BART and others both are 8 times as large. Their forward takes **kwargs, so Trainer
# passes the number of labels of the whole step and no longer divides by 8, but these heads ignore the number and
# return the mean of their own rows. The heads of Llama and GPT-2 use it, and are right. No warning.
# Why users meet it: accumulation is how the batch of a recipe fits a small GPU. Losses of two runs cannot be compared,
# clipping at 1.0 cuts steps that were below it, and with SGD the learning rate is 8 times as high.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
cd "$dir"
export HF_HUB_OFFLINE=1
python3 -m venv venv
venv/bin/pip install --quiet torch==2.15.0 numpy==2.4.6 transformers==5.24.0 accelerate==1.15.0

venv/bin/python - <<'END'
import warnings

import torch
import transformers
from transformers import (BartConfig, BartForConditionalGeneration, BertConfig, BertForMaskedLM,
                          BertForSequenceClassification, DebertaV2Config, DebertaV2ForSequenceClassification,
                          GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, T5Config,
                          T5ForConditionalGeneration, Trainer, TrainingArguments)

print("transformers", transformers.__version__, "torch", torch.__version__)
transformers.logging.set_verbosity_error()
warnings.simplefilter("error", UserWarning)
ROWS, LENGTH, VOCAB = 8, 12, 40
NONE = {"bos_token_id": None, "eos_token_id": None}
ENCODER = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
           "intermediate_size": 64, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MODELS = [
    (8, BertForMaskedLM, BertConfig(**ENCODER)),
    (8, BertForSequenceClassification, BertConfig(**ENCODER)),
    (8, DebertaV2ForSequenceClassification, DebertaV2Config(**ENCODER)),
    (8, T5ForConditionalGeneration, T5Config(vocab_size=VOCAB, d_model=32, d_kv=16, d_ff=64, num_layers=2,
                                             num_heads=2, dropout_rate=0.0, decoder_start_token_id=0)),
    (8, BartForConditionalGeneration, BartConfig(vocab_size=VOCAB, d_model=32, encoder_layers=1, decoder_layers=1,
                                                 encoder_attention_heads=2, decoder_attention_heads=2, dropout=0.0,
                                                 encoder_ffn_dim=64, decoder_ffn_dim=64)),
    (1, GPT2LMHeadModel, GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0,
                                    embd_pdrop=0.0, attn_pdrop=0.0, **NONE)),
    (1, LlamaForCausalLM, LlamaConfig(vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                      num_attention_heads=2, num_key_value_heads=2, **NONE)),
]
generator = torch.Generator().manual_seed(0)
ids = torch.randint(3, VOCAB, (ROWS, LENGTH), generator=generator).tolist()


def first_step(kind, config, accumulate, divide=None):
    """Loss and norm of the gradient that Trainer logs for a step over all rows."""
    torch.manual_seed(0)
    model = kind(config)
    of_row = "Classification" in kind.__name__
    rows = [{"input_ids": row, "labels": i % 2 if of_row else row} for i, row in enumerate(ids)]
    args = TrainingArguments("out", per_device_train_batch_size=ROWS // accumulate, max_steps=1, logging_steps=1,
                             gradient_accumulation_steps=accumulate, use_cpu=True, report_to=[], save_strategy="no",
                             disable_tqdm=True)
    trainer = Trainer(model, args, train_dataset=rows)
    if divide is not None:
        trainer.loss_is_scaled_for_ga = not divide
    trainer.log = lambda logs, *rest: trainer.state.log_history.append(logs)
    trainer.train()
    log = trainer.state.log_history[0]
    return float(log["loss"]), float(log["grad_norm"])


for factor, kind, config in MODELS:
    whole, parts = first_step(kind, config, 1), first_step(kind, config, ROWS)
    print(f"{kind.__name__}: batch of 8: loss {whole[0]:.4f}, gradient {whole[1]:.4f}; "
          f"8 batches of 1: loss {parts[0]:.4f}, gradient {parts[1]:.4f}")
    assert abs(parts[0] / whole[0] / factor - 1) < 1e-3 and abs(parts[1] / whole[1] / factor - 1) < 1e-3
    if factor == 8:
        mended = first_step(kind, config, ROWS, divide=True)
        print(f"    with loss_is_scaled_for_ga = False: loss {mended[0]:.4f}, gradient {mended[1]:.4f}")
        assert abs(mended[0] / whole[0] - 1) < 1e-3 and abs(mended[1] / whole[1] - 1) < 1e-3
END
