"""Credit scoring, deep and narrow."""

import sys

import torch
import torch.nn as nn


class ScoreNet(nn.Module):
    def __init__(self, n_in, width, depth, n_out):
        super().__init__()
        self.inp = nn.Linear(n_in, width)
        self.hidden = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.out = nn.Linear(width, n_out)

    def forward(self, x):
        x = torch.sigmoid(self.inp(x))
        for layer in self.hidden:
            x = torch.sigmoid(layer(x))
        return self.out(x)


def get_batch(x, y, size):
    i = torch.randint(len(x), (size,))
    return x[i], y[i]


def main(seed=0):
    torch.manual_seed(seed)
    x = torch.randn(2000, 20)
    score = x[:, :5].sum(1) + 0.8 * x[:, 5] * x[:, 6]
    y = torch.bucketize(score, torch.tensor([-1.5, 1.5]))

    net = ScoreNet(20, 40, 8, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    lossf = nn.CrossEntropyLoss(label_smoothing=0.0)
    smooth = 0.0
    for i in range(300):
        xb, yb = get_batch(x, y, 64)
        loss = lossf(net(xb), yb)
        net.zero_grad()
        loss.backward()
        opt.step()
        smooth = loss.item() if i == 0 else 0.9 * smooth + 0.1 * loss.item()
        if (i + 1) % 30 == 0:
            print(f"{i + 1}/300: {smooth:.4f}")
    with torch.no_grad():
        print("accuracy", (net(x).argmax(1) == y).float().mean().item())


if __name__ == "__main__":
    main(int(sys.argv[sys.argv.index("--seed") + 1]) if "--seed" in sys.argv else 0)
