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
    """One class, or padding, makes up nearly all labels, and nothing compensates for it.

    ## What it checks
    The labels that reach a classification loss, and whether the ids that pad short sequences count
    as labels.

    ## Why it matters
    A model that always predicts the common class is nearly always right. Its loss falls, its
    accuracy looks fine, and the rare class is never learned. With padding in the loss, the model
    mostly learns to predict padding, and the loss says little about the rest.

    ## How it is measured
    Over all labels of a line that calls the loss, at least 200: one class has 85 % of them or more,
    without class weights, `pos_weight`, a weighted sampler or per-sample loss weights. Padding: one
    id at the ends of rows, in runs of different lengths, that occurs nowhere else, makes up a fifth
    of the labels or more and is not ignored.

    ## False alarms
    Maps and sequences with many labels per sample are not judged for balance. Labels that are all
    the same (the discriminator's) and labels that number the batch (contrastive losses) are not
    classes. If a rare class need not be found, ignore the finding.

    ## What to do
    Pass class weights or `pos_weight` to the loss, draw with a `WeightedRandomSampler`, and
    evaluate the recall of each class. For padding: `ignore_index=pad_id`, or labels of -100 there.

    ## References
    Humbatova et al., "DeepCrime" (TUD, unbalanced training data); axolotl#2227.
    """

    code = "HD506"
    name = "class-imbalance"
    summary = "one class dominates without class weights"
    needs = Needs(kinds=(SetupRecord,), topics=("labels",))
    explains = ("HD105", "HD512")

    @dataclass(frozen=True)
    class Limits:
        share: float = 0.85
        """Share of one class among all labels."""
        samples: int = 200
        """Smallest number of labels."""
        padding: float = 0.2
        """Share of padding among the labels of sequences."""

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
                f"{say(100 * self.limits.share)} %) without class weights: always predicting it "
                f"is nearly always right",
                subject=facts.loss or "",
                where=facts.locate(rank=record.rank),
                remedies=[
                    "Pass class weights to the loss (`weight=`, `pos_weight=`) or draw the rare "
                    "classes more often (`WeightedRandomSampler`).",
                    "Evaluate the recall of each class, not the accuracy.",
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
                f"id {label} pads the ends of {say(100 * rows)} % of the sequences and counts as "
                f"a label: {say(100 * share)} % of the labels are padding (limit "
                f"{say(100 * self.limits.padding)} %)",
                subject="padding",
                where=facts.locate(rank=record.rank),
                remedies=[
                    f"Exclude it from the loss: `ignore_index={label}`, or labels of -100 after "
                    f"the end of the sequence.",
                ],
                value=share,
                limit=self.limits.padding,
                pad_id=label,
            )
        ]
