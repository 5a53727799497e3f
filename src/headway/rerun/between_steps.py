"""Finds the line of the user's own code between two steps that made weights bad: a projection, a
clipping, an average that is copied back.

The weights are bad when a step begins, though the update before it was good. So the rest of the
loop's body after its step is run again from good weights, in a child process, with every op traced.
If it makes the same weights bad, the op that did it is the origin.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING

from torch import Tensor

from headway.explain.explanation import Origin
from headway.rerun.bad_step import MissedStep, RerunResults
from headway.rerun.child_origin import find_in_child
from headway.rerun.protocol import RerunHost, trained_parameters
from headway.rerun.step_tracer import StepOrigins
from headway.rerun.strategies.lifted_body import LiftedBody
from headway.rerun.strategies.loop_source import find_rest
from headway.torch_adapters.nonfinite_scan import count_nonfinite

if TYPE_CHECKING:
    from headway.rerun.strategies.loop_follower import LoopIteration

BadWeights = Mapping[str, tuple[int, int]]
"""NaN and infinite elements of each weight that has some."""


class BetweenSteps:
    """Explains weights that were bad when a step began."""

    def __init__(self, host: RerunHost) -> None:
        self._host = host
        self._bad: BadWeights = {}

    def weights_are_bad(self) -> None:
        """Of the step that ends now."""
        self._bad = find_bad_weights(self._host)

    def explain(
        self,
        missed: MissedStep,
        frame: FrameType | None,
        iteration: LoopIteration | None,
        results: RerunResults,
    ) -> None:
        """The step is over; `frame` is in its loop."""
        bad, self._bad = self._bad, {}
        if not bad:
            return
        began = time.perf_counter()
        made = find_weight_origin(self._host, missed.step, bad, frame, iteration)
        self._host.exclude_time(time.perf_counter() - began)
        if made is not None:
            results.report_traced(missed, StepOrigins((made,), bad_loss=True), missed.step)


def find_bad_weights(host: RerunHost) -> BadWeights:
    """Waits for the device: only for steps known to be bad."""
    names = host.parameter_names()
    counted = {names.get(id(p), "?"): count_nonfinite(p.detach()) for p in trained_parameters(host)}
    return {name: counts for name, counts in counted.items() if any(counts)}


def find_weight_origin(
    host: RerunHost,
    step: int,
    bad: BadWeights,
    frame: FrameType | None,
    iteration: LoopIteration | None,
) -> Origin | None:
    """The op between the last step and this one that made weights bad; None: it is not known."""
    # A child cannot use a GPU, and memory that processes share is not its own.
    own = all(p.device.type == "cpu" and not p.is_shared() for p in trained_parameters(host))
    if not bad or not own or host.agreement.count > 1:
        return None
    begin = None if iteration is None else iteration.begin
    try:
        rest = [
            LiftedBody(inside, node, {} if begin is None else begin.values)
            for inside, node in find_rest(frame)
        ]
    except (SyntaxError, ValueError):  # legal in its place, not in a function
        return None

    def work() -> Origin | None:
        older = None if not find_bad_weights(host) else host.older_weights(step)
        if begin is not None:
            begin.restore()
        with nullcontext() if older is None else older():
            return None if find_bad_weights(host) else _trace(host, rest, bad)

    return find_in_child(work) if rest else None


def _trace(host: RerunHost, rest: list[LiftedBody], bad: BadWeights) -> Origin | None:
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
        with suppress(Exception):  # variables of a later iteration may not fit
            for body in rest:
                body((None,))
        trace.paused = True
        if find_bad_weights(host) != bad:
            return None
        named: dict[str, Tensor] = {names.get(id(p), "?"): p for p in trained_parameters(host)}
        trace.look_at({name: named[name].detach() for name in bad})
        origins = locate.find_origins(trace, step)
    if not origins:
        return None
    made: Origin = replace(origins[0], through="weight", through_name=next(iter(bad)))
    return made
