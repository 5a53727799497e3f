"""Investigates a bad step: traces it, finds the origin or the cause of a spike, tries remedies."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from headway.explain import counterfactual, locate
from headway.explain import explanation as wording
from headway.explain.batch_samples import GradientShare
from headway.explain.explanation import Explanation, Guilt, Nature, Origin, Spike, Trial
from headway.explain.failing_step import (
    FailingStep,
    GatherFromRanks,
    Outcome,
    RankAgreement,
    StepPass,
)
from headway.explain.remedies.base import StepRemedy
from headway.explain.remedies.drop_samples import Bisection, DropSamples
from headway.explain.remedies.sample_traits import add_common
from headway.explain.trace import Trace
from headway.torch_adapters.runtime_state import compiled_code_runs

# Where a gradient spike comes from: layers, a loss component, samples.

MOST_LAYERS = 5
GREW = 3.0
"""A gradient has grown if its norm is at least this many times its usual norm."""
STANDS_OUT = 5.0
"""A sample is an outlier if its share exceeds this many times the median …"""
DEVIATIONS = 10.0
"""… and is this many standard deviations above it."""
NORMAL = 1.4826
"""Factor from the median absolute deviation to the standard deviation (normal distribution)."""
FEW = 4
CLEARLY = 10.0
"""With fewer than FEW samples: factor over the second largest."""


def find_spike(
    trace: Trace, failing_step: FailingStep, norms: Mapping[str, float] | None = None
) -> Spike:
    """What grew most in a traced pass. `norms`: gradient norms over all ranks, if there are
    several."""
    layers = _layers(norms or trace.ends.norms, failing_step)
    share = _share_with_outliers(trace, [name for name, _ in layers])
    known = all(growth is not None for _, growth in layers)
    return Spike(
        component=_component(trace, failing_step),
        rows=() if share is None else outliers(share.sizes),
        layers=tuple(name for name, _ in layers),
        growth=tuple(growth or 0.0 for _, growth in layers) if known else (),
        batch=0 if share is None else share.batch,
    )


def outliers(sizes: Sequence[float]) -> tuple[int, ...]:
    """Indices of the few values that are far larger than the rest."""
    if len(sizes) < 2:
        return ()
    if len(sizes) < FEW:
        second, first = sorted(sizes)[-2:]
        return (sizes.index(first),) if first > CLEARLY * second else ()
    middle = median(sizes)
    deviation = NORMAL * median(abs(size - middle) for size in sizes)
    limit = max(STANDS_OUT * middle, middle + DEVIATIONS * deviation)
    rows = tuple(row for row, size in enumerate(sizes) if size > limit)
    return rows if len(rows) <= len(sizes) // 2 else ()


def _layers(
    norms: Mapping[str, float], failing_step: FailingStep
) -> list[tuple[str, float | None]]:
    """Parameters whose gradients grew most; the largest gradients if the usual ones are unknown."""
    usual = {name: failing_step.usual.get(f"grad_norm/{name}", 0.0) for name in norms}
    grown = [(name, norms[name] / usual[name]) for name in norms if usual[name] > 0]
    if grown:
        ranked = sorted(grown, key=lambda item: item[1], reverse=True)[:MOST_LAYERS]
        return [(name, growth) for name, growth in ranked if growth >= GREW]
    largest = sorted(norms, key=norms.__getitem__, reverse=True)[:MOST_LAYERS]
    return [(name, None) for name in largest]


def _component(trace: Trace, failing_step: FailingStep) -> str | None:
    """The loss component that grew most; the largest if the usual values are unknown."""
    values: dict[str, float] = {}
    for component in trace.ends.components:
        values[component.name] = max(values.get(component.name, 0.0), abs(component.value))
    usual = {name: abs(failing_step.usual.get(f"loss/{name}", 0.0)) for name in values}
    if all(usual.values()):
        return max(values, key=lambda name: values[name] / usual[name], default=None)
    return max(values, key=values.__getitem__, default=None)


def _share_with_outliers(trace: Trace, layers: Sequence[str]) -> GradientShare | None:
    """The share with outliers: of the layer that grew most, or else nearest to the loss."""
    if trace.shares is None:
        return None
    writers = [trace.ends.written_by.get(name) for name in layers]
    of_weights = [
        trace.shares.of_weights[writer.order]
        for writer in writers
        if writer is not None and writer.order in trace.shares.of_weights
    ]
    candidates = [*of_weights, *trace.shares.of_activations]
    return next((share for share in candidates if outliers(share.sizes)), None)


# The plan of an investigation is a generator: it yields passes, the caller runs them, and it reads
# their outcomes. So it does not depend on how a step is re-run.

MOST_TRIALS = 4
MOST_HALVINGS = 5
"""Passes of the search for failing samples: enough for one among 32."""
ENOUGH_CURES = 2
"""Number of working remedies after which no more are tried."""


@dataclass(slots=True)
class InvestigationResult:
    """The explanation, and the remedies that worked."""

    explanation: Explanation
    cured: Sequence[StepRemedy] = ()
    """Best first."""


@dataclass(slots=True)
class ControlRuns:
    """Other weights and batches to run the step with, if available."""

    older_weights: Callable[[], AbstractContextManager[None]] | None = None
    """Loads the weights of an earlier good state for one pass."""
    healthy_batches: Sequence[Any] = ()
    """Batches of the last good step."""


InvestigationPlan = Generator[StepPass, None, InvestigationResult]


def investigate(
    failing_step: FailingStep,
    elsewhere: ControlRuns | None = None,
    agree: GatherFromRanks[Any] = lambda value: [value],
    rank: int = 0,
) -> InvestigationPlan:
    """Find out why the step failed. All ranks must call this: `agree` gathers a value from all of
    them, `rank` is the index of this one."""
    investigation = _Investigation(
        failing_step, elsewhere or ControlRuns(), RankAgreement(agree, rank)
    )
    return investigation.run()


class _Investigation:
    def __init__(
        self, failing_step: FailingStep, elsewhere: ControlRuns, ranks: RankAgreement
    ) -> None:
        self._failing_step = failing_step
        self._elsewhere = elsewhere
        self._ranks = ranks
        self._passes = 0
        self._began = time.perf_counter()
        self._origins: tuple[Origin, ...] = ()
        self._spike: Spike | None = None
        self._notes: list[str] = []

    def run(self) -> InvestigationPlan:
        traced = yield from self._trace()
        if not self._everywhere(traced.complete):
            why = self._ranks.an_error(traced)
            self._notes.append(f"the step could not be re-run: {why}")
            return self._concluded("unknown", traced)
        if not self._well(traced):
            nature: Nature = "deterministic"
            self._settle(traced)
        elif self._failing_step.inexact:
            self._notes.append(self._failing_step.inexact)
            return self._concluded("unknown", traced)
        else:
            nature = yield from self._again()
        remedies = counterfactual.select_remedies(
            self._origin, self._spike, self._failing_step, nature
        )
        trials, cured = yield from self._try(remedies)
        if nature == "deterministic" and len(cured) < ENOUGH_CURES:
            yield from self._bisect(trials, cured)
        guilt: Guilt = "unknown"
        if nature == "deterministic":
            guilt = yield from self._find_guilt()
        if guilt == "batch":  # a smaller learning rate would only hide it
            trials = [trial for trial in trials if trial.key != "smaller-rate"]
        found = self._concluded(nature, traced, trials, guilt)
        return InvestigationResult(found.explanation, cured)

    @property
    def _origin(self) -> Origin | None:
        return self._origins[0] if self._origins else None

    # The passes.

    def _trace(self) -> Generator[StepPass, None, Outcome]:
        trace = Trace(self._failing_step)
        one = StepPass("trace", self._failing_step.batches, within=[trace], observer=trace)
        yield from self._run(one)
        if one.outcome.complete:
            self._origins = locate.find_origins(trace, self._failing_step)
            if self._failing_step.symptom == "spike" and not self._origins:
                self._spike = find_spike(trace, self._failing_step, one.outcome.norms)
        return one.outcome

    def _again(self) -> Generator[StepPass, None, Nature]:
        """The traced pass succeeded: does the step also succeed without tracing?"""
        one = StepPass("again", self._failing_step.batches)
        yield from self._run(one)
        if not self._everywhere(one.outcome.complete):
            return "unknown"
        if self._well(one.outcome):
            return "transient"
        return "compiler" if compiled_code_runs() else "unknown"

    def _try(
        self, remedies: Sequence[StepRemedy]
    ) -> Generator[StepPass, None, tuple[list[Trial], list[StepRemedy]]]:
        here = {remedy.key: remedy for remedy in remedies}
        trials: list[Trial] = []
        cured: list[StepRemedy] = []
        tried = 0
        planned = [(remedy.key, self._why_not(remedy)) for remedy in remedies]
        for key, why_not in self._ranks.decide(planned):
            remedy = here.get(key)
            why_not = why_not or self._enough(tried, len(cured))
            if why_not:
                if remedy is not None:
                    trials.append(Trial(key, remedy.text, "not tried", why_not, remedy.edits))
                continue
            tried += 1
            trial = yield from self._try_one(key, remedy)
            trials.append(trial)
            if self._everywhere(remedy is not None) and trial.tried == "cured":
                assert remedy is not None
                cured.append(remedy)
        order = {"cured": 0, "not cured": 1, "not tried": 2}
        trials.sort(key=lambda trial: order[trial.tried])
        return trials, cured

    def _try_one(self, key: str, remedy: StepRemedy | None) -> Generator[StepPass, None, Trial]:
        """Try a remedy on every rank; the rank with the origin decides about the outcome."""
        failing_step = self._failing_step
        own = self._ranks.own_origin
        if key == DropSamples.key and own is not None:
            remedy = DropSamples.fitting(own, failing_step)
        if remedy is None:
            one = StepPass("trial", failing_step.batches)
        else:
            # On ranks without an origin the batch is not at fault and stays unchanged.
            batches = remedy.batches(failing_step) if self._ranks.blamed else failing_step.batches
            one = StepPass("trial", batches, within=[remedy.applied(failing_step)])
        yield from self._run(one)
        trial = Trial(key, "")
        if remedy is not None:
            trial = counterfactual.judge_trial(remedy, one.outcome, failing_step.limit)
        decided = self._ranks.decide(trial)
        if not self._well(one.outcome) and decided.tried == "cured":
            decided = replace(decided, tried="not cured", why="another rank still fails")
        return decided

    def _why_not(self, remedy: StepRemedy) -> str:
        if not remedy.why_not and self._failing_step.gentle and not remedy.safe:
            return _RISKY
        return remedy.why_not

    def _enough(self, tried: int, cured: int) -> str:
        return _ENOUGH if tried >= MOST_TRIALS or cured >= ENOUGH_CURES else ""

    def _bisect(
        self, trials: list[Trial], cured: list[StepRemedy]
    ) -> Generator[StepPass, None, None]:
        """Find the failing samples by bisection, on one rank, if the data flow did not show
        them."""
        worth = counterfactual.worth_bisecting(self._origin, self._spike, self._failing_step)
        if not self._ranks.decide(worth and self._ranks.one_is_to_blame):
            return
        search = Bisection(self._failing_step, most=MOST_HALVINGS)
        remedies = iter(search if self._ranks.decides else ())
        while self._ranks.decide((remedy := next(remedies, None)) is not None):
            one = StepPass("trial", self._failing_step.batches)
            if remedy is not None:
                one.batches = remedy.batches(self._failing_step)
            yield from self._run(one)
            search.learn(cured=self._well(one.outcome))
        found = search.found if search.minimal else None
        if found is None:
            return
        trials.insert(len(cured), Trial(found.key, found.text, "cured"))
        cured.append(found)
        self._name(found.rows)

    def _name(self, rows: Mapping[int, Sequence[int]]) -> None:
        """Record the samples that the bisection found."""
        named = [(at, tuple(those)) for at, those in rows.items() if those]
        if len(named) != 1:
            return
        (batch, guilty), origin = named[0], self._origin
        if origin is not None:
            self._origins = (replace(origin, rows=guilty, batch=batch), *self._origins[1:])
        elif self._spike is not None:
            self._spike = replace(self._spike, rows=guilty, batch=batch)

    def _find_guilt(self) -> Generator[StepPass, None, Guilt]:
        known = wording.guilt_by_kind(self._origin)
        if known is not None:
            return known
        other, healthy = self._elsewhere.older_weights, self._elsewhere.healthy_batches
        if not self._everywhere(other is not None and bool(healthy)) or self._failing_step.gentle:
            return "unknown"
        assert other is not None
        one = StepPass("trial", self._failing_step.batches, within=[other()])
        yield from self._run(one)
        if not self._everywhere(one.outcome.complete):
            return "unknown"
        if not self._well(one.outcome):
            return "batch"
        one = StepPass("trial", healthy)
        yield from self._run(one)
        if not self._everywhere(one.outcome.complete):
            return "unknown"
        return "together" if self._well(one.outcome) else "weights"

    def _run(self, one: StepPass) -> Generator[StepPass, None, None]:
        self._passes += 1
        yield one

    # Agreement among the ranks.

    def _everywhere(self, value: bool) -> bool:
        return self._ranks.everywhere(value)

    def _well(self, outcome: Outcome) -> bool:
        """Whether the step would have been taken."""
        return self._ranks.well(outcome, self._failing_step.limit)

    def _settle(self, traced: Outcome) -> None:
        """All ranks take over the origins of the rank where the non-finite value originates."""
        self._origins = self._ranks.agree_on_origins(self._origins, traced)
        if self._failing_step.symptom == "spike" and not self._origins:
            self._spike = self._ranks.find_spike(self._spike, traced.made)
        for rank, origin in self._ranks.also.items():
            rows = ", ".join(map(str, origin.rows))
            named = f", sample{'s' if len(origin.rows) > 1 else ''} {rows}" if rows else ""
            self._notes.append(
                f"rank {rank} has an origin too: {origin.op} at {origin.place}{named}"
            )

    # The outcome.

    def _concluded(
        self,
        nature: Nature,
        outcome: Outcome,
        trials: Sequence[Trial] = (),
        guilt: Guilt = "unknown",
    ) -> InvestigationResult:
        failing_step = self._failing_step
        # What the failing samples have in common is a better clue than their numbers.
        origins = tuple(add_common(failing_step, origin) for origin in self._origins)
        spike = None if self._spike is None else add_common(failing_step, self._spike)
        explanation = Explanation(
            step=failing_step.step,
            symptom=failing_step.symptom,
            nature=nature,
            origins=origins if nature == "deterministic" else (),
            spike=spike if nature == "deterministic" else None,
            trials=tuple(trials),
            guilt=guilt,
            samples=self._samples(),
            rank=self._ranks.guilty,
            passes=self._passes,
            seconds=round(time.perf_counter() - self._began, 3),
            loss=outcome.losses[-1] if outcome.losses else None,
            notes=tuple(self._notes),
        )
        return InvestigationResult(self._ranks.decide(wording.add_sentences(explanation)))

    def _samples(self) -> tuple[Any, ...]:
        carrier = self._origin or self._spike
        names = self._failing_step.sample_names
        if carrier is None or not carrier.rows or names is None:
            return ()
        return tuple(names(carrier.batch, carrier.rows))


_ENOUGH = "other remedies already worked"
_RISKY = "it could raise an error in the training loop itself"
