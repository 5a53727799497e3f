from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.checks.symptoms import POOR_FIT
from headway.core.check import Check, Needs
from headway.core.data_facts import InputVarietyFacts
from headway.core.facts import onset_record
from headway.core.findings import Finding
from headway.core.records import SetupRecord


class ConstantInput(Check):
    """All samples are the same, or all targets are.

    ## What it checks
    The first argument of the model, feature by feature over all samples, and the targets that come
    from the loader and reach the loss.

    ## Why it matters
    There is nothing to learn: the loss falls to that of the best constant answer and stays there.
    Causes are a data set that returns the same item for every index, a repeated batch, a
    normalisation that removes all information, or a column that was filled with one value.

    ## How it is measured
    Exactly: no feature differs between any two samples, in three batches or more of at least eight,
    with 32 samples in total. The same for targets, with 64 of them.

    ## False alarms
    Training on one image or one noise tensor uses a batch of one. Masks and constants other than
    the first argument are not checked, nor are labels that the loop creates itself.

    ## What to do
    Compare two items of the data set: `dataset[0]`, `dataset[1]`. Look for an index that is not
    used in `__getitem__`, a list of one repeated object, or a division by a huge number.

    ## References
    Braiek and Khomh, "TheDeepChecker" (data without variation).
    """

    code = "HD503"
    name = "constant-input"
    summary = "features or targets do not vary"
    needs = Needs(kinds=(SetupRecord,), topics=("input-variety", "target-variety"))
    explains = (*POOR_FIT, "HD105", "HD306", "HD404")

    @dataclass(frozen=True)
    class Limits:
        batches: int = 3
        samples: int = 32
        targets: int = 64
        batch: int = 8
        """Smaller batches may be one sample on purpose."""

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = InputVarietyFacts.of(record)
        samples, batches = facts.samples or 0, facts.batches or 0
        varying, smallest = facts.varying, facts.smallest or 0
        if varying is None or varying > 0 or batches < self.limits.batches:
            return
        inputs = record.topic == "input-variety"
        if samples < (self.limits.samples if inputs else self.limits.targets):
            return
        if inputs and smallest < self.limits.batch:
            return
        what = "inputs" if inputs else "targets"
        yield self.find(
            onset_record(record),
            f"the {what} of all {samples} samples in {batches} batches are the same",
            subject=what,
            where=facts.locate(rank=record.rank),
            remedies=[
                "Compare two items of the data set, and look for an index that is not used, a "
                "repeated object or a column filled with one value.",
            ],
            samples=samples,
            batches=batches,
        )
