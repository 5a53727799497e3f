"""Weights go to safetensors under a limit of the size of files; the model has grown since the
last one."""

import resource
import tempfile

import torch
from safetensors.torch import save_file
from torch import nn


def dump(model, number, folder):
    tensors = {name: value.contiguous() for name, value in model.state_dict().items()}
    save_file(tensors, f"{folder}/grown_{number}.safetensors")  # HERE


def grown(model):
    old = model[0]
    wider = nn.Sequential(
        nn.Linear(16, old.out_features * 8), nn.ReLU(), nn.Linear(old.out_features * 8, 1)
    )
    return wider


torch.manual_seed(0)
folder = tempfile.mkdtemp()
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
model = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 1))
for number in range(4):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(25):
        x = torch.randn(32, 16)
        loss = nn.functional.mse_loss(model(x), x.mean(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dump(model, number, folder)
    model = grown(model)
