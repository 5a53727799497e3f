"""Traces the step after a bad one that could not be run again.

Most faults come back at once, so every op of the next forward and backward is traced as it happens.
If that step is bad as well, its trace names the line for both. The values that the script computes
stay the same.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer

from headway.output.notices import logger
from headway.rerun.bad_step import BadStep, MissedStep, RerunResults
from headway.rerun.protocol import RerunHost, trained_parameters
from headway.rerun.recorded_batch import RecordedBatch
from headway.torch_adapters import patching
from headway.torch_adapters.modes import current_dispatch_mode
from headway.torch_adapters.nonfinite_scan import batch_tensors, scan_batch
from headway.torch_adapters.rng import RngState

if TYPE_CHECKING:
    from headway.explain.explanation import Origin
    from headway.explain.investigation import InvestigationResult

MAX_TRACED = 8
"""Maximum number of steps that are traced: each takes many times as long."""


class NextStepTrace:
    """Traces the step after a bad one, in a single process or on each of several ranks."""

    def __init__(self) -> None:
        self._left = MAX_TRACED
        self._not_before = 0
        self._running: _TracedStep | None = None
        self._due: MissedStep | None = None
        """The bad step that the current one may explain."""
        self._result: _TraceResult | None = None
        """The trace of the current step, once its gradients are there."""

    def arm(self, host: RerunHost, missed: MissedStep) -> None:
        """A step was bad and cannot be run again: trace the one that begins now."""
        if self._left <= 0 or self._running is not None or missed.step < self._not_before:
            return
        self._left -= 1
        self._due = missed  # also if it cannot be traced: other ranks will ask
        try:
            self._running = _TracedStep(host, missed)
        except Exception:  # ours: the script goes on
            logger.debug("the next step cannot be traced", exc_info=True)
            self._left = 0

    def step_comes(self) -> None:
        """The gradients are there, unless the optimizer's closure will compute them."""
        running = self._running
        if running is not None and running.backward_began:
            self.disarm()
            self._result = running.result()

    def knows(self) -> bool:
        """Whether the current step names the line of the bad one before it."""
        self.step_comes()
        return self._due is not None and self._result is not None and bool(self._result.origins)

    def step_over(self, host: RerunHost, results: RerunResults, missed: MissedStep | None) -> None:
        """The step is over; `missed`: it is another bad one."""
        self.step_comes()
        (result, self._result), (due, self._due) = (self._result, None), (self._due, None)
        if due is not None and missed is not None:
            self._conclude(host, results, due, result)

    def disarm(self) -> None:
        """Something else than the step is about to run."""
        running, self._running = self._running, None
        if running is not None:
            running.stop()

    def _conclude(
        self, host: RerunHost, results: RerunResults, due: MissedStep, result: _TraceResult | None
    ) -> None:
        """Explain the first bad step; with several ranks, from the trace of the failing one."""
        origins = () if result is None else tuple(result.origins)
        traces = host.agreement.gather((origins, result is not None and result.bad_loss))
        # A collective fills memory unseen, so a rank may find an origin that is another's.
        certain = [rank for rank, (_, bad) in enumerate(traces) if bad] or range(len(traces))
        failing = next((rank for rank in certain if traces[rank][0]), None)
        if failing is None:
            return
        found = traces[failing][0]
        if result is not None and _is_bad_input(found[0]) and _has_nonfinite(result.inputs):
            found = (replace(found[0], kind="poisoned-batch"), *found[1:])
            host.inspect_batches(due.step, [RecordedBatch(result.inputs)])
        self._not_before = due.step + host.policy.replay_gap
        bad = BadStep(due.step, "nonfinite", (), RngState(), None, None, due.parameters)
        results.report(bad, _explain(due, found, failing if len(traces) > 1 else None))


class _TraceResult(NamedTuple):
    """The trace of one step."""

    origins: Sequence[Origin]
    """Where its non-finite values come from; empty: it was fine."""
    bad_loss: bool
    inputs: Any
    """The inputs of the first module."""


class _TracedStep:
    """One step that is being traced."""

    def __init__(self, host: RerunHost, missed: MissedStep) -> None:
        # Imported only now: a healthy run need not spend the time.
        trace = importlib.import_module("headway.explain.trace")
        self.backward_began = False
        self._host = host
        self._step = BadStep(missed.step, "nonfinite", (), None, None, None).as_failing_step(host)
        self._trace: Any = trace.Trace(self._step)
        self._active = True
        self._inputs: Any = None
        self._hook = register_module_forward_pre_hook(self._keep_inputs)
        self._trace.__enter__()
        patching.add_listener(self)

    def stop(self) -> None:
        if not self._active:
            return
        self._active = False
        self._hook.remove()
        patching.remove_listener(self)
        on_top: Any = current_dispatch_mode()
        if on_top is not self._trace:  # a mode of the script's own is on top
            self._trace.blind()
            return
        try:
            self._trace.__exit__(None, None, None)
        except Exception:  # ours
            logger.debug("the trace could not be removed in order", exc_info=True)
            self._trace.blind()

    def result(self) -> _TraceResult:
        locate = importlib.import_module("headway.explain.locate")
        try:
            found: Sequence[Origin] = locate.find_origins(self._trace, self._step)
        except Exception:  # ours
            logger.debug("the trace could not be read", exc_info=True)
            found = ()
        return _TraceResult(found, bool(self._trace.ends.losses), self._inputs)

    def _keep_inputs(self, module: nn.Module, args: Any) -> None:
        if self._inputs is None:
            self._inputs = [item.detach() for item in batch_tensors(args) if not item.requires_grad]

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        self.backward_began = True
        self._trace.backward_begins(roots, {})

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        self._trace.gradients_ready(
            [p for p in trained_parameters(self._host) if p.grad is not None]
        )

    def clipping(self, parameters: Any, norms: Any, total: Any) -> None: ...

    def clipped(self, total: Any, max_norm: float) -> None: ...

    def scaled(self, scaler: GradScaler, loss: Tensor, result: Tensor) -> None: ...

    def scaler_steps(self, scaler: GradScaler, optimizer: Optimizer) -> None: ...

    def scaler_stepped(self, scaler: GradScaler, optimizer: Optimizer) -> None: ...


def _is_bad_input(origin: Origin) -> bool:
    """Whether no op made the value: it was in the script's data before the step."""
    return origin.output is None and bool(origin.inputs) and origin.inputs[0].role == "carried"


def _has_nonfinite(inputs: Any) -> bool:
    return inputs is not None and next(scan_batch(inputs), None) is not None


def _explain(due: MissedStep, origins: Sequence[Origin], rank: int | None) -> InvestigationResult:
    explanation = importlib.import_module("headway.explain.explanation")
    words = importlib.import_module("headway.explain.explanation")
    investigation = importlib.import_module("headway.explain.investigation")
    explained = words.add_sentences(
        explanation.Explanation(
            step=due.step,
            symptom="nonfinite",
            nature="deterministic",
            origins=tuple(origins),
            guilt=words.guilt_by_kind(origins[0]) or "unknown",
            rank=rank,
            passes=1,
            notes=("seen in the step after it, which was bad as well",),
        )
    )
    result: InvestigationResult = investigation.InvestigationResult(explained)
    return result
