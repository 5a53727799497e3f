"""Checks the backward passes of a script that has no torch optimizer: weights updated by hand, or
by an optimizer that is not a `torch.optim.Optimizer`. Those of fastai and Keras ask before they
update, so that their updates can be skipped.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from headway.core.incident_events import INCIDENT
from headway.core.numbers import encode_numbers
from headway.errors import TrainingHalted
from headway.guard.fail_safe import FailSafe
from headway.guard.recorder import Recorder
from headway.policy import Rung, StepVerdict
from headway.rerun.step_tracer import StepTracer
from headway.torch_adapters import live_objects

MAX_COMPARED = 1_000_000
"""Elements of a weight that is copied, to see whether it changes."""
COMPARED_WEIGHTS = 4
RESCAN_INTERVAL = 100
"""Backward passes between two searches for the weights."""
MAX_SHARE = 0.1
"""Share of the time of the script that measuring may take; passes above it are not measured."""
FIRST_PASSES = 50
"""Backward passes that are measured in any case."""

Numbers = tuple[int, Tensor, Tensor]
"""Number of the pass, loss and gradient norm; the last two on their device."""


class BackwardPasses:
    """Records loss and gradient norm of the backward passes: all of them, unless a pass is so
    short that measuring it would slow down the script.

    Numbers are read one pass late, so that the script does not wait for its device. Nothing is
    recorded before a weight has changed: until then it may be no training.
    """

    def __init__(
        self,
        make_recorder: Callable[[], Recorder],
        give_up: Callable[[str], None],
        *,
        every: bool,
    ) -> None:
        """`give_up` is called while an exception of headway is handled, which must not end the
        script. `every`: measure every pass, whatever it costs."""
        self.count = 0
        self.updates = 0
        """Updates of optimizers that ask before they update."""
        self.weights_change = False
        """Whether the weights change between two passes."""
        self._make_recorder = make_recorder
        self._give_up = give_up
        self._weights: list[Tensor] = []
        self._copies: list[tuple[Tensor, Tensor]] = []
        """Some weights, each with a copy."""
        self._waiting: list[Numbers] = []
        self._every = every
        self._started: float | None = None
        self._spent = 0.0
        self._last: list[Tensor] = []
        """The loss of the last pass, if it was not measured: NaN stays in the weights. Or if an
        optimizer asks before it updates, which is when the pass is measured."""

    @property
    def step(self) -> int:
        """Number of the current update or pass, counted from 0; 0 while the weights stay."""
        return self.updates or (self.count if self.weights_change else 0)

    def begin(self, roots: Sequence[Tensor]) -> None:
        """A backward pass begins from these scalars."""
        self._protected(self._compare_weights, roots)

    def ended(self, roots: Sequence[Tensor], tracer: StepTracer) -> None:
        """The backward pass has filled the gradients; `tracer` traces it, if it is running."""
        self._protected(self._measure_pass, roots)
        if tracer.running:
            self._protected(self._explain, tracer)

    def skips_update(self, gradients: Sequence[Tensor]) -> bool:
        """An optimizer is about to apply these gradients: whether it must not.

        Raises TrainingHalted where the policy ends the run.
        """
        return bool(self._protected(self._judge_update, gradients))

    def _protected(self, work: Callable[..., Any], about: Any) -> Any:
        try:
            with FailSafe.apart or nullcontext():
                return work(about)
        except TrainingHalted:
            raise
        except Exception:  # ours: the script goes on
            self._give_up("backward passes cannot be checked")
            return None

    def _compare_weights(self, roots: Sequence[Tensor]) -> None:
        if self.updates:
            return
        if roots and self.count % RESCAN_INTERVAL == 0:
            known = {id(weight) for weight in self._weights}
            leaves = {id(leaf): leaf for leaf in live_objects.find_leaves(roots)}
            self._weights += [leaf for key, leaf in leaves.items() if key not in known]
        if self._copies and not self.weights_change:
            self._compare()
        if not self._copies:
            small = [weight for weight in self._weights if weight.numel() <= MAX_COMPARED]
            small.sort(key=torch.numel)
            self._copies = [(item, item.detach().clone()) for item in small[:COMPARED_WEIGHTS]]

    def _measure_pass(self, roots: Sequence[Tensor]) -> None:
        if not roots:
            return
        self.count += 1
        if self.updates:
            self._last = [root.detach() for root in roots]
            return
        began = time.perf_counter()
        if self._started is None:
            self._started = began
        too_dear = self._spent > MAX_SHARE * (began - self._started)
        if too_dear and self.count > FIRST_PASSES and not self._every:
            self._last = [root.detach() for root in roots]
            return
        self._last = []
        self._measure(roots)
        self._spent += time.perf_counter() - began

    def _explain(self, tracer: StepTracer) -> None:
        """The pass that has just ended is traced: record where its bad values come from."""
        traced = None if self.updates else tracer.pass_over(self.count)
        if traced is None or not traced.origins or not self.weights_change:
            return
        wording = importlib.import_module("headway.explain.explanation")
        step = self.count - 1
        explanation = wording.add_sentences(
            wording.Explanation(step, "nonfinite", "deterministic", origins=traced.origins)
        )
        self._make_recorder().event(step, INCIDENT, encode_numbers(explanation.to_dict()))

    def _judge_update(self, gradients: Sequence[Tensor]) -> bool:
        if not self.updates:
            self._last = self._last or [loss for _, loss, _ in self._waiting[-1:]]
            self.forget_weights()
        if not gradients or not self._last:
            return False
        self.weights_change = True
        step, self.updates = self.updates, self.updates + 1
        loss, norm = (float(value) for value in _numbers(self._last, gradients))
        bad = not (math.isfinite(loss) and math.isfinite(norm))
        recorder = self._make_recorder()
        recorder.step(step, {"loss": loss, "grad_norm": norm}, {}, held=bad)
        if bad or not recorder.ladder().calm:
            action = recorder.judge(
                StepVerdict(step, nonfinite=bad), frozenset({Rung.SKIP, Rung.HALT})
            )
            if action.rung is Rung.HALT:
                raise TrainingHalted(
                    f"training halted at step {step}: {action.reason}. The weights are those of "
                    "the last good step"
                )
        return bad

    def _measure(self, roots: Sequence[Tensor]) -> None:
        gradients = [weight.grad for weight in self._weights if weight.grad is not None]
        if not gradients:
            return
        loss, norm = _numbers(roots, gradients)
        self._waiting.append((self.count - 1, loss, norm))
        if self.weights_change:
            self._record(len(self._waiting) - 1)
        else:
            del self._waiting[:-1]

    def finish(self) -> None:
        """The script has ended."""
        if self._copies and not self.weights_change:
            self._compare()
        if self.weights_change and not self.updates:
            if self._last:
                self._measure(self._last)
            self._record(len(self._waiting))
        self.forget()

    def forget(self) -> None:
        """Release the weights and the last losses."""
        self.forget_weights()
        self._last = []

    def forget_weights(self) -> None:
        """Release the weights and what was measured of them."""
        self._weights, self._copies, self._waiting = [], [], []

    def _record(self, count: int) -> None:
        recorder = self._make_recorder()
        for number, loss, norm in self._waiting[:count]:
            values = {"loss": float(loss), "grad_norm": float(norm)}
            recorder.step(number, values, {}, held=False)
        del self._waiting[:count]

    def _compare(self) -> None:
        # NaN is unlike itself: a weight that is NaN and stays so has not changed.
        self.weights_change = any(
            not torch.equal(weight.detach().nan_to_num(), copy.nan_to_num())
            for weight, copy in self._copies
        )


def _numbers(roots: Sequence[Tensor], gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The loss and the norm of the gradients, on their device."""
    with torch.no_grad():
        loss = roots[0].detach().float().reshape(())
        for root in roots[1:]:
            loss = loss + root.detach().float().reshape(())
        norms = [torch.linalg.vector_norm(_dense(item).float()) for item in gradients]
        norm = torch.linalg.vector_norm(torch.stack([item.to(loss.device) for item in norms]))
    return loss, norm


def _dense(gradient: Tensor) -> Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient
