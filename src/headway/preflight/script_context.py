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
from headway.torch_adapters.frames import (
    describe_frame,
    find_running_frame,
    is_installed_file,
    running_frames,
)
from headway.torch_adapters.module_stack import user_path
from headway.torch_adapters.patching import wrap_function

# The lines that construct, register and initialise modules and weights: a finding about a layer
# points to the line to change, such as `nn.LSTM(…)` without `batch_first` or an `nn.init` call.

MOST_PROVENANCE_LINES = 20_000
"""Maximum number of lines of each kind."""
MOST_TIES = 100

LineFacts: TypeAlias = dict[str, Any] | None


class ModuleProvenance:
    """Records the line that registers each module and parameter."""

    def __init__(
        self,
        place: Callable[[], LineFacts],
        undo: ExitStack,
        caller: Callable[[], LineFacts] = lambda: None,
    ) -> None:
        self._place = place
        self._caller = caller
        self.follow_callers = False
        """Whether to record which line makes a module register something in a method of its own."""
        self._callers: dict[int, LineFacts] = {}
        self._count = 0
        self._made: dict[int, tuple[weakref.ref[Any], LineFacts]] = {}
        """Module → the line that was constructing it when its first member was registered."""
        self._given: dict[int, tuple[weakref.ref[Any], str, LineFacts, int]] = {}
        """Module or parameter → its owner, its name there, the line that registered it, and
        when."""
        self._kinds: dict[type, list[LineFacts]] = {}
        """Class → the lines that construct it: for copies, which no hook reports."""
        self.ties: list[tuple[weakref.ref[Any], str, weakref.ref[Any], str]] = []
        """Two modules and the names under which both were given one parameter."""
        self._written: dict[int, tuple[LineFacts, int]] = {}
        """Memory address → the line that wrote it last, and when."""
        for register in (
            register_module_module_registration_hook,
            register_module_parameter_registration_hook,
        ):
            undo.callback(register(self._registers).remove)

    @property
    def now(self) -> int:
        """A counter of events: later events have larger values."""
        return self._count

    def wrote(self, tensor: Tensor) -> None:
        """Record an in-place write to a tensor."""
        memory = _memory_of(tensor)
        if memory and (memory in self._written or len(self._written) < MOST_PROVENANCE_LINES):
            self._count += 1
            self._written[memory] = (self._place(), self._count)

    def of_module(self, module: nn.Module) -> LineFacts:
        """The line that constructs a module; for a copy, the only line that constructs its
        class."""
        known = self._made.get(id(module))
        if known is not None and known[0]() is module:
            return known[1]
        place, when = self.registered(module)
        if when:
            return place
        lines = self._kinds.get(type(module), [])
        return lines[0] if len(lines) == 1 else None

    def of_parameter(self, parameter: Tensor) -> LineFacts:
        """The line that initialises a parameter."""
        return self.last_change(parameter)[0]

    def last_change(self, parameter: Tensor) -> tuple[LineFacts, int]:
        """The line that created or wrote a parameter last, and when."""
        registered = self.registered(parameter)
        written = self._written.get(_memory_of(parameter), (None, 0))
        return max(registered, written, key=lambda known: known[1])

    def registered(self, item: Any) -> tuple[LineFacts, int]:
        """The line that registered it last, and when; (None, 0) if unknown."""
        owner, name, place, when = self._given.get(id(item), (None, "", None, 0))
        # Through the owner: a weak reference to a tensor would prevent torch from swapping it.
        at = None if owner is None else owner()
        if at is None:
            return None, 0
        return (place, when) if is_registered(at, name, item) else (None, 0)

    def name_in_owner(self, item: Any) -> str:
        """The name it was registered with: `3` in a Sequential; empty if unknown."""
        return self._given[id(item)][1] if self.registered(item)[1] else ""

    def called_at(self, when: int) -> LineFacts:
        """The line outside of any module that led to a registration."""
        return self._callers.get(when)

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
        if self.follow_callers:
            self._callers[self._count] = self._caller()
        if isinstance(item, Tensor) and len(self.ties) < MOST_TIES:
            first, known_as, *_ = self._given.get(id(item), (None, ""))
            other = None if first is None else first()
            if other is not None and other is not owner and is_registered(other, known_as, item):
                self.ties.append((weakref.ref(other), known_as, weakref.ref(owner), name))
        if item is not None:
            self._given[id(item)] = (weakref.ref(owner), name, place, self._count)


def _memory_of(tensor: Tensor) -> int:
    if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout is not torch.strided:
        return 0
    return 0 if tensor.is_meta else tensor.data_ptr()


