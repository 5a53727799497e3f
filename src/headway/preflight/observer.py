"""The base class of all observers, the call they receive, and the `Evidence` they write facts
to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from headway.engine import UNAVAILABLE
from headway.guard.measure.step_record import ExtraSignals
from headway.guard.recorder import Recorder
from headway.guard.script.launcher import ScriptLauncher
from headway.guard.script.script_guard import ScriptGuard
from headway.preflight.script_context import ScriptContext

# Where observers put what they saw.

# It becomes records of the one stream that a guard writes and the checks read: facts as set-up
# records, numbers as part of the step being made. What is said before there is a guard waits for
# it.


class Evidence:
    """Facts and numbers on their way into the record."""

    def __init__(self, launch: ScriptLauncher) -> None:
        self._launch = launch
        self._waiting: list[tuple[int, str, Mapping[str, Any]]] = []
        self._early = ExtraSignals()
        launch.on_recorder.append(self._recorder_came)
        launch.on_guard.append(self._guard_came)

    def tell(self, topic: str, facts: Mapping[str, Any]) -> None:
        """Facts about something seen: plain data only. A `place` (see `Scene.place`) names a line.

        Every call is one record: say what is new, not the same thing at every step.
        """
        recorder = self._launch.recorder
        if recorder is None:
            self._waiting.append((self._launch.step, topic, dict(facts)))
        else:
            recorder.setup(self._launch.step, topic, facts)

    def unavailable(self, topic: str, why: str) -> None:
        """The facts of a topic cannot be had: the checks that need them say so."""
        self.tell(topic, {UNAVAILABLE: why})

    def value(self, name: str, value: float) -> None:
        """A number of the step being made, such as `component_grad/box`."""
        self._extras.value(name, value)

    def column(self, name: str, members: Mapping[str, float]) -> None:
        """Numbers along an axis, by name: `act/zero_share`, {"encoder.relu": 0.2}."""
        self._extras.column(name, members)

    @property
    def _extras(self) -> ExtraSignals:
        guard = self._launch.guard
        if guard is None:
            return self._early
        extras: ExtraSignals = guard.session.outcomes.extra_signals
        return extras

    def _recorder_came(self, recorder: Recorder) -> None:
        waiting, self._waiting = self._waiting, []
        for step, topic, facts in waiting:
            recorder.setup(step, topic, facts)

    def _guard_came(self, guard: ScriptGuard) -> None:
        values, members = self._early.values, self._early.members
        self._early = ExtraSignals()
        for name, value in values.items():
            guard.session.outcomes.extra_signals.value(name, value)
        for name, found in members.items():
            guard.session.outcomes.extra_signals.column(name, found)


# What an observer is: it hears what the script does, measures, and puts facts into the evidence.

# One idea, one file in `observers/`. An observer never changes what the script computes: it draws
# no random number, changes no tensor that is not its own, and keeps no graph alive after the step.
# It hears nothing while a bad step is being run again.


@dataclass(slots=True)
class TorchCall:
    """A call of a torch function or tensor method, as the script made it."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    result: Any = None
    """What it gave; None before it ran."""
    name: str = field(init=False)
    """`cross_entropy`."""

    def __post_init__(self) -> None:
        name = getattr(self.function, "__name__", None)
        self.name = str(self.function) if name is None else name

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument, however it was passed."""
        if position < len(self.args):
            return self.args[position]
        return self.kwargs.get(name, default)


class Observer:
    """Base of all observers: take what you need, leave the rest."""

    functions: ClassVar[Iterable[Callable[..., Any]]] = ()
    """The torch functions it wants to hear of (see `spellings.py`)."""
    every_function: bool = False
    """Whether it hears of every function, for as long as it is so: for the first few steps only."""
    now_and_then: ClassVar[bool] = False
    """Whether `every_function` may become true again later."""
    every_module: ClassVar[bool] = False
    """Whether it hears of all modules, or of the outermost only."""

    def __init__(self, scene: ScriptContext, evidence: Evidence) -> None:
        self.script = scene
        self.evidence = evidence
        self.start()

    def start(self) -> None:
        """Set up what it keeps."""

    # Calls of torch functions.

    def function_begins(self, call: TorchCall) -> None:
        """A function it asked for is about to run; it may well raise."""

    def function_ended(self, call: TorchCall) -> None:
        """It has run."""

    # Modules.

    def module_begins(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """A module's forward begins; `scene.stack` holds it as the last."""

    def module_ended(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        """It ended; `scene.stack` still holds it as the last."""

    # Backward, clipping, scaling.

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        """A backward pass is about to run from these scalars; their graph is still whole."""

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        """It has filled the gradients."""

    def clipping(self, parameters: Sequence[Tensor], total: Tensor) -> None:
        """The user clips these gradients, whose norm is `total`."""

    def scaled(self, scaler: GradScaler, loss: Tensor, result: Tensor) -> None:
        """A scaler multiplied a loss."""

    # Optimizers and schedules.

    def optimizer_made(self, optimizer: Optimizer) -> None:
        """An optimizer was constructed."""

    def step_begins(self, optimizer: Optimizer) -> None:
        """The gradients are there and the update is next; nothing was held back yet."""

    def step_ended(self, optimizer: Optimizer) -> None:
        """The update was made, unless it was held back."""

    def step_skipped(self, optimizer: Optimizer) -> None:
        """A GradScaler has left the update out: `step_begins` and `step_ended` are not heard."""

    # Data.

    def pass_begun(self, loader: Any) -> None:
        """A DataLoader is iterated over."""

    def batch_drawn(self, loader: Any, batch: Any) -> None:
        """A batch came out of it."""

    # States.

    def state_loaded(self, owner: Any, state: Any, result: Any) -> None:
        """`owner.load_state_dict(state)` was called on a module or an optimizer."""

    # The end.

    def crashed(self, error: BaseException) -> None:
        """The script raised this."""

    def finished(self) -> None:
        """The script is over, or enough steps were made."""
