"""Unpacks a batch in the form that the training loop expects: all rows, devices, classes.

Classes are never stored. They come from a batch of the user's loader, whose containers are copied
and filled.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from headway.errors import UsageError
from headway.explain.incident_file.packing import Packed, format_path
from headway.torch_adapters.nested_state import StatePath


def needs_template(packed: Packed) -> bool:
    """Whether the plain form lacks classes or values of the original."""
    return bool(packed.typed or packed.left)


def unpack(packed: Packed, template: Any = None) -> Any:
    """The batch, with the classes of `template`, another batch of the same loader, if given.

    Values that could not be stored come from the template, or are None. Raises UsageError if the
    two do not match.
    """
    value = _Reviver(packed).revive(packed.data, ())
    if template is None:
        return value
    return _Filler({path for path, _ in packed.left}).fill(template, value, ())


class _Reviver:
    """Restores the number of rows, arrays, and devices."""

    def __init__(self, packed: Packed) -> None:
        self._rows = packed.rows
        self._cut = set(packed.cut)
        self._arrays = set(packed.arrays)
        self._blobs = set(packed.blobs)
        self._devices = dict(packed.devices)

    def revive(self, value: Any, path: StatePath) -> Any:
        if isinstance(value, Tensor):
            return self._tensor(value, path)
        if isinstance(value, dict):
            return {key: self.revive(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            items = [self.revive(item, (*path, at)) for at, item in enumerate(value)]
            if path in self._cut:
                items = [items[at] for at in self._order()]
            return items if isinstance(value, list) else tuple(items)
        return value

    def _tensor(self, tensor: Tensor, path: StatePath) -> Any:
        if path in self._blobs:
            return bytes(tensor.tolist())
        asks = tensor.requires_grad
        found = tensor.detach()
        if path in self._cut:
            found = found.index_select(0, torch.tensor(self._order()))
        else:
            found = found.clone()  # a loop may modify the batch, which may be read again
        if path in self._arrays:
            return found.numpy()
        return _moved(found, self._devices.get(path)).requires_grad_(asks)

    def _order(self) -> list[int]:
        """For each row of the batch, the index of the stored row: itself, or a replacement."""
        assert self._rows is not None
        chosen = self._rows.chosen
        known = {row: at for at, row in enumerate(chosen)}
        return [known.get(row, row % len(chosen)) for row in range(self._rows.size)]


class _Filler:
    def __init__(self, left: set[StatePath]) -> None:
        self._left = left

    def fill(self, template: Any, value: Any, path: StatePath) -> Any:
        if path in self._left:
            return template
        if value is None:
            return None
        if isinstance(template, Tensor) and isinstance(value, Tensor):
            return _like(template, value)
        if isinstance(template, Mapping) and isinstance(value, dict):
            return self._mapping(template, value, path)
        if dataclasses.is_dataclass(template) and isinstance(value, dict):
            return self._dataclass(template, value, path)
        if isinstance(template, (list, tuple)) and isinstance(value, (list, tuple)):
            return self._sequence(template, value, path)
        containers = (Tensor, Mapping, list, tuple)
        if isinstance(template, containers) or isinstance(value, containers):
            raise _misfit(path, value, template)
        return value

    def _mapping(self, template: Mapping[Any, Any], value: dict[Any, Any], path: StatePath) -> Any:
        items = {
            key: self.fill(template[key], item, (*path, key)) if key in template else item
            for key, item in value.items()
        }
        if type(template) is dict:
            return items
        made: Any = copy.copy(template)
        try:
            for key in [key for key in template if key not in items]:
                del made[key]
            for key, item in items.items():
                made[key] = item
        except Exception:  # an immutable mapping, with its own exception type
            return items
        return made

    def _dataclass(self, template: Any, value: dict[Any, Any], path: StatePath) -> Any:
        made = copy.copy(template)
        for name, item in value.items():
            if not hasattr(template, name):
                raise _misfit((*path, name), item, template)
            object.__setattr__(made, name, self.fill(getattr(template, name), item, (*path, name)))
        return made

    def _sequence(self, template: Sequence[Any], value: Sequence[Any], path: StatePath) -> Any:
        if isinstance(template, tuple) and len(template) != len(value):
            raise _misfit(path, value, template)
        # Lists of samples may differ in length.
        items = [
            self.fill(template[min(at, len(template) - 1)], item, (*path, at)) if template else item
            for at, item in enumerate(value)
        ]
        if hasattr(template, "_fields"):
            return type(template)(*items)
        try:
            return type(template)(items)  # type: ignore[call-arg]
        except TypeError:
            return items


def _like(template: Tensor, value: Tensor) -> Tensor:
    moved = _moved(value.detach(), str(template.device)).requires_grad_(value.requires_grad)
    if type(template) in (Tensor, torch.nn.Parameter):
        return moved
    made = moved.as_subclass(type(template))
    made.__dict__.update(template.__dict__)
    return made


def _moved(tensor: Tensor, device: str | None) -> Tensor:
    """On that device, if it exists here."""
    if device is None or str(tensor.device) == device:
        return tensor
    try:
        return tensor.to(device)
    except (RuntimeError, AssertionError, NotImplementedError):
        return tensor


def _misfit(path: StatePath, value: Any, template: Any) -> UsageError:
    return UsageError(
        f"the stored batch does not match the loader: {format_path(path)} was "
        f"{_kind(value)} and is {_kind(template)}; replay with the original loader, "
        "or with --call"
    )


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"
