"""Loaders of every kind over data that know their own numbers, to compare with what was learned."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    WeightedRandomSampler,
)

SAMPLES = 22
SIZE = 4
WORKERS: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}


class Numbered(Dataset[tuple[Tensor, Tensor]]):
    """Every sample carries its own index; some take their time, so that workers overtake."""

    def __init__(self, *, slow: tuple[int, ...] = (), noisy: bool = False) -> None:
        self.slow = slow
        self.noisy = noisy

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: Any) -> tuple[Tensor, Tensor]:
        at = int(index[0] if isinstance(index, tuple) else index)
        if at in self.slow:
            time.sleep(0.05)
        x = torch.randn(3) if self.noisy else torch.full((3,), float(at))
        return x, torch.tensor(at)


class ReadyMade(Numbered):
    """Each index is a whole batch."""

    def __getitem__(self, index: Any) -> tuple[Tensor, Tensor]:
        at = int(index)
        return torch.full((SIZE, 3), float(at)), torch.tensor([at])


class Eager(Sampler[int]):
    """Draws its random numbers as soon as it is asked for an iterator, not at the first index."""

    def __iter__(self) -> Iterator[int]:
        order = list(range(SAMPLES))
        random.shuffle(order)
        torch.rand(1)
        return iter(order)

    def __len__(self) -> int:
        return SAMPLES


class SameList:
    """A batch sampler that fills one list again and again."""

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for at in torch.randperm(SAMPLES).tolist():
            batch.append(at)
            if len(batch) == SIZE:
                yield batch
                batch.clear()


class Chunks:
    """A batch sampler whose batches are of any type."""

    def __init__(self, make: Callable[[list[int]], Any]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        for part in torch.randperm(SAMPLES).split(SIZE):
            yield self.make(part.tolist())


def _distributed() -> DataLoader[Any]:
    sampler = DistributedSampler(Numbered(), num_replicas=2, rank=1, shuffle=True)
    return DataLoader(Numbered(), batch_size=SIZE, sampler=sampler)


def _warm() -> DataLoader[Any]:
    """Persistent workers that somebody has iterated before."""
    loader = DataLoader(
        Numbered(), batch_size=SIZE, shuffle=True, persistent_workers=True, **WORKERS
    )
    for _ in loader:
        break
    return loader


def _over(dataset: Any = None, **options: Any) -> Callable[[], DataLoader[Any]]:
    return lambda: DataLoader(dataset or Numbered(), **options)


INDEXED: dict[str, Callable[[], DataLoader[Any]]] = {
    "in order": _over(batch_size=SIZE),
    "shuffled": _over(batch_size=SIZE, shuffle=True, drop_last=True),
    "a generator of its own": lambda: DataLoader(
        Numbered(), batch_size=SIZE, shuffle=True, generator=torch.Generator().manual_seed(5)
    ),
    "random data": _over(Numbered(noisy=True), batch_size=SIZE, shuffle=True),
    "eager sampler": _over(batch_size=SIZE, sampler=Eager()),
    "with replacement": lambda: DataLoader(
        Numbered(), batch_size=SIZE, sampler=RandomSampler(Numbered(), replacement=True)
    ),
    "weighted": _over(
        batch_size=SIZE, sampler=WeightedRandomSampler(list(range(1, SAMPLES + 1)), SAMPLES)
    ),
    "distributed": _distributed,
    "batch sampler": _over(batch_sampler=BatchSampler(Eager(), 3, drop_last=False)),
    "batch sampler with one list": _over(batch_sampler=SameList()),
    "batches of tensors": _over(batch_sampler=Chunks(torch.tensor)),
    "batches of arrays": _over(batch_sampler=Chunks(np.array)),
    "batches of tuples": _over(batch_sampler=Chunks(tuple)),
    "arrays of numbers": _over(batch_sampler=Chunks(lambda part: [np.int32(at) for at in part])),
    "ready-made batches": _over(ReadyMade(), batch_size=None, shuffle=True),
    "workers": _over(batch_size=SIZE, shuffle=True, **WORKERS),
    "workers, random data": _over(Numbered(noisy=True), batch_size=SIZE, shuffle=True, **WORKERS),
    "workers, eager sampler": _over(batch_size=SIZE, sampler=Eager(), **WORKERS),
    "workers that overtake": _over(Numbered(slow=(0, 9)), batch_size=SIZE, shuffle=True, **WORKERS),
    "workers, reading far ahead": _over(batch_size=SIZE, prefetch_factor=9, **WORKERS),
    "workers, not in order": _over(
        Numbered(slow=(0, 1, 9)), batch_size=2, shuffle=True, in_order=False, **WORKERS
    ),
    "persistent workers": _over(batch_size=SIZE, shuffle=True, persistent_workers=True, **WORKERS),
    "persistent workers, warm": _warm,
    "persistent workers, not in order": _over(
        Numbered(slow=(0, 1, 9)),
        batch_size=2,
        shuffle=True,
        in_order=False,
        persistent_workers=True,
        **WORKERS,
    ),
    "ready-made, workers": _over(ReadyMade(), batch_size=None, shuffle=True, **WORKERS),
}
"""Loaders that let us know the indices."""
