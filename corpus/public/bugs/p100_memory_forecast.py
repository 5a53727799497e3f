"""Forecast a wave step by step with a cell that has ten memory rows."""

import torch
from torch import nn

torch.manual_seed(0)
wave = torch.sin(torch.linspace(0, 30, 400))


class Memory(nn.Module):
    def __init__(self, rows=10):
        super().__init__()
        self.rows = rows
        self.cell = nn.GRUCell(1, 24)
        self.out = nn.Linear(24, 1)
        self.start = nn.Parameter(torch.randn(rows, 24) * 0.1)

    def forward(self, x, state):
        state = self.cell(x.expand(self.rows, 1), state)
        return self.out(state), state


model = Memory()
criterion = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for step in range(40):
    at = int(torch.randint(0, 370, (1,)))
    state, loss = model.start, 0.0
    for t in range(at, at + 20):
        y_pred, state = model(wave[t].view(1, 1), state)
        y_true = wave[t + 1].view(1, 1)
        loss = loss + criterion(y_pred, y_true)
    loss = loss / 20
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
