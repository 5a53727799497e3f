"""Text-like classifier with dropout and a validation pass per epoch."""

import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class TextNet(nn.Module):
    def __init__(self, vocab=60, d=32, classes=4):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.lstm = nn.LSTM(d, 32, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(64, classes)

    def forward(self, x):
        out, _ = self.lstm(self.dropout(self.emb(x)))
        return self.fc(self.dropout(out.mean(1)))


class Runner:
    def __init__(self, model):
        self.model = model
        self.opt = torch.optim.Adam(model.parameters(), lr=2e-3)
        self.ce = nn.CrossEntropyLoss()

    def train_epoch(self, loader):
        self.model.train()
        for x, y in loader:
            self.opt.zero_grad()
            loss = self.ce(self.model(x), y)
            loss.backward()
            self.opt.step()
        return loss.item()

    def validate(self, loader):
        hits, n, total = 0, 0, 0.0
        with torch.no_grad():
            for x, y in loader:
                out = self.model(x)
                total += self.ce(out, y).item() * len(y)
                hits += (out.argmax(1) == y).sum().item()
                n += len(y)
        return total / n, hits / n


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    y = torch.randint(0, 4, (600,))
    x = torch.randint(0, 60, (600, 10))
    keep = torch.rand(600, 10) < 0.4
    x = torch.where(keep, y[:, None] * 15 + torch.randint(0, 15, (600, 10)), x)
    tr, va = random_split(TensorDataset(x, y), [500, 100])
    runner = Runner(TextNet())
    train_dl, val_dl = DataLoader(tr, 25, shuffle=True), DataLoader(va, 25)
    for epoch in range(5):
        tl = runner.train_epoch(train_dl)
        vl, acc = runner.validate(val_dl)
        print(f"epoch {epoch} train {tl:.4f} val {vl:.4f} acc {acc:.3f}")


if __name__ == "__main__":
    main()
