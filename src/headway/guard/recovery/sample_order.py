"""The order of the samples of an epoch, for a run that continues with another number of ranks.

Ranks draw their samples in turn from one order: after `given` batches of `batch` samples on each of
`ranks` ranks, the first `given * batch * ranks` of it are used. The ranks of the resumed run divide
the rest among themselves, so no sample of the epoch is lost or used twice. Where the rest cannot
be divided evenly, the first samples of the order fill the gap, as torch's DistributedSampler does;
with `drop_last` the last samples are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
)

from headway.errors import ResumeRefused

_LOADERS = {"DataLoader", "StatefulDataLoader"}
"""Loaders that can be made again from their attributes; a subclass may do anything else."""
_SAMPLERS = {"DistributedSampler", "StatefulDistributedSampler"}
ADVICE = (
    "Use a torch DataLoader with DistributedSampler (also for one process), or start as many ranks "
    "as before"
)


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """The order of one pass, and how the present ranks divide it."""

    length: int
    """Samples of the data set."""
    shuffled: bool
    seed: int
    """Seed of the permutation, with the epoch in it."""
    batch: int
    """Samples of one batch on one rank."""
    ranks: int
    used: int = 0
    """Samples that earlier numbers of ranks have used."""
    resized: bool = False

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def indices(self) -> list[int]:
        """Every sample of the epoch in order."""
        if not self.shuffled:
            return list(range(self.length))
        generator = torch.Generator()
        generator.manual_seed(self.seed)
        order: list[int] = torch.randperm(self.length, generator=generator).tolist()
        return order

    def rest(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        """A loader of the remaining samples of this rank."""
        layout = _layout(loader)
        assert layout is not None
        rank, ranks, drop_last = layout
        order = self.indices()
        left = order[self.used :]
        odd = len(left) % ranks
        if odd and drop_last:
            left = left[: len(left) - odd]
        elif odd:
            left += (order * ranks)[: ranks - odd]
        batches = BatchSampler(left[rank::ranks], self.batch, loader.drop_last)
        return _with_batches(loader, batches)


def of_loader(loader: Any) -> SampleOrder | None:
    """The order in which a loader begins a pass; None if another run could not repeat it."""
    layout = _layout(loader)
    if layout is None:
        return None
    sampler = loader.batch_sampler.sampler
    if isinstance(sampler, SequentialSampler):
        return SampleOrder(len(loader.dataset), False, 0, loader.batch_size, 1)
    if not isinstance(sampler, DistributedSampler):
        return None
    return SampleOrder(
        length=len(loader.dataset),
        shuffled=sampler.shuffle,
        seed=sampler.seed + sampler.epoch,
        batch=loader.batch_size,
        ranks=sampler.num_replicas,
    )


def restored(state: Mapping[str, Any] | None) -> SampleOrder | None:
    return None if state is None else SampleOrder(**state)


def was_resized(state: Mapping[str, Any] | None) -> bool:
    """Whether the pass was already continued with another number of ranks."""
    return state is not None and bool(state["resized"])


def continue_order(state: Mapping[str, Any] | None, given: int, loader: Any) -> SampleOrder:
    """The order of a pass that the present ranks continue; `given`: batches on each rank so far.

    Raises ResumeRefused where the samples that were used cannot be known.
    """
    order, layout = restored(state), _layout(loader)
    if order is None or layout is None:
        which = "that the snapshot was taken with" if order is None else "of this run"
        raise ResumeRefused(
            "the data position cannot be transferred to another number of ranks: the loader "
            f"{which} has no sample order that can be redistributed. {ADVICE}"
        )
    if len(loader.dataset) != order.length:
        raise ResumeRefused(
            f"the data set has {len(loader.dataset):,} samples and had {order.length:,} when the "
            "snapshot was taken: the rest of the epoch cannot be divided among the ranks"
        )
    used = min(order.used + given * order.batch * order.ranks, order.length)
    return replace(order, used=used, batch=loader.batch_size, ranks=layout[1], resized=True)


def _layout(loader: Any) -> tuple[int, int, bool] | None:
    """(rank, ranks, whether uneven rests are dropped) of a loader that can be made again."""
    if type(loader).__name__ not in _LOADERS or not isinstance(loader, DataLoader):
        return None
    if (
        isinstance(loader.dataset, IterableDataset)
        or type(loader.batch_sampler) is not BatchSampler
    ):
        return None
    sampler = loader.batch_sampler.sampler
    if isinstance(sampler, DistributedSampler):
        if type(sampler).__name__ not in _SAMPLERS:
            return None
        return sampler.rank, sampler.num_replicas, sampler.drop_last
    # On several ranks a plain sampler gives everything to each of them.
    several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return None if several else (0, 1, False)


def _with_batches(loader: DataLoader[Any], batches: BatchSampler) -> DataLoader[Any]:
    options = {
        name: getattr(loader, name)
        for name in (
            "num_workers",
            "collate_fn",
            "pin_memory",
            "timeout",
            "worker_init_fn",
            "multiprocessing_context",
            "generator",
            "prefetch_factor",
        )
    }
    return DataLoader(loader.dataset, batch_sampler=batches, **options)
