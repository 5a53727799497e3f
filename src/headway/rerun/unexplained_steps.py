"""Bad steps that could not be run again, and what explains them: their trace, that of a later step,
the user's code between two steps, or a batch that the loop skipped.
"""

from __future__ import annotations

import importlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headway.explain.explanation import Origin, Trial
from headway.policy import Policy
from headway.rerun.bad_step import BadStep, MissedStep, RerunResults, StepContext
from headway.rerun.child_origin import find_in_child, try_in_child
from headway.rerun.protocol import ProtectedCalls, RerunHost, trained_parameters
from headway.rerun.recorded_batch import BatchOrigin, RecordedBatch
from headway.rerun.step_tracer import StepOrigins, StepTracer, record_origins
from headway.rerun.strategies.lifted_body import LiftedBody, read_variables
from headway.rerun.strategies.loop_follower import LoopFollower
from headway.rerun.strategies.loop_source import RestOfFrame, find_rest
from headway.torch_adapters.loaders.batch_fetching import BatchRecipe
from headway.torch_adapters.optimizer_adapter import own_step_hooks
from headway.torch_adapters.tensor_values import count_nonfinite

if TYPE_CHECKING:
    from headway.explain.lasting_trace import LastingTrace
    from headway.rerun.strategies.loop_follower import LoopIteration

# The user's own code between two steps may make weights bad: a projection, a clipping, an average
# that is copied back. They are bad when a step begins, though the update before it was good. So the
# rest of the loop's body after its step is run again from good weights, in a child process, with
# every op traced. If it makes the same weights bad, the op that did it is the origin.

BadWeights = Mapping[str, tuple[int, int]]
"""NaN and infinite elements of each weight that has some."""
_Rest = list[Callable[[], None]]
"""Code that runs after a step, in parts."""


class BadWeightExplainer:
    """Explains weights that were bad when a step began."""

    def __init__(self, host: RerunHost) -> None:
        self._host = host
        self._bad: BadWeights = {}

    def weights_are_bad(self) -> None:
        """Of the step that is ending."""
        self._bad = find_bad_weights(self._host)

    def explain(
        self,
        missed: MissedStep,
        frame: FrameType | None,
        iteration: LoopIteration | None,
        results: RerunResults,
        trace: LastingTrace | None,
    ) -> None:
        """The step is over; `frame` is in its loop. `trace`: of the code since the last step."""
        bad, self._bad = self._bad, {}
        if not bad:
            return
        began = time.perf_counter()
        made, trials = explain_bad_weights(self._host, missed.step, bad, frame, iteration, trace)
        self._host.exclude_time(time.perf_counter() - began)
        if made is not None:
            traced = StepOrigins((made,), bad_loss=True, trials=trials)
            results.report_traced(missed, traced, missed.step)


def find_bad_weights(host: RerunHost) -> BadWeights:
    """Waits for the device: only for steps known to be bad."""
    names = host.parameter_names()
    counted = {names.get(id(p), "?"): count_nonfinite(p.detach()) for p in trained_parameters(host)}
    return {name: counts for name, counts in counted.items() if any(counts)}


def explain_bad_weights(
    host: RerunHost,
    step: int,
    bad: BadWeights,
    frame: FrameType | None,
    iteration: LoopIteration | None,
    trace: LastingTrace | None,
) -> tuple[Origin | None, Sequence[Trial]]:
    """The op between the last step and this one that made weights bad, and its remedy as it was
    tried; None: it is not known."""
    # A child cannot use a GPU, and memory that processes share is not its own.
    own = all(p.device.type == "cpu" and not p.is_shared() for p in trained_parameters(host))
    if not bad or not own or host.agreement.count > 1:
        return None, ()
    begin = None if iteration is None else iteration.begin

    @contextmanager
    def good_weights() -> Iterator[bool]:
        """In the child: whether the weights are good, as they were before the code ran."""
        older = None if not find_bad_weights(host) else host.older_weights(step)
        if begin is not None:
            begin.restore()
        with nullcontext() if older is None else older():
            if older is None and trace is not None:
                _take_back(trace)
            yield not find_bad_weights(host)

    def find(rest: _Rest) -> Origin | None:
        with good_weights() as good:
            return _trace(host, rest, bad) if good else None

    def is_cured(rest: _Rest) -> bool:
        with good_weights() as good:
            _run(rest)
            return good and not find_bad_weights(host)

    for rest in _possible_rests(host, frame, {} if begin is None else begin.values):
        made = find_in_child(partial(find, rest))
        if made is not None:
            return made, try_in_child(made, partial(is_cured, rest))
    return None, ()


