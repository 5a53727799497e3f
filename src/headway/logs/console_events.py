"""Events in the lines of a console log that are not rows: overflows, restarts, tracebacks, and
warnings about NaN.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from headway.logs.log_endings import ENDING_CLUES, SIGNED_OFF, LastWords, read_last_words
from headway.logs.log_file import strip_prefix, texts_in
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

MAX_EVENTS = 10_000
"""Events that are kept per log."""

_CLUES = (
    "raceback", "verflow", "VERFLOW", "heckpoint", "esum", "OutOfMemory", "oss scale", "ontinuing",
    "estored", "atchdog", "ompleted", "inished", "done", "Done", "DONE", "Exception ignored",
    "out of memory", "RESOURCE_EXHAUSTED", "CUBLAS_STATUS", "OOM when", *ENDING_CLUES,
)  # fmt: skip

_OVERFLOW = re.compile(r"overflow\b|OVERFLOW!", re.IGNORECASE)
_ATTEMPTED = re.compile(r"[Aa]ttempted loss scale:\s{0,4}([\d.e+]{1,30})")
_REDUCED = re.compile(
    r"(?:reducing (?:loss scale )?to|setting loss scale to:?|loss scale (?:reduced )?to:?)"
    r"\s{0,4}([\d.]{1,30}(?:e[-+]?\d{1,3})?)"
)
_AT_MINIMUM = re.compile(r"loss scale already at minimum|[Mm]inimum loss scale reached")
_MEMORY = re.compile(
    r"(?<![Cc]group )out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED"
    r"|OOM when allocating"
)
_CANCELLED = re.compile(
    r"CANCELLED AT|DUE TO (?:TIME LIMIT|PREEMPTION)"
    r"|[Rr]eceived (?:signal )?(?:15\b|(?:Signals\.)?SIGTERM)"
)
_WATCHDOG = re.compile(r"Watchdog caught collective operation timeout", re.IGNORECASE)
_SIGNED_OFF = re.compile(
    r"^\W{0,6}(?:all )?done\b"
    r"|\b(?:training|run|job|fit|epochs?)\b.{0,40}\b(?:finished|completed|done)\b",
    re.IGNORECASE,
)
"""The last words of a script that ended in good order."""
_FRAME = re.compile(r'^\s*File "([^"]{1,400})", line (\d{1,7})(?:, in (\S{1,120}))?')
_RICH_FRAME = re.compile(r"^\s*[│|] (\S.{0,400}?):(\d{1,7}) in (\S{1,120})\s*[│|]?\s*$")
"""In the box of Rich: `│ /home/u/train.py:88 in main      │`"""
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
        elif _WATCHDOG.search(line):
            self._once(row, "hang-in-log", line)
        elif said := read_last_words(line):
            self._last_words(said, line, row)
        elif _SIGNED_OFF.search(line):
            self._add(LogEvent(row, SIGNED_OFF, {"text": line.strip()[:400]}))
            return False  # the line may be a row, too
        else:
            return self._restart(line, row)
        return True

    def _last_words(self, said: LastWords, line: str, row: int) -> None:
        if said.kind == "exception":
            self._error(line.strip()[:400], row)
        else:
            aside = {"aside": True} if said.aside else {}
            self._once(row, said.kind, line, signal=said.signal, **aside)

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
        if (frame := _FRAME.match(line) or _RICH_FRAME.match(line)) and not _LIBRARY.search(
            frame[1]
        ):
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
        new = last is None or last.kind != kind or last.row != row
        if new or (last and "aside" in last.data and "aside" not in data):
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


TAIL = 400
"""Last lines of a file of rows that are searched for how the run ended."""


def events_after_rows(
    last: Iterable[str], is_row: Callable[[str], bool], rows: int
) -> list[LogEvent]:
    """The events in the lines after the last row of a CSV or JSON file: a launcher's last words."""
    after: list[str] = []
    for line in last:
        if is_row(line):
            after.clear()
        else:
            after.append(line)
    scanner = ConsoleEventScanner()
    for line in after:
        for text in texts_in(line) if line.startswith("{") else [line]:
            scanner.scan(strip_prefix(text)[0] or text, rows)
    return scanner.collect()


def _float(text: str) -> float | None:
    try:
        return float(text.rstrip("."))
    except ValueError:
        return None
