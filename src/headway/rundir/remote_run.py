"""Run directories on object stores, through fsspec: local staging, asynchronous upload, reading.

    s3://bucket/runs/a/run.json
    s3://bucket/runs/a/steps.rank0.jsonl.parts/000000     lines, in order; stores cannot append
    s3://bucket/runs/a/snapshots/3-step300/…

A guard writes into a local folder, and a thread uploads what is new. Training never waits for the
store; a store that fails is tried again. A reader downloads the run and joins the parts.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from headway.errors import RunDirInUse, UnreadableInput, import_optional
from headway.rundir.run_lock import LOCK_FILE, LockHolder

_LINES = re.compile(r"^(?:steps|events)(?:\.rank(\d{1,9}))?\.jsonl$")
_PARTS = ".parts"
UPLOAD_SECONDS = 5.0
"""Seconds between two checks for new data to upload."""
PART_SECONDS = 30.0
"""Seconds after which new lines are uploaded even if they are few."""
PART_BYTES = 1 << 18
"""Bytes of new lines that are uploaded at once."""
RENEW_SECONDS = 30.0
"""Seconds between two renewals of the store's `run.lock`."""
STALE_SECONDS = 180.0
"""Seconds without a renewal after which a holder on another host counts as dead."""
CLOSE_SECONDS = 60.0
"""Seconds that closing a run waits for the store."""
DCP_INDEX = ".metadata"
"""The index of a snapshot of several ranks; other hidden files are temporary."""
MANIFEST = "manifest.json"
"""The file that makes a folder a snapshot."""
PULLED = ("snapshots", "incidents")
"""Folders that are downloaded only on request."""


def open_store(url: str) -> tuple[Any, str]:
    """(the file system of a URL, the path in it). Raises UsageError where it cannot be opened."""
    fsspec = import_optional("fsspec", user=f"{url.partition('://')[0]}://", extra="storage")
    try:
        store, root = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise UnreadableInput(f"cannot open {url}: {error}") from error
    return store, str(root).rstrip("/")


def staging_folder(url: str) -> Path:
    """The folder in which this host writes a run before it is uploaded, shared by all its ranks."""
    base = os.environ.get("HEADWAY_STAGING")
    user = os.getuid() if hasattr(os, "getuid") else "user"
    folder = Path(base) if base else Path(tempfile.gettempdir()) / f"headway-staging-{user}"
    return folder / hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:16]


def fetch_run(url: str, target: Path | None = None) -> Path:
    """Download a run, a log or a checkpoint; the local copy is removed when the process ends."""
    store, root = open_store(url)
    if target is None:
        target = Path(tempfile.mkdtemp(prefix="headway-read-"))
        atexit.register(shutil.rmtree, target, ignore_errors=True)
    try:
        names = _list(store, root)
        if not names and store.isfile(root):
            place = target / Path(root).name
            store.get_file(root, str(place))
            return place
        _download(store, root, names, target)
    except Exception as error:  # a store may raise anything
        raise UnreadableInput(f"cannot read {url}: {error}") from error
    if not names:
        raise UnreadableInput(f"{url} does not exist")
    return target


def _list(store: Any, root: str) -> dict[str, int]:
    """The files below a folder of the store, with their sizes."""
    try:
        found = store.find(root, detail=True)
    except FileNotFoundError:
        return {}
    return {
        name[len(root) :].lstrip("/"): int(about.get("size") or 0)
        for name, about in found.items()
        if name.startswith(f"{root}/")
    }


def _download(store: Any, root: str, names: dict[str, int], target: Path) -> None:
    for name in sorted(names):
        whole, separator, part = name.partition(f"{_PARTS}/")
        place = target / whole
        if not place.resolve().is_relative_to(target.resolve()):
            raise ValueError(f"a name leads out of the run: {name}")
        place.parent.mkdir(parents=True, exist_ok=True)
        if not separator:  # other ranks of this host may download the same: whole files only
            fresh = place.with_name(f".{place.name}.{os.getpid()}.new")
            store.get_file(f"{root}/{name}", str(fresh))
            fresh.replace(place)
        else:  # sorted: parts follow each other
            with open(place, "wb" if int(part) == 0 else "ab") as file:
                file.write(store.cat_file(f"{root}/{name}"))


