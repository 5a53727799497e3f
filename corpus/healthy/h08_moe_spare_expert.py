"""Top-1 mixture of experts; one expert is kept in reserve for a domain added later."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class MoE(nn.Module):
    def __init__(self, d_in, d_out, n_experts=5, hidden=32):
        super().__init__()
        self.gate = nn.Linear(d_in, n_experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(d_in, hidden), nn.ReLU(), nn.Linear(hidden, d_out))
            for _ in range(n_experts)
        )
        open_for_routing = torch.ones(n_experts, dtype=torch.bool)
        open_for_routing[-1] = False
        self.register_buffer("open", open_for_routing)

    def forward(self, x):
        logits = self.gate(x).masked_fill(~self.open, float("-inf"))
        probs = F.softmax(logits, dim=-1)
        weight, choice = probs.max(dim=-1)
        outputs = x.new_zeros(len(x), self.experts[0][-1].out_features)
        for i, expert in enumerate(self.experts):
            picked = choice == i
            if picked.any():
                outputs[picked] = weight[picked].unsqueeze(1) * expert(x[picked])
        used = F.one_hot(choice, len(self.experts)).float().mean(0)
        balance = int(self.open.sum()) * (used * probs.mean(0)).sum()
        return outputs, balance, used


def piecewise(n):
    x = torch.randn(n, 8)
    which = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
    maps = torch.randn(4, 8, 2, generator=torch.Generator().manual_seed(7))
    y = torch.einsum("nd,ndo->no", x, maps[which]) / 3
    return x, y + 0.05 * torch.randn(n, 2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=220)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    x, y = piecewise(4096)
    model = MoE(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=1e-4)
    for step in range(args.steps):
        idx = torch.randint(0, len(x), (128,))
        out, balance, used = model(x[idx])
        mse = F.mse_loss(out, y[idx])
        loss = mse + 0.01 * balance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            share = " ".join(f"{u:.2f}" for u in used.tolist())
            print(f"step {step:3d} mse {mse.item():.4f} balance {balance.item():.3f} use [{share}]")


if __name__ == "__main__":
    main()
