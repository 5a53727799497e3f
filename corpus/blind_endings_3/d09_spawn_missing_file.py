"""Workers started with spawn; a file of the list is not there."""

import pathlib
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Files(Dataset):
    def __init__(self, folder):
        self.paths = sorted(pathlib.Path(folder).glob("*.npy"))
        self.paths.insert(150, pathlib.Path(folder) / "missing_0150.npy")

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        row = np.load(self.paths[index])  # HERE
        return torch.from_numpy(row[:-1]), torch.tensor(row[-1])


def write(folder):
    generator = np.random.default_rng(0)
    for number in range(200):
        x = generator.normal(size=8).astype(np.float32)
        np.save(f"{folder}/row_{number:04d}.npy", np.append(x, x.sum()))


def main():
    with tempfile.TemporaryDirectory() as folder:
        write(folder)
        loader = DataLoader(
            Files(folder), batch_size=10, num_workers=2, multiprocessing_context="spawn"
        )
        model = nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _epoch in range(2):
            for x, y in loader:
                loss = nn.functional.mse_loss(model(x).squeeze(1), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


if __name__ == "__main__":
    main()
