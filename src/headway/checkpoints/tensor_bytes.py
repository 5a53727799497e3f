"""Locates the bytes of the tensors that a pickle describes, checks the range, and reads them."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import numpy as np

from headway.checkpoints import dtypes
from headway.checkpoints.checkpoint_info import Inflate, SavedTensor, Span
from headway.checkpoints.formats.torch_legacy import ViewRef
from headway.checkpoints.pickle_rebuild import NOWHERE, ArrayRef, StorageRef, TensorRef
from headway.checkpoints.pickle_values import Blob, Located
from headway.errors import UnreadableInput

MAX_ELEMENTS = 1 << 46
MAX_AXES = 64
MAX_REPEATED = 1 << 30
"""Bytes of a view that repeats the elements of its storage and is counted as it is."""
MAX_GATHERED = 1 << 24
"""Bytes of a strided tensor gathered at a time."""


class Lost(Exception):
    """The bytes of the tensor are incomplete, or its description is inconsistent."""


class Unsupported(Exception):
    """The element type is not supported."""


@dataclass(frozen=True, slots=True)
class PlacedStorage:
    """The position of a storage's bytes."""

    file: Path
    offset: int
    length: int
    packed: int | None = None
    """Length in the file if it is compressed there; None if it is not."""


def size_of(shape: tuple[int, ...]) -> int:
    """The number of elements. Raises Lost if no file could contain that many."""
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
    """Whether the strides are those of a contiguous array."""
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
        """Where the pickle starts in the file; None if it is compressed."""

    def of(self, ref: StorageRef) -> PlacedStorage:
        """Where a storage is."""
        root = ref.root if isinstance(ref, ViewRef) else ref
        if root.at is not None:
            if self.base is None:
                raise Lost("it is inside a compressed pickle")
            return PlacedStorage(self.file, self.base + root.at, root.nbytes)
        if root.key == NOWHERE:
            raise Unsupported("written as text")
        if root.key not in self.keys:
            raise Lost(f"its storage {root.key[:40]!r} is not in the file")
        return self.keys[root.key]


def locate_tensor(ref: TensorRef, places: StoragePlaces, name: str, role: str) -> SavedTensor:
    """The range of a tensor in the file."""
    if ref.invalid:
        raise Lost(ref.invalid)
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
    size, stride = ref.size, None if contiguous(ref.size, ref.stride) else ref.stride
    if stride is not None and count > reach and count * item > MAX_REPEATED:
        size, stride = (reach,), None  # a view that repeats its elements: each is counted once
    if not count:
        return SavedTensor(name, role, ref.dtype, ref.size, Span(places.file, 0, 0))
    place = places.of(ref.storage)
    start, length = first * item, reach * item
    if start + length > place.length:
        raise Lost(f"it ends at byte {start + length} of a storage of {place.length}")
    if place.packed is not None:
        span = Span(place.file, place.offset, place.packed)
        inflate = Inflate(start, length)
        return SavedTensor(name, role, ref.dtype, size, span, stride, order, inflate)
    span = Span(place.file, place.offset + start, length)
    return SavedTensor(name, role, ref.dtype, size, span, stride, order)


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


# Reading.


def is_one_range(tensor: SavedTensor) -> bool:
    """Whether its elements are one range of the file, uncompressed, in any order of the axes."""
    return tensor.inflate is None and (tensor.stride is None or is_dense(tensor))


def is_dense(tensor: SavedTensor) -> bool:
    """Whether its elements fill its span, in any order of the axes."""
    return tensor.numel * dtypes.SIZES[tensor.dtype] == tensor.nbytes and _distinct(tensor)


def _distinct(tensor: SavedTensor) -> bool:
    assert tensor.stride is not None
    expected = 1
    for step, size in sorted(zip(tensor.stride, tensor.shape, strict=True)):
        if size == 1:
            continue
        if step != expected:
            return False
        expected *= size
    return True


def tensor_bytes(tensor: SavedTensor, file: BinaryIO) -> Iterator[Any]:
    """The bytes of a tensor that is not one range of the file: compressed, or a strided view."""
    if tensor.inflate is not None and (tensor.stride is None or is_dense(tensor)):
        yield from _inflated(tensor, file)
        return
    void: Any = np.dtype(f"V{dtypes.SIZES[tensor.dtype]}")
    for block in _gathered(tensor, tensor.shape, tensor.stride or (), 0, file, void):
        flat: Any = np.ascontiguousarray(block).reshape(-1).view(np.uint8)
        yield memoryview(flat)


def _inflated(tensor: SavedTensor, file: BinaryIO) -> Iterator[bytes]:
    """The uncompressed bytes; raises UnreadableInput if there are too few."""
    assert tensor.inflate is not None
    file.seek(tensor.span.offset)
    unpack = zlib.decompressobj(-15)
    packed, skip, left = tensor.span.length, tensor.inflate.skip, tensor.inflate.length
    try:
        while packed and not unpack.eof and (data := file.read(min(packed, 1 << 16))):
            packed -= len(data)
            while data and not unpack.eof:
                out = unpack.decompress(data, 1 << 18)
                data = unpack.unconsumed_tail
                wanted = out[skip : skip + left]
                skip -= min(skip, len(out))
                left -= len(wanted)
                yield wanted
    except zlib.error as error:
        raise UnreadableInput(
            f"{tensor.span.file}: {tensor.name} cannot be decompressed"
        ) from error
    if left:
        raise UnreadableInput(
            f"{tensor.span.file}: {tensor.name} decompresses to {left} bytes less than expected"
        )


def _gathered(
    tensor: SavedTensor,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    file: BinaryIO,
    form: Any,
) -> Iterator[np.ndarray[Any, Any]]:
    """Arrays that together are the tensor, each from at most `MAX_GATHERED` bytes of the file."""
    item = form.itemsize
    reach = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    count = math.prod(shape)
    if reach * item <= MAX_GATHERED and count * item <= MAX_GATHERED:
        data: Any = np.empty(reach * item, np.uint8)
        if tensor.inflate is not None:
            raise UnreadableInput(
                f"{tensor.span.file}: {tensor.name} is compressed and not contiguous"
            )
        file.seek(tensor.span.offset + offset * item)
        read_exactly(file, memoryview(data), tensor)
        steps = tuple(s * item for s in stride)
        yield np.lib.stride_tricks.as_strided(data.view(form), shape, steps, writeable=False)
        return
    rest = 1 + sum((n - 1) * s for n, s in zip(shape[1:], stride[1:], strict=True))
    rows = MAX_GATHERED // max((math.prod(shape[1:])) * item, 1)
    if stride[0]:
        rows = min(rows, (MAX_GATHERED // item - rest) // stride[0] + 1)
    if rows < 1:
        for index in range(shape[0]):
            yield from _gathered(
                tensor, shape[1:], stride[1:], offset + index * stride[0], file, form
            )
        return
    for index in range(0, shape[0], rows):
        some = (min(rows, shape[0] - index), *shape[1:])
        yield from _gathered(tensor, some, stride, offset + index * stride[0], file, form)


def read_exactly(file: BinaryIO, view: memoryview, tensor: SavedTensor) -> None:
    """Fills the view. Raises UnreadableInput at the end of the file."""
    got = file.readinto(view) or 0  # type: ignore[attr-defined]
    while got < len(view):
        count = file.readinto(view[got:])  # type: ignore[attr-defined]
        if not count:
            raise UnreadableInput(
                f"{tensor.span.file} ended while {tensor.name} was read: the file changed"
            )
        got += count
