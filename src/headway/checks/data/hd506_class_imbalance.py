from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.core.check import Check, Needs
from headway.core.data_facts import LabelFacts
from headway.core.facts import onset_record
from headway.core.findings import Finding
from headway.core.numbers import say
from headway.core.records import SetupRecord


class ClassImbalance(Check):
    """One class, or padding, makes up nearly all the labels, and nothing evens it out.

    ## What it checks
    The labels that reach a classification loss, and whether the ids that fill up short sequences
    are counted as labels.

    ## Why it matters
    A model that always says the common class is right nearly always. Its loss falls, its accuracy
    looks fine, and the rare class is never learned. With padding in the loss most of what is
    learned is to predict padding, and the loss says little about the rest.

    ## How it is measured
    Over all labels of a line that calls the loss, 200 at least: one class has 85 % of them or more,
    without class weights, `pos_weight`, a weighting sampler or losses that are weighted one by one.
    Padding: one id that rows end in, in runs of different lengths, and that is found nowhere else,
    makes up a fifth of the labels or more and is not ignored.

    ## False alarms
    Maps and sequences with many labels a sample are not asked about their balance. Labels that are
    all the same (the discriminator's) and labels that number the batch (contrastive losses) are no
    classes. A rare class that need not be found is no fault: ignore it.

    ## What to do
    Give the loss class weights or `pos_weight`, draw with a `WeightedRandomSampler`, and judge by
    the recall of each class. For padding: `ignore_index=pad_id`, or labels of -100 there.

    ## References
    Humbatova et al., "DeepCrime" (TUD, unbalanced training data); axolotl#2227.
    """

    code = "HD506"
    name = "class-imbalance"
    summary = "one class dominates, unweighted"
    needs = Needs(kinds=(SetupRecord,), topics=("labels",))
    explains = ("HD105", "HD512")

    @dataclass(frozen=True)
    class Limits:
        share: float = 0.85
        """Of one class among all labels."""
        samples: int = 200
        """Labels there must be."""
        padding: float = 0.2
        """Of padding among the labels of sequences."""

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = LabelFacts.of(record)
        padded = self._padding(record, facts)
        yield from padded or self._imbalance(record, facts)

    def _imbalance(self, record: SetupRecord, facts: LabelFacts) -> list[Finding]:
        counts = [pair for pair in facts.counts if len(pair) == 2]
        samples, seen = facts.samples or 0, facts.seen or 0
        if facts.weighted or facts.dense or not counts or seen < 2:
            return []
        label, count = max(counts, key=lambda pair: pair[1])
        share = count / max(samples, 1)
        if samples < self.limits.samples or not self.limits.share <= share < 1:
            return []
        return [
            self.find(
                onset_record(record),
                f"class {say(label)} has {say(100 * share)} % of {samples} labels (limit "
                f"{say(100 * self.limits.share)} %), and nothing evens it out: always saying it is "
                "right nearly always",
                subject=facts.loss or "",
                where=facts.locate(rank=record.rank),
                remedies=[
                    "Give the loss class weights (`weight=`, `pos_weight=`) or draw the rare "
                    "classes more often (`WeightedRandomSampler`).",
                    "Judge by the recall of each class, not by accuracy.",
                ],
                value=share,
                limit=self.limits.share,
                samples=samples,
                label=label,
            )
        ]

    def _padding(self, record: SetupRecord, facts: LabelFacts) -> list[Finding]:
        share, rows = facts.pad_share, facts.pad_rows
        label, elsewhere = facts.pad_id, facts.pad_elsewhere
        shortest, longest = facts.pad_shortest, facts.pad_longest
        if share is None or rows is None or elsewhere is None or label is None:
            return []
        varies = shortest is not None and longest is not None and longest >= shortest + 2
        if facts.weighted or not varies or share < self.limits.padding:
            return []
        if rows < 0.3 or elsewhere > 0.01 * share:
            return []
        return [
            self.find(
                onset_record(record),
                f"id {label} fills up the ends of {say(100 * rows)} % of the sequences and is "
                f"counted as a label: {say(100 * share)} % of the labels are padding (limit "
                f"{say(100 * self.limits.padding)} %)",
                subject="padding",
                where=facts.locate(rank=record.rank),
                remedies=[
                    f"Leave it out of the loss: `ignore_index={label}`, or labels of -100 where "
                    "the sequence has ended.",
                ],
                value=share,
                limit=self.limits.padding,
                pad_id=label,
            )
        ]
