"""The checkpoint's folder is missing at the first try; the script makes it and saves again."""

import pathlib
import tempfile

import torch
from torch import nn


class Saver:
    def __init__(self, root, tries=3):
        self.root, self.tries = pathlib.Path(root), tries

    def __call__(self, model, epoch):
        path = self.root / f"epoch_{epoch}" / "model.pt"
        for attempt in range(self.tries):
            try:
                torch.save(model.state_dict(), path)
                return path
            except (OSError, RuntimeError) as error:
                print("try", attempt, "failed:", error)
                path.parent.mkdir(parents=True, exist_ok=True)
        raise OSError("gave up")


torch.manual_seed(0)
model, save = (
    nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2)),
    Saver(tempfile.mkdtemp()),
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(3):
    for _ in range(30):
        x = torch.randn(20, 6)
        loss = nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(save(model, epoch))
