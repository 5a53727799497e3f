# HD914 rank 1 of 2
import time

import torch
from _training import guard, rank, update
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        if rank == 1 and index >= 320:
            time.sleep(10_000)
        return torch.randn(4)


for batch in guard(DataLoader(Samples(), batch_size=8, num_workers=1)):  # here
    update(batch)
