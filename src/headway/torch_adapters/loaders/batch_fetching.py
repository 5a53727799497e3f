"""How a DataLoader makes a batch of its data set: traced in its workers, or done once more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from headway.torch_adapters.live_objects import find_instances
from headway.torch_adapters.patching import wrap_function
from headway.torch_adapters.private_parts import private_part

_MapFetcher: Any = private_part(
    "torch.utils.data._utils.fetch._MapDatasetFetcher",
    None,
    without="what a data set does in DataLoader workers is not traced",
)


_IterableFetcher: Any = private_part(
    "torch.utils.data._utils.fetch._IterableDatasetFetcher",
    None,
    without="what an iterable data set does in DataLoader workers is not traced",
)


@contextmanager
def watch_worker_fetches(watch: Callable[[Callable[[], Any]], Any]) -> Iterator[None]:
    """Workers that are forked while this lasts get each batch by `watch(fetch)`."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def fetch(self: Any, indices: Any) -> Any:
            if get_worker_info() is None:
                return original(self, indices)
            return watch(lambda: original(self, indices))

        return fetch

    found = [kind for kind in (_MapFetcher, _IterableFetcher) if kind is not None]
    undo = [wrap_function(kind, "fetch", wrap) for kind in found]
    try:
        yield
    finally:
        for uninstall in undo:
            uninstall()


_WorkerIterator: Any = private_part(
    "torch.utils.data.dataloader._MultiProcessingDataLoaderIter",
    (),
    without="memory that grows in DataLoader workers is not traced to a data set",
)


def find_worker_dataset() -> Any:
    """The innermost data set that DataLoader workers read now; None where there are none."""
    for iterator in find_instances(_WorkerIterator):
        dataset: Any = getattr(iterator, "_dataset", None)
        while hasattr(dataset, "dataset"):  # a subset of another
            dataset = dataset.dataset
        if dataset is not None:
            return dataset
    return None


@dataclass(frozen=True, slots=True)
class BatchRecipe:
    """How a loader makes a batch of its data set. It does not hold the loader: persistent workers
    end when the last reference to theirs is gone."""

    dataset: Any
    batched: bool
    size: int | None
    collate: Any
    drop_last: bool
    workers: int

    @classmethod
    def of(cls, loader: Any) -> BatchRecipe | None:
        """None if it is no DataLoader, or is gone."""
        if not isinstance(loader, DataLoader):
            return None
        size = loader.batch_size
        batched = loader.batch_sampler is not None or size is not None
        more = (loader.collate_fn, loader.drop_last, loader.num_workers)
        return cls(loader.dataset, batched, size, *more)

    def can_fetch(self, indices: Any) -> bool:
        """Whether the batch of these indices can be made once more."""
        if isinstance(self.dataset, IterableDataset):
            # Workers share such a data set out among themselves.
            return _IterableFetcher is not None and self.workers == 0
        return _MapFetcher is not None and indices is not None

    def fetch(self, indices: Any) -> Iterator[Any]:
        """The batch of these indices; of an iterable data set, its batches from the first on."""
        kind = _IterableFetcher if isinstance(self.dataset, IterableDataset) else _MapFetcher
        fetcher = kind(self.dataset, self.batched, self.collate, self.drop_last)
        if kind is _MapFetcher:
            yield fetcher.fetch(indices)
            return
        with suppress(StopIteration):
            while True:
                yield fetcher.fetch(range(self.size or 1) if self.batched else None)
