"""Finds the runs below a folder and reads them on two background threads.

One thread reads run directories: it polls all of them twice a second, then reads a slice of each
that has more data, visible runs first. The other reads logs of other tools, one at a time. Nothing
is read on the server's own thread.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from headway.rundir.run_files import pausing
from headway.web.access import ServedFolder
from headway.web.own_run import OwnRun
from headway.web.run_entry import ForeignRun

GLANCE_INTERVAL = 0.5
"""Seconds between two polls of all runs."""
SEARCH_INTERVAL = 2.0
"""Seconds between two searches for new runs."""
LOG_SEARCH_INTERVAL = 20.0
"""Seconds between two searches for logs of other tools."""
SLICE = 0.05
"""Seconds that one run is read before the next."""
PRIORITY_SECONDS = 60.0
"""Seconds that a run is read first after its charts were requested."""
MAX_RUNS = 1000
MAX_LOGS = 200
MAX_LONG_DRAWN = 12.0
"""Maximum number of long runs whose chart data is kept; of short ones as many as weigh the same."""
STARTUP_SECONDS = 5.0
"""Seconds after the start in which no long run is checked as a whole."""
PREPARED_RUNS = 4
"""Number of latest runs that are read before they are requested."""
NEARLY_READ = 0.98
"""Share at which a growing run counts as read."""
MAX_LOG_BYTES = 1 << 27
"""A larger log of another tool is not shown; `headway diagnose` reads it."""
MAX_DEPTH = 6
MAX_FOLDER_ENTRIES = 50_000
SKIPPED_FOLDERS = frozenset({"node_modules", "site-packages", "__pycache__", "venv", "env"})

PAGE_LOAD_SECONDS = 0.4
"""Seconds from a page to its request for charts."""
MAX_GIVEN_WAY_SECONDS = 2.0
"""Seconds that a reader waits for answers; under constant requests it must still read."""

logger = logging.getLogger("headway.web")


class AnswersFirst:
    """Lets readers pause while a page waits for an answer: they share one interpreter.

    with answers: …        while an answer is made
    answers.expect()       a page was opened, and asks for its data in a moment
    answers.give_way()     by a reader that holds no lock
    answers.pending        for a reader that holds one: it must let go
    """

    def __init__(self) -> None:
        self._count = 0
        self._expected = 0.0
        """Until when a page that was opened may ask."""
        self._none = threading.Condition()

    @property
    def pending(self) -> bool:
        """Whether an answer is being made, or expected."""
        return self._count > 0 or time.monotonic() < self._expected

    def expect(self) -> None:
        """Keep the interpreter free for the requests of a page that has just loaded."""
        self._expected = time.monotonic() + PAGE_LOAD_SECONDS

    def __enter__(self) -> None:
        with self._none:
            self._count += 1

    def __exit__(self, *exception: object) -> None:
        with self._none:
            self._count -= 1
            self._none.notify_all()

    def give_way(self) -> None:
        """Wait until no answer is being made or expected, but not for long."""
        until = time.monotonic() + MAX_GIVEN_WAY_SECONDS
        while self.pending and time.monotonic() < until:
            left = max(self._expected - time.monotonic(), 0.0)
            with self._none:
                self._none.wait_for(lambda: not self._count, until - time.monotonic())
            time.sleep(min(left, PAGE_LOAD_SECONDS))


class RunIndex:
    """All runs below a folder."""

    def __init__(self, root: ServedFolder, notify: Callable[[str], None]) -> None:
        """`notify` is called from another thread with the id of a changed run."""
        self.root = root
        self.left_out = 0
        """Run directories beyond `MAX_RUNS`."""
        self.answers = AnswersFirst()
        self._notify = notify
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
        """Start the reader threads."""
        self.search()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the reader threads at the next slice."""
        self._stop.set()

    def wait(self, seconds: float) -> bool:
        """Wait for the reader threads to stop; whether they have, all of them."""
        until = time.monotonic() + seconds
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(until - time.monotonic(), 0.0))
        return not any(thread.is_alive() for thread in self._threads)

    def get(self, key: str) -> OwnRun | ForeignRun | None:
        """The run with this id."""
        return self._own.get(key) or self._foreign.get(key)

    def all(self) -> list[OwnRun | ForeignRun]:
        """All runs, the most recently written first."""
        return sorted([*self._own.values(), *self._foreign.values()], key=lambda run: -run.changed)

    def search(self) -> None:
        """Find new run directories, and drop those that no longer exist."""
        found: dict[str, Path] = {}
        self.left_out = 0
        for path in find_run_folders(self.root):
            if len(found) >= MAX_RUNS:
                self.left_out += 1
                continue
            found[str(path)] = path
        known = {str(run.path): run for run in self._own.values()}
        for key in known.keys() - found.keys():
            self._notify(self._own.pop(known[key].id).id)
        for key in found.keys() - known.keys():
            run = OwnRun(self.root, found[key])
            run.glance()
            self._own[run.id] = run
            self._notify(run.id)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run a reader thread; log an error and continue."""
        while not self._stop.is_set():
            try:
                work()
            except Exception:  # one bad run must not stop the others
                logger.exception("error while reading a run")
                self._stop.wait(1.0)

    def _read_runs(self) -> None:
        search_at = glanced = 0.0
        while not self._stop.is_set():
            now = time.monotonic()
            if now > search_at:
                self.search()
                # A search that takes long (a network disk) is repeated less often.
                search_at = time.monotonic() + max(SEARCH_INTERVAL, 10 * (time.monotonic() - now))
            if now - glanced > GLANCE_INTERVAL:
                for run in list(self._own.values()):
                    if run.glance():
                        self._notify(run.id)
                glanced = time.monotonic()
            if not self._read_some():
                self._stop.wait(GLANCE_INTERVAL / 2)

    def _read_some(self) -> bool:
        """Read a slice of every run with new data, charts first; whether there was any."""
        runs = list(self._own.values())
        now = time.monotonic()
        busy = False
        for run in sorted(runs, key=lambda run: -run.wanted):
            if not run.drawn:
                continue
            self.answers.give_way()
            if run.draw(SLICE * 4, self._let_go):
                busy = True
                self._notify(run.id)
        drawn = sorted((run for run in runs if run.drawn), key=lambda run: -run.wanted)
        weight = 0.0
        for run in drawn:
            weight += run.weight
            if weight > MAX_LONG_DRAWN:
                run.forget()
        if busy and any(map(self._waited_for, drawn)):
            return True  # visible runs come first
        for run in sorted(runs, key=lambda run: (-run.wanted, -run.changed)):
            if run.long():
                continue  # the other thread looks at it
            before = run.version
            self.answers.give_way()
            if run.check(SLICE, self._let_go):
                busy = True
            if run.version != before:
                self._notify(run.id)
            if self._stop.is_set() or time.monotonic() - now > GLANCE_INTERVAL * 2:
                break
        return busy or self._prepare(runs)

    def _let_go(self) -> bool:
        return self.answers.pending

    def _prepare(self, runs: list[OwnRun]) -> bool:
        """When idle, read the latest runs in advance."""
        for run in sorted(runs, key=lambda run: -run.changed)[:PREPARED_RUNS]:
            if not run.drawn:
                run.prepare()
                return True
        return False

    def _read_logs(self) -> None:
        # The page is opened right after the start, and its charts come first.
        patience = time.monotonic() + STARTUP_SECONDS
        searched = -LOG_SEARCH_INTERVAL
        while not self._stop.wait(GLANCE_INTERVAL):
            if time.monotonic() - searched > LOG_SEARCH_INTERVAL:
                self._search_logs()
                searched = time.monotonic()
            done: set[str] = set()  # a log that grows is due again at once
            while not self._stop.is_set() and (run := self._next_to_check(patience, done)):
                done.add(run.id)
                self._let_pass()
                with pausing(self.answers.give_way):
                    run.look()
                self._notify(run.id)

    def _next_to_check(self, patience: float, done: set[str]) -> OwnRun | ForeignRun | None:
        """A run or log to check as a whole: what was opened last comes first."""
        for run in sorted(self.all(), key=lambda run: -run.wanted):
            if run.id in done:
                continue
            if isinstance(run, OwnRun):
                due = time.monotonic() > patience and run.long()
            else:
                due = run.due()
            if due:
                return run
        return None

    def _let_pass(self) -> None:
        """Wait while requested charts are still being read."""
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
            self._notify(self._foreign.pop(known[key].id).id)
        for key in found.keys() - known.keys():
            run = ForeignRun(self.root, found[key])
            self._foreign[run.id] = run
            self._notify(run.id)


def find_run_folders(root: ServedFolder) -> Iterator[Path]:
    """Run directories below a folder. Links are not followed; hidden folders are skipped."""
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
    """Other inputs of `headway diagnose`: logs, folders of event files, MLflow stores."""
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
        # The latest trainer_state.json contains all earlier ones.
        saved = path.name == "trainer_state.json" and path.parent.name.startswith("checkpoint-")
        if saved:
            newest[path.parent.parent] = path  # they come in order
        else:
            yield path
    yield from newest.values()
