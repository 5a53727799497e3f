"""Packs batches and states as plain containers and host tensors, which load without running code.

Objects of other classes become None and are listed. With `ChosenRows`, only these samples are
packed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from headway.torch_adapters.compat import is_wrapper_subclass
from headway.torch_adapters.nested_state import StatePath, is_loadable, loads_safely
from headway.torch_adapters.tensor_values import sparse_values

DEEPEST = 20
"""Maximum nesting; deeper containers are object graphs or contain themselves."""
_SIMPLE = (bool, int, float, complex, str, bytes)
_KEYS = (bool, int, float, str, type(None))


@dataclass(frozen=True, slots=True)
class ChosenRows:
    """The samples of a batch to pack."""

    size: int
    """Number of samples in the batch."""
    chosen: tuple[int, ...]


@dataclass(slots=True)
class Packed:
    """A stored batch or state, and what is needed to restore it."""

    data: Any = None
    rows: ChosenRows | None = None
    cut: list[StatePath] = field(default_factory=list)
    """Tensors and lists that contain the chosen rows only."""
    arrays: list[StatePath] = field(default_factory=list)
    """Tensors that were NumPy arrays."""
    blobs: list[StatePath] = field(default_factory=list)
    """Tensors that were bytes, which torch does not load if empty."""
    devices: list[tuple[StatePath, str]] = field(default_factory=list)
    """Tensors that were not on the CPU."""
    typed: list[tuple[StatePath, str]] = field(default_factory=list)
    """Containers and tensors of other classes, stored as plain ones."""
    left: list[tuple[StatePath, str]] = field(default_factory=list)
    """Values that could not be stored, and why; None replaces them."""

    def to_plain(self) -> dict[str, Any]:
        """The form that is written to the file."""
        kept = {item.name: getattr(self, item.name) for item in fields(self)}
        rows = self.rows
        kept["rows"] = None if rows is None else {"size": rows.size, "chosen": list(rows.chosen)}
        return kept

    @classmethod
    def from_plain(cls, kept: Mapping[str, Any]) -> Packed:
        rows = kept["rows"]
        found = None if rows is None else ChosenRows(int(rows["size"]), tuple(rows["chosen"]))
        return cls(**{**kept, "rows": found})


def pack(value: Any, rows: ChosenRows | None = None) -> Packed:
    """The value in plain containers; tensors on the CPU, without copies if possible."""
    packer = _Packer(Packed(rows=rows))
    packer.packed.data = packer.pack(value, ())
    return packer.packed


def size_of(value: Any) -> int:
    """Bytes of the tensors in it; a tensor that occurs twice counts once."""
    return sum({_memory_of(tensor): _bytes_of(tensor) for tensor in _tensors(value)}.values())


def leading_size(value: Any) -> int | None:
    """Number of samples in a batch: the first dimension of its first tensor."""
    for tensor in _tensors(value):
        if tensor.ndim > 0:
            return int(tensor.shape[0])
    return None


def format_path(path: StatePath, root: str = "batch") -> str:
    """A path as an expression: `batch['x'][0]`."""
    return root + "".join(f"[{key!r}]" for key in path)


def items_of(value: Any) -> Iterator[tuple[Any, Any]] | None:
    """(key or index, item) of a container; None for other values."""
    if isinstance(value, Mapping):
        return iter(list(value.items()))
    if is_dataclass(value) and not isinstance(value, type):
        names = [item.name for item in fields(value)]
        return iter([(name, getattr(value, name)) for name in names if hasattr(value, name)])
    if isinstance(value, (list, tuple)):
        return iter(list(enumerate(value)))
    return None


class _Packer:
    def __init__(self, packed: Packed) -> None:
        self.packed = packed
        self._hosted: dict[Any, tuple[Tensor, Tensor]] = {}
        """(original, CPU copy); the original is kept alive so that its address is not reused."""

    def pack(self, value: Any, path: StatePath) -> Any:
        if value is None or type(value) in _SIMPLE:
            return self._simple(value, path)
        if isinstance(value, Tensor):
            return self._tensor(value, path)
        if _is_array(value):
            return self._array(value, path)
        if len(path) >= DEEPEST:
            return self._leave(path, "nested too deeply")
        items = items_of(value)
        if items is not None:
            return self._container(value, items, path)
        kind: Any
        for kind in _SIMPLE:  # np.float64 is a subclass of float
            if isinstance(value, kind):
                raw = str.__str__(value) if isinstance(value, str) else kind(value)
                return self._simple(raw, path)
        if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
            return self._simple(value.item(), path)
        return self._leave(path, f"of the class {_class_of(value)}")

    def _simple(self, value: Any, path: StatePath) -> Any:
        if type(value) is int and not loads_safely(value):
            return self._leave(path, "an integer with too many digits")
        if value is not None and type(value) not in _SIMPLE:
            return self._leave(path, f"of the class {_class_of(value)}")
        if isinstance(value, complex) and not loads_safely(value):
            return self._leave(path, "a complex number, which this torch does not load safely")
        if isinstance(value, bytes):
            self.packed.blobs.append(path)
            return torch.frombuffer(bytearray(value), dtype=torch.uint8) if value else _nothing()
        return value

    def _container(self, value: Any, items: Iterator[tuple[Any, Any]], path: StatePath) -> Any:
        if type(value) not in (dict, list, tuple):
            self.packed.typed.append((path, _class_of(value)))
        rows = self.packed.rows
        if isinstance(value, (list, tuple)):
            if rows is not None and _one_per_sample(value, rows):
                self.packed.cut.append(path)
                within = _Packer(Packed())  # a sample is stored completely
                kept = [within.pack(value[row], (*path, at)) for at, row in enumerate(rows.chosen)]
                self._adopt(within.packed)
            else:
                kept = [self.pack(item, (*path, at)) for at, item in items]
            return kept if isinstance(value, list) else tuple(kept)
        return {key: self.pack(item, (*path, key)) for key, item in items if self._fit(key, path)}

    def _adopt(self, found: Packed) -> None:
        for name in ("arrays", "blobs", "devices", "typed", "left"):
            getattr(self.packed, name).extend(getattr(found, name))

    def _fit(self, key: Any, path: StatePath) -> bool:
        fit = all(type(part) in _KEYS for part in (key if type(key) is tuple else (key,)))
        if not fit:
            self._leave((*path, f"{key!r:.40}"), f"under a key of the class {_class_of(key)}")
        return fit

    def _array(self, value: Any, path: StatePath) -> Any:
        try:
            tensor = torch.from_numpy(value.copy())
        except (TypeError, ValueError) as error:
            return self._leave(path, f"an array of {value.dtype} ({error})")
        self.packed.arrays.append(path)
        return self._tensor(tensor, path)

    def _tensor(self, tensor: Tensor, path: StatePath) -> Any:
        if tensor.device.type == "meta":
            return self._leave(path, "a tensor without values (meta)")
        if is_wrapper_subclass(tensor):
            return self._leave(path, f"a tensor of the class {_class_of(tensor)}")
        if type(tensor) not in (Tensor, torch.nn.Parameter):
            self.packed.typed.append((path, _class_of(tensor)))
        if not _can_be_stored(tensor):
            return self._leave(path, f"a tensor of {tensor.dtype}, {tensor.layout}")
        rows = self.packed.rows
        if rows is not None and tensor.ndim > 0:
            if tensor.shape[0] != rows.size:
                return self._leave(path, "its rows are not the samples of the batch")
            self.packed.cut.append(path)
            chosen = torch.tensor(rows.chosen, device=tensor.device)
            with torch.no_grad():
                tensor = tensor.index_select(0, chosen).requires_grad_(_asks_gradient(tensor))
        if tensor.device.type != "cpu":
            self.packed.devices.append((path, str(tensor.device)))
        return self._on_host(tensor)

    def _on_host(self, tensor: Tensor) -> Tensor:
        key = _memory_of(tensor)
        if key not in self._hosted:
            plain = _bare(tensor).resolve_conj().resolve_neg().cpu()
            if plain.layout is torch.strided and plain.untyped_storage().nbytes() > plain.nbytes:
                plain = plain.clone()  # torch would save the whole storage of a view
            self._hosted[key] = tensor, plain.requires_grad_(_asks_gradient(tensor))
        return self._hosted[key][1]

    def _leave(self, path: StatePath, why: str) -> Any:
        """Record the reason; returns None, the replacement."""
        self.packed.left.append((path, why))
        return None


def _bare(tensor: Tensor) -> Tensor:
    """Without graph and subclass."""
    found = tensor.detach()
    return found if type(found) is Tensor else found.as_subclass(Tensor)


def _nothing() -> Tensor:
    return torch.empty(0, dtype=torch.uint8)


def _asks_gradient(tensor: Tensor) -> bool:
    """Whether to record requires_grad: for a batch (adversarial training), not for a parameter."""
    return tensor.requires_grad and tensor.is_leaf and type(tensor) is not torch.nn.Parameter


def _one_per_sample(value: Sequence[Any], rows: ChosenRows) -> bool:
    """Whether a list has one item per sample, unlike a pair (x, y) with a batch of two."""
    if len(value) != rows.size or hasattr(value, "_fields"):
        return False
    return not any(
        isinstance(item, Tensor) and item.ndim > 0 and item.shape[0] == rows.size for item in value
    )


def _tensors(value: Any, depth: int = 0) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif depth < DEEPEST:
        for _, item in items_of(value) or ():
            yield from _tensors(item, depth + 1)


def _bytes_of(tensor: Tensor) -> int:
    if tensor.layout is torch.strided:
        return tensor.nbytes
    values = sparse_values(tensor)
    return values.nbytes + 2 * torch.int64.itemsize * values.shape[0]


def _memory_of(tensor: Tensor) -> Any:
    if tensor.layout is not torch.strided or tensor.numel() == 0 or tensor.data_ptr() == 0:
        return id(tensor)
    shape = (tensor.shape, tensor.stride(), tensor.dtype, _asks_gradient(tensor))
    return (tensor.data_ptr(), tensor.device, *shape, tensor.is_conj(), tensor.is_neg())


def _can_be_stored(tensor: Tensor) -> bool:
    if tensor.layout is torch.strided:
        return _dtype_can_be_stored(tensor.dtype)
    return is_loadable(_bare(tensor))


@cache
def _dtype_can_be_stored(dtype: torch.dtype) -> bool:
    # Which dtypes can be saved and loaded safely depends on the torch version.
    try:
        return is_loadable(torch.empty(1, dtype=dtype))
    except (RuntimeError, TypeError, NotImplementedError):
        return False


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray


def _class_of(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else _qualified(kind)


def _qualified(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
