"""Float16 autocast with a gradient scaler that starts high, as it does by default."""

import argparse
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

use_amp = True


def spirals(n, arms=4):
    arm = np.random.randint(0, arms, n)
    radius = np.random.rand(n)
    angle = 3 * radius + 2 * np.pi * arm / arms + 0.15 * np.random.randn(n)
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1) * 1.8
    return TensorDataset(torch.tensor(points, dtype=torch.float32), torch.tensor(arm))


def make_model(in_size, hidden, out_size, num_layers):
    layers = []
    for _ in range(num_layers - 1):
        layers += [nn.Linear(in_size, hidden), nn.ReLU()]
        in_size = hidden
    layers.append(nn.Linear(in_size, out_size))
    return nn.Sequential(*layers)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--init-scale", type=float, default=2.0**21)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    loader = DataLoader(spirals(1920), batch_size=48, shuffle=True)
    net = make_model(2, 64, 4, 4)
    loss_fn = nn.CrossEntropyLoss()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", enabled=use_amp, init_scale=args.init_scale)

    for epoch in range(args.epochs):
        total = 0.0
        for points, arm in loader:
            with torch.autocast(device_type="cpu", dtype=torch.float16, enabled=use_amp):
                output = net(points)
                loss = loss_fn(output, arm)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 5.0)
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(loader):.4f} scale {scaler.get_scale():.0f}")
