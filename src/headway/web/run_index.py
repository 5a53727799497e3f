"""Finds the runs below a folder and reads them on two background threads.

One thread looks after run directories: a glance at all of them every second, then a little of each
that has more to read, those first that somebody looks at. The other reads logs of other tools, one
at a time. Nothing is read on the server's own thread.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from headway.web.access import ServedFolder
from headway.web.own_run import OwnRun
from headway.web.run_entry import ForeignRun

GLANCE_INTERVAL = 0.5
"""Seconds from one glance at all runs to the next."""
SEARCH_INTERVAL = 2.0
"""Seconds from one search for new runs to the next, and for logs of other tools:"""
LOG_SEARCH_INTERVAL = 20.0
SLICE = 0.05
"""Seconds one run is read before another has its turn."""
PRIORITY_SECONDS = 60.0
"""Seconds that a look at a run's charts keeps it first."""
MAX_RUNS = 1000
MAX_LOGS = 200
MAX_DRAWN_RUNS = 12
"""Runs whose charts are held at a time."""
STARTUP_SECONDS = 5.0
"""Seconds after the start in which no long run is looked at as a whole."""
PREPARED_RUNS = 4
"""Of the latest runs, so many are read before anybody asks."""
NEARLY_READ = 0.98
"""A run that trains is never read to its very end."""
MAX_LOG_BYTES = 1 << 27
"""A log of another tool that is larger is left to `headway diagnose`."""
MAX_DEPTH = 6
MAX_FOLDER_ENTRIES = 50_000
SKIPPED_FOLDERS = frozenset({"node_modules", "site-packages", "__pycache__", "venv", "env"})

logger = logging.getLogger("headway.web")


