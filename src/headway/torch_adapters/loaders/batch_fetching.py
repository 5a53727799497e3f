"""Fetches a batch from a data set as a DataLoader does: traced in its workers, or again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
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


SAMPLE_NOTE = "the sample is"
"""Before the index, in the note that an exception in a worker gets."""


@contextmanager
def failed_samples_noted() -> Iterator[None]:
    """Workers that are forked while this lasts add the index of a sample that raises to its
    exception: the same sample may load well when it is loaded again."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def fetch(self: Any, indices: Any) -> Any:
            try:
                return original(self, indices)
            except Exception as error:
                index = _index_in_frames(error)
                if index is not None and hasattr(error, "add_note"):
                    error.add_note(f"{SAMPLE_NOTE} {index}")
                raise

        return fetch

    uninstall = wrap_function(_MapFetcher, "fetch", wrap)
    try:
        yield
    finally:
        uninstall()


def asked_index(frame: FrameType, indices: Sequence[Any]) -> Any:
    """The index in a frame of `dataset[index]`, if it is one of these; None in other frames."""
    code = frame.f_code
    if code.co_name != "__getitem__" or code.co_argcount < 2:
        return None
    index = frame.f_locals.get(code.co_varnames[1])
    return index if isinstance(index, int) and index in indices else None


def _index_in_frames(error: BaseException) -> int | None:
    """The index that the fetcher was loading; None while it collates a batch."""
    trace, found = error.__traceback__, None
    asked: Any = None
    dataset: Any = None
    while trace is not None:
        frame, trace = trace.tb_frame, trace.tb_next
        names = frame.f_locals
        if frame.f_code.co_filename.replace("\\", "/").endswith("torch/utils/data/_utils/fetch.py"):
            found = names.get("idx")
            asked = names.get("possibly_batched_index")
            dataset = getattr(names.get("self"), "dataset", None)
        elif found is None and isinstance(asked, (list, tuple)) and names.get("self") is dataset:
            found = asked_index(frame, asked)
    return found if isinstance(found, int) else None


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
    """The parts of a loader that fetch a batch from its data set.

    It does not refer to the loader: persistent workers end with the last reference to theirs.
    """

    dataset: Any
    batched: bool
    size: int | None
    collate: Any
    drop_last: bool
    finish: Callable[[Any], Any] | None = None
    """What a framework does to each batch of the loader."""

    @classmethod
    def of(cls, loader: Any) -> BatchRecipe | None:
        """None if it is not a DataLoader, or no longer exists."""
        if not isinstance(loader, DataLoader):
            return None
        size = loader.batch_size
        batched = loader.batch_sampler is not None or size is not None
        return cls(loader.dataset, batched, size, loader.collate_fn, loader.drop_last)

    def can_fetch(self, indices: Any) -> bool:
        """Whether the batch of these indices can be fetched again."""
        if isinstance(self.dataset, IterableDataset):
            # Workers may share it out among themselves: then other batches are made.
            return _IterableFetcher is not None
        return _MapFetcher is not None and indices is not None

    def fetch(self, indices: Any) -> Iterator[Any]:
        """The batch of these indices; of an iterable data set, its batches from the first on."""
        fetched = self._fetch(indices)
        return fetched if self.finish is None else map(self.finish, fetched)

    def _fetch(self, indices: Any) -> Iterator[Any]:
        kind = _IterableFetcher if isinstance(self.dataset, IterableDataset) else _MapFetcher
        fetcher = kind(self.dataset, self.batched, self.collate, self.drop_last)
        if kind is _MapFetcher:
            yield fetcher.fetch(indices)
            return
        with suppress(StopIteration):
            while True:
                yield fetcher.fetch(range(self.size or 1) if self.batched else None)


def before_lightning_transfer(module: Any, batch: Any) -> Any:
    """A batch after the hook that Lightning calls before it moves the batch to the device."""
    # The private method knows whether the data module or the module itself has the hook.
    hook = getattr(module, "_on_before_batch_transfer", None) or module.on_before_batch_transfer
    return hook(batch, dataloader_idx=0)
