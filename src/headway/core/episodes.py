"""Folds repeated findings into episodes: a fault that fires at every step is one finding with a
count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from headway.core.findings import Finding, Severity
from headway.core.incident_events import (
    IncidentSummary,
    explain_finding,
    incident_concerns,
    pick_headline_code,
)

GAP = 200
"""Repeats further apart than this many records are separate episodes."""
EPISODES = 50
"""Of one check and severity; later ones are counted into the last, so that memory stays bounded."""


RecordDistance = Callable[[Finding, Finding], int]
"""How many records lie between two findings of one segment."""


def full_distance(earlier: Finding, later: Finding) -> int:
    """The distance in a stream that is handed over whole."""
    return later.seq - earlier.seq


@dataclass(slots=True)
class _Episode:
    first: Finding
    last: Finding
    distance: RecordDistance
    count: int = 1

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
        return replace(self.first, evidence=evidence)


class FindingEpisodes:
    """Findings with repeats of the same check and subject folded into episodes."""

    def __init__(self, distance: RecordDistance = full_distance) -> None:
        self._distance = distance
        self._episodes: list[_Episode] = []
        self._open: dict[tuple[str, str], _Episode] = {}
        self._of_kind: dict[tuple[str, Severity], list[_Episode]] = {}

    def add(self, findings: Iterable[Finding]) -> list[Finding]:
        """Take further findings, in the order of the stream; those that open a new episode."""
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
                    fresh.append(finding)
                    continue
                if episode is None or episode.exceeded_by(finding):
                    episode = alike[-1]
            episode.count += 1
            episode.last = finding
        return fresh

    def explain(self, incident: IncidentSummary) -> None:
        """A bad step was run again: its findings gain the place, the reason and tried cures."""
        met = [
            episode
            for episode in self._episodes
            if incident_concerns(incident, episode.first)
            or incident_concerns(incident, episode.last)
        ]
        speaks = pick_headline_code(episode.first.code for episode in met)
        for episode in met:
            # Of a fault that comes again and again, any step may be the one that is looked into.
            finding = episode.first if incident_concerns(incident, episode.first) else episode.last
            told = explain_finding(finding, incident, aloud=finding.code == speaks)
            first = episode.first
            episode.first = replace(told, step=first.step, seq=first.seq, segment=first.segment)

    @property
    def findings(self) -> list[Finding]:
        """One finding an episode, in the order of the stream."""
        found = [episode.finding() for episode in self._episodes]
        return sorted(found, key=lambda finding: finding.order)
