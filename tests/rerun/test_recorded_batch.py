"""Which samples are in a batch: right for every batch, and nothing changed by looking."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.numbered_loaders import INDEXED, SAMPLES, SIZE, Chunks, Numbered
from support.paired_trainings import rng_state, seed_everything
from support.trainings import assert_same, batches
from torch.utils.data import DataLoader, IterableDataset

from headway.rerun.recorded_batch import ObservedLoader, RecordedBatch
from headway.torch_adapters.loaders.sample_indices import (
    IndexRecorder,
    iterate_loader,
    make_index_recorder,
)

EPOCHS = 3


def observed(loader: Any) -> ObservedLoader:
    return ObservedLoader(iterate_loader(loader, make_index_recorder(loader)))


@pytest.mark.parametrize("kind", INDEXED)
def test_indices_are_those_of_the_samples(kind: str) -> None:
    loader = INDEXED[kind]()
    for _ in range(EPOCHS):
        source = observed(loader)
        # Looked at when the epoch is over: on a GPU too a bad step is known some steps later.
        seen = [RecordedBatch(batch, source.origin) for batch in source]
        assert len(seen) >= SAMPLES // SIZE // 2, "there are batches to compare"
        for number, kept in enumerate(seen):
            assert list(kept.indices()) == kept.batch[1].tolist()
            assert kept.size == len(kept.batch[0])
            assert kept.origin is not None
            assert kept.origin.number == number


@pytest.mark.parametrize("kind", [kind for kind in INDEXED if "not in order" not in kind])
def test_nothing_changes_by_looking(kind: str) -> None:
    """The same batches, the same random numbers drawn, at every moment; the loader as before."""

    def run(iterate: Callable[[Any], Iterator[Any]]) -> Any:
        seed_everything()
        loader = INDEXED[kind]()
        found = []
        for _ in range(EPOCHS):
            found.append(rng_state())
            for batch in iterate(loader):
                found.append(list(batch))
                found.append(rng_state())
        return found

    assert_same(run(iter), run(observed))


@pytest.mark.parametrize("kind", INDEXED)
def test_the_loader_is_left_as_it_was(kind: str) -> None:
    loader = INDEXED[kind]()
    before = dict(vars(loader))
    for _ in range(2):
        list(observed(loader))
        after = dict(vars(loader))
        for name in ("sampler", "batch_sampler"):
            assert after[name] is before[name]
        living = after.get("_iterator")
        assert living is None or not isinstance(living._index_sampler, IndexRecorder)
    with pytest.raises(ValueError, match="should not be set"):
        loader.batch_sampler = None  # type: ignore[assignment]


@pytest.mark.parametrize("kind", ["persistent workers", "workers", "shuffled"])
def test_an_epoch_left_early_does_not_shift_the_next(kind: str) -> None:
    loader = INDEXED[kind]()
    for _ in range(3):
        source = observed(loader)
        for batch in source:
            assert list(RecordedBatch(batch, source.origin).indices()) == batch[1].tolist()
            if source.origin.number == 1:
                break


def test_an_exception_of_the_sampler_is_the_users_and_the_loader_is_left_as_it_was() -> None:
    class Broken:
        def __iter__(self) -> Iterator[list[int]]:
            raise OSError("no index today")

    sampler = Broken()
    loader = DataLoader(Numbered(), batch_sampler=sampler)
    with pytest.raises(OSError, match="no index today"):
        observed(loader)
    assert loader.batch_sampler is sampler


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return (Numbered()[at] for at in range(SAMPLES))


class Outside(DataLoader[Any]):
    """Iterates in its own way: reads one batch ahead."""

    def __iter__(self) -> Any:
        source = super().__iter__()
        ahead = next(source)
        for batch in source:
            yield ahead
            ahead = batch
        yield ahead


class Late(DataLoader[Any]):
    """Begins with its second batch."""

    def __iter__(self) -> Any:
        source = super().__iter__()
        next(source)
        return source


class Reversed(DataLoader[Any]):
    """Has an iterator of its own kind."""

    def _get_iterator(self) -> Any:
        return iter(list(super()._get_iterator())[::-1])


UNKNOWN: dict[str, Callable[[], Any]] = {
    "a list": lambda: batches(5),
    "a generator": lambda: (batch for batch in batches(5)),
    "a stream": lambda: DataLoader(Stream(), batch_size=SIZE),
    "an own __iter__": lambda: Outside(Numbered(), batch_size=SIZE),
    "an own __iter__ around torch's iterator": lambda: Late(Numbered(), batch_size=SIZE),
    "an own iterator": lambda: Reversed(Numbered(), batch_size=SIZE),
    "indices that can be read once": lambda: DataLoader(Numbered(), batch_sampler=Chunks(iter)),
    "indices without a name": lambda: DataLoader(
        Numbered(), batch_sampler=Chunks(lambda part: [float(at) for at in part])
    ),
}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_elsewhere_the_content_speaks(kind: str) -> None:
    """No error, the batches untouched, and the same ones known again."""

    def run() -> tuple[list[Any], list[str]]:
        seed_everything()
        source = observed(UNKNOWN[kind]())
        found = [(list(batch), RecordedBatch(batch, source.origin)) for batch in source]
        assert not any(kept.indices() for _, kept in found)
        return [batch for batch, _ in found], [kept.identity().key for _, kept in found]

    seed_everything()
    plain = [list(batch) for batch in UNKNOWN[kind]()]
    (seen, keys), (_, again) = run(), run()
    assert_same(plain, seen)
    assert keys == again
    assert len(set(keys)) == len(keys) == len(plain)
    assert all(key.startswith("content-") for key in keys)


def test_the_order_of_samples_does_not_matter_and_the_data_set_does() -> None:
    def keys(dataset: Any, order: list[list[int]]) -> list[str]:
        source = observed(DataLoader(dataset, batch_sampler=order))
        return [RecordedBatch(batch, source.origin).identity().key for batch in source]

    class Other(Numbered):
        pass

    one, turned, other = keys(Numbered(), [[1, 2, 3], [3, 1, 2], [1, 2, 4]])
    assert one == turned != other
    assert keys(Other(), [[1, 2, 3]]) != [one]
    assert keys(Numbered(), [[1, 1, 2, 3]]) != [one]


def test_pairs_and_names_are_indices_too() -> None:
    source = observed(DataLoader(Numbered(), batch_sampler=[[(3, "small"), (4, "large")]]))
    (kept,) = [RecordedBatch(batch, source.origin) for batch in source]
    assert kept.indices() == ((3, "small"), (4, "large"))


def test_persistent_workers_end_with_their_loader() -> None:
    """Not when the garbage collector comes round: nothing of ours holds on to the loader."""
    gc.disable()
    try:
        loader = INDEXED["persistent workers"]()
        for _ in range(2):
            list(observed(loader))
        gone = weakref.ref(loader)
        workers = list(loader._iterator._workers)  # type: ignore[union-attr]
        del loader
        assert gone() is None
        assert not any(worker.is_alive() for worker in workers)
    finally:
        gc.enable()


def test_a_data_set_without_a_length() -> None:
    class Endless(Numbered):
        def __len__(self) -> int:
            raise NotImplementedError("I do not know")

    source = observed(DataLoader(Endless(), batch_sampler=[[1, 2], [3, 4]]))
    assert [RecordedBatch(batch, source.origin).indices() for batch in source] == [(1, 2), (3, 4)]
    assert source.origin.dataset == "Endless"
