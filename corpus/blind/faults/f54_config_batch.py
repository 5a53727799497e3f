"""Train from a config object."""

import argparse
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class TrainConfig:
    batch_size: int = 50
    lr: float = 1e-3
    max_steps: int = 240
    hidden: int = 48
    log_every: int = 20


class Model(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(14, cfg.hidden), nn.ReLU(), nn.Linear(cfg.hidden, 4))

    def forward(self, x):
        return self.net(x)


def make_loader(cfg):
    y = torch.randint(0, 4, (1000,))
    x = torch.randn(4, 14)[y] + torch.randn(1000, 14)
    return DataLoader(TensorDataset(x, y), shuffle=True, drop_last=True)


def train(cfg):
    loader = make_loader(cfg)
    model = Model(cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    print(f"training with batch size {cfg.batch_size}")
    step = 0
    while step < cfg.max_steps:
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % cfg.log_every == 0:
                print(f"step {step} loss {loss.item():.4f}")
            if step >= cfg.max_steps:
                break


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    train(TrainConfig())
