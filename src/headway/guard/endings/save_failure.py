"""Watches `torch.save`: remembers the last good checkpoint, and recognises a save that failed."""

from __future__ import annotations

import atexit
import errno
import os
import pickle
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headway.core.ending_facts import SAVE_FAILED, SURVIVED
from headway.guard.endings.failure import Failure, FailureMoment, Recognised, read_stack
from headway.guard.recorder import Recorder
from headway.output.notices import logger
from headway.rundir.heartbeat import SAVE, USER
from headway.rundir.writer import append_events
from headway.torch_adapters.saves import remove_save_listener, watch_saves

_SAVING = re.compile(
    r"(torch/serialization\.py|safetensors/(torch|numpy)\.py|torch/distributed/checkpoint/)"
)
_WRITERS = frozenset({"save", "_save", "_legacy_save", "save_file", "save_model", "async_save"})
_WRITE_ERRORS = re.compile(
    r"PytorchStreamWriter|inline_container|iostream error|cannot be opened|unexpected pos|"
    r"No space left|Disk quota|Read-only file|file in archive|Permission denied|I/O error|"
    r"Parent directory",
    re.IGNORECASE,
)
_PICKLE_ERRORS = re.compile(r"[Cc]an't (get|pickle) |cannot pickle|not serializable")
UNPICKLABLE = "it contains an object that cannot be pickled"
REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is exceeded",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EFBIG: "the file would exceed the file size limit",
    errno.EROFS: "the file system is read-only",
    errno.ENOENT: "the folder does not exist",
    errno.EISDIR: "a folder has this name",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EEXIST: "the name is taken",
    errno.ENOTEMPTY: "a folder with files has this name",
    errno.EXDEV: "a file cannot be renamed to another file system",
    errno.ENAMETOOLONG: "the file name is too long",
    errno.EMFILE: "too many files are open",
    errno.ESTALE: "the network file system has lost the file",
    errno.EIO: "the storage failed",
}
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A checkpoint that was written."""

    path: str
    step: int


class SaveWatch:
    """The saves of one run."""

    def __init__(self, recorder: Recorder, moment: Callable[[], FailureMoment]) -> None:
        self._recorder = recorder
        self._moment = moment
        self._caught: list[tuple[BaseException, FailureMoment, str | None]] = []
        self.last_good: SavedFile | None = None
        self.in_memory = False
        """Whether a checkpoint was made in memory, which the script writes to disk itself."""
        watch_saves(self)

    def close(self) -> None:
        """Stop watching; a failure that did not end the run is recorded now."""
        remove_save_listener(self)
        self._record_survived()

    def take(self, error: BaseException) -> tuple[BaseException, str | None] | None:
        """The error and the path of the save that led to this one, which ends the run; None if no
        save did."""
        for item in self._caught:
            if _is_cause(item[0], error):
                self._caught.remove(item)
                return item[0], item[2]
        return None

    def is_of_saved(self, error: BaseException) -> bool:
        """Whether the script could not write or move a checkpoint that `torch.save` has made."""
        if not isinstance(error, OSError):
            return False
        named = [os.path.abspath(os.fsdecode(name)) for name in _names(error)]
        moved = self.last_good is not None and self.last_good.path in named
        return moved or (self.in_memory and error.errno in FULL)

    def save_begins(self, target: Any) -> None:
        if self._is_own(target):
            return
        self._record_survived(before=self._moment().steps)
        self._recorder.heartbeat.enter(SAVE)

    def save_ended(self, target: Any, error: BaseException | None) -> None:
        if self._is_own(target):
            return
        self._recorder.heartbeat.enter(USER)
        path, moment = _path_of(target), self._moment()
        if error is not None:
            if _is_write_error(error) or _is_pickle_error(error):
                self._caught.append((error, moment, path))
            return
        # Saved elsewhere, or at the second try: the step has its checkpoint.
        self._caught = [item for item in self._caught if item[1].steps != moment.steps]
        if path is not None:
            self.last_good = SavedFile(path, moment.steps)
        else:
            self.in_memory = True

    def _is_own(self, target: Any) -> bool:
        """Whether it is a snapshot of the guard itself, or is written by a forked child."""
        path, writer = _path_of(target), self._recorder.writer
        if os.getpid() != self._recorder.pid:
            return True
        return path is not None and writer is not None and Path(path).is_relative_to(writer.path)

    def _record_survived(self, before: int | None = None) -> None:
        """`before`: only failures of earlier steps; those of this one may still be retried."""
        caught = [item for item in self._caught if before is None or item[1].steps < before]
        self._caught = [item for item in self._caught if item not in caught]
        for error, moment, path in caught:
            if not _is_write_error(error):  # a library may only try whether it can be pickled
                continue
            failure = Failure(error, moment, None, read_stack(error))
            facts = _facts(failure) | {"path": path, "survived": True}
            self._recorder.event(failure.step, SAVE_FAILED, facts | _last_good(self.last_good))


class LateSaves:
    """Records a checkpoint that cannot be written after the end of the run was recorded.

    Python calls the `atexit` callbacks of the script when `headway run` has printed its report.
    Created before the script runs, so that its own callback comes after those.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._folder: Path | None = None
        self._rank = self._steps = 0
        self._failed: list[tuple[BaseException, str | None]] = []
        atexit.register(self._record)

    def watch(self, folder: Path, *, rank: int, steps: int) -> None:
        """The run in this folder has ended after these steps; the process goes on."""
        self._folder, self._rank, self._steps = folder, rank, steps
        watch_saves(self)

    def save_begins(self, target: Any) -> None:
        """Nothing: there is no heartbeat any more."""

    def save_ended(self, target: Any, error: BaseException | None) -> None:
        if error is None:  # elsewhere, or at the second try
            self._failed.clear()
        elif os.getpid() == self._pid and _is_write_error(error):
            self._failed.append((error, _path_of(target)))

    def _record(self) -> None:
        remove_save_listener(self)
        if self._folder is None or os.getpid() != self._pid:
            return
        moment = FailureMoment(steps=self._steps)
        for error, path in self._failed:
            facts = _facts(Failure(error, moment, None, read_stack(error)))
            facts |= {"path": path or facts.get("path"), SURVIVED: True}
            with suppress(OSError):
                append_events(self._folder, self._rank, [(self._steps, SAVE_FAILED, facts)])
            logger.warning(
                "headway: HD708 checkpoint-not-saved: %s could not be saved after the end of the "
                "run: %s",
                path or "a checkpoint",
                facts["reason"] or facts["error"],
            )


