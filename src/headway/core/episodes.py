"""Folds repeated findings into episodes: a fault at every step is one finding with a count."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from headway.core.findings import Finding, Severity
from headway.core.incident_events import (
    IncidentSummary,
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
            episode.count += 1
            episode.last = finding
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
            # Of a repeated fault, any step may be the one that was re-run.
            finding = episode.first if incident_concerns(incident, episode.first) else episode.last
            if is_explained(episode.first) and not is_explained(finding):
                continue
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
