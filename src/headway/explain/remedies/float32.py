"""Remedies that compute in float32: the whole step, or one module (an island)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from headway.explain.explanation import Origin
from headway.explain.failing_step import FailingStep
from headway.explain.remedies.base import StepRemedy
from headway.explain.remedies.drop_samples import rebuild
from headway.torch_adapters.autocast_regions import (
    AutocastSetting,
    autocast_devices,
    autocast_off,
    change_regions,
    changed_regions,
)
from headway.torch_adapters.frames import Location
from headway.torch_adapters.modes import ReentrantFunctionMode, find_user_callback
from headway.torch_adapters.module_stack import unwrap_model, user_path
from headway.torch_adapters.nested_state import find_tensors
from headway.torch_adapters.runtime_state import is_compiled, run_eagerly

# Whether half precision is involved in an origin.

HALF_DTYPES = (torch.float16, torch.bfloat16)


def dtypes_of(origin: Origin) -> set[str]:
    """The dtypes of its operands, and the autocast dtype."""
    operands = [*origin.inputs, *([] if origin.output is None else [origin.output])]
    names = [operand.dtype for operand in operands] + [origin.autocast or ""]
    return {name.removeprefix("torch.") for name in names} - {""}


def involves_half(origin: Origin) -> bool:
    return not dtypes_of(origin).isdisjoint({"float16", "bfloat16"})


def involves_float16(origin: Origin) -> bool:
    return "float16" in dtypes_of(origin)


# Half-precision models and inputs computed in float32. Weights stay half; ops use a float32 copy,
# so that gradients still reach them. Requests for half return float32.

_TO_HALF = {"half", "bfloat16"}
_ALIASES = {
    "__getitem__", "as_strided", "chunk", "contiguous", "cpu", "cuda", "detach", "expand",
    "expand_as", "flatten", "movedim", "narrow", "permute", "reshape", "select", "split", "squeeze",
    "swapaxes", "t", "tensor_split", "transpose", "unbind", "unflatten", "unsqueeze", "view",
    "view_as",
}  # fmt: skip
"""Views: writes to their result must reach the tensor itself."""
_ITSELF = {
    "__deepcopy__", "__format__", "__hash__", "__reduce_ex__", "__repr__", "backward", "data_ptr",
    "element_size", "get_device", "grad", "register_hook", "register_post_accumulate_grad_hook",
    "retain_grad", "storage", "untyped_storage",
}  # fmt: skip
"""Functions of the tensor object, not of its values."""


_SETS = {"__set__", "__delete__"}
"""`p.grad = None` on a copy would leave the gradient where it is, for the optimizer to take."""


class HalfAsFloat32Mode(ReentrantFunctionMode):
    """Torch functions receive and return float32 instead of half."""

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
        if (opened := find_user_callback(func)) is not None:
            return self.call_reentrant(opened, args, kwargs)
        if name in _SETS or name in _ITSELF or name in _ALIASES or "out" in kwargs:
            return func(*args, **kwargs)
        if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")):
            return self._in_place(func, args, kwargs)
        if name in _TO_HALF:
            self.changed += 1
            return args[0].float()
        if name == "type" and len(args) == 1 and not kwargs:
            return func(*args)
        args, kwargs = rebuild(args, self._float32), rebuild(kwargs, self._float32)
        return func(*args, **kwargs)

    def _float32(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.dtype in HALF_DTYPES:
            self.changed += 1
            return value.float()
        if isinstance(value, torch.dtype) and value in HALF_DTYPES:
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

        return func(args[0], *rebuild(args[1:], suited), **rebuild(kwargs, suited))

    @staticmethod
    def _attribute(func: Any, args: tuple[Any, ...]) -> Any:
        value = func(*args)
        # `x.to(y.dtype)` must not lead back to half.
        if getattr(func, "__self__", None) is torch.Tensor.dtype and value in HALF_DTYPES:
            return torch.float32
        return value


class Fp32(StepRemedy):
    key = "fp32"

    def __init__(self, *, merely_autocast: bool) -> None:
        self._merely_autocast = merely_autocast
        self._changed = 0
        self.keepable = merely_autocast

    @classmethod
    def fitting(cls, origin: Origin, failing_step: FailingStep) -> Fp32 | None:
        if not involves_half(origin):
            return None
        return cls(merely_autocast=origin.autocast is not None and not _holds_halves(failing_step))

    @property
    def text(self) -> str:
        if self._merely_autocast:
            return "Train in float32: `torch.autocast(..., enabled=False)`"
        return "Train in float32: `model.float()`, float32 inputs, no `.half()` and no autocast"

    @property
    def engaged(self) -> bool:
        return self._changed > 0

    @contextmanager
    def applied(self, failing_step: FailingStep) -> Iterator[None]:
        self._changed = 0
        with changed_regions(self._off):
            if self._merely_autocast:
                yield
                return
            mode = HalfAsFloat32Mode()
            try:
                with run_eagerly(), mode:
                    yield
            finally:
                self._changed += mode.changed

    def keep(self, failing_step: FailingStep) -> Callable[[], None]:
        return change_regions(self._off) if self.keepable else super().keep(failing_step)

    def _off(self, casting: AutocastSetting) -> AutocastSetting:
        self._changed += casting.enabled
        return casting._replace(enabled=False)


def _holds_halves(failing_step: FailingStep) -> bool:
    weights = (tensor for model in failing_step.models for tensor in model.parameters())
    inputs: Iterator[Tensor] = (tensor for _, tensor in find_tensors(list(failing_step.batches)))
    return any(tensor.dtype in HALF_DTYPES for tensor in (*weights, *inputs))


class Fp32Island(StepRemedy):
    """Runs the forward of one module in float32, outside autocast."""

    key = "fp32-island"

    def __init__(
        self,
        path: str,
        module: nn.Module,
        place: Location | None = None,
        *,
        under_autocast: bool = True,
    ) -> None:
        self._path = path
        self._module = module
        self._place = place
        self._under_autocast = under_autocast
        self._forward: _Forward | None = None
        self.keepable = True

    @classmethod
    def fitting(cls, origin: Origin, failing_step: FailingStep) -> Fp32Island | None:
        """Only for an origin inside a module, in half precision."""
        if not origin.module or not involves_half(origin):
            return None
        module = find_module(failing_step, origin.module)
        if module is None:
            return None
        under_autocast = origin.autocast is not None
        island = cls(origin.module, module, origin.place, under_autocast=under_autocast)
        # A compiled graph would not use it.
        island.keepable = not any(map(is_compiled, failing_step.models))
        return island

    @property
    def text(self) -> str:
        where = "" if self._place is None else f" ({self._place})"
        if self._under_autocast:
            return f"Run `{self._path}` outside autocast, in float32{where}"
        weights = f"`{self._path}.float()`, " if _half_tensors(self._module) else ""
        return (
            f"Keep `{self._path}` in float32: {weights}its input cast with `.float()` and its "
            f"output cast back{where}"
        )

    @property
    def engaged(self) -> bool:
        return self._forward is not None and self._forward.calls > 0

    @contextmanager
    def applied(self, failing_step: FailingStep) -> Iterator[None]:
        undo = self._install()
        try:
            with run_eagerly():
                yield
        finally:
            undo()

    def keep(self, failing_step: FailingStep) -> Callable[[], None]:
        return self._install() if self.keepable else super().keep(failing_step)

    def _install(self) -> Callable[[], None]:
        self._forward = forward = _Forward(self._module)
        forward.install()
        return forward.remove


class _Forward:
    """Replaces the forward of a module.

    An object, not a closure: models are copied and pickled, and the forward of a copy must run
    the copy.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._replaced = module.__dict__.get("forward")
        self._in_force = True
        self.calls = 0

    def install(self) -> None:
        self._module.__dict__["forward"] = self

    def remove(self) -> None:
        self._in_force = False
        names = self._module.__dict__
        if names.get("forward") is not self:  # another tool has wrapped it: only deactivate
            return
        if self._replaced is None:
            del names["forward"]
        else:
            names["forward"] = self._replaced

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        forward = self._replaced or type(self._module).forward.__get__(self._module)
        if not self._in_force:
            return forward(*args, **kwargs)
        self.calls += 1
        return _in_float32(self._module, forward, args, kwargs)


