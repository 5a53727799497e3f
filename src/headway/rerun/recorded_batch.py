"""Keeps the batches of the current step for a re-run, and identifies a batch: by its sample indices
if the loader shows them, otherwise by a hash of its content.
"""

from __future__ import annotations

import json
import operator
import os
import struct
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from headway.torch_adapters import tensor_values
from headway.torch_adapters.compat import tensor_version
from headway.torch_adapters.loaders.sample_indices import DrawnSamples, IndexedIterator

# The hash of a batch's content, the same in every process and run, for batches without indices.
# Tensors and arrays count by dtype, shape and bytes; lists equal tuples, and the order of a mapping
# does not matter. An object that cannot be inspected counts by its type, and the hash is marked as
# incomplete.

MAX_DEPTH = 8
"""Maximum nesting; anything deeper is an object graph."""
DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class ContentHash:
    """The hash of a batch."""

    text: str
    whole: bool
    """It covers the whole batch; otherwise two different batches may have the same hash."""


def content_hash(batch: Any) -> ContentHash:
    """The hash of any nested structure. Waits for the device: for bad steps only."""
    found = _Hash()
    found.add(batch, MAX_DEPTH)
    return ContentHash(found.blake.hexdigest(), found.whole)


class _Hash:
    def __init__(self) -> None:
        self.blake = blake2b(digest_size=DIGEST_BYTES)
        self.whole = True

    def add(self, value: Any, depth: int) -> None:
        try:
            self._add(value, depth)
        except Exception:  # the user's class may raise anything
            self._opaque(value)

    def _add(self, value: Any, depth: int) -> None:
        if isinstance(value, Tensor):
            self._tensor(value)
        elif isinstance(value, (np.ndarray, np.generic)):
            self._array(np.asarray(value), depth)
        elif (encode := _SIMPLE.get(type(value))) is not None:
            self._put(type(value).__name__, encode(value))
        elif isinstance(value, str):  # and its subclasses, as plain text
            self._put("str", str.__str__(value).encode("utf-8", "surrogatepass"))
        elif isinstance(value, os.PathLike):
            self._put("path", os.fsencode(value))
        elif depth == 0:
            self._opaque(value)
        elif isinstance(value, Mapping):
            self._mapping(dict(value.items()), depth)
        elif isinstance(value, (list, tuple)):
            self._put("sequence", str(len(value)).encode())
            for item in value:
                self.add(item, depth - 1)
        elif isinstance(value, Set):
            self._members(value, depth)
        elif hasattr(value, "__dataclass_fields__"):
            self._mapping(
                {name: getattr(value, name) for name in value.__dataclass_fields__}, depth
            )
        else:
            self._opaque(value)

    def _tensor(self, tensor: Tensor) -> None:
        plain = tensor.detach()
        if plain.is_sparse:
            plain = plain.coalesce()
            self._put("sparse", str(tuple(plain.shape)).encode())
            self._tensor(plain.indices())
            self._tensor(plain.values())
            return
        plain = plain.as_subclass(Tensor).cpu().resolve_conj().resolve_neg()
        flat = plain.reshape(-1)
        if flat.stride(0) != 1:  # a single element may keep any stride
            flat = flat.clone(memory_format=torch.contiguous_format)
        content = flat.view(torch.uint8).numpy()
        self._put("array", _described(str(plain.dtype).removeprefix("torch."), plain.shape))
        self.blake.update(content.data)

    def _array(self, array: np.ndarray[Any, Any], depth: int) -> None:
        if array.dtype.hasobject:
            self.add(array.tolist(), depth - 1)
            return
        name = array.dtype.name if array.dtype.isnative else array.dtype.str
        self._put("array", _described(name, array.shape))
        self.blake.update(array.tobytes())

    def _mapping(self, items: Mapping[Any, Any], depth: int) -> None:
        self._put("mapping", str(len(items)).encode())
        for key in sorted(items, key=_order):
            self.add(key, depth - 1)
            self.add(items[key], depth - 1)

    def _members(self, members: Set[Any], depth: int) -> None:
        self._put("set", str(len(members)).encode())
        parts = [_Hash() for _ in members]
        for part, member in zip(parts, members, strict=True):
            part.add(member, depth - 1)
        for part in sorted(parts, key=lambda part: part.blake.digest()):
            self.whole = self.whole and part.whole
            self.blake.update(part.blake.digest())

    def _opaque(self, value: Any) -> None:
        self.whole = False
        kind = type(value)
        self._put("opaque", f"{kind.__module__}.{kind.__qualname__}".encode())

    def _put(self, kind: str, what: bytes) -> None:
        # Lengths first: no two structures may give the same bytes.
        self.blake.update(f"{kind}:{len(what)}:".encode() + what)


