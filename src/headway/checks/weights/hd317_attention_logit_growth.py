from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from headway.core.check import Check, Needs
from headway.core.findings import Finding, Where
from headway.core.model_facts import AttentionFacts
from headway.core.numbers import say
from headway.core.records import Column, Header, SetupRecord, StepRecord

LOGIT, ENTROPY = "act/attention_logit", "act/attention_entropy"
START = 3
"""Number of first measurements that define the initial level."""
KEPT = 64


class AttentionLogitGrowth(Check):
    """Attention logits grow far beyond their initial level, and the attention collapses.

    ## What it checks
    For every attention layer: the distance of the largest logit of a row from the mean of the row,
    and the entropy of the weights as a share of the maximum. Masked positions do not count.

    ## Why it matters
    Logits that keep growing make attention select one position for every input, and no gradient
    passes through a softmax that is 0 or 1. This is a known cause of divergence in large runs, and
    of overflow in half precision.

    ## How it is measured
    Against the first three measurements of the same layer. It is reported if the logits are 8 times
    larger and above 25, the entropy has fallen to 0.4 of its initial value and below 0.2, both in
    three measurements in a row, and the logits still grow.

    ## False alarms
    Heads that learn to attend to one position are normal: logits of 5 to 15 are enough for that. A
    layer that is sharp from the start and stays so is not reported.

    ## What to do
    Normalise queries and keys (QK norm), divide by the square root of the head width, lower the
    learning rate or clip the gradients.

    ## References
    Wortsman et al., "Small-scale proxies for large-scale Transformer training instabilities"; Zhai
    et al., "Stabilizing Transformer Training by Preventing Attention Entropy Collapse".
    """

    code = "HD317"
    name = "attention-logit-growth"
    summary = "attention logits grow, entropy collapses"
    needs = Needs(signals=(LOGIT, ENTROPY), kinds=(StepRecord, SetupRecord))
    explains = ("HD103", "HD104", "HD115", "HD202", "HD203", "HD207", "HD208", "HD308")

    @dataclass(frozen=True)
    class Limits:
        times: float = 8.0
        """Multiple of their initial level that the logits must reach."""
        logit: float = 25.0
        """Smallest value that the logits must reach."""
        left: float = 0.4
        """Share of its initial value to which the entropy must fall."""
        entropy: float = 0.2
        """Value below which the entropy must fall."""
        looks: int = 3
        """Consecutive measurements that are needed."""
        growth: float = 1.2
        """Ratio of the logits to those half of the measurements ago."""

    def start(self) -> None:
        self.logits: dict[int, list[float]] = {}
        self.entropies: dict[int, list[float]] = {}
        self.first: dict[int, tuple[float, float]] = {}
        self.in_a_row: dict[int, int] = {}
        self.reported: set[int] = set()
        self.places: dict[str, tuple[str | None, int | None, str | None]] = {}

    def begin(self, header: Header) -> None:
        self.in_a_row = {}

    def observe(self, record: StepRecord | SetupRecord) -> Iterable[Finding]:
        if isinstance(record, SetupRecord):
            facts = AttentionFacts.of(record)
            if record.topic == "attention" and (member := facts.member):
                at = facts.locate()
                self.places[member] = (at.file, at.line, at.function)
            return
        logits, entropies = record.columns.get(LOGIT), record.columns.get(ENTROPY)
        if logits is None or entropies is None:
            return
        for position, logit, entropy in _pairs(logits, entropies):
            if self._collapsed(position, logit, entropy) and position not in self.reported:
                self.reported.add(position)
                yield self._finding(record, position, logit, entropy)

    def _collapsed(self, position: int, logit: float, entropy: float) -> bool:
        limits: AttentionLogitGrowth.Limits = self.limits
        seen = self.logits.setdefault(position, [])
        if position not in self.first:
            entropies = self.entropies.setdefault(position, [])
            seen.append(logit)
            entropies.append(entropy)
            if len(seen) == START:
                self.first[position] = (median(seen), median(entropies))
            return False
        before = seen[len(seen) // 2 :]
        seen.append(logit)
        if len(seen) > KEPT:
            del seen[0]
        first, whole = self.first[position]
        bad = (
            logit >= max(limits.logit, limits.times * first)
            and entropy <= min(limits.entropy, limits.left * whole)
            and logit >= limits.growth * before[0]
        )
        self.in_a_row[position] = self.in_a_row.get(position, 0) + 1 if bad else 0
        return self.in_a_row[position] >= limits.looks

    def _finding(self, record: StepRecord, position: int, logit: float, entropy: float) -> Finding:
        member = self.context.name("act", position)
        file, line, function = self.places.get(member, (None, None, None))
        first, whole = self.first[position]
        return self.find(
            record,
            f"the attention of {member} collapses: its largest logits are {say(logit)} above the "
            f"mean of their row ({say(first)} at the start), and its entropy fell from "
            f"{say(whole)} to {say(entropy)} of the maximum",
            subject=member,
            where=Where(file, line, function, member, rank=record.rank or None),
            remedies=[
                "Normalise queries and keys before their product (QK norm), and scale the "
                "product by 1/sqrt(head width).",
                "Lower the learning rate, lengthen the warm-up, or clip the gradients.",
            ],
            logit=logit,
            start_logit=first,
            limit=max(self.limits.logit, self.limits.times * first),
            entropy=entropy,
            start_entropy=whole,
        )


def _pairs(logits: Column, entropies: Column) -> Iterable[tuple[int, float, float]]:
    known = dict(entropies.items())
    for position, logit in logits.items():
        entropy = known.get(position)
        if entropy is not None and logit >= 0 and entropy == entropy:
            yield position, logit, entropy
