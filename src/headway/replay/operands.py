"""Tensors described in numbers, and whose they are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from headway.replay.explanation import Operand
from headway.replay.finiteness import plain, real
from headway.replay.op_facts import OpFacts
from headway.replay.scene import Scene
from headway.replay.writes import address
from headway.torch_tools.users_names import users_model, users_path


def describe(tensor: Tensor, name: str, role: str) -> Operand:
    """A plain tensor in numbers."""
    shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    if tensor.numel() == 0:
        return Operand(name, role, shape, dtype)
    if not (tensor.is_floating_point() or tensor.is_complex()):
        low, high = torch.aminmax(tensor.int() if tensor.dtype == torch.bool else tensor)
        zero = int((tensor == 0).sum())
        return Operand(name, role, shape, dtype, float(low), float(high), zero=zero)
    numbers = real(tensor)
    finite = numbers.isfinite()
    nan, inf, zero, good = torch.stack(
        [numbers.isnan().sum(), numbers.isinf().sum(), (numbers == 0).sum(), finite.sum()]
    ).tolist()
    range_: tuple[float | None, float | None] = (None, None)
    if good:
        low = torch.where(finite, numbers, math.inf).amin()
        high = torch.where(finite, numbers, -math.inf).amax()
        range_ = (float(low), float(high))
    return Operand(name, role, shape, dtype, *range_, nan=nan, inf=inf, zero=zero)


def tensor_arguments(
    facts: OpFacts, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, Tensor]]:
    """The tensors an op was given, by the names of its arguments."""
    known = len(facts.arguments)
    for position, value in enumerate(args):
        name = facts.arguments[position] if position < known else f"argument {position}"
        yield from _tensors(name, value)
    for name, value in kwargs.items():
        yield from _tensors(name, value)


def _tensors(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            if isinstance(item, Tensor):
                yield f"{name}[{position}]", item


class Owners:
    """Whose memory it is: a parameter's, a buffer's, the batch's."""

    def __init__(self, scene: Scene) -> None:
        self._of: dict[int, tuple[str, str]] = {}
        self._at: dict[int, tuple[str, str]] = {}
        """By the place in the host's memory: arrays that become tensors in the step."""
        self._given: list[tuple[str, Tensor]] = []
        for position, batch in enumerate(scene.batches):
            prefix = f"batch {position}" if len(scene.batches) > 1 else "batch"
            for keys, tensor in batch_tensors(batch):
                name = prefix + "".join(f"[{key!r}]" for key in keys)
                self._own(tensor, "batch", name)
                self._given.append((name, tensor))
                if tensor.device.type == "cpu" and tensor.layout is torch.strided:
                    self._at[tensor.untyped_storage().data_ptr()] = ("batch", name)
        for name, tensor in scene.data.items():
            self._own(tensor, "data", name)
        for number, model in enumerate(scene.models):
            prefix = f"model{number}." if len(scene.models) > 1 else ""
            for path, buffer in users_model(model).named_buffers():
                self._own(buffer, "buffer", prefix + users_path(path))
            for path, parameter in users_model(model).named_parameters():
                name = scene.names.get(id(parameter), prefix + users_path(path))
                self._own(parameter, "weight", name)
        for optimizer in scene.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if id(parameter) in scene.names:
                        self._own(parameter, "weight", scene.names[id(parameter)])

    def of(self, tensor: Tensor) -> tuple[str, str] | None:
        """(role, name) of what a plain tensor shares its memory with."""
        known = self._of.get(address(tensor))
        if known is None and tensor.device.type == "cpu":
            known = self._at.get(tensor.untyped_storage().data_ptr())
        return known

    def original(self, tensor: Tensor) -> str | None:
        """The name of what is bad at the very same places in the batch: the tensor is a copy."""
        for name, given in self._given:
            if given.shape == tensor.shape and given.is_floating_point():
                alike = (torch.isnan, torch.isinf)
                if all(torch.equal(what(given).cpu(), what(tensor).cpu()) for what in alike):
                    return name
        return None

    def _own(self, tensor: Tensor, role: str, name: str) -> None:
        local = None if is_lazy(tensor) else plain(tensor.detach())
        if local is not None and local.numel():
            self._of[address(local)] = (role, name)


def batch_tensors(batch: Any) -> list[tuple[tuple[Any, ...], Tensor]]:
    """The tensors of a batch, and its arrays as such; of one that is an object, its attributes."""
    found = list(_numbers_in(batch))
    if not found and hasattr(batch, "__dict__"):
        found = list(_numbers_in(vars(batch)))
    return found


def _numbers_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, np.ndarray):
        with suppress(TypeError, ValueError):  # of a dtype torch has not, or read backwards
            if value.flags.writeable:
                yield path, torch.from_numpy(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers_in(item, (*path, key))
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            yield from _numbers_in(item, (*path, position))
