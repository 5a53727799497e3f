"""The plan of an investigation: which passes, in which order, and what they add up to.

A generator: it yields passes, whoever runs the step runs them, and it reads their outcomes. So it
is the same for a loop whose body is called, for a framework's closure, and for a loop that is given
its batch once more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from holdfast.replay import counterfactual, localise, spikes, words
from holdfast.replay.ambient import compiled_code_runs
from holdfast.replay.explanation import Birth, Explanation, Guilt, Nature, Spike, Trial
from holdfast.replay.passes import Outcome, Pass
from holdfast.replay.remedies import Remedy
from holdfast.replay.remedies.bisection import Bisection
from holdfast.replay.scene import Scene
from holdfast.replay.trace import Trace

T = TypeVar("T")
Agree = Callable[[T], Sequence[T]]
"""What every rank says, in their order; alone, what it is given."""

MOST_TRIALS = 4
MOST_HALVINGS = 5
"""Passes to find guilty samples among those of the step: enough for one among 32."""
ENOUGH_CURES = 2
"""Once so many remedies have worked, no more are tried."""


@dataclass(slots=True)
class Findings:
    """What an investigation leaves behind: for the user, and for a guard that applies cures."""

    explanation: Explanation
    cured: Sequence[Remedy] = ()
    """The remedies that worked, best first."""


@dataclass(slots=True)
class Elsewhere:
    """The same step under other circumstances, where somebody has them."""

    older_weights: Callable[[], AbstractContextManager[None]] | None = None
    """The weights of an earlier good state, in force for one pass."""
    healthy_batches: Sequence[Any] = ()
    """Batches of the last good step."""


Plan = Generator[Pass, None, Findings]


def investigate(
    scene: Scene, elsewhere: Elsewhere | None = None, agree: Agree[Any] = lambda said: [said]
) -> Plan:
    """Find out why the step went bad."""
    inquiry = _Inquiry(scene, elsewhere or Elsewhere(), agree)
    return inquiry.run()


class _Inquiry:
    def __init__(self, scene: Scene, elsewhere: Elsewhere, agree: Agree[Any]) -> None:
        self._scene = scene
        self._elsewhere = elsewhere
        self._agree = agree
        self._passes = 0
        self._began = time.perf_counter()
        self._births: tuple[Birth, ...] = ()
        self._spike: Spike | None = None
        self._rank: int | None = None
        self._mine = True
        """Whether the bad number was born here, of several ranks."""
        self._notes: list[str] = []

    def run(self) -> Plan:
        traced = yield from self._trace()
        if not self._everywhere(traced.complete):
            self._notes.append(f"the step could not be run again: {self._an_error(traced)}")
            return self._concluded("unknown", traced)
        if self._well(traced):
            nature = yield from self._again()
        else:
            nature = "deterministic"
            self._settle_on_a_rank()
        remedies = counterfactual.fitting(self._birth, self._spike, self._scene, nature)
        trials, cured = yield from self._try(self._same_everywhere(remedies))
        if nature == "deterministic" and len(cured) < ENOUGH_CURES:
            yield from self._bisect(trials, cured)
        guilt: Guilt = "unknown"
        if nature == "deterministic":
            guilt = yield from self._whose_guilt()
        if guilt == "batch":  # another rate would only have hidden it
            trials = [trial for trial in trials if trial.key != "smaller-rate"]
        found = self._concluded(nature, traced, trials, guilt)
        return replace_cured(found, cured)

    @property
    def _birth(self) -> Birth | None:
        return self._births[0] if self._births else None

    # The passes.

    def _trace(self) -> Generator[Pass, None, Outcome]:
        trace = Trace(self._scene)
        one = Pass("trace", self._scene.batches, within=[trace], observer=trace)
        yield from self._run(one)
        if one.outcome.complete:
            self._births = localise.find(trace, self._scene)
            if self._scene.symptom == "spike" and not self._births:
                self._spike = spikes.find(trace, self._scene)
        return one.outcome

    def _again(self) -> Generator[Pass, None, Nature]:
        """It went well this time: without instruments too?"""
        one = Pass("again", self._scene.batches)
        yield from self._run(one)
        if not self._everywhere(one.outcome.complete):
            return "unknown"
        if self._well(one.outcome):
            return "transient"
        return "compiler" if compiled_code_runs() else "unknown"

    def _try(
        self, remedies: Sequence[Remedy]
    ) -> Generator[Pass, None, tuple[list[Trial], list[Remedy]]]:
        trials: list[Trial] = []
        cured: list[Remedy] = []
        tried = 0
        for remedy in remedies:
            if remedy.why_not:
                trials.append(counterfactual.verdict(remedy, None, self._scene.limit))
                continue
            if tried >= MOST_TRIALS or len(cured) >= ENOUGH_CURES:
                trials.append(Trial(remedy.key, remedy.text, "not tried", _ENOUGH))
                continue
            if self._scene.gentle and not remedy.safe:
                trials.append(Trial(remedy.key, remedy.text, "not tried", _RISKY))
                continue
            tried += 1
            # Another rank's batch is not the guilty one: there the step runs as it is.
            batches = remedy.batches(self._scene) if self._mine else self._scene.batches
            one = Pass("trial", batches, within=[remedy.applied(self._scene)])
            yield from self._run(one)
            trial = counterfactual.verdict(remedy, one.outcome, self._scene.limit)
            if not self._everywhere(trial.tried == "cured") and trial.tried == "cured":
                trial = replace(trial, tried="not cured", why="another rank is still bad")
            trials.append(trial)
            if trial.tried == "cured":
                cured.append(remedy)
        order = {"cured": 0, "not cured": 1, "not tried": 2}
        trials.sort(key=lambda trial: order[trial.tried])
        return trials, cured

    def _bisect(self, trials: list[Trial], cured: list[Remedy]) -> Generator[Pass, None, None]:
        """Which samples are guilty, where the data flow did not tell."""
        if len(self._agree(True)) > 1:  # whose samples are left out, all ranks would have to agree
            return
        if not counterfactual.worth_bisecting(self._birth, self._spike, self._scene):
            return
        search = Bisection(self._scene, most=MOST_HALVINGS)
        for remedy in search:
            one = Pass("trial", remedy.batches(self._scene), within=[remedy.applied(self._scene)])
            yield from self._run(one)
            search.learn(cured=one.outcome.cured(self._scene.limit))
        if search.found is None or not search.minimal:
            return
        trials.insert(len(cured), Trial(search.found.key, search.found.text, "cured"))
        cured.append(search.found)
        self._name(search.found.rows)

    def _name(self, rows: Mapping[int, Sequence[int]]) -> None:
        """The samples that were found by leaving them out."""
        named = [(at, tuple(those)) for at, those in rows.items() if those]
        if len(named) != 1:
            return
        (batch, guilty), birth = named[0], self._birth
        if birth is not None:
            self._births = (replace(birth, rows=guilty, batch=batch), *self._births[1:])
        elif self._spike is not None:
            self._spike = replace(self._spike, rows=guilty, batch=batch)

    def _whose_guilt(self) -> Generator[Pass, None, Guilt]:
        known = words.plain_guilt(self._birth)
        if known is not None:
            return known
        other, healthy = self._elsewhere.older_weights, self._elsewhere.healthy_batches
        if not self._everywhere(other is not None and bool(healthy)) or self._scene.gentle:
            return "unknown"
        assert other is not None
        one = Pass("trial", self._scene.batches, within=[other()])
        yield from self._run(one)
        if not self._everywhere(one.outcome.complete):
            return "unknown"
        if not self._well(one.outcome):
            return "batch"
        one = Pass("trial", healthy)
        yield from self._run(one)
        if not self._everywhere(one.outcome.complete):
            return "unknown"
        return "together" if self._well(one.outcome) else "weights"

    def _run(self, one: Pass) -> Generator[Pass, None, None]:
        self._passes += 1
        yield one

    # What all ranks must see alike.

    def _everywhere(self, said: bool) -> bool:
        return all(self._agree(said))

    def _well(self, outcome: Outcome) -> bool:
        """Whether the step would have been taken."""
        finite = self._everywhere(outcome.finite)
        limit = self._scene.limit
        if not finite or limit is None:
            return finite
        return bool(max(self._agree(outcome.norm)) <= limit)

    def _an_error(self, outcome: Outcome) -> str:
        errors = [said for said in self._agree(outcome.error) if said]
        return errors[0] if errors else "it computed no loss"

    def _settle_on_a_rank(self) -> None:
        """The bad number was born on one rank; what it found is what is said everywhere."""
        said = self._agree((self._births, self._spike))
        if len(said) == 1:
            return
        own = (self._births, self._spike)
        for rank, (births, spike) in enumerate(said):
            if births or (spike and self._scene.symptom == "spike"):
                self._births, self._spike, self._rank = births, spike, rank
                self._mine = own == (births, spike)
                return

    def _same_everywhere(self, remedies: Sequence[Remedy]) -> Sequence[Remedy]:
        keys = self._agree([remedy.key for remedy in remedies])
        common = set(keys[0]).intersection(*keys)
        return [remedy for remedy in remedies if remedy.key in common]

    # The outcome.

    def _concluded(
        self,
        nature: Nature,
        outcome: Outcome,
        trials: Sequence[Trial] = (),
        guilt: Guilt = "unknown",
    ) -> Findings:
        scene = self._scene
        explanation = Explanation(
            step=scene.step,
            symptom=scene.symptom,
            nature=nature,
            births=self._births if nature == "deterministic" else (),
            spike=self._spike if nature == "deterministic" else None,
            trials=tuple(trials),
            guilt=guilt,
            samples=self._samples(),
            rank=self._rank,
            passes=self._passes,
            seconds=round(time.perf_counter() - self._began, 3),
            loss=outcome.losses[-1] if outcome.losses else None,
            notes=tuple(self._notes),
        )
        return Findings(words.told(explanation))

    def _samples(self) -> tuple[Any, ...]:
        carrier = self._birth or self._spike
        names = self._scene.sample_names
        if carrier is None or not carrier.rows or names is None:
            return ()
        return tuple(names(carrier.batch, carrier.rows))


_ENOUGH = "others worked already"
_RISKY = "it could raise an error in the training loop itself"


def replace_cured(found: Findings, cured: Sequence[Remedy]) -> Findings:
    """The same findings, with the remedies that worked."""
    return Findings(found.explanation, cured)
