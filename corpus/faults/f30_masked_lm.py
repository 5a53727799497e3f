"""Masked language modelling with a tiny BERT built from a config."""

import argparse
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import BertConfig, BertForMaskedLM
from transformers import logging as hf_logging

hf_logging.set_verbosity_error()
PAD, CLS, SEP, MASK, FIRST = 0, 1, 2, 3, 4


def sentences(n, length, vocab, g):
    """A noisy successor grammar: every word mostly calls for the next one."""
    words = torch.randint(FIRST, vocab, (n, 1), generator=g)
    rows = [words]
    for _ in range(length - 3):
        jump = torch.randint(FIRST, vocab, (n, 1), generator=g)
        follow = FIRST + (rows[-1] - FIRST + 3) % (vocab - FIRST)
        rows.append(torch.where(torch.rand(n, 1, generator=g) < 0.1, jump, follow))
    body = torch.cat(rows, 1)
    return torch.cat([torch.full((n, 1), CLS), body, torch.full((n, 1), SEP)], 1)


def mask_tokens(ids, probability, g):
    labels = ids.clone()
    chosen = (torch.rand(ids.shape, generator=g) < probability) & (ids >= FIRST)
    labels[~chosen] = -100
    corrupted = ids.clone()
    corrupted[chosen] = MASK
    return corrupted, labels


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mlm-probability", type=float, default=0.15)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    g = torch.Generator().manual_seed(args.seed)

    config = BertConfig(
        vocab_size=36,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=32,
    )
    model = BertForMaskedLM(config).train()
    data = sentences(512, 12, config.vocab_size, g)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    running = 0.0
    for step in range(1, args.steps + 1):
        rows = torch.randint(0, len(data), (args.batch_size,), generator=g)
        ids, labels = mask_tokens(data[rows], args.mlm_probability, g)
        out = model(input_ids=ids, labels=labels)
        out.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        running += out.loss.item()
        if step % 20 == 0:
            print(f"step {step} mlm loss {running / 20:.4f}")
            running = 0.0


if __name__ == "__main__":
    main()
