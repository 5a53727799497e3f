"""Another tool's log on the live page."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from headway.errors import HeadwayError
from headway.report import Report
from headway.rundir.chart_data import ChartData
from headway.web.run_entry import IDLE_SECONDS, POINTS, RunEntry, build_log_charts, cut_charts


@dataclass
class ForeignRun(RunEntry):
    """The log of another tool: read as a whole, again when it has changed."""

    wrong: str = field(default="", init=False)
    """Why it cannot be read."""
    _changed: float = field(default=0.0, init=False)
    _known: tuple[float, int] | None = field(default=None, init=False)
    _report: Report | None = field(default=None, init=False)
    _data: ChartData | None = field(default=None, init=False)

    @property
    def source(self) -> str:
        """The tool whose log it is."""
        if self._data is not None and self._data.source:
            return self._data.source
        return "log"

    @property
    def changed(self) -> float:
        """When it was last written to."""
        return self._changed

    def due(self) -> bool:
        """Whether it has to be read, or read again."""
        try:
            about = self.path.stat()
        except OSError:
            return False
        self._changed = about.st_mtime
        return (about.st_mtime, about.st_size) != self._known and self.root.holds(self.path)

    def look(self) -> None:
        """Read it."""
        from headway.postmortem.diagnose import diagnose

        about = self.path.stat()
        report, data, wrong = None, None, ""
        try:
            report = diagnose(self.path)
            if report.reread is not None:
                data = build_log_charts(report.reread())
        except (HeadwayError, OSError) as error:
            wrong = str(error)
        with self.lock:
            self._report, self._data, self.wrong = report, data, wrong
            self._known = (about.st_mtime, about.st_size)
            self.version += 1

    def state(self) -> str:
        """`running` while it is written to."""
        if self.wrong:
            return "unreadable"
        return "running" if time.time() - self._changed < IDLE_SECONDS else "ended"

    def latest(self) -> dict[str, Any]:
        """The last step and its loss."""
        data = self._data
        if data is None or not data.series:
            return {}
        last: dict[str, Any] = {"step": data.end}
        loss = data.series.get("loss")
        if loss is not None:
            _, y = loss.points()
            last["loss"] = float(y[-1]) if len(y) else None
        return last

    def touch(self) -> None:
        """Somebody looks at it: all of it is here already."""

    def guard(self) -> dict[str, Any]:
        """There was none."""
        return {}

    def progress(self) -> tuple[float, float]:
        """All or nothing."""
        done = 0.0 if self._known is None else 1.0
        return done, done

    def report(self) -> Report | None:
        """What was found."""
        return self._report

    @property
    def told(self) -> int:
        """Rises when it was read again."""
        return self.version

    def charts(self, low: int | None, high: int | None, buckets: int = POINTS) -> ChartData | None:
        """What there is to draw."""
        with self.lock:
            data = self._data
            if data is None:
                return None
            if low is None or high is None:
                low, high = 0, data.end
            return cut_charts(data, low, high, buckets)
