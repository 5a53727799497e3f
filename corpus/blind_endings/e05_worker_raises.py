"""A sample cannot be parsed, in a worker, with shuffling."""

import json

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Lines(Dataset):
    def __init__(self, count):
        g = torch.Generator().manual_seed(0)
        x = torch.randn(count, 4, generator=g)
        self.lines = [json.dumps({"x": row.tolist(), "y": float(row.sum())}) for row in x]
        self.lines[273] = self.lines[273][:-9]

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, index):
        record = json.loads(self.lines[index])  # HERE
        return torch.tensor(record["x"]), torch.tensor([record["y"]])


def main():
    torch.manual_seed(3)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(Lines(600), batch_size=12, shuffle=True, num_workers=2)
    for _epoch in range(3):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
