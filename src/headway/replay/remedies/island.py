"""One module in float32, outside autocast, while everything around it stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from headway.replay.ambient import eagerly
from headway.replay.explanation import Birth, Line
from headway.replay.remedies.base import Remedy
from headway.replay.remedies.compiled import is_compiled
from headway.replay.remedies.precision import HALVES, half_in_play
from headway.replay.remedies.rebuilt import rebuilt
from headway.replay.remedies.regions import autocast_off, open_devices
from headway.replay.scene import Scene
from headway.torch_tools.nested import tensors_in
from headway.torch_tools.users_names import users_model, users_path


class Fp32Island(Remedy):
    """The module's forward, in float32: its inputs, and its weights where they are half."""

    key = "fp32-island"

    def __init__(
        self,
        path: str,
        module: nn.Module,
        place: Line | None = None,
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
    def fitting(cls, birth: Birth, scene: Scene) -> Fp32Island | None:
        """Only for a birth inside a module, in half precision."""
        if not birth.module or not half_in_play(birth):
            return None
        module = find_module(scene, birth.module)
        if module is None:
            return None
        under_autocast = birth.autocast is not None
        island = cls(birth.module, module, birth.place, under_autocast=under_autocast)
        # A graph that is compiled already would go on without it.
        island.keepable = not any(map(is_compiled, scene.models))
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
    def applied(self, scene: Scene) -> Iterator[None]:
        undo = self._install()
        try:
            with eagerly():
                yield
        finally:
            undo()

    def keep(self, scene: Scene) -> Callable[[], None]:
        return self._install() if self.keepable else super().keep(scene)

    def _install(self) -> Callable[[], None]:
        self._forward = forward = _Forward(self._module)
        forward.install()
        return forward.remove


class _Forward:
    """Takes the place of a module's forward.

    An object and no closure: models are copied and pickled, and the forward of a copy must run the
    copy.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._theirs = module.__dict__.get("forward")
        self._in_force = True
        self.calls = 0

    def install(self) -> None:
        self._module.__dict__["forward"] = self

    def remove(self) -> None:
        self._in_force = False
        names = self._module.__dict__
        if names.get("forward") is not self:  # somebody wrapped ours: stand aside
            return
        if self._theirs is None:
            del names["forward"]
        else:
            names["forward"] = self._theirs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        forward = self._theirs or type(self._module).forward.__get__(self._module)
        if not self._in_force:
            return forward(*args, **kwargs)
        self.calls += 1
        return _in_float32(self._module, forward, args, kwargs)


def find_module(scene: Scene, path: str) -> nn.Module | None:
    """The module of that path; with several models, it begins with `model0.`."""
    for number, model in enumerate(scene.models):
        prefix = f"model{number}." if len(scene.models) > 1 else ""
        found: nn.Module
        for name, found in users_model(model).named_modules():
            if path == (prefix + users_path(name)).rstrip("."):
                return found
    return None


def _in_float32(module: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
    under_autocast = bool(open_devices())
    halves = _half_tensors(module)
    inputs = [tensor for _, tensor in tensors_in([args, kwargs])]
    given = [tensor.dtype for tensor in (*inputs, *halves.values()) if tensor.dtype in HALVES]
    args, kwargs = rebuilt(args, _to_float32), rebuilt(kwargs, _to_float32)
    with autocast_off():
        if halves:
            output = _with_float32_weights(module, halves, forward, args, kwargs)
        else:
            output = forward(*args, **kwargs)
    if under_autocast or not given:
        return output
    return rebuilt(output, lambda value: _back(value, given[0]))


def _with_float32_weights(
    module: nn.Module, halves: dict[str, Tensor], forward: Any, args: Any, kwargs: Any
) -> Any:
    copies = {name: tensor.float() for name, tensor in halves.items()}
    named = {f"inner.{name}": tensor for name, tensor in copies.items()}
    output = functional_call(_Shell(module, forward), named, args, kwargs)
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            if name in copies:
                buffer.copy_(copies[name])  # running statistics go on
    return output


class _Shell(nn.Module):
    """Calls a module's forward alone: its hooks are already running."""

    _run: Callable[..., Any]

    def __init__(self, inner: nn.Module, run: Callable[..., Any]) -> None:
        super().__init__()
        self.inner = inner
        self._run = run

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(*args, **kwargs)


def _half_tensors(module: nn.Module) -> dict[str, Tensor]:
    every = (*module.named_parameters(), *module.named_buffers())
    return {name: tensor for name, tensor in every if tensor.dtype in HALVES}


def _to_float32(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in HALVES else value


def _back(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.dtype is torch.float32 else value
