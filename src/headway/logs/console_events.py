"""Events in the lines of a console log that are not rows: overflows, restarts, tracebacks, and
warnings about NaN.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headway import registry
from headway.logs.log_names import map_name
from headway.logs.log_table import LogEvent

# Warnings of the script itself about a non-finite number:
#
#     Warning: NaN gradient detected at step 92261
#     ERROR: Invalid loss at step 92261: nan
#
# A script that skips such steps logs nothing else about them.

_NONFINITE_CLUES = ("nan", "NaN", "NAN", "inf", "Inf", "INF", "nvalid", "inite")
_BAD = r"(?:invalid|non-?finite|infinite|(?:nan|inf)(?:\s?(?:/|or|and)\s?(?:nan|inf))?)"
_NONFINITE_WARNING = re.compile(
    r"^\W{0,6}(?:(?:warn(?:ing)?|error|critical|fatal)\b\W{1,4})?(?:(?:found|detected|got)\s)?"
    rf"(?:an?\s)?{_BAD}\s(?P<what>loss(?:es)?|grad(?:ient)?s?)\b.{{0,60}}?"
    r"\b(?:step|iter(?:ation)?)\s?[#:=]?\s?(?P<step>\d{1,12})\b",
    re.IGNORECASE,
)
_NEW_COLUMN = {"loss": "cost", "grad_norm": "global_gradient_norm"}
"""Column names if the log has no such column: the lowest rank in `log_names.py`."""


def find_nonfinite_warning(line: str) -> tuple[str, int] | None:
    """(`loss` or `grad_norm`, step) if the line is such a warning."""
    if not any(clue in line for clue in _NONFINITE_CLUES):
        return None
    found = _NONFINITE_WARNING.match(line)
    if found is None:
        return None
    name = "loss" if found["what"].lower().startswith("loss") else "grad_norm"
    return name, int(found["step"])


def find_raw_name(ours: str, columns: Iterable[str]) -> str:
    """The column of the log for one of our names; the best of several."""
    known = [(name.rank, raw) for raw in columns if (name := map_name(raw)) and name.name == ours]
    return min(known)[1] if known else _NEW_COLUMN[ours]


# Events.

SIGNED_OFF = "signed-off"
"""Kind of event for a line that says that the training is complete."""
MAX_EVENTS = 10_000
"""Events that are kept per log."""

_CLUES = (
    "raceback", "verflow", "VERFLOW", "memory", "illed", "oom", "ignal", "heckpoint", "esum",
    "OutOfMemory", "SIGKILL", "exitcode", "oss scale", "ontinuing", "estored", "RuntimeError",
    "Segmentation", "Bus error", "core dumped", "CANCELLED", "atchdog", "ompleted", "inished",
    "Out Of Memory", "KeyboardInterrupt", "SIGTERM", "done", "Done", "DONE", "Terminated",
    "Exception ignored",
)  # fmt: skip

_OVERFLOW = re.compile(r"overflow\b|OVERFLOW!", re.IGNORECASE)
_ATTEMPTED = re.compile(r"[Aa]ttempted loss scale:\s{0,4}([\d.e+]{1,30})")
_REDUCED = re.compile(
    r"(?:reducing (?:loss scale )?to|setting loss scale to:?|loss scale (?:reduced )?to:?)"
    r"\s{0,4}([\d.]{1,30}(?:e[-+]?\d{1,3})?)"
)
_AT_MINIMUM = re.compile(r"loss scale already at minimum|[Mm]inimum loss scale reached")
_MEMORY = re.compile(r"out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED")
_KILLED = re.compile(
    r"^\s*Killed\s*$|oom[-_ ]?kill|\bsignal:? ?9\b|SIGKILL|exitcode\s{0,4}:\s{0,4}-9\b"
    r"|:\s*Out Of Memory\s*$|^\S{0,80}\s{0,4}\d{0,9}\s{0,4}Killed\s{2,}"
    r"|: line \d{1,7}:\s{1,8}\d{1,10}\s{1,4}Killed\b",
    re.IGNORECASE,
)
_CRASH_SIGNALS = (("Segmentation fault", 11), ("Bus error", 7), ("Aborted (core dumped)", 6))
"""What a shell prints for a process that a signal ended, and the signal."""
_CHILD_SIGNAL = re.compile(
    r"exitcode\s{0,4}:\s{0,4}-(\d{1,2})\b|\bSignal (\d{1,2}) \(SIG[A-Z]{2,8}\) received"
)
"""What torchrun prints for a worker that a signal ended."""
_STOP_SIGNALS = (2, 15)
"""Signals by which a launcher stops the other workers: not the cause."""
_CANCELLED = re.compile(
    r"CANCELLED AT|DUE TO (?:TIME LIMIT|PREEMPTION)"
    r"|[Rr]eceived (?:signal )?(?:15\b|(?:Signals\.)?SIGTERM)"
    r"|^\s*Terminated\s*$|: line \d{1,7}:\s{1,8}\d{1,10}\s{1,4}Terminated\b"
)
_WATCHDOG = re.compile(r"Watchdog caught collective operation timeout", re.IGNORECASE)
_SIGNED_OFF = re.compile(
    r"^\W{0,6}(?:all )?done\b"
    r"|\b(?:training|run|job|fit|epochs?)\b.{0,40}\b(?:finished|completed|done)\b",
    re.IGNORECASE,
)
"""The last words of a script that ended in good order."""
_FRAME = re.compile(r'^\s*File "([^"]{1,400})", line (\d{1,7})(?:, in (\S{1,120}))?')
_LIBRARY = re.compile(r"site-packages|dist-packages|[/\\]lib[/\\]python|<frozen|<string>")
_RESUMED = re.compile(
    r"\b(?:resum(?:ing|ed)\b.{0,40}\b(?:from|at)\b|continuing training from (?:checkpoint|global)"
    r"|auto[- ]?resum(?:ing|ed))",
    re.IGNORECASE,
)
_LOADED = re.compile(
    r"\b(?:load(?:ed|ing)?|restor(?:ed|ing))\b.{0,200}?(?:checkpoint|\.pth?\b|\.ckpt\b)",
    re.IGNORECASE,
)
_NOT_LOADED = re.compile(
    r"\bshards?\b|\bno(?:t| )\b|fail|pre-?train|\bNone\b|False|could ?n.t", re.IGNORECASE
)
_AT_STEP = re.compile(
    r"(?:global[_ ]?step|step|iteration|iter|update)[\s:=_#-]{0,4}(\d{1,12})|checkpoint-(\d{1,12})",
    re.IGNORECASE,
)
_AT_EPOCH = re.compile(r"epoch[\s:=_#-]{0,4}(\d{1,6})", re.IGNORECASE)
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)")
_ERROR = re.compile(
    r"^\s{0,2}((?:[\w.]{0,120}(?:Error|Exception|Interrupt|Exit|Failure|Halted|Warning)\b"
    r"|[A-Za-z_][\w.]{0,120}:\s).{0,400})"
)
_GOES_ON = re.compile(r"^\W{0,3}(?:step|iter\w{0,6}|epoch|train\w{0,4})\b\W{0,4}\d", re.IGNORECASE)
_MAX_TRACEBACK_LINES = 400


@dataclass(slots=True)
class ConsoleEventScanner:
    """Collects the events in the lines of one log."""

    events: list[LogEvent] = field(default_factory=list)
    scale: float | None = None
    """The loss scale in an overflow line, for the next row."""
    in_traceback: int = 0
    """Lines after which an open traceback is given up; 0 outside of a traceback."""
    ignored_at: int = -1
    """Row at which Python said that it ignores the exception whose traceback follows."""
    _seen: dict[str, int] = field(default_factory=dict)
    """Each error, and the row at which it was printed last."""
    _again: dict[str, LogEvent] = field(default_factory=dict)
    """The last repeat of each error: a restarted run may fail in the same way."""
    _frame: dict[str, Any] = field(default_factory=dict)
    """The innermost line of the user's code in the open traceback."""

    def scan(self, line: str, row: int) -> bool:
        """Adds the event in a line that comes after `row` rows. Whether there is one."""
        if self.in_traceback:
            return self._traceback(line, row)
        for clue in _CLUES:
            if clue in line:
                return self._scan_clue(line, row)
        return False

    def _scan_clue(self, line: str, row: int) -> bool:
        if _TRACEBACK.search(line):
            self.in_traceback = _MAX_TRACEBACK_LINES
        elif "Exception ignored in" in line:
            self.ignored_at = row
        elif _AT_MINIMUM.search(line):
            self._error(line.strip()[:400], row)
        elif _OVERFLOW.search(line):
            data: dict[str, Any] = {}
            for key, pattern in (("attempted", _ATTEMPTED), ("reducing_to", _REDUCED)):
                found = pattern.search(line)
                if found:
                    data[key] = _float(found[1])
            if not data and "kip" not in line and "gnor" not in line:
                return False  # not an overflow of gradients
            self.scale = data.get("reducing_to", self.scale)
            self._add(LogEvent(row, "scaler-skip", data))
        elif _MEMORY.search(line):
            self._once(row, "out-of-memory-in-log", line)
        elif _CANCELLED.search(line):
            self._once(row, "interrupted-in-log", line, signal=15)
        elif _KILLED.search(line):
            self._once(row, "killed-in-log", line, signal=9)
        elif signal := _crash_signal(line):
            self._once(row, "killed-in-log", line, signal=signal)
        elif _WATCHDOG.search(line):
            self._once(row, "hang-in-log", line)
        elif line.strip() == "KeyboardInterrupt":
            self._error(line.strip(), row)
        elif _SIGNED_OFF.search(line):
            self._add(LogEvent(row, SIGNED_OFF, {"text": line.strip()[:400]}))
            return False  # the line may be a row, too
        elif "RuntimeError" in line and (found := _ERROR.match(line)):
            self._error(found[1].strip(), row)
        else:
            return self._restart(line, row)
        return True

    def _restart(self, line: str, row: int) -> bool:
        resumed = _RESUMED.search(line)
        if not (resumed or _LOADED.search(line)) or _NOT_LOADED.search(line):
            return False
        step = _AT_STEP.search(line)
        epoch = _AT_EPOCH.search(line)
        data: dict[str, Any] = {}
        if step:
            data["step"] = int(step[1] or step[2])
        if epoch:
            data["epoch"] = int(epoch[1])
        if not resumed and not data:
            return False  # weights are also loaded for fine-tuning and evaluation
        last = self.events[-1] if self.events else None
        if last is not None and last.kind == "restart" and last.row == row:
            self.events[-1] = LogEvent(row, "restart", {**last.data, **data})
        else:
            self._add(LogEvent(row, "restart", data))
        return True

    def _traceback(self, line: str, row: int) -> bool:
        self.in_traceback -= 1
        if _TRACEBACK.search(line):
            self.in_traceback = _MAX_TRACEBACK_LINES
            return True
        if (frame := _FRAME.match(line)) and not _LIBRARY.search(frame[1]):
            self._frame = {"file": frame[1], "line": int(frame[2]), "function": frame[3]}
        if line.startswith(("    ", "  File", "\t", "File ", "^", "~")):
            return True
        if _GOES_ON.match(line):  # the exception was caught and its last line is in another stream
            self.in_traceback = 0
            return False
        found = _ERROR.match(line)
        if not found:
            return True
        self.in_traceback = 0
        if self.ignored_at == row:  # in a destructor, often while the interpreter exits
            self.ignored_at, self._frame = -1, {}
        else:
            self._error(found[1].strip(), row)
        return True

    def _error(self, text: str, row: int) -> None:
        kind = "out-of-memory-in-log" if _MEMORY.search(text) else "exception"
        if kind != "exception":
            self._once(row, kind, text)
        elif self._seen.get(text) == row or len(self._seen) >= MAX_EVENTS:
            return  # every rank prints the same error
        else:
            event = LogEvent(row, kind, {"error": text, **self._take_frame()})
            if text in self._seen:
                self._again[text] = event
            else:
                self._add(event)
            self._seen[text] = row

    def _once(self, row: int, kind: str, line: str, **data: Any) -> None:
        last = self.events[-1] if self.events else None
        frame = self._take_frame()
        if last is None or last.kind != kind or last.row != row:
            self._add(LogEvent(row, kind, {"error": line.strip()[:400], **data, **frame}))

    def collect(self) -> list[LogEvent]:
        """All events in order; of an error that was printed again and again, the first and the
        last."""
        return sorted([*self.events, *self._again.values()], key=lambda event: event.row)

    def _take_frame(self) -> dict[str, Any]:
        """The innermost line of the user's code in the traceback that was read, as a place."""
        frame, self._frame = self._frame, {}
        return {"place": frame} if frame else {}

    def _add(self, event: LogEvent) -> None:
        if len(self.events) < MAX_EVENTS:
            self.events.append(event)


