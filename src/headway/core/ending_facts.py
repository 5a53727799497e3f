"""How a run ended: one kind of event for each way, and the facts each kind carries.

The guard and the supervisor write these events; each check in `checks/endings` reads one kind.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TypeVar

from headway.core.facts import FactTable, Names, Number, Numbers, Place, Table, Tables, Text, Whole
from headway.core.findings import Finding, Where
from headway.core.records import EventRecord

ENDING = "ending"
"""The signal by which a source announces that it records how its run ends."""

END = "end"
CRASH = "crash"
DEVICE_ASSERT = "device-assert"
KILLED = "killed"
HANG = "hang"
INTERRUPTED = "interrupted"
LOADER_FAILED = "loader-failed"
OUT_OF_MEMORY = "out-of-memory"
COLLECTIVE_MISMATCH = "collective-mismatch"
RANK_LOST = "rank-lost"
SAVE_FAILED = "save-failed"

SURVIVED = "survived"
"""In the evidence of a finding of a check with `ends_run`: true if the run continued after it."""

E = TypeVar("E", bound="EndingFacts")


@dataclass(frozen=True)
class EndingFacts(FactTable):
    """Base of the facts of one kind of event."""

    kind: ClassVar[str]

    @classmethod
    def of_event(cls: type[E], event: EventRecord) -> E:
        """The facts of an event."""
        return cls.read(event.data)


@dataclass(frozen=True)
class EndFacts(EndingFacts):
    """The last event, written by the process itself."""

    kind = END

    steps: Whole
    status: Text
    """`finished`, `failed` or `interrupted`; None in runs of older versions."""
    exit: Whole
    """The exit status of the script, if known."""
    signal: Whole
    """The signal that ended it, if one did."""
    error: Text
    """The exception that ended it, if recording it in an event of its own failed."""


@dataclass(frozen=True)
class BatchTensor(FactTable):
    """A tensor of the batch that was in use, compared with the batches before it."""

    name: Text
    """`batch[0]`, `batch['image']`."""
    shape: Numbers
    dtype: Text
    unusual: Text
    """How it differs from earlier batches; None if it does not."""


@dataclass(frozen=True)
class FailureFacts(EndingFacts):
    """An exception and the moment it was raised; the base of all events about one."""

    error: Text
    """`ValueError: …`, the first line."""
    error_type: Text
    text: Text
    """The whole message, shortened."""
    place: Place
    """The innermost line of the user's code."""
    line_text: Text
    """The text of that line."""
    frame: Names
    """The lines around it, for display."""
    phase: Text
    """`data`, `forward`, `backward`, `step` or `user`: what the loop was doing."""
    batch: list[BatchTensor]
    tensors: list[BatchTensor]
    """The tensors that the line uses."""
    sample: Whole
    """The index in the data set, where a single sample raised."""
    thread: Text
    """The name of the thread, if it was not the main one."""
    survived: bool
    """Whether the run continued."""

    def where(self, rank: int) -> Where:
        """The location for a finding."""
        return self.place.where(rank=rank, sample=self.sample)

    def evidence(self) -> dict[str, Any]:
        """The facts that go into the evidence of a finding."""
        found = {
            "error": self.error,
            "phase": self.phase,
            "source": self.line_text,
            "frame": self.frame or None,
            "batch": [shape_text(item) for item in self.batch] or None,
            "tensors": [shape_text(item) for item in self.tensors] or None,
            "thread": self.thread,
            SURVIVED: self.survived or None,
        }
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True)
class CrashFacts(FailureFacts):
    """An exception that left the script, a `with Guard` block or a thread."""

    kind = CRASH


@dataclass(frozen=True)
class InterruptedFacts(EndingFacts):
    """The user or the scheduler stopped the run."""

    kind = INTERRUPTED

    signal: Whole
    place: Place
    phase: Text
    saved: bool | None
    """Whether a snapshot was written before the exit; None if none was attempted."""


