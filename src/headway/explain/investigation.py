"""Investigates one bad step: traces it, finds the origin of the bad number or the cause of a spike,
and tries remedies.
"""

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
from headway.explain.trace import Trace
from headway.torch_adapters.runtime_state import compiled_code_runs

# Finds what carries a finite but huge jump: layers, a part of the loss, samples.

MOST_LAYERS = 5
GREW = 3.0
"""Times its usual size from which a gradient has grown."""
STANDS_OUT = 5.0
"""Times the median from which a sample's share stands out, …"""
DEVIATIONS = 10.0
"""… if it is so many deviations away, as well."""
NORMAL = 1.4826
"""From the median deviation to the standard deviation of normal numbers."""
FEW = 4
CLEARLY = 10.0
"""Among a few samples: times the second largest."""


def find_spike(trace: Trace, scene: FailingStep, norms: Mapping[str, float] | None = None) -> Spike:
    """What grew most in a traced pass. `norms` are those of the gradients over all ranks, where
    there are several."""
    layers = _layers(norms or trace.ends.norms, scene)
    share = _telling_share(trace, [name for name, _ in layers])
    known = all(growth is not None for _, growth in layers)
    return Spike(
        component=_component(trace, scene),
        rows=() if share is None else outliers(share.sizes),
        layers=tuple(name for name, _ in layers),
        growth=tuple(growth or 0.0 for _, growth in layers) if known else (),
        batch=0 if share is None else share.batch,
    )


def outliers(sizes: Sequence[float]) -> tuple[int, ...]:
    """The few that are far larger than the rest."""
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


def _layers(norms: Mapping[str, float], scene: FailingStep) -> list[tuple[str, float | None]]:
    """Those whose gradients grew most; the largest, where nobody knows what is usual."""
    usual = {name: scene.usual.get(f"grad_norm/{name}", 0.0) for name in norms}
    grown = [(name, norms[name] / usual[name]) for name in norms if usual[name] > 0]
    if grown:
        ranked = sorted(grown, key=lambda item: item[1], reverse=True)[:MOST_LAYERS]
        return [(name, growth) for name, growth in ranked if growth >= GREW]
    largest = sorted(norms, key=norms.__getitem__, reverse=True)[:MOST_LAYERS]
    return [(name, None) for name in largest]


def _component(trace: Trace, scene: FailingStep) -> str | None:
    """The part of the loss that grew most; the largest, where nobody knows what is usual."""
    values: dict[str, float] = {}
    for component in trace.ends.components:
        values[component.name] = max(values.get(component.name, 0.0), abs(component.value))
    usual = {name: abs(scene.usual.get(f"loss/{name}", 0.0)) for name in values}
    if all(usual.values()):
        return max(values, key=lambda name: values[name] / usual[name], default=None)
    return max(values, key=values.__getitem__, default=None)


def _telling_share(trace: Trace, layers: Sequence[str]) -> GradientShare | None:
    """In which some samples stand out: of the layer that grew most, or else nearest to the loss."""
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


# The plan of an investigation: which passes, in which order, and what they add up to.

# A generator: it yields passes, whoever runs the step runs them, and it reads their outcomes. So
# it is the same for a loop whose body is called, for a framework's closure, and for a loop that is
# given its batch once more.

MOST_TRIALS = 4
MOST_HALVINGS = 5
"""Passes to find guilty samples among those of the step: enough for one among 32."""
ENOUGH_CURES = 2
"""Once so many remedies have worked, no more are tried."""


@dataclass(slots=True)
class InvestigationResult:
    """What an investigation leaves behind: for the user, and for a guard that applies cures."""

    explanation: Explanation
    cured: Sequence[StepRemedy] = ()
    """The remedies that worked, best first."""


@dataclass(slots=True)
class ControlRuns:
    """The same step under other circumstances, where somebody has them."""

    older_weights: Callable[[], AbstractContextManager[None]] | None = None
    """The weights of an earlier good state, in force for one pass."""
    healthy_batches: Sequence[Any] = ()
    """Batches of the last good step."""


InvestigationPlan = Generator[StepPass, None, InvestigationResult]


