from __future__ import annotations

from collections.abc import Iterable

from headway.checks.endings._shared import describe_batch, describe_line, remedies_of
from headway.core.check import Check, Needs
from headway.core.ending_facts import OUT_OF_MEMORY, OutOfMemoryFacts
from headway.core.findings import Finding, Remedy, Severity
from headway.core.numbers import say_bytes
from headway.core.records import EventRecord


class HostOutOfMemory(Check):
    """The host, or the container, ran out of memory.

    ## What it checks
    `MemoryError`, the error of torch's CPU allocator, and a process or a DataLoader worker that the
    kernel's OOM killer has ended.

    ## Why it matters
    The kernel kills a process without a message: the log just stops, and the exit status is 137. A
    container is killed at its own limit, however much memory the host has.

    ## How it is measured
    Exceptions are read in the process. For kills, the supervisor of `headway run` compares the
    counters of the control group (`memory.events`, `memory.oom_control`) and of the kernel before
    and after. Without counters, a SIGKILL counts as likely if the process and its workers used more
    than 90 % of the limit.

    ## False alarms
    A SIGKILL by a scheduler or a user is HD913. The word "likely" in the message means that the
    memory use of the process is the only evidence.

    ## What to do
    Use fewer DataLoader workers or a smaller `prefetch_factor`, load samples lazily, or raise the
    memory limit of the job. If memory grew over the steps, `HD801` names the line that allocates.

    ## References
    Linux, "Control Group v2: Memory"; PyTorch, "torch.utils.data".
    """

    code = "HD809"
    name = "host-out-of-memory"
    severity = Severity.ERROR
    summary = "the host ran out of memory"
    needs = Needs(kinds=(EventRecord,), events=(OUT_OF_MEMORY,))
    explains = ("HD913", "HD608")
    ends_run = True

    def observe(self, record: EventRecord) -> Iterable[Finding]:
        facts = OutOfMemoryFacts.of_event(record)
        if facts.memory_of != "host":
            return
        evidence = {
            **facts.evidence(),
            "requested_bytes": facts.requested,
            "memory": dict(facts.memory) or None,
            "killed": facts.killed,
            "action": facts.action,
            "why": facts.why,
        }
        yield self.find(
            record,
            _message(facts),
            subject=f"{facts.place.file}:{facts.place.line} {facts.killed} {facts.action}",
            where=facts.where(record.rank),
            severity=Severity.WARNING if facts.survived else None,
            remedies=_remedies(facts, record),
            **{name: value for name, value in evidence.items() if value is not None},
        )


def _message(facts: OutOfMemoryFacts) -> str:
    memory = facts.memory
    asked = f" allocating {say_bytes(facts.requested)}" if facts.requested else ""
    text = f"the host ran out of memory{asked}"
    if "address_space" in memory:
        bound = say_bytes(memory["address_space"])
        text = f"the process reached its limit of address space, {bound} (`ulimit -v`){asked}"
    if facts.killed:
        who = "a DataLoader worker" if facts.worker else "the process"
        sure = "the kernel killed" if facts.killed == "certain" else "the kernel likely killed"
        text = f"{sure} {who} because memory ran out"
    details = []
    if facts.action:
        details.append(facts.describe_action())
    if "tree" in memory:
        workers = f" in {memory['children'] + 1} processes" if memory.get("children") else ""
        details.append(f"the run used {say_bytes(memory['tree'])}{workers}")
    if "limit" in memory:
        details.append(f"the container's limit is {say_bytes(memory['limit'])}")
    elif "total" in memory and "address_space" not in memory:
        details.append(f"the host has {say_bytes(memory['total'])}")
    if about := describe_batch(facts) or describe_line(facts):
        details.append(about)
    return text + (f" ({', '.join(details)})" if details else "")


def _remedies(facts: OutOfMemoryFacts, record: EventRecord) -> list[Remedy | str]:
    if facts.killed or facts.memory.get("children"):
        return [
            "Use fewer DataLoader workers or a smaller prefetch_factor: each worker holds its own "
            "batches.",
            "Raise the memory limit of the job.",
        ]
    found: list[Remedy | str] = []
    if "address_space" in facts.memory:
        found.append("Raise the limit (`ulimit -v unlimited`, or `resource.setrlimit`).")
    return [*found, *remedies_of(facts, record)] or [
        "Look at what the named line keeps: memory that grows with each step is never released."
    ]
