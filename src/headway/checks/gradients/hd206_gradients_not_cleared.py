from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.checks.symptoms import BAD_STEPS
from headway.core.check import Check, Needs
from headway.core.facts import Place, say_list
from headway.core.findings import Finding, Severity
from headway.core.optimizer_facts import LeftoverGradientFacts
from headway.core.records import SetupRecord, StepRecord


class GradientsNotCleared(Check):
    """Gradients of earlier steps are still in the sum.

    ## What it checks
    Whether the gradients that an optimizer has just used are cleared before the next backward pass
    adds to them. With several optimizers, also whether the loss of one optimizer (the generator's)
    leaves gradients in parameters of another (the discriminator's).

    ## Why it matters
    `backward` adds to `.grad`. Without clearing, each step moves along the sum of all batches so
    far: the norm grows, old batches outweigh the current one, and the run overshoots or diverges.

    ## How it is measured
    The guard marks a step whose gradients still include those of the step before. Two such steps in
    a row are reported, once, until a step with cleared gradients follows. The graph of a loss shows
    that it goes through the parameters of one optimizer into those of another, which then steps;
    the gradients are still there, unchanged, when the next loss adds to them.

    ## False alarms
    Gradient accumulation does not count: it adds up between two optimizer steps, not across one.
    An encoder that collects the gradients of several heads is not reported either. A single step
    may carry gradients over (for example after an exception that was caught); two in a row are a
    property of the loop.

    ## What to do
    Call `optimizer.zero_grad()` once for each `optimizer.step()`, before the first backward pass or
    after the step. With several optimizers, clear the gradients of each one.

    ## References
    PyTorch, "What does zero_grad do" and `Optimizer.zero_grad`.
    """

    code = "HD206"
    name = "gradients-not-cleared"
    severity = Severity.ERROR
    summary = "gradients of earlier steps are still in the sum"
    points_at = ("clear", "backward")
    needs = Needs(
        signals=("grads_carried",),
        kinds=(StepRecord, SetupRecord),
        topics=("leftover-gradients",),
        span=1,
    )
    explains = (*BAD_STEPS, "HD101", "HD201", "HD209", "HD602", "HD403", "HD512", "HD105")

    @dataclass(frozen=True)
    class Limits:
        steps: int = 2
        """Consecutive steps that must include the gradients of the step before."""

    def start(self) -> None:
        self.in_a_row: dict[str, int] = {}

    def observe(self, record: StepRecord | SetupRecord) -> Iterable[Finding]:
        if isinstance(record, SetupRecord):
            yield from self._leftovers(record)
            return
        if record.held:
            return  # the guard drops the gradients of a step that it skips
        carried = [name for name, value in record.family("grads_carried") if value]
        if not carried and not self.in_a_row:
            return
        for name in [*self.in_a_row]:
            if name not in carried and self._stepped(record, name):
                del self.in_a_row[name]
        for name in carried:
            self.in_a_row[name] = self.in_a_row.get(name, 0) + 1
            if self.in_a_row[name] == self.limits.steps:
                yield self._finding(record, name)

    @staticmethod
    def _stepped(record: StepRecord, name: str) -> bool:
        """Whether this record belongs to that optimizer: with several, each has its own records."""
        own_norm = name.replace("grads_carried", "grad_norm")
        return "optimizers" not in record.values or own_norm in record.values

    def _finding(self, record: StepRecord, name: str) -> Finding:
        _, _, number = name.partition("#")
        whose = f" of optimizer {number}" if number else ""
        # With several optimizers, the line that clears is another one's.
        stepped = Place.read(self.context.places.get(f"step#{number}") if number else None)
        return self.find(
            record,
            f"the gradients{whose} were not cleared: {self.limits.steps} steps in a row include "
            f"the gradients of earlier steps",
            subject=name,
            where=stepped.where(rank=record.rank) if stepped.file is not None else None,
            remedies=[
                "Call optimizer.zero_grad() once for every optimizer.step(). With gradient "
                "accumulation, clear after the step, not between its micro-batches."
            ],
            steps_in_a_row=self.in_a_row[name],
            grad_norm=record.values.get(name.replace("grads_carried", "grad_norm")),
        )

    def _leftovers(self, record: SetupRecord) -> Iterable[Finding]:
        facts = LeftoverGradientFacts.of(record)
        if not facts.times:
            return
        yield self.find(
            record,
            f"the step of {facts.optimizer} includes gradients of another loss: a backward pass "
            f"for {say_list(facts.behind, 1)} also left them in {say_list(facts.names, 1)}, and "
            f"they were not cleared",
            subject=f"leftovers {say_list(facts.names, 1)}",
            where=facts.locate(rank=record.rank, op="backward"),
            remedies=[
                "Call zero_grad() of this optimizer directly before this backward pass, as well as "
                "after its step."
            ],
            optimizer=facts.optimizer,
            parameters=facts.names,
            times=facts.times,
        )