def _described(dtype: str, shape: tuple[int, ...]) -> bytes:
    return f"{dtype}{[int(size) for size in shape]}".encode()


def _order(key: Any) -> tuple[str, str]:
    return type(key).__name__, repr(key)


def _text(value: Any) -> bytes:
    return repr(value).encode()


_SIMPLE: dict[type, Callable[[Any], bytes]] = {
    int: _text,
    bool: _text,
    type(None): _text,
    float: lambda value: struct.pack("<d", value),
    complex: lambda value: struct.pack("<2d", value.real, value.imag),
    bytes: bytes,
    bytearray: bytes,
}


# The identity of a batch: its sample indices, if the loader shows them, or the hash of its content.
# The hash is computed on request only, so a healthy step costs nothing.

Index: TypeAlias = "int | str | tuple[Index, ...]"

MAX_LOSSES = 16
"""Maximum number of losses kept per batch: most trainings have one."""
MAX_COPIED_BYTES = 1 << 28
"""Largest batch that is copied before a loop that changes its batches in place."""


@dataclass(frozen=True, slots=True)
class BatchOrigin:
    """The origin of a batch."""

    epoch: int
    """Number of earlier passes over a guarded loader."""
    number: int
    """Number of earlier batches in this pass, avoided ones included."""
    dataset: str = ""
    indices: Any = None
    """The indices that the sampler drew for it; None: not known."""
    batched: bool = True
    """The indices are a list, one per sample; otherwise the index of a ready-made batch."""
    loader: Callable[[], Any] | None = field(default=None, compare=False, repr=False)
    """A weak reference to its loader."""

    @classmethod
    def of(cls, drawn: DrawnSamples, loader: Any) -> BatchOrigin:
        """The origin of a batch from a loader that is not wrapped by `guard(...)`."""
        known = (drawn.epoch, drawn.number, drawn.dataset, drawn.indices, drawn.batched)
        return cls(*known, loader=_weak(loader))


@dataclass(frozen=True, slots=True)
class BatchIdentity:
    """The identity of a batch: equal keys, same batch."""

    key: str
    indices: tuple[Index, ...] = ()
    dataset: str = ""
    sure: bool = True
    """Equal keys mean the same batch; false if part of it could not be inspected."""


@dataclass(slots=True)
class RecordedBatch:
    """A batch of the current step."""

    batch: Any
    origin: BatchOrigin | None = None
    position: int = 0
    """Number of earlier batches of the same step."""
    losses: deque[Tensor] = field(default_factory=lambda: deque(maxlen=MAX_LOSSES))
    blamed: bool = False
    run: Callable[[Any], Any] | None = None
    """How a framework runs forward and backward over such a batch."""
    versions: int | None = None
    """Sum of the version counters of its tensors when it was yielded."""
    copies: Sequence[Tensor] | None = None
    """Copies of its tensors from then, if the loop changes its batches in place."""
    _identity: BatchIdentity | None = None

    @property
    def size(self) -> int | None:
        """Number of samples."""
        indices = self.indices() if self.origin is not None and self.origin.batched else ()
        return len(indices) or tensor_values.batch_size(self.batch)

    def watch_for_changes(self, tensors: Iterable[Tensor], *, copy: bool) -> None:
        """Record the state of its tensors; with `copy`, so that they can be restored."""
        tensors = _without_inference(tensors)
        self.versions = sum(map(tensor_version, tensors))
        if copy and sum(tensor.nbytes for tensor in tensors) <= MAX_COPIED_BYTES:
            self.copies = [tensor.detach().clone() for tensor in tensors]

    @property
    def changed(self) -> bool:
        """Whether the loop has changed it in place since it was yielded."""
        return self.versions is not None and self.versions != _versions(self.batch)

    @property
    def lost(self) -> bool:
        """Whether it was changed and cannot be restored."""
        return self.changed and self.copies is None

    def restore(self) -> None:
        """Restore its values, in the same tensors."""
        if self.changed and self.copies is not None:
            _fill(_changeable(self.batch), self.copies)

    @contextmanager
    def as_given(self) -> Iterator[None]:
        """Restores the batch as it was yielded; afterwards, as the loop has left it."""
        if not self.changed or self.copies is None:
            yield
            return
        tensors = _changeable(self.batch)
        left = [tensor.detach().clone() for tensor in tensors]
        self.restore()
        try:
            yield
        finally:
            _fill(tensors, left)

    def indices(self) -> tuple[Index, ...]:
        """Indices of its samples in the data set, in order; empty: not known."""
        return () if self.origin is None else _plain_indices(self.origin)

    def loader(self) -> Any:
        """The loader that it came from, if that is known and still exists."""
        return self.origin.loader() if self.origin is not None and self.origin.loader else None

    def identity(self) -> BatchIdentity:
        """Computed once, on request."""
        if self._identity is None:
            self._identity = self._identify()
        return self._identity

    def _identify(self) -> BatchIdentity:
        indices = self.indices()
        if indices and self.origin is not None:
            dataset = self.origin.dataset
            return BatchIdentity(f"indices-{_hash_of_set(dataset, indices)}", indices, dataset)
        found = content_hash(self.batch)
        return BatchIdentity(f"content-{found.text}", sure=found.whole)


