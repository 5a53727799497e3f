"""Memory that is older than a pass, put back after the pass has written to it.

A loop's body does not only train: it moves a teacher after its student, fills a bank of keys, adds
up losses in a tensor. Whoever runs it once more must not move, fill or add once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from headway.replay.finiteness import plain
from headway.replay.op_facts import facts_of
from headway.replay.operands import tensor_arguments
from headway.replay.writes import address

MOST_KEPT = 1 << 30
"""Bytes of one tensor; a larger one is left as the pass leaves it."""

QUIETLY = ("running_mean", "running_var")
"""What batch normalisation changes without saying so in its schema."""


class Written(TorchDispatchMode):
    """In force during a pass; afterwards, `put_back`."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._young: set[int] = set()
        self._kept: list[tuple[Tensor, Tensor]] = []
        self._known: set[tuple[object, ...]] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        with torch._C.DisableTorchFunction():  # a remedy's mode has had its say above autograd
            return self._look_and_run(func, args, kwargs or {})

    def _look_and_run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        facts = facts_of(func)
        given = list(tensor_arguments(facts, args, kwargs))
        mutated = facts.mutated or (QUIETLY if facts.aten.endswith("batch_norm") else ())
        if mutated and not facts.collective:
            for name, tensor in given:
                if name.partition("[")[0] in mutated:
                    self._keep(plain(tensor))
        result = func(*args, **kwargs)
        if not (facts.mutated or facts.view or facts.constant):
            old = {address(own) for _, tensor in given if (own := plain(tensor)) is not None}
            self._young.update({address(tensor) for tensor in _tensors(result)} - old)
        return result

    @torch.no_grad()
    def put_back(self) -> None:
        """Everything as it was before the pass."""
        for tensor, value in reversed(self._kept):  # of two that overlap, the first knew more
            if _is_there(tensor):
                tensor.copy_(value)
        self._kept.clear()
        self._known.clear()

    def _keep(self, tensor: Tensor | None) -> None:
        if tensor is None or tensor.is_inference() or address(tensor) in self._young:
            return
        key = (address(tensor), tensor.storage_offset(), tensor.shape, tensor.stride())
        if key not in self._known and tensor.nbytes <= MOST_KEPT:
            self._known.add(key)
            own = tensor.detach()
            self._kept.append((own, own.clone()))


def _is_there(tensor: Tensor) -> bool:
    """Whether its memory has not been given up meanwhile: FSDP frees what it has gathered."""
    if tensor.numel() == 0:
        return False
    reach = sum((n - 1) * abs(by) for n, by in zip(tensor.shape, tensor.stride(), strict=True))
    needed = (tensor.storage_offset() + reach + 1) * tensor.element_size()
    return tensor.untyped_storage().nbytes() >= needed


def _tensors(result: Any) -> Iterator[Tensor]:
    if isinstance(result, Tensor):
        own = plain(result)
        if own is not None:
            yield own
    elif isinstance(result, (list, tuple)):
        for item in result:
            yield from _tensors(item)
