"""`headway watch RUN`"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headway.cli import options
from headway.cli.exit_codes import INTERRUPTED, print_message
from headway.core.ending_facts import END, KILLED, EndFacts, KilledFacts
from headway.core.findings import Finding, Severity
from headway.core.numbers import ordinal, plural, say, say_bytes
from headway.core.records import EventRecord, Record, StepRecord
from headway.diagnosis import merge_repeats
from headway.engine import Engine
from headway.errors import UnreadableInput
from headway.output.console import SEVERITY_STYLES
from headway.output.display_text import BAD, BARS, clean, shorten_local_paths, sparkline
from headway.output.view import finding_title, format_where, repeats_text
from headway.rundir.run_files import open_regular_file
from headway.rundir.vanished_run import StreamEnd

if TYPE_CHECKING:
    from rich.text import Text

    from headway.output.terminal import TerminalPage
    from headway.rundir.run_reader import RunDir


AT_ONCE = 20_000
"""Records read between two updates of the screen."""


@click.command()
@click.argument("run", metavar="RUN", type=options.RunPath())
@click.option(
    "--every",
    type=click.FloatRange(min=0.05),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Update interval.",
)
@click.option("--once", is_flag=True, help="Show the current state and exit.")
def command(run: Path, every: float, once: bool) -> int:
    """Follow a run in the terminal while it trains.

    RUN is a run directory, written by `headway run` or `Guard(run_dir=…)`, or a
    folder of them, of which the newest is followed. Waits for a run that has not
    begun. Shows the loss, the gradient norm, findings and the actions of the
    guard. Exits when the run ends, or on Ctrl-C. Prints plain lines if the output
    is not a terminal.
    """
    from headway.output.terminal import TerminalPage
    from headway.rundir.run_reader import PATIENCE, RunDir

    try:
        run = _choose_run(run, wait=None if once else every)
    except KeyboardInterrupt:
        return INTERRUPTED
    page, watched = TerminalPage(), WatchedRun(run)
    growing = RunDir(run, patience=0.0 if once else PATIENCE)
    try:
        if page.live and not once:
            _show(growing, watched, page, every)
        else:
            _print(growing, watched, page, every, once)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


MAX_DEPTH = 3
"""How far below a folder runs are looked for."""


def _choose_run(path: Path, *, wait: float | None) -> Path:
    """The run directory at a path, or the newest below it; waits until there is one.

    Raises UnreadableInput if there is none and `wait` (seconds between two looks) is None, or if
    not even the folder above exists.
    """
    waiting = False
    while not (path / "run.json").is_file():
        patterns = ("*/" * depth + "run.json" for depth in range(1, MAX_DEPTH + 1))
        runs = [found.parent for pattern in patterns for found in path.glob(pattern)]
        if runs:
            newest = max(runs, key=lambda run: (run / "run.json").stat().st_mtime)
            if len(runs) > 1:
                print_message(f"{path} contains {len(runs)} runs; following the newest, {newest}")
            return newest
        above = path if path.is_dir() else path.parent
        if wait is None or path.is_file() or not above.is_dir():
            what = "contains no run" if path.is_dir() else "is not a run directory"
            raise UnreadableInput(f"{path} {what}")
        if not waiting:
            print_message(f"waiting for a run in {path}; Ctrl-C stops")
            waiting = True
        time.sleep(wait)
    return path


def _look(growing: RunDir, watched: WatchedRun) -> bool:
    """Whether there were new records."""
    if not growing.path.is_dir():
        raise UnreadableInput(f"{growing.path} is not a run directory")
    count = 0
    for record in islice(growing.follow(), AT_ONCE):
        watched.feed(record)
        count += 1
    if not count and not growing.waiting and not watched.over:
        watched.look_for_end()
    return count > 0


def _show(growing: RunDir, watched: WatchedRun, page: TerminalPage, every: float) -> None:
    from rich.live import Live

    with Live(console=page.console, auto_refresh=False) as live:
        while True:
            more = _look(growing, watched)
            ended = watched.over and not more and not growing.waiting
            if ended:
                watched.finish()
            live.update(watched.picture(page), refresh=True)
            if ended:
                return
            if not more:
                time.sleep(every)


def _print(
    growing: RunDir, watched: WatchedRun, page: TerminalPage, every: float, once: bool
) -> None:
    while True:
        more = _look(growing, watched)
        ended = not more and (once or watched.over) and not growing.waiting
        if ended:
            watched.finish()
        for line in watched.news():
            page.line(line, rest="  ")
        page.console.file.flush()
        if ended:
            if not watched.begun:
                raise UnreadableInput(f"{growing.path} contains no run yet: run.json is missing")
            return
        if not more and not once:
            time.sleep(every)


POINTS = 4000
"""Points kept for a curve (an even number); then every second one is dropped."""
OUTLIER_FACTOR = 4.0
"""A value this many times its neighbour is never dropped."""
SHOWN = 5
"""Number of latest findings and actions shown."""
_CURVES = {"loss": "loss", "grad_norm": "grad norm"}
_ALSO = ("lr", "loss_scale", "clip_coef", "samples_per_s", "tokens_per_s", "step_time_s")


class Curve:
    """A signal over the whole run, in bounded memory; outliers are kept."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.values: list[float] = []
        self.last = math.nan
        self._stride = 1
        """Values per point."""
        self._taken = 0
        """Values in the last point."""

    def add(self, step: int, value: float) -> None:
        self.last = value
        if self.values and self._taken < self._stride:
            self._taken += 1
            if _is_outlier(self.values[-1], value):
                self.steps[-1], self.values[-1] = step, value
            return
        if len(self.values) >= POINTS:
            self._thin()
        self.steps.append(step)
        self.values.append(value)
        self._taken = 1

    def _thin(self) -> None:
        """Keep the first of every two points, or the second if it is an outlier."""
        keep = [at + _is_outlier(*self.values[at : at + 2]) for at in range(0, len(self.values), 2)]
        self.steps = [self.steps[at] for at in keep]
        self.values = [self.values[at] for at in keep]
        self._stride *= 2


