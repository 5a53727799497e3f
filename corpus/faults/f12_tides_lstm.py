"""Forecast tide heights with an LSTM. Learning rate decays by ten percent every epoch."""

import argparse
import math

import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import DataLoader, Dataset


class TideWindows(Dataset):
    def __init__(self, length=1500, window=24, seed=0):
        g = torch.Generator().manual_seed(seed)
        t = torch.arange(length) / 4.0
        series = torch.sin(2 * math.pi * t / 12.4) + 0.4 * torch.sin(2 * math.pi * t / 24 + 1)
        series = series + 0.25 * torch.sin(2 * math.pi * t / 29.5) * torch.cos(t / 7)
        self.series = series + 0.02 * torch.randn(length, generator=g)
        self.window = window

    def __len__(self):
        return len(self.series) - self.window - 4

    def __getitem__(self, i):
        past = self.series[i : i + self.window].unsqueeze(-1)
        return past, self.series[i + self.window : i + self.window + 4]


class TideLSTM(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.lstm = nn.LSTM(1, hidden, batch_first=True)
        self.proj = nn.Linear(hidden, 4)

    def forward(self, x):
        _, (h, _) = self.lstm(x)
        return self.proj(h[-1])


def train_one_epoch(model, loader, criterion, optimizer, scheduler):
    model.train()
    epoch_loss = 0.0
    for past, future in loader:
        optimizer.zero_grad()
        loss = criterion(model(past), future)
        loss.backward()
        optimizer.step()
        scheduler.step()
        epoch_loss += loss.item()
    return epoch_loss / len(loader)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--epochs", type=int, default=6)
    args, _ = p.parse_known_args()
    torch.manual_seed(args.seed)

    loader = DataLoader(TideWindows(seed=args.seed), batch_size=32, shuffle=True)
    model = TideLSTM()
    criterion = nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = ExponentialLR(optimizer, gamma=0.9)
    for epoch in range(1, args.epochs + 1):
        mse = train_one_epoch(model, loader, criterion, optimizer, scheduler)
        print(f"Epoch {epoch}/{args.epochs} - mse: {mse:.5f} - rmse: {math.sqrt(mse):.4f}")


if __name__ == "__main__":
    main()