def investigate(
    scene: FailingStep,
    elsewhere: ControlRuns | None = None,
    agree: GatherFromRanks[Any] = lambda said: [said],
    rank: int = 0,
) -> InvestigationPlan:
    """Find out why the step went bad. With several ranks every one must do so: `agree` tells what
    all of them say, `rank` is this one's place among them."""
    inquiry = _Investigation(scene, elsewhere or ControlRuns(), RankAgreement(agree, rank))
    return inquiry.run()


class _Investigation:
    def __init__(self, scene: FailingStep, elsewhere: ControlRuns, council: RankAgreement) -> None:
        self._scene = scene
        self._elsewhere = elsewhere
        self._council = council
        self._passes = 0
        self._began = time.perf_counter()
        self._origins: tuple[Origin, ...] = ()
        self._spike: Spike | None = None
        self._notes: list[str] = []

    def run(self) -> InvestigationPlan:
        traced = yield from self._trace()
        if not self._everywhere(traced.complete):
            why = self._council.an_error(traced)
            self._notes.append(f"the step could not be run again: {why}")
            return self._concluded("unknown", traced)
        if not self._well(traced):
            nature: Nature = "deterministic"
            self._settle(traced)
        elif self._scene.inexact:
            self._notes.append(self._scene.inexact)
            return self._concluded("unknown", traced)
        else:
            nature = yield from self._again()
        remedies = counterfactual.select_remedies(self._origin, self._spike, self._scene, nature)
        trials, cured = yield from self._try(remedies)
        if nature == "deterministic" and len(cured) < ENOUGH_CURES:
            yield from self._bisect(trials, cured)
        guilt: Guilt = "unknown"
        if nature == "deterministic":
            guilt = yield from self._whose_guilt()
        if guilt == "batch":  # another rate would only have hidden it
            trials = [trial for trial in trials if trial.key != "smaller-rate"]
        found = self._concluded(nature, traced, trials, guilt)
        return with_cured(found, cured)

    @property
    def _origin(self) -> Origin | None:
        return self._origins[0] if self._origins else None

    # The passes.

    def _trace(self) -> Generator[StepPass, None, Outcome]:
        trace = Trace(self._scene)
        one = StepPass("trace", self._scene.batches, within=[trace], observer=trace)
        yield from self._run(one)
        if one.outcome.complete:
            self._origins = locate.find_origins(trace, self._scene)
            if self._scene.symptom == "spike" and not self._origins:
                self._spike = find_spike(trace, self._scene, one.outcome.norms)
        return one.outcome

    def _again(self) -> Generator[StepPass, None, Nature]:
        """It went well this time: without instruments too?"""
        one = StepPass("again", self._scene.batches)
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
        for key, why_not in self._council.as_spoken(planned):
            remedy = here.get(key)
            why_not = why_not or self._enough(tried, len(cured))
            if why_not:
                if remedy is not None:
                    trials.append(Trial(key, remedy.text, "not tried", why_not))
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
        """On every rank; what came of it is what the rank says that was bad before."""
        scene = self._scene
        own = self._council.own_origin
        if key == DropSamples.key and own is not None:
            remedy = DropSamples.fitting(own, scene)
        if remedy is None:
            one = StepPass("trial", scene.batches)
        else:
            # Another rank's batch is not the guilty one: there the step runs as it is.
            batches = remedy.batches(scene) if self._council.blamed else scene.batches
            one = StepPass("trial", batches, within=[remedy.applied(scene)])
        yield from self._run(one)
        trial = Trial(key, "")
        if remedy is not None:
            trial = counterfactual.judge_trial(remedy, one.outcome, scene.limit)
        spoken = self._council.as_spoken(trial)
        if not self._well(one.outcome) and spoken.tried == "cured":
            spoken = replace(spoken, tried="not cured", why="another rank is still bad")
        return spoken

    def _why_not(self, remedy: StepRemedy) -> str:
        if not remedy.why_not and self._scene.gentle and not remedy.safe:
            return _RISKY
        return remedy.why_not

    def _enough(self, tried: int, cured: int) -> str:
        return _ENOUGH if tried >= MOST_TRIALS or cured >= ENOUGH_CURES else ""

    def _bisect(
        self, trials: list[Trial], cured: list[StepRemedy]
    ) -> Generator[StepPass, None, None]:
        """Which samples are guilty, where the data flow did not tell; of one rank, if several."""
        worth = counterfactual.worth_bisecting(self._origin, self._spike, self._scene)
        if not self._council.as_spoken(worth and self._council.one_is_to_blame):
            return
        search = Bisection(self._scene, most=MOST_HALVINGS)
        remedies = iter(search if self._council.speaks else ())
        while self._council.as_spoken((remedy := next(remedies, None)) is not None):
            one = StepPass("trial", self._scene.batches)
            if remedy is not None:
                one.batches = remedy.batches(self._scene)
            yield from self._run(one)
            search.learn(cured=self._well(one.outcome))
        found = search.found if search.minimal else None
        if found is None:
            return
        trials.insert(len(cured), Trial(found.key, found.text, "cured"))
        cured.append(found)
        self._name(found.rows)

    def _name(self, rows: Mapping[int, Sequence[int]]) -> None:
        """The samples that were found by leaving them out."""
        named = [(at, tuple(those)) for at, those in rows.items() if those]
        if len(named) != 1:
            return
        (batch, guilty), origin = named[0], self._origin
        if origin is not None:
            self._origins = (replace(origin, rows=guilty, batch=batch), *self._origins[1:])
        elif self._spike is not None:
            self._spike = replace(self._spike, rows=guilty, batch=batch)

    def _whose_guilt(self) -> Generator[StepPass, None, Guilt]:
        known = wording.guilt_by_kind(self._origin)
        if known is not None:
            return known
        other, healthy = self._elsewhere.older_weights, self._elsewhere.healthy_batches
        if not self._everywhere(other is not None and bool(healthy)) or self._scene.gentle:
            return "unknown"
        assert other is not None
        one = StepPass("trial", self._scene.batches, within=[other()])
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

    # What all ranks must see alike.

    def _everywhere(self, said: bool) -> bool:
        return self._council.everywhere(said)

    def _well(self, outcome: Outcome) -> bool:
        """Whether the step would have been taken."""
        return self._council.well(outcome, self._scene.limit)

    def _settle(self, traced: Outcome) -> None:
        """The bad number was born on one rank; what it found is what is said everywhere."""
        self._origins = self._council.agree_on_origins(self._origins, traced)
        if self._scene.symptom == "spike" and not self._origins:
            self._spike = self._council.find_spike(self._spike, traced.made)
        for rank, origin in self._council.also.items():
            rows = ", ".join(map(str, origin.rows))
            named = f", sample{'s' if len(origin.rows) > 1 else ''} {rows}" if rows else ""
            self._notes.append(f"rank {rank} made one, too: {origin.op} at {origin.place}{named}")

    # The outcome.

    def _concluded(
        self,
        nature: Nature,
        outcome: Outcome,
        trials: Sequence[Trial] = (),
        guilt: Guilt = "unknown",
    ) -> InvestigationResult:
        scene = self._scene
        explanation = Explanation(
            step=scene.step,
            symptom=scene.symptom,
            nature=nature,
            origins=self._origins if nature == "deterministic" else (),
            spike=self._spike if nature == "deterministic" else None,
            trials=tuple(trials),
            guilt=guilt,
            samples=self._samples(),
            rank=self._council.guilty,
            passes=self._passes,
            seconds=round(time.perf_counter() - self._began, 3),
            loss=outcome.losses[-1] if outcome.losses else None,
            notes=tuple(self._notes),
        )
        return InvestigationResult(self._council.as_spoken(wording.add_sentences(explanation)))

    def _samples(self) -> tuple[Any, ...]:
        carrier = self._origin or self._spike
        names = self._scene.sample_names
        if carrier is None or not carrier.rows or names is None:
            return ()
        return tuple(names(carrier.batch, carrier.rows))


_ENOUGH = "others worked already"
_RISKY = "it could raise an error in the training loop itself"


def with_cured(found: InvestigationResult, cured: Sequence[StepRemedy]) -> InvestigationResult:
    """The same findings, with the remedies that worked."""
    return InvestigationResult(found.explanation, cured)
