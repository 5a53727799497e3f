# A DataLoader worker computes for 12 seconds.
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import torch
from _training import guard, rank, update
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self):
        return 480

    def __getitem__(self, index):
        end = time.monotonic() + 12
        while rank == 1 and index == 320 and time.monotonic() < end:
            sum(range(1000))
        return torch.randn(4)


for batch in guard(DataLoader(Samples(), batch_size=8, num_workers=1)):
    update(batch)
guard.close()
