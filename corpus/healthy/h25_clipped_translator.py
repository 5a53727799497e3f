"""Sequence-to-sequence GRU that copies digits in reverse, with gradients clipped to 0.5."""

import argparse
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

DIGITS, START, LENGTH = 8, 8, 6


class Seq2Seq(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.embed = nn.Embedding(DIGITS + 1, hidden)
        self.encoder = nn.GRU(hidden, hidden, batch_first=True)
        self.decoder = nn.GRU(hidden, hidden, batch_first=True)
        self.attend = nn.Linear(hidden, hidden, bias=False)
        self.out = nn.Linear(2 * hidden, DIGITS)

    def forward(self, source, shifted):
        memory, state = self.encoder(self.embed(source))
        decoded, _ = self.decoder(self.embed(shifted), state)
        weights = torch.softmax(self.attend(decoded) @ memory.transpose(1, 2), dim=-1)
        return self.out(torch.cat([decoded, weights @ memory], dim=-1))


def make_batch(n):
    source = torch.randint(0, DIGITS, (n, LENGTH))
    target = source.flip(1)
    start = torch.full((n, 1), START)
    return source, torch.cat([start, target[:, :-1]], dim=1), target


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clip", type=float, default=0.5)
    parser.add_argument("--steps", type=int, default=250)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    model = Seq2Seq()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    clipped = 0
    for step in range(args.steps):
        source, shifted, target = make_batch(32)
        logits = model(source, shifted)
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        clipped += int(norm > args.clip)
        if step % 25 == 0:
            print(f"step {step} loss {loss.item():.4f} norm {norm:.2f} clipped {clipped}")


if __name__ == "__main__":
    main()
