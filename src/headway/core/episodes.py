"""Folds repeated findings into episodes: a fault at every step is one finding with a count."""

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
"""Limit per check and severity; later ones are counted into the last, to bound the memory."""


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
                    fresh.append(finding)
                    continue
                if episode is None or episode.exceeded_by(finding):
                    episode = alike[-1]
            episode.count += 1
            episode.last = finding
        return fresh

    def explain(self, incident: IncidentSummary) -> None:
        """Add place, reason and tested remedies to the findings of a bad step that was re-run."""
        met = [
            episode
            for episode in self._episodes
            if incident_concerns(incident, episode.first)
            or incident_concerns(incident, episode.last)
        ]
        speaks = pick_headline_code(episode.first.code for episode in met)
        for episode in met:
            # Of a repeated fault, any step may be the one that was re-run.
            finding = episode.first if incident_concerns(incident, episode.first) else episode.last
            explained = explain_finding(finding, incident, aloud=finding.code == speaks)
            first = episode.first
            episode.first = replace(
                explained, step=first.step, seq=first.seq, segment=first.segment
            )

    @property
    def findings(self) -> list[Finding]:
        """One finding per episode, in the order of the stream."""
        found = [episode.finding() for episode in self._episodes]
        return sorted(found, key=lambda finding: finding.order)
