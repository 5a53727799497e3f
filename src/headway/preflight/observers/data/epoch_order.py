"""In which order the samples come, from one pass over the data to the next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import (
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from headway.preflight.observer import Observer, TorchCall
from headway.preflight.source_lines import find_seeding_line
from headway.rerun.recorded_batch import content_hash
from headway.torch_adapters.compat import find_aliases
from headway.torch_adapters.frames import is_installed_file
from headway.torch_adapters.nested_state import map_tensors

# The order of a batch's rows in its data, and which line seeds that order.

# A loop that makes its batches with numpy or in an iterator of its own tells nobody which rows it
# took. They are looked up in the arrays that the script's variables, or their attributes, hold.

MOST_ROWS = 1 << 20
MOST_SOUGHT = 16
"""Rows of a batch that are looked up."""


def find_order(frames: Iterable[FrameType], batch: Tensor) -> str | None:
    """`own` if the batch's rows are consecutive in the data, otherwise `mixed`."""
    rows = _array(batch)
    if rows is None or len(rows) < 3:
        return None
    sought = rows[:MOST_SOUGHT]
    found = None
    for source in _arrays(frames):
        if source.shape[1:] != sought.shape[1:] or len(source) <= len(rows):
            continue
        positions = _positions(source, sought)
        if positions is None:
            continue
        if (np.diff(positions) > 0).all():
            return "own"
        found = "mixed"
    return found


def _arrays(frames: Iterable[FrameType]) -> Iterator[np.ndarray[Any, Any]]:
    seen: set[int] = set()
    for frame in frames:
        for value in list(frame.f_locals.values())[:500]:
            held = getattr(value, "__dict__", None)
            inner = list(held.values())[:100] if isinstance(held, dict) else []
            if isinstance(value, (tuple, list)):
                inner = list(value[:16])
            for item in (value, *inner):
                array = None if id(item) in seen else _array(item)
                seen.add(id(item))
                if array is not None and len(array) <= MOST_ROWS:
                    yield array


def _array(value: Any) -> np.ndarray[Any, Any] | None:
    if isinstance(value, Tensor):
        plain = value.layout is torch.strided and value.is_cpu and not value.requires_grad
        if not plain or value.dtype is torch.bfloat16 or not value.ndim:
            return None
        value = value.detach().numpy()
    if not isinstance(value, np.ndarray) or value.ndim < 2 or value.dtype.kind not in "fiu":
        return None
    return value


def _positions(source: Any, sought: Any) -> Any:
    """Where these rows lie in the data; None where one is not there, or more than once."""
    flat, wanted = source.reshape(len(source), -1), sought.reshape(len(sought), -1)
    places = []
    for row in wanted:
        near = np.flatnonzero(np.isclose(flat[:, 0], row[0], rtol=1e-5, atol=1e-7)).tolist()
        at = [i for i in near[:1000] if np.allclose(flat[i], row, rtol=1e-5, atol=1e-7)]
        if len(at) != 1:
            return None
        places.append(at[0])
    return np.asarray(places)


# In which order the samples come, from one pass over the data to the next.

GATHERS = ("__getitem__", "index_select")
MOST_BATCHES = 200
"""Of one pass, and of one stream."""
MOST_STREAMS = 8
FEWEST = 3
"""Batches a pass must have: one or two do not show an order."""


@dataclass(slots=True)
class LoaderPass:
    """One pass over a loader."""

    kind: str
    step: int
    place: dict[str, Any] | None
    sampler: str = ""
    state: bytes = b""
    """What the sampler's order will be drawn from."""
    made: dict[str, Any] | None = None
    """The line that constructs the loader."""
    batches: list[str] = field(default_factory=list)
    trained: bool = False


@dataclass(slots=True)
class BatchStream:
    """Batches that a loop picks out of a tensor itself."""

    place: dict[str, Any] | None
    first: int
    picked: list[bytes] = field(default_factory=list)
    ascending: bool = True


