"""A sparse autoencoder: most code units are silent for any one sample, none for all."""

import argparse
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class SparseAutoencoder(nn.Module):
    def __init__(self, inputs=32, code=96):
        super().__init__()
        self.encode = nn.Linear(inputs, code)
        self.decode = nn.Linear(code, inputs)
        nn.init.constant_(self.encode.bias, -0.4)

    def forward(self, x):
        code = torch.relu(self.encode(x))
        return self.decode(code), code


def make_mixtures(n, inputs=32, sources=64):
    """Every sample is a sum of a few of the sources."""
    dictionary = np.random.randn(sources, inputs)
    active = np.random.rand(n, sources) < 0.06
    x = (active * np.random.rand(n, sources)) @ dictionary + 0.05 * np.random.randn(n, inputs)
    x = (x - x.mean(0)) / x.std(0)
    return torch.tensor(x, dtype=torch.float32)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--l1", type=float, default=0.6)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    loader = DataLoader(TensorDataset(make_mixtures(2560)), batch_size=64, shuffle=True)
    model = SparseAutoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        errors, silent = [], []
        for (x,) in loader:
            output, code = model(x)
            reconstruction = nn.functional.mse_loss(output, x)
            sparsity = code.abs().mean()
            loss = reconstruction + args.l1 * sparsity
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            errors.append(reconstruction.item())
            silent.append((code == 0).float().mean().item())
        print(f"epoch {epoch}: error {np.mean(errors):.4f} silent {np.mean(silent):.2f}")


if __name__ == "__main__":
    main()