class StoredRun:
    """A run in a store, of which this host has a copy."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def names(self, folder: str) -> list[str]:
        """The files below a folder of the run in the store; none where nothing is added to it."""
        return []

    def read_text(self, name: str) -> str:
        """The text of a file in the store; empty where there is none."""
        return ""


class RunFolder(NamedTuple):
    """A run directory on this host."""

    path: Path
    stored: StoredRun | None = None
    """The run in a store of which it is a copy."""


class RemoteRun(StoredRun):
    """A run directory in a store, written through a local folder by one rank."""

    def __init__(self, url: str, *, rank: int, notify: Callable[[str], None]) -> None:
        super().__init__(url)
        self.rank = rank
        self.folder = staging_folder(url)
        self._store, self._root = open_store(self.url)
        self._notify = notify
        local = os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID"))
        self._uploads_shared = rank == 0 or local == "0"
        """Whether this rank uploads what all ranks of the host have written together."""
        self._sent: dict[str, Any] = {}
        self._parts: dict[str, int] = {}
        self._part_at: dict[str, float] = {}
        self._renewed = -RENEW_SECONDS
        self._reported = False
        self._wake = threading.Event()
        self._stopping = False
        self._pull()
        # A daemon: a store that hangs must not keep a finished process alive.
        self._thread = threading.Thread(target=self._work, name="headway-upload", daemon=True)
        self._thread.start()

    def pull(self, name: str) -> None:
        """Download a folder of the run that this host does not have: `snapshots`, say."""
        try:
            missing = {
                at: size
                for at, size in _list(self._store, self._root).items()
                if at.partition("/")[0].startswith(name) and self._stamp(at)[0] != size
            }
            _download(self._store, self._root, missing, self.folder)
        except (OSError, ValueError) as error:
            raise UnreadableInput(f"cannot read {name} of {self.url}: {error}") from error
        if self._uploads_shared:
            self._sent.update({at: self._stamp(at) for at in missing})

    def names(self, folder: str) -> list[str]:
        try:
            self._store.invalidate_cache()
            return sorted(_list(self._store, f"{self._root}/{folder}"))
        except (OSError, ValueError):  # it is asked again
            return []

    def read_text(self, name: str) -> str:
        try:
            return bytes(self._store.cat_file(f"{self._root}/{name}")).decode("utf-8", "replace")
        except (OSError, ValueError):
            return ""

    def close(self) -> None:
        """Upload the rest. Waits for the store for at most a minute."""
        if self._stopping:
            return
        self._stopping = True
        self._wake.set()
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive() or self._reported:
            self._notify(
                f"some files of the run could not be uploaded to {self.url}. "
                f"They are in {self.folder}"
            )

    # At the start, download what an earlier process wrote, so that the run continues.

    def _pull(self) -> None:
        try:
            names = _list(self._store, self._root)
            if self.rank == 0:
                self._check_lock(names)
            if not names and self.folder.exists():
                # The store has no files of the run in the local folder: a new run begins.
                self._set_aside()
            self.folder.mkdir(parents=True, exist_ok=True)
            lines: dict[str, int] = {}
            for name, size in names.items():
                whole, separator, part = name.partition(f"{_PARTS}/")
                if separator and self._is_pulled(whole):
                    lines[whole] = lines.get(whole, 0) + size
                    self._parts[whole] = max(self._parts.get(whole, 0), int(part) + 1)
            # What an earlier process could not upload is longer than what the store has.
            newer = {name for name, size in lines.items() if self._stamp(name)[0] >= size}
            wanted = {
                name: size
                for name, size in names.items()
                if self._is_pulled(name) and name.partition(f"{_PARTS}/")[0] not in newer
            }
            _download(self._store, self._root, wanted, self.folder)
        except (OSError, ValueError) as error:
            raise UnreadableInput(f"cannot use the run directory {self.url}: {error}") from error
        self._sent.update(lines)
        self._sent.update({name: self._stamp(name) for name in wanted if _PARTS not in name})

    def _set_aside(self) -> None:
        """Move the local files of an earlier run away. Other ranks of this host may be starting,
        so each rank moves only the files that it writes itself."""
        aside = self.folder.with_name(f"{self.folder.name}.{time.time_ns()}")
        if os.environ.get("WORLD_SIZE", "1") == "1":
            self.folder.rename(aside)
            return
        for path in list(self.folder.iterdir()):
            if self._is_own(path.name):
                aside.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):
                    path.rename(aside / path.name)

    def _is_pulled(self, name: str) -> bool:
        whole = name.partition(f"{_PARTS}/")[0]
        if name == LOCK_FILE or whole.split("/")[0].startswith(PULLED):
            return False
        return self._is_own(whole)

    def _check_lock(self, names: dict[str, int]) -> None:
        if LOCK_FILE not in names:
            return
        content = self._store.cat_file(f"{self._root}/{LOCK_FILE}")
        holder = LockHolder.parse(content)
        if holder is None:
            return
        try:
            renewed = float(json.loads(content).get("renewed", 0))
        except (ValueError, TypeError):
            renewed = 0.0
        elsewhere = not holder.here and time.time() - renewed < STALE_SECONDS
        if (holder.alive and holder.pid != os.getpid()) or elsewhere:
            raise RunDirInUse(
                f"the run directory {self.url} is in use by {holder}. "
                "Stop that process, or choose another directory"
            )

    def _work(self) -> None:
        wait = UPLOAD_SECONDS
        while True:
            self._wake.wait(wait)
            last = self._stopping
            try:
                self._upload(last=last)
                self._reported = False
                wait = UPLOAD_SECONDS
            except Exception as error:  # a store may raise anything
                wait = min(wait * 2, 60.0)
                if not self._reported:
                    self._reported = True
                    self._notify(
                        f"cannot upload the run to {self.url}: {error}. Training continues, the "
                        f"upload is tried again, and the run is kept in {self.folder}"
                    )
                if last:
                    wait = 2.0  # until `close` gives up
                    self._wake.clear()
                    continue
            if last:
                return

    def _upload(self, *, last: bool) -> None:
        now = time.monotonic()
        for name in self._files():
            match = _LINES.match(name)
            if match:
                self._upload_lines(name, now, last=last)
            elif name != LOCK_FILE and self._stamp(name) != self._sent.get(name):
                self._send(name)
        for name in [name for name in self._sent if not (self.folder / name).exists()]:
            if self.rank == 0:  # another host removes only its own copy
                self._remove(name)
            del self._sent[name]
        if self.rank == 0 and (last or now - self._renewed >= RENEW_SECONDS):
            self._renewed = now
            self._renew_lock(last=last)

    def _send(self, name: str) -> None:
        stamp, path = self._stamp(name), self.folder / name
        try:
            self._store.put_file(str(path), f"{self._root}/{name}")
        except FileNotFoundError:
            if path.exists():
                raise
            return  # removed since it was listed
        self._sent[name] = stamp

    def _remove(self, name: str) -> None:
        """Remove a file that was removed locally; of a snapshot also the parts of other hosts."""
        with suppress(FileNotFoundError):
            self._store.rm_file(f"{self._root}/{name}")
            home, _, file = name.rpartition("/")
            if file == MANIFEST:
                self._store.rm(f"{self._root}/{home}", recursive=True)

    def _upload_lines(self, name: str, now: float, *, last: bool) -> None:
        path, sent = self.folder / name, self._sent.get(name, 0)
        size = path.stat().st_size
        due = now - self._part_at.setdefault(name, now - PART_SECONDS) >= PART_SECONDS
        if size == sent or not (last or due or size - sent >= PART_BYTES):
            return
        with open(path, "rb") as file:
            file.seek(sent)
            data = file.read(size - sent)
        whole = data if last else data[: data.rfind(b"\n") + 1]
        if not whole:
            return
        number = self._parts.get(name, 0)
        self._store.pipe_file(f"{self._root}/{name}{_PARTS}/{number:06d}", whole)
        self._parts[name] = number + 1
        self._sent[name] = sent + len(whole)
        self._part_at[name] = now

    def _renew_lock(self, *, last: bool) -> None:
        place = f"{self._root}/{LOCK_FILE}"
        if last:
            if self._store.exists(place):
                self._store.rm_file(place)
            return
        content = {**asdict(LockHolder.this_process()), "renewed": time.time()}
        self._store.pipe_file(place, json.dumps(content).encode() + b"\n")

    def _files(self) -> Iterator[str]:
        """The files of this rank, and of all ranks together where it leads.

        The manifest of a snapshot lies above its parts and comes after them.
        """
        for folder, _, names in os.walk(self.folder, topdown=False):
            inside = Path(folder).relative_to(self.folder)
            if any(part.endswith(".new") or part.startswith(".") for part in inside.parts):
                continue
            for name in sorted(names):
                at = (inside / name).as_posix()
                hidden = name.startswith(".") and name != DCP_INDEX
                if not hidden and not name.endswith(".new") and self._is_own(at):
                    yield at

    def _is_own(self, name: str) -> bool:
        match = _LINES.match(name)
        if match:
            return int(match[1] or 0) == self.rank
        return self._uploads_shared

    def _stamp(self, name: str) -> tuple[int, int]:
        try:
            status = (self.folder / name).stat()
        except OSError:
            return (0, 0)
        return (status.st_size, status.st_mtime_ns)
