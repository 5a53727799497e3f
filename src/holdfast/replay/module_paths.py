"""Which module of the user's model is running."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import nn
from torch.nn.modules import module as hooks

from holdfast.torch_tools.users_names import users_model, users_path


class Running(NamedTuple):
    """A module in its forward."""

    path: str
    kind: type | None
    """Its class: also of one that is no part of the model, such as a loss."""


_NONE = Running("", None)


class ModulePaths:
    """Keeps, for every thread, the modules whose forward is being run."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._models = models
        self._names: dict[int, str] = {}
        self._stacks: dict[int, list[tuple[int, Running]]] = {}
        self._handles: list[Any] = []

    def install(self) -> None:
        for number, model in enumerate(self._models):
            prefix = f"model{number}." if len(self._models) > 1 else ""
            for path, module in users_model(model).named_modules():
                self._names.setdefault(id(module), (prefix + users_path(path)).rstrip("."))
        self._handles = [
            hooks.register_module_forward_pre_hook(self._enter),
            # Recomputing a checkpointed forward ends it by an exception.
            hooks.register_module_forward_hook(self._leave, always_call=True),
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def running(self) -> Running:
        """The innermost module of this thread."""
        stack = self._stacks.get(threading.get_ident())
        return stack[-1][1] if stack else _NONE

    def _enter(self, module: nn.Module, args: Any) -> None:
        stack = self._stacks.setdefault(threading.get_ident(), [])
        path = self._names.get(id(module))
        if path is None:  # one that is not of the model: it ran for the one around it
            path = stack[-1][1].path if stack else ""
        stack.append((id(module), Running(path, type(module))))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        stack = self._stacks.get(threading.get_ident(), [])
        if any(entered == id(module) for entered, _ in stack):
            while stack.pop()[0] != id(module):
                pass
