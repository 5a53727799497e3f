"""Opens the trackers of a run and feeds each from a bounded queue on its own thread."""

from __future__ import annotations

import atexit
import importlib
import logging
import math
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from headway.core.findings import Finding
from headway.core.records import Column, Header, Record, StepRecord
from headway.core.signals import family
from headway.errors import FrameworkMissing, UsageError
from headway.output.trackers.base import MetricsRow, Tracker

# Feeds a tracker from a bounded queue on its own thread, with each step record as a row of
# metrics.

# Names of the metrics in a tracker:

#     loss, loss/<component>, lr, loss_scale, clip_coef       as they are
#     grad/global_norm                                        before clipping
#     grad/max_norm, grad/min_norm, grad_layer/<parameter>    where the record has them
#     grad/has_nan, grad/has_inf                              0 or 1
#     memory/host_rss_bytes, memory/device_allocated_bytes    where they were measured
#     lr/group<k>                                             of further parameter groups
#     headway/held                                           1 if the update was skipped
#     headway/<anything else>                                step time, samples per second, …

# A value that was not measured at a step is absent. Non-finite values stay what they are.

_UNCHANGED_KEYS = frozenset({"loss", "lr", "loss_scale", "clip_coef"})
_RENAMED_KEYS = {
    "grad_norm": "grad/global_norm",
    "host_rss_bytes": "memory/host_rss_bytes",
    "device_allocated_bytes": "memory/device_allocated_bytes",
}


def make_metrics_row(record: StepRecord, names: Sequence[str]) -> MetricsRow:
    """The numbers of a step. `names` are those of the parameters, in the order of the header."""
    values = {_key(name): float(value) for name, value in record.values.items()}
    values["headway/held"] = float(record.held)
    norms = [value for _, value in record.family("grad_norm")]
    layers = record.columns.get("param/grad_norm")
    if layers is not None and len(layers.values):
        norms += layers.values
        values["grad/max_norm"] = _extreme(layers.values, largest=True)
        values["grad/min_norm"] = _extreme(layers.values, largest=False)
        for at, norm in layers.items():
            values[f"grad_layer/{_name(names, at)}"] = float(norm)
    if norms:
        values["grad/has_nan"] = float(any(math.isnan(norm) for norm in norms))
        values["grad/has_inf"] = float(any(math.isinf(norm) for norm in norms))
    for at, rate in record.columns.get("group/lr", Column(())).items():
        values[f"lr/group{at}"] = float(rate)
    return MetricsRow(record.step, values)


def _key(name: str) -> str:
    root = family(name)
    further = name[len(root) :]
    if root in _UNCHANGED_KEYS or root.startswith("loss/"):
        return name
    return _RENAMED_KEYS.get(root, f"headway/{root}") + further


def _name(names: Sequence[str], at: int) -> str:
    return names[at] if at < len(names) else str(at)


def _extreme(norms: Sequence[float], *, largest: bool) -> float:
    """The largest or smallest value; NaN if one is NaN, as in torch."""
    if any(math.isnan(norm) for norm in norms):
        return math.nan
    return float(max(norms) if largest else min(norms))


# The training only puts a reference on a queue and never waits. What does not fit in the queue of a
# slow tracker is dropped and counted; one that uses much CPU time is throttled; one that hangs is
# abandoned when the run ends; one that raises is closed. Losses are reported once.

MAX_QUEUED_STEPS = 1000
"""Steps that may wait for a tracker."""
MAX_QUEUED_FINDINGS = 1000
"""Findings that may wait; they have their own limit because they matter more."""
MAX_TIME_SHARE = 0.1
"""Maximum share of time that a tracker computes: meanwhile the training cannot run Python."""
CLOSE_SECONDS = 10.0
"""Seconds that the end of a run waits for all its trackers together."""

NotifyOnce = Callable[[str, str], None]
"""Called with a topic and a message; reports each topic once."""


