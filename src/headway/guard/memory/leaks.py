"""Traces growing memory to the user's line that allocates it.

While memory is constant nothing is traced. When it has grown for a few hundred steps, Python's
allocations are traced for thirty steps: what was allocated in the last twenty and is still alive is
what grows. It can be Python objects (numpy arrays among them), tensors, of which Python sees only
the small wrapper objects, or the memory of loader workers, which is measured from outside.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headway.checks.growth import Growth, GrowthRule, GrowthWatch
from headway.guard.measure import sampling
from headway.torch_adapters.frames import (
    Location,
    add_function_name,
    find_user_location,
    is_headway_file,
)
from headway.torch_adapters.live_objects import find_instances
from headway.torch_adapters.loaders.batch_fetching import find_worker_dataset

MIB = 2**20
HOST, DEVICE = "host_rss_bytes", "device_allocated_bytes"
SUSPICIOUS = GrowthRule(ratio=1.03, amount=16 * MIB, grace=50, horizon=150)
"""Lower than the limits of the checks: the line must be known when they report."""
FRAMES = 8
"""Depth of the recorded stacks: the user's line may be behind a few lines of a library."""
WARM, LAST = 1, 3
"""Samples after the start of the tracing at which the two counts are taken."""
EXPLAINED = 0.25
"""Minimum share of the growth that a reported line must explain."""
MAX_REPORTED = 3
"""Maximum number of searches in a run."""

ReportEvent = Callable[[int, str, dict[str, Any]], None]


@dataclass(slots=True)
class _Census:
    """The objects that are alive at one moment."""

    step: int
    workers: int = field(default_factory=sampling.worker_rss_bytes)
    tensors: Counter[str] = field(default_factory=Counter)
    """Bytes of the tensors by the signal that they belong to."""
    objects: Counter[Location] = field(default_factory=Counter)
    """Bytes of Python's allocations by line."""
    wrappers: Counter[Location] = field(default_factory=Counter)
    """Number of allocations of the size of a tensor's Python object, by line."""


class LeakTracer:
    """Traces the memory of one training."""

    def __init__(self, report: ReportEvent) -> None:
        """`report` is called with (step, kind of event, findings)."""
        self._report_event = report
        self._watches = {HOST: GrowthWatch(), DEVICE: GrowthWatch()}
        self._grown: dict[str, Growth] = {}
        self._ours = False
        self._samples = 0
        self._first: _Census | None = None
        self._left = MAX_REPORTED

    def sampled(self, step: int, values: dict[str, float]) -> None:
        """Receive a measurement of the memory."""
        if self._grown:
            self._pursue(step)
            return
        for signal, watch in self._watches.items():
            level = values.get(signal)
            growth = None if level is None else watch.admit(step, level, SUSPICIOUS)
            if growth is not None and self._left:
                self._grown[signal] = growth
        if self._grown:
            self._left -= 1
            self._start()

    def close(self) -> None:
        """Stop tracing."""
        self._grown.clear()
        self._first, self._samples = None, 0
        if self._ours:
            self._ours = False
            tracemalloc.stop()

    def _start(self) -> None:
        self._ours = not tracemalloc.is_tracing()
        if self._ours:
            tracemalloc.start(FRAMES)

    def _pursue(self, step: int) -> None:
        self._samples += 1
        if self._samples == WARM:
            self._first = _count(step)
        elif self._samples == LAST and self._first is not None:
            last = _count(step)
            for signal, growth in self._grown.items():
                self._report(signal, growth, self._first, last)
            self.close()

    def _report(self, signal: str, growth: Growth, first: _Census, last: _Census) -> None:
        steps = max(last.step - first.step, 1)
        found = max(_suspects(signal, first, last), key=lambda one: one["bytes"])
        if found["bytes"] < EXPLAINED * growth.per_step * steps:
            return  # the growth is outside of Python
        place: Location | None = found.pop("place")
        if place is not None:
            found.update(add_function_name(place).to_dict())
        self._report_event(last.step, "growth", {"of": signal, "steps": steps, **found})


def _suspects(signal: str, first: _Census, last: _Census) -> Iterable[dict[str, Any]]:
    """What has grown, with its bytes and the line that allocated most of it."""
    grown = last.tensors[signal] - first.tensors[signal]
    yield {"what": "tensors", "bytes": grown, "place": _most(last.wrappers - first.wrappers)}
    if signal == DEVICE:
        return
    objects = last.objects - first.objects
    place = _most(objects)
    yield {"what": "objects", "bytes": objects[place] if place else 0, "place": place}
    workers = last.workers - first.workers
    yield {"what": "workers", "bytes": workers, "place": _dataset() if workers > 0 else None}


def _count(step: int) -> _Census:
    gc.collect()  # objects in a cycle only wait for the collector
    census = _Census(step)
    for storage in _storages():
        census.tensors[HOST if storage.device.type == "cpu" else DEVICE] += storage.nbytes()
    snapshot = tracemalloc.take_snapshot()
    for group in snapshot.statistics("traceback"):
        if (place := _maker(group.traceback)) is not None:
            census.objects[place] += group.size
    wrapper = sys.getsizeof(torch.empty(0))
    stacks = Counter(trace.traceback for trace in snapshot.traces if trace.size == wrapper)
    for stack, count in stacks.items():
        if (place := _maker(stack)) is not None:
            census.wrappers[place] += count
    return census


def _storages() -> Iterable[torch.UntypedStorage]:
    found: dict[int, torch.UntypedStorage] = {}
    for item in find_instances(Tensor):
        if item.layout is torch.strided:
            try:
                storage = item.untyped_storage()
                found[storage.data_ptr()] = storage
            except Exception:  # a tensor of some library without memory of its own
                continue
    return found.values()


def _maker(stack: tracemalloc.Traceback) -> Location | None:
    """The user's line of an allocation; None for our own."""
    frames = [Location(frame.filename, frame.lineno) for frame in reversed(stack)]
    place = find_user_location(frames)
    inner = frames if place is None else frames[: frames.index(place)]
    return None if any(is_headway_file(frame.file) for frame in inner) else place


def _most(counts: Counter[Location]) -> Location | None:
    return max(counts, key=lambda place: counts[place], default=None)


def _dataset() -> Location | None:
    """Where the dataset of the loader workers is defined."""
    dataset = find_worker_dataset()
    for name in ("__getitem__", "__iter__"):
        code = getattr(getattr(type(dataset), name, None), "__code__", None)
        if code is not None:
            return Location(code.co_filename, code.co_firstlineno, code.co_name)
    return None