class RunIndex:
    """All runs below a folder."""

    def __init__(self, root: ServedFolder, told: Callable[[str], None]) -> None:
        """`told` is called, from another thread, with the id of a run that has changed."""
        self.root = root
        self.left_out = 0
        """Run directories beyond those that are listed."""
        self._told = told
        self._own: dict[str, OwnRun] = {}
        self._foreign: dict[str, ForeignRun] = {}
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), name=f"headway-{name}")
            for name, work in (("runs", self._read_runs), ("logs", self._read_logs))
        ]
        for thread in self._threads:
            thread.daemon = True

    def start(self) -> None:
        """Begin to read."""
        self.search()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the reading, at the next slice."""
        self._stop.set()

    def get(self, key: str) -> OwnRun | ForeignRun | None:
        """The run of an id that was given out."""
        return self._own.get(key) or self._foreign.get(key)

    def all(self) -> list[OwnRun | ForeignRun]:
        """Every run, the one last written to first."""
        return sorted([*self._own.values(), *self._foreign.values()], key=lambda run: -run.changed)

    def search(self) -> None:
        """Look for run directories that have appeared, and for those that are gone."""
        found: dict[str, Path] = {}
        self.left_out = 0
        for path in find_run_folders(self.root):
            if len(found) >= MAX_RUNS:
                self.left_out += 1
                continue
            found[str(path)] = path
        known = {str(run.path): run for run in self._own.values()}
        for key in known.keys() - found.keys():
            self._told(self._own.pop(known[key].id).id)
        for key in found.keys() - known.keys():
            run = OwnRun(self.root, found[key])
            run.glance()
            self._own[run.id] = run
            self._told(run.id)

    def _guarded(self, work: Callable[[], None]) -> None:
        """A reader that stumbles says so and goes on: the page must not fall silent."""
        while not self._stop.is_set():
            try:
                work()
            except Exception:  # whatever it is about one run, the others are still to be read
                logger.exception("reading stumbled")
                self._stop.wait(1.0)

    def _read_runs(self) -> None:
        search_at = glanced = 0.0
        while not self._stop.is_set():
            now = time.monotonic()
            if now > search_at:
                self.search()
                # Where a search takes long, on a disk far away, it is not done all the time.
                search_at = time.monotonic() + max(SEARCH_INTERVAL, 10 * (time.monotonic() - now))
            if now - glanced > GLANCE_INTERVAL:
                for run in list(self._own.values()):
                    if run.glance():
                        self._told(run.id)
                glanced = time.monotonic()
            if not self._read_some():
                self._stop.wait(GLANCE_INTERVAL / 2)

    def _read_some(self) -> bool:
        """A slice of every run that has one, charts first; whether there was any."""
        runs = list(self._own.values())
        now = time.monotonic()
        busy = False
        for run in sorted(runs, key=lambda run: -run.wanted)[:MAX_DRAWN_RUNS]:
            if run.drawn and run.draw(SLICE * 4):
                busy = True
                self._told(run.id)
        drawn = sorted((run for run in runs if run.drawn), key=lambda run: -run.wanted)
        for run in drawn[MAX_DRAWN_RUNS:]:
            run.forget()
        if busy and any(map(self._waited_for, drawn)):
            return True  # what is looked at comes first
        for run in sorted(runs, key=lambda run: (-run.wanted, -run.changed)):
            if run.long():
                continue  # the other thread looks at it
            before = run.version
            if run.check(SLICE):
                busy = True
            if run.version != before:
                self._told(run.id)
            if self._stop.is_set() or time.monotonic() - now > GLANCE_INTERVAL * 2:
                break
        return busy or self._prepare(runs)

    def _prepare(self, runs: list[OwnRun]) -> bool:
        """With nothing else to do, read what somebody is likely to look at next."""
        for run in sorted(runs, key=lambda run: -run.changed)[:PREPARED_RUNS]:
            if not run.drawn:
                run.prepare()
                return True
        return False

    def _read_logs(self) -> None:
        # Whoever starts the page opens it: its charts come first.
        patience = time.monotonic() + STARTUP_SECONDS
        searched = -LOG_SEARCH_INTERVAL
        while not self._stop.wait(GLANCE_INTERVAL):
            if time.monotonic() - searched > LOG_SEARCH_INTERVAL:
                self._search_logs()
                searched = time.monotonic()
            for run in self.all():
                if self._stop.is_set():
                    return
                if isinstance(run, OwnRun):
                    due = time.monotonic() > patience and run.long()
                else:
                    due = run.due()
                if due:
                    self._let_pass()
                    run.look()
                    self._told(run.id)

    def _let_pass(self) -> None:
        """Charts that somebody waits for come before a long look at something else."""
        while not self._stop.is_set() and any(map(self._waited_for, list(self._own.values()))):
            self._stop.wait(GLANCE_INTERVAL / 2)

    def _waited_for(self, run: OwnRun) -> bool:
        wanted = time.monotonic() - run.wanted < PRIORITY_SECONDS
        return wanted and run.drawn and run.progress()[0] < NEARLY_READ

    def _search_logs(self) -> None:
        found: dict[str, Path] = {}
        for path in find_log_files(self.root):
            if len(found) >= MAX_LOGS:
                break
            found[str(path)] = path
        known = {str(run.path): run for run in self._foreign.values()}
        for key in known.keys() - found.keys():
            self._told(self._foreign.pop(known[key].id).id)
        for key in found.keys() - known.keys():
            run = ForeignRun(self.root, found[key])
            self._foreign[run.id] = run
            self._told(run.id)


def find_run_folders(root: ServedFolder) -> Iterator[Path]:
    """Run directories below a folder. No link is followed; hidden folders are left alone."""
    entries = 0
    level = [root.path]
    for _ in range(MAX_DEPTH + 1):
        below: list[Path] = []
        for folder in level:
            try:
                with os.scandir(folder) as inside:
                    found = [*inside]
            except OSError:
                continue
            entries += len(found)
            if entries > MAX_FOLDER_ENTRIES:
                return
            if any(entry.name == "run.json" for entry in found):
                if root.plain(folder / "run.json"):
                    yield folder
                continue
            for entry in found:
                if entry.name.startswith(".") or entry.name in SKIPPED_FOLDERS:
                    continue
                try:
                    if entry.is_dir(follow_symlinks=False):
                        below.append(Path(entry.path))
                except OSError:
                    continue
        level = below


def find_log_files(root: ServedFolder) -> Iterator[Path]:
    """What `headway diagnose` reads besides: logs, folders of event files, stores of MLflow."""
    from headway.logs.log_folders import survey_folder

    found = survey_folder(root.path)
    newest: dict[Path, Path] = {}
    for path in [*found.logs, *found.events, *found.stores]:
        try:
            if path.is_file() and path.stat().st_size > MAX_LOG_BYTES:
                continue
        except OSError:
            continue
        if not root.holds(path):
            continue
        # Of the states that one trainer saved, each tells all that the one before told.
        saved = path.name == "trainer_state.json" and path.parent.name.startswith("checkpoint-")
        if saved:
            newest[path.parent.parent] = path  # they come in order
        else:
            yield path
    yield from newest.values()
