"""From "these checks could not run" to "log this, and so many more will"."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from headway.core.findings import NotRun
from headway.core.signals import axis_of

WORTH_SAYING = 2
"""One check more or less is no reason to log something."""
_ALL = re.compile(r"^needs (?P<names>.+), which this source does not have$")
_ONE = re.compile(r"^needs one of (?P<names>.+), and this source has none of them$")
_SOME_RUNS = {
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


def unlocking(not_run: Iterable[NotRun]) -> tuple[str, int] | None:
    """The signal whose absence keeps most checks from running, and how many those are."""
    counts = Counter(
        name
        for item in not_run
        for name in _would_do(item.reason)
        if name not in _SOME_RUNS and axis_of(name) is None
    )
    # By name among equals, so that the same log always gives the same advice.
    best = min(counts.items(), key=lambda pair: (-pair[1], pair[0]), default=("", 0))
    return best if best[1] >= WORTH_SAYING else None


def _would_do(reason: str) -> list[str]:
    """The signals each of which would, alone, let the check run."""
    if match := _ONE.match(reason):
        return match["names"].split(", ")
    if match := _ALL.match(reason):
        names = match["names"].split(", ")
        return names if len(names) == 1 else []
    return []


def in_short(not_run: Iterable[NotRun]) -> list[tuple[str, int]]:
    """The main reasons in a few words each, the most frequent first."""
    counts = Counter(_shorten(item.reason) for item in not_run)
    common = [(why, count) for why, count in counts.items() if why and count >= WORTH_SAYING]
    return sorted(common, key=lambda pair: (-pair[1], pair[0]))[:3]


def _shorten(reason: str) -> str:
    match = _ONE.match(reason) or _ALL.match(reason)
    if match:
        return f"without {match['names'].split(', ')[0]}"
    if match := re.match(r"^no (.+) of the kind it needs were seen$", reason):
        return f"without {match[1]}"
    return ""
