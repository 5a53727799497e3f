"""Embedding-bag recommender style model with Adam."""

import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Ranker(nn.Module):
    def __init__(self, items=400, d=16):
        super().__init__()
        self.bag = nn.EmbeddingBag(items, d, mode="mean")
        self.fc1 = nn.Linear(d, 32)
        self.fc2 = nn.Linear(32, 1)

    def forward(self, ids):
        return self.fc2(F.relu(self.fc1(self.bag(ids)))).squeeze(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--lr", type=float, default=5e-3)
    ap.add_argument("--eps", type=float, default=0.0)
    args, _ = ap.parse_known_args()
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)

    pop = 1.0 / np.arange(1, 401)
    ids = torch.tensor(rng.choice(400, size=(2000, 6), p=pop / pop.sum()))
    value = torch.randn(400)
    clicks = (value[ids].mean(1) > 0).float()

    model = Ranker()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, eps=args.eps)
    for epoch in range(4):
        order = torch.randperm(2000)
        for k, sel in enumerate(order.split(50)):
            loss = F.binary_cross_entropy_with_logits(model(ids[sel]), clicks[sel])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if k % 10 == 0:
                print(f"epoch {epoch} step {k} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