def _is_outlier(one: float, other: float) -> bool:
    if not math.isfinite(one):
        return False
    return not math.isfinite(other) or abs(other) > OUTLIER_FACTOR * abs(one)


ENDINGS = {"failed": "failed", "interrupted": "was interrupted"}
"""What a run that did not finish has done, by the status of its end."""


class WatchedRun:
    """The state of the run that is shown."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.begun = False
        """Whether the header has been read."""
        self.over = False
        """Whether the run has recorded its end; a resume clears it."""
        self._ended = "ended"
        self._end = StreamEnd()
        self._engine = Engine()
        self._curves = {name: Curve() for name in _CURVES}
        self._latest: StepRecord | None = None
        self._printed: StepRecord | None = None
        self._known: dict[str, float] = {}
        self._steps = 0
        self._made = 0
        """Steps that the end of the run names; the last second of a killed run has no records."""
        self._held = 0
        self._actions: deque[str] = deque(maxlen=SHOWN)
        self._news: list[str] = []
        self._reported: dict[tuple[str, str], int] = {}
        """How often each fault was in the news."""

    def feed(self, record: Record) -> None:
        """Add one record."""
        self.begun = True
        self._end.add(record)
        self._engine.feed(record)
        self._news += [self._news_line(finding) for finding in self._engine.opened]
        if isinstance(record, StepRecord):
            self.over = False
            self._latest = record
            self._steps += 1
            self._held += record.held
            self._known.update(record.values)
            for name, curve in self._curves.items():
                if name in record.values:
                    curve.add(record.step, record.values[name])
        elif isinstance(record, EventRecord):
            if record.kind == "action":
                self._act(record)
            elif record.kind == END:
                end = EndFacts.of_event(record)
                self.over = True
                self._ended = ENDINGS.get(end.status or "", "ended")
                self._made = max(self._made, end.steps or 0)
            elif record.kind == KILLED:
                self._made = max(self._made, KilledFacts.of_event(record).steps or 0)

    def _news_line(self, finding: Finding) -> str:
        """The first of a fault in full, a repeat as a count."""
        key = (finding.code, finding.subject)
        count = self._reported[key] = self._reported.get(key, 0) + 1
        if count == 1:
            return _line(finding)
        return f"step {finding.step}: {finding_title(finding)} again ({ordinal(count)} time)"

    def look_for_end(self) -> None:
        """Nothing new: the process may have vanished without recording its end."""
        for event in self._end.unrecorded(self.path, open_regular_file):
            self.feed(event)
            self.over, self._ended = True, "vanished"

    def finish(self) -> None:
        """The end was reached: finish the checks."""
        before = {id(finding) for finding in self._engine.findings}
        self._engine.finish()
        late = [finding for finding in self._engine.findings if id(finding) not in before]
        self._news += [_line(finding) for finding in late]
        if self.over:
            steps = plural(max(self._steps, self._made), "step")
            self._news.append(f"the run {self._ended} after {steps}; next: {self._next}")

    def news(self) -> list[str]:
        """New findings and actions and the latest step, as plain lines."""
        lines, self._news = self._news, []
        if self._latest is not None and self._latest is not self._printed:
            self._printed = self._latest
            lines.append(self._now())
        return lines

    def picture(self, page: TerminalPage) -> Text:
        """The whole screen."""
        from rich.text import Text

        self._news.clear()
        shown = Text()
        shown.append(f"{clean(self.path)}  ", style="bold")
        style = "bold red" if self._ended in ("failed", "vanished") else "dim"
        shown.append(
            f"{self._ended}\n" if self.over else "running\n", style=style if self.over else "green"
        )
        if self._latest is not None:
            self._draw_steps(shown, page)
        elif not self.over:
            return shown.append("waiting for the first step")
        for finding in self._last_findings():
            level = str(finding.severity)
            shown.append(f"{page.mark(level)} ", style=SEVERITY_STYLES[level])
            shown.append(f"{_truncate(_line(finding), page.width - 2)}\n")
        if self.over:
            shown.append(f"next: {self._next}", style="dim")
        return shown

    def _draw_steps(self, shown: Text, page: TerminalPage) -> None:
        shown.append(f"{self._now()}\n")
        plain = not page.can_show(BARS + BAD)
        for name, title in _CURVES.items():
            self._draw(shown, name, title, page.width, plain)
        self._state(shown)

    @property
    def _next(self) -> str:
        return clean(f"headway diagnose {self.path}")

    def _draw(self, shown: Text, name: str, title: str, width: int, plain: bool) -> None:
        curve = self._curves[name]
        line, _ = sparkline(curve.steps, curve.values, width=width - 24, plain=plain)
        if line:
            shown.append(f"{title:<10}", style="dim")
            shown.append(f"{line} {say(curve.last, 4)}\n")

    def _state(self, shown: Text) -> None:
        style = "yellow" if self._held else "green"
        shown.append(f"{'guard':<10}", style="dim")
        shown.append(f"{self._held} of {self._steps} updates skipped\n", style=style)
        for action in self._actions:
            shown.append(f"{'':<10}{clean(action)}\n")

    def _last_findings(self) -> Sequence[Finding]:
        found = [item for item in self._engine.findings if item.severity >= Severity.WARNING]
        return merge_repeats(found, ())[0][-SHOWN:]

    def _act(self, record: EventRecord) -> None:
        words = [str(record.data.get(name, "")) for name in ("action", "reason")]
        line = f"step {record.step}: {': '.join(word for word in words if word)}"
        self._actions.append(line)
        self._news.append(line)

    def _now(self) -> str:
        """The latest values in one line."""
        assert self._latest is not None
        values = self._latest.values
        parts = [f"step {self._latest.step}"]
        parts += [f"{name} {say(values[name], 4)}" for name in (*_CURVES, *_ALSO) if name in values]
        parts += [
            f"{name.partition('_')[0]} {say_bytes(self._known[name])}"
            for name in ("host_rss_bytes", "device_allocated_bytes")
            if name in self._known
        ]
        if self._latest.held:
            parts.append("update skipped")
        return "  ".join(parts)


def _line(finding: Finding) -> str:
    step = "" if finding.step is None else f" step {finding.step}"
    place = format_where(finding.where)
    at = f" (at {place})" if place and place not in finding.message else ""
    again = f" ({repeats})" if (repeats := repeats_text(finding)) else ""
    line = f"{finding.severity}{step}: {finding_title(finding)}{again}: {finding.message}{at}"
    return clean(shorten_local_paths(line))


def _truncate(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 1]}…"
