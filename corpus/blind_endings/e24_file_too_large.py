"""A limit on the size of files: the weights fit, the optimizer's state does not."""

import resource
import tempfile

import torch
from torch import nn

folder = tempfile.mkdtemp()
resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, resource.RLIM_INFINITY))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(60):
    x = torch.randn(16, 128)
    loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 20:
        torch.save(model.state_dict(), f"{folder}/weights.pt")
    if step == 45:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, f"{folder}/full.pt")  # HERE
