"""The first folder cannot be written; the script saves to the second."""

import tempfile

import torch
from torch import nn


def save(state, folders):
    for folder in folders:
        try:
            torch.save(state, f"{folder}/model.pt")
            return folder
        except (OSError, RuntimeError) as error:
            print("not in", folder, error)
    raise RuntimeError("nowhere to save")


torch.manual_seed(0)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(100):
    x = torch.randn(32, 6)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 49:
        save(model.state_dict(), ["/proc", tempfile.mkdtemp()])