class ScriptContext:
    """The running script: step, names of modules and parameters, current line."""

    def __init__(self, launch: ScriptLauncher, *, overfit: bool = False) -> None:
        self.launch = launch
        self.overfit = overfit
        """Whether to test that the model can overfit one batch."""
        self.data_passes: float | None = None
        """How often the samples were seen so far, on average; None if unknown."""
        self.stack: list[nn.Module] = []
        """The modules whose forward is running, outermost first."""
        self.undo = ExitStack()
        """Undoes the patches of the observers at the end."""
        self.loader_lines: weakref.WeakKeyDictionary[Any, LineFacts] = weakref.WeakKeyDictionary()
        """DataLoader → the line that constructs it."""
        self.origins = ModuleProvenance(self.place, self.undo, self.place_outside_modules)
        """The lines that construct modules and weights."""
        self._machinery: dict[CodeType, bool] = {}
        """Cache: whether a code object belongs to torch, Python or headway."""
        self._kinds: dict[CodeType, int] = {}
        """Cache: whose a code object is, see `find_running_frame`."""
        self._lines: dict[tuple[CodeType, int], dict[str, Any]] = {}
        """Cache: lines of code as plain data; a loop writes to tensors on the same few."""
        self._paths: dict[int, str] = {}
        self._parameters: dict[int, str] = {}
        launch.on_guard.append(lambda _: self._forget_names())

    @property
    def step(self) -> int:
        """The current step, from 0."""
        guard = self.launch.guard  # asked by observers at every call
        return self.launch.step if guard is None else guard.step

    @property
    def models(self) -> Sequence[nn.Module]:
        """The trained models; empty before the first backward pass."""
        return () if self.launch.guard is None else self.launch.guard.models

    @property
    def optimizers(self) -> Sequence[Optimizer]:
        """All optimizers; empty before the first backward pass."""
        return () if self.launch.guard is None else self.launch.guard.optimizers

    def path_of(self, module: nn.Module) -> str:
        """A module's path in its model: `encoder.layers.0`; its class name if it has none."""
        if not self._paths:
            self._learn_names()
        return self._paths.get(id(module)) or type(module).__name__

    def name_of(self, parameter: Tensor) -> str | None:
        """A parameter's name in its model."""
        if not self._parameters:
            self._learn_names()
        return self._parameters.get(id(parameter))

    def place(self) -> dict[str, Any] | None:
        """The current line of user code, as plain data; a framework's line if there is none."""
        frame = find_running_frame(self._kinds)
        if frame is None:
            return None
        key = (frame.f_code, frame.f_lineno)
        known = self._lines.get(key)
        if known is None:
            known = self._lines[key] = describe_frame(frame).to_dict()
        return {**known}

    def place_outside_modules(self) -> dict[str, Any] | None:
        """The current line of user code that is in no method of a module."""
        for frame in self.frames():
            inside = isinstance(frame.f_locals.get("self"), nn.Module)
            if not inside and not is_installed_file(frame.f_code.co_filename):
                return describe_frame(frame).to_dict()
        return None

    def users_own_call(self) -> bool:
        """Whether user code, not a framework, made the current call."""
        frame = next(self.frames(), None)
        return frame is not None and not is_installed_file(frame.f_code.co_filename)

    def frames(self) -> Iterator[FrameType]:
        """The running frames, innermost first, without those of torch, Python and headway."""
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


# Identifies a call across steps. A layer is identified by its path, a functional call by its module
# and line; a loop makes several calls on one line, so these are numbered.

CLOSE_STEPS, THEN_EVERY = 5, 5
MOST_ON_A_LINE = 16
"""Maximum number of calls of one line per pass; a loop over time steps has many more."""


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
        """The same for this call in the next step."""
        place = self.place or {}
        line = () if self.is_torch_module else (place.get("file"), place.get("line"))
        return (id(self.module), *line, self.number)

    @property
    def is_torch_module(self) -> bool:
        """Whether the innermost module belongs to torch: then it is the call."""
        return type(self.module).__module__.startswith("torch.nn")

    def name(self, script: ScriptContext) -> str:
        """`encoder.act`, or `encoder (model.py:31)`; requires known models."""
        path = "" if self.module is None else script.path_of(self.module)
        if self.module is not None and not self.is_torch_module and self.module in script.models:
            path = ""
        if not self.is_torch_module and self.place:
            line = f"{os.path.basename(str(self.place.get('file')))}:{self.place.get('line')}"
            path = f"{path} ({line})" if path else line
        return path + (f" #{self.number + 1}" if self.number else "")


class CallSites:
    """Identifies calls, and numbers those of one line since the last restart."""

    def __init__(self, script: ScriptContext) -> None:
        self._script = script
        self._seen: dict[tuple[Any, ...], int] = {}

    def here(self) -> CallSite | None:
        """The current call; None if its line has too many calls."""
        stack = self._script.stack
        site = CallSite(stack[-1] if stack else None, self._script.place())
        number = self._seen.get(site.key, 0)
        self._seen[site.key] = number + 1
        if number >= MOST_ON_A_LINE:
            return None
        return CallSite(site.module, site.place, number) if number else site

    def restart(self) -> None:
        """Restart the numbering at the beginning of a pass."""
        self._seen.clear()


# Observes Python methods of torch that have no hook: schedules, autocast, torch.load.


def observe_method(
    script: ScriptContext,
    owner: Any,
    name: str,
    *,
    before: Callable[..., None] | None = None,
    after: Callable[..., None] | None = None,
) -> None:
    """Call `before(*args)` and `after(result, *args)` around every call of `owner.name`.

    If one of them raises, the script continues and they are not called again.
    """
    strict = _is_strict()
    failed = [False]

    def notify(observer: Callable[..., None] | None, *args: Any, **kwargs: Any) -> None:
        if observer is None or failed[0]:
            return
        try:
            observer(*args, **kwargs)
        except Exception:  # an error of the observer must not stop the script
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

    script.undo.callback(wrap_function(owner, name, wrap))


def _is_strict() -> bool:
    return os.environ.get("HEADWAY_STRICT") == "1"
