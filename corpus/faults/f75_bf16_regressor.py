"""Fine-tune a regressor kept wholly in bfloat16 to save memory."""

import argparse
import random

import numpy as np
import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, 2 * dim)
        self.fc2 = nn.Linear(2 * dim, dim)

    def forward(self, x):
        return x + self.fc2(torch.nn.functional.gelu(self.fc1(self.norm(x))))


class Regressor(nn.Module):
    def __init__(self, inputs=12, dim=32, depth=3):
        super().__init__()
        self.stem = nn.Linear(inputs, dim)
        self.blocks = nn.Sequential(*[Residual(dim) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 1)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.stem(x)))).squeeze(-1)


def make_batches(batch_size):
    direction = torch.randn(12) / 12**0.5
    while True:
        x = torch.randn(batch_size, 12)
        y = torch.sin(2 * x @ direction) + 0.5 * x[:, 0]
        yield x.bfloat16(), y


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--steps", type=int, default=120)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    model = Regressor().to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)
    batches = iter(make_batches(64))
    window = []
    for step in range(1, args.steps + 1):
        x, y = next(batches)
        prediction = model(x).float()
        loss = nn.functional.mse_loss(prediction, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        window.append(loss.item())
        if step % 20 == 0:
            print(f"step {step}: loss {np.mean(window[-20:]):.4f}")


if __name__ == "__main__":
    main()
