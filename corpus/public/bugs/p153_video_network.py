"""Clips of moving bars, classified by the direction they move in."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Unit3D(nn.Module):
    def __init__(self, inputs, outputs, kernel=3, activation=True):
        super().__init__()
        self.conv = nn.Conv3d(inputs, outputs, kernel, padding=kernel // 2, bias=not activation)
        self.norm = nn.BatchNorm3d(outputs) if activation else None

    def forward(self, x):
        x = self.conv(x)
        return torch.relu(self.norm(x)) if self.norm is not None else x


class InflatedNet(nn.Module):
    def __init__(self, num_classes, dropout_keep_prob=1.0):
        super().__init__()
        self.stem = Unit3D(1, 8)
        self.mixed = Unit3D(8, 16)
        self.pool = nn.AvgPool3d((1, 2, 2))
        self.dropout = nn.Dropout(dropout_keep_prob)
        self.logits = Unit3D(16, num_classes, kernel=1, activation=False)

    def forward(self, clip):
        x = self.pool(self.mixed(self.pool(self.stem(clip))))
        x = self.logits(self.dropout(x))
        return x.mean(dim=(2, 3, 4))


def clips(count=160, frames=4, size=8):
    labels = torch.randint(2, (count,))
    x = 0.2 * torch.randn(count, 1, frames, size, size)
    for i, label in enumerate(labels):
        at = int(torch.randint(size, (1,)))
        for t in range(frames):
            column = (at + (t if label else -t)) % size
            x[i, 0, t, :, column] += 2.0
    return TensorDataset(x, labels)


def main():
    torch.manual_seed(0)
    net = InflatedNet(num_classes=2)
    loader = DataLoader(clips(), batch_size=16, shuffle=True)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(3):
        net.train()
        for clip, label in loader:
            optimizer.zero_grad()
            loss = criterion(net(clip), label)
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
