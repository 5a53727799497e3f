"""Grade wines from laboratory measurements."""

import argparse
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Grader(nn.Module):
    def __init__(self, inputs=11, hidden=40, grades=5):
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Linear(inputs, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, grades)]
        )
        self.activation = nn.ReLU()
        self.reset()

    def reset(self):
        for layer in self.layers:
            nn.init.constant_(layer.weight, 0.05)
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return self.layers[-1](x)


def measurements(n):
    x = np.random.randn(n, 11)
    quality = x[:, 0] * x[:, 1] + x[:, 2] - x[:, 5] + 0.3 * np.random.randn(n)
    grade = np.searchsorted(np.quantile(quality, [0.2, 0.4, 0.6, 0.8]), quality)
    return TensorDataset(torch.tensor(x, dtype=torch.float32), torch.tensor(grade))


def fit(model, loader, epochs, lr):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    loss_function = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        running, hits, count = 0.0, 0, 0
        for x, grade in loader:
            optimizer.zero_grad()
            output = model(x)
            loss = loss_function(output, grade)
            loss.backward()
            optimizer.step()
            running += loss.item() * len(grade)
            hits += (output.argmax(1) == grade).sum().item()
            count += len(grade)
        print(f"epoch {epoch + 1} loss {running / count:.4f} accuracy {hits / count:.3f}")


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args(argv)
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    loader = DataLoader(measurements(1280), batch_size=32, shuffle=True)
    fit(Grader(), loader, epochs=3, lr=3e-3)


if __name__ == "__main__":
    main()
