"""Nested states of tensors and plain data: walks them, saves them with a checksum, loads them
without running code. And everything that an optimizer holds, restored in place.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import types
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor, nn

# What `torch.load(..., weights_only=True)` takes back, and what it refuses.

SIMPLE_TYPES = (bool, int, float, complex, str, bytes)
MAX_INT_BITS = 2000
"""Bits of an integer that loads safely; longer ones have an opcode that torch does not know."""


def loads_safely(value: Any) -> bool:
    """Whether torch would load a value of one of the simple kinds. It does not load all of them."""
    if type(value) is int:
        return value.bit_length() <= MAX_INT_BITS
    if type(value) is bytes and not value:
        return False
    return type(value) is not complex or _complex_numbers_load()


@cache
def _complex_numbers_load() -> bool:
    return is_loadable(1j)


def load_safely(file: Any, map_location: str | None = None) -> Any:
    """Tensors and plain data, and nothing that could run."""
    with warnings.catch_warnings():
        # Torch 2.14 says so at every sparse tensor: that it is looked through is what we want.
        warnings.filterwarnings("ignore", message="Validating sparse tensor invariants")
        return torch.load(file, weights_only=True, map_location=map_location)


def is_loadable(value: Any) -> bool:
    """Whether a value can be stored and loaded, which is tried."""
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        load_safely(file)
    except Exception:  # whatever torch raises: it cannot be stored
        return False
    return True


# Walking through nested states: dicts and lists with tensors as leaves.

StatePath = tuple[Any, ...]
"""The keys and positions that lead to a tensor."""


def find_tensors(value: Any, path: StatePath = ()) -> Iterator[tuple[StatePath, Tensor]]:
    """Every tensor of a nested state."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from find_tensors(item, (*path, key))
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            yield from find_tensors(item, (*path, position))


def map_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """The same nested state, in plain dicts and lists, with every tensor replaced."""
    return map_with_paths(value, lambda tensor, path: change(tensor))


