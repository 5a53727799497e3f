"""torch.distributed.checkpoint in one process, into a path below a file."""

import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import nn


class Run:
    def __init__(self, folder):
        self.folder = folder
        self.model = nn.Linear(9, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self):
        x = torch.randn(20, 9)
        loss = nn.functional.cross_entropy(self.model(x), (x[:, 3] > 0).long())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def save(self, number):
        state = {"model": self.model.state_dict()}
        dcp.save(state, checkpoint_id=self.folder / f"step{number}")  # HERE


def main():
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    folder = Path(tempfile.mkdtemp())
    (folder / "latest").write_text("step30")
    run = Run(folder)
    for number in range(90):
        run.step()
        if number == 30:
            run.save(number)
        if number == 60:
            run.folder = folder / "latest"
            run.save(number)


if __name__ == "__main__":
    main()
