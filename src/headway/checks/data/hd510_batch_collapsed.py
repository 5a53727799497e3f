from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.checks.symptoms import POOR_FIT
from headway.core.check import Check, Needs
from headway.core.data_facts import BatchSizeFacts
from headway.core.facts import onset_record
from headway.core.findings import Finding
from headway.core.records import SetupRecord


class BatchCollapsed(Check):
    """The model trains on far fewer samples a step than the script is set to.

    ## What it checks
    How many samples the model is given between two updates, against the loader's `batch_size` and
    the batch size that the script's own variables and options name.

    ## Why it matters
    A batch of 1 where 32 were meant: gradients are noise, batch norm sees single samples, an epoch
    takes 32 times the steps. Everything runs, and nothing says so.

    ## How it is measured
    All forward passes of a step together have less than a quarter of the samples, at every step
    looked at, three at least. Whichever axis is the batch: an input with an axis of the full size
    passes.

    ## False alarms
    Pieces of a batch (accumulation, chunks) add up. Last batches are short, the others are not.
    Sizes below 8 are not asked about.

    ## What to do
    Print the shape right before the model. Look for a loader that was given another size, an index
    (`batch[0]`), a `squeeze` or a reshape on the way, a wrapper that splits the batch.

    ## References
    huggingface/transformers#34204.
    """

    code = "HD510"
    name = "batch-collapsed"
    summary = "real batch size is not the configured one"
    needs = Needs(kinds=(SetupRecord,), topics=("batch-size",))
    explains = (*POOR_FIT, "HD103", "HD105", "HD207", "HD404")

    @dataclass(frozen=True)
    class Limits:
        steps: int = 3

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = BatchSizeFacts.of(record)
        collapsed, whole = facts.collapsed or 0, facts.whole or 0
        samples, meant = facts.samples, facts.meant
        if (
            facts.wanted
            or collapsed < self.limits.steps
            or whole > 0.05 * collapsed
            or not samples
            or not meant
        ):
            return
        yield self.find(
            onset_record(record),
            f"the model gets {samples} of {meant} samples a step, at all {collapsed} steps looked "
            f"at ({facts.whence or 'the script'} says {meant})",
            where=facts.locate(rank=record.rank),
            remedies=[
                "Print the shape right before the model, and look for an index, a squeeze or a "
                "reshape on the way, or a loader that was given another size.",
            ],
            value=samples,
            meant=meant,
            steps=collapsed,
        )
