"""Tiny U-Net style segmentation with mixed precision."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class TinyUNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(1, 8, 3, padding=1)
        self.mid = nn.Conv2d(8, 16, 3, padding=1)
        self.up = nn.Conv2d(24, 8, 3, padding=1)
        self.out = nn.Conv2d(8, 1, 1)

    def forward(self, x):
        d = F.relu(self.down(x))
        m = F.relu(self.mid(F.max_pool2d(d, 2)))
        u = F.interpolate(m, scale_factor=2.0)
        return self.out(F.relu(self.up(torch.cat([d, u], 1))))


def make_masks(n):
    x = 0.3 * torch.randn(n, 1, 16, 16)
    m = torch.zeros(n, 1, 16, 16)
    for i in range(n):
        r, c = torch.randint(0, 10, (2,)).tolist()
        m[i, 0, r : r + 6, c : c + 6] = 1.0
    return x + m, m


def train_net(epochs=3, batch_size=16, lr=0.05, gradient_clipping=1.0):
    x, m = make_masks(320)
    loader = DataLoader(TensorDataset(x, m), batch_size=batch_size, shuffle=True)
    model = TinyUNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    grad_scaler = torch.amp.GradScaler("cpu", enabled=True)
    criterion = nn.BCEWithLogitsLoss()
    step = 0
    for epoch in range(epochs):
        model.train()
        for images, masks in loader:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                pred = model(images)
            loss = criterion(pred.float(), masks)
            optimizer.zero_grad(set_to_none=True)
            grad_scaler.scale(loss).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), gradient_clipping)
            grad_scaler.step(optimizer)
            grad_scaler.update()
            step += 1
            if step % 10 == 0:
                print(f"epoch {epoch + 1} step {step} loss {loss.item():.5f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    train_net()