def _crash_signal(line: str) -> int:
    """The signal that ended a process, by the words of a shell or of torchrun; 0 for none."""
    for text, number in _CRASH_SIGNALS:
        if text in line:
            return number
    child = _CHILD_SIGNAL.search(line)
    number = int(child[1] or child[2]) if child else 0
    return 0 if number in _STOP_SIGNALS else number


def _float(text: str) -> float | None:
    try:
        return float(text.rstrip("."))
    except ValueError:
        return None


# How a log ends: the last of these events after the last row.

_ENDINGS = {
    "exception": "crash",
    "out-of-memory-in-log": "out-of-memory",
    "killed-in-log": "killed",
    "interrupted-in-log": "interrupted",
    "hang-in-log": "hang",
}
"""The kind of a line anywhere in a log, and that of a run which ends with it."""
_BY_MEMORY = re.compile(r"oom[-_ ]?kill|out of memory", re.IGNORECASE)
_DEVICE_MEMORY = re.compile(r"CUDA|HIP|XPU|MPS|\bGPU\b|CUBLAS")
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
            # The first exception is the cause; a kill is what became of the process.
            if ended is None or event.kind in ("killed-in-log", "interrupted-in-log"):
                ended = event
        elif event.kind == SIGNED_OFF:
            ended = None  # what came before was caught
    if ended is None:
        return None
    error = str(ended.data.get("error", ""))
    kind = next((kind for text, kind in _BY_TEXT if text in error), _ENDINGS[ended.kind])
    data = {**ended.data, "error_type": error.partition(":")[0][:120], "text": error}
    data["steps"] = ended.row
    if kind == "interrupted":
        data.setdefault("signal", 2)
    if kind == "killed" and _BY_MEMORY.search(error):
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
