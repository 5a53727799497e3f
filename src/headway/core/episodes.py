"""Folds repeated findings: a fault at every step is one episode, and episodes of one fault are one
finding with a count and its steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from headway.core.ending_facts import SURVIVED
from headway.core.findings import Finding, Severity
from headway.core.incident_events import (
    IncidentSummary,
    add_trials,
    explain_finding,
    incident_concerns,
    is_explained,
    pick_headline_code,
)

GAP = 200
"""Repeats further apart than this many records are separate episodes."""
EPISODES = 50
"""Limit per check and severity; later ones are counted into the last, to bound the memory."""
INCIDENTS = 20
"""Explanations that are kept for findings that follow them."""
MAX_STEPS = 50
"""Steps of a repeated finding that are listed; further ones are only counted."""

RecordDistance = Callable[[Finding, Finding], int]
"""Number of records between two findings of one segment."""


def full_distance(earlier: Finding, later: Finding) -> int:
    """The distance in a stream without omissions."""
    return later.seq - earlier.seq


@dataclass(slots=True)
class _Episode:
    first: Finding
    last: Finding
    distance: RecordDistance
    count: int = 1
    steps: list[int] = field(default_factory=list)

    def takes(self, finding: Finding) -> bool:
        same = finding.segment == self.last.segment
        near = same and self.distance(self.last, finding) <= GAP
        return near and not self.exceeded_by(finding)

    def exceeded_by(self, finding: Finding) -> bool:
        return finding.severity > self.first.severity

    def finding(self) -> Finding:
        if self.count == 1:
            return self.first
        evidence = {**self.first.evidence, "count": self.count, "last_step": self.last.step}
        first = self.first.occurred_at
        steps = tuple(dict.fromkeys((*first, *self.steps)))
        return replace(self.first, evidence=evidence, count=self.count, steps=steps)

    def add(self, finding: Finding) -> None:
        # Two sources may report one fault of one step.
        self.count += finding.step is None or finding.step != self.last.step
        self.last = finding
        if finding.step is not None and len(self.steps) < MAX_STEPS:
            self.steps.append(finding.step)


class FindingEpisodes:
    """Findings with repeats of the same check and subject folded into episodes."""

    def __init__(self, distance: RecordDistance = full_distance) -> None:
        self._distance = distance
        self._episodes: list[_Episode] = []
        self._open: dict[tuple[str, str], _Episode] = {}
        self._of_kind: dict[tuple[str, Severity], list[_Episode]] = {}
        self._incidents: deque[IncidentSummary] = deque(maxlen=INCIDENTS)
        """The last ones: a finding may follow the explanation of its step."""

    def add(self, findings: Iterable[Finding]) -> list[Finding]:
        """Add findings in the order of the stream; return those that open a new episode."""
        fresh = []
        for finding in findings:
            key = (finding.code, finding.subject)
            episode = self._open.get(key)
            if episode is None or not episode.takes(finding):
                alike = self._of_kind.setdefault((finding.code, finding.severity), [])
                if len(alike) < EPISODES:
                    self._open[key] = opened = _Episode(finding, finding, self._distance)
                    self._episodes.append(opened)
                    alike.append(opened)
                    self._explain_late(opened)
                    fresh.append(opened.first)
                    continue
                if episode is None or episode.exceeded_by(finding):
                    episode = alike[-1]
            episode.add(finding)
            self._explain_late(episode)
        return fresh

    def _explain_late(self, episode: _Episode) -> None:
        for incident in reversed(self._incidents):
            if incident_concerns(incident, episode.last):
                self._explain([episode], incident)

    def explain(self, incident: IncidentSummary) -> None:
        """Add place, reason and tested remedies to the findings of a bad step that was re-run."""
        self._incidents.append(incident)
        met = [
            episode
            for episode in self._episodes
            if incident_concerns(incident, episode.first)
            or incident_concerns(incident, episode.last)
        ]
        self._explain(met, incident)

    @staticmethod
    def _explain(met: Sequence[_Episode], incident: IncidentSummary) -> None:
        speaks = pick_headline_code(episode.first.code for episode in met)
        for episode in met:
            if is_explained(episode.first):
                episode.first = add_trials(episode.first, incident)
                continue
            # Of a repeated fault, any step may be the one that was re-run.
            finding = episode.first if incident_concerns(incident, episode.first) else episode.last
            aloud = finding.code == speaks or not incident.bad_step
            explained = explain_finding(finding, incident, aloud=aloud)
            first = episode.first
            episode.first = replace(
                explained, step=first.step, seq=first.seq, segment=first.segment
            )

    @property
    def findings(self) -> list[Finding]:
        """One finding per episode, in the order of the stream."""
        found = [episode.finding() for episode in self._episodes]
        return sorted(found, key=lambda finding: finding.order)


# One fault, one entry: the episodes of one check about the same subject and line are one finding.

FaultKey = tuple[str, str, Severity, str]
"""Code, subject, severity and line."""


def fault_keys(findings: Sequence[Finding]) -> list[FaultKey]:
    """A key for each finding; findings with equal keys are the same fault.

    A finding without a line belongs to the same fault as the first one that has a line.
    """
    lines: dict[tuple[str, str, Severity], str] = {}
    for finding in findings:
        if finding.where.line is not None:
            about = (finding.code, finding.subject, finding.severity)
            lines.setdefault(about, f"{finding.where.file}:{finding.where.line}")
    keys = []
    for finding in findings:
        about = (finding.code, finding.subject, finding.severity)
        own = f"{finding.where.file}:{finding.where.line}"
        keys.append((*about, lines.get(about, own) if finding.where.line is None else own))
    return keys


def merge_faults(alike: Sequence[Finding]) -> Finding:
    """One finding for all occurrences of a fault: placed at the first, explained by any of them."""
    first = min(alike, key=lambda finding: finding.order)
    if len(alike) == 1:
        return first
    speaker = next((item for item in alike if is_explained(item)), first)
    count = sum(item.count for item in alike)
    steps = sorted({step for item in alike for step in item.occurred_at})
    evidence = {**speaker.evidence, "count": count, "last_step": steps[-1] if steps else None}
    for name in ("samples", "data_set"):
        seen = [value for item in alike for value in item.evidence.get(name) or ()]
        if seen:
            evidence[name] = list(dict.fromkeys(seen))[:MAX_STEPS]
    last = max(alike, key=lambda finding: finding.order)
    if evidence.get(SURVIVED) is True and last.evidence.get(SURVIVED) is not True:
        del evidence[SURVIVED]
    return replace(
        speaker,
        step=first.step,
        segment=first.segment,
        seq=first.seq,
        evidence=evidence,
        count=count,
        steps=tuple(steps[:MAX_STEPS]),
        later_segment=last.segment if last.segment != first.segment else None,
    )
