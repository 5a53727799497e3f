"""An IterableDataset reads shards of JSON lines in two workers; one line is cut off."""

import json
import os
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class JsonLines(IterableDataset):
    def __init__(self, paths):
        self.paths = paths

    def parse(self, line):
        record = json.loads(line)  # HERE
        return torch.tensor(record["x"]), torch.tensor(record["y"])

    def __iter__(self):
        info = get_worker_info()
        paths = self.paths if info is None else self.paths[info.id :: info.num_workers]
        for path in paths:
            with open(path) as lines:
                for line in lines:
                    yield self.parse(line)


def write_shards(folder):
    torch.manual_seed(0)
    paths = []
    for shard in range(4):
        path = os.path.join(folder, f"shard{shard}.jsonl")
        with open(path, "w") as out:
            for row in range(100):
                x = torch.randn(5)
                line = json.dumps({"x": x.tolist(), "y": float(x.mean())})
                if (shard, row) == (3, 60):
                    line = line[:30]
                out.write(line + "\n")
        paths.append(path)
    return paths


with tempfile.TemporaryDirectory() as folder:
    loader = DataLoader(JsonLines(write_shards(folder)), batch_size=10, num_workers=2)
    model = nn.Linear(5, 1)
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    for x, y in loader:
        opt.zero_grad()
        loss = ((model(x).squeeze(-1) - y) ** 2).mean()
        loss.backward()
        opt.step()
