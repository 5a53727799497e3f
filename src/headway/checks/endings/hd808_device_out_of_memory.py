from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headway.checks.endings._shared import describe_batch, describe_line, remedies_of, say_holder
from headway.core.check import Check, Needs
from headway.core.ending_facts import OUT_OF_MEMORY, OutOfMemoryFacts
from headway.core.findings import Finding, Severity
from headway.core.numbers import say_bytes
from headway.core.records import EventRecord

HELD_SHARE = 0.3
"""Share of the memory that stays allocated after the step, above which it is called growth."""
OTHERS_SHARE = 0.05
"""Share of the device's memory above which other processes are named."""
NOTHING_KNOWN = (
    "Use a smaller batch with gradient accumulation, bf16 autocast or activation checkpointing; "
    "`nvidia-smi` shows whether another process holds the memory."
)
"""The advice of a log, which has only the message."""


class DeviceOutOfMemory(Check):
    """The GPU ran out of memory.

    ## What it checks
    `torch.OutOfMemoryError` and the allocation errors of cuBLAS and cuDNN that end a run or, with
    `Policy(on_oom=…)`, a step.

    ## Why it matters
    The line in the traceback is the one that asked last, not the one that holds the memory. One
    batch that is larger than the others, memory that grows with every step, a fragmented cache and
    another process on the same GPU need four different remedies.

    ## How it is measured
    From the exception and the allocator: how much was asked for, what is free, what other processes
    have. What holds the memory is grouped into weights, gradients, optimizer states and
    activations. Where the failing call of the model is known, it runs again: once while the
    allocator notes the line of every block, then with fewer rows, with activation checkpointing and
    under bfloat16, so that the finding says which of them fits. `HD802` and `HD803` name the holder
    when memory has grown over the steps.

    ## False alarms
    None: the allocation has failed. A script that catches the error itself is not reported.

    ## What to do
    Use the remedy that is marked as tested. `Policy(on_oom="split")` runs a batch that does not fit
    in micro-batches with the same gradient, and `"skip"` leaves it out.

    ## References
    PyTorch, "Understanding CUDA Memory Usage"; "CUDA semantics: Memory management".
    """

    code = "HD808"
    name = "device-out-of-memory"
    severity = Severity.ERROR
    summary = "the GPU ran out of memory"
    needs = Needs(kinds=(EventRecord,), events=(OUT_OF_MEMORY,))
    explains = ("HD608",)
    ends_run = True

    def observe(self, record: EventRecord) -> Iterable[Finding]:
        facts = OutOfMemoryFacts.of_event(record)
        if facts.memory_of != "device":
            return
        yield self.find(
            record,
            _message(facts),
            subject=f"{facts.place.file}:{facts.place.line} {facts.action}",
            where=facts.where(record.rank),
            severity=Severity.WARNING if facts.survived else None,
            remedies=remedies_of(facts, record) or [NOTHING_KNOWN],
            **_evidence(facts),
        )


def _message(facts: OutOfMemoryFacts) -> str:
    asked = f" allocating {say_bytes(facts.requested)}" if facts.requested else ""
    where = facts.device or "the device"
    parts = [f"{where} ran out of memory{asked}"]
    memory = facts.memory
    if "allowed" in memory:
        parts[0] += f" ({say_bytes(memory['allowed'])} allowed for this process)"
    elif "total" in memory:
        free, total = say_bytes(memory["free"]), say_bytes(memory["total"])
        parts[0] += f" ({free} of {total} free)"
    if facts.action:
        parts.append(facts.describe_action())
    elif unusual := describe_batch(facts):
        parts.append(unusual)
    elif facts.rows and facts.fits == facts.rows:
        parts.append("the same batch fits on its own: see HD802 and HD803")
    elif (facts.held or 0) > HELD_SHARE * _limit(facts):
        parts.append(
            f"{say_bytes(facts.held or 0)} remain allocated after the step: see HD802 and HD803"
        )
    elif facts.rows and facts.fits:
        parts.append(f"{facts.fits} of its {facts.rows} rows fit")
    elif line := describe_line(facts):
        parts.append(line)
    if not facts.action:
        if memory.get("others", 0) > OTHERS_SHARE * memory.get("total", 1):
            parts.append(f"other processes use {say_bytes(memory['others'])}")
        holder = say_holder(facts)
        if holder:
            parts.append(holder)
    return parts[0] + (". " + "; ".join(_capital(parts[1:])) if parts[1:] else "")


def _limit(facts: OutOfMemoryFacts) -> float:
    memory = facts.memory
    return float(memory.get("allowed") or memory.get("total") or float("inf"))


def _capital(parts: list[str]) -> list[str]:
    return [parts[0][:1].upper() + parts[0][1:], *parts[1:]]


def _evidence(facts: OutOfMemoryFacts) -> dict[str, Any]:
    found = {
        **facts.evidence(),
        "requested_bytes": facts.requested,
        "memory": dict(facts.memory) or None,
        "holders": [dict(item) for item in facts.holders] or None,
        "lines": [dict(item) for item in facts.lines] or None,
        "rows": facts.rows,
        "rows_that_fit": facts.fits,
        "held_bytes": facts.held,
        "fragmented": facts.fragmented or None,
        "action": facts.action,
        "pieces": facts.pieces,
        "why": facts.why,
    }
    return {name: value for name, value in found.items() if value is not None}
