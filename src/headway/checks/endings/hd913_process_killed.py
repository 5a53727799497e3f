from __future__ import annotations

import signal
from collections.abc import Iterable

from headway.checks.endings._shared import say_phase
from headway.core.check import Check, Needs
from headway.core.ending_facts import ENDING, KILLED, KilledFacts
from headway.core.findings import Finding, Severity
from headway.core.numbers import say_bytes
from headway.core.records import EventRecord

MEANINGS = {
    "SIGKILL": "sent by the kernel when memory runs out, by a scheduler or by `kill -9`",
    "SIGSEGV": "native code accessed invalid memory",
    "SIGABRT": "native code aborted, often after a failed assertion",
    "SIGBUS": "mapped memory became unavailable, often because /dev/shm is full",
    "SIGFPE": "native code divided by zero",
    "SIGILL": "native code was built for another CPU",
    "SIGXCPU": "the CPU time limit was reached",
}
AMPLE_SHARE = 0.5
NATIVE = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL")


class ProcessKilled(Check):
    """The process disappeared before the run ended.

    ## What it checks
    SIGKILL, segmentation faults, aborts and other fatal signals, and `os._exit()` with an error
    status: the process itself cannot record any of them.

    ## Why it matters
    Python prints no traceback, and the log just stops. The last step, its phase and the line
    narrow down the cause.

    ## How it is measured
    Every rank writes a heartbeat into memory that survives it: steps, phase, and about once a
    second the line. Under `headway run` and `headway check` a small parent process reads the signal
    and the memory, and faulthandler writes the stack of a crash in native code. Without it,
    `diagnose` finds a heartbeat whose process no longer exists and that
    recorded no end.

    ## False alarms
    A process that still runs is never reported. On another computer, it counts as gone after 30
    minutes without a heartbeat. SIGTERM and Ctrl-C are interruptions (HD915), and
    `os._exit(0)` under `headway run` or `headway check` is a normal end.

    ## What to do
    SIGKILL: compare the memory with the limit; ask for more memory, or use fewer DataLoader
    workers and a smaller batch. SIGSEGV, SIGABRT: look at the named line and the extension that it
    calls; run with one worker and without `torch.compile` to narrow it down. SIGBUS: enlarge
    `/dev/shm` (`docker run --shm-size=8g`).

    ## References
    Python, "faulthandler"; Linux, signal(7).
    """

    code = "HD913"
    name = "process-killed"
    severity = Severity.ERROR
    summary = "the process disappeared: killed by a signal, or ended by os._exit()"
    needs = Needs(signals=(ENDING,), kinds=(EventRecord,), events=(KILLED,))
    explains = ("HD608",)
    ends_run = True

    def observe(self, record: EventRecord) -> Iterable[Finding]:
        facts = KilledFacts.of_event(record)
        name = _signal_name(facts.signal)
        memory = _memory(facts) if _may_be_memory(name, facts) else ""
        yield self.find(
            record,
            f"{_what(facts, name)} {_when(facts, record.step)}{memory}",
            subject=f"rank {record.rank}",
            where=facts.place.where(rank=record.rank),
            remedies=_remedies(name, facts),
            signal=name,
            exit=facts.exit,
            steps=facts.steps,
            phase=facts.phase,
            stack=facts.stack or None,
            memory=dict(facts.memory) or None,
        )


def _what(facts: KilledFacts, name: str | None) -> str:
    if name is not None:
        meaning = f" ({MEANINGS[name]})" if name in MEANINGS else ""
        return f"the process was killed by {name}{meaning}"
    if facts.exit is not None:
        return f"the process exited through `os._exit({facts.exit})`"
    return "the process ended without a record (SIGKILL, or `os._exit()`)"


def _when(facts: KilledFacts, step: int) -> str:
    if facts.steps is None or facts.phase == "start":
        return "before its first step"
    return f"at step {step}{say_phase(facts.phase)}"


def _may_be_memory(name: str | None, facts: KilledFacts) -> bool:
    """Whether memory that ran out can end a process like this."""
    return name == "SIGKILL" or (name is None and facts.exit is None)


def _memory(facts: KilledFacts) -> str:
    used, limit = facts.memory.get("tree"), facts.memory.get("bound")
    if not isinstance(used, int) or not isinstance(limit, int):
        return ""
    return f", with {say_bytes(used)} of {say_bytes(limit)} of memory in use"


def _was_ample(facts: KilledFacts) -> bool:
    """Whether at most half of the memory was in use, a second before the end at most."""
    used, limit = facts.memory.get("tree"), facts.memory.get("bound")
    return isinstance(used, int) and isinstance(limit, int) and used <= AMPLE_SHARE * limit


def _remedies(name: str | None, facts: KilledFacts) -> list[str]:
    if name in NATIVE:
        return [
            "Look at the named line and the native extension that it calls.",
            *(["Enlarge /dev/shm: `docker run --shm-size=8g`."] if name == "SIGBUS" else []),
        ]
    if facts.exit is not None and name is None:
        return [
            "Search the script and its libraries for `os._exit`: it skips `finally`, `atexit` and "
            "the traceback. `sys.exit` or an exception leaves the reason."
        ]
    if _may_be_memory(name, facts) and _was_ample(facts):
        return [
            "Memory was not short. Look for a time limit or a preemption (`sacct`, `kubectl "
            "describe pod`), or another process that sends SIGKILL."
        ]
    if _may_be_memory(name, facts):
        return [
            "Compare the job's memory with its limit (`sacct`, `kubectl describe pod`, `dmesg`): "
            "the kernel kills a process without a message.",
            "Run it with `headway run`, which records the signal and the memory."
            if not facts.supervised
            else "If memory was short, use fewer DataLoader workers or a smaller batch.",
        ]
    return []


def _signal_name(number: int | None) -> str | None:
    try:
        return None if number is None else signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
