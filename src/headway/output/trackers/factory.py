"""Opens the trackers that a user names or passes to the guard.

A name (`"wandb"`), a name and a place (`"tensorboard:logs/run1"`, `"mlflow:<run id>"`), an object
of a tracker's own (a SummaryWriter, a wandb or trackio run, an MLflow run or client, a Logger), or
anything with the three methods of `Tracker`.
"""

from __future__ import annotations

import importlib
import logging
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headway.errors import FrameworkMissing, UsageError
from headway.output.trackers.base import Tracker
from headway.output.trackers.tracker_queue import NotifyOnce, QueuedTracker, TrackerGroup

_MODULES = {
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "mlflow": "mlflow",
    "trackio": "trackio",
    "logging": "python_logging",
}


def open_trackers(given: Iterable[Any], *, run_dir: Path | None, told: NotifyOnce) -> TrackerGroup:
    """The trackers of a run, each behind its queue.

    One that is not installed, or not known, is the caller's mistake and raises. One that cannot be
    opened is told of and left out.
    """
    if isinstance(given, str):
        given = [given]
    chosen = [_open(item, run_dir, told) for item in given]
    return TrackerGroup(
        [QueuedTracker(tracker, name, told) for name, tracker in filter(None, chosen)]
    )


def _open(item: Any, run_dir: Path | None, told: NotifyOnce) -> tuple[str, Tracker] | None:
    name, about = _identify_tracker(item)
    if name is None:
        return type(item).__name__, item
    module = importlib.import_module(f"headway.output.trackers.{_MODULES[name]}")
    before = random.getstate()  # MLflow throws dice for names; the training's are not for that
    try:
        tracker: Tracker = module.opened(about, run_dir)
    except FrameworkMissing:
        raise
    except Exception as error:  # of a tracker's own: no network, no rights, a wrong setting
        first = (str(error).splitlines() or [""])[0]
        told(
            f"tracker-opened-{name}",
            f"the tracker {name} cannot be opened ({type(error).__name__}: {first}); "
            "training goes on without it",
        )
        return None
    finally:
        random.setstate(before)
    return name, tracker


def _identify_tracker(item: Any) -> tuple[str | None, Any]:
    """(name of the tracker, what is known of it); no name for a tracker of the user's own."""
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
        f"trackers={item!r}: not a tracker headway knows. Known names: {', '.join(_MODULES)}; "
        "or give a SummaryWriter, a wandb or trackio run, an MLflow run or client, a Logger, "
        "or an object with the methods step, finding and close"
    )
