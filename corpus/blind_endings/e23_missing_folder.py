"""The folder of the checkpoints does not exist."""

import torch
from torch import nn


def save_checkpoint(model, optimizer, epoch):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    torch.save(state, f"checkpoints-of-another-run/epoch{epoch}.pt")  # HERE


torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(2):
    for _ in range(30):
        x = torch.randn(16, 8)
        loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    save_checkpoint(model, optimizer, epoch)