class QueuedTracker:
    """One tracker and its queue. Only `join` waits, and no method raises."""

    def __init__(
        self, tracker: Tracker, name: str, notify: NotifyOnce, *, room: int = MAX_QUEUED_STEPS
    ) -> None:
        self.name = name
        self.dropped = 0
        """Steps that did not fit in the queue, or were still in it when the run ended."""
        self._tracker = tracker
        self._notify = notify
        self._room = room
        self._names: Sequence[str] = ()
        self._waiting: SimpleQueue[tuple[StepRecord, Sequence[str]] | Finding | None] = (
            SimpleQueue()
        )
        self._taken = 0
        self._shown = 0
        self._over = False
        self._hurry = threading.Event()
        self._failed = False
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._work, name=f"headway-{name}", daemon=True)
        self._thread.start()

    def record(self, record: Record) -> None:
        """Add a record: steps are queued, headers name their columns."""
        if isinstance(record, StepRecord):
            self._taken += 1
            if self._failed or self._over:
                return
            if self._waiting.qsize() >= self._room:
                self.dropped += 1
            else:
                self._waiting.put((record, self._names))
        elif isinstance(record, Header):
            self._names = record.names("param")

    def finding(self, finding: Finding) -> None:
        """A finding."""
        full = self._waiting.qsize() >= self._room + MAX_QUEUED_FINDINGS
        if not (full or self._failed or self._over):
            self._waiting.put(finding)

    def end(self) -> None:
        """No more records will come."""
        if not self._over:
            self._over = True
            self._waiting.put(None)
            self._hurry.set()

    def join(self, until: float) -> None:
        """Wait for the tracker until this time (monotonic clock), then abandon it."""
        if os.getpid() != self._process:
            return  # in a fork the thread and the run belong to the parent
        self._thread.join(max(until - time.monotonic(), 0.0))
        hangs = self._thread.is_alive() and not self._failed
        if hangs:
            self._failed = True  # it stops after the current item
            self.dropped = self._taken - self._shown
        if self.dropped:
            self._notify(
                f"tracker-dropped-{self.name}",
                f"the tracker {self.name} is too slow: {self.dropped} of {self._taken} steps were "
                "dropped so that training did not wait",
            )
        elif hangs:
            self._notify(
                f"tracker-hangs-{self.name}",
                f"the tracker {self.name} did not finish in time and was abandoned",
            )

    def _work(self) -> None:
        try:
            while not self._failed:
                item = self._waiting.get()
                if item is None:
                    self._tracker.close()
                    return
                began = time.thread_time()
                if isinstance(item, Finding):
                    self._tracker.finding(item)
                else:
                    self._tracker.step(make_metrics_row(*item))
                    self._shown += 1
                self._hurry.wait((time.thread_time() - began) * (1 / MAX_TIME_SHARE - 1))
        except BaseException as error:  # no error of a tracker may reach the training
            if not self._failed:
                self._failed = True
                first = (str(error).splitlines() or [""])[0]
                self._notify(
                    f"tracker-raised-{self.name}",
                    f"the tracker {self.name} failed ({type(error).__name__}: {first}) after "
                    f"{self._shown} steps and is no longer used; training continues without it",
                )


class TrackerGroup:
    """The trackers of a run."""

    def __init__(self, queues: Sequence[QueuedTracker]) -> None:
        self.queues = queues
        # Registered last, so it runs before the trackers end their own runs at exit.
        atexit.register(self.close)

    def close(self, seconds: float | None = None) -> None:
        """Wait until the queues are empty, at most `CLOSE_SECONDS`."""
        for queue in self.queues:
            queue.end()
        until = time.monotonic() + (CLOSE_SECONDS if seconds is None else seconds)
        for queue in self.queues:
            queue.join(until)
        self.queues = ()
        atexit.unregister(self.close)


# Opens the trackers that a user names or passes to the guard.

# A name (`"wandb"`), a name and a place (`"tensorboard:logs/run1"`, `"mlflow:<run id>"`), an
# object of a tracker's own (a SummaryWriter, a wandb or trackio run, an MLflow run or client, a
# Logger), or anything with the three methods of `Tracker`.

_MODULES = {
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "mlflow": "mlflow",
    "trackio": "trackio",
    "logging": "python_logging",
}


def open_trackers(
    given: Iterable[Any], *, run_dir: Path | None, notify: NotifyOnce
) -> TrackerGroup:
    """Open the trackers of a run, each with its queue.

    Raises for a tracker that is unknown or not installed. One that cannot be opened is reported and
    left out.
    """
    if isinstance(given, str):
        given = [given]
    chosen = [_open(item, run_dir, notify) for item in given]
    return TrackerGroup(
        [QueuedTracker(tracker, name, notify) for name, tracker in filter(None, chosen)]
    )


def _open(item: Any, run_dir: Path | None, notify: NotifyOnce) -> tuple[str, Tracker] | None:
    name, about = _identify_tracker(item)
    if name is None:
        return type(item).__name__, item
    module = importlib.import_module(f"headway.output.trackers.{_MODULES[name]}")
    before = (
        random.getstate()
    )  # MLflow draws random run names; the training's random state must not change
    try:
        tracker: Tracker = module.opened(about, run_dir)
    except FrameworkMissing:
        raise
    except Exception as error:  # no network, no permission, a wrong setting
        first = (str(error).splitlines() or [""])[0]
        notify(
            f"tracker-opened-{name}",
            f"the tracker {name} cannot be opened ({type(error).__name__}: {first}); "
            "training continues without it",
        )
        return None
    finally:
        random.setstate(before)
    return name, tracker


def _identify_tracker(item: Any) -> tuple[str | None, Any]:
    """(name, object or place); the name is None for the user's own tracker."""
    if isinstance(item, str):
        name, _, place = item.partition(":")
        if name in _MODULES:
            return name, place or None
    elif isinstance(item, logging.Logger):
        return "logging", item
    elif isinstance(item, Tracker) and not isinstance(item, type):
        return None, item
    elif callable(getattr(item, "add_scalar", None)) and callable(getattr(item, "add_text", None)):
        return "tensorboard", item
    else:
        for kind in type(item).__mro__:
            package = kind.__module__.partition(".")[0]
            if package in ("wandb", "mlflow", "trackio"):
                return package, item
    raise UsageError(
        f"trackers={item!r}: unknown tracker. Known names: {', '.join(_MODULES)}; "
        "or give a SummaryWriter, a wandb or trackio run, an MLflow run or client, a Logger, "
        "or an object with the methods step, finding and close"
    )
