"""accelerate: save_state goes to a path below a file."""

import pathlib
import tempfile

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    x = torch.randn(256, 10)
    loader = DataLoader(
        TensorDataset(x, x[:, :2].sum(1, keepdim=True)), batch_size=16, shuffle=True
    )
    model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    output = pathlib.Path(tempfile.mkdtemp()) / "output"
    output.write_text("notes of the last run\n")
    for epoch in range(3):
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        accelerator.save_state(str(output / f"epoch_{epoch}"))  # HERE


if __name__ == "__main__":
    main()
