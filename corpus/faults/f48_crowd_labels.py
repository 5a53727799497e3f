"""Leaf disease classifier on crowd-sourced labels."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Settings:
    seed: int = 0
    n_train: int = 4000
    n_val: int = 500
    dim: int = 12
    classes: int = 5
    epochs: int = 5
    batch: int = 80
    lr: float = 5e-3
    history: list[float] = field(default_factory=list)


def annotators(truth: np.ndarray, classes: int, rng: np.random.Generator) -> np.ndarray:
    """One label per leaf, each from whichever volunteer was on duty."""
    skill = rng.choice([0.95, 0.3, 0.1], size=len(truth), p=[0.35, 0.35, 0.3])
    guess = rng.integers(0, classes, len(truth))
    return np.where(rng.random(len(truth)) < skill, truth, guess)


def leaves(s: Settings) -> tuple[TensorDataset, TensorDataset]:
    rng = np.random.default_rng(s.seed)
    centres = 2.5 * rng.standard_normal((s.classes, s.dim))
    n = s.n_train + s.n_val
    truth = rng.integers(0, s.classes, n)
    x = centres[truth] + rng.standard_normal((n, s.dim))
    labels = truth.copy()
    labels[: s.n_train] = annotators(truth[: s.n_train], s.classes, rng)
    xt, yt = torch.tensor(x, dtype=torch.float32), torch.tensor(labels)
    k = s.n_train
    return TensorDataset(xt[:k], yt[:k]), TensorDataset(xt[k:], yt[k:])


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), y)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    s = Settings(seed=parser.parse_known_args()[0].seed)
    torch.manual_seed(s.seed)
    train, val = leaves(s)
    model = nn.Sequential(nn.Linear(s.dim, 32), nn.ReLU(), nn.Linear(32, s.classes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=s.lr, weight_decay=1e-3)
    for epoch in range(s.epochs):
        model.train()
        right = 0
        for x, y in DataLoader(train, s.batch, shuffle=True):
            loss = loss_of(model, x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            s.history.append(loss.item())
            with torch.no_grad():
                right += int((model(x).argmax(1) == y).sum())
        model.eval()
        with torch.no_grad():
            xv, yv = val.tensors
            val_acc = (model(xv).argmax(1) == yv).float().mean().item()
        mean = float(np.mean(s.history[-len(train) // s.batch :]))
        print(
            f"epoch {epoch + 1}/{s.epochs} loss {mean:.4f} "
            f"train acc {right / len(train):.3f} expert-labelled val acc {val_acc:.3f}"
        )


if __name__ == "__main__":
    main()
