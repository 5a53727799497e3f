"""Half precision computed in float32: for models and inputs that are half themselves.

Weights stay half; where they are used, a float32 copy of them is, so that gradients still reach
them. Whatever asks for half gets float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headway.replay.remedies.opened import OpeningMode, calling_back
from headway.replay.remedies.precision import HALVES
from headway.replay.remedies.rebuilt import rebuilt

_TO_HALF = {"half", "bfloat16"}
_ALIASES = {
    "__getitem__", "as_strided", "chunk", "contiguous", "cpu", "cuda", "detach", "expand",
    "expand_as", "flatten", "movedim", "narrow", "permute", "reshape", "select", "split", "squeeze",
    "swapaxes", "t", "tensor_split", "transpose", "unbind", "unflatten", "unsqueeze", "view",
    "view_as",
}  # fmt: skip
"""What they give is the same memory: whoever writes to it must write to the tensor itself."""
_ITSELF = {
    "__deepcopy__", "__format__", "__hash__", "__reduce_ex__", "__repr__", "backward", "data_ptr",
    "element_size", "get_device", "grad", "register_hook", "register_post_accumulate_grad_hook",
    "retain_grad", "storage", "untyped_storage",
}  # fmt: skip
"""They are about the tensor, not about its numbers."""


_SETS = {"__set__", "__delete__"}
"""`p.grad = None` on a copy would leave the gradient where it is, for the optimizer to take."""


class HalfFree(OpeningMode):
    """Every function of torch gets and gives float32 in place of half."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__":
            return self._attribute(func, args)
        if (opened := calling_back(func)) is not None:
            return self.call_opened(opened, args, kwargs)
        if name in _SETS or name in _ITSELF or name in _ALIASES or "out" in kwargs:
            return func(*args, **kwargs)
        if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")):
            return self._in_place(func, args, kwargs)
        if name in _TO_HALF:
            self.changed += 1
            return args[0].float()
        if name == "type" and len(args) == 1 and not kwargs:
            return func(*args)
        args, kwargs = rebuilt(args, self._float32), rebuilt(kwargs, self._float32)
        return func(*args, **kwargs)

    def _float32(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.dtype in HALVES:
            self.changed += 1
            return value.float()
        if isinstance(value, torch.dtype) and value in HALVES:
            self.changed += 1
            return torch.float32
        return value

    def _in_place(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not args or not isinstance(args[0], Tensor) or not args[0].is_floating_point():
            return func(*args, **kwargs)
        own = args[0].dtype

        def suited(value: Any) -> Any:
            mixed = isinstance(value, Tensor) and value.is_floating_point() and value.dtype != own
            return value.to(own) if mixed else value

        return func(args[0], *rebuilt(args[1:], suited), **rebuilt(kwargs, suited))

    @staticmethod
    def _attribute(func: Any, args: tuple[Any, ...]) -> Any:
        value = func(*args)
        # `x.to(y.dtype)` shall not lead back to half.
        if getattr(func, "__self__", None) is torch.Tensor.dtype and value in HALVES:
            return torch.float32
        return value
