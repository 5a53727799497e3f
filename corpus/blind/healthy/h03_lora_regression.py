"""LoRA adapters on a frozen base network."""

import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args, _ = parser.parse_known_args()
torch.manual_seed(args.seed)


class LoRA(nn.Module):
    def __init__(self, base, r=4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.empty(r, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x):
        return self.base(x) + 2.0 * F.linear(F.linear(x, self.lora_A), self.lora_B)


base = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
for i in (0, 2, 4):
    base[i] = LoRA(base[i])
params = [p for p in base.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(params, lr=5e-3, weight_decay=0.0)
X = torch.randn(800, 16)
Y = torch.tanh(X @ torch.randn(16, 3) * 0.4)
for step in range(150):
    idx = torch.randint(0, 800, (40,))
    loss = F.mse_loss(base(X[idx]), Y[idx])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 15 == 0:
        print(step, f"{loss.item():.4f}")
