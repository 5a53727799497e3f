"""Shards of compressed text, read in workers; one of them was copied only in part."""

import gzip
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Shards(IterableDataset):
    def __init__(self, paths):
        self.paths = paths

    def __iter__(self):
        info = get_worker_info()
        for path in self.paths[info.id :: info.num_workers]:
            with gzip.open(path, "rt") as lines:
                for line in lines:  # HERE
                    yield torch.tensor([float(word) for word in line.split()])


def write(folder):
    paths = []
    generator = torch.Generator().manual_seed(0)
    for number in range(6):
        path = folder / f"shard{number}.gz"
        rows = torch.randn(200, 6, generator=generator).tolist()
        with gzip.open(path, "wt") as out:
            out.writelines(" ".join(f"{v:.4f}" for v in row) + "\n" for row in rows)
        paths.append(path)
    whole = paths[4].read_bytes()
    paths[4].write_bytes(whole[: len(whole) // 2])
    return paths


def main():
    torch.manual_seed(0)
    loader = DataLoader(Shards(write(Path(tempfile.mkdtemp()))), batch_size=10, num_workers=2)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x in loader:
        loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
