"""A guard around a script that does not know of it.

The optimizers' global hooks and torch's backward tell when something trains. At the first backward
pass the models and optimizers are found and a guard is made for them; an optimizer that turns up
later gets a new one, which goes on counting and recording where the old one stopped.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn

from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from holdfast.config import Settings
from holdfast.live import discovery, drawn, seams
from holdfast.live.guard import Guard
from holdfast.live.notices import Notices
from holdfast.live.recorder import Recorder
from holdfast.live.rhythm import Rhythm
from holdfast.live.snapshots import Snapshots
from holdfast.policy import Policy
from holdfast.torch_tools.places import is_installed, is_machinery


class EnoughSteps(BaseException):
    """The watched steps are done. No Exception: a script's `except Exception` is not meant."""


class ScriptGuard(Guard):
    """A guard that a launch has made; all of a launch write one record."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[Optimizer],
        make_recorder: Callable[..., Recorder],
        rhythm: Rhythm,
        **more: Any,
    ) -> None:
        self._make_recorder = make_recorder  # type: ignore[assignment]
        self._rhythm = rhythm
        super().__init__(models, optimizers, **more)
        self.models = tuple(models)
        self.optimizers = tuple(optimizers)

    @property
    def session(self) -> Any:
        """What others may add to: see `Session.extras`."""
        return self._session

    def hear_backward(self, roots: Sequence[Tensor]) -> None:
        """The backward pass that made somebody look for models begins now."""
        self._observer.backward_begins(roots)

    def retire(self) -> None:
        """Stop watching and leave the record open: another guard takes over."""
        self._close(well=True, last=False)


class Launch:
    """Watches whatever trains while it lasts."""

    def __init__(
        self,
        *,
        settings: Settings,
        policy: Policy,
        run_dir: str | Path | None = None,
        max_norm: float | None = None,
        rhythm: Rhythm | None = None,
        snapshots: Snapshots | None = None,
        max_steps: int | None = None,
        max_seconds: float | None = None,
    ) -> None:
        """After `max_steps` steps of some optimizer, or `max_seconds`, EnoughSteps is raised."""
        self.settings = settings
        self.policy = policy
        self.recorder: Recorder | None = None
        self.guard: ScriptGuard | None = None
        self.steps: dict[int, int] = {}
        """Steps made, by the identity of the optimizer."""
        self.skipped: dict[int, int] = {}
        """Steps a GradScaler left out."""
        self.backwards = 0
        self.enough = False
        self.on_guard: list[Callable[[ScriptGuard], None]] = []
        """Told of every guard that is made."""
        self.on_recorder: list[Callable[[Recorder], None]] = []
        """Told of the recorder, as soon as there is one."""
        self.on_batch: list[Callable[[Any, Any], None]] = []
        """Told of (loader, batch) when a batch is drawn."""
        self.on_pass: list[Callable[[Any], None]] = []
        """Told of a loader that is iterated over."""
        self.on_step: list[Callable[[Optimizer], None]] = []
        """Told of an optimizer that has stepped, after its guard was."""
        self.notices = Notices()
        self._run_dir = run_dir
        self._max_norm = max_norm
        self._rhythm = rhythm or Rhythm()
        self._snapshots = snapshots
        self._max_steps = max_steps
        self._max_seconds = max_seconds
        self._kept: list[Optimizer] = []  # so that no identity is given twice
        self._stack = ExitStack()
        self._pid_thread = threading.get_ident()

    def __enter__(self) -> Launch:
        hooks = (
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        )
        for hook in hooks:
            self._stack.callback(hook.remove)
        seams.install(self)
        self._stack.callback(seams.uninstall, self)
        self._stack.enter_context(drawn.listening(self))
        self._limit_time()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and self.recorder is not None and not isinstance(error, EnoughSteps):
            step = 0 if self.guard is None else self.guard.step
            what = {"error": f"{type(error).__name__}: {error}"}
            self.recorder.event(step, "exception", what)
        self._stack.close()

    def close(self) -> None:
        """The run is over: the guard closes, the checks say their last word."""
        if self.guard is not None:
            self.guard.close()
        else:
            self.make_recorder(
                settings=self.settings,
                policy=self.policy,
                run_dir=self._run_dir,
                facts={},
                notices=self.notices,
            ).close(0)

    @property
    def step(self) -> int:
        """The step being made, counted from 0."""
        return 0 if self.guard is None else self.guard.step

    @property
    def replaying(self) -> bool:
        """Whether what happens now is a repetition: not to be counted or looked at."""
        return self.guard is not None and self.guard.replaying

    def make_recorder(self, **how: Any) -> Recorder:
        """The one recorder of this launch; made by the first guard."""
        if self.recorder is None:
            self.recorder = Recorder(**{"rhythm": self._rhythm, **how})
            for told in self.on_recorder:
                told(self.recorder)
        return self.recorder

    # What the seams tell.

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        self.backwards += 1
        if self.guard is None:
            self._make_guard(roots)
            if self.guard is not None:
                self.guard.hear_backward(roots)

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        pass

    def clipping(self, parameters: Any, norms: Any, total: Any) -> None:
        pass

    def clipped(self, total: Any, max_norm: float) -> None:
        pass

    def scaled(self, scaler: GradScaler, loss: Tensor, result: Tensor) -> None:
        pass

    def scaler_steps(self, scaler: GradScaler, optimizer: Optimizer) -> None:
        self._before_scaler = self.steps.get(id(optimizer), 0)

    def scaler_stepped(self, scaler: GradScaler, optimizer: Optimizer) -> None:
        if not self.replaying and self.steps.get(id(optimizer), 0) == self._before_scaler:
            self.skipped[id(optimizer)] = self.skipped.get(id(optimizer), 0) + 1
            self._stop_if_enough(optimizer)

    # What the loaders tell.

    def pass_begun(self, loader: Any) -> None:
        for told in self.on_pass:
            told(loader)

    def batch_wanted(self, frame: FrameType | None) -> Iterator[Any] | None:
        guard = self.guard
        if guard is None or guard.replaying:
            return None
        guard.step_done()
        if not guard.step_waits or frame is None or not _is_users(frame):
            return None
        return guard.run_again(frame)

    def batch_drawn(self, loader: Any, batch: Any, waited: float) -> None:
        for told in self.on_batch:
            told(loader, batch)
        if self.guard is not None:
            self.guard.saw_batch(batch, waited)

    # What the optimizers tell.

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self.guard is None or all(optimizer is not known for known in self.guard.optimizers):
            self._make_guard((), optimizer)

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self.replaying:
            return
        if id(optimizer) not in self.steps:
            self._kept.append(optimizer)
        self.steps[id(optimizer)] = self.steps.get(id(optimizer), 0) + 1
        for told in self.on_step:
            told(optimizer)
        self._stop_if_enough(optimizer)

    def _stop_if_enough(self, optimizer: Optimizer) -> None:
        made = self.steps.get(id(optimizer), 0) + self.skipped.get(id(optimizer), 0)
        if self._max_steps is not None and made >= self._max_steps:
            self._stop()

    def _stop(self, *_: Any) -> NoReturn:
        self.enough = True
        raise EnoughSteps

    def _limit_time(self) -> None:
        if self._max_seconds is None:
            return
        with suppress(ValueError, AttributeError):  # not the main thread, or no such signal
            before = signal.signal(signal.SIGALRM, self._stop)
            signal.setitimer(signal.ITIMER_REAL, self._max_seconds)
            self._stack.callback(signal.signal, signal.SIGALRM, before)
            self._stack.callback(signal.setitimer, signal.ITIMER_REAL, 0)

    def _make_guard(self, roots: Sequence[Tensor], stepping: Optimizer | None = None) -> None:
        optimizers = discovery.optimizers_alive()
        if stepping is not None and all(stepping is not item for item in optimizers):
            optimizers.append(stepping)
        models = discovery.models_of(optimizers, roots) if optimizers else []
        models = models or discovery.loose_tensors(optimizers)
        if not models:
            return
        old, self.guard = self.guard, None
        if old is not None:
            old.retire()
            if self.recorder is not None and old.step:
                self.recorder.begin_segment()
        self.guard = ScriptGuard(
            models,
            optimizers,
            self.make_recorder,
            self._rhythm,
            run_dir=self._run_dir,
            max_norm=self._max_norm,
            policy=self.policy,
            settings=self.settings,
            snapshots=self._snapshots,
        )
        if old is not None:
            self.guard.count_from(old.step)
        for told in self.on_guard:
            told(self.guard)


def _is_users(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return not is_machinery(file) and not is_installed(file)
