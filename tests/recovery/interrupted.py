"""A training that can be interrupted: run as a script, killed, run again, compared.

python interrupted.py RUN_DIR RESULT [--loader KIND] [--die-at STEP] [--pause SECONDS]
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

from headway import Guard, Snapshots

EPOCHS, SAMPLES, SIZE = 4, 96, 8
STEPS = EPOCHS * SAMPLES // SIZE


def sample(index: int) -> tuple[Tensor, Tensor]:
    x = torch.linspace(0, 1 + index / SAMPLES, 6)
    # Augmentation out of all three generators, in whichever process the sample is loaded.
    x = x + 0.1 * torch.randn(6) + 0.1 * random.random() + 0.1 * float(np.random.rand())
    return x, x.sum(0, keepdim=True)


class Samples(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return sample(index)


class PlainSamples(Samples):
    """Without augmentation."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x = torch.linspace(0, 1 + index / SAMPLES, 6)
        return x, x.sum(0, keepdim=True)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return (sample(index) for index in range(SAMPLES))


class Stateful:
    """A loader that knows its own place, as StatefulDataLoader does."""

    def __init__(self) -> None:
        self.next = 0
        self.order: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        if self.next == 0:
            self.order = torch.randperm(SAMPLES // SIZE).tolist()
        while self.next < SAMPLES // SIZE:
            at, self.next = self.order[self.next], self.next + 1
            parts = [sample(at * SIZE + offset) for offset in range(SIZE)]
            yield torch.stack([x for x, _ in parts]), torch.stack([y for _, y in parts])
        self.next = 0

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next, "order": self.order}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next, self.order = state["next"], list(state["order"])


def loader_of(kind: str) -> Iterable[Any]:
    generator = torch.Generator().manual_seed(3)
    data = Samples()
    if kind == "shuffled":
        return DataLoader(data, SIZE, shuffle=True)
    if kind == "workers":
        return DataLoader(data, SIZE, shuffle=True, num_workers=2)
    if kind == "generator":
        return DataLoader(data, SIZE, shuffle=True, generator=generator)
    if kind == "sampler":
        return DataLoader(data, SIZE, sampler=RandomSampler(data, generator=generator))
    if kind == "stream":
        return DataLoader(Stream(), SIZE)
    if kind == "stateful":
        return Stateful()
    if kind.startswith("torchdata"):
        from torchdata.stateful_dataloader import StatefulDataLoader

        if kind == "torchdata":
            return StatefulDataLoader(data, SIZE, shuffle=True)
        # It does not store the random numbers of its workers.
        return StatefulDataLoader(PlainSamples(), SIZE, shuffle=True, num_workers=2)
    raise ValueError(kind)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--loader", default="shuffled")
    parser.add_argument("--die-at", type=int)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--plain-range", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    model = nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=STEPS + 1)
    per_epoch = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(model.parameters(), lr=1.0), 1)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    guard = Guard(
        model,
        optimizer,
        scheduler,
        run_dir=options.run_dir,
        keep={"ema": average, "per_epoch": per_epoch},
        snapshots=Snapshots(every=5, disk_share=1.0),
    )
    print("resumed", guard.resume(), flush=True)
    loader = loader_of(options.loader)
    epochs = range(EPOCHS) if options.plain_range else guard.epochs(EPOCHS)
    with guard:
        for _ in epochs:
            for x, y in guard(loader):
                if options.die_at is not None and guard.step >= options.die_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                loss = (model(x) - y).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                average.update_parameters(model)
                time.sleep(options.pause)
            torch.randn(3)  # an evaluation that draws random numbers
            per_epoch.step()
    state = {"model": model.state_dict(), "ema": average.state_dict()}
    rest = [optimizer.state_dict(), per_epoch.state_dict()["last_epoch"], torch.randn(4)]
    dice = [np.random.rand(), random.random()]
    torch.save({**state, "rest": rest, "dice": dice}, options.result)


if __name__ == "__main__":
    main()
