"""The data set of rank 1 holds a bad record; its DataLoader worker raises."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Records(Dataset):
    def __len__(self):
        return 800

    def __getitem__(self, index):
        values = [float(index % 7), 1.0, 2.0]
        if index == 601:
            values[1] = "n/a"
        return torch.tensor(values)  # HERE


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = Records()
    sampler = DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=1)
    model = DDP(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x in loader:
            loss = (model(x).squeeze(1) - x[:, 0] / 7).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.01)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
