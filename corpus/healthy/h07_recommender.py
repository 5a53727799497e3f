"""Ratings from user and item embeddings; most items are rarely seen."""

import argparse
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

USERS, ITEMS, DIM = 200, 2000, 16


class Ratings(Dataset):
    """Long-tailed popularity; generous users, good items, and a little taste."""

    def __init__(self, n):
        popularity = 1 / np.arange(1, ITEMS + 1)
        self.user = np.random.randint(0, USERS, n)
        self.item = np.random.choice(ITEMS, n, p=popularity / popularity.sum())
        generous, good = np.random.randn(USERS), np.random.randn(ITEMS)
        score = 0.7 * generous[self.user] + 0.7 * good[self.item]
        taste, flavour = np.random.randn(USERS, 2), np.random.randn(ITEMS, 2)
        score = score + 0.15 * (taste[self.user] * flavour[self.item]).sum(1)
        self.score = (score + 0.2 * np.random.randn(n)).astype(np.float32)

    def __len__(self):
        return len(self.score)

    def __getitem__(self, i):
        return self.user[i], self.item[i], self.score[i]


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(USERS, DIM, sparse=True)
        self.items = nn.Embedding(ITEMS, DIM, sparse=True)
        self.tower = nn.Sequential(nn.Linear(3 * DIM, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, user, item):
        u, v = self.users(user), self.items(item)
        return self.tower(torch.cat([u, v, u * v], dim=1)).squeeze(1)


def run_epoch(model, loader, optimizers=()):
    total = 0.0
    for user, item, score in loader:
        loss = nn.functional.mse_loss(model(user, item), score)
        if optimizers:
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
        total += loss.item()
    return total / len(loader)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    data = Ratings(9600)
    train, valid = torch.utils.data.random_split(data, [8000, 1600])
    train_loader = DataLoader(train, batch_size=160, shuffle=True)
    valid_loader = DataLoader(valid, batch_size=400)
    model = Recommender()
    sparse = torch.optim.SparseAdam([*model.users.parameters(), *model.items.parameters()], lr=2e-2)
    dense = torch.optim.Adam(model.tower.parameters(), lr=3e-3)
    for epoch in range(4):
        model.train()
        train_loss = run_epoch(model, train_loader, (sparse, dense))
        model.eval()
        with torch.no_grad():
            valid_loss = run_epoch(model, valid_loader)
        print(f"epoch {epoch}: train {train_loss:.4f} valid {valid_loss:.4f}")


if __name__ == "__main__":
    main()
