"""CUDA, living: a batch that does not fit is caught by the script, which halves it."""

import torch
from torch import nn

torch.cuda.set_per_process_memory_fraction(0.02)


def step(model, optimizer, rows):
    x = torch.randn(rows, 64, device="cuda")
    loss = nn.functional.mse_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 8192), nn.ReLU(), nn.Linear(8192, 64)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = 262_144
    for _ in range(60):
        try:
            step(model, optimizer, rows)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            rows //= 2
    print("rows", rows)


if __name__ == "__main__":
    main()
