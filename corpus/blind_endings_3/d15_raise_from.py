"""A reader wraps the error of one record: raise ... from."""

import torch
from torch import nn


class RecordError(Exception):
    pass


class Reader:
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.records = [
            {"x": torch.randn(6, generator=generator), "scale": "1.0"} for _ in range(400)
        ]
        self.records[222]["scale"] = "1,0"

    def decode(self, record):
        scale = float(record["scale"])  # HERE
        return record["x"] * scale

    def read(self, number):
        try:
            return self.decode(self.records[number])
        except ValueError as error:
            raise RecordError(f"record {number} cannot be read") from error  # HERE

    def batches(self, size):
        for first in range(0, len(self.records), size):
            yield torch.stack([self.read(first + offset) for offset in range(size)])


model = nn.Sequential(nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 6))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for batch in Reader().batches(10):
    loss = nn.functional.mse_loss(model(batch), batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
