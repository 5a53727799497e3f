from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.core.check import Check, Needs
from headway.core.data_facts import TransferFacts
from headway.core.findings import Finding, Severity
from headway.core.numbers import say_bytes
from headway.core.records import SetupRecord


class PageableTransfer(Check):
    """Batches are copied to the device from pageable memory, or with blocking copies.

    ## What it checks
    Copies of tensors from the host to a CUDA device during training: whether they come from pinned
    memory, and whether the host waits for each.

    ## Why it matters
    From ordinary (pageable) memory a copy goes through a buffer of the driver, and the host waits
    for it. From pinned memory, with `non_blocking=True`, it overlaps with the computation.

    ## How it is measured
    Bytes copied per step. From pageable memory, 4 MiB or more are a warning; blocking copies from
    pinned memory, 4 MiB or more, are information.

    ## False alarms
    Small batches have no cost either way and pass. If all memory of the host is needed, pinning may
    be harmful.

    ## What to do
    Use `DataLoader(pin_memory=True)` and `batch.to(device, non_blocking=True)`.

    ## References
    PyTorch, "A guide on good usage of non_blocking and pin_memory()".
    """

    code = "HD806"
    name = "pageable-transfer"
    summary = "CUDA training from pageable memory, or blocking copies"
    needs = Needs(kinds=(SetupRecord,), topics=("transfer",))
    explains = ()

    @dataclass(frozen=True)
    class Limits:
        bytes: float = 4 * 2**20
        """Bytes per step."""

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = TransferFacts.of(record)
        pageable = facts.pageable_per_step or 0.0
        blocking = facts.blocking_per_step or 0.0
        limit = self.limits.bytes
        if pageable >= limit:
            count, what, severity = pageable, "pageable memory", None
        elif blocking >= limit:
            count, what, severity = blocking, "pinned memory with blocking copies", Severity.INFO
        else:
            return
        yield self.find(
            record,
            f"{say_bytes(count)} per step are copied to the device from {what} (limit "
            f"{say_bytes(limit)})",
            where=facts.locate(rank=record.rank),
            severity=severity,
            remedies=["Use `DataLoader(pin_memory=True)` and `.to(device, non_blocking=True)`."],
            value=count,
            limit=limit,
        )