class EpochOrder(Observer):
    """Remembers batches by their hashes, pass after pass."""

    functions = find_aliases(*GATHERS)

    def start(self) -> None:
        self._last: dict[int, LoaderPass] = {}
        """The last training pass over each data set."""
        self._now: dict[int, LoaderPass] = {}
        self._current: LoaderPass | None = None
        self._streams: dict[int, BatchStream] = {}
        self._pending: dict[int, tuple[bytes, bool]] = {}
        self._fed: list[str] = []
        self._input: Tensor | None = None
        self._told: set[int] = set()
        self._kept: list[Any] = []
        self._permuted = False
        """Whether batches are taken out of the data in another order than its own."""
        self._looked_at: Tensor | None = None
        self._seeds: dict[str, Any] | None = None
        """The line that seeds in every pass, where there is one."""

    # Loaders.

    def pass_begun(self, loader: Any) -> None:
        data = getattr(loader, "dataset", None)
        if data is None or len(self._now) > 4 * MOST_STREAMS:
            return
        self._end_pass(id(data))
        if id(data) not in self._now:
            self._kept.append(data)  # so that no identity is given twice
        kind, sampler, state = _drawn_from(loader)
        self._now[id(data)] = LoaderPass(
            kind,
            self.script.step,
            self.script.place(),
            sampler,
            state,
            self.script.loader_lines.get(loader),
        )

    def batch_drawn(self, loader: Any, batch: Any) -> None:
        self._current = self._now.get(id(getattr(loader, "dataset", None)))
        if self._current is not None and len(self._current.batches) < MOST_BATCHES:
            self._current.batches.append(_hash(batch))

    def _end_pass(self, key: int) -> None:
        ended = self._now.get(key)
        if ended is None or not ended.trained:
            return
        before, self._last[key] = self._last.get(key), ended
        if before is None or key in self._told:
            return
        why = _repeats(before, ended)
        if why is None:
            return
        self._told.add(key)
        self.evidence.record(
            "epoch-order",
            {
                "how": "loader",
                "kind": ended.kind,
                "sampler": ended.sampler,
                "why": why,
                "batches": min(len(before.batches), len(ended.batches)),
                "first_step": before.step,
                "place": (ended.kind == "sequential" and ended.made) or ended.place,
            },
        )

    # Loops that pick their batches themselves.

    def function_ended(self, call: TorchCall) -> None:
        if self.script.stack or not torch.is_grad_enabled() or not call.args:
            return
        source = call.args[0]
        index = call.args[-1] if call.name == "index_select" else call.argument(1, "index")
        picked = _picked(index)
        if picked is None or not isinstance(source, Tensor) or source.requires_grad:
            return
        if not source.ndim or len(picked) >= source.shape[0]:
            return
        key = source.data_ptr()
        if key not in self._streams:
            if len(self._streams) >= MOST_STREAMS:
                return
            self._streams[key] = BatchStream(self.script.place(), self.script.step)
        ascending = bool((np.diff(picked) >= 0).all())
        self._pending[key] = (blake2b(picked.tobytes(), digest_size=8).digest(), ascending)

    def module_begins(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not torch.is_grad_enabled() or not module.training or len(self._fed) >= MOST_BATCHES:
            return
        given = next((item for item in args if isinstance(item, Tensor)), None)
        # A loss is a module too, and what it is given first comes from the model.
        if given is not None and not given.requires_grad:
            self._input = given

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        if self._current is not None:
            self._current.trained = True
        for key, (digest, ascending) in self._pending.items():
            stream = self._streams[key]
            if len(stream.picked) < MOST_BATCHES:
                stream.picked.append(digest)
                stream.ascending = stream.ascending and ascending
        self._pending.clear()
        given, self._input = self._input, None
        self._looked_at = given if self.script.step <= FEWEST else None
        if given is not None and self._current is None and not given.requires_grad:
            self._fed.append(_hash(given))

    # The end.

    def finished(self) -> None:
        for key in list(self._now):
            self._end_pass(key)
        for stream in self._streams.values():
            period = _period(stream.picked)
            if period is not None and not stream.ascending:
                self._report_own("indices", period, stream.first, stream.place)
                return
        period = _period(self._fed)
        if period is not None and not self._streams and self._permuted:
            self._report_own("content", period, 0, self._seeds)
        if self._now and not self._told:
            kinds = {item.kind for item in self._last.values()}
            facts = {"how": "loader", "kind": "sequential" if kinds == {"sequential"} else "varied"}
            place = next((item.made or item.place for item in self._last.values()), None)
            self.evidence.record("epoch-order", {**facts, "place": place, "first_step": 0})

    def _report_own(self, how: str, period: int, first: int, place: dict[str, Any] | None) -> None:
        facts = {"how": how, "kind": "shuffled", "why": "the same indices"}
        more = {"batches": period, "first_step": first, "place": place}
        self.evidence.record("epoch-order", {**facts, **more})

    def step_ended(self, optimizer: Any) -> None:
        given, self._looked_at = self._looked_at, None
        if self.script.step != FEWEST or self._permuted or self._now:
            return
        frames = [f for f in self.script.frames() if not is_installed_file(f.f_code.co_filename)]
        order = None if given is None else find_order(frames, given)
        if order is None:
            held = [value for frame in frames for value in list(frame.f_locals.values())[:500]]
            self._permuted = any(_is_permutation(value) for value in held)
        else:
            self._permuted = order == "mixed"
        if self._permuted:
            self._seeds = find_seeding_line(self.script)


def _drawn_from(loader: Any) -> tuple[str, str, bytes]:
    """(kind of order, the sampler's class, what it will be drawn from)."""
    sampler = getattr(loader, "sampler", None)
    name = type(sampler).__name__
    if isinstance(getattr(loader, "dataset", None), IterableDataset):
        return "iterable", name, b""
    if isinstance(sampler, SequentialSampler):
        own = type(getattr(loader, "batch_sampler", None)).__name__
        plain = own in ("BatchSampler", "NoneType")
        return ("sequential", name, b"") if plain else ("own", own, b"")
    if isinstance(sampler, DistributedSampler):
        drawn = f"{sampler.epoch}/{sampler.seed}".encode()
        return ("shuffled", name, drawn) if sampler.shuffle else ("sequential", name, b"")
    if isinstance(sampler, (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)):
        generator = sampler.generator
        if generator is None:
            generator = getattr(loader, "generator", None)
        state = torch.get_rng_state() if generator is None else generator.get_state()
        return "shuffled", name, blake2b(state.numpy().tobytes(), digest_size=16).digest()
    return "own", name, b""


def _repeats(before: LoaderPass, after: LoaderPass) -> str | None:
    """Why the second pass is the first one over again; None where it is not."""
    count = min(len(before.batches), len(after.batches))
    if count < FEWEST:
        return None
    same = before.batches[:count] == after.batches[:count]
    if same and len(set(before.batches[:count])) >= FEWEST:
        if "Distributed" in after.sampler and after.state == before.state:
            return "set_epoch was not called"
        return "the same batches"
    if before.state and before.state == after.state:
        distributed = "Distributed" in after.sampler
        return "set_epoch was not called" if distributed else "the generator was seeded again"
    return None


def _picked(index: Any) -> Any:
    """Indices of samples as an array; None where it is something else."""
    if isinstance(index, Tensor):
        if index.dtype not in (torch.int64, torch.int32) or index.ndim != 1 or index.is_cuda:
            return None
        found = index.detach().numpy()
    elif isinstance(index, np.ndarray) and index.ndim == 1 and index.dtype.kind in "iu":
        found = index
    elif isinstance(index, list) and index and all(type(item) is int for item in index[:4]):
        try:
            found = np.asarray(index, dtype=np.int64)
        except (TypeError, ValueError, OverflowError):
            return None
    else:
        return None
    return found if 2 <= len(found) <= 1 << 20 else None


def _period(seen: Sequence[Any]) -> int | None:
    """After how many batches the last ones come again."""
    for length in range(FEWEST, len(seen) // 2 + 1):
        last = seen[-length:]
        if last == seen[-2 * length : -length] and len(set(last)) >= FEWEST:
            return length
    return None


def _is_permutation(value: Any) -> bool:
    if isinstance(value, Tensor) and value.is_cpu and value.dtype is torch.int64:
        value = value.detach().numpy()
    if isinstance(value, list) and len(value) >= 8 and all(type(item) is int for item in value):
        value = np.asarray(value)
    if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.kind not in "iu":
        return False
    if not 8 <= len(value) <= 1 << 22:
        return False
    ordered = np.sort(value)
    return bool((ordered == np.arange(len(value))).all() and (np.diff(value) < 0).any())


def _hash(value: Any) -> str:
    """A few numbers of every tensor will do: equal batches are equal in them."""
    return content_hash(map_tensors(value, _thinned)).text


def _thinned(tensor: Tensor) -> Tensor:
    if tensor.is_sparse:
        return tensor.detach()
    return tensor.detach().reshape(-1)[:: max(tensor.numel() // 4096, 1)]