def _possible_rests(
    host: RerunHost, frame: FrameType | None, known: Mapping[str, Any]
) -> Iterator[_Rest]:
    """What may have run between the last step and this one. `known`: variables as they were.

    The rest of the loop's body, as it is now and with the counters of the iteration before; and
    what follows the loop, if it is called again and again.
    """
    hooks: _Rest = [
        partial(hook, item, (), {}) for item in host.optimizers for hook in own_step_hooks(item)
    ]
    rest = find_rest(frame)
    after = find_rest(frame, after_loop=True)
    for parts, back in ((rest, False), (rest, True), (after, False)):
        bodies = list(hooks)
        changes = [_count_back(part) if back else {} for part in parts]
        if (back and not any(changes)) or (parts is after and not after):
            continue
        with suppress(SyntaxError, ValueError):  # legal in its place, not in a function
            for part, changed in zip(parts, changes, strict=True):
                body = LiftedBody(part.frame, part.node, {**known, **changed})
                bodies.append(partial(body, (None,)))
            if bodies:
                yield bodies


def _count_back(part: RestOfFrame) -> dict[str, Any]:
    """The counters of a loop in its iteration before."""
    values = read_variables(part.frame, part.counters)
    return {name: value - 1 for name, value in values.items() if type(value) is int}


def _elements(bad: BadWeights) -> dict[str, int]:
    return {name: sum(counts) for name, counts in bad.items()}


@torch.no_grad()
def _take_back(trace: LastingTrace) -> None:
    """Write the values back that weights had before an op made them bad."""
    for tensor, before in trace.made_bad.values():
        tensor.copy_(tensor.nan_to_num(0.0, 0.0, 0.0) if before is None else before)


def _run(rest: Sequence[Callable[[], None]]) -> None:
    with suppress(Exception):  # variables of a later iteration may not fit
        for part in rest:
            part()


def _trace(host: RerunHost, rest: Sequence[Callable[[], None]], bad: BadWeights) -> Origin | None:
    """In the child: the origin; None if other weights become bad, or none."""
    lasting_trace = importlib.import_module("headway.explain.lasting_trace")
    failing_step = importlib.import_module("headway.explain.failing_step")
    locate = importlib.import_module("headway.explain.locate")
    names = host.parameter_names()
    step = failing_step.FailingStep(host.models, host.optimizers, (), names)
    trace = lasting_trace.LastingTrace(
        lambda: lasting_trace.StepFacts(step, ()), lambda: (), lambda: None
    )
    with trace:
        _run(rest)
        trace.paused = True
        # Infinities may have become NaN since, where the code ran again.
        if _elements(find_bad_weights(host)) != _elements(bad):
            return None
        named: dict[str, Tensor] = {names.get(id(p), "?"): p for p in trained_parameters(host)}
        trace.look_at({name: named[name].detach() for name in bad})
        origins = locate.find_origins(trace, step)
    if not origins:
        return None
    made: Origin = replace(origins[0], through="weight", through_name=next(iter(bad)))
    return made


WEIGHTS_MOVED = (
    "other weights of the model were updated within the same step, so it could not be run again "
    "exactly"
)
TRACING = "tracing steps"
MAX_KEPT = 32
MAX_FETCHED = 8
"""Maximum number of batches that are fetched again."""