@dataclass(frozen=True)
class OutOfMemoryFacts(FailureFacts):
    """Memory ran out: an exception, a kill by the kernel, or a step that the guard split or
    skipped."""

    kind = OUT_OF_MEMORY

    memory_of: Text
    """`device` or `host`."""
    device: Text
    requested: Whole
    """Bytes of the allocation that failed."""
    memory: Table
    """Bytes: free, total, allocated and so on."""
    holders: Tables
    """`kind`, `bytes` and `blocks`, the largest first."""
    lines: Tables
    """`file`, `line`, `function`, `bytes` and `blocks` by the line that allocated them."""
    fragmented: bool
    """Whether the allocator's cache has enough memory, in pieces that are too small."""
    rows: Whole
    """Rows of the batch that did not fit."""
    fits: Whole
    """Largest number of rows that fitted in a trial."""
    held: Whole
    """Bytes that stay allocated after the failed step, weights and states excluded."""
    remedies: Tables
    """`text`, `tested` and `cured`."""
    action: Text
    """`split` or `skip`: how the guard kept the run alive; None if it did not."""
    pieces: Whole
    """Number of micro-batches."""
    why: Text
    """Why the step was skipped and not split."""
    killed: Text
    """`certain` or `likely`: the kernel has killed the process; None: an exception."""
    worker: bool
    """Whether a DataLoader worker was killed."""

    def describe_action(self) -> str:
        """The action of the guard, as text."""
        if self.action == "split":
            return f"the batch of {self.rows} rows ran in {self.pieces} micro-batches instead"
        return f"the step was skipped ({self.why})"


@dataclass(frozen=True)
class DeviceAssertFacts(FailureFacts):
    """A CUDA kernel has failed, and the step was run again on the host."""

    kind = DEVICE_ASSERT

    found: bool
    """Whether the run on the host raised the true error."""
    why_not: Text
    """Why it did not."""
    host_error: Text
    """The error on the host, on one line."""
    op: Text
    value: Number
    """The first value that is out of range."""
    position: Numbers
    """Where it is in its tensor."""
    limit: Whole
    """Number of valid values."""
    count: Whole
    """How many values are out of range."""
    at: Place
    """The line that the first traceback named."""


@dataclass(frozen=True)
class KilledFacts(EndingFacts):
    """The process vanished without recording its end."""

    kind = KILLED

    signal: Whole
    """The signal that ended it, if known."""
    exit: Whole
    """Its exit status, if it exited by itself."""
    steps: Whole
    """Optimizer steps that were begun."""
    phase: Text
    place: Place
    """The line that crashed, or the last line that was sampled."""
    stack: Names
    """The frames of the thread that crashed, innermost first."""
    memory: Table
    """Bytes: `tree` (the process and its children), `limit` or `total`, …"""
    last_sign: Number
    """Wall time of the last sign of life."""
    supervised: bool
    """Whether a supervisor saw it end, so that the signal is certain."""


@dataclass(frozen=True)
class LoaderFailedFacts(FailureFacts):
    """A DataLoader raised."""

    kind = LOADER_FAILED

    how: Text
    """`raised`, `died` (a worker) or `stalled`."""
    worker: Whole
    """The number of the worker that raised."""
    worker_signal: Text
    pids: Numbers
    indices: Numbers
    """The samples of the batch, if known."""
    shared_memory: bool
    """Whether the message names shared memory, files or space."""


@dataclass(frozen=True)
class SaveFailedFacts(FailureFacts):
    """A checkpoint could not be written."""

    kind = SAVE_FAILED

    path: Text
    reason: Text
    """`the disk is full`, …; None if the error names no reason."""
    last_good: Text
    """The last file that was saved before."""
    last_good_steps: Whole


def ends_run(finding: Finding, *, declared: bool) -> bool:
    """Whether a finding of a check that declares `ends_run` ended this run."""
    return declared and finding.evidence.get(SURVIVED) is not True


def shape_text(item: BatchTensor) -> str:
    """`x float32 [64, 10]`, and how it differs from the batches before."""
    shape = ", ".join(str(int(size)) for size in item.shape)
    unusual = f" ({item.unusual})" if item.unusual else ""
    return f"{item.name} {item.dtype} [{shape}]{unusual}"


@dataclass(slots=True)
class RunEnding:
    """How a run ended, as its process recorded it."""

    status: str = "finished"
    """`finished`, `failed` or `interrupted`."""
    exit: int | None = None
    """The exit status of the script, if known."""
    signal: int | None = None
    error: str | None = None
    """The exception that ended it, until that is recorded with all its facts."""

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}
