"""What observers can ask about the running script: step, names, user lines, call sites, and where
modules and weights were made.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.optim import Optimizer

from headway.guard.script.launcher import ScriptLauncher
from headway.torch_adapters.compat import is_registered
from headway.torch_adapters.frames import describe_frame, is_installed_file, running_frames
from headway.torch_adapters.module_stack import user_path
from headway.torch_adapters.patching import wrap_function

# Where modules and weights come from: the lines that construct, attach and initialise them.

# A finding about a layer is most useful at the line that made it so: `nn.LSTM(…)` without
# `batch_first`, an `nn.init` call with the wrong scale, an assignment that breaks a tie.

MOST_PROVENANCE_LINES = 20_000
"""Lines of each kind that are kept."""

LineFacts: TypeAlias = dict[str, Any] | None


class ModuleProvenance:
    """Hears of every module and parameter that is given to a module."""

    def __init__(self, place: Callable[[], LineFacts], undo: ExitStack) -> None:
        self._place = place
        self._count = 0
        self._made: dict[int, tuple[weakref.ref[Any], LineFacts]] = {}
        """Module → the line that was constructing it when it got its first part."""
        self._given: dict[int, tuple[weakref.ref[Any], str, LineFacts, int]] = {}
        """Module or parameter → its owner, its name there, the line that gave it, and when."""
        self._kinds: dict[type, list[LineFacts]] = {}
        """Class → the lines that made one: for copies, of which nobody is told."""
        self._written: dict[int, tuple[LineFacts, int]] = {}
        """Memory → the line that filled it last, and when."""
        for register in (
            register_module_module_registration_hook,
            register_module_parameter_registration_hook,
        ):
            undo.callback(register(self._registers).remove)

    @property
    def now(self) -> int:
        """Counts what has been heard: later is larger."""
        return self._count

    def wrote(self, tensor: Tensor) -> None:
        """Somebody fills a tensor in place."""
        memory = _memory_of(tensor)
        if memory and (memory in self._written or len(self._written) < MOST_PROVENANCE_LINES):
            self._count += 1
            self._written[memory] = (self._place(), self._count)

    def of_module(self, module: nn.Module) -> LineFacts:
        """The line that constructed a module; of a copy, the only one that made such a module."""
        known = self._made.get(id(module))
        if known is not None and known[0]() is module:
            return known[1]
        place, when = self.registered(module)
        if when:
            return place
        lines = self._kinds.get(type(module), [])
        return lines[0] if len(lines) == 1 else None

    def of_parameter(self, parameter: Tensor) -> LineFacts:
        """The line that gave a parameter its first values."""
        return self.last_change(parameter)[0]

    def last_change(self, parameter: Tensor) -> tuple[LineFacts, int]:
        """The line that made or filled a parameter last, and when."""
        registered = self.registered(parameter)
        written = self._written.get(_memory_of(parameter), (None, 0))
        return max(registered, written, key=lambda known: known[1])

    def registered(self, item: Any) -> tuple[LineFacts, int]:
        """The line that gave it to a module last, and when; (None, 0) where that is not known."""
        owner, name, place, when = self._given.get(id(item), (None, "", None, 0))
        # By its owner: a weak reference to a tensor would keep torch from swapping it.
        at = None if owner is None else owner()
        if at is None:
            return None, 0
        return (place, when) if is_registered(at, name, item) else (None, 0)

    def _registers(self, owner: nn.Module, name: str, item: Any) -> None:
        if len(self._given) >= MOST_PROVENANCE_LINES:
            return
        self._count += 1
        place = self._place()
        made = self._made.get(id(owner))
        if made is None or made[0]() is not owner:
            self._made[id(owner)] = (weakref.ref(owner), place)
            lines = self._kinds.setdefault(type(owner), [])
            if place not in lines and len(lines) < 2:
                lines.append(place)
        if item is not None:
            self._given[id(item)] = (weakref.ref(owner), name, place, self._count)


def _memory_of(tensor: Tensor) -> int:
    if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout is not torch.strided:
        return 0
    return 0 if tensor.is_meta else tensor.data_ptr()


# What every observer may ask: which step it is, what things are called, which line is running.


class ScriptContext:
    """The script that runs, seen from outside."""

    def __init__(self, launch: ScriptLauncher, *, overfit: bool = False) -> None:
        self.launch = launch
        self.overfit = overfit
        """Whether somebody wants to know if one batch can be learned by heart."""
        self.stack: list[nn.Module] = []
        """The modules whose forward runs now, the outermost first."""
        self.undo = ExitStack()
        """What an observer has changed in torch is put back through this at the end."""
        self.origins = ModuleProvenance(self.place, self.undo)
        """Where modules and weights were made."""
        self._machinery: dict[CodeType, bool] = {}
        """Whether a code object is torch's, Python's or ours: stacks are walked all the time."""
        self._paths: dict[int, str] = {}
        self._parameters: dict[int, str] = {}
        launch.on_guard.append(lambda _: self._forget_names())

    @property
    def step(self) -> int:
        """The step being made, counted from 0."""
        return self.launch.step

    @property
    def models(self) -> Sequence[nn.Module]:
        """The outermost modules that train; empty before the first backward pass."""
        return () if self.launch.guard is None else self.launch.guard.models

    @property
    def optimizers(self) -> Sequence[Optimizer]:
        """Every optimizer there is; empty before the first backward pass."""
        return () if self.launch.guard is None else self.launch.guard.optimizers

    def path_of(self, module: nn.Module) -> str:
        """A module's path in its model: `encoder.layers.0`; its class where it has none."""
        if not self._paths:
            self._learn_names()
        return self._paths.get(id(module)) or type(module).__name__

    def name_of(self, parameter: Tensor) -> str | None:
        """A parameter's name in its model."""
        if not self._parameters:
            self._learn_names()
        return self._parameters.get(id(parameter))

    def place(self) -> dict[str, Any] | None:
        """The user's line that runs now, as facts carry it; a framework's where there is none."""
        foreign: FrameType | None = None
        for frame in self.frames():
            if not is_installed_file(frame.f_code.co_filename):
                return describe_frame(frame).to_dict()
            foreign = foreign or frame
        return None if foreign is None else describe_frame(foreign).to_dict()

    def users_own_call(self) -> bool:
        """Whether the user's own line made the call that runs now, not a framework's."""
        frame = next(self.frames(), None)
        return frame is not None and not is_installed_file(frame.f_code.co_filename)

    def frames(self) -> Iterator[FrameType]:
        """The frames that run now, innermost first, without torch's, Python's and ours."""
        return running_frames(self._machinery)

    def _forget_names(self) -> None:
        self._paths.clear()
        self._parameters.clear()

    def _learn_names(self) -> None:
        many = len(self.models) > 1
        for number, model in enumerate(self.models):
            prefix = f"model{number}." if many else ""
            for path, module in model.named_modules():
                self._paths.setdefault(id(module), prefix + user_path(path))
            for path, parameter in model.named_parameters():
                self._parameters.setdefault(id(parameter), prefix + user_path(path))


