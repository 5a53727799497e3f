from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.core.check import Check, Needs
from headway.core.data_facts import EpochOrderFacts, LabelFacts
from headway.core.facts import onset_record
from headway.core.findings import Finding, Severity, Where
from headway.core.numbers import say
from headway.core.records import Moment, SetupRecord, moment_of, record_at

CURES = {
    "set_epoch was not called": "Call `sampler.set_epoch(epoch)` before every pass.",
    "the generator was seeded again": "Seed once, before the first pass, not in each of them.",
    "the same indices": "Draw a new permutation for every pass.",
    "the same batches": "Draw a new permutation for every pass: look for a seed that is set "
    "again, or a sampler that reuses its first order.",
}


class SameOrderEachEpoch(Check):
    """Every pass over the data has the same shuffled order, or the labels are sorted.

    ## What it checks
    The batches of one training pass against those of the next, from a loader or from a loop that
    selects them by index; and, if nothing shuffles, whether the labels are sorted.

    ## Why it matters
    The data were meant to be shuffled. With the same order in every pass each batch always contains
    the same samples and has the same successor: gradients are correlated and the model learns the
    order. Data sorted by class make it forget each class while it learns the next.

    ## How it is measured
    By content, by the indices used, or by the state from which the sampler draws its order: two
    passes of three batches or more are the same, and the order is not that of the data. Sorted
    labels: neighbours in a batch differ less than a third as often as in a shuffled order.

    ## False alarms
    Reading in order, without shuffling, is information only, as usual for time series and text. One
    batch, or the whole set at a time, has no order.

    ## What to do
    Use `DataLoader(shuffle=True)`; with a `DistributedSampler`, call `sampler.set_epoch(epoch)`; in
    your own loop, draw a new `torch.randperm` for every pass. Seed once.

    ## References
    pytorch/pytorch#31771; `torch.utils.data.distributed.DistributedSampler` (set_epoch).
    """

    code = "HD507"
    name = "same-order-each-epoch"
    summary = "the permutation repeats (no shuffle, no set_epoch)"
    needs = Needs(kinds=(SetupRecord,), topics=("epoch-order", "labels"))
    explains = ("HD103", "HD115")

    @dataclass(frozen=True)
    class Limits:
        batches: int = 3
        """Smallest number of batches in a pass."""
        changes: float = 0.3
        """Neighbours with different labels, relative to a shuffled order."""
        samples: int = 200
        """Smallest number of labels to call them sorted."""

    def start(self) -> None:
        self.sequential: Moment | None = None
        self.place: tuple[str | None, int | None, str | None] = (None, None, None)
        self.mixing: float | None = None
        """Changes of the label relative to a mixed order, at the least mixed loss."""

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        if record.topic == LabelFacts.topic:
            self._add_labels(LabelFacts.of(record))
            return
        facts = EpochOrderFacts.of(record)
        if facts.kind == "sequential":
            self.sequential = moment_of(onset_record(record))
            where = facts.locate()
            self.place = (where.file, where.line, where.function)
            return
        why, batches = facts.why, facts.batches or 0
        if why is None or batches < self.limits.batches or facts.kind == "iterable":
            return
        yield self.find(
            onset_record(record),
            f"two passes over the data have the same shuffled order ({why}); {batches} batches "
            f"compared",
            where=facts.locate(rank=record.rank),
            remedies=[CURES.get(why, CURES["the same batches"])],
            why=why,
            batches=batches,
            sampler=facts.sampler,
        )

    def _add_labels(self, facts: LabelFacts) -> None:
        changes, neighbours = facts.changes, facts.neighbours
        samples, counts = facts.samples or 0, facts.counts
        if changes is None or not neighbours or samples < self.limits.samples:
            return
        if facts.dense or (facts.seen or 0) < 2:
            return
        expected = 1 - sum((pair[1] / samples) ** 2 for pair in counts if len(pair) == 2)
        if expected > 0.2:
            mixing = changes / neighbours / expected
            self.mixing = mixing if self.mixing is None else min(mixing, self.mixing)

    def finish(self) -> Iterable[Finding]:
        if self.sequential is None:
            return
        sorted_labels = self.mixing is not None and self.mixing < self.limits.changes
        if not sorted_labels or self.mixing is None:
            return
        yield self.find(
            record_at(self.sequential),
            f"the loader does not shuffle and the labels are sorted: neighbours differ only "
            f"{say(100 * self.mixing)} % as often as in a shuffled order (limit "
            f"{say(100 * self.limits.changes)} %)",
            where=Where(*self.place),
            severity=Severity.WARNING,
            remedies=["Shuffle: `DataLoader(…, shuffle=True)`."],
            value=self.mixing,
            limit=self.limits.changes,
        )
