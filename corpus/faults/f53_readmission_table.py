"""Predict hospital readmission from a table of patients."""

import argparse
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

COLUMNS = ["patient", "age", "stay", "visits", "bmi", "pressure", "glucose", "pulse", "readmitted"]


def build_table(n):
    """One row per patient; readmission is only weakly tied to the measurements."""
    patient = np.arange(n)
    measurements = np.random.randn(n, 7)
    risk = 0.7 * measurements[:, 1] + 0.6 * measurements[:, 2] - 0.4 * measurements[:, 5]
    readmitted = (risk + 1.2 * np.random.randn(n) > 0).astype(float)
    return np.column_stack([patient, measurements, readmitted])


def split(table, share=0.8):
    order = np.random.permutation(len(table))
    cut = int(share * len(table))
    return table[order[:cut]], table[order[cut:]]


def to_dataset(table):
    features = table[:, COLUMNS.index("age") :]
    target = table[:, COLUMNS.index("readmitted")]
    return TensorDataset(
        torch.tensor(features, dtype=torch.float32),
        torch.tensor(target, dtype=torch.float32),
    )


class RiskModel(nn.Module):
    def __init__(self, inputs):
        super().__init__()
        self.hidden = nn.Linear(inputs, 32)
        self.norm = nn.LayerNorm(32)
        self.out = nn.Linear(32, 1)

    def forward(self, x):
        return self.out(torch.relu(self.norm(self.hidden(x)))).squeeze(-1)


def evaluate(model, loader):
    model.eval()
    hits, seen = 0, 0
    with torch.no_grad():
        for x, y in loader:
            hits += ((model(x) > 0).float() == y).sum().item()
            seen += len(y)
    return hits / seen


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    train_table, test_table = split(build_table(2000))
    train_set, test_set = to_dataset(train_table), to_dataset(test_table)
    train_loader = DataLoader(train_set, batch_size=32, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=200)
    model = RiskModel(train_set.tensors[0].shape[1])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    criterion = nn.BCEWithLogitsLoss()
    for epoch in range(3):
        model.train()
        for i, (x, y) in enumerate(train_loader):
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            if i % 10 == 0:
                print(f"epoch {epoch} batch {i} loss {loss.item():.4f}")
        print(f"epoch {epoch} test accuracy {evaluate(model, test_loader):.3f}")
