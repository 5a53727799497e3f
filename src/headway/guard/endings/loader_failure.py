"""Recognises a failed DataLoader: a data set that raised, a worker that raised, died or stalled."""

from __future__ import annotations

import re
import signal
import time
from typing import Any

from headway.core.ending_facts import LOADER_FAILED
from headway.guard.endings.failure import Failure, Recognised, read_code_frame, read_line
from headway.torch_adapters.frames import Location, find_user_location, parse_traceback
from headway.torch_adapters.loaders.batch_fetching import SAMPLE_NOTE
from headway.torch_adapters.loaders.sample_indices import FailedLoad, find_failed_load

_WORKER_RAISED = re.compile(r"^Caught (?P<kind>\w+) in DataLoader worker process (?P<worker>\d+)")
_WORKER_DIED = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? (?P<pids>[\d, ]+)\) "
    r"(?P<how>exited unexpectedly|is killed by signal: (?P<signal>[\w ]+)|exited)"
)
_SIGNALS = {signal.strsignal(item): item.name for item in signal.Signals}
"""`Bus error`, as torch says, is SIGBUS."""
_NUMBERS = frozenset(map(int, signal.Signals))
_TIMED_OUT = re.compile(r"DataLoader timed out after (?P<seconds>[\d.]+) seconds")
_SHARED_MEMORY = re.compile(
    r"shared memory|/dev/shm|/torch_\d|unable to mmap|Too many open files|No space left|Bus error"
)
_SAMPLE_NOTED = re.compile(rf"^{SAMPLE_NOTE} (?P<index>\d+)$", re.MULTILINE)
MAX_RELOADED = 1024
"""Samples of a failed batch that are loaded again to find the one that fails."""
RELOAD_SECONDS = 10.0


def recognise_loader_failure(failure: Failure) -> Recognised | None:
    """The facts of a failed loader; None if the exception is none."""
    load = find_failed_load(failure.error)
    text = str(failure.error)
    if load is None and _WORKER_DIED.match(text):
        # torch's handler of SIGCHLD raises this wherever the main thread happens to be.
        load = FailedLoad()
    if load is None or isinstance(failure.error, StopIteration):  # it was only exhausted
        return None
    facts = failure.facts() | {"phase": "data", "batch": [], "how": "raised"}
    if raised := _WORKER_RAISED.match(text):
        facts |= _worker_facts(text, raised["kind"])
        facts["worker"] = int(raised["worker"])
        noted = _SAMPLE_NOTED.search(text)
        facts["sample"] = int(noted["index"]) if noted else _find_sample(load, raised["kind"])
    elif died := _WORKER_DIED.search(text):
        facts["how"] = "died"
        facts["worker_signal"] = _SIGNALS.get(died["signal"], died["signal"]) or next(
            (signal.Signals(-code).name for code in load.exits if -code in _NUMBERS), None
        )
        facts["pids"] = [int(pid) for pid in re.findall(r"\d+", died["pids"])]
    elif isinstance(failure.error, (ConnectionError, EOFError)):
        facts["how"] = "died"  # while it sent a batch
    elif _TIMED_OUT.search(text):
        facts["how"] = "stalled"
    else:
        facts["sample"] = _plain_index(load.index)
    facts["shared_memory"] = bool(_SHARED_MEMORY.search(text))
    facts["indices"] = [index for index in load.indices[:32] if isinstance(index, int)]
    return LOADER_FAILED, facts


def _worker_facts(text: str, kind: str) -> dict[str, Any]:
    """The line and the message of the original traceback, which the message contains."""
    lines = text.rstrip().splitlines()
    place = find_user_location(parse_traceback(lines))
    last = next((line for line in reversed(lines) if line.startswith(kind)), None)
    found: dict[str, Any] = {"error_type": kind, "error": (last or lines[0])[:300]}
    if place is not None:
        found |= _place_facts(place)
    return found


def _place_facts(place: Location) -> dict[str, Any]:
    return {
        "place": place.to_dict(),
        "line_text": read_line(place),
        "frame": read_code_frame(place),
    }


def _find_sample(load: FailedLoad, kind: str) -> int | None:
    """The index whose loading raises, found by loading each sample of the batch in this process."""
    if load.dataset is None or len(load.indices) > MAX_RELOADED:
        return None
    until = time.monotonic() + RELOAD_SECONDS
    for index in load.indices:
        try:
            load.dataset[index]
        except Exception as error:
            return _plain_index(index) if type(error).__name__ == kind else None
        if time.monotonic() > until:
            return None
    return None


def _plain_index(index: Any) -> int | None:
    return index if isinstance(index, int) and not isinstance(index, bool) else None
