"""The base class of all observers, the `Evidence` they write facts to, and the observers of each
call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from headway.core.check import UNAVAILABLE
from headway.guard.measure.step_record import ExtraSignals
from headway.guard.recorder import Recorder
from headway.guard.script.launcher import ScriptLauncher
from headway.guard.script.script_guard import ScriptGuard
from headway.preflight.script_context import ScriptContext

# Observations become records of the stream that the guard writes and the checks read: facts as
# setup records, numbers as signals of the current step. Those made before there is a guard are
# queued.


class Evidence:
    """Writes the facts and numbers of the observers to the record."""

    def __init__(self, launch: ScriptLauncher) -> None:
        self._launch = launch
        self._waiting: list[tuple[int, str, Mapping[str, Any]]] = []
        self._early = ExtraSignals()
        launch.on_recorder.append(self._on_recorder)
        launch.on_guard.append(self._on_guard)

    def record(self, topic: str, facts: Mapping[str, Any]) -> None:
        """Write facts as plain data. `place` (see `ScriptContext.place`) is a line of user code.

        Every call is one record: write new facts only, not the same ones at every step.
        """
        recorder = self._launch.recorder
        if recorder is None:
            self._waiting.append((self._launch.step, topic, dict(facts)))
        else:
            recorder.setup(self._launch.step, topic, facts)

    def unavailable(self, topic: str, why: str) -> None:
        """Report why the facts of a topic are unavailable; checks that need them show the
        reason."""
        self.record(topic, {UNAVAILABLE: why})

    def value(self, name: str, value: float) -> None:
        """A signal of the current step, such as `component_grad/box`."""
        self._extras.value(name, value)

    def column(self, name: str, members: Mapping[str, float]) -> None:
        """Values along an axis, by name: `act/zero_share`, {"encoder.relu": 0.2}."""
        self._extras.column(name, members)

    @property
    def _extras(self) -> ExtraSignals:
        guard = self._launch.guard
        if guard is None:
            return self._early
        extras: ExtraSignals = guard.session.outcomes.extra_signals
        return extras

    def _on_recorder(self, recorder: Recorder) -> None:
        waiting, self._waiting = self._waiting, []
        for step, topic, facts in waiting:
            recorder.setup(step, topic, facts)

    def _on_guard(self, guard: ScriptGuard) -> None:
        values, members = self._early.values, self._early.members
        self._early = ExtraSignals()
        for name, value in values.items():
            guard.session.outcomes.extra_signals.value(name, value)
        for name, found in members.items():
            guard.session.outcomes.extra_signals.column(name, found)


# An observer receives the events of the script, measures, and writes facts to the evidence. It
# never changes what the script computes: it draws no random numbers, modifies no tensor of the
# script, and keeps no graph alive after the step. It receives no events while a bad step is re-run.


class TorchCall:
    """A call of a torch function or tensor method by the script."""

    __slots__ = ("args", "function", "kwargs", "name", "result")

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.result: Any = None
        """The result; None before it ran."""
        self.name: str = getattr(function, "__name__", None) or str(function)
        """`cross_entropy`."""

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument, by position or by keyword."""
        if position < len(self.args):
            return self.args[position]
        return self.kwargs.get(name, default)


class Observer:
    """Base class of all observers; override the events you need."""

    functions: ClassVar[Iterable[Callable[..., Any]]] = ()
    """The torch functions whose calls it receives."""
    calls_before: ClassVar[int | None] = None
    """It receives calls of functions only before this step; None: in every step."""
    every_function: bool = False
    """Whether it currently receives the calls of all functions; for the first few steps only."""
    now_and_then: ClassVar[bool] = False
    """Whether `every_function` may become true again later."""
    every_module: ClassVar[bool] = False
    """Whether it receives all modules, or only the outermost one."""

    def __init__(self, script: ScriptContext, evidence: Evidence) -> None:
        self.script = script
        self.evidence = evidence
        self.start()

    def start(self) -> None:
        """Initialise its state."""

    # Calls of torch functions.

    def function_begins(self, call: TorchCall) -> None:
        """A function in `functions` is about to run; it may raise."""

    def function_ended(self, call: TorchCall) -> None:
        """The function has returned."""

    # Modules.

    def module_begins(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """A module's forward begins; it is the last item of `script.stack`."""

    def module_ended(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        """The forward has returned; the module is still the last item of `script.stack`."""

    # Backward, clipping, scaling.

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        """A backward pass is about to run from these scalars; their graph still exists."""

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        """The gradients are complete."""

    def clipping(self, parameters: Sequence[Tensor], total: Tensor) -> None:
        """The user clips these gradients, whose norm is `total`."""

    def scaled(self, scaler: GradScaler, loss: Tensor, result: Tensor) -> None:
        """A scaler multiplied a loss."""

    # Optimizers and schedules.

    def optimizer_made(self, optimizer: Optimizer) -> None:
        """An optimizer was constructed."""

    def step_begins(self, optimizer: Optimizer) -> None:
        """The gradients are complete and the update is next; it may still be skipped."""

    def step_ended(self, optimizer: Optimizer) -> None:
        """The update was made or skipped."""

    def step_skipped(self, optimizer: Optimizer) -> None:
        """A GradScaler skipped the update: `step_begins` and `step_ended` are not called."""

    # Data.

    def pass_begun(self, loader: Any) -> None:
        """A DataLoader is iterated over."""

    def batch_drawn(self, loader: Any, batch: Any) -> None:
        """The loader returned a batch."""

    # States.

    def state_loaded(self, owner: Any, state: Any, result: Any) -> None:
        """`owner.load_state_dict(state)` was called on a module or an optimizer."""

    # The end.

    def crashed(self, error: BaseException) -> None:
        """The script raised this."""

    def finished(self) -> None:
        """The script has ended, or reached the maximum number of steps."""


# The observers of a function or a module, with their methods: found once, not at each call.


Handlers = tuple[tuple[Observer, Callable[..., None]], ...]
"""Observers, and their methods for an event."""


def find_handlers(observers: Sequence[Observer], what: str) -> Handlers:
    """Those of the observers that have a method of their own for this event."""
    return tuple(
        (item, getattr(item, what))
        for item in observers
        if getattr(type(item), what) is not getattr(Observer, what)
    )


@dataclass(frozen=True, slots=True)
class CallListeners:
    """The observers of a function or a module, before and after it runs."""

    begins: Handlers
    ended: Handlers


class ListenersByFunction(dict[Callable[..., Any], CallListeners | None]):
    """The observers of each function that was called; None for a function without any."""

    def __init__(
        self, observers: Mapping[Callable[..., Any], list[Observer]], unfiltered: Sequence[Observer]
    ) -> None:
        super().__init__()
        self._observers = observers
        self._unfiltered = unfiltered

    def __missing__(self, function: Callable[..., Any]) -> CallListeners | None:
        heard = [*self._observers.get(function, ()), *self._unfiltered]
        found = None
        if heard:
            found = CallListeners(
                find_handlers(heard, "function_begins"), find_handlers(heard, "function_ended")
            )
        self[function] = found
        return found
