"""LSTM over short sequences, classification from the last state."""

import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class LSTMNet(nn.Module):
    def __init__(self, n_features=6, hidden=32, classes=3):
        super().__init__()
        self.lstm = nn.LSTM(n_features, hidden)
        self.fc = nn.Linear(hidden, classes)

    def forward(self, x):
        batch, steps, feats = x.size()
        out, _ = self.lstm(x.view(steps, batch, feats))
        return self.fc(out[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    y = torch.randint(0, 3, (640,))
    x = torch.randn(3, 1, 6)[y] + torch.randn(640, 10, 6)
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    model = LSTMNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(4):
        total, hits = 0.0, 0
        for xb, yb in loader:
            optimizer.zero_grad()
            out = model(xb)
            loss = criterion(out, yb)
            loss.backward()
            optimizer.step()
            total += loss.item()
            hits += (out.argmax(1) == yb).sum().item()
        print(f"epoch {epoch} loss {total / len(loader):.4f} acc {hits / 640:.3f}")


if __name__ == "__main__":
    main()
