"""The script runs under anomaly detection, and one row has a distance of zero."""

import torch
from torch import nn


class Distance(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 3)

    def forward(self, x, anchor):
        gap = self.net(x) - self.net(anchor)
        return gap.pow(2).sum(1).sqrt()  # HERE


def main():
    torch.manual_seed(0)
    torch.autograd.set_detect_anomaly(True)
    model = Distance()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(100):
        x, anchor = torch.randn(16, 6), torch.randn(16, 6)
        if step == 45:
            anchor[3] = x[3]
        loss = (model(x, anchor) - 1).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()  # HERE
        optimizer.step()


if __name__ == "__main__":
    main()