def map_with_paths(
    value: Any, change: Callable[[Tensor, StatePath], Any], path: StatePath = ()
) -> Any:
    """The same; `change` also learns where the tensor is."""
    if isinstance(value, Tensor):
        return change(value, path)
    if isinstance(value, Counter):
        return value
    if isinstance(value, Mapping):
        return {key: map_with_paths(item, change, (*path, key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [map_with_paths(item, change, (*path, at)) for at, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    return value


def make_loadable(value: Any) -> Any:
    """Only what loads safely: functions and objects of unknown classes become None, and so do the
    few numbers and bytes that torch would not load."""
    if value is None or isinstance(value, Tensor):
        return value
    if type(value) in SIMPLE_TYPES:
        return value if loads_safely(value) else None
    if isinstance(value, Counter):  # a milestone may be there twice, and schedulers count on it
        return Counter({make_loadable(key): int(count) for key, count in value.items()})
    if isinstance(value, Mapping):
        return {make_loadable(key): make_loadable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [make_loadable(item) for item in value]
    if isinstance(value, tuple):
        return tuple([make_loadable(item) for item in value])
    kind: Any
    for kind in SIMPLE_TYPES:  # NumPy's float64 is a float, and no plain one
        if isinstance(value, kind):
            return make_loadable(str.__str__(value) if isinstance(value, str) else kind(value))
    scalar = hasattr(value, "item") and getattr(value, "ndim", None) == 0
    found = value.item() if scalar else None
    return make_loadable(found) if type(found) in SIMPLE_TYPES else None


# Files of tensors and plain data whose length and checksum are known, and stay on the disk.

# Snapshots and incidents are made of them. A *seal* is `{"bytes": …, "sha256": …}`.

_NAME = re.compile(r"([0-9]+)-step([0-9]+)")


def numbered_folders(home: Path) -> list[tuple[int, int, Path]]:
    """(number, step, folder) of the folders `<n>-step<k>`, the newest first."""
    try:
        names = os.listdir(home)
    except OSError:
        return []
    matches = ((_NAME.fullmatch(name), name) for name in names)
    return sorted(((int(m[1]), int(m[2]), home / name) for m, name in matches if m), reverse=True)


def save_file(path: Path, content: Any) -> dict[str, Any]:
    """Write tensors and plain data, and wait for the disk; the seal of the file.

    Raises OSError, or torch's RuntimeError where the disk is full.
    """
    with open(path, "wb") as file:
        hashing = _Hashing(file)
        torch.save(content, cast(BinaryIO, hashing))
        _sync(file)
    return {"bytes": hashing.count, "sha256": hashing.digest.hexdigest()}


def load_file(path: Path) -> Any:
    """Tensors and plain data, and nothing that could run."""
    return load_safely(path, map_location="cpu")


def write_synced_text(path: Path, text: str) -> None:
    """Write a text, and wait for the disk."""
    with open(path, "wb") as file:
        file.write(text.encode("utf-8", errors="replace"))
        _sync(file)


def compute_seal(path: Path, expected: int | None = None) -> dict[str, Any]:
    """The seal of a file; only its length where that is not the expected one."""
    length = path.stat().st_size
    if expected is not None and length != expected:
        return {"bytes": length}
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return {"bytes": length, "sha256": digest.hexdigest()}


def sync_folder(folder: Path) -> None:
    """Names, too, are only on disk after this."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


class _Hashing:
    """A file that knows the checksum of what was written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.count = 0

    def write(self, data: Any) -> int:
        self.digest.update(data)
        self.count += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


# Everything that an optimizer holds, restored in place.

_LEFT_ALONE = (
    *(type, types.ModuleType, types.FunctionType, types.MethodType),
    *(types.BuiltinFunctionType, types.GeneratorType),
    *(bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device),
)


class OptimizerSnapshot:
    """The weights of an optimizer and everything that it holds, at one moment.

    Objects keep their identity: containers are refilled, attributes set, tensors written to.
    """

    def __init__(self, optimizer: Any) -> None:
        self._undo: list[Callable[[], None]] = []
        self._parameters = optimized_parameters(optimizer)
        seen: dict[int, Any] = {}
        waiting: deque[Any] = deque((optimizer, *self._parameters))
        while waiting:
            item = waiting.popleft()
            if not isinstance(item, _LEFT_ALONE) and id(item) not in seen:
                seen[id(item)] = item  # kept, so that its identity stays its own
                waiting.extend(self._save(item))

    def went_bad(self) -> bool:
        """Whether the step left a weight non-finite."""
        return not all(bool(torch.isfinite(item).all()) for item in self._parameters)

    @torch.no_grad()
    def put_back(self) -> None:
        """As if the step had never been tried."""
        for undo in reversed(self._undo):
            undo()

    def _save(self, item: Any) -> Iterable[Any]:
        """Save what is directly in an object; what else is to be saved."""
        if isinstance(item, Tensor):
            return self._save_tensor(item)
        if isinstance(item, dict):
            return self._save_entries(item)
        if isinstance(item, (list, set, deque)):
            return self._save_items(item)
        if isinstance(item, (tuple, frozenset)):
            return item
        if isinstance(item, nn.Module):
            return (*item.parameters(), *item.buffers())
        if isinstance(item, torch.Generator):
            self._undo.append(partial(_set_state, item, item.get_state()))
            return ()
        return self._save_attributes(item)

    def _save_entries(self, item: dict[Any, Any]) -> Sequence[Any]:
        content = dict(item)

        def undo() -> None:
            item.clear()
            item.update(content)

        self._undo.append(undo)
        return (*content, *content.values())

    def _save_items(self, item: Any) -> Sequence[Any]:
        content = list(item)

        def undo() -> None:
            item.clear()
            (item.update if isinstance(item, set) else item.extend)(content)

        self._undo.append(undo)
        return content

    def _save_attributes(self, item: Any) -> Iterator[Any]:
        attributes = getattr(item, "__dict__", None)
        if not isinstance(attributes, dict):
            return
        # Hooks are nothing that a step changes; ours may be removed within it.
        content = {k: v for k, v in attributes.items() if not k.startswith("_optimizer_")}

        def undo() -> None:
            for name in [k for k in attributes if not k.startswith("_optimizer_")]:
                if name not in content:
                    del attributes[name]
            attributes.update(content)

        self._undo.append(undo)
        yield from content.values()

    def _save_tensor(self, tensor: Tensor) -> Sequence[Any]:
        flatten = getattr(tensor, "__tensor_flatten__", None)
        if flatten is not None:  # quantised state: its parts are tensors themselves
            return [getattr(tensor, name) for name in flatten()[0]]
        if tensor.grad_fn is not None:
            return ()
        memory, value = tensor.data, tensor.detach().clone()

        def undo() -> None:
            if tensor.layout is torch.strided and tensor.data_ptr() != memory.data_ptr():
                tensor.data = memory  # the step gave it other memory
            tensor.copy_(value)

        self._undo.append(undo)
        return ()


def _set_state(generator: torch.Generator, state: Tensor) -> None:
    generator.set_state(state)


def optimized_parameters(optimizer: Any) -> list[Tensor]:
    """The parameters of all groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
