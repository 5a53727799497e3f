"""Which line of the user's own optimizer writes to the weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast.preflight.taped_ops import treatment_of


class WriteLines(TorchDispatchMode):
    """In force during one step; the last line that wrote to one of the weights counts."""

    def __init__(self, weights: Sequence[Tensor], place: Callable[[], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.line: Any = None
        self._memory = {weight.untyped_storage()._cdata for weight in weights}
        self._place = place
        self._pushed = False

    def begin(self) -> None:
        """Look, unless somebody else's mode is in force."""
        if torch._C._len_torch_dispatch_stack() == 0:
            self.__enter__()  # type: ignore[no-untyped-call]
            self._pushed = True

    def end(self) -> None:
        """Look no more."""
        if self._pushed and torch._C._len_torch_dispatch_stack() == 1:
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._pushed = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if self._pushed and treatment_of(func).mutated:
            written = args[0] if args else None
            first = written[0] if isinstance(written, (list, tuple)) and written else written
            if _memory_of(first) in self._memory:
                self.line = self._place()
        return func(*args, **(kwargs or {}))


def _memory_of(value: Any) -> int | None:
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return None
    memory: int = value.untyped_storage()._cdata
    return memory