# Which call of a script this is: the module it was made in, the line, and how often so far.

# A layer kept in a module is known by its path. A functional call is known by the module it stands
# in and its line; a loop over layers makes several calls on one line, so they are numbered.

CLOSE_STEPS, THEN_EVERY = 5, 5
MOST_ON_A_LINE = 16
"""Calls of one line in one pass that are told apart; a loop over time steps has many more."""


def is_measured_step(step: int) -> bool:
    """Whether a step is measured: the first few are, then one in five."""
    return step < CLOSE_STEPS or step % THEN_EVERY == 0


@dataclass(frozen=True, slots=True)
class CallSite:
    """One call in the code of a model."""

    module: nn.Module | None
    """The innermost module that runs."""
    place: Mapping[str, Any] | None
    number: int = 0

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for the same call in the next step."""
        place = self.place or {}
        line = () if self.is_torch_module else (place.get("file"), place.get("line"))
        return (id(self.module), *line, self.number)

    @property
    def is_torch_module(self) -> bool:
        """Whether the innermost module is one of torch's: then it is the call."""
        return type(self.module).__module__.startswith("torch.nn")

    def name(self, scene: ScriptContext) -> str:
        """`encoder.act`, or `encoder (model.py:31)`; right only when the models are known."""
        path = "" if self.module is None else scene.path_of(self.module)
        if self.module is not None and not self.is_torch_module and self.module in scene.models:
            path = ""
        if not self.is_torch_module and self.place:
            line = f"{os.path.basename(str(self.place.get('file')))}:{self.place.get('line')}"
            path = f"{path} ({line})" if path else line
        return path + (f" #{self.number + 1}" if self.number else "")


class CallSites:
    """Names calls, and counts those of one line since the last reset."""

    def __init__(self, scene: ScriptContext) -> None:
        self._scene = scene
        self._seen: dict[tuple[Any, ...], int] = {}

    def here(self) -> CallSite | None:
        """The call that runs now; None where its line was run too often to tell calls apart."""
        stack = self._scene.stack
        site = CallSite(stack[-1] if stack else None, self._scene.place())
        number = self._seen.get(site.key, 0)
        self._seen[site.key] = number + 1
        if number >= MOST_ON_A_LINE:
            return None
        return CallSite(site.module, site.place, number) if number else site

    def restart(self) -> None:
        """A new pass begins: count from nothing."""
        self._seen.clear()


# Hearing calls of Python methods of torch that no hook tells of: schedules, autocast, torch.load.

# The method goes through unchanged; what was put in its place goes with the scene.


def observe_method(
    scene: ScriptContext,
    owner: Any,
    name: str,
    *,
    before: Callable[..., None] | None = None,
    after: Callable[..., None] | None = None,
) -> None:
    """Tell of every call of `owner.name`: `before(*args)`, then `after(result, *args)`.

    What is told may fail without harm to the script: it is told no more.
    """
    strict = _is_strict()
    failed = [False]

    def notify(observer: Callable[..., None] | None, *args: Any, **kwargs: Any) -> None:
        if observer is None or failed[0]:
            return
        try:
            observer(*args, **kwargs)
        except Exception:  # ours, whatever it is: the script goes on
            failed[0] = True
            if strict:
                raise

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def method(*args: Any, **kwargs: Any) -> Any:
            notify(before, *args, **kwargs)
            result = original(*args, **kwargs)
            notify(after, result, *args, **kwargs)
            return result

        return method

    scene.undo.callback(wrap_function(owner, name, wrap))


def _is_strict() -> bool:
    return os.environ.get("HEADWAY_STRICT") == "1"
