"""Notices that training goes on while none of the guarded optimizers steps.

The usual reason: the optimizer was created again after the guard, for example to load a checkpoint.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from headway.checks.setup.hd003_nothing_guarded import UNGUARDED
from headway.guard.fail_safe import FailSafe
from headway.guard.recorder import Recorder
from headway.guard.step_outcomes import StepCounter
from headway.torch_adapters import live_objects, patching

FOREIGN_STEPS = 3
"""Steps in a row of another optimizer with the same parameters, before it is reported."""
PASSES_UNTIL_ARMED = 25
"""Backward passes without a guarded step after which steps of other optimizers are observed."""
MAX_PASSES = 1000
"""Backward passes without any step that are reported: more than gradients accumulate over."""


class NoMissingSteps:
    """For a guard whose launcher knows every optimizer, and for the replay of an incident."""

    def __init__(self, *_: Any) -> None:
        pass

    def close(self, *, well: bool) -> None:
        pass


class MissingSteps(patching.TorchListener):
    """Counts backward passes since the last guarded step, and observes who steps instead.

    On a healthy run it costs one comparison for each backward pass: the hook on all optimizers is
    installed only until the first step, and again after many passes without one.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        recorder: Recorder,
        counter: StepCounter,
        protected: FailSafe,
    ) -> None:
        self._protected = protected
        self._optimizers = optimizers
        self._recorder = recorder
        self._counter = counter
        self._seen = counter.made
        """The number of steps at the last backward pass."""
        self._passes = 0
        """Backward passes since the last guarded step."""
        self._foreign = 0
        self._trains = False
        """Whether a backward pass has filled gradients of a guarded optimizer."""
        self.reported = False
        self._hook: Any = None
        self._arm()
        patching.add_listener(self)

    def close(self, *, well: bool) -> None:
        """The guard closes; `well`: no error stopped the training."""
        patching.remove_listener(self)
        self._disarm()
        counter = self._counter
        if well and self._trains and counter.made == counter.first:
            self._report(
                f"backward() ran {_times(self._passes)}, but none of the guarded optimizers "
                "stepped before guard.close()"
            )

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        made = self._counter.made
        if made != self._seen:
            self._seen, self._passes, self._foreign = made, 0, 0
            if self._hook is not None:
                self._disarm()
            return
        self._passes += 1
        if not self._trains:
            self._trains = self._has_gradients()
        if self.reported:
            return
        if self._hook is None and self._passes >= PASSES_UNTIL_ARMED:
            self._arm()
        if self._passes == MAX_PASSES and self._has_gradients():
            self._report(
                f"backward() ran {MAX_PASSES} times since the last step of a guarded optimizer"
            )

    def _arm(self) -> None:
        # Weak: torch's table of hooks must not keep a guard alive that was dropped.
        watch = weakref.WeakMethod(self._other_stepped)

        def stepped(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            method = watch()
            if method is not None:
                method(optimizer)

        self._hook = register_optimizer_step_post_hook(stepped)
        weakref.finalize(self, self._hook.remove)

    def _disarm(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _other_stepped(self, optimizer: Optimizer) -> None:
        if self.reported or self._counter.made != self._seen:
            return
        wrapped = (optimizer, live_objects.wrapped_optimizer(optimizer))
        inner = [live_objects.wrapped_optimizer(item) for item in self._optimizers]
        if any(item is other for item in (*self._optimizers, *inner) for other in wrapped if other):
            return
        guarded = {id(p) for item in self._optimizers for p in _parameters(item)}
        if any(id(p) in guarded for p in _parameters(optimizer)):
            self._foreign += 1
            if self._foreign >= FOREIGN_STEPS:
                self._report(
                    f"another {type(optimizer).__name__} steps the same parameters, created after "
                    "the one that the guard knows"
                )

    def _has_gradients(self) -> bool:
        return any(p.grad is not None for item in self._optimizers for p in _parameters(item))

    def _report(self, why: str) -> None:
        if self.reported:
            return
        self.reported = True
        self._disarm()
        facts = {
            "why": why,
            "advice": "Create the guard after the last optimizer is created, and pass it every "
            "optimizer that steps.",
            "backwards": self._passes,
            "command": "guard",
        }
        self._protected(self._recorder.event, self._counter.current, UNGUARDED, facts)


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
