"""Classify token sequences with an embedding, a GRU and a linear head; saliency is logged."""

import argparse
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

VOCAB, LENGTH, CLASSES = 60, 20, 4


class SequenceClassifier(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.encoder = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, CLASSES))

    def features(self, embedded):
        _, last = self.encoder(embedded)
        return last[0]

    def forward(self, tokens):
        return self.head(self.features(self.embed(tokens)))


class Trainer:
    def __init__(self, model, tokens, labels, batch_size=32):
        self.model = model
        self.tokens, self.labels = tokens, labels
        self.batch_size = batch_size
        self.optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
        self.history = []

    def batch(self):
        index = torch.randint(0, len(self.tokens), (self.batch_size,))
        return self.tokens[index], self.labels[index]

    def training_step(self):
        tokens, labels = self.batch()
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(tokens), labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def saliency(self):
        """How much each position matters; only the input's gradient is wanted."""
        for param in self.model.encoder.parameters():
            param.requires_grad_(False)
        tokens, labels = self.batch()
        embedded = self.model.embed(tokens).detach().requires_grad_()
        score = F.cross_entropy(self.model.head(self.model.features(embedded)), labels)
        (grad,) = torch.autograd.grad(score, embedded)
        return grad.norm(dim=-1).mean(0)

    def fit(self, steps, report_every=40):
        for step in range(1, steps + 1):
            self.history.append(self.training_step())
            if step % 10 == 0:
                print(f"[{step:03d}] loss={np.mean(self.history[-10:]):.4f}")
            if step % report_every == 0:
                top = self.saliency().argmax().item()
                print(f"[{step:03d}] most salient position {top}")


def make_corpus(n):
    tokens = torch.randint(0, VOCAB, (n, LENGTH))
    marker = torch.randint(0, CLASSES, (n,))
    where = torch.randint(0, LENGTH, (n,))
    tokens[tokens < CLASSES] += CLASSES
    tokens[torch.arange(n), where] = marker
    return tokens, marker


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    tokens, labels = make_corpus(2000)
    Trainer(SequenceClassifier(), tokens, labels).fit(steps=120)


if __name__ == "__main__":
    main()
