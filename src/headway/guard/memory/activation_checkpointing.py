"""Activation checkpointing for chosen modules of a model.

A checkpointed module keeps only its inputs through the forward pass and computes the rest again in
the backward pass. torch offers this as a function around a call; here it is switched on from
outside, for every module of a class or a path, without a change to the model's code: `forward` is
replaced on the instance, so that parameters, buffers and `state_dict` keep their names.

The second forward sees what the first one saw: random numbers (dropout), autocast, and the buffers
of modules in training mode. BatchNorm statistics are updated once, not twice, and spectral norm
computes the same weight, so losses and gradients are bit for bit those of the plain model.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from headway.errors import UsageError
from headway.torch_adapters.compat import module_buffers
from headway.torch_adapters.module_stack import user_path
from headway.torch_adapters.saved_state import STATISTIC_BYTES

MAX_NAMED = 8
"""Maximum number of classes or paths listed in an error message."""


def checkpoint_activations(
    model: nn.Module,
    *,
    classes: type | str | Iterable[type | str] | None = None,
    paths: str | Iterable[str] | None = None,
) -> ActivationCheckpointing:
    """Recompute the activations of selected modules in backward instead of keeping them.

        headway.checkpoint_activations(model, classes=nn.TransformerEncoderLayer)
        headway.checkpoint_activations(model, classes="Block")
        headway.checkpoint_activations(model, paths="encoder.layers.*")

    `classes` are module classes or their names, `paths` patterns over the names that
    `model.named_modules()` gives (`*` spans dots). A module inside another selected one is
    covered by it. In `eval()` and under `no_grad` the plain forward runs.

    Call it before `torch.compile` and before `fully_shard` or DDP wrap the model. The result
    switches it off again: by `off()`, or as a context manager. What a module's own forward does
    besides computing (printing, counting in a plain attribute, hooks on modules inside) happens
    twice.
    """
    wanted = _ModuleSelector(_listed(classes), _listed(paths))
    named = {path: module for path, module in model.named_modules() if _has_forward(module)}
    chosen = _outermost(path for path, module in named.items() if wanted.matches(path, module))
    if not chosen:
        raise UsageError(wanted.no_match(model))
    covered = [path for path in chosen if isinstance(named[path].forward, _Recomputed)]
    if covered:
        raise UsageError(
            f"{_shown(covered[0])} is checkpointed already: switch that off first, with off() of "
            "what checkpoint_activations() returned"
        )
    return ActivationCheckpointing({user_path(path): named[path] for path in chosen})


class ActivationCheckpointing:
    """Activation checkpointing that is switched on; `off()` or the end of `with` ends it."""

    def __init__(self, modules: dict[str, nn.Module]) -> None:
        self._covers = [_Recomputed(module) for module in modules.values()]
        self.paths: tuple[str, ...] = tuple(modules)
        """The modules it is on for; `""` is the model itself."""

    def off(self) -> None:
        """Restore the plain forward. A second call does nothing."""
        for cover in self._covers:
            cover.remove()

    def __enter__(self) -> ActivationCheckpointing:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.off()


class _Recomputed:
    """Replaces a module's `forward`. An object, so that a copy of the model copies it."""

    def __init__(self, module: nn.Module) -> None:
        self.on = True
        self.module = module
        # The forward may already be replaced on the instance by other code.
        self.own: Callable[..., Any] | None = vars(module).get("forward")
        module.forward = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not (self.on and self.module.training and torch.is_grad_enabled()):
            return self.plain(*args, **kwargs)
        if torch.compiler.is_compiling():  # the compiler recomputes the forward in its own way
            return checkpoint(self.plain, *args, use_reentrant=False, **kwargs)
        seen = _BuffersOfForward(self.module)
        return checkpoint(
            self.plain,
            *args,
            use_reentrant=False,
            context_fn=lambda: (contextlib.nullcontext(), seen),
            **kwargs,
        )

    def plain(self, *args: Any, **kwargs: Any) -> Any:
        """The original forward of the module."""
        if self.own is not None:
            return self.own(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    def remove(self) -> None:
        """Restore the forward; if other code has replaced ours since, ours only passes calls on."""
        self.on = False
        if vars(self.module).get("forward") is self:
            if self.own is None:
                del self.module.forward
            else:
                self.module.forward = self.own


class _BuffersOfForward:
    """The small buffers of modules in training mode, as they are before the first forward.

    Entered around every further one, as often as there is a backward through the graph.
    """

    def __init__(self, root: nn.Module) -> None:
        self._kept: list[tuple[dict[str, Tensor | None], str, Tensor]] = [
            (buffers, name, buffer.detach().clone())
            for module in root.modules()
            if module.training and (buffers := module_buffers(module))
            for name, buffer in buffers.items()
            if buffer is not None and buffer.nbytes <= STATISTIC_BYTES
        ]
        self._present: list[Tensor | None] = []

    def __enter__(self) -> None:
        # Other tensors in their place, no writing: the present ones may be part of some graph.
        self._present = [home[name] for home, name, _ in self._kept]
        for home, name, copy in self._kept:
            home[name] = copy.clone()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for (home, name, _), buffer in zip(self._kept, self._present, strict=True):
            home[name] = buffer
        self._present = []


class _ModuleSelector:
    """Selects modules by class or path."""

    def __init__(self, classes: Sequence[Any], paths: Sequence[Any]) -> None:
        if not classes and not paths:
            raise UsageError(
                "checkpoint_activations() needs to know which modules: "
                'classes=nn.TransformerEncoderLayer, classes="Block" or paths="encoder.layers.*"'
            )
        for item in classes:
            if not isinstance(item, (type, str)):
                raise UsageError(
                    f"classes are module classes or their names: got {item!r:.60}; "
                    "for one module of a model give its path"
                )
        for item in paths:
            if not isinstance(item, str):
                raise UsageError(f"paths are patterns such as 'layers.*': got {item!r:.60}")
        self._types = tuple(item for item in classes if isinstance(item, type))
        self._names = {item for item in classes if isinstance(item, str)}
        self._paths = [str(item) for item in paths]

    def matches(self, path: str, module: nn.Module) -> bool:
        """Whether a module is selected, by its class or by its path."""
        if isinstance(module, self._types) or self._names & set(_class_names(module)):
            return True
        # The model itself has no path: `*` means everything in it.
        return bool(path) and any(fnmatchcase(user_path(path), item) for item in self._paths)

    def no_match(self, model: nn.Module) -> str:
        """The error message when no module is selected."""
        asked = [item.__name__ for item in self._types] + sorted(self._names) + self._paths
        message = f"no module of {type(model).__name__} matches {', '.join(map(repr, asked))}"
        for path, module in model.named_modules():
            if user_path(path) in self._paths and not _has_forward(module):
                return (
                    f"{message}: {path} is a {type(module).__name__}, which has no forward of its "
                    f"own; {path + '.*'!r} matches the modules in it"
                )
        there = [user_path(path) for path, _ in model.named_modules() if path]
        if self._paths:
            near = _nearest(self._paths, there) or there
            message += f"; available paths: {', '.join(near[:MAX_NAMED])}"
        if self._types or self._names:
            names = sorted({type(module).__name__ for module in model.modules()})
            near = _nearest([item for item in asked if item not in self._paths], names) or names
            message += f"; available classes: {', '.join(near[:MAX_NAMED])}"
        return message


def _listed(given: Any) -> list[Any]:
    if given is None:
        return []
    return list(given) if isinstance(given, (list, tuple, set, frozenset)) else [given]


def _has_forward(module: nn.Module) -> bool:
    """A ModuleList has none: it only contains others."""
    return type(module).forward is not nn.Module.forward or "forward" in vars(module)


def _class_names(module: nn.Module) -> Iterator[str]:
    """Its class and the ones that class was made of; `fully_shard` makes a class of its own."""
    for item in type(module).__mro__:
        if item is nn.Module:
            return
        yield item.__name__


def _outermost(paths: Iterable[str]) -> list[str]:
    chosen: list[str] = []
    for path in paths:  # `named_modules` names a module before those within it
        if not any(above == "" or path.startswith(above + ".") for above in chosen):
            chosen.append(path)
    return chosen


def _nearest(asked: Iterable[str], there: Sequence[str]) -> list[str]:
    return [
        near
        for item in asked
        for near in difflib.get_close_matches(item, there, n=MAX_NAMED, cutoff=0.5)
    ]


def _shown(path: str) -> str:
    return user_path(path) or "the model itself"
