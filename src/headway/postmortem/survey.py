"""What lies in a folder: logs by their content, checkpoints, runs of our own.

The walk is bounded in depth, in the number of entries and in what is opened; hidden folders,
environments and links are left alone. That a file could be a log is told by its first bytes; names
only keep source code, configurations and vocabularies from being taken for one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from headway.errors import UnreadableInput
from headway.postmortem.order import natural
from headway.sources import formats

DEEPEST = 7
MOST_ENTRIES = 100_000
MOST_LOOKS = 3_000
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
"""Names that speak against a `.json` or `.txt`; what a console left in `run.log` is a log."""
EVENTS = "tfevents"


@dataclass
class Survey:
    """What was found, paths in the order of the walk."""

    folder: Path
    logs: list[Path] = field(default_factory=list)
    """Files some reader recognises, without event files."""
    events: dict[Path, list[Path]] = field(default_factory=dict)
    """TensorBoard's event files, by folder."""
    runs: list[Path] = field(default_factory=list)
    """Run directories of our own."""
    stores: list[Path] = field(default_factory=list)
    """Folders of MLflow's file store, one for each run."""
    refused: list[Path] = field(default_factory=list)
    """Files and folders that may not be read."""
    entries: int = 0

    def __bool__(self) -> bool:
        return bool(self.logs or self.events or self.stores or self.runs)


def survey(folder: Path) -> Survey:
    """Look through a folder."""
    found = Survey(folder)
    for path in _files(folder, found):
        if EVENTS in path.name:
            found.events.setdefault(path.parent, []).append(path)
        elif _could_be(path) and len(found.logs) < MOST_LOOKS:
            try:
                if formats.reader_for(path) is not None:
                    found.logs.append(path)
            except UnreadableInput:
                found.refused.append(path)
    return found


def _could_be(path: Path) -> bool:
    suffix = path.suffix.lower()
    # `slurm-123.out`, `train.log.2`, `job.o4711`: what a scheduler or a rotation appends.
    known = suffix in _SUFFIXES or (".log" in path.name and bool(_NUMBERED.match(suffix)))
    name = path.stem if suffix else path.name
    if suffix in _CONSOLE and _ANY_NAME.match(name):
        return True
    return known and not _NO_LOG.match(name)


def _files(folder: Path, found: Survey, depth: int = 0) -> Iterator[Path]:
    try:
        inside = sorted(os.scandir(folder), key=lambda entry: natural(entry.name))
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
        if found.entries > MOST_ENTRIES:
            return
        try:
            if entry.is_symlink():
                continue  # what it leads to is found where it lies, or is none of ours
            if entry.is_dir():
                if not entry.name.startswith(".") and entry.name not in _SKIPPED:
                    below.append(Path(entry.path))
            elif entry.is_file() and not entry.name.startswith("."):
                yield Path(entry.path)
        except OSError:
            continue
    if depth < DEEPEST:
        for path in below:
            yield from _files(path, found, depth + 1)