class UnexplainedSteps:
    """Bad steps that are not run again: a trace explains them, their own or that of a later one."""

    def __init__(self, host: RerunHost, policy: Policy, results: RerunResults) -> None:
        self._host = host
        self._wanted = policy.replay and policy.replays > 0
        self._results = results
        self.tracer = StepTracer()
        self.between_steps = BadWeightExplainer(host)
        self.unused_batches = UnusedBatches()
        self.missed: MissedStep | None = None
        """The last bad step, if it has not been run again."""
        self.first: MissedStep | None = None
        """The first one that no trace has explained yet."""

    def weights_are_bad(self, context: StepContext, *, lost: bool) -> None:
        """The step that is ending began with bad weights; `lost`: and training stops with them."""
        self.missed = MissedStep(context.step, context.parameters, lost=lost)
        self.between_steps.weights_are_bad()

    def step_complete(
        self,
        frame: FrameType | None,
        loop: LoopFollower,
        protected: ProtectedCalls,
        *,
        pending: bool,
    ) -> None:
        """`optimizer.step()` is over: explain a bad step from its trace, or trace the next ones.

        `pending`: a bad step waits to be run again.
        """
        if self.missed is None and self.tracer.idle and self.first is None:
            self.tracer.step_over(self._host)
            return  # as after almost every step
        missed, self.missed = self.missed, None
        if missed is not None:
            if not pending:
                missed = replace(missed, why=missed.why or loop.obstacle)
            known = len(self._results.found)
            with self.tracer.set_aside():
                explain, trace = self.between_steps.explain, self.tracer.trace
                given = (missed, frame, loop.present, self._results, trace)
                protected.spare(TRACING, explain, *given)
            missed = missed if len(self._results.found) == known else None
        protected.spare(TRACING, self.tracer.step_over, self._host)
        if missed is not None:
            protected.spare(TRACING, self.use_trace, missed, pending, frame)
            return
        attempt = partial(self.unused_batches.attempt, self._host, frame)
        protected.spare(TRACING, self.tracer.record_unused, self._host, attempt)
        if not self.tracer.running:
            protected(self.report)

    def use_trace(self, missed: MissedStep, pending: bool, frame: FrameType | None) -> None:
        """A step was bad; `pending`: it is run again first, if it can be. Every rank calls this,
        from this frame."""
        traced = self.tracer.collect(self._host, missed.step, None if pending else frame)
        if pending:
            if traced is not None:
                self._results.traced[missed.step] = traced
        elif traced is not None:
            first, self.first = self.first or missed, None
            self._results.report_traced(first, traced, missed.step)
        elif not missed.lost:
            self._trace_on(missed)

    def add(self, bad: BadStep, why: str, *, recorded: bool = False) -> None:
        """A step could not be run again; `recorded`: though its batches are known."""
        missed = MissedStep(bad.step, bad.parameters, why, recorded=recorded)
        if missed.step in self._results.traced:
            self._results.report_missed(missed)
        else:
            self._trace_on(missed)

    def report(self) -> None:
        """No later step has explained it."""
        first, self.first = self.first, None
        self._results.report_missed(first)

    def close(self, protected: ProtectedCalls) -> None:
        """No step follows."""
        if not self.tracer.shared:
            self.tracer.stop()
        for step in list(self._results.traced):  # those that were to be run again
            protected(self._results.report_missed, MissedStep(step))
        protected(self.report)

    def _trace_on(self, missed: MissedStep) -> None:
        """The steps that follow may show its line."""
        self.first = self.first or missed
        meets = self._host.agreement.can_meet  # a trace is exchanged between the ranks
        if not (self._wanted and meets and self.tracer.arm(self._host)):
            self.report()


class UnusedBatches:
    """The origins of batches that were drawn and led to no update, since buffers were last known to
    be finite: a loop may skip a batch whose loss is bad, but its forward pass has changed the
    statistics of batch normalisation.
    """

    def __init__(self) -> None:
        self._kept: deque[tuple[BatchOrigin, BatchRecipe]] = deque(maxlen=MAX_KEPT)
        self._added: list[tuple[BatchOrigin, BatchRecipe]] = []
        """Those before the latest step."""

    def add(self, batches: Sequence[RecordedBatch]) -> None:
        self._added = []
        for origin in (kept.origin for kept in batches):
            if origin is not None and origin.loader is not None:
                recipe = BatchRecipe.of(origin.loader())
                if recipe is not None:
                    self._added.append((origin, recipe))
        self._kept.extend(self._added)

    def clear(self) -> None:
        self._kept.clear()

    def attempt(self, host: RerunHost, frame: FrameType | None, origin: Origin) -> Sequence[Trial]:
        """The remedy for the origin in a batch that was skipped before this step, as it was tried:
        the loop's body is called with each of them. `frame`: that of the step."""
        in_child = importlib.import_module("headway.rerun.step_in_child")
        for known, recipe in self._added[-MAX_FETCHED:]:
            if known.indices is None or not recipe.can_fetch(known.indices):
                continue
            fetch = partial(_fetch, recipe, known.indices)
            trials: Sequence[Trial] = in_child.try_batch(host, frame, origin, fetch)
            if trials:
                return trials
        return ()

    def explain(self, host: RerunHost, step: int) -> None:
        """Buffers are bad: record the line that made a bad batch, of the loader that trains."""
        latest = None if host.latest is None else host.latest.origin
        kept, self._kept = self._kept, deque(maxlen=MAX_KEPT)
        # References to one loader are one object, also when it is gone.
        alike = [one for one in kept if latest is not None and one[0].loader is latest.loader]
        for origin, recipe in alike[:MAX_FETCHED]:
            child_origin = importlib.import_module("headway.rerun.child_origin")
            made, trials = child_origin.explain_bad_sample(recipe, origin.indices)
            if made is not None:
                record_origins(host, step, (made,), trials)
                return


def _fetch(recipe: BatchRecipe, indices: Any) -> Any:
    return next(iter(recipe.fetch(indices)))
