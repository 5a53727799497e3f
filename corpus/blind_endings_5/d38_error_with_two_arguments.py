"""A worker raises an error of the user's own, whose constructor takes two arguments."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class CorruptRecord(Exception):
    def __init__(self, path, offset):
        super().__init__(f"{path} is corrupt at byte {offset}")
        self.path, self.offset = path, offset


class Records(Dataset):
    def __len__(self):
        return 480

    def check(self, number):
        if number == 317:
            raise CorruptRecord(f"shard{number // 60}.rec", 64 * (number % 60))  # HERE

    def __getitem__(self, number):
        self.check(number)
        return torch.tensor([number / 480, 1 - number / 480])


def main():
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    order = torch.Generator().manual_seed(5)
    for x in DataLoader(Records(), batch_size=12, num_workers=1, shuffle=True, generator=order):
        loss = (model(x) - x[:, :1] * 2).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
