"""Investigates a bad step: traces it, finds the origin or the cause of a spike, tries remedies."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from headway.explain import counterfactual, locate
from headway.explain import explanation as wording
from headway.explain.batch_samples import add_common, blame_batch
from headway.explain.explanation import Explanation, Guilt, Nature, Origin, Spike, Trial
from headway.explain.failing_step import (
    FailingStep,
    OneRank,
    Outcome,
    RankAgreement,
    RankExchange,
    StepPass,
    TraceReport,
)
from headway.explain.module_survey import CleanCalls, ModuleSurvey, worth_surveying
from headway.explain.remedies.base import StepRemedy
from headway.explain.remedies.drop_samples import Bisection, DropSamples
from headway.explain.scoped_trace import ScopedTrace
from headway.explain.spikes import find_spike
from headway.explain.trace import Trace
from headway.torch_adapters.runtime_state import compiled_code_runs

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
    ranks: tuple[RankExchange, int] | None = None,
) -> InvestigationPlan:
    """Find out why the step failed. All `ranks` must call this: what connects them, and the index
    of this one."""
    exchange, rank = ranks or (OneRank(), 0)
    agreement = RankAgreement(exchange, rank, failing_step.limit)
    alone = isinstance(exchange, OneRank)
    return _Investigation(failing_step, elsewhere or ControlRuns(), agreement, alone=alone).run()


class _Investigation:
    def __init__(
        self,
        failing_step: FailingStep,
        elsewhere: ControlRuns,
        ranks: RankAgreement,
        *,
        alone: bool,
    ) -> None:
        self._alone = alone
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
        self._ranks.compare(lambda: self._report(traced))
        reports = self._ranks.reports
        if not all(report.complete for report in reports):
            self._notes.append(f"the step could not be re-run: {self._ranks.an_error()}")
            return self._concluded("unknown", traced)
        common = False
        if not all(report.well for report in reports):
            nature: Nature = "deterministic"
            common = self._settle()
        elif self._failing_step.inexact:
            self._notes.append(self._failing_step.inexact)
            return self._concluded("unknown", traced)
        else:
            nature = yield from self._again()
        remedies = self._select(nature)
        planned, bisect = self._ranks.report.remedies, self._ranks.report.bisect
        if not common:  # the rank that decides has planned for another cause
            planned, bisect = self._ranks.decide((self._plan(remedies), self._worth_bisecting()))
        trials, cured = yield from self._try(remedies, planned)
        if nature == "deterministic" and len(cured) < ENOUGH_CURES and bisect:
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
        step = self._failing_step
        trace = Trace(step)
        if self._alone and step.symptom == "nonfinite":
            trace = ScopedTrace(step, (yield from self._survey()))
        one = StepPass("trace", step.batches, within=[trace], observer=trace)
        yield from self._run(one)
        if one.outcome.complete:
            self._origins = locate.find_origins(trace, step)
            failed = not one.outcome.finite and not self._origins
            if isinstance(trace, ScopedTrace) and (trace.incomplete or trace.errors or failed):
                trace = Trace(step)
                one = StepPass("trace", step.batches, within=[trace], observer=trace)
                yield from self._run(one)
                if not one.outcome.complete:
                    return one.outcome
                self._origins = locate.find_origins(trace, step)
            if self._failing_step.symptom == "spike" and not self._origins:
                spike = find_spike(trace, self._failing_step, one.outcome.norms)
                healthy = self._elsewhere.healthy_batches
                self._spike = blame_batch(self._failing_step, healthy, spike)
        return one.outcome

    def _survey(self) -> Generator[StepPass, None, CleanCalls]:
        """Which parts of the step need no trace."""
        if not worth_surveying(self._failing_step):
            return CleanCalls()
        survey = ModuleSurvey(self._failing_step)
        one = StepPass("trace", self._failing_step.batches, within=[survey], observer=survey)
        yield from self._run(one)
        return survey.result(one.outcome)

    def _again(self) -> Generator[StepPass, None, Nature]:
        """The traced pass succeeded: does the step also succeed without tracing?"""
        one = StepPass("again", self._failing_step.batches)
        yield from self._run(one)
        complete, well = self._ranks.passed(one.outcome)
        if not complete:
            return "unknown"
        if well:
            return "transient"
        return "compiler" if compiled_code_runs() else "unknown"

    def _try(
        self, remedies: Sequence[StepRemedy], planned: Sequence[tuple[str, str]]
    ) -> Generator[StepPass, None, tuple[list[Trial], list[StepRemedy]]]:
        here = {remedy.key: remedy for remedy in remedies}
        trials: list[Trial] = []
        cured: list[StepRemedy] = []
        tried = 0
        for key, why_not in planned:
            remedy = here.get(key)
            why_not = why_not or self._enough(tried, len(cured))
            if why_not:
                if remedy is not None:
                    trials.append(Trial(key, remedy.text, "not tried", why_not, remedy.edits))
                continue
            tried += 1
            trial, known = yield from self._try_one(key, remedy)
            trials.append(trial)
            if known and trial.tried == "cured":
                assert remedy is not None
                cured.append(remedy)
        order = {"cured": 0, "not cured": 1, "not tried": 2}
        trials.sort(key=lambda trial: order[trial.tried])
        return trials, cured

    def _try_one(
        self, key: str, remedy: StepRemedy | None
    ) -> Generator[StepPass, None, tuple[Trial, bool]]:
        """Try a remedy on every rank; the rank with the origin decides about the outcome."""
        failing_step, known = self._failing_step, remedy is not None
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

        def judged() -> Trial:
            if remedy is None:
                return Trial(key, "")
            return counterfactual.judge_trial(remedy, one.outcome, failing_step.limit)

        return self._ranks.judge(judged, one.outcome, known=known)

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
        if not self._ranks.one_is_to_blame:
            return
        search = Bisection(self._failing_step, most=MOST_HALVINGS)
        remedies = iter(search if self._ranks.decides else ())
        while self._ranks.any((remedy := next(remedies, None)) is not None):
            one = StepPass("trial", self._failing_step.batches)
            if remedy is not None:
                one.batches = remedy.batches(self._failing_step)
            yield from self._run(one)
            search.learn(cured=self._ranks.passed(one.outcome)[1])
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
        if not all(report.controls for report in self._ranks.reports) or self._failing_step.gentle:
            return "unknown"
        assert other is not None
        one = StepPass("trial", self._failing_step.batches, within=[other()])
        yield from self._run(one)
        complete, well = self._ranks.passed(one.outcome)
        if not (complete and well):
            return "batch" if complete else "unknown"
        one = StepPass("trial", healthy)
        yield from self._run(one)
        complete, well = self._ranks.passed(one.outcome)
        if not complete:
            return "unknown"
        return "together" if well else "weights"

    def _run(self, one: StepPass) -> Generator[StepPass, None, None]:
        self._passes += 1
        yield one

    # Agreement among the ranks.

    def _report(self, traced: Outcome) -> TraceReport:
        if not traced.complete:
            return TraceReport(complete=False, well=False, error=traced.error)
        other, healthy = self._elsewhere.older_weights, self._elsewhere.healthy_batches
        return TraceReport(
            complete=True,
            well=traced.cured(self._failing_step.limit),
            bad=not all(map(math.isfinite, (*traced.losses, traced.made))),
            made=traced.made,
            origins=self._origins,
            spike=self._spike,
            remedies=self._plan(self._select("deterministic")),
            bisect=self._worth_bisecting(),
            controls=other is not None and bool(healthy),
        )

    def _select(self, nature: Nature) -> list[StepRemedy]:
        step = self._failing_step
        return counterfactual.select_remedies(self._origin, self._spike, step, nature)

    def _plan(self, remedies: Sequence[StepRemedy]) -> list[tuple[str, str]]:
        return [(remedy.key, self._why_not(remedy)) for remedy in remedies]

    def _worth_bisecting(self) -> bool:
        return counterfactual.worth_bisecting(self._origin, self._spike, self._failing_step)

    def _settle(self) -> bool:
        """All ranks take over the origins of the rank where the non-finite value originates;
        whether its report is about just these."""
        self._origins = self._ranks.find_origins()
        common = self._origins is self._ranks.report.origins
        if self._failing_step.symptom == "spike" and not self._origins:
            self._spike = self._ranks.find_spike()
            decider = self._ranks.report
            common = self._spike is decider.spike and not decider.origins
        for rank, origin in self._ranks.also.items():
            rows = ", ".join(map(str, origin.rows))
            named = f", sample{'s' if len(origin.rows) > 1 else ''} {rows}" if rows else ""
            self._notes.append(
                f"rank {rank} has an origin too: {origin.op} at {origin.place}{named}"
            )
        return common

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