def recognise_save_failure(failure: Failure) -> Recognised | None:
    """The facts of a failed save; None if the exception is none."""
    stack = failure.stack
    saving = any(
        _SAVING.search(frame.file.replace("\\", "/")) and frame.function in _WRITERS
        for frame in stack
    )
    error, watch = failure.error, failure.moment.saves
    taken = None if watch is None else watch.take(error)
    if taken is not None and taken[0] is not error:  # closing the file raised once more
        error = taken[0]
        failure = replace(failure, error=error, stack=read_stack(error))
    written = watch is not None and watch.is_of_saved(error)
    if not (saving or taken or written):
        return None
    if not (_is_write_error(error) or _is_pickle_error(error)):
        return None
    target = {} if taken is None or taken[1] is None else {"path": taken[1]}
    last_good = _last_good(None if watch is None else watch.last_good)
    return SAVE_FAILED, _facts(failure) | target | last_good


def _is_write_error(error: BaseException) -> bool:
    """Whether the storage is to blame."""
    return isinstance(error, OSError) or bool(_WRITE_ERRORS.search(str(error)))


def _is_pickle_error(error: BaseException) -> bool:
    return isinstance(error, pickle.PicklingError) or (
        isinstance(error, (AttributeError, TypeError)) and bool(_PICKLE_ERRORS.search(str(error)))
    )


def _names(error: OSError) -> list[str | bytes]:
    return [name for name in (error.filename, error.filename2) if isinstance(name, (str, bytes))]


def _facts(failure: Failure) -> dict[str, Any]:
    error = failure.error
    path = error.filename if isinstance(error, OSError) else None
    facts: dict[str, Any] = {"batch": [], "phase": "save", "reason": _reason(error)}
    target = error.filename2 if isinstance(error, OSError) else None  # of a rename
    if isinstance(path, (str, bytes)):
        facts["path"] = os.fsdecode(target if isinstance(target, (str, bytes)) else path)
    return failure.facts() | facts


def _reason(error: BaseException) -> str | None:
    if _is_pickle_error(error):
        return UNPICKLABLE
    if isinstance(error, OSError):
        return REASONS.get(error.errno or 0)
    text = str(error)  # torch's writer raises a RuntimeError
    if re.search(r"Parent directory .*does not exist", text):
        return REASONS[errno.ENOENT]
    return next((why for number, why in REASONS.items() if os.strerror(number) in text), None)


def _last_good(saved: SavedFile | None) -> dict[str, Any]:
    if saved is None:
        return {}
    return {"last_good": saved.path, "last_good_steps": saved.step}


def _path_of(target: Any) -> str | None:
    name = target if isinstance(target, (str, os.PathLike)) else getattr(target, "name", None)
    return os.path.abspath(os.fspath(name)) if isinstance(name, (str, os.PathLike)) else None


def _is_cause(cause: BaseException, error: BaseException | None) -> bool:
    seen = 0
    while error is not None and seen < 20:
        if error is cause:
            return True
        error = error.__cause__ or error.__context__
        seen += 1
    return False
