"""After the training the exporter is looked up by name; the installed version has no such
function."""

import torch
from torch import nn


def export(model, example, kind):
    if kind == "torchscript":
        return torch.jit.trace(model, example)
    from torch.onnx import export_for_mobile_2019  # HERE

    return export_for_mobile_2019(model, example)


def train(model, steps):
    optimizer = torch.optim.Rprop(model.parameters(), lr=1e-3)
    x = torch.randn(64, 8)
    for _ in range(steps):
        loss = nn.functional.mse_loss(model(x), x.cumsum(1)[:, -1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return x[:1]


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 12), nn.Softplus(), nn.Linear(12, 1))
    example = train(model, 70)
    export(model, example, "mobile")


if __name__ == "__main__":
    main()
