"""A batch's content as a short text: the same in every process, run and year.

For batches whose indices nobody knows. Tensors and arrays go in as dtype, shape and bytes, wherever
they are; lists and tuples are the same, and so are mappings in any order. What cannot be looked
into goes in as its type, and the hash says that it is not of the whole batch.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

DEEPEST = 8
"""Nesting that is followed; deeper ones are somebody's object graph."""
BYTES = 16


@dataclass(frozen=True, slots=True)
class ContentHash:
    """What a batch comes to."""

    text: str
    whole: bool
    """Everything in the batch is in it; else two batches that differ may have the same."""


def content_hash(batch: Any) -> ContentHash:
    """The hash of any nested structure. Waits for the device: only for steps known to be bad."""
    found = _Hash()
    found.add(batch, DEEPEST)
    return ContentHash(found.blake.hexdigest(), found.whole)


class _Hash:
    def __init__(self) -> None:
        self.blake = blake2b(digest_size=BYTES)
        self.whole = True

    def add(self, value: Any, depth: int) -> None:
        try:
            self._add(value, depth)
        except Exception:  # a class of the user's, whatever it may do when looked into
            self._opaque(value)

    def _add(self, value: Any, depth: int) -> None:
        if isinstance(value, Tensor):
            self._tensor(value)
        elif isinstance(value, (np.ndarray, np.generic)):
            self._array(np.asarray(value), depth)
        elif (encode := _SIMPLE.get(type(value))) is not None:
            self._say(type(value).__name__, encode(value))
        elif isinstance(value, str):  # and its subclasses, as plain text
            self._say("str", str.__str__(value).encode("utf-8", "surrogatepass"))
        elif isinstance(value, os.PathLike):
            self._say("path", os.fsencode(value))
        elif depth == 0:
            self._opaque(value)
        elif isinstance(value, Mapping):
            self._mapping(dict(value.items()), depth)
        elif isinstance(value, (list, tuple)):
            self._say("sequence", str(len(value)).encode())
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
            self._say("sparse", str(tuple(plain.shape)).encode())
            self._tensor(plain.indices())
            self._tensor(plain.values())
            return
        plain = plain.as_subclass(Tensor).cpu().resolve_conj().resolve_neg()
        flat = plain.reshape(-1)
        if flat.stride(0) != 1:  # a single element may keep any stride
            flat = flat.clone(memory_format=torch.contiguous_format)
        content = flat.view(torch.uint8).numpy()
        self._say("array", _described(str(plain.dtype).removeprefix("torch."), plain.shape))
        self.blake.update(content.data)

    def _array(self, array: np.ndarray[Any, Any], depth: int) -> None:
        if array.dtype.hasobject:
            self.add(array.tolist(), depth - 1)
            return
        name = array.dtype.name if array.dtype.isnative else array.dtype.str
        self._say("array", _described(name, array.shape))
        self.blake.update(array.tobytes())

    def _mapping(self, items: Mapping[Any, Any], depth: int) -> None:
        self._say("mapping", str(len(items)).encode())
        for key in sorted(items, key=_order):
            self.add(key, depth - 1)
            self.add(items[key], depth - 1)

    def _members(self, members: Set[Any], depth: int) -> None:
        self._say("set", str(len(members)).encode())
        parts = [_Hash() for _ in members]
        for part, member in zip(parts, members, strict=True):
            part.add(member, depth - 1)
        for part in sorted(parts, key=lambda part: part.blake.digest()):
            self.whole = self.whole and part.whole
            self.blake.update(part.blake.digest())

    def _opaque(self, value: Any) -> None:
        self.whole = False
        kind = type(value)
        self._say("opaque", f"{kind.__module__}.{kind.__qualname__}".encode())

    def _say(self, kind: str, what: bytes) -> None:
        # Lengths first: no two structures may come to the same bytes.
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
