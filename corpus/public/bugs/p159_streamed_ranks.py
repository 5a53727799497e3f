"""Two ranks read a stream of records and train one model with DistributedDataParallel."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset


class Records(IterableDataset):
    """A large file that is read from its beginning to its end."""

    def __init__(self, count=960):
        self.count = count
        self.rank = int(os.environ.get("RANK", 0))
        self.world = int(os.environ.get("WORLD_SIZE", 1))

    def read(self):
        generator = torch.Generator().manual_seed(11)
        teacher = torch.randn(12, generator=generator)
        for _ in range(self.count):
            x = torch.randn(12, generator=generator)
            yield x, (x @ teacher).tanh() + 0.1 * torch.randn((), generator=generator)

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        mine, parts = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for number, record in enumerate(self.read()):
            if number % parts == mine:
                yield record


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1))
    model = DistributedDataParallel(model)
    loader = DataLoader(Records(), batch_size=24)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    criterion = nn.MSELoss()
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x).squeeze(-1), y)
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
