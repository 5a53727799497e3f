"""What renderers read of a report or an incident: protocols, coverage advice, locations, and the
source lines kept with an incident.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from headway.core.findings import Finding, NotRun, Where
from headway.core.records import EventRecord
from headway.core.signals import axis_of

# From "these checks could not run" to "log this, and so many more will".

MIN_CHECKS_GAINED = 2
"""One check more or less is no reason to log something."""
_NEEDS_ALL = re.compile(r"^needs (?P<names>.+), which this source does not have$")
_NEEDS_ONE = re.compile(r"^needs one of (?P<names>.+), and this source has none of them$")
_OPTIONAL_SIGNALS = {
    "clip_coef",
    "component_grad/*",
    "grad_nonfinite",
    "grad_nonfinite_tensors",
    "grads_carried",
    "incident",
    "loss/*",
    "loss_scale",
    "micro_batches",
    "optimizers",
    "scaler_skipped",
}
"""Signals a run has only if it clips, scales its loss and so on: nothing to ask a user for. Nor are
columns over all parameters, which no other tool logs."""


def find_missing_signal(not_run: Iterable[NotRun]) -> tuple[str, int] | None:
    """The signal whose absence keeps most checks from running, and how many those are."""
    counts = Counter(
        name
        for item in not_run
        for name in _sufficient_signals(item.reason)
        if name not in _OPTIONAL_SIGNALS and axis_of(name) is None
    )
    # By name among equals, so that the same log always gives the same advice.
    best = min(counts.items(), key=lambda pair: (-pair[1], pair[0]), default=("", 0))
    return best if best[1] >= MIN_CHECKS_GAINED else None


def _sufficient_signals(reason: str) -> list[str]:
    """The signals each of which would, alone, let the check run."""
    if match := _NEEDS_ONE.match(reason):
        return match["names"].split(", ")
    if match := _NEEDS_ALL.match(reason):
        names = match["names"].split(", ")
        return names if len(names) == 1 else []
    return []


def summarize_not_run(not_run: Iterable[NotRun]) -> list[tuple[str, int]]:
    """The main reasons in a few words each, the most frequent first."""
    counts = Counter(_shorten(item.reason) for item in not_run)
    common = [(why, count) for why, count in counts.items() if why and count >= MIN_CHECKS_GAINED]
    return sorted(common, key=lambda pair: (-pair[1], pair[0]))[:3]


def _shorten(reason: str) -> str:
    match = _NEEDS_ONE.match(reason) or _NEEDS_ALL.match(reason)
    if match:
        return f"without {match['names'].split(', ')[0]}"
    if match := re.match(r"^no (.+) of the kind it needs were seen$", reason):
        return f"without {match[1]}"
    return ""


# The lines around a bad one, as the page beside an incident has kept them.

# No file is opened that a log names: only README.md of the incident's own folder, which is
# untrusted like everything in a run directory, and is taken for text.

MAX_SOURCE_LINES = 40
MAX_SOURCE_BYTES = 1 << 16
_SOURCE_LINE = re.compile(r"^(?P<mark>[> ])\s*(?P<number>\d+) \|(?P<code>.*)$")

SourceLine = tuple[str, str, bool]
"""Its number, its code, whether it is the bad one."""


def read_source_lines(
    run: Path,
    incidents: Sequence[EventRecord],
    number: int,
    read: Callable[[Path], bytes | None],
) -> list[SourceLine]:
    """The lines of an incident of a run; none where they were not kept."""
    step = incidents[number].step
    earlier = sum(event.step == step for event in incidents[:number])
    try:
        folders = sorted(
            (item for item in (run / "incidents").iterdir() if item.name.endswith(f"-step{step}")),
            key=lambda item: (len(item.name), item.name),
        )
    except (OSError, ValueError):
        return []
    if earlier >= len(folders):
        return []
    lines: list[SourceLine] = []
    page = read(folders[earlier] / "README.md") or b""
    for line in page.decode("utf-8", "replace").splitlines():
        match = _SOURCE_LINE.match(line)
        if match is not None:
            code = match["code"].removeprefix(" ").replace("\t", "    ")
            lines.append((match["number"], code.rstrip(), match["mark"] == ">"))
        elif lines:
            break
    return lines[:MAX_SOURCE_LINES]


def read_head(path: Path) -> bytes | None:
    """The beginning of an ordinary file; a pipe that somebody has put there must not stop us."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        try:
            return file.read(MAX_SOURCE_BYTES) if stat.S_ISREG(os.fstat(handle).st_mode) else None
        except OSError:
            return None


# What a sink needs to know of a report, so that it need not know where reports are made.


class CoverageView(Protocol):
    """How much could be looked at."""

    @property
    def ran(self) -> int: ...
    @property
    def of(self) -> int: ...


class CauseView(Protocol):
    """A finding that nothing else explains, with those it explains."""

    @property
    def root(self) -> Finding: ...
    @property
    def symptoms(self) -> Sequence[Finding]: ...


class ReportView(Protocol):
    """What was found, what caused it, what could not be looked at."""

    @property
    def findings(self) -> Sequence[Finding]: ...
    @property
    def causes(self) -> Sequence[CauseView]: ...
    @property
    def not_run(self) -> Sequence[NotRun]: ...
    @property
    def coverage(self) -> CoverageView: ...
    @property
    def notes(self) -> Sequence[str]: ...
    def to_dict(self) -> dict[str, Any]: ...


# What the page needs of a report.


class SourcedReportView(ReportView, Protocol):
    """What the page needs of a report."""

    @property
    def sources(self) -> Sequence[Mapping[str, Any]]: ...


def format_where(where: Where) -> str:
    """The place of a finding in words; empty when nothing is known of it."""
    parts = []
    if where.file:
        line = f":{where.line}" if where.line else ""
        function = f" in {where.function}" if where.function else ""
        parts.append(f"{where.file}{line}{function}")
    if where.module:
        parts.append(where.module)
    if where.op:
        parts.append(f"op {where.op}")
    if where.sample is not None:
        parts.append(f"sample {where.sample}")
    if where.rank is not None:
        parts.append(f"rank {where.rank}")
    return ", ".join(parts)