def find_module(failing_step: FailingStep, path: str) -> nn.Module | None:
    """The module with this path; with several models it begins with `model0.`."""
    for number, model in enumerate(failing_step.models):
        prefix = f"model{number}." if len(failing_step.models) > 1 else ""
        found: nn.Module
        for name, found in unwrap_model(model).named_modules():
            if path == (prefix + user_path(name)).rstrip("."):
                return found
    return None


def _in_float32(module: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
    under_autocast = bool(autocast_devices())
    halves = _half_tensors(module)
    inputs = [tensor for _, tensor in find_tensors([args, kwargs])]
    given = [tensor.dtype for tensor in (*inputs, *halves.values()) if tensor.dtype in HALF_DTYPES]
    args, kwargs = rebuild(args, _to_float32), rebuild(kwargs, _to_float32)
    with autocast_off():
        if halves:
            output = _with_float32_weights(module, halves, forward, args, kwargs)
        else:
            output = forward(*args, **kwargs)
    if under_autocast or not given:
        return output
    return rebuild(output, lambda value: _back(value, given[0]))


def _with_float32_weights(
    module: nn.Module, halves: dict[str, Tensor], forward: Any, args: Any, kwargs: Any
) -> Any:
    copies = {name: tensor.float() for name, tensor in halves.items()}
    named = {f"inner.{name}": tensor for name, tensor in copies.items()}
    output = functional_call(_Shell(module, forward), named, args, kwargs)
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            if name in copies:
                buffer.copy_(copies[name])  # keep the updated running statistics
    return output


class _Shell(nn.Module):
    """Calls only the forward of a module: its hooks are already running."""

    _run: Callable[..., Any]

    def __init__(self, inner: nn.Module, run: Callable[..., Any]) -> None:
        super().__init__()
        self.inner = inner
        self._run = run

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(*args, **kwargs)


def _half_tensors(module: nn.Module) -> dict[str, Tensor]:
    every = (*module.named_parameters(), *module.named_buffers())
    return {name: tensor for name, tensor in every if tensor.dtype in HALF_DTYPES}


def _to_float32(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in HALF_DTYPES else value


def _back(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.dtype is torch.float32 else value
