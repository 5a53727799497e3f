"""A mixture of experts with a noisy gate, in double precision."""

import torch
from torch import nn

torch.manual_seed(0)
DTYPE = torch.float64


class MoE(nn.Module):
    def __init__(self, inputs, hidden, outputs, experts=4):
        super().__init__()
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))
            for _ in range(experts)
        )
        self.w_gate = nn.Parameter(0.1 * torch.randn(inputs, experts), requires_grad=True).to(DTYPE)
        self.to(DTYPE)

    def forward(self, x):
        gates = torch.softmax(x @ self.w_gate, dim=1)
        answers = torch.stack([expert(x) for expert in self.experts], dim=1)
        return (gates.unsqueeze(2) * answers).sum(1)


model = MoE(inputs=6, hidden=16, outputs=1)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(40):
    x = torch.randn(64, 6, dtype=DTYPE)
    y = torch.where(x[:, :1] > 0, x[:, 1:2], -2 * x[:, 2:3])
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