AvoidBatch: TypeAlias = Callable[[RecordedBatch], Any]
RescueBatch: TypeAlias = Callable[[Any, Exception], list[Any]]


class ObservedLoader:
    """A pass over a loader that records the origin of each batch and leaves avoided ones out."""

    def __init__(
        self,
        source: Iterator[Any],
        epoch: int = 0,
        avoid: AvoidBatch | None = None,
        *,
        given: int = 0,
        rescue: RescueBatch | None = None,
        loader: Any = None,
    ) -> None:
        """`given`: number of batches that were drawn from the source before; `rescue`: takes the
        indices of a batch whose loading raised, and returns what can be used of it; `loader`: what
        the source is a pass over."""
        self._source = source
        self._epoch = epoch
        self._avoid = avoid
        self._rescue = rescue
        self._loader = _weak(loader)
        self.given = given
        """Number of batches drawn from the source so far, avoided ones included."""
        self.origin = BatchOrigin(epoch, given)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while True:
            try:
                batch = next(self._source)
            except Exception as error:
                if self._rescue is None or isinstance(error, StopIteration):
                    raise
                rescued = self._rescue(getattr(self._source, "indices", None), error)
                if not rescued:
                    self.given += 1
                    continue
                batch = rescued[0]
            self.origin = self._find_origin()
            self.given += 1
            if self._avoid is None or not self._avoid(RecordedBatch(batch, self.origin)):
                return batch

    def _find_origin(self) -> BatchOrigin:
        source = self._source
        if not isinstance(source, IndexedIterator):
            return BatchOrigin(self._epoch, self.given, loader=self._loader)
        tape = source.tape
        known = (tape.dataset, source.indices, tape.batched)
        return BatchOrigin(self._epoch, self.given, *known, loader=self._loader)


def _weak(loader: Any) -> Callable[[], Any] | None:
    return weakref.ref(loader) if isinstance(loader, DataLoader) else None


def _versions(batch: Any) -> int:
    return sum(map(tensor_version, _changeable(batch)))


def _changeable(batch: Any) -> list[Tensor]:
    return _without_inference(tensor_values.attached_tensors(batch))


def _without_inference(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Those that count their changes."""
    return [tensor for tensor in tensors if not tensor.is_inference()]


@torch.no_grad()
def _fill(tensors: Iterable[Tensor], values: Iterable[Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.detach().copy_(value)


def freeze_index(value: Any) -> Index:
    """An index in a form that can be compared and serialised. Raises TypeError."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (list, tuple)):
        return tuple(freeze_index(item) for item in value)
    return operator.index(value)


def _plain_indices(origin: BatchOrigin) -> tuple[Index, ...]:
    drawn = origin.indices
    if isinstance(drawn, (Tensor, np.ndarray)):
        drawn = drawn.tolist()
    try:
        listed = drawn if origin.batched and isinstance(drawn, (list, tuple, range)) else [drawn]
        return tuple(freeze_index(item) for item in listed)
    except TypeError:  # None, or an index of another kind
        return ()


def _hash_of_set(dataset: str, indices: Iterable[Index]) -> str:
    # Sorted: the same samples in another order are the same batch.
    texts = sorted(json.dumps(index) for index in indices)
    return blake2b(json.dumps([dataset, texts]).encode(), digest_size=16).hexdigest()
