"""Weights are written with safetensors into a folder that nobody made."""

import tempfile

import torch
from safetensors.torch import save_file
from torch import nn

target = tempfile.mkdtemp()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(1, 101):
    x = torch.randn(32, 16)
    loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        name = f"{target}/model.safetensors" if step == 50 else f"{target}/best/model.safetensors"
        save_file(model.state_dict(), name)  # HERE
