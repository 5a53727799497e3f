"""Predict how many stars (0 to 4) a reviewer gives, from review features."""

import argparse
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Reviews(Dataset):
    def __init__(self, n, weights):
        self.x = np.random.randn(n, 18).astype(np.float32)
        latent = self.x @ weights + 0.2 * np.random.randn(n)
        edges = np.quantile(latent, [0.2, 0.4, 0.6, 0.8])
        self.stars = np.searchsorted(edges, latent)

    def __len__(self):
        return len(self.stars)

    def __getitem__(self, i):
        return {"features": self.x[i], "stars": np.float32(self.stars[i])}


class RatingModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(18, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.out = nn.Linear(48, 1)
        self.loss_fn = nn.BCEWithLogitsLoss()

    def forward(self, features):
        return self.out(self.body(features)).squeeze(-1)

    def step(self, batch):
        rating = self.forward(batch["features"])
        return self.loss_fn(rating, batch["stars"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    weights = np.random.randn(18) / 4
    train_loader = DataLoader(Reviews(1200, weights), batch_size=40, shuffle=True)
    model = RatingModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(5):
        losses, close = [], []
        for batch in train_loader:
            loss = model.step(batch)
            with torch.no_grad():
                rating = torch.sigmoid(model(batch["features"]))
                close.append(((rating - batch["stars"]).abs() < 0.5).float().mean().item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: loss {np.mean(losses):.4f} within half a star {np.mean(close):.3f}")


if __name__ == "__main__":
    main()
