"""Instruction tuning: prompt tokens are masked out of the loss."""

import argparse
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

IGNORE, PAD, MAX_LEN, VOCAB = -100, 0, 24, 40


def make_example():
    n = random.choice([4, 6, 8, 12, 28, 30])
    prompt = [random.randint(1, VOCAB - 1) for _ in range(n)]
    answer = sorted(prompt[:5])
    ids = (prompt + answer)[:MAX_LEN]
    labels = ([IGNORE] * n + answer)[:MAX_LEN]
    return ids, labels


def collate(batch):
    width = max(len(i) for i, _ in batch)
    ids = torch.tensor([i + [PAD] * (width - len(i)) for i, _ in batch])
    labels = torch.tensor([y + [IGNORE] * (width - len(y)) for _, y in batch])
    return {"input_ids": ids, "labels": labels}


class TinyLM(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d)
        self.rnn = nn.GRU(d, d, batch_first=True)
        self.head = nn.Linear(d, VOCAB)

    def forward(self, input_ids, labels):
        h, _ = self.rnn(self.emb(input_ids))
        logits = self.head(h)[:, :-1]
        return F.cross_entropy(
            logits.reshape(-1, VOCAB), labels[:, 1:].reshape(-1), ignore_index=IGNORE
        )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    data = [make_example() for _ in range(400)]
    loader = DataLoader(data, batch_size=2, shuffle=True, collate_fn=collate)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    total = 0.0
    for step, batch in enumerate(loader):
        loss = model(**batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.item()
        if step % 10 == 0:
            print(f"step {step} avg loss {total / (step + 1):.4f}")


if __name__ == "__main__":
    main()
