"""Paths of modules as the user wrote them, and the module that runs now in each thread."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import nn

_WRAPPERS = {"", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


def user_path(path: str) -> str:
    """A path as the user wrote it, without wrappers of torch.compile, FSDP and checkpointing."""
    return ".".join(part for part in path.split(".") if part not in _WRAPPERS)


def unwrap_model(model: nn.Module) -> nn.Module:
    """The user's own module, without what torch.compile and DDP wrap around it."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.parallel.DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


# Which module of the user's model is running, per thread.


class RunningModule(NamedTuple):
    """A module in its forward."""

    path: str
    kind: type | None


_NONE = RunningModule("", None)


class ModuleNames:
    """Paths of the modules of the user's models, which may become known late."""

    def __init__(self) -> None:
        self._models: tuple[int, ...] = ()
        self._paths: dict[int, str] = {}

    def learn(self, models: Sequence[nn.Module]) -> None:
        known = tuple(map(id, models))
        if known == self._models:
            return
        self._models = known
        self._paths.clear()  # in place: modules that were noted look into it
        for number, model in enumerate(models):
            prefix = f"model{number}." if len(models) > 1 else ""
            for path, module in unwrap_model(model).named_modules():
                self._paths.setdefault(id(module), (prefix + user_path(path)).rstrip("."))

    def running(self, module: nn.Module | None) -> NamedModule | RunningModule:
        """A module whose path is computed when it is needed."""
        return _NONE if module is None else NamedModule(module, self._paths)


class NamedModule(NamedTuple):
    """A module in its forward, whose path may become known later."""

    module: nn.Module
    paths: Mapping[int, str]

    @property
    def path(self) -> str:
        return self.paths.get(id(self.module), "")

    @property
    def kind(self) -> type:
        return type(self.module)


class ModuleStack:
    """Keeps, for every thread, the modules whose forward is being run."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._models = models
        self._names: dict[int, str] = {}
        self._stacks: dict[int, list[tuple[nn.Module, RunningModule]]] = {}
        self._handles: list[Any] = []

    def install(self) -> None:
        for number, model in enumerate(self._models):
            prefix = f"model{number}." if len(self._models) > 1 else ""
            for path, module in unwrap_model(model).named_modules():
                if id(module) not in self._names:
                    self._names[id(module)] = (prefix + user_path(path)).rstrip(".")
                    self._watch(module)

    def _watch(self, module: nn.Module) -> None:
        # Not with global hooks: torch.compile warns of them.
        self._handles += [
            module.register_forward_pre_hook(self._enter),
            # Recomputing a checkpointed forward ends it by an exception.
            module.register_forward_hook(self._leave, always_call=True),
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def running(self) -> RunningModule:
        """The innermost module of this thread."""
        stack = self._stacks.get(threading.get_ident())
        return stack[-1][1] if stack else _NONE

    def module(self) -> nn.Module | None:
        """The same, as it is."""
        stack = self._stacks.get(threading.get_ident())
        return stack[-1][0] if stack else None

    def _enter(self, module: nn.Module, args: Any) -> None:
        stack = self._stacks.setdefault(threading.get_ident(), [])
        stack.append((module, RunningModule(self._names[id(module)], type(module))))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        stack = self._stacks.get(threading.get_ident(), [])
        if any(entered is module for entered, _ in stack):
            while stack.pop()[0] is not module:
                pass
