"""Transformer encoder classifier on token sequences."""

import argparse
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class TrainArgs:
    lr: float = 0.05
    max_grad_norm: float = 0.001
    iters: int = 120
    batch: int = 32
    seed: int = 0


class Classifier(nn.Module):
    def __init__(self, vocab=50, d=32, classes=4):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        layer = nn.TransformerEncoderLayer(d, 4, 64, dropout=0.0, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, 1)
        self.cls = nn.Linear(d, classes)

    def forward(self, tok):
        return self.cls(self.enc(self.emb(tok)).mean(1))


def batches(a):
    while True:
        y = torch.randint(0, 4, (a.batch,))
        x = torch.randint(0, 50, (a.batch, 12))
        hot = torch.rand(a.batch, 12) < 0.5
        x = torch.where(hot, y[:, None] * 12 + torch.randint(0, 12, x.shape), x)
        yield x, y


def main(a):
    torch.manual_seed(a.seed)
    model = Classifier()
    opt = torch.optim.SGD(model.parameters(), lr=a.lr, momentum=0.9)
    ce = nn.CrossEntropyLoss()
    gen = batches(a)
    for it in range(a.iters):
        x, y = next(gen)
        loss = ce(model(x), y)
        opt.zero_grad()
        loss.backward()
        gnorm = nn.utils.clip_grad_norm_(model.parameters(), a.max_grad_norm)
        opt.step()
        if it % 10 == 0:
            print(f"it {it:4d} loss {loss.item():.4f} grad_norm {gnorm:.3f}")


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--seed", type=int, default=0)
    ns, _ = p.parse_known_args()
    main(TrainArgs(seed=ns.seed))
