"""Finds the line of the user's own code between two steps that made weights bad: a projection, a
clipping, an average that is copied back.

The weights are bad when a step begins, though the update before it was good. So the rest of the
loop's body after its step is run again from good weights, in a child process, with every op traced.
If it makes the same weights bad, the op that did it is the origin.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headway.explain.explanation import Origin, Trial
from headway.rerun.bad_step import MissedStep, RerunResults
from headway.rerun.child_origin import find_in_child, try_in_child
from headway.rerun.protocol import RerunHost, trained_parameters
from headway.rerun.step_tracer import StepOrigins
from headway.rerun.strategies.lifted_body import LiftedBody, read_variables
from headway.rerun.strategies.loop_source import RestOfFrame, find_rest
from headway.torch_adapters.nonfinite_scan import count_nonfinite
from headway.torch_adapters.optimizer_adapter import own_step_hooks

if TYPE_CHECKING:
    from headway.explain.lasting_trace import LastingTrace
    from headway.rerun.strategies.loop_follower import LoopIteration

BadWeights = Mapping[str, tuple[int, int]]
"""NaN and infinite elements of each weight that has some."""
_Rest = list[Callable[[], None]]
"""Code that runs after a step, in parts."""


class BetweenSteps:
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
        """In the child: whether the weights are good, as before the code ran."""
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
