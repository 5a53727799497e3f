"""Finds the logs, checkpoints and run directories in a folder, and groups the logs by run."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.core.numbers import natural_order
from headway.errors import UnreadableInput
from headway.logs import readers
from headway.logs.formats import tensorboard
from headway.logs.formats.experiment_stores import read_mlflow_run
from headway.logs.formats.json_logs import NUMBERED_NAME, read_numbered
from headway.logs.join_logs import exactness, join_logs, same_run
from headway.logs.log_file import sample
from headway.logs.log_names import map_names
from headway.logs.log_table import Log, LogEvent

# The contents of a folder. The walk is bounded in depth, entries and opened files; hidden folders,
# virtual environments and links are skipped. A log is recognised by its first bytes; file names
# only exclude source code, configurations and vocabularies.

MAX_DEPTH = 7
MAX_ENTRIES = 100_000
MAX_OPENED = 3_000
"""Files whose first bytes are read."""

_SKIPPED = {
    "__pycache__",
    "node_modules",
    "site-packages",
    "venv",
    "env",
    "incidents",
    "snapshots",
    "artifacts",
    "code",
}
_SUFFIXES = {
    "",
    ".json",
    ".jsonl",
    ".ndjson",
    ".csv",
    ".tsv",
    ".log",
    ".txt",
    ".out",
    ".err",
    ".stdout",
    ".stderr",
    ".db",
    ".sqlite",
    ".sqlite3",
    ".wandb",
    ".logs",
}
_NUMBERED = re.compile(r"^\.(\d+|o\d+|e\d+|[a-z0-9-]+)$", re.I)
_NO_LOG = re.compile(
    r"^(config|configuration|generation_config|adapter_config|preprocessor_config|tokenizer.*"
    r"|special_tokens_map|added_tokens|vocab.*|merges|requirements.*|readme.*|license.*|args"
    r"|training_args|params|package.*|.*\.index|all_results|train_results|eval_results|hparams"
    r"|wandb-metadata|wandb-summary|conda-environment|pip_freeze|run|latest|checkpoint|meta|model"
    r"|modules|sentence_bert_config.*|chat_template|zero_to_fp32|debug(-internal)?|diff)$",
    re.I,
)
_CONSOLE = {".log", ".logs", ".out", ".err", ".stdout", ".stderr"}
_ANY_NAME = re.compile(r"^(run|latest|model|checkpoint|meta|config|params|args|package)$", re.I)
"""Names that are no logs as `.json` or `.txt`, but are as `.log`: `run.log`."""
EVENTS = "tfevents"


@dataclass
class FolderSurvey:
    """The contents of a folder; paths in the order of the walk."""

    folder: Path
    logs: list[Path] = field(default_factory=list)
    """Files that a reader recognises, except event files."""
    wordy: list[Path] = field(default_factory=list)
    """Console logs without numbers."""
    numbered: dict[Path, list[Path]] = field(default_factory=dict)
    """JSON documents with the numbers of one epoch each, by the part before the number."""
    events: dict[Path, list[Path]] = field(default_factory=dict)
    """TensorBoard's event files, by folder."""
    runs: list[Path] = field(default_factory=list)
    """Run directories of headway."""
    stores: list[Path] = field(default_factory=list)
    """Runs of MLflow's file store, a folder each."""
    refused: list[Path] = field(default_factory=list)
    """Files and folders that could not be read."""
    entries: int = 0

    def __bool__(self) -> bool:
        return bool(self.logs or self.events or self.stores or self.runs)


def survey_folder(folder: Path) -> FolderSurvey:
    """Finds the logs and runs in a folder."""
    found = FolderSurvey(folder)
    for path in _files(folder, found):
        if EVENTS in path.name:
            found.events.setdefault(path.parent, []).append(path)
        elif _could_be(path) and len(found.logs) < MAX_OPENED:
            try:
                if readers.reader_for(path) is not None:
                    found.logs.append(path)
                elif path.suffix.lower() in _CONSOLE:
                    found.wordy.append(path)
                elif name := NUMBERED_NAME.match(path.name):
                    found.numbered.setdefault(path.with_name(name[1]), []).append(path)
            except UnreadableInput:
                found.refused.append(path)
    return found


