"""Trains the base model: a small Llama that knows units, but no answer tags.

python base.py FOLDER
"""

from __future__ import annotations

import random
import sys

import torch
from questions import END, PAD, WORDS, encode, questions
from transformers import LlamaConfig, LlamaForCausalLM

STEPS = 200


def main(folder: str) -> None:
    torch.set_num_threads(1)  # for a model this small, more threads make it slower
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(WORDS),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=32,
            pad_token_id=PAD,
            bos_token_id=None,
            eos_token_id=END,
        )
    )
    texts = [encode(f"{asked} the result is {number} .") for asked, number in questions()[0]]
    longest = max(map(len, texts)) + 1
    rows = torch.tensor([text + [END] * (longest - len(text)) for text in texts])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=STEPS)
    draw = random.Random(0)
    for _ in range(STEPS):
        batch = rows[draw.sample(range(len(rows)), 32)]
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    print(f"base model: {model.num_parameters():,} parameters, loss {loss.item():.2f}")
    model.save_pretrained(folder)


if __name__ == "__main__":
    main(sys.argv[1])
