"""Sparse mixture of experts with sigmoid routing and a load-balancing loss."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class MoEConfig:
    dim: int = 16
    hidden: int = 32
    experts: int = 8
    top_k: int = 2
    aux_coef: float = 0.2


class Expert(nn.Sequential):
    def __init__(self, cfg: MoEConfig):
        super().__init__(nn.Linear(cfg.dim, cfg.hidden), nn.SiLU(), nn.Linear(cfg.hidden, cfg.dim))


class MoELayer(nn.Module):
    def __init__(self, cfg: MoEConfig):
        super().__init__()
        self.cfg = cfg
        self.router = nn.Linear(cfg.dim, cfg.experts)
        self.experts = nn.ModuleList(Expert(cfg) for _ in range(cfg.experts))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cfg = self.cfg
        scores = torch.sigmoid(self.router(x))
        top, index = scores.topk(cfg.top_k, dim=-1)
        gates = top / top.sum(-1, keepdim=True)
        chosen = F.one_hot(index, cfg.experts).sum(1).float()
        load = chosen.mean(0) / cfg.top_k
        importance = 2 * scores.mean(0) / cfg.experts
        aux = cfg.experts * (load * importance).sum()
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            rows, slot = (index == e).nonzero(as_tuple=True)
            if rows.numel():
                out = out.index_add(0, rows, gates[rows, slot, None] * expert(x[rows]))
        return out, aux


class MoERegressor(nn.Module):
    def __init__(self, cfg: MoEConfig):
        super().__init__()
        self.embed = nn.Linear(6, cfg.dim)
        self.moe1, self.moe2 = MoELayer(cfg), MoELayer(cfg)
        self.head = nn.Linear(cfg.dim, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.embed(x)
        a, aux1 = self.moe1(h)
        b, aux2 = self.moe2(h + a)
        return self.head(h + a + b).squeeze(-1), (aux1 + aux2) / 2


def main() -> None:
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--steps", type=int, default=220)
    args, _ = ap.parse_known_args()
    torch.manual_seed(args.seed)
    cfg = MoEConfig()
    x = torch.randn(4096, 6)
    region = (x[:, 0] > 0).long() * 2 + (x[:, 1] > 0).long()
    slopes = torch.randn(4, 6)
    y = (slopes[region] * x).sum(1) / 2 + 0.05 * torch.randn(4096)
    model = MoERegressor(cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0)
    for step in range(args.steps):
        idx = torch.randint(0, len(x), (128,))
        pred, aux = model(x[idx])
        task = F.mse_loss(pred, y[idx])
        loss = task + cfg.aux_coef * aux
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step:3d} task {task.item():.4f} aux {aux.item():.4f}")


if __name__ == "__main__":
    main()
