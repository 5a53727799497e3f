"""Samples that a data set keeps in memory: whether the sampler reaches all of them, and whether
reading one changes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset, WeightedRandomSampler

from headway.preflight.observer import Observer
from headway.preflight.source_lines import find_attribute_line, find_line, find_taking_line
from headway.torch_adapters.tensor_values import batch_tensors

REACH_TOPIC = "sampler-reach"
MADE = r"WeightedRandomSampler\("


class SamplerReach(Observer):
    """Compares the weights of a sampler with the samples of its data set."""

    def start(self) -> None:
        self._seen: set[int] = set()

    def pass_begun(self, loader: Any) -> None:
        sampler = getattr(loader, "sampler", None)
        if type(sampler) is not WeightedRandomSampler or id(sampler) in self._seen:
            return
        if not torch.is_grad_enabled():
            return
        self._seen.add(id(sampler))
        try:
            samples = len(loader.dataset)
        except TypeError:  # a data set without a length
            return
        facts = {"sampler": type(sampler).__name__, "reached": len(sampler.weights)}
        place = find_line(self.script, MADE) or self.script.loader_lines.get(loader)
        self.evidence.record(REACH_TOPIC, {**facts, "samples": samples, "place": place})


# Whether reading a sample changes what is stored. A few rows of each array are compared from batch
# to batch. A cache is filled once, and a loop may write new targets into its data; a row that
# changes in several passes and then holds what was delivered was changed by reading it.

STORED_TOPIC = "stored-samples"
WATCHED = 16
"""Rows of an array that are compared."""
MOST_ARRAYS = 4
MOST_ELEMENTS = 1 << 16
PASSES = 6
"""The first passes over a data set."""
TWICE = 2


@dataclass(slots=True)
class StoredArray:
    """Rows of an array of a data set, as they were."""

    name: str
    array: Any
    rows: list[int]
    before: list[Any]
    changed_in: dict[int, set[int]] = field(default_factory=dict)
    """Row → the passes in which it changed."""
    delivered: int = 0
    """How often a changed row is one of the batch."""


class StoredSamples(Observer):
    """Compares stored rows after each batch."""

    def start(self) -> None:
        self._data: Any = None
        self._arrays: list[StoredArray] = []
        self._passes = 0
        self._reported = False

    def pass_begun(self, loader: Any) -> None:
        if self._reported or not torch.is_grad_enabled():
            return
        data = _innermost(getattr(loader, "dataset", None))
        if getattr(loader, "num_workers", 0):  # each worker has a copy
            return
        if data is not self._data:
            if self._arrays:  # one data set is enough
                return
            self._data = data
            self._arrays = list(_stored_arrays(data))
        self._passes += 1

    def batch_drawn(self, loader: Any, batch: Any) -> None:
        if self._reported or not self._arrays or self._passes > PASSES:
            return
        if _innermost(getattr(loader, "dataset", None)) is not self._data:
            return
        for stored in self._arrays:
            self._compare(stored, batch)

    def finished(self) -> None:
        self._data, self._arrays = None, []

    def _compare(self, stored: StoredArray, batch: Any) -> None:
        given = None
        for at, row in enumerate(stored.rows):
            now = np.asarray(stored.array[row])
            if np.array_equal(now, stored.before[at], equal_nan=True):
                continue
            stored.before[at] = now.copy()
            stored.changed_in.setdefault(row, set()).add(self._passes)
            given = _rows_like(batch, now.shape) if given is None else given
            stored.delivered += any(np.array_equal(now, item, equal_nan=True) for item in given)
        again = sum(len(passes) >= TWICE for passes in stored.changed_in.values())
        if again >= TWICE and stored.delivered >= TWICE:
            self._reported = True
            facts = {"attribute": stored.name, "rows": again, "watched": len(stored.rows)}
            read = getattr(self._data, "__getitem__", None)
            place = find_attribute_line(read, stored.name) or find_taking_line(read)
            kind = type(self._data).__name__
            self.evidence.record(STORED_TOPIC, {**facts, "dataset": kind, "place": place})


def _innermost(data: Any) -> Any:
    while isinstance(data, Subset):
        data = data.dataset
    return data


def _stored_arrays(data: Any) -> Iterator[StoredArray]:
    """The arrays of floats that have a row for each sample."""
    try:
        count = len(data)
        held = list(vars(data).items())[:100]
    except TypeError:
        return
    found = 0
    for name, value in held:
        array = value.detach().numpy() if _is_plain(value) else value
        if not isinstance(array, np.ndarray) or array.dtype.kind != "f" or array.ndim < 2:
            continue
        if len(array) != count or array[0].size > MOST_ELEMENTS or found >= MOST_ARRAYS:
            continue
        rows = sorted({int(at) for at in np.linspace(0, count - 1, min(WATCHED, count))})
        yield StoredArray(name, array, rows, [array[row].copy() for row in rows])
        found += 1


def _is_plain(value: Any) -> bool:
    if not isinstance(value, Tensor) or not value.is_cpu or value.requires_grad:
        return False
    return value.layout is torch.strided and value.dtype in (torch.float32, torch.float64)


def _rows_like(batch: Any, shape: tuple[int, ...]) -> list[Any]:
    """The samples of a batch that have the shape of a stored one."""
    return [
        row.numpy()
        for tensor in batch_tensors(batch)
        if _is_plain(tensor) and tuple(tensor.shape[1:]) == shape
        for row in tensor
    ]
