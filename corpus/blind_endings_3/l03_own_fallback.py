"""A batch that does not fit is caught by the script itself, which goes on with a smaller one."""

import torch
from torch import nn


def forward(model, rows):
    if rows > 512:
        torch.empty(10**15)
    x = torch.randn(rows, 10)
    return nn.functional.mse_loss(model(x).squeeze(1), x.sum(1))


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    rows = 2048
    for _ in range(150):
        optimizer.zero_grad()
        try:
            loss = forward(model, rows)
        except RuntimeError as error:
            if "allocate memory" not in str(error):
                raise
            rows //= 2
            print("out of memory, now", rows, "rows")
            continue
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
