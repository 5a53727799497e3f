from __future__ import annotations

from collections.abc import Iterable

from headway.core.check import Check, Needs
from headway.core.data_facts import StoredSamplesFacts
from headway.core.findings import Finding, Severity
from headway.core.records import SetupRecord


class DatasetModified(Check):
    """Reading a sample changes what the data set has stored.

    ## What it checks
    Arrays and tensors that a data set keeps in memory: whether their rows change when samples are
    read.

    ## Why it matters
    `im -= mean` in `__getitem__` works on a view of the stored data. Each epoch normalises, scales
    or augments the samples once more; the data drift away while the loss looks good. With worker
    processes each worker changes a copy of its own, so that the result depends on `num_workers`.

    ## How it is measured
    Up to 16 rows of each array of floats with one row for each sample are compared after every
    batch. At least two of them change in two passes or more, and then are equal to a sample of the
    batch.

    ## False alarms
    A cache that is filled in the first pass changes each row once. Rows that the training loop
    writes (new targets, priorities) do not equal the samples delivered before. With worker
    processes nothing is compared.

    ## What to do
    Copy the sample before you change it: `im = self.images[index].copy()`, or `.clone()`.

    ## References
    facebookresearch/pycls#21; pytorch/vision#680; mindee/doctr#840.
    """

    code = "HD516"
    name = "dataset-modified"
    severity = Severity.ERROR
    summary = "reading a sample changes the stored data"
    needs = Needs(kinds=(SetupRecord,), topics=("stored-samples",))
    explains = ("HD103", "HD104", "HD502", "HD503")
    once = "run"

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = StoredSamplesFacts.of(record)
        if not facts.attribute or not facts.rows:
            return
        owner = facts.dataset or "the data set"
        yield self.find(
            record,
            f"reading a sample changes {owner}.{facts.attribute}: {facts.rows} of "
            f"{facts.watched or facts.rows} compared rows changed again in a later pass",
            where=facts.locate(rank=record.rank),
            remedies=["Copy the sample before it is changed: `.copy()` or `.clone()`."],
            attribute=facts.attribute,
            rows=facts.rows,
        )
