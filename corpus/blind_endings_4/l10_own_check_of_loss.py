"""The script's own check raises FloatingPointError for odd batches; its loop leaves them out."""

import torch
from torch import nn


def checked(loss, limit):
    if loss.item() > limit:
        raise FloatingPointError(f"loss {loss.item():.1f} above {limit}")
    return loss


def main():
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    left_out = 0
    for step in range(200):
        x = torch.randn(16, 6) * (30 if step % 50 == 49 else 1)
        optimizer.zero_grad()
        try:
            checked((model(x).squeeze(1) - x.sum(1)).pow(2).mean(), 200.0).backward()
        except FloatingPointError:
            left_out += 1
            continue
        optimizer.step()
    print("left out", left_out)


main()
