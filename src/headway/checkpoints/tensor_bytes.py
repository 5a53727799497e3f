"""Locates the bytes of each tensor that a pickle describes, and checks the range."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from headway.checkpoints import dtypes
from headway.checkpoints.checkpoint_info import Inflate, SavedTensor, Span
from headway.checkpoints.formats.torch_legacy import ViewRef
from headway.checkpoints.pickle_rebuild import NOWHERE, ArrayRef, StorageRef, TensorRef
from headway.checkpoints.pickle_values import Blob, Located

MAX_ELEMENTS = 1 << 46
MAX_AXES = 64


class Lost(Exception):
    """The tensor's bytes are not all there, or its description makes no sense."""


class Unsupported(Exception):
    """Elements of a kind that is not measured."""


@dataclass(frozen=True, slots=True)
class PlacedStorage:
    """Where a storage's bytes are."""

    file: Path
    offset: int
    length: int
    packed: int | None = None
    """Bytes in the file where it is deflated there; None: as it is."""


def size_of(shape: tuple[int, ...]) -> int:
    """The number of elements; refused where no file could hold them."""
    if len(shape) > MAX_AXES:
        raise Lost(f"it has {len(shape)} axes (limit {MAX_AXES})")
    count = 1
    for size in shape:
        if size < 0:
            raise Lost(f"its shape {shape} has a negative size")
        count *= size
        if count > MAX_ELEMENTS:
            raise Lost(f"its shape has more than {MAX_ELEMENTS} elements")
    return count


def contiguous(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether the strides are those of a plain array."""
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size == 0:
            return True
        if size != 1 and step != expected:
            return False
        expected *= size
    return True


class StoragePlaces:
    """The storages of one file."""

    def __init__(self, file: Path, byteorder: str = "little") -> None:
        self.file = file
        self.byteorder = byteorder
        self.keys: dict[str, PlacedStorage] = {}
        self.base: int | None = 0
        """Where the pickle starts in the file; None: it is deflated, so nothing in it is placed."""

    def of(self, ref: StorageRef) -> PlacedStorage:
        """Where a storage is."""
        root = ref.root if isinstance(ref, ViewRef) else ref
        if root.at is not None:
            if self.base is None:
                raise Lost("it lies in a compressed pickle")
            return PlacedStorage(self.file, self.base + root.at, root.nbytes)
        if root.key == NOWHERE:
            raise Unsupported("written as text")
        if root.key not in self.keys:
            raise Lost(f"its storage {root.key[:40]!r} is not in the file")
        return self.keys[root.key]


def locate_tensor(ref: TensorRef, places: StoragePlaces, name: str, role: str) -> SavedTensor:
    """The range of a tensor."""
    if ref.dtype not in dtypes.SIZES:
        raise Unsupported(ref.dtype)
    item = dtypes.SIZES[ref.dtype]
    count = size_of(ref.size)
    if ref.offset < 0 or any(step < 0 for step in ref.stride):
        raise Lost("its offset or stride is negative")
    reach = 0
    if count:
        reach = 1 + sum((n - 1) * s for n, s in zip(ref.size, ref.stride, strict=True))
    first = ref.offset
    if isinstance(ref.storage, ViewRef):
        first += ref.storage.offset
    order = cast('Literal["little", "big"]', ref.storage.byteorder)
    if places.byteorder == "big":
        order = "big"
    stride = None if contiguous(ref.size, ref.stride) else ref.stride
    if not count:
        return SavedTensor(name, role, ref.dtype, ref.size, Span(places.file, 0, 0))
    place = places.of(ref.storage)
    start, length = first * item, reach * item
    if start + length > place.length:
        raise Lost(f"it ends at byte {start + length} of a storage of {place.length}")
    if place.packed is not None:
        span = Span(place.file, place.offset, place.packed)
        inflate = Inflate(start, length)
        return SavedTensor(name, role, ref.dtype, ref.size, span, stride, order, inflate)
    span = Span(place.file, place.offset + start, length)
    return SavedTensor(name, role, ref.dtype, ref.size, span, stride, order)


def locate_array(ref: ArrayRef, places: StoragePlaces, name: str, role: str) -> SavedTensor:
    """The range of a numpy array inside a pickle."""
    kind = dtypes.of_numpy(ref.dtype.code) if ref.dtype is not None else None
    if ref.dtype is None or kind is None:
        raise Unsupported(ref.dtype.code if ref.dtype is not None else "no dtype")
    count = size_of(ref.shape)
    length = count * dtypes.SIZES[kind]
    if not isinstance(ref.data, (Located, Blob)) or places.base is None:
        raise Unsupported("not placed")
    if len(ref.data) != length:
        raise Lost(f"it has {len(ref.data)} bytes, {length} by its shape")
    stride = None
    if ref.fortran and len(ref.shape) > 1:
        steps, step = [], 1
        for size in ref.shape:
            steps.append(step)
            step *= size
        stride = tuple(steps)
    span = Span(places.file, places.base + ref.data.at, length)
    order: Literal["little", "big"] = "big" if ref.dtype.order == ">" else "little"
    return SavedTensor(name, role, kind, ref.shape, span, stride, order)
