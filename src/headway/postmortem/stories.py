"""Which logs of a folder tell of the same run.

Two logs that tell the same numbers at the same steps are of one run, wherever they lie; two that
tell other numbers are not, though they lie side by side. Where they have no step in common, the
place decides: a log belongs to the run of the folder it lies in or below, folders side by side are
different runs, and one that begins where another of its kind ended goes on with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.errors import UnreadableInput
from headway.postmortem.join import exactness, same_run
from headway.postmortem.order import natural
from headway.postmortem.survey import Survey
from headway.sources import formats, mlflow, tensorboard
from headway.sources.log.log import Log
from headway.sources.log.names import names_of

TELLING = ("loss", "grad_norm", "lr", "loss_scale", "device_allocated_bytes", "host_rss_bytes")
"""A file without any of these is not the log of a training."""
LEAST_ROWS = 2
MOST_LOGS = 200
"""Logs of one folder that are read whole."""
_NEUTRAL = re.compile(
    r"^(checkpoints?([-_]\d+)?|logs?|runs?|tb|tensorboard(_logs?)?|events?|metrics|wandb|files|"
    r"output|csv(_logs?)?|lightning_logs|global_step\d+|\d+)$",
    re.I,
)
_TRAINER_STATE = "trainer_state.json"


@dataclass
class Story:
    """The logs of one run."""

    logs: list[Log] = field(default_factory=list)
    homes: list[Path] = field(default_factory=list)
    """The folder each lies in, as far as it names a run."""
    changed: float = 0.0
    """When the newest of its files was written."""

    @property
    def place(self) -> Path:
        """The folder that is the run's own."""
        return min(self.homes, key=lambda path: len(path.parts))


def stories(found: Survey) -> list[Story]:
    """The runs of a folder, the newest last."""
    logs = sorted(_logs(found), key=lambda log: (exactness(log), natural(str(log.path))))
    told: list[Story] = []
    for log in logs:
        home = home_of(log.path, found.folder)
        story = next((item for item in told if _belongs(log, home, item)), None)
        if story is None:
            story = Story()
            told.append(story)
        story.logs.append(log)
        story.homes.append(home)
        story.changed = max(story.changed, _changed(log.path))
    return sorted(told, key=lambda item: (item.changed, natural(str(item.place))))


def home_of(path: Path, root: Path) -> Path:
    """The folder of a log, above folders that only say what kind of file they hold."""
    folder = path if path.is_dir() else path.parent
    while folder != root and root in folder.parents and _NEUTRAL.match(folder.name):
        folder = folder.parent
    return folder


def _belongs(log: Log, home: Path, story: Story) -> bool:
    verdicts = [same_run(log, other) for other in story.logs]
    if True in verdicts:
        return True
    if False in verdicts:
        return False
    alike = [other for other in story.logs if other.format == log.format]
    if alike:
        return any(_goes_on(other, log) or _goes_on(log, other) for other in alike)
    return any(
        home == other or home in other.parents or other in home.parents for other in story.homes
    )


def _goes_on(first: Log, second: Log) -> bool:
    """Whether the second begins after the first has ended, and not at its own beginning."""
    if first.unit != "step" or second.unit != "step":
        return False
    begins, ended = min(second.table.steps), max(first.table.steps)
    return begins > ended and begins > 1


def _logs(found: Survey) -> Iterable[Log]:
    read = 0
    for path in _without_prefixes(found.logs):
        if read >= MOST_LOGS:
            return
        for log in _one(formats.read, path, found):
            read += 1
            yield log
    for folder in found.stores[:MOST_LOGS]:
        yield from _one(mlflow.read_run, folder, found)
    for _, files in sorted(found.events.items())[:MOST_LOGS]:
        yield from _one(tensorboard.read_many, files, found)


def _one(read: Callable[[Any], Log], what: Any, found: Survey) -> Iterable[Log]:
    try:
        log = read(what)
    except UnreadableInput:
        found.refused += what if isinstance(what, list) else [what]
        return
    if _tells(log):
        yield log


def _without_prefixes(paths: list[Path]) -> list[Path]:
    """Without the states that a later checkpoint's state begins with: one is left of each run."""
    newest: dict[Path, Path] = {}
    others = []
    for path in paths:
        if path.name != _TRAINER_STATE:
            others.append(path)
            continue
        run = path.parent.parent if re.search(r"\d$", path.parent.name) else path.parent
        kept = newest.get(run)
        if kept is None or _place(path, run) > _place(kept, run):
            newest[run] = path
    return [*newest.values(), *others]


def _place(path: Path, run: Path) -> tuple[float, list[tuple[int, int | str]]]:
    """Later states are longer; the one in the run's own folder was written at its end."""
    size = path.stat().st_size if path.exists() else 0
    return (size, natural(str(path.relative_to(run))) if run in path.parents else [])


def _tells(log: Log) -> bool:
    if len(log.table) < LEAST_ROWS:
        return False
    names = {item.name for item in names_of(log.table.series, log.names).values()}
    return any(name in TELLING or name.startswith("loss/") for name in names)


def _changed(path: Path) -> float:
    try:
        if path.is_dir():
            return max((item.stat().st_mtime for item in path.iterdir()), default=0.0)
        return path.stat().st_mtime
    except OSError:
        return 0.0
