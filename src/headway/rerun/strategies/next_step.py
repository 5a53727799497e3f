"""Traces the step after a bad one that could not be run again.

A loop that draws its own batches, or one inside of a framework, gives a guard nothing to run a step
again with. Most faults come back at once: so every op of the next forward and backward is watched
where it happens. If that step goes bad as well, it tells the line for both. What the script
computes stays as it is.
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
from headway.rerun.batch_identity import RecordedBatch
from headway.rerun.protocol import RerunHost
from headway.torch_adapters import patching
from headway.torch_adapters.modes import current_dispatch_mode
from headway.torch_adapters.nonfinite_scan import batch_tensors, scan_batch
from headway.torch_adapters.rng import RngState

if TYPE_CHECKING:
    from headway.explain.explanation import Origin
    from headway.explain.investigation import InvestigationResult

MAX_TRACED = 8
"""Steps that are watched this way: each takes many times as long."""


class NextStepTrace:
    """Watches the step after a bad one; alone or on one rank of several."""

    def __init__(self) -> None:
        self._left = MAX_TRACED
        self._not_before = 0
        self._look: _TracedStep | None = None
        self._due: MissedStep | None = None
        """The bad step that the present one may explain."""
        self._seen: _TraceResult | None = None
        """What was seen of the present step, once its gradients are there."""

    def arm(self, host: RerunHost, missed: MissedStep) -> None:
        """A step went bad that nobody can run again: watch the one that begins now."""
        if self._left <= 0 or self._look is not None or missed.step < self._not_before:
            return
        self._left -= 1
        self._due = missed  # also where it cannot be watched: other ranks will ask
        try:
            self._look = _TracedStep(host, missed)
        except Exception:  # ours: the script must not pay for it
            logger.debug("the next step cannot be watched", exc_info=True)
            self._left = 0

    def step_comes(self) -> None:
        """The gradients are there, unless the step itself will make them."""
        if self._look is not None and self._look.heard:
            self._finish(self._look)

    def knows(self) -> bool:
        """Whether the step that was made tells the line of the bad one before it."""
        self.step_comes()
        return self._due is not None and self._seen is not None and bool(self._seen.origins)

    def step_over(self, host: RerunHost, results: RerunResults, missed: MissedStep | None) -> None:
        """The step was made or held back; `missed`: it is another bad one."""
        if self._look is not None and self._look.heard:
            self._finish(self._look)
        (seen, self._seen), (due, self._due) = (self._seen, None), (self._due, None)
        if due is not None and missed is not None:
            self._conclude(host, results, due, seen)

    def _conclude(
        self, host: RerunHost, results: RerunResults, due: MissedStep, seen: _TraceResult | None
    ) -> None:
        """Tell it, as of the first bad step; with other ranks, what the guilty one has seen."""
        origins = () if seen is None else tuple(seen.origins)
        said = host.agreement.gather((origins, seen is not None and seen.bad_loss))
        # Memory that a collective writes is filled out of sight: an innocent rank may find origins.
        certain = [rank for rank, (_, bad) in enumerate(said) if bad] or range(len(said))
        guilty = next((rank for rank in certain if said[rank][0]), None)
        if guilty is None:
            return
        found = said[guilty][0]
        if seen is not None and _is_bad_input(found[0]) and _holds_nonfinite(seen.given):
            found = (replace(found[0], kind="poisoned-batch"), *found[1:])
            host.inspect_batches(due.step, [RecordedBatch(seen.given)])
        self._not_before = due.step + host.policy.replay_gap
        told = _explain(due, found, guilty if len(said) > 1 else None)
        incident = BadStep(due.step, "nonfinite", (), RngState(), None, None, due.parameters)
        results.draw(incident, told)

    def disarm(self) -> None:
        """Something else is about to happen than the step."""
        look, self._look = self._look, None
        if look is not None:
            look.leave()

    def _finish(self, look: _TracedStep) -> None:
        self._look = None
        look.leave()
        self._seen = look.seen()


class _TraceResult(NamedTuple):
    """What came of a watched step."""

    origins: Sequence[Origin]
    """Where its bad numbers were made; empty: it was fine."""
    bad_loss: bool
    given: Any
    """What the first module of the step was given."""


class _TracedStep:
    """One step under watch."""

    def __init__(self, host: RerunHost, missed: MissedStep) -> None:
        # Only now: reading it in takes time that a healthy run need not spend.
        trace = importlib.import_module("headway.explain.trace")
        self.heard = False
        """Whether a backward pass has begun."""
        self._scene = BadStep(missed.step, "nonfinite", (), None, None, None).as_failing_step(host)
        self._trace: Any = trace.Trace(self._scene)
        self._inside = True
        self._given: Any = None
        self._feeding = register_module_forward_pre_hook(self._fed)
        self._trace.__enter__()
        patching.add_listener(self)

    def leave(self) -> None:
        """The instruments off."""
        if not self._inside:
            return
        self._inside = False
        self._feeding.remove()
        patching.remove_listener(self)
        on_top: Any = current_dispatch_mode()
        if on_top is not self._trace:  # a mode of the script's own is on top
            self._trace.blind()
            return
        try:
            self._trace.__exit__(None, None, None)
        except Exception:  # ours
            logger.debug("the instruments could not be taken off in order", exc_info=True)
            self._trace.blind()

    def _fed(self, module: nn.Module, args: Any) -> None:
        if self._given is None:
            self._given = [item.detach() for item in batch_tensors(args) if not item.requires_grad]

    def seen(self) -> _TraceResult:
        """What the instruments tell."""
        localise = importlib.import_module("headway.explain.locate")
        try:
            found: Sequence[Origin] = localise.find_origins(self._trace, self._scene)
        except Exception:  # ours
            logger.debug("the step could not be read", exc_info=True)
            found = ()
        return _TraceResult(found, bool(self._trace.ends.losses), self._given)

    # What the seams tell.

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        self.heard = True
        self._trace.backward_begins(roots, {})

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        parameters = [p for model in self._scene.models for p in model.parameters()]
        parameters += [
            p for item in self._scene.optimizers for g in item.param_groups for p in g["params"]
        ]
        distinct = {id(p): p for p in parameters if p.grad is not None}
        self._trace.gradients_ready(list(distinct.values()))

    def clipping(self, parameters: Any, norms: Any, total: Any) -> None: ...

    def clipped(self, total: Any, max_norm: float) -> None: ...

    def scaled(self, scaler: GradScaler, loss: Tensor, result: Tensor) -> None: ...

    def scaler_steps(self, scaler: GradScaler, optimizer: Optimizer) -> None: ...

    def scaler_stepped(self, scaler: GradScaler, optimizer: Optimizer) -> None: ...


def _is_bad_input(origin: Origin) -> bool:
    """Whether no operation made it: it was in the script's data before the step."""
    return origin.output is None and bool(origin.inputs) and origin.inputs[0].role == "carried"


def _holds_nonfinite(given: Any) -> bool:
    return given is not None and next(scan_batch(given), None) is not None


def _explain(due: MissedStep, origins: Sequence[Origin], rank: int | None) -> InvestigationResult:
    explanation = importlib.import_module("headway.explain.explanation")
    words = importlib.import_module("headway.explain.explanation")
    investigation = importlib.import_module("headway.explain.investigation")
    told = words.add_sentences(
        explanation.Explanation(
            step=due.step,
            symptom="nonfinite",
            nature="deterministic",
            origins=tuple(origins),
            guilt=words.guilt_by_kind(origins[0]) or "unknown",
            rank=rank,
            passes=1,
            notes=("seen in the step after it, which went bad as well",),
        )
    )
    result: InvestigationResult = investigation.InvestigationResult(told)
    return result
