"""Top-1 mixture of experts with a balance loss."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class MoE(nn.Module):
    def __init__(self, d=16, experts=8, hidden=32):
        super().__init__()
        self.gate = nn.Linear(d, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(d, hidden), nn.ReLU(), nn.Linear(hidden, d))
            for _ in range(experts)
        )

    def forward(self, x):
        probs = F.softmax(self.gate(x), dim=-1)
        weight, choice = probs.max(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            sel = choice == i
            if sel.any():
                out[sel] = weight[sel, None] * expert(x[sel])
        load = F.one_hot(choice, probs.size(-1)).float().mean(0)
        return x + out, probs.size(-1) * (load * probs.mean(0)).sum()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(12, 16)
        self.moe = MoE()
        self.head = nn.Linear(16, 6)

    def forward(self, x):
        h, aux = self.moe(torch.tanh(self.inp(x)))
        return self.head(h), aux


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    y = torch.randint(0, 6, (800,))
    x = 1.5 * torch.randn(6, 12)[y] + torch.randn(800, 12)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(120):
        idx = torch.randint(0, 800, (16,))
        logits, aux = model(x[idx])
        ce = F.cross_entropy(logits, y[idx])
        loss = ce + 0.01 * aux
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 15 == 0:
            print(f"step {step} ce {ce.item():.4f} aux {aux.item():.4f}")


if __name__ == "__main__":
    main()
