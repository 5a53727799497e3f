"""Adapt a frozen transformer encoder with low-rank matrices."""

import argparse
import math
import random
import warnings

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

warnings.filterwarnings("ignore", message="enable_nested_tensor")

VOCAB, LENGTH, DIM, CLASSES = 50, 18, 48, 5


class LoRALinear(nn.Module):
    """A frozen linear layer plus a trainable product of two thin matrices."""

    def __init__(self, base: nn.Linear, rank: int = 4, alpha: int = 8):
        super().__init__()
        self.base = base
        for param in self.base.parameters():
            param.requires_grad = False
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.scaling = alpha / rank

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.lora_A), self.lora_B) * self.scaling


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.up = nn.Linear(DIM, 2 * DIM)
        self.down = nn.Linear(2 * DIM, DIM)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList([FeedForward() for _ in range(3)])
        self.norm = nn.LayerNorm(DIM)
        self.score = nn.Linear(DIM, CLASSES)

    def forward(self, tokens):
        h = self.embed(tokens)
        for layer in self.layers:
            h = layer(h)
        return self.score(self.norm(h.mean(dim=1)))


def inject(model, names):
    for param in model.parameters():
        param.requires_grad = False
    for layer in model.layers:
        for name in names:
            setattr(layer, name, LoRALinear(getattr(layer, name)))
    for param in model.score.parameters():
        param.requires_grad = True
    return model


def sample(batch, signature):
    labels = torch.randint(0, CLASSES, (batch,))
    tokens = torch.multinomial(signature[labels], LENGTH, replacement=True)
    return tokens, labels


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=150)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    signature = torch.softmax(torch.randn(CLASSES, VOCAB), dim=1)
    model = inject(Encoder(), ["up", "down"])
    trainable = [p for p in model.parameters() if p.requires_grad]
    total = sum(p.numel() for p in model.parameters())
    print(f"training {sum(p.numel() for p in trainable)} of {total} parameters")
    optimizer = torch.optim.AdamW(trainable, lr=3e-3)
    for step in range(args.steps):
        tokens, labels = sample(32, signature)
        loss = F.cross_entropy(model(tokens), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 15 == 0:
            print(f"step {step:3d} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
