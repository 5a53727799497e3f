"""How the run behind a log ended: the words of a shell, a launcher, a scheduler, a container or the
kernel after its last row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from headway import registry
from headway.logs.log_table import LogEvent

SIGNED_OFF = "signed-off"
"""Kind of event for a line that says that the training is complete."""

# One line. Most of these end a process in the same few ways, and differ in who says so.

ENDING_CLUES = (
    "exit", "Exit", "status", "Error ", "Error:", "Exception:", "signal", "Signal", "SIG",
    "dumped", "illed", "erminate", "bort", "egmentation", "us error", "angup", "Hung up",
    "nterrupt", "TERM_", "CANCELLED", "memory", "Out Of Memory", "vict", "oom", "reempt", "^C",
    "Fatal Python", "ssertion", "Xid", "fallen off", "free()", "malloc", "corrupt", "(failed",
    "stopping", "ending", "Broken pipe", "CUDA ERROR", "CUDA error", "NCCL error", "cudaError",
    "exception", "Essential",
)  # fmt: skip

_SIGNALS = {
    "hangup": 1, "hung up": 1, "interrupt": 2, "quit": 3, "illegal instruction": 4,
    "trace/breakpoint trap": 5, "aborted": 6, "abort": 6, "bus error": 7,
    "floating point exception": 8, "killed": 9, "segmentation fault": 11, "terminated": 15,
}  # fmt: skip
_NAMED = {
    "SIGHUP": 1, "SIGINT": 2, "SIGQUIT": 3, "SIGILL": 4, "SIGTRAP": 5, "SIGABRT": 6, "SIGBUS": 7,
    "SIGFPE": 8, "SIGKILL": 9, "SIGUSR1": 10, "SIGSEGV": 11, "SIGUSR2": 12, "SIGTERM": 15,
}  # fmt: skip
STOP_SIGNALS = frozenset((1, 2, 3, 10, 12, 15))
"""Signals by which a person or a scheduler stops a process."""
_LAST_SIGNAL = 64

# Bash: `./run.sh: line 3: 4711 Killed   python …`; zsh: `zsh: killed  python …`; Slurm: `srun:
# error: n1: task 3: Killed`; Python: `Fatal Python error: Aborted`; or the word alone.
_DIED = re.compile(
    r"(?P<by>^\s*|: line \d{1,7}:\s{1,8}\d{1,10}\s{1,4}|: tasks? [\d,-]{1,80}: |^\w{2,5}: "
    r"|^Fatal Python error: |^\S{0,80}\s{1,4}\d{1,10}\s{1,4}|\bon signal \d{1,2} \()"
    rf"(?P<name>{'|'.join(sorted(_SIGNALS, key=len, reverse=True))})"
    r"(?=\s*$|\s{0,4}\(core dumped\)|\s{2,}|\)|: \d{1,2}\s*$)",
    re.IGNORECASE,
)
_BY_NAME = re.compile(
    r"\b(?:by|with|[Rr]eceived|[Gg]ot|[Cc]aught|code=killed, status=)\b.{0,40}?"
    r"\b(?P<name>SIG(?:HUP|INT|QUIT|ILL|TRAP|ABRT|BUS|FPE|KILL|USR1|SEGV|USR2|TERM))\b"
)
_BY_NUMBER = re.compile(
    r"\b(?:(?:got|by|on|termination:?)\s)signal:?\s?(\d{1,2})\b"
    r"|\b(?:signal [A-Z]{3,6} \(|termination \(signal )(\d{1,2})\)"
    r"|\bSignal (?!(?:2|15) )(\d{1,2}) \(SIG"  # torchrun stops the other workers with 2 or 15
)
_STATUS = re.compile(
    r"\b(?:exit(?:s|ed)?|return(?:s|ed)?|finished|terminated|failed|died)\b.{0,60}?"
    r"\b(?:(?:exit|return)[- ]?)?(?:code|status)\s{0,3}[:=]?\s{0,3}(-?\d{1,10})\b"
    r"|\bexit[ _]?code\s{0,4}[:=]?\s{0,4}(-?\d{1,10})\b|\(failed (\d{1,3})\)"
    r"|^make\S{0,8}: \*\*\* .{0,200}\bError (\d{1,3})\b",
    re.IGNORECASE,
)
_NONZERO = re.compile(r"\bnon-?zero (?:exit|return|status)", re.IGNORECASE)
_BY_USER = re.compile(
    r"KeyboardInterrupt\b|^\s*\^C\s*$|^\s*Aborted!\s*$"
    r"|\b(?:interrupted|stopped|cancell?ed|aborted|terminated) by (?:the )?user\b",
    re.IGNORECASE,
)
_BY_SCHEDULER = re.compile(
    r"job killed: (?:wall|cpu)|TERM_(?:RUNLIMIT|OWNER|ADMIN|PREEMPT|CPULIMIT)\b"
    r"|\b(?:spot|preempt\w{0,6})\b.{0,80}\b(?:interrupt|terminat|reclaim|evict|shut)"
    r"|\b(?:instance|machine|node|vm|job|pod|task)\b.{0,40}\b(?:was|has been|is being) "
    r"(?:preempted|evicted|reclaimed)\b"
    r"|\breceived SIGUSR[12]\b|^client_loop: send disconnect",
    re.IGNORECASE,
)
_MEMORY_KILL = re.compile(
    r"\bout of memory: kill|memory cgroup out of memory|oom[-_ ]?kill"
    r"|TERM_(?:MEMLIMIT|SWAP)\b|job killed: \w{0,3}mem|exceeded (?:job|step) memory limit"
    r"|low on resource: memory|: tasks? [\d,-]{1,80}: Out Of Memory\s*$",
    re.IGNORECASE,
)
_CRASHED = re.compile(
    r"^terminate called\b|: Assertion `.{1,400}[`'] failed\.?\s*$|^Fatal Python error: "
    r"|^(?:free|malloc|realloc|munmap_chunk)\(\): |^double free|\bGPU has fallen off the bus"
    r"|\bNVRM: Xid\b|^\W{0,2}(?:CUDA|NCCL|cuBLAS|cuDNN)(?: runtime| driver)? error\b(?! ?check)"
    r"|^\W{0,2}cudaError[A-Z]\w{3,60}\b"
    r"|\b(?:uncaught|unhandled) exception\b|^Essential container in task exited"
    r"|\b(?:nan|inf|non-?finite|invalid)\b.{0,40}\b(?:stopping|ending|aborting|exiting)\b",
    re.IGNORECASE,
)
_LONE_ERROR = re.compile(
    r"^\s{0,2}(?:[A-Za-z_]\w{0,40}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception)(?:\(\w{1,60}\))?"
    r"(?::(?!\s{0,4}(?:[-+.]?\d|nan|inf))|\s*$)"  # `ValError: 0.31` is a metric
)
_CAUGHT = re.compile(r"\b(?:retry|skip|ignor|continu|recover|warn)", re.IGNORECASE)


class LastWords(NamedTuple):
    """What a line says about the end of a process."""

    kind: str
    signal: int | None = None
    aside: bool = False
    """Whether another cause beside it comes first: a launcher stops the other workers."""


def read_last_words(line: str) -> LastWords | None:
    """What a line says about the end of the process; None for any other line."""
    if not any(clue in line for clue in ENDING_CLUES):
        return None
    if _MEMORY_KILL.search(line):
        return LastWords("killed-in-log", 9)
    if _BY_USER.search(line):
        return LastWords("interrupted-in-log", 2, aside=True)
    if _BY_SCHEDULER.search(line):
        return LastWords("interrupted-in-log", 15)
    if _CRASHED.search(line):
        return LastWords("exception")
    if (number := _signal_in(line)) is not None:
        return _of_signal(number)
    if found := _STATUS.search(line):
        return _of_status(int(next(group for group in found.groups() if group)))
    if _NONZERO.search(line) or (_LONE_ERROR.match(line) and not _CAUGHT.search(line)):
        return LastWords("exception")
    return None


def _signal_in(line: str) -> int | None:
    if died := _DIED.search(line):
        return _SIGNALS[died["name"].lower()]
    if named := _BY_NAME.search(line):
        return _NAMED[named["name"]]
    number = _BY_NUMBER.search(line)
    return int(next(filter(None, number.groups()))) if number else None


def _of_signal(number: int) -> LastWords:
    if number in STOP_SIGNALS:
        return LastWords("interrupted-in-log", number, aside=True)
    return LastWords("killed-in-log", number)


def _of_status(status: int) -> LastWords | None:
    """The end behind an exit status: 137 and -9 are signal 9, 1 is an error."""
    signal = -status if status < 0 else status - 128
    if status == 0:
        return None
    return _of_signal(signal) if 0 < signal <= _LAST_SIGNAL else LastWords("exception")


# The whole log: the last of these events after the last row.

_ENDINGS = {
    "exception": "crash",
    "out-of-memory-in-log": "out-of-memory",
    "killed-in-log": "killed",
    "interrupted-in-log": "interrupted",
    "hang-in-log": "hang",
}
"""The kind of a line anywhere in a log, and that of a run which ends with it."""
_DEVICE_MEMORY = re.compile(r"CUDA|HIP|XPU|MPS|\bGPU\b|CUBLAS|RESOURCE_EXHAUSTED")
_ASKED = re.compile(r"Tried to allocate ([\d.]{1,12}) ([KMGT])iB")
_BY_TEXT = (
    ("KeyboardInterrupt", "interrupted"),
    ("DataLoader worker", "loader-failed"),
    ("No space left on device", "save-failed"),
    ("collective operation timeout", "hang"),
)
"""Text of an exception, and the kind of ending it stands for."""


ENDING_CODES = {
    "killed": "HD913",
    "out-of-memory": "HD808",
    "hang": "HD914",
    "interrupted": "HD915",
    "loader-failed": "HD514",
    "save-failed": "HD708",
}
"""Kinds of endings and the check of each; a kind without a check of its own is a crash."""


_TIMEOUT = re.compile(r"OpType=(\w{1,40}).{0,400}?ran for (\d{1,12}) milliseconds")
_OF_RANK = re.compile(r"\[Rank (\d{1,6})\]|\[rank(\d{1,6})\]")


def _read_timeout(text: str) -> dict[str, Any]:
    """The rank, the collective and the seconds, from the watchdog of a process group."""
    found, rank = _TIMEOUT.search(text), _OF_RANK.search(text)
    if found is None:
        return {}
    number = int(rank[1] or rank[2]) if rank else 0
    place = {"rank": number, "state": "waiting", "within": found[1].lower()}
    return {"idle_s": int(found[2]) / 1000, "ranks": [place]}


def find_ending(after_last_row: Sequence[LogEvent]) -> LogEvent | None:
    """How the run ended, from the events after its last row; None if nothing shows that it
    failed."""
    known = {kind for kind, code in ENDING_CODES.items() if registry.find(code) is not None}
    ended = None
    for event in after_last_row:
        if event.kind in _ENDINGS:
            # The first exception is the cause; a kill ended the process.
            killed = event.kind in ("killed-in-log", "interrupted-in-log")
            if ended is None or "aside" in ended.data or (killed and "aside" not in event.data):
                ended = event
        elif event.kind == SIGNED_OFF:
            ended = None  # what came before was caught
    if ended is None:
        return None
    error = str(ended.data.get("error", ""))
    kind = next((kind for text, kind in _BY_TEXT if text in error), _ENDINGS[ended.kind])
    data = {**ended.data, "error_type": error.partition(":")[0][:120], "text": error}
    data["steps"] = ended.row
    data.pop("aside", None)
    if kind == "interrupted":
        data.setdefault("signal", 2)
    if kind == "killed" and _MEMORY_KILL.search(error):
        kind = "out-of-memory"
        data["killed"] = "certain"
    if kind == "out-of-memory":
        data["memory_of"] = "device" if _DEVICE_MEMORY.search(error) else "host"
        if asked := _ASKED.search(error):
            data["requested"] = int(float(asked[1]) * 1024 ** "KMGT".index(asked[2]) * 1024)
    elif kind == "hang":
        data |= _read_timeout(error)
    elif kind == "killed" and kind not in known:
        data["error"] = f"killed by signal {data.get('signal')} (the log ends with: {error})"
    return LogEvent(ended.row, kind if kind in known else "crash", data)
