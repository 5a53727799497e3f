"""Putting a user's own objects back as they were: lists, counters, meters, averages.

When a loop's body is run once more to find out what went wrong, it appends to the same lists,
counts in the same objects, and updates the same moving average of the weights. What it can reach
through its variables is remembered before, and put back after: the content of containers, the plain
attributes of objects, and tensors that were changed in place.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, Sampler

DEEPEST = 4
"""Containers within containers are followed so far: `history["train"]["loss"]` is two."""
MOST_LOOKED_THROUGH = 1_000
"""In a longer list or dict, only the content is put back and not what its members hold."""
MOST_OBJECTS = 20_000
MOST_BYTES = 8 << 30
"""Of tensors that are copied, into host memory; what is beyond is left as the body leaves it."""
STATISTIC_BYTES = 1 << 16
"""Up to this size a tensor may change unseen: BatchNorm's kernel leaves the version as it is."""

_CONTAINERS = (list, dict, set, deque, bytearray)
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_TORCHS = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
"""Containers of a module that hold what is trained."""
_LEFT_ALONE = (
    Optimizer,
    DataLoader,
    Dataset,
    Sampler,
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.GeneratorType,
)


class PutBack:
    """What some objects held at one moment."""

    def __init__(
        self,
        objects: Iterable[Any],
        trained: Sequence[nn.Module] = (),
        *,
        tensors: bool = True,
        deepest: int = DEEPEST,
    ) -> None:
        """`trained`: models whose tensors somebody else takes care of; `tensors`: of the others
        nobody does."""
        self._undo: list[Callable[[], None]] = []
        self._seen: dict[int, Any] = {}
        self._bytes = 0 if tensors else MOST_BYTES
        self._trained = {id(module) for model in trained for module in model.modules()}
        # Near ones first: what is reached by two ways is followed from the shorter one.
        self._waiting = deque((item, deepest) for item in objects)
        while self._waiting:
            self._remember(*self._waiting.popleft())

    def __call__(self) -> None:
        """Put everything back."""
        for undo in self._undo:
            undo()

    def _remember(self, value: Any, depth: int) -> None:
        if isinstance(value, (*_PLAIN, *_LEFT_ALONE)):
            return
        if id(value) in self._seen or depth == 0 or len(self._seen) >= MOST_OBJECTS:
            return
        self._seen[id(value)] = value  # kept, so that the identity stays its own
        if isinstance(value, Tensor):
            self._remember_tensor(value)
        elif isinstance(value, (*_CONTAINERS, tuple)):
            self._remember_container(value, depth)
        elif isinstance(value, nn.Module):
            for module in value.modules():
                self._remember_attributes(module, 2, only=_CONTAINERS)
                if id(module) not in self._trained:
                    self._remember_tensors_of(module)
        else:
            self._remember_attributes(value, depth)

    def _remember_container(self, value: Any, depth: int) -> None:
        content: Any = dict(value) if isinstance(value, dict) else list(value)
        if not isinstance(value, tuple):
            self._undo.append(lambda: _refill(value, content))
        if len(content) <= MOST_LOOKED_THROUGH:
            for item in content.values() if isinstance(content, dict) else content:
                self._waiting.append((item, depth - 1))

    def _remember_attributes(self, owner: Any, depth: int, only: Any = object) -> None:
        attributes = getattr(owner, "__dict__", None)
        if not isinstance(attributes, dict):
            return
        plain = {name: v for name, v in attributes.items() if isinstance(v, (*_PLAIN, tuple))}
        self._undo.append(lambda: _rebind(attributes, plain))
        for name, item in [*attributes.items()]:
            if isinstance(item, only) and name not in _TORCHS:
                self._waiting.append((item, depth - 1))

    def _remember_tensors_of(self, module: nn.Module) -> None:
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None:
                self._remember(tensor, 1)

    def _remember_tensor(self, tensor: Tensor) -> None:
        """Results of the step that the variables still hold are not worth a copy."""
        if tensor.grad_fn is not None or tensor.layout is not torch.strided:
            return
        if type(tensor) not in (Tensor, nn.Parameter) or tensor.is_inference():
            return
        self._bytes += tensor.nbytes
        if self._bytes > MOST_BYTES:
            return
        version, kept = tensor._version, tensor.detach().to("cpu", copy=True)

        @torch.no_grad()
        def undo() -> None:
            may_have = tensor._version != version or tensor.nbytes <= STATISTIC_BYTES
            if may_have and not torch.equal(tensor.cpu(), kept):
                tensor.copy_(kept)

        self._undo.append(undo)


def _refill(container: Any, content: Any) -> None:
    if isinstance(container, (list, bytearray)):
        if len(container) != len(content) or any(
            now is not before for now, before in zip(container, content, strict=True)
        ):
            container[:] = content
    else:
        container.clear()
        extend = container.extend if isinstance(container, deque) else container.update
        extend(content)


def _rebind(attributes: dict[str, Any], plain: dict[str, Any]) -> None:
    for name, value in plain.items():
        if name not in attributes or attributes[name] is not value:
            attributes[name] = value
