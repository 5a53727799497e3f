"""Tracks the position in the data, so that a resumed run continues with the next batch.

A pass is one iteration over `guard(loader)`, usually an epoch. Passes are numbered in the order in
which they begin; a snapshot records which were complete and how many batches the open ones had
yielded. After a resume the user's loops run again from the start: complete passes yield nothing,
and an open one starts with the same random numbers, so in the same order, and skips what it had
yielded.

Another number of ranks divides the data differently. Then an open pass continues by sample: the
order of the epoch is that of the sampler that began it, and the present ranks divide the rest of it
(`sample_order.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from headway.guard.recovery import sample_order
from headway.guard.recovery.sample_order import SampleOrder
from headway.output.notices import logger
from headway.torch_adapters import rng
from headway.torch_adapters.nested_state import make_loadable, map_tensors


@dataclass(slots=True)
class DataPass:
    """One iteration over a loader."""

    loader: Any
    given: int = 0
    """Batches yielded to the loop so far, by this number of ranks."""
    opening: dict[str, Any] = field(default_factory=dict)
    """The random number generators when it began."""
    order: SampleOrder | None = None
    """The order of its samples, where it is known."""
    start: Mapping[str, Any] | None = None
    """Where a resumed pass continues; None: at its beginning."""


class DataPosition:
    """The passes over the loaders of one guard."""

    def __init__(self) -> None:
        self.epoch = 0
        self._begun = 0
        self._begun_at_epoch = 0
        self._open: dict[int, DataPass] = {}
        self.skips_errors = False
        """Whether batches before the position may fail to load: their bad samples were left out."""
        self._resumed: Mapping[str, Any] | None = None
        self._resized = False
        self._awaited = 0
        self._arrive: Callable[[], None] = lambda: None

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are not complete."""
        if self._resumed is not None:
            self.epoch = self._resumed["epoch"]
            self._begun = self._resumed["begun_at_epoch"]
        while self.epoch < count:
            self._begun_at_epoch = self._begun
            yield self.epoch
            self.epoch += 1

    def begin(self, loader: Any) -> tuple[int, DataPass | None]:
        """Begin a pass; returns its number, and the pass or None if it was complete before."""
        number = self._begun
        self._begun += 1
        one = DataPass(loader)
        if self._resumed is not None:
            one.start = self._resumed["open"].get(number)
            if one.start is None and number < self._resumed["begun"]:
                return number, None
        self._open[number] = one
        return number, one

    @property
    def in_pass(self) -> bool:
        """Whether a pass is open, or none was ever begun, so that loops are not known."""
        return bool(self._open) or not self._begun

    def end(self, number: int) -> None:
        """End a pass, at its last batch or because the loop left it."""
        self._open.pop(number, None)

    def open(self, one: DataPass, iterate: Callable[[Any], Iterator[Any]] = iter) -> Iterator[Any]:
        """The iterator of the loader, positioned at the next batch."""
        start, one.start = one.start, None
        if start is None:
            one.opening = {**rng.capture(), "own": _generators_state(one.loader)}
            one.order = sample_order.of_loader(one.loader)
            return iterate(one.loader)
        one.opening = start["opening"]
        if self._resized or sample_order.was_resized(start.get("order")):
            one.order = sample_order.continue_order(start.get("order"), start["given"], one.loader)
            source = iterate(one.order.rest(one.loader))
        else:
            one.order = sample_order.restored(start.get("order"))
            source = self._open_again(one, start, iterate)
        self._arrived()
        return source

    def _open_again(
        self, one: DataPass, start: Mapping[str, Any], iterate: Callable[[Any], Iterator[Any]]
    ) -> Iterator[Any]:
        """The same pass, continued by the same number of ranks."""
        one.given = start["given"]
        if "loader" in start:
            workers = getattr(one.loader, "num_workers", 0)
            if workers:
                logger.warning(
                    "headway: %s continues with the right samples, but the random numbers of its "
                    "%s worker processes are not part of its state: random augmentation differs "
                    "from a run without interruption (num_workers=0 is exact)",
                    type(one.loader).__name__,
                    workers,
                )
            one.loader.load_state_dict(map_tensors(start["loader"], torch.Tensor.clone))
            return iterate(one.loader)
        rng.restore(one.opening)
        _restore_generators(one.loader, one.opening["own"])
        source = iterate(one.loader)
        for _ in range(one.given):
            try:
                next(source, None)
            except Exception:  # a data set may raise anything; the guard skipped this sample
                if not self.skips_errors:
                    raise
        return source

    def _arrived(self) -> None:
        self._arrive()
        assert self._resumed is not None
        self._awaited -= 1
        if self._awaited == 0:
            # Passes inside the open ones are not repeated: the numbers continue after them.
            self._begun = max(self._begun, self._resumed["begun"])
            self._resumed = None

    def state_dict(self) -> dict[str, Any]:
        """The position of every open pass."""
        return {
            "epoch": self.epoch,
            "begun": self._begun,
            "begun_at_epoch": self._begun_at_epoch,
            "open": {number: _pass_state(one) for number, one in self._open.items()},
        }

    def resume(
        self, state: Mapping[str, Any], arrive: Callable[[], None], *, resized: bool = False
    ) -> None:
        """Continue from a state; `arrive` is called when an open pass has reached its position.

        `resized`: another number of ranks wrote it.
        """
        self._resumed = state
        self._resized = resized
        self._awaited = len(state["open"])
        self._arrive = arrive


def describe_position(state: Mapping[str, Any], *, by_batch: bool) -> str:
    """The position as ranks compare it.

    `by_batch`: also how many batches were given. Ranks that avoid bad batches may differ in that,
    and only another number of ranks needs it to be the same.
    """
    passes = [
        f"pass {number}" + (f" after batch {one['given']}" if by_batch else "")
        for number, one in sorted(state["open"].items())
    ]
    return f"epoch {state['epoch']}, {state['begun']} passes begun, open: {', '.join(passes)}"


def _pass_state(one: DataPass) -> dict[str, Any]:
    state: dict[str, Any] = {"given": one.given, "opening": one.opening}
    if one.order is not None:
        state["order"] = one.order.state_dict()
    own = getattr(one.loader, "state_dict", None)
    if callable(own) and callable(getattr(one.loader, "load_state_dict", None)):
        state["loader"] = make_loadable(own())
    return state


def _generators(loader: Any) -> Iterable[torch.Generator]:
    """The generators of a DataLoader and its samplers, each once."""
    found: dict[int, torch.Generator] = {}
    for owner in (loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)):
        for holder in (owner, getattr(owner, "sampler", None)):
            generator = getattr(holder, "generator", None)
            if isinstance(generator, torch.Generator):
                found[id(generator)] = generator
    return found.values()


def _generators_state(loader: Any) -> list[torch.Tensor]:
    return [generator.get_state() for generator in _generators(loader)]


def _restore_generators(loader: Any, states: list[torch.Tensor]) -> None:
    for generator, state in zip(_generators(loader), states, strict=False):
        generator.set_state(state)
