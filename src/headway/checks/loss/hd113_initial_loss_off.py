from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from headway.checks.loss_context import loss_call_site
from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity
from headway.core.loss_facts import LossCallFacts
from headway.core.numbers import say
from headway.core.records import Header, SetupRecord


class InitialLossOff(Check):
    """The first loss is far above that of a uniform guess.

    ## What it checks
    The value of the first `cross_entropy` or `nll_loss` that is trained on, against ln C: the loss
    of a model that gives each of C classes the same probability.

    ## Why it matters
    A model that starts far above ln C is confidently wrong: its head is initialised with too large
    weights, its inputs are not scaled, or its labels do not fit. The first steps only undo that.

    ## How it is measured
    At the first step only. More than twice ln C is information; more than 30 times is a warning,
    unless the head shares its weights with an embedding.

    ## False alarms
    A loss below ln C is normal in fine-tuning. Tied embeddings of unit variance start far above ln
    C and recover in a few steps: information only.

    ## What to do
    Scale the inputs, and initialise the last layer with smaller weights (a standard deviation of
    0.02, or zero).

    ## References
    Karpathy, "A recipe for training neural networks": verify the loss at init.
    """

    code = "HD113"
    name = "initial-loss-off"
    severity = Severity.WARNING
    summary = "first loss far from what the head implies (ln C for C classes)"
    needs = Needs(kinds=(SetupRecord,), topics=("loss-call",))
    explains = ()

    @dataclass(frozen=True)
    class Limits:
        worth_knowing: float = 2.0
        """Multiple of ln C from which it is information."""
        far: float = 30.0
        """Multiple of ln C from which it is a warning."""

    def start(self) -> None:
        self.seen: set[str] = set()

    def begin(self, header: Header) -> None:
        self.seen = {"resumed"} if header.segment else set()

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = LossCallFacts.of(record)
        site = loss_call_site(facts)
        value, classes = facts.value, facts.classes
        if record.step > 0 or site in self.seen or "resumed" in self.seen:
            return
        self.seen.add(site)
        if value is None or classes is None or classes < 2 or facts.reduction != "mean":
            return
        if facts.weighted or not facts.labels:
            return
        expected = math.log(classes)
        ratio = value / expected
        if ratio < self.limits.worth_knowing or value < expected + 1:
            return
        far = ratio >= self.limits.far and not facts.tied
        yield self.find(
            record,
            f"the first loss is {say(value)}, {say(ratio)} times the {say(expected)} of a "
            f"uniform guess among {classes} classes",
            subject=site,
            severity=None if far else Severity.INFO,
            where=facts.locate(rank=record.rank, op=facts.function),
            remedies=[
                "Check the scale of the inputs and of the last layer's weights: at the start all "
                "classes should be about equally likely."
            ],
            value=value,
            expected=expected,
            classes=classes,
            tied=facts.tied,
        )