def _could_be(path: Path) -> bool:
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return _could_be(path.with_suffix(""))
    # Schedulers and log rotation append: `slurm-123.out`, `train.log.2`, `job.o4711`.
    known = suffix in _SUFFIXES or (".log" in path.name and bool(_NUMBERED.match(suffix)))
    name = path.stem if suffix else path.name
    if suffix in _CONSOLE and _ANY_NAME.match(name):
        return True
    return known and not _NO_LOG.match(name)


def _files(folder: Path, found: FolderSurvey, depth: int = 0) -> Iterator[Path]:
    try:
        inside = sorted(os.scandir(folder), key=lambda entry: natural_order(entry.name))
    except OSError:
        found.refused.append(folder)
        return
    names = {entry.name for entry in inside}
    if "run.json" in names:
        found.runs.append(folder)
        return
    if "pyvenv.cfg" in names:
        return
    if "metrics" in names and names & {"meta.yaml", "params"} and (folder / "metrics").is_dir():
        found.stores.append(folder)
        return
    below = []
    for entry in inside:
        found.entries += 1
        if found.entries > MAX_ENTRIES:
            return
        try:
            if entry.is_symlink():
                continue  # its target is found at its own place, or is outside the folder
            if entry.is_dir():
                if not entry.name.startswith(".") and entry.name not in _SKIPPED:
                    below.append(Path(entry.path))
            elif entry.is_file() and not entry.name.startswith("."):
                yield Path(entry.path)
        except OSError:
            continue
    if depth < MAX_DEPTH:
        for path in below:
            yield from _files(path, found, depth + 1)


# Which logs belong to the same run. Two logs with the same numbers at the same steps do, wherever
# they are; two with different numbers do not, even side by side. Without a common step the folder
# decides: a log belongs to the run of its folder or a folder above, sibling folders are different
# runs, and a log that begins where another of the same format ended continues it.

TRAINING_SIGNALS = (
    "loss",
    "grad_norm",
    "lr",
    "loss_scale",
    "device_allocated_bytes",
    "host_rss_bytes",
)
"""A file without any of these is not the log of a training run."""
MIN_ROWS = 2
MAX_LOGS = 200
"""Logs of one folder that are read."""
_NEUTRAL = re.compile(
    r"^(checkpoints?([-_]\d+)?|logs?|runs?|tb|tensorboard(_logs?)?|events?|metrics|wandb|files|"
    r"output|csv(_logs?)?|lightning_logs|global_step\d+|\d+)$",
    re.I,
)
_TRAINER_STATE = "trainer_state.json"


@dataclass
class RunLogs:
    """The logs of one run."""

    logs: list[Log] = field(default_factory=list)
    homes: list[Path] = field(default_factory=list)
    """The folder of each log, without parts that do not name a run."""
    changed: float = 0.0
    """Modification time of its newest file."""
    endings: list[LogEvent] = field(default_factory=list)
    """What the other stream of a log says about the end: `slurm-1.err` beside `slurm-1.out`."""

    def joined(self) -> Log:
        """Its logs as one."""
        log = join_logs(self.logs)
        log.events += [LogEvent(len(log.table), item.kind, item.data) for item in self.endings]
        return log

    @property
    def place(self) -> Path:
        """The folder of the run."""
        return min(self.homes, key=lambda path: len(path.parts))

    def name(self, root: Path) -> str:
        """The run as a line of a list names it: its name in a store, else its path below `root`."""
        first = self.logs[0]
        if first.run:
            return first.run
        shown = self.place if self.place != root else first.path
        return str(shown.relative_to(root)) if root in shown.parents else str(shown)


