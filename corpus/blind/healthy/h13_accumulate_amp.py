"""Gradient accumulation under bfloat16 autocast."""

import argparse
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Config:
    micro_batch: int = 8
    accum: int = 4
    lr: float = 2e-3
    epochs: int = 4


class Trainer:
    def __init__(self, model, cfg):
        self.model, self.cfg = model, cfg
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
        self.step = 0

    def loss(self, batch):
        x, y = batch
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = self.model(x)
        return F.cross_entropy(logits.float(), y)

    def fit(self, loader):
        for epoch in range(self.cfg.epochs):
            self.optimizer.zero_grad(set_to_none=True)
            for i, batch in enumerate(loader):
                loss = self.loss(batch) / self.cfg.accum
                loss.backward()
                if (i + 1) % self.cfg.accum == 0:
                    self.optimizer.step()
                    self.optimizer.zero_grad(set_to_none=True)
                    self.step += 1
                    if self.step % 10 == 0:
                        print(f"step {self.step} loss {loss.item() * self.cfg.accum:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    cfg = Config()
    y = torch.randint(0, 6, (800,))
    x = 1.2 * torch.randn(6, 24)[y] + torch.randn(800, 24)
    dl = DataLoader(TensorDataset(x, y), batch_size=cfg.micro_batch, shuffle=True)
    net = nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 6))
    Trainer(net, cfg).fit(dl)
