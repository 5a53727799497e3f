"""A small U-shaped segmentation network in mixed precision."""

import argparse
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler, autocast
from torch.utils.data import DataLoader, TensorDataset


class DoubleConv(nn.Sequential):
    def __init__(self, cin, cout):
        super().__init__(
            nn.Conv2d(cin, cout, 3, padding=1),
            nn.GroupNorm(4, cout),
            nn.ReLU(inplace=True),
            nn.Conv2d(cout, cout, 3, padding=1),
            nn.ReLU(inplace=True),
        )


class SmallUNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inc = DoubleConv(1, 8)
        self.down = DoubleConv(8, 16)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.merge = DoubleConv(16, 8)
        self.outc = nn.Conv2d(8, 1, 1)

    def forward(self, x):
        a = self.inc(x)
        b = self.down(F.max_pool2d(a, 2))
        return self.outc(self.merge(torch.cat([a, self.up(b)], dim=1)))


def make_blobs(n, size=16):
    """Discs on a noisy background, with their masks."""
    yy, xx = np.mgrid[0:size, 0:size]
    cx, cy = np.random.uniform(4, size - 4, (2, n, 1, 1))
    radius = np.random.uniform(3, 6, (n, 1, 1))
    mask = ((xx - cx) ** 2 + (yy - cy) ** 2 < radius**2).astype("float32")
    image = mask - mask.mean() + 0.5 * np.random.randn(n, size, size)
    return torch.tensor(image, dtype=torch.float32)[:, None], torch.tensor(mask)[:, None]


def train_net(net, loader, epochs, lr, gradient_clipping=1.0):
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    scaler = GradScaler("cpu", init_scale=2.0**14)
    criterion = nn.BCEWithLogitsLoss()
    step = 0
    for epoch in range(1, epochs + 1):
        net.train()
        epoch_loss = 0.0
        for images, masks in loader:
            with autocast("cpu", dtype=torch.bfloat16):
                predicted = net(images)
                loss = criterion(predicted, masks)
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), gradient_clipping)
            scaler.step(optimizer)
            scaler.update()
            epoch_loss += loss.item()
            step += 1
        print(f"epoch {epoch}: mean loss {epoch_loss / len(loader):.4f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.05)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    images, masks = make_blobs(480)
    loader = DataLoader(TensorDataset(images, masks), batch_size=16, shuffle=True)
    train_net(SmallUNet(), loader, args.epochs, args.lr)


if __name__ == "__main__":
    main()