def group_by_run(found: FolderSurvey) -> list[RunLogs]:
    """The runs in a folder, the newest last."""
    logs = sorted(_logs(found), key=lambda log: (exactness(log), natural_order(str(log.path))))
    runs: list[RunLogs] = []
    for log in logs:
        home = home_of(log.path, found.folder)
        run = next((item for item in runs if _belongs(log, home, item)), None)
        if run is None:
            run = RunLogs()
            runs.append(run)
        run.logs.append(log)
        run.homes.append(home)
        run.changed = max(run.changed, _changed(log.path))
    for log in _endings(found):
        name = _both_streams(log.path)
        if not runs:
            runs.append(RunLogs([log], [home_of(log.path, found.folder)], _changed(log.path)))
        for run in runs:
            if any(_both_streams(other.path) == name for other in run.logs if other is not log):
                run.endings += log.events
    return sorted(runs, key=lambda item: (item.changed, natural_order(str(item.place))))


_STREAM = re.compile(r"\b(?:std)?(?:out|err)(?:or|put)?\b|\b[oe](?=\d)|\blog\b")


def _both_streams(path: Path) -> tuple[Path, str]:
    """Folder and name, without the words that tell the two streams of a process apart."""
    return path.parent, _STREAM.sub("", path.name.lower())


def _endings(found: FolderSurvey) -> Iterator[Log]:
    """The console logs without numbers that show that a run failed."""
    for path in found.wordy[:MAX_LOGS]:
        try:
            log = readers.read_ending(sample(path))
        except UnreadableInput:
            continue
        if log is not None:
            yield log


def home_of(path: Path, root: Path) -> Path:
    """The folder of a log, above folders that only name a kind of file: `logs`, `tensorboard`."""
    folder = path if path.is_dir() else path.parent
    while folder != root and root in folder.parents and _NEUTRAL.match(folder.name):
        folder = folder.parent
    return folder


def _belongs(log: Log, home: Path, run: RunLogs) -> bool:
    if any(log.path == other.path and log.run != other.run for other in run.logs):
        return False
    verdicts = [same_run(log, other) for other in run.logs]
    if True in verdicts:
        return True
    if False in verdicts:
        return False
    alike = [other for other in run.logs if other.format == log.format]
    if alike:
        return any(_continues(other, log) or _continues(log, other) for other in alike)
    return any(
        home == other or home in other.parents or other in home.parents for other in run.homes
    )


def _continues(first: Log, second: Log) -> bool:
    """Whether the second log begins after the end of the first, and not at step 0 or 1."""
    if first.unit != "step" or second.unit != "step":
        return False
    begins, ended = min(second.table.steps), max(first.table.steps)
    return begins > ended and begins > 1


def _logs(found: FolderSurvey) -> Iterable[Log]:
    read = 0
    for path in _without_prefixes(found.logs):
        if read >= MAX_LOGS:
            return
        for log in _one(readers.read_runs, path, found):
            read += 1
            yield log
    for folder in found.stores[:MAX_LOGS]:
        yield from _one(lambda folder: [read_mlflow_run(folder)], folder, found)
    for _, files in sorted(found.numbered.items())[:MAX_LOGS]:
        yield from _one(lambda files: [read_numbered(files)], files, found)
    for _, files in sorted(found.events.items())[:MAX_LOGS]:
        yield from _one(lambda files: [tensorboard.read_many(files)], files, found)


def _one(read: Callable[[Any], list[Log]], what: Any, found: FolderSurvey) -> Iterable[Log]:
    try:
        logs = read(what)
    except UnreadableInput:
        found.refused += what if isinstance(what, list) else [what]
        return
    yield from (log for log in logs if _is_training_log(log))


def _without_prefixes(paths: list[Path]) -> list[Path]:
    """Without the trainer states that a later checkpoint contains: one per run is left."""
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
    """Sort key: a later state is longer; one in the folder of the run was written at its end."""
    size = path.stat().st_size if path.exists() else 0
    return (size, natural_order(str(path.relative_to(run))) if run in path.parents else [])


def _is_training_log(log: Log) -> bool:
    if len(log.table) < MIN_ROWS:
        return False
    names = {item.name for item in map_names(log.table.series, log.names).values()}
    return any(name in TRAINING_SIGNALS or name.startswith("loss/") for name in names)


def _changed(path: Path) -> float:
    try:
        if path.is_dir():
            return max((item.stat().st_mtime for item in path.iterdir()), default=0.0)
        return path.stat().st_mtime
    except OSError:
        return 0.0
